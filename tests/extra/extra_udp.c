/*
 * extra_udp - the Extra API on UDP sockets, for tests/e2e/extra.sh.
 *
 *   send ADDRESS PORT COUNT           numbered datagrams, by plain calls
 *   zcopy ADDRESS PORT COUNT          receives so many without a copy, gives each back
 *   callback ADDRESS PORT COUNT       one third dropped, one received, one held and freed by another thread
 *   hold ADDRESS PORT COUNT           holds all that it may, never frees; waits to be killed
 *   pump ADDRESS PORT COUNT           so many, by plain calls, 32 at a time: each time it waits for an answer
 *   volume ADDRESS PORT COUNT         receives them without a copy, holds 64, gives back the rest; how much memory grew
 *   closed ADDRESS PORT COUNT         the same, but closes the socket, and frees afterwards
 *   misuse ADDRESS PORT               frees twice, frees strangers, closes its socket in the callback, ...
 *   dummy ADDRESS PORT udp|tcp        dummy messages
 *   missing                           what the mask does not name
 *   state ADDRESS PORT                <vma/vma_api.h>
 * GROUP_AT=ADDRESS: the socket's address is a multicast group, which it joins on the interface of that address; so do
 * datagrams leave by it.
 * After "ready" packets may come. The last line says what was seen.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>
#include <vma/vma_api.h>

#include "datagram.h"

enum { TEST_WAIT_LIMIT_MS = 60000, HELD_MAX = 8192 };

static struct vma_api_t *api;
static unsigned count, wrong, seen_total;
static struct sockaddr_in address;

static void fail(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

static void print_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static int bound_socket(void)
{
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct ip_mreq group = {.imr_multiaddr = address.sin_addr};

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("bind");
	if (getenv("GROUP_AT") != NULL && (inet_pton(AF_INET, getenv("GROUP_AT"), &group.imr_interface) != 1 ||
	                                   setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof(group)) != 0))
		fail("IP_ADD_MEMBERSHIP");
	return fd;
}

static bool wait_readable(int fd, int ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, ms) > 0;
}

/* ---- send ---- */

static int run_send(void)
{
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct datagram datagram;
	struct in_addr interface;

	if (getenv("GROUP_AT") != NULL &&
	    (inet_pton(AF_INET, getenv("GROUP_AT"), &interface) != 1 ||
	     setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof(interface)) != 0))
		fail("IP_MULTICAST_IF");
	for (uint32_t i = 0; i < count; i++) {
		fill_datagram(&datagram, i);
		if (sendto(fd, &datagram, sizeof(datagram), 0, (struct sockaddr *)&address, sizeof(address)) < 0)
			fail("sendto");
		if (i % 16 == 15)
			usleep(1000);
	}
	return 0;
}

/* ---- zcopy ---- */

union room {
	struct vma_packets_t packets;
	char bytes[512];
};

static int run_zcopy_receiver(void)
{
	const int fd = bound_socket();
	unsigned zcopy = 0, copied = 0;
	union room room;

	print_ready();
	while (zcopy + copied < count && wait_readable(fd, TEST_WAIT_LIMIT_MS)) {
		struct sockaddr_in from;
		socklen_t len = sizeof(from);
		int flags = MSG_DONTWAIT;
		const int n = api->recvfrom_zcopy(fd, &room, sizeof(room), &flags, (struct sockaddr *)&from, &len);

		if (n < 0 && errno == EAGAIN)
			continue;
		if (n < 0)
			fail("recvfrom_zcopy");
		if (flags & MSG_VMA_ZCOPY) {
			const struct vma_packet_t *packet = &room.packets.pkts[0];

			zcopy++;
			wrong += room.packets.n_packet_num != 1 || packet->sz_iov != 1 ||
			         !is_datagram_intact(packet->iov[0].iov_base, (size_t)n);
			wrong += api->free_packets(fd, room.packets.pkts, room.packets.n_packet_num) != 0;
		} else {
			copied++;
			wrong += !is_datagram_intact(&room, (size_t)n);
		}
		wrong += from.sin_family != AF_INET || len != sizeof(from);
	}
	printf("zcopy %u copied %u wrong %u\n", zcopy, copied, wrong);
	return 0;
}

