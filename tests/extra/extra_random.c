/*
 * extra_random - calls of the Extra API in random order, for tests/e2e/extra_random.sh.
 *
 *   talk ADDRESS PORT SECONDS         datagrams and streams to what `calls` opens, by plain calls
 *   calls ADDRESS PORT SECONDS SEED   two threads call what comes to their minds, on the same sockets
 *
 * `calls` opens UDP sockets on the ports PORT + 1 and up, and a listener on PORT. The threads receive with and without
 * copies, hold, free, free twice, free what is another's, set callbacks that do the same, close sockets under each
 * other, fork, and pass bad memory. Every datagram and stream has bytes of one value, so what is mixed up or
 * overwritten while it is held shows. A call may fail only with an errno of its contract. The last line says what was
 * seen.
 *
 * With VMA_SOCKETXTREME=1 every second call is one of SocketXtreme's: polls on sockets, rings, an epoll set and
 * whatever else has a number; packets that are kept, referenced, overwritten, freed, freed twice.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

enum { UDP_SOCKETS = 5, SOCKETS = 12, STREAMS = 4, HELD = 512, THREADS = 2, DEPTH = 3 };

static struct vma_api_t *api;
static struct sockaddr_in address;
static uint64_t random_run_end_ms;

/* A place is taken out (-1) by who closes it, so it is closed once. The others may still be calling. */
static _Atomic int fds[SOCKETS];
static int listener;
static bool has_xtreme;
static int set;                  /* epoll, of all sockets */
static _Atomic int some_ring_fd; /* the ring of a socket, which may have closed */
static pthread_rwlock_t polls;   /* read: places may be given out; write: none is, so what is free stays so */

struct held {
	void *id;
	int fd;
	size_t len;
	const uint8_t *bytes;
	uint8_t value;
};

/* A packet of SocketXtreme; `references` are those of its first buffer. */
struct kept {
	struct vma_packet_desc_t packet;
	const uint8_t *bytes;
	size_t len;
	unsigned references;
};

struct caller {
	uint64_t random;
	struct held held[HELD];
	unsigned held_n, depth;
	void *freed;             /* an identifier of before */
	char *inaccessible_page; /* that nobody may touch, behind one that this thread may */
	bool forbids_polls;      /* it has `polls` for writing; a callback may run meanwhile */
	struct kept kept[HELD];
	unsigned kept_n;
	uint64_t calls, wrong, zero_copied, copied, callbacks, held_freed, polled, accepted, twice_freed;
};
static __thread struct caller *me;

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void fail(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

/* xorshift64* */
static unsigned random_number_below(uint64_t *random, unsigned n)
{
	*random ^= *random >> 12;
	*random ^= *random << 25;
	*random ^= *random >> 27;
	return (unsigned)((*random * 0x2545f4914f6cdd1dULL) >> 33) % n;
}

static unsigned caller_random_below(unsigned n)
{
	return random_number_below(&me->random, n);
}

static void wrong(const char *what)
{
	if (me->wrong++ < 5)
		printf("wrong: %s (errno %d %s)\n", what, errno, strerror(errno));
}

/* ---- talk ---- */

static uint8_t fill_value_of_length(size_t len)
{
	return (uint8_t)(len * 31 + 7);
}

static void send_random_datagram(int fd, uint64_t *random)
{
	static uint8_t bytes[4000];
	struct sockaddr_in to = address;
	const size_t len = 1 + random_number_below(random, random_number_below(random, 8) == 0 ? sizeof(bytes) : 1400);

	to.sin_port = htons((uint16_t)(ntohs(address.sin_port) + 1 + random_number_below(random, UDP_SOCKETS)));
	memset(bytes, fill_value_of_length(len), len);
	sendto(fd, bytes, len, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof(to));
}

static void send_random_on_stream(int *fd, uint64_t *random)
{
	static uint8_t bytes[20000];
	const size_t len = 1 + random_number_below(random, sizeof(bytes));
	ssize_t n;

	if (*fd < 0) {
		*fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(*fd, (struct sockaddr *)&address, sizeof(address));
		return;
	}
	memset(bytes, *fd & 0xff, len);
	n = send(*fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	if ((n < 0 && errno != EAGAIN) || random_number_below(random, 2000) == 0) {
		close(*fd);
		*fd = -1;
	}
}

static int run_random_sender(void)
{
	const int udp = socket(AF_INET, SOCK_DGRAM, 0);
	int streams[STREAMS] = {-1, -1, -1, -1};
	uint64_t random = 1;

	while (now_ms() < random_run_end_ms) {
		for (unsigned i = 0; i < 16; i++)
			send_random_datagram(udp, &random);
		for (unsigned i = 0; i < STREAMS; i++)
			send_random_on_stream(&streams[i], &random);
		usleep(1000);
	}
	return 0;
}

/* ---- sockets ---- */

static int open_udp(unsigned i)
{
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), one = 1;
	struct sockaddr_in local = address;

	local.sin_port = htons((uint16_t)(ntohs(address.sin_port) + 1 + i));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&local, sizeof(local)) != 0)
		fail("bind");
	return fd;
}

/* A place has a socket again. Of two threads one puts its own there. */
static void open_socket_in_slot(unsigned i)
{
	int none = -1, fd;

	if (atomic_load(&fds[i]) >= 0)
		return;
	fd = i < UDP_SOCKETS ? open_udp(i) : accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	if (fd < 0)
		return;
	epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN});
	if (!atomic_compare_exchange_strong(&fds[i], &none, fd))
		close(fd);
}

static void close_socket_in_slot(unsigned i)
{
	const int fd = atomic_exchange(&fds[i], -1);

	if (fd >= 0)
		close(fd);
}

/* Now and then one that is no socket of ours, or none at all. */
static int random_fd(void)
{
	const unsigned odd = caller_random_below(200);

	return odd == 0   ? listener
	       : odd == 1 ? 0
	       : odd == 2 ? -1
	       : odd == 3 ? 1000000
	                  : atomic_load(&fds[caller_random_below(SOCKETS)]);
}

/* ---- what is held ---- */

static bool is_uniform(const uint8_t *bytes, size_t len, uint8_t value)
{
	return len == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, len - 1) == 0);
}

static int free_packet_by_id(int fd, void *id)
{
	struct vma_packet_t packet = {.packet_id = id};

	return api->free_packets(fd, &packet, 1);
}

/* While another thread closes the socket, its number is for a moment nobody's. */
static void free_zcopy_packet(const struct held *held)
{
	for (unsigned i = 0; free_packet_by_id(held->fd, held->id) != 0; i++) {
		if (i == 2000) {
			wrong("a held packet is not taken back");
			return;
		}
		usleep(1000);
	}
	me->held_freed++;
	me->freed = held->id;
}

static void free_random_zcopy_packet(void)
{
	struct held held;
	unsigned at;

	if (me->held_n == 0)
		return;
	at = caller_random_below(me->held_n);
	held = me->held[at];
	me->held[at] = me->held[--me->held_n];
	if (!is_uniform(held.bytes, held.len, held.value))
		wrong("a held packet has changed");
	if (caller_random_below(8) == 0 && (free_packet_by_id(listener, held.id) == 0 || errno != ENOENT))
		wrong("another socket's packet");
	free_zcopy_packet(&held);
}

static void hold(int fd, void *id, const uint8_t *bytes, size_t len)
{
	const struct held held = {.id = id, .fd = fd, .bytes = bytes, .len = len, .value = bytes[0]};

	if (me->held_n == HELD)
		free_random_zcopy_packet();
	if (me->held_n == HELD) {
		wrong("no room");
		return;
	}
	me->held[me->held_n++] = held;
}

static void free_packets_with_bad_args(void)
{
	struct vma_packet_t packet = {.packet_id = me->freed,
	                              .sz_iov = caller_random_below(2) == 0 ? SIZE_MAX / 16 : 0};
	const int fd = random_fd();
	const unsigned kind = caller_random_below(4);
	int rc;

	if (kind == 0)
		rc = api->free_packets(fd, (struct vma_packet_t *)(me->inaccessible_page - caller_random_below(24)),
		                       1 + caller_random_below(3));
	else if (kind == 1)
		rc = api->free_packets(fd, NULL, 1);
	else if (kind == 2)
		rc = free_packet_by_id(fd, (void *)(uintptr_t)(((uint64_t)caller_random_below(1U << 30) << 34) ^
		                                               caller_random_below(1U << 30)));
	else
		rc = api->free_packets(fd, &packet, 1);
	if (rc == 0 || (errno != ENOENT && errno != EINVAL && errno != EFAULT))
		wrong("a bad packet");
}