/* ---- volume ---- */

enum { WINDOW = 32, KEPT = 64 };

static int run_windowed_udp_sender(void)
{
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct datagram datagram;
	uint32_t answer;

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("connect");
	for (uint32_t i = 0; i < count; i++) {
		fill_datagram(&datagram, i);
		if (send(fd, &datagram, sizeof(datagram), 0) < 0)
			fail("send");
		if (i % WINDOW == WINDOW - 1 &&
		    (!wait_readable(fd, TEST_WAIT_LIMIT_MS) || recv(fd, &answer, 4, 0) != 4 || answer != i))
			fail("an answer");
	}
	return 0;
}

static long resident_kb(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages = 0;

	if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1)
		fail("statm");
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* The number of a datagram that is what it should be. */
static uint32_t check_packet_and_get_number(const struct vma_packet_t *packet, uint32_t wanted)
{
	uint32_t number;

	wrong += packet->sz_iov != 1 || !is_datagram_intact(packet->iov[0].iov_base, packet->iov[0].iov_len);
	memcpy(&number, packet->iov[0].iov_base, sizeof(number));
	wrong += number != wanted;
	return number;
}

static int run_zcopy_volume_receiver(void)
{
	const int fd = bound_socket();
	static struct vma_packet_t kept[KEPT];
	const uint32_t warm = count / 10;
	long before = 0;
	union room room;

	print_ready();
	for (uint32_t i = 0; i < count;) {
		struct sockaddr_in from;
		socklen_t len = sizeof(from);
		int flags = MSG_DONTWAIT | MSG_VMA_ZCOPY_FORCE;
		const int n = api->recvfrom_zcopy(fd, &room, sizeof(room), &flags, (struct sockaddr *)&from, &len);
		uint32_t number;

		if (n < 0 && errno == EAGAIN && wait_readable(fd, TEST_WAIT_LIMIT_MS))
			continue;
		if (n < 0)
			fail("recvfrom_zcopy");
		number = check_packet_and_get_number(&room.packets.pkts[0], i);
		if (i >= KEPT)
			wrong += api->free_packets(fd, &kept[i % KEPT], 1) != 0;
		kept[i % KEPT] = (struct vma_packet_t){.packet_id = room.packets.pkts[0].packet_id};
		if (i % WINDOW == WINDOW - 1)
			sendto(fd, &number, sizeof(number), 0, (struct sockaddr *)&from, len);
		if (i++ == warm)
			before = resident_kb();
	}
	printf("packets %u grown %ld wrong %u\n", count, resident_kb() - before, wrong);
	return 0;
}

/* ---- callback ---- */

static struct held {
	void *id;
	const void *bytes;
} held[HELD_MAX];
static _Atomic unsigned n_held, n_freed;
static unsigned dropped, passed;
static _Atomic bool over;
static int callback_fd;

static vma_recv_callback_retval_t recv_callback_by_datagram_number(int fd, size_t n, struct iovec iov[],
                                                                   struct vma_info_t *info, void *context)
{
	struct datagram datagram;

	wrong += fd != callback_fd || context != &seen_total || n != 1 || info->struct_sz != sizeof(*info) ||
	         info->payload_sz != iov[0].iov_len || info->dst->sin_port != address.sin_port ||
	         info->sw_timestamp.tv_sec == 0 || !is_datagram_intact(iov[0].iov_base, iov[0].iov_len);
	seen_total++;
	memcpy(&datagram, iov[0].iov_base, sizeof(datagram));
	if (datagram.number % 3 == 0) {
		dropped++;
		return VMA_PACKET_DROP;
	}
	if (datagram.number % 3 == 1)
		return VMA_PACKET_RECV;
	held[n_held] = (struct held){.id = info->packet_id, .bytes = iov[0].iov_base};
	n_held++;
	return VMA_PACKET_HOLD;
}

static void free_oldest_held_packet(void)
{
	struct vma_packet_t packet = {.packet_id = held[n_freed].id, .sz_iov = 0};

	wrong += !is_datagram_intact(held[n_freed].bytes, BYTES);
	wrong += api->free_packets(callback_fd, &packet, 1) != 0;
	n_freed++;
}