/* ---- receiving ---- */

union room {
	struct vma_packets_t packets;
	uint8_t bytes[4096];
};

static void hold_zcopy_packets(int fd, const union room *room, size_t total)
{
	const char *next = (const char *)&room->packets.pkts[0];
	size_t sum = 0;

	for (size_t i = 0; i < room->packets.n_packet_num; i++) {
		const struct vma_packet_t *packet = (const struct vma_packet_t *)next;

		for (size_t k = 0; k < packet->sz_iov; k++) {
			const struct iovec *iov = &packet->iov[k];

			sum += iov->iov_len;
			if (!is_uniform(iov->iov_base, iov->iov_len, *(uint8_t *)packet->iov[0].iov_base))
				wrong("a packet of different bytes");
		}
		hold(fd, packet->packet_id, packet->iov[0].iov_base, packet->iov[0].iov_len);
		next += sizeof(*packet) + packet->sz_iov * sizeof(struct iovec);
	}
	if (sum != total)
		wrong("the sum of the pieces");
	me->zero_copied++;
}

static bool is_allowed_errno(int error)
{
	static const int errors[] = {EAGAIN,   EFAULT,     EBADF,        ENOTCONN, ECONNRESET, EINVAL,
	                             ENOTSOCK, EOPNOTSUPP, ECONNREFUSED, EPIPE,    ETIMEDOUT,  EDEADLK};

	for (unsigned i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		if (errors[i] == error)
			return true;
	}
	return false;
}

static void receive_zero_copy(void)
{
	union room room;
	int flags = MSG_DONTWAIT | (caller_random_below(3) == 0 ? MSG_VMA_ZCOPY_FORCE : 0) |
	            (caller_random_below(16) == 0 ? MSG_PEEK : 0);
	const bool forced = flags & MSG_VMA_ZCOPY_FORCE;
	const int fd = random_fd();
	const size_t len = caller_random_below(4) == 0 ? caller_random_below(sizeof(room)) : sizeof(room);
	union room *to = caller_random_below(32) == 0
	                         ? (union room *)(me->inaccessible_page - 8 * caller_random_below(8))
	                         : &room;
	const int n = api->recvfrom_zcopy(fd, to, len, &flags, NULL, NULL);

	if (n < 0 && !is_allowed_errno(errno) && !(forced && (errno == ENOBUFS || errno == EIO)))
		wrong("recvfrom_zcopy");
	if (n <= 0)
		return;
	if (flags & MSG_VMA_ZCOPY) {
		hold_zcopy_packets(fd, to, (size_t)n);
	} else {
		if ((size_t)n <= len && !is_uniform(to->bytes, (size_t)n, to->bytes[0]))
			wrong("copied bytes differ");
		me->copied++;
	}
}

static void recv_from_random_fd(void)
{
	uint8_t bytes[3000];
	const ssize_t n = recv(random_fd(), bytes, 1 + caller_random_below(sizeof(bytes)),
	                       MSG_DONTWAIT | (caller_random_below(4) == 0 ? MSG_PEEK : 0));

	if (n < 0 && !is_allowed_errno(errno))
		wrong("recv");
	if (n > 0 && !is_uniform(bytes, (size_t)n, bytes[0]))
		wrong("received bytes differ");
}

static void poll_random_fds(void)
{
	struct pollfd polled[3];

	for (unsigned i = 0; i < 3; i++)
		polled[i] = (struct pollfd){.fd = random_fd(), .events = POLLIN};
	if (poll(polled, 3, (int)caller_random_below(2)) < 0)
		wrong("poll");
}

/* ---- callbacks ---- */

static void make_random_call(void);

static vma_recv_callback_retval_t recv_callback_random_verdict(int fd, size_t sz_iov, struct iovec iov[],
                                                               struct vma_info_t *info, void *context)
{
	vma_recv_callback_retval_t verdict = caller_random_below(3);
	size_t sum = 0;

	(void)context;
	me->callbacks++;
	for (size_t i = 0; i < sz_iov; i++) {
		sum += iov[i].iov_len;
		if (!is_uniform(iov[i].iov_base, iov[i].iov_len, *(uint8_t *)iov[0].iov_base))
			wrong("a packet of a callback has different bytes");
	}
	if (sum != info->payload_sz || info->struct_sz != sizeof(*info))
		wrong("what a callback is told");
	if (caller_random_below(6) == 0 && me->depth < DEPTH) {
		me->depth++;
		make_random_call();
		me->depth--;
	}
	if (verdict == VMA_PACKET_HOLD && info->packet_id != NULL && sz_iov > 0 && iov[0].iov_len > 0)
		hold(fd, info->packet_id, iov[0].iov_base, iov[0].iov_len);
	else if (verdict == VMA_PACKET_HOLD)
		verdict = VMA_PACKET_DROP;
	return verdict;
}

static void register_random_recv_callback(void)
{
	const int fd = random_fd();

	if (api->register_recv_callback(fd, caller_random_below(3) == 0 ? NULL : recv_callback_random_verdict, NULL) !=
	            0 &&
	    errno != EINVAL && errno != EOPNOTSUPP)
		wrong("register_recv_callback");
}

/* ---- SocketXtreme ---- */

static void free_xtreme_packet(unsigned at)
{
	struct kept kept = me->kept[at];

	me->kept[at] = me->kept[--me->kept_n];
	if (!is_uniform(kept.bytes, kept.len, kept.bytes[0]))
		wrong("a kept packet has changed");
	while (kept.references > 1) {
		if (api->socketxtreme_free_vma_buff(kept.packet.buff_lst) != (int)--kept.references)
			wrong("a reference is not counted");
	}
	if (api->socketxtreme_free_vma_packets(&kept.packet, 1) != 0)
		wrong("a kept packet is not taken back");
}

static void free_random_xtreme_packet(void)
{
	if (me->kept_n != 0)
		free_xtreme_packet(caller_random_below(me->kept_n));
}

/* Several by one call. The last reference of each goes with it. */
static void free_several_xtreme_packets(void)
{
	struct vma_packet_desc_t packets[8];
	int n = 0;

	while (n < 8 && me->kept_n != 0 && me->kept[me->kept_n - 1].references == 1)
		packets[n++] = me->kept[--me->kept_n].packet;
	if (api->socketxtreme_free_vma_packets(packets, n) != 0)
		wrong("kept packets are not taken back");
}

/* While nobody polls what was freed is nobody's. */
static void free_xtreme_packet_twice(void)
{
	struct vma_packet_desc_t packet;

	if (me->kept_n == 0 || me->forbids_polls || pthread_rwlock_trywrlock(&polls) != 0)
		return;
	me->forbids_polls = true;
	packet = me->kept[0].packet;
	free_xtreme_packet(0);
	if (api->socketxtreme_free_vma_packets(&packet, 1) == 0 || errno != ENOENT)
		wrong("a packet is freed twice");
	if (api->socketxtreme_free_vma_buff(packet.buff_lst) >= 0 || errno != ENOENT)
		wrong("a buffer is freed twice");
	if (api->socketxtreme_ref_vma_buff(packet.buff_lst) >= 0 || errno != ENOENT)
		wrong("a reference to what is free");
	me->twice_freed++;
	me->forbids_polls = false;
	pthread_rwlock_unlock(&polls);
}

static void keep(const struct kept *kept)
{
	while (me->kept_n == HELD) /* again: a callback may have kept another */
		free_random_xtreme_packet();
	me->kept[me->kept_n++] = *kept;
}

/* Taken out meanwhile: any call may run callbacks, which free what they find. */
static void ref_random_xtreme_buffer(void)
{
	struct kept kept;
	unsigned at;

	if (me->kept_n == 0)
		return;
	at = caller_random_below(me->kept_n);
	kept = me->kept[at];
	me->kept[at] = me->kept[--me->kept_n];
	if (kept.references < 5) {
		kept.references++;
		if (api->socketxtreme_ref_vma_buff(kept.packet.buff_lst) != (int)kept.references)
			wrong("a reference");
	}
	keep(&kept);
}