static void *thread_freeing_held_packets(void *arg)
{
	(void)arg;
	while (!over || n_freed < n_held) {
		if (n_freed < n_held)
			free_oldest_held_packet();
		else
			usleep(200);
	}
	return NULL;
}

static int run_recv_callback_receiver(void)
{
	const int fd = callback_fd = bound_socket(), set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	char bytes[BYTES];
	pthread_t thread;

	if (api->register_recv_callback(fd, recv_callback_by_datagram_number, &seen_total) != 0)
		fail("register_recv_callback");
	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	pthread_create(&thread, NULL, thread_freeing_held_packets, NULL);
	print_ready();
	while (seen_total < count || passed < (count + 1) / 3) {
		const int n = epoll_wait(set, &event, 1, seen_total < count ? TEST_WAIT_LIMIT_MS : 2000);

		if (n == 0)
			break;
		while (n > 0 && recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
			passed++;
			wrong += !is_datagram_intact(bytes, sizeof(bytes));
		}
	}
	over = true;
	pthread_join(thread, NULL);
	printf("seen %u dropped %u received %u freed %u wrong %u\n", seen_total, dropped, passed, n_freed, wrong);
	return 0;
}

/* ---- hold, closed ---- */

static vma_recv_callback_retval_t recv_callback_returning_hold(int fd, size_t n, struct iovec iov[],
                                                               struct vma_info_t *info, void *context)
{
	(void)fd, (void)n, (void)context;
	held[n_held] = (struct held){.id = info->packet_id, .bytes = iov[0].iov_base};
	n_held++;
	return VMA_PACKET_HOLD;
}

static void receive_and_hold_all_packets(int fd)
{
	char bytes[BYTES];

	callback_fd = fd;
	if (api->register_recv_callback(fd, recv_callback_returning_hold, NULL) != 0)
		fail("register_recv_callback");
	print_ready();
	while (n_held < count) {
		const unsigned before = n_held;

		if (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) >= 0)
			wrong++;
		if (before == n_held && !wait_readable(fd, 20) && n_held == before && n_held != 0 &&
		    !wait_readable(fd, 2000) && n_held == before)
			break;
	}
	printf("held %u\n", n_held);
	fflush(stdout);
}

static int run_receiver_holding_zcopy_packets(void)
{
	receive_and_hold_all_packets(bound_socket());
	for (;;)
		pause();
	return 0;
}

static int run_freeing_held_packets_after_close(void)
{
	const int fd = bound_socket();

	receive_and_hold_all_packets(fd);
	close(fd);
	while (n_freed < n_held)
		free_oldest_held_packet();
	n_freed--;
	{
		struct vma_packet_t packet = {.packet_id = held[0].id};

		wrong += api->free_packets(fd, &packet, 1) != -1 || errno != EINVAL;
	}
	printf("freed %u wrong %u\n", n_freed + 1, wrong);
	return 0;
}

/* ---- misuse ---- */

static void expect(int rc, int error, const char *what)
{
	if (error == 0 ? rc < 0 : rc != -1 || errno != error) {
		printf("wrong: %s: %d, %s\n", what, rc, strerror(errno));
		wrong++;
	}
}

static int check_double_free_of_zcopy_packet(int fd, int other)
{
	union room room;
	int flags = MSG_VMA_ZCOPY_FORCE, rc;
	struct vma_packet_t none = {0};

	do {
		wait_readable(fd, TEST_WAIT_LIMIT_MS);
		flags = MSG_DONTWAIT | MSG_VMA_ZCOPY_FORCE;
		rc = api->recvfrom_zcopy(fd, &room, sizeof(room), &flags, NULL, NULL);
	} while (rc < 0 && errno == EAGAIN);
	expect(rc, 0, "a forced receive");
	expect(api->free_packets(other, room.packets.pkts, 1), ENOENT, "another socket's packet");
	expect(api->free_packets(fd, room.packets.pkts, 1), 0, "the first free");
	expect(api->free_packets(fd, room.packets.pkts, 1), ENOENT, "the second free");
	expect(api->free_packets(fd, &none, 1), ENOENT, "no packet");
	expect(api->free_packets(fd, (struct vma_packet_t *)8, 1), EFAULT, "a bad pointer");
	return 0;
}