/* No place of the library's, or not the beginning of one. */
static void free_xtreme_with_bad_address(void)
{
	struct vma_buff_t own = {.len = 1};
	struct vma_packet_desc_t packet = {.buff_lst = &own};
	const unsigned kind = caller_random_below(5);

	if (kind == 1)
		packet.buff_lst = (struct vma_buff_t *)(me->inaccessible_page + caller_random_below(4096));
	else if (kind == 2)
		packet.buff_lst = (struct vma_buff_t *)(uintptr_t)(((uint64_t)caller_random_below(1U << 30) << 18) ^
		                                                   caller_random_below(1U << 30));
	else if (kind == 3 && me->kept_n != 0)
		packet.buff_lst =
		        (struct vma_buff_t *)((char *)me->kept[0].packet.buff_lst + 1 + caller_random_below(62));
	if (kind == 4) {
		if (api->socketxtreme_free_vma_packets(
		            (struct vma_packet_desc_t *)(me->inaccessible_page - caller_random_below(40)),
		            1 + (int)caller_random_below(3)) == 0 ||
		    (errno != EFAULT && errno != EINVAL))
			wrong("descriptions that are not there");
		return;
	}
	/* Of random numbers one may be a place of the other caller's: it is left alone. */
	if (kind != 2 && (api->socketxtreme_free_vma_packets(&packet, 1) == 0 || errno != EINVAL))
		wrong("a packet that is none");
	if (kind != 2 && (api->socketxtreme_free_vma_buff(packet.buff_lst) >= 0 || errno != EINVAL))
		wrong("a buffer that is none");
}

static void keep_xtreme_packet(const struct vma_packet_desc_t *packet)
{
	const struct vma_buff_t *first = packet->buff_lst;
	size_t sum = 0, n = 0;

	for (const struct vma_buff_t *buff = first; buff != NULL; buff = buff->next, n++) {
		sum += buff->len;
		if (!is_uniform(buff->payload, buff->len, *(uint8_t *)first->payload))
			wrong("a completion of different bytes");
	}
	if (sum != packet->total_len || n != packet->num_bufs)
		wrong("what a completion says of its packet");
	keep(&(struct kept){.packet = *packet, .bytes = first->payload, .len = first->len, .references = 1});
	if (caller_random_below(4) == 0) { /* the library does not read it */
		packet->buff_lst->next = (struct vma_buff_t *)(uintptr_t)caller_random_below(1U << 30);
		packet->buff_lst->payload = NULL;
		packet->buff_lst->len = (uint16_t)caller_random_below(1U << 16);
	}
}

static void store_accepted_connection(int fd)
{
	for (unsigned i = UDP_SOCKETS; i < SOCKETS; i++) {
		int none = -1;

		if (atomic_compare_exchange_strong(&fds[i], &none, fd))
			return;
	}
	close(fd);
}

static int random_fd_to_poll(void)
{
	const unsigned what = caller_random_below(8);
	int ring = -1;

	if (what == 0)
		return set;
	if (what == 1)
		return listener;
	if (what == 2)
		return atomic_load(&some_ring_fd);
	if (what == 3 && api->get_socket_rings_fds(random_fd(), &ring, 1) == 1)
		atomic_store(&some_ring_fd, ring);
	return what == 3 ? ring : random_fd();
}

static void poll_socketxtreme_with_random_args(void)
{
	struct vma_completion_t completions[32], *to = completions;
	const int fd = random_fd_to_poll(), flags = caller_random_below(64) == 0;
	const unsigned most = caller_random_below(33);
	int n;

	if (caller_random_below(32) == 0)
		to = (struct vma_completion_t *)(me->inaccessible_page - caller_random_below(64));
	if (me->forbids_polls)
		return;
	pthread_rwlock_rdlock(&polls);
	n = api->socketxtreme_poll(fd, to, most, flags);
	pthread_rwlock_unlock(&polls);
	if (n < 0 && errno != EBADF && !(errno == EINVAL && flags != 0) && !(errno == EFAULT && to != completions))
		wrong("socketxtreme_poll");
	if (n > (int)most || (n > 0 && to != completions)) {
		wrong("how many completions");
		return;
	}
	for (int i = 0; i < n; i++) {
		if (to[i].events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) {
			me->accepted++;
			store_accepted_connection((int)to[i].user_data);
		}
		if (to[i].events & VMA_SOCKETXTREME_PACKET) {
			me->polled++;
			keep_xtreme_packet(&to[i].packet);
		}
	}
}