static _Atomic unsigned calls;
static vma_recv_callback_retval_t second_recv_callback(int fd, size_t n, struct iovec iov[], struct vma_info_t *info,
                                                       void *c)
{
	(void)fd, (void)n, (void)iov, (void)info, (void)c;
	calls += 100;
	return VMA_PACKET_RECV;
}

/* Registers another, receives, and with context closes its socket. */
static vma_recv_callback_retval_t recv_callback_reentering_and_closing(int fd, size_t n, struct iovec iov[],
                                                                       struct vma_info_t *info, void *context)
{
	struct vma_packet_t packet = {.packet_id = info->packet_id};
	char byte;

	(void)n, (void)iov;
	calls++;
	/* What had been queued before there was a callback. */
	while (recv(fd, &byte, 1, MSG_DONTWAIT) >= 0)
		;
	wrong += errno != EAGAIN;
	expect((int)recv(fd, &byte, 1, 0), EDEADLK, "a blocking receive in the callback");
	if (context == NULL) {
		expect(api->register_recv_callback(fd, second_recv_callback, NULL), 0, "another callback");
		return VMA_PACKET_RECV;
	}
	expect(close(fd), 0, "a close in the callback");
	expect(api->free_packets(fd, &packet, 1), 0, "a free in the callback, after the close");
	return VMA_PACKET_RECV;
}

static void wait_for_recv_callback_calls(int fd, unsigned until)
{
	char byte;

	for (int ms = 0; calls < until && ms < TEST_WAIT_LIMIT_MS; ms++) {
		recv(fd, &byte, 1, MSG_DONTWAIT);
		usleep(1000);
	}
}

/* The question of vma_get_api() itself, before there is a socket. */
static void call_get_api_with_bad_args(void)
{
	void *bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *table = NULL;
	socklen_t len = sizeof(table), short_len = sizeof(table) - 1;

	expect(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, bad, &len), EFAULT, "a table that cannot be written");
	expect(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &table, bad), EFAULT, "a length that cannot be read");
	expect(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &table, &short_len), EBADF, "no room for a pointer");
	expect(getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &table, &len), 0, "a good question");
	munmap(bad, 4096);
}

static int run_calls_with_bad_arguments(void)
{
	const int fd = bound_socket(), other = socket(AF_INET, SOCK_DGRAM, 0), unix_fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	struct sockaddr_in any = {.sin_family = AF_INET};
	struct vma_packet_t none = {0};
	uint16_t len = 0;

	bind(other, (struct sockaddr *)&any, sizeof(any));
	expect(api->register_recv_callback(unix_fd, recv_callback_reentering_and_closing, NULL), EINVAL,
	       "a callback of a unix socket");
	expect(api->register_recv_callback(-1, recv_callback_reentering_and_closing, NULL), EINVAL,
	       "a callback of no descriptor");
	expect(api->free_packets(unix_fd, &none, 1), EINVAL, "a unix socket's packet");
	expect(api->recvfrom_zcopy(unix_fd, &none, 1, NULL, NULL, NULL), EFAULT, "no flags, of a unix socket");
	expect(api->get_socket_rings_num(unix_fd), EINVAL, "a unix socket's rings");
	expect(api->get_socket_network_header(unix_fd, NULL, &len), EINVAL, "a unix socket's headers");
	expect(api->get_socket_network_header(fd, NULL, &len), ENOTCONN, "headers of what is not connected");
	expect(api->add_conf_rule("use vma"), EINVAL, "half a rule");
	expect(api->thread_offload(2, pthread_self()), EINVAL, "an offload that is neither");
	expect(api->dump_fd_stats(unix_fd, 5), EBADF, "a unix socket's counters");
	expect(api->dump_fd_stats(fd, 77), EINVAL, "a level that is none");
	print_ready();
	check_double_free_of_zcopy_packet(fd, other);
	expect(api->get_socket_rings_num(fd) == 1 ? 0 : -1, 0, "one ring");
	expect(api->register_recv_callback(fd, recv_callback_reentering_and_closing, NULL), 0, "the rude callback");
	wait_for_recv_callback_calls(fd, 101);
	expect(api->register_recv_callback(fd, recv_callback_reentering_and_closing, &calls), 0, "the one that closes");
	calls = 0;
	wait_for_recv_callback_calls(fd, 1);
	sleep(1);
	wrong += calls != 1;
	printf("calls %u wrong %u\n", calls, wrong);
	return 0;
}

/* ---- dummy ---- */

/* Connected to the same peer, which would count what leaves. */
static void check_dummies_of_kernel_socket(int type)
{
	char bytes[16] = {0};
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct mmsghdr msgs[2] = {{.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}},
	                          {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}}};
	int fd;

	api->thread_offload(0, pthread_self());
	fd = socket(AF_INET, type, 0);
	api->thread_offload(1, pthread_self());
	if (type == SOCK_DGRAM && connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("connect");
	expect((int)send(fd, bytes, 16, VMA_SND_FLAGS_DUMMY), EINVAL, "send on a socket of the kernel's");
	expect((int)sendto(fd, bytes, 16, VMA_SND_FLAGS_DUMMY, (struct sockaddr *)&address, sizeof(address)), EINVAL,
	       "sendto on a socket of the kernel's");
	expect((int)sendmsg(fd, &msgs[0].msg_hdr, VMA_SND_FLAGS_DUMMY), EINVAL, "sendmsg on a socket of the kernel's");
	expect(sendmmsg(fd, msgs, 2, VMA_SND_FLAGS_DUMMY), EINVAL, "sendmmsg on a socket of the kernel's");
	close(fd);
}

/* One that is malformed, and on UDP one that is good: it would have the message go through the kernel. */
static void check_dummies_with_control_messages(int fd, bool tcp)
{
	char bytes[16] = {0};
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	const int ttl = 9;
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_len = 1, .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TTL}};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct mmsghdr msgs = {.msg_hdr = msg};

	memcpy(CMSG_DATA(&control.header), &ttl, sizeof(ttl));
	expect((int)sendmsg(fd, &msg, VMA_SND_FLAGS_DUMMY), EINVAL, "a malformed control message");
	expect(sendmmsg(fd, &msgs, 1, VMA_SND_FLAGS_DUMMY), EINVAL, "a malformed control message of sendmmsg");
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	if (!tcp)
		expect((int)sendmsg(fd, &msg, VMA_SND_FLAGS_DUMMY), EINVAL, "a control message");
}

static int run_dummy_sends(bool tcp)
{
	const int fd = socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0), pipe_fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	char bytes[100] = {0};
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct mmsghdr msgs[2] = {{.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}},
	                          {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}}};
	uint8_t headers[128];
	uint16_t len = sizeof(headers);

	expect((int)send(pipe_fd, bytes, 1, VMA_SND_FLAGS_DUMMY), EINVAL, "a dummy of a unix socket");
	expect((int)sendmsg(pipe_fd, &msgs[0].msg_hdr, VMA_SND_FLAGS_DUMMY), EINVAL, "its message");
	check_dummies_of_kernel_socket(tcp ? SOCK_STREAM : SOCK_DGRAM);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("connect");
	for (int i = 0; i < 8; i++) { /* the neighbour is known, and the socket sends by itself */
		if (send(fd, "real", 4, 0) != 4)
			fail("send");
		usleep(50000);
	}
	print_ready();
	for (int i = 0; i < 100; i++) {
		expect(send(fd, bytes, 10, VMA_SND_FLAGS_DUMMY) == 10 ? 0 : -1, 0, "send");
		expect(sendto(fd, bytes, 20, VMA_SND_FLAGS_DUMMY, NULL, 0) == 20 ? 0 : -1, 0, "sendto");
		expect(sendmsg(fd, &msgs[0].msg_hdr, VMA_SND_FLAGS_DUMMY) == 100 ? 0 : -1, 0, "sendmsg");
		expect(sendmmsg(fd, msgs, 2, VMA_SND_FLAGS_DUMMY) == 2 ? 0 : -1, 0, "sendmmsg");
	}
	check_dummies_with_control_messages(fd, tcp);
	if (!tcp) {
		expect(api->get_socket_network_header(fd, NULL, &len), 0, "the headers' length");
		expect(len == 42 ? 0 : -1, 0, "42 bytes");
		len = 10;
		expect(api->get_socket_network_header(fd, headers, &len), ENOBUFS, "too little room");
		len = sizeof(headers);
		expect(api->get_socket_network_header(fd, headers, &len), 0, "the headers");
		expect(memcmp(headers + 30, &address.sin_addr, 4) == 0 ? 0 : -1, 0, "the peer's address in them");
	}
	expect(api->dump_fd_stats(fd, 3), 0, "the dump");
	if (send(fd, "last", 4, 0) != 4)
		fail("send");
	usleep(300000);
	printf("wrong %u\n", wrong);
	return 0;
}