/*
 * Of datagrams: a connection's user data is its descriptor. Now and then a socket is the kernel's from now on. So is,
 * for a moment, the number of a socket that the other thread closes: ENOPROTOOPT, or EINVAL without a value.
 */
static void set_xtreme_options(void)
{
	const int fd = atomic_load(&fds[caller_random_below(UDP_SOCKETS)]);
	const uint64_t data = caller_random_below(1U << 30);
	const uint32_t tag = caller_random_below(1U << 21);

	if (setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 8 - 4 * caller_random_below(2)) != 0 &&
	    errno != EINVAL && errno != EBADF && errno != ENOPROTOOPT)
		wrong("SO_VMA_USER_DATA");
	if (setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, sizeof(tag)) != 0 && errno != EINVAL && errno != EBADF &&
	    errno != ENOPROTOOPT)
		wrong("SO_VMA_FLOW_TAG");
	if (caller_random_below(16) == 0 && setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, NULL, 0) != 0 &&
	    errno != EBADF && errno != ENOPROTOOPT && errno != EINVAL)
		wrong("SO_VMA_SHUTDOWN_RX");
}

static void make_random_xtreme_call(void)
{
	const unsigned what = caller_random_below(1000);

	if (what < 500)
		poll_socketxtreme_with_random_args();
	else if (what < 700)
		free_random_xtreme_packet();
	else if (what < 780)
		free_several_xtreme_packets();
	else if (what < 840)
		free_xtreme_packet_twice();
	else if (what < 900)
		ref_random_xtreme_buffer();
	else if (what < 980)
		free_xtreme_with_bad_address();
	else
		set_xtreme_options();
}

/* ---- the other calls ---- */

static void make_other_calls_with_random_args(void)
{
	uint8_t header[256] = {0};
	uint16_t len = (uint16_t)caller_random_below(sizeof(header));
	const int fd = random_fd();

	if (api->get_socket_rings_num(fd) < 0 && errno != EINVAL)
		wrong("get_socket_rings_num");
	if (api->get_socket_network_header(fd, caller_random_below(4) == 0 ? NULL : header, &len) != 0 &&
	    errno != ENOBUFS && errno != ENOTCONN && errno != EINVAL)
		wrong("get_socket_network_header");
	if (api->dump_fd_stats(fd, caller_random_below(2) == 0 ? -1 : 9) != 0 && errno != EINVAL && errno != EBADF)
		wrong("dump_fd_stats");
	if (api->add_conf_rule("no rule at all") == 0 || errno != EINVAL)
		wrong("add_conf_rule");
	if (api->thread_offload((int)caller_random_below(2) * 2 + 1, pthread_self()) != 0 && errno != EINVAL)
		wrong("thread_offload");
}

static void send_random_bytes(void)
{
	static const uint8_t bytes[300];
	const int fd = random_fd();

	if (fd < 3)
		return;
	send(fd, bytes, caller_random_below(sizeof(bytes)),
	     MSG_DONTWAIT | MSG_NOSIGNAL | (caller_random_below(2) == 0 ? VMA_SND_FLAGS_DUMMY : 0));
}

static void set_random_rcvbuf(void)
{
	const int bytes = 2048 << caller_random_below(8);

	setsockopt(random_fd(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

/* A child has none of the packets. */
static void fork_child_freeing_parents_packets(void)
{
	const struct held *held = me->held_n != 0 ? &me->held[0] : NULL;
	struct kept *kept = me->kept_n != 0 ? &me->kept[0] : NULL;
	struct vma_completion_t completion;
	int status;
	const pid_t child = fork();

	if (child == 0) {
		alarm(20);
		if (held != NULL && free_packet_by_id(held->fd, held->id) == 0)
			_exit(1);
		if (kept != NULL && api->socketxtreme_free_vma_packets(&kept->packet, 1) == 0)
			_exit(2);
		me->held_n = 0;
		me->kept_n = 0;
		if (has_xtreme)
			api->socketxtreme_poll(random_fd(), &completion, 1, 0);
		receive_zero_copy();
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		wrong("fork");
	} else if (status != 0) {
		printf("wrong: status %#x of a child\n", (unsigned)status);
		wrong("a child");
	}
}

static void make_random_call(void)
{
	const unsigned what = caller_random_below(1000);

	me->calls++;
	if (has_xtreme && caller_random_below(2) == 0)
		make_random_xtreme_call();
	else if (what < 400)
		receive_zero_copy();
	else if (what < 600)
		free_random_zcopy_packet();
	else if (what < 700)
		recv_from_random_fd();
	else if (what < 800)
		poll_random_fds();
	else if (what < 840)
		free_packets_with_bad_args();
	else if (what < 880)
		register_random_recv_callback();
	else if (what < 920)
		send_random_bytes();
	else if (what < 930)
		make_other_calls_with_random_args();
	else if (what < 940)
		set_random_rcvbuf();
	else if (what < 950)
		close_socket_in_slot(caller_random_below(SOCKETS));
	else
		open_socket_in_slot(caller_random_below(SOCKETS));
}

static char *map_page_before_inaccessible_one(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED || mprotect(pages + 4096, 4096, PROT_NONE) != 0)
		fail("mmap");
	return pages + 4096;
}

static void *run_random_calls(void *arg)
{
	me = arg;
	while (now_ms() < random_run_end_ms) {
		for (unsigned i = 0; i < 100; i++)
			make_random_call();
		if (caller_random_below(500) == 0)
			fork_child_freeing_parents_packets();
	}
	while (me->held_n != 0)
		free_random_zcopy_packet();
	while (me->kept_n != 0)
		free_random_xtreme_packet();
	return NULL;
}

static const char *some_or_none_text(uint64_t n)
{
	return n != 0 ? "some" : "none";
}

static int run_random_calls_in_all_threads(uint64_t seed)
{
	static struct caller callers[THREADS];
	struct caller all = {0};
	pthread_t threads[THREADS];
	const int one = 1;

	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(listener, 16) != 0)
		fail("listen");
	set = epoll_create1(0);
	pthread_rwlock_init(&polls, NULL);
	atomic_init(&some_ring_fd, -1);
	epoll_ctl(set, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN});
	for (unsigned i = 0; i < SOCKETS; i++) {
		atomic_init(&fds[i], -1);
		open_socket_in_slot(i);
	}
	printf("ready\n");
	fflush(stdout);
	for (unsigned i = 0; i < THREADS; i++) {
		callers[i].random = seed * 7919 + i + 1;
		callers[i].inaccessible_page = map_page_before_inaccessible_one();
		pthread_create(&threads[i], NULL, run_random_calls, &callers[i]);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		all.calls += callers[i].calls;
		all.wrong += callers[i].wrong;
		all.zero_copied += callers[i].zero_copied;
		all.copied += callers[i].copied;
		all.callbacks += callers[i].callbacks;
		all.held_freed += callers[i].held_freed;
		all.polled += callers[i].polled;
		all.accepted += callers[i].accepted;
		all.twice_freed += callers[i].twice_freed;
	}
	if (has_xtreme) {
		printf("# %lu calls, %lu polled, %lu accepted, %lu freed twice, %lu without a copy, %lu callbacks\n",
		       all.calls, all.polled, all.accepted, all.twice_freed, all.zero_copied, all.callbacks);
		printf("polled %s accepted %s twice %s wrong %lu\n", some_or_none_text(all.polled),
		       some_or_none_text(all.accepted), some_or_none_text(all.twice_freed), all.wrong);
		return all.wrong != 0;
	}
	printf("# %lu calls, %lu without a copy, %lu copied, %lu callbacks, %lu freed\n", all.calls, all.zero_copied,
	       all.copied, all.callbacks, all.held_freed);
	printf("zcopy %s copied %s callbacks %s freed %s wrong %lu\n", some_or_none_text(all.zero_copied),
	       some_or_none_text(all.copied), some_or_none_text(all.callbacks), some_or_none_text(all.held_freed),
	       all.wrong);
	return all.wrong != 0;
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
		return 2;
	random_run_end_ms = now_ms() + strtoull(argv[4], NULL, 10) * 1000;
	if (strcmp(argv[1], "talk") == 0)
		return run_random_sender();
	api = vma_get_api();
	if (api == NULL)
		return 3;
	has_xtreme = api->vma_extra_supported_mask & VMA_EXTRA_API_SOCKETXTREME_POLL;
	return run_random_calls_in_all_threads(argc > 5 ? strtoull(argv[5], NULL, 10) : 1);
}