/* ---- missing ---- */

static int run_unsupported_calls(void)
{
	struct vma_completion_t completion;

	expect(api->socketxtreme_poll(0, &completion, 1, 0), EOPNOTSUPP, "socketxtreme_poll");
	expect(api->socketxtreme_free_vma_packets(NULL, 0), EOPNOTSUPP, "socketxtreme_free_vma_packets");
	expect(api->socketxtreme_ref_vma_buff(NULL), EOPNOTSUPP, "socketxtreme_ref_vma_buff");
	expect(api->socketxtreme_free_vma_buff(NULL), EOPNOTSUPP, "socketxtreme_free_vma_buff");
	expect(api->get_ring_direct_descriptors(0, NULL), EOPNOTSUPP, "get_ring_direct_descriptors");
	expect(api->register_memory_on_ring(0, NULL, 0, NULL), EOPNOTSUPP, "register_memory_on_ring");
	expect(api->deregister_memory_on_ring(0, NULL, 0), EOPNOTSUPP, "deregister_memory_on_ring");
	expect(api->ioctl(NULL, 0), EOPNOTSUPP, "ioctl");
	printf("wrong %u mask %llx\n", wrong, (unsigned long long)api->vma_extra_supported_mask);
	return 0;
}

/* ---- the library's own table ---- */

static int run_socket_state_queries(void)
{
	const struct vma_own_api *own = vma_get_own_api();
	const int bound = socket(AF_INET, SOCK_DGRAM, 0), other = socket(AF_UNIX, SOCK_DGRAM, 0);
	const char *text = "";

	if (own == NULL || bind(bound, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("vma_get_own_api");
	wrong += own->size < sizeof(*own) || own->get_version()[0] == '\0';
	wrong += own->get_socket_state(bound, &text) != 1 || strcmp(text, "offloaded") != 0;
	wrong += own->get_socket_state(other, &text) != 0;
	printf("# %s\n", text);
	wrong += own->get_socket_state(other, NULL) != 0;
	expect(own->get_socket_state(1000000, &text), EBADF, "get_socket_state");
	printf("wrong %u\n", wrong);
	return 0;
}

int main(int argc, char **argv)
{
	const char *role = argc > 1 ? argv[1] : "";

	if (argc > 3) {
		address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
		inet_pton(AF_INET, argv[2], &address.sin_addr);
	}
	count = argc > 4 ? (unsigned)atoi(argv[4]) : 0;
	if (strcmp(role, "send") == 0)
		return run_send();
	if (strcmp(role, "pump") == 0)
		return run_windowed_udp_sender();
	api = vma_get_api();
	if (api == NULL) {
		printf("no api: %s\n", strerror(errno));
		return 1;
	}
	if (strcmp(role, "zcopy") == 0)
		return run_zcopy_receiver();
	if (strcmp(role, "volume") == 0)
		return run_zcopy_volume_receiver();
	if (strcmp(role, "callback") == 0)
		return run_recv_callback_receiver();
	if (strcmp(role, "hold") == 0)
		return run_receiver_holding_zcopy_packets();
	if (strcmp(role, "closed") == 0)
		return run_freeing_held_packets_after_close();
	if (strcmp(role, "misuse") == 0) {
		call_get_api_with_bad_args();
		return run_calls_with_bad_arguments();
	}
	if (strcmp(role, "dummy") == 0)
		return run_dummy_sends(argc > 4 && strcmp(argv[4], "tcp") == 0);
	if (strcmp(role, "missing") == 0)
		return run_unsupported_calls();
	if (strcmp(role, "state") == 0)
		return run_socket_state_queries();
	return 2;
}
