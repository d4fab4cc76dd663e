/*
 * extra_rings - rings by descriptor, for tests/e2e/extra_rings.sh.
 *
 *   send ADDRESS PORT COUNT        datagrams, one each 10 ms, by plain calls
 *   talk ADDRESS PORT COUNT        so many connections, one after the other, that say a word and close
 *   wait ADDRESS PORT CALL         waits for COUNT datagrams by the ring's descriptor: CALL poll, select, epoll, edge
 *   moderate ADDRESS PORT          who sleeps for a ring is woken by count and period
 *   misuse ADDRESS PORT            what is refused, close and fork
 *   tcp ADDRESS PORT               a socket that is bound, listens, accepts
 *   logic ADDRESS PORT             sockets that ask for rings: SO_VMA_RING_ALLOC_LOGIC; a datagram for each of six ports
 *   ends ADDRESS PORT              rings of one socket each: the descriptor ends with the socket
 * After "ready" packets may come. The last line says what was seen.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

enum { WANTED = 20, TEST_WAIT_LIMIT_MS = 60000 };

static struct vma_api_t *api;
static unsigned wrong;
static struct sockaddr_in address;

static void fail(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

static void expect(bool is, const char *what)
{
	if (is)
		return;
	printf("wrong: %s (errno %s)\n", what, strerror(errno));
	wrong++;
}

static void expect_refused_with_errno(int rc, int error, const char *what)
{
	const int got = errno;

	if (rc == -1 && got == error)
		return;
	printf("wrong: %s: %d, %s\n", what, rc, strerror(got));
	wrong++;
}

static void print_ready_and_flush(void)
{
	printf("ready\n");
	fflush(stdout);
}

static int open_reusable_socket(int type)
{
	const int fd = socket(AF_INET, type, 0), on = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
		fail("socket");
	return fd;
}

static int open_bound_reusable_socket(int type, unsigned port_offset)
{
	struct sockaddr_in at = address;
	const int fd = open_reusable_socket(type);

	at.sin_port = htons((uint16_t)(ntohs(address.sin_port) + port_offset));
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0)
		fail("bind");
	return fd;
}

static int ring_fd_of_socket(int fd)
{
	int ring = -1;

	expect(api->get_socket_rings_num(fd) == 1, "one ring");
	expect(api->get_socket_rings_fds(fd, &ring, 1) == 1 && ring >= 0, "its descriptor");
	return ring;
}

static short poll_events_of_fd(int fd, int ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN | POLLOUT};

	return poll(&pfd, 1, ms) >= 0 ? pfd.revents : -1;
}

/* ---- the peer ---- */

static int send_numbered_datagrams(int count)
{
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);

	for (int i = 0; i < count; i++) {
		if (sendto(fd, &i, sizeof(i), 0, (struct sockaddr *)&address, sizeof(address)) < 0)
			fail("sendto");
		usleep(10000);
	}
	return 0;
}

static int run_connects_and_exchanges(int count)
{
	for (int i = 0; i < count; i++) {
		const int fd = socket(AF_INET, SOCK_STREAM, 0);
		char byte;

		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || write(fd, "word", 4) != 4)
			fail("connect");
		if (read(fd, &byte, 1) < 0)
			fail("read");
		close(fd);
	}
	return 0;
}

/* ---- wait ---- */

static int wait_ring_fd_readable_by_poll(int ring)
{
	return poll_events_of_fd(ring, TEST_WAIT_LIMIT_MS) == POLLIN ? 1 : -1;
}

static int wait_ring_fd_readable_by_select(int ring)
{
	struct timeval timeout = {.tv_sec = TEST_WAIT_LIMIT_MS / 1000};
	fd_set set;

	FD_ZERO(&set);
	FD_SET(ring, &set);
	return select(ring + 1, &set, NULL, NULL, &timeout) == 1 && FD_ISSET(ring, &set) ? 1 : -1;
}

static int epoll_fd;
static int wait_ring_fd_readable_by_epoll(int ring)
{
	struct epoll_event event;

	return epoll_wait(epoll_fd, &event, 1, TEST_WAIT_LIMIT_MS) == 1 && event.data.fd == ring &&
	                       event.events == EPOLLIN
	               ? 1
	               : -1;
}

static void add_ring_to_new_epoll_set(int ring, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.fd = ring};

	epoll_fd = epoll_create1(0);
	if (epoll_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, ring, &event) != 0)
		fail("epoll_ctl");
}

static void arm_ring_cq(int ring)
{
	struct vma_modify_ring_attr attr = {.comp_bit_mask = VMA_MODIFY_RING_CQ_ARM, .ring_fd = ring};

	expect(api->vma_modify_ring(&attr) == 0, "arm");
}

/* By each wait at least one datagram has come, or, as other packets are events too, none; `waits` bounds that. */
static int receive_datagrams_waiting_on_ring_fd(const char *call)
{
	const bool edge = strcmp(call, "edge") == 0, epoll = edge || strcmp(call, "epoll") == 0;
	const int fd = open_bound_reusable_socket(SOCK_DGRAM, 0), ring = ring_fd_of_socket(fd);
	int got = 0, waits = 0, number;

	expect(api->get_socket_rings_num(ring) == -1, "a ring is no socket");
	expect(poll_events_of_fd(ring, 0) == 0, "no events before the first packet");
	if (epoll)
		add_ring_to_new_epoll_set(ring, edge ? EPOLLIN | EPOLLET : EPOLLIN);
	print_ready_and_flush();
	while (got < WANTED && waits < 50 * WANTED) {
		const int rc = epoll                         ? wait_ring_fd_readable_by_epoll(ring)
		               : strcmp(call, "select") == 0 ? wait_ring_fd_readable_by_select(ring)
		                                             : wait_ring_fd_readable_by_poll(ring);

		if (rc != 1) {
			expect(false, "an event");
			break;
		}
		waits++;
		if (!edge)
			arm_ring_cq(ring);
		while (recv(fd, &number, sizeof(number), MSG_DONTWAIT) > 0)
			expect(number == got++, "in order");
	}
	expect(waits <= 2 * WANTED + 2, "a wait for each datagram, about");
	if (!edge) {
		arm_ring_cq(ring);
		expect(poll_events_of_fd(ring, 0) == 0, "no events after the last");
	}
	printf("got %d wrong %u\n", got, wrong);
	return 0;
}

/* ---- misuse ---- */

static void expect_modify_ring_errors(int ring, int socket)
{
	struct vma_modify_ring_attr attr = {.comp_bit_mask = VMA_MODIFY_RING_CQ_ARM, .ring_fd = ring};

	expect(api->vma_modify_ring(&attr) == 0, "arm");
	expect_refused_with_errno(api->vma_modify_ring(NULL), EFAULT, "nothing");
	attr.comp_bit_mask = 0;
	expect_refused_with_errno(api->vma_modify_ring(&attr), EINVAL, "no bit");
	attr.comp_bit_mask = VMA_MODIFY_RING_CQ_ARM | 4;
	expect_refused_with_errno(api->vma_modify_ring(&attr), EINVAL, "an unknown bit");
	attr.comp_bit_mask = VMA_MODIFY_RING_CQ_ARM;
	attr.ring_fd = socket;
	expect_refused_with_errno(api->vma_modify_ring(&attr), EBADF, "a socket");
	attr.ring_fd = -1;
	expect_refused_with_errno(api->vma_modify_ring(&attr), EBADF, "no descriptor");
}

static void expect_ring_profiles_work(void)
{
	struct vma_ring_type_attr profile = {.ring_type = VMA_RING_PACKET};
	int first = -1, second = -1, fd = open_reusable_socket(SOCK_DGRAM);
	struct vma_ring_alloc_logic_attr attr = {
	        .comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY | VMA_RING_ALLOC_MASK_RING_INGRESS,
	        .ring_alloc_logic = RING_LOGIC_PER_INTERFACE,
	        .ring_profile_key = 1000,
	        .ingress = 1,
	};

	expect(api->vma_add_ring_profile(&profile, &first) == 0 && first > 0, "a profile");
	expect(api->vma_add_ring_profile(&profile, &second) == 0 && second != first, "another");
	expect_refused_with_errno(api->vma_add_ring_profile(NULL, &second), EFAULT, "no profile");
	expect_refused_with_errno(api->vma_add_ring_profile(&profile, NULL), EFAULT, "no key");
	profile.comp_mask = 1;
	expect_refused_with_errno(api->vma_add_ring_profile(&profile, &second), EINVAL, "a bit");
	profile = (struct vma_ring_type_attr){.ring_type = (vma_ring_type)7};
	expect_refused_with_errno(api->vma_add_ring_profile(&profile, &second), EINVAL, "a type");
	profile.ring_type = VMA_RING_EXTERNAL_MEM;
	expect_refused_with_errno(api->vma_add_ring_profile(&profile, &second), EOPNOTSUPP, "external memory");
	expect_refused_with_errno(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &attr, sizeof(attr)), EINVAL,
	                          "a key of no profile");
	attr.ring_profile_key = (uint32_t)first;
	expect(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &attr, sizeof(attr)) == 0, "a profile's key");
	close(fd);
}

static void expect_ring_fd_invalid_in_forked_child(int fd, int ring)
{
	int status = -1;
	const pid_t child = fork();

	if (child == 0) {
		int again = -1;

		if (poll_events_of_fd(ring, 0) != POLLHUP)
			_exit(1);
		/* The socket is the parent's until it is used. */
		if (api->get_socket_rings_fds(fd, &again, 1) > 0 && again == ring)
			_exit(2);
		_exit(0);
	}
	waitpid(child, &status, 0);
	expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child's number leads nowhere");
	expect(poll_events_of_fd(ring, 0) == 0, "the parent's is as it was");
}

static int check_ring_fd_api_errors(void)
{
	const int fd = open_bound_reusable_socket(SOCK_DGRAM, 0), ring = ring_fd_of_socket(fd),
	          unix_fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = 1, .sin6_addr.s6_addr = {0x20, 1}};
	struct sockaddr_in to = address;
	int fds[4] = {-1, -1, -1, -1}, other;
	uint64_t bytes = 1;

	expect_refused_with_errno(api->get_socket_rings_fds(-1, fds, 4), EINVAL, "no descriptor");
	expect_refused_with_errno(api->get_socket_rings_fds(unix_fd, fds, 4), EINVAL, "a unix socket");
	expect_refused_with_errno(api->get_socket_rings_fds(ring, fds, 4), EINVAL, "a ring");
	expect_refused_with_errno(api->get_socket_rings_num(ring), EINVAL, "a ring's rings");
	expect_refused_with_errno(api->get_socket_rings_fds(fd, fds, 0), EINVAL, "no room");
	expect_refused_with_errno(api->get_socket_rings_fds(fd, fds, -1), EINVAL, "less than none");
	expect_refused_with_errno(api->get_socket_rings_fds(fd, NULL, 1), EFAULT, "nowhere");
	expect_refused_with_errno(api->get_socket_rings_fds(fd, (int *)8, 1), EFAULT, "a bad pointer");
	expect(api->get_socket_rings_fds(fd, fds, 4) == 1 && fds[0] == ring && fds[1] == -1, "one is written");
	other = open_reusable_socket(SOCK_DGRAM);
	expect(api->get_socket_rings_fds(other, fds, 4) == 0, "a socket without a name has no rings");
	expect_refused_with_errno(read(ring, &bytes, sizeof(bytes)), EINVAL, "read");
	expect_refused_with_errno(write(ring, &bytes, sizeof(bytes)), EINVAL, "write");
	expect_refused_with_errno(bind(ring, (struct sockaddr *)&address, sizeof(address)), ENOTSOCK, "bind");
	expect_refused_with_errno(epoll_ctl(ring, EPOLL_CTL_ADD, fd, &(struct epoll_event){0}), EINVAL, "as a set");

	expect_modify_ring_errors(ring, fd);
	expect_ring_profiles_work();
	expect_refused_with_errno(api->get_socket_tx_ring_fd(unix_fd, NULL, 0), EINVAL, "a unix socket sends");
	expect_refused_with_errno(api->get_socket_tx_ring_fd(ring, NULL, 0), EINVAL, "a ring sends");
	expect_refused_with_errno(api->get_socket_tx_ring_fd(fd, NULL, 0), ENOTCONN, "to nobody");
	expect_refused_with_errno(api->get_socket_tx_ring_fd(fd, (struct sockaddr *)&to, 3), EINVAL,
	                          "to half an address");
	expect_refused_with_errno(api->get_socket_tx_ring_fd(fd, (struct sockaddr *)8, sizeof(to)), EFAULT,
	                          "to a bad pointer");
	expect_refused_with_errno(api->get_socket_tx_ring_fd(fd, (struct sockaddr *)&v6, sizeof(v6)), EAFNOSUPPORT,
	                          "to IPv6");
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	expect_refused_with_errno(api->get_socket_tx_ring_fd(fd, (struct sockaddr *)&to, sizeof(to)), ENODATA,
	                          "to this host");
	inet_pton(AF_INET, getenv("PEER"), &to.sin_addr);
	expect(api->get_socket_tx_ring_fd(fd, (struct sockaddr *)&to, sizeof(to)) == ring, "one ring for both ways");
	expect_refused_with_errno(api->get_socket_tx_ring_fd(open_reusable_socket(SOCK_STREAM), NULL, 0), ENOTCONN,
	                          "TCP to nobody");
	expect(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 && api->get_socket_tx_ring_fd(fd, NULL, 0) == ring,
	       "to the peer");

	other = dup(ring);
	expect(close(ring) == 0 && poll_events_of_fd(other, 0) == 0, "a copy lives on");
	expect(api->get_socket_rings_fds(fd, fds, 1) == 1 && fds[0] == other, "and is the ring's");
	close(other);
	expect(poll_events_of_fd(other, 0) == POLLNVAL, "closed");
	expect(api->get_socket_rings_fds(fd, fds, 1) == 1 && poll_events_of_fd(fds[0], 0) == 0, "another one is made");
	expect((fcntl(fds[0], F_GETFD) & FD_CLOEXEC) != 0, "exec closes it");
	expect_ring_fd_invalid_in_forked_child(fd, fds[0]);
	printf("wrong %u\n", wrong);
	return 0;
}

/* ---- moderate ---- */

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void set_ring_cq_moderation(int ring, uint32_t packets, uint32_t usec)
{
	struct vma_modify_ring_attr attr = {.comp_bit_mask = VMA_MODIFY_RING_CQ_MODERATION | VMA_MODIFY_RING_CQ_ARM,
	                                    .ring_fd = ring,
	                                    .cq_moderation = {packets, usec}};

	expect(api->vma_modify_ring(&attr) == 0, "moderation");
}

static int drain_datagrams_and_count(int fd)
{
	int got = 0, number;

	while (recv(fd, &number, sizeof(number), MSG_DONTWAIT) > 0)
		got++;
	return got;
}

/*
 * Whether a wait ends with so many datagrams, of which the peer sends one each 10 ms. What is there before the wait is
 * not held back, so not each wait has to.
 */
static bool wait_ends_with_datagrams(int fd, int ring, int wanted)
{
	for (int i = 0; i < 20; i++) {
		arm_ring_cq(ring);
		drain_datagrams_and_count(fd);
		arm_ring_cq(ring);
		if (wait_ring_fd_readable_by_poll(ring) == 1 && drain_datagrams_and_count(fd) >= wanted)
			return true;
	}
	return false;
}

static int check_cq_moderation_holds_back_events(void)
{
	const int fd = open_bound_reusable_socket(SOCK_DGRAM, 0), ring = ring_fd_of_socket(fd);
	uint64_t begin;

	set_ring_cq_moderation(ring, 1000, 300000);
	print_ready_and_flush();
	expect(wait_ends_with_datagrams(fd, ring, 20), "packets of 300 ms are held back");
	set_ring_cq_moderation(ring, 10, 50000000);
	begin = now_ms();
	expect(wait_ends_with_datagrams(fd, ring, 10), "ten packets are waited for");
	expect(now_ms() - begin < 40000, "and no longer");
	set_ring_cq_moderation(ring, 0, 0);
	expect(wait_ends_with_datagrams(fd, ring, 1) && now_ms() - begin < 40000, "nothing is held back any more");
	printf("wrong %u\n", wrong);
	return 0;
}

/* ---- tcp ---- */

static int accept_tcp_connections_polling_ring_fd(void)
{
	const int fd = open_bound_reusable_socket(SOCK_STREAM, 0), ring = ring_fd_of_socket(fd);
	unsigned accepted = 0, waits = 0;
	char word[4];
	int conn;

	expect(poll_events_of_fd(ring, 0) == 0, "no events before the first packet");
	if (listen(fd, 8) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
		fail("listen");
	expect(ring_fd_of_socket(fd) == ring, "it listens on the ring that it had before");
	print_ready_and_flush();
	while (accepted < WANTED && waits++ < 1000 * WANTED) {
		if (wait_ring_fd_readable_by_poll(ring) != 1)
			break;
		arm_ring_cq(ring);
		conn = accept(fd, NULL, NULL);
		if (conn < 0)
			continue;
		accepted++;
		expect(ring_fd_of_socket(conn) == ring, "the connection's ring");
		expect(api->get_socket_tx_ring_fd(conn, NULL, 0) == ring, "for both ways");
		expect(read(conn, word, 4) == 4 && memcmp(word, "word", 4) == 0, "the word");
		close(conn);
	}
	printf("accepted %u wrong %u\n", accepted, wrong);
	return 0;
}

/* ---- logic ---- */

static int set_ring_alloc_logic(int fd, ring_logic_t logic, uint32_t user_id, unsigned ingress, unsigned engress)
{
	const struct vma_ring_alloc_logic_attr attr = {
	        .comp_mask = VMA_RING_ALLOC_MASK_RING_USER_ID | VMA_RING_ALLOC_MASK_RING_INGRESS |
	                     VMA_RING_ALLOC_MASK_RING_ENGRESS,
	        .ring_alloc_logic = logic,
	        .user_id = user_id,
	        .ingress = ingress & 1,
	        .engress = engress & 1,
	};

	return setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &attr, sizeof(attr));
}

static int open_bound_socket_with_ring_logic(int type, unsigned port_offset, ring_logic_t logic, uint32_t user_id)
{
	struct sockaddr_in at = address;
	const int fd = open_reusable_socket(type);

	at.sin_port = htons((uint16_t)(ntohs(address.sin_port) + port_offset));
	expect(set_ring_alloc_logic(fd, logic, user_id, 1, 1) == 0, "a logic is taken");
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0)
		fail("bind");
	return fd;
}

static int tx_ring_fd_of_socket(int fd)
{
	struct sockaddr_in to = address;

	inet_pton(AF_INET, getenv("PEER"), &to.sin_addr);
	return api->get_socket_tx_ring_fd(fd, (struct sockaddr *)&to, sizeof(to));
}

enum { ASKERS = 6 };

static void receive_one_on_each_fd(const int *fds)
{
	struct pollfd pfds[ASKERS];
	int left = ASKERS, number;

	for (int i = 0; i < ASKERS; i++)
		pfds[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
	while (left > 0 && poll(pfds, ASKERS, TEST_WAIT_LIMIT_MS) > 0) {
		for (int i = 0; i < ASKERS; i++) {
			if (pfds[i].revents == 0)
				continue;
			expect(recv(pfds[i].fd, &number, sizeof(number), MSG_DONTWAIT) == sizeof(number), "a datagram");
			pfds[i].fd = -1;
			left--;
		}
	}
	expect(left == 0, "each port has got one");
}

static void expect_ring_logic_answers(int fd, int plain)
{
	struct vma_ring_alloc_logic_attr attr;
	socklen_t len = sizeof(attr);

	expect(getsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &attr, &len) == 0 && len == sizeof(attr) &&
	               attr.ring_alloc_logic == RING_LOGIC_PER_USER_ID && attr.user_id == 1 && attr.engress,
	       "the answer is what was asked for");
	expect(getsockopt(plain, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &attr, &len) == 0 &&
	               attr.ring_alloc_logic == RING_LOGIC_PER_INTERFACE,
	       "or as configured");
	expect_refused_with_errno(set_ring_alloc_logic(fd, RING_LOGIC_PER_SOCKET, 0, 1, 1), EPERM,
	                          "a socket with rings");
	plain = open_reusable_socket(SOCK_STREAM);
	expect_refused_with_errno(set_ring_alloc_logic(plain, RING_LOGIC_LAST, 0, 1, 1), EINVAL, "an unknown logic");
	expect_refused_with_errno(set_ring_alloc_logic(plain, RING_LOGIC_PER_SOCKET, 0, 0, 0), EINVAL, "no direction");
	expect_refused_with_errno(setsockopt(plain, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &attr, 4), EINVAL,
	                          "another size");
	expect_refused_with_errno(setsockopt(plain, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, (void *)8, sizeof(attr)),
	                          EFAULT, "a bad pointer");
	expect_refused_with_errno(setsockopt(plain, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &attr, sizeof(attr)),
	                          EOPNOTSUPP, "user memory");
	close(plain);
}

static int check_ring_alloc_logic(void)
{
	const int fds[ASKERS] = {open_bound_socket_with_ring_logic(SOCK_DGRAM, 0, RING_LOGIC_PER_USER_ID, 1),
	                         open_bound_socket_with_ring_logic(SOCK_DGRAM, 1, RING_LOGIC_PER_USER_ID, 1),
	                         open_bound_socket_with_ring_logic(SOCK_DGRAM, 2, RING_LOGIC_PER_USER_ID, 2),
	                         open_bound_socket_with_ring_logic(SOCK_DGRAM, 3, RING_LOGIC_PER_SOCKET, 0),
	                         open_bound_reusable_socket(SOCK_DGRAM, 4),
	                         open_bound_reusable_socket(SOCK_DGRAM, 5)};
	const int tcp = open_bound_socket_with_ring_logic(SOCK_STREAM, 6, RING_LOGIC_PER_USER_ID, 1);
	int rings[ASKERS], sender;

	for (int i = 0; i < ASKERS; i++)
		rings[i] = ring_fd_of_socket(fds[i]);
	expect(rings[0] == rings[1], "one user id, one ring");
	expect(rings[0] != rings[2] && rings[2] != rings[3] && rings[3] != rings[4] && rings[4] != rings[0] &&
	               rings[3] != rings[0] && rings[2] != rings[4],
	       "others have others");
	expect(rings[4] == rings[5], "who asks for nothing has the interface's");
	expect(ring_fd_of_socket(tcp) == rings[0], "TCP, too");
	expect(tx_ring_fd_of_socket(fds[0]) == rings[0] && tx_ring_fd_of_socket(fds[3]) == rings[3],
	       "for sending, too");
	sender = open_reusable_socket(SOCK_DGRAM);
	expect(set_ring_alloc_logic(sender, RING_LOGIC_PER_SOCKET, 0, 0, 1) == 0, "for sending alone");
	if (bind(sender, (struct sockaddr *)&(struct sockaddr_in){.sin_family = AF_INET, .sin_addr = address.sin_addr},
	         sizeof(address)) != 0)
		fail("bind");
	expect(ring_fd_of_socket(sender) == rings[4], "it receives as configured");
	expect(tx_ring_fd_of_socket(sender) >= 0 && tx_ring_fd_of_socket(sender) != rings[4],
	       "and sends by a ring of its own");
	expect_ring_logic_answers(fds[0], fds[4]);
	print_ready_and_flush();
	receive_one_on_each_fd(fds);
	printf("wrong %u\n", wrong);
	return 0;
}

/* ---- ends ---- */

static bool fd_closes_within_10s(int fd)
{
	for (int ms = 0; ms < 10000; ms++) {
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
			return true;
		usleep(1000);
	}
	return false;
}

static void *close_fd_after_50ms_thread(void *arg)
{
	usleep(50000);
	close(*(int *)arg);
	return NULL;
}

static int check_ring_fd_closes_with_last_socket(void)
{
	int first = open_bound_reusable_socket(SOCK_DGRAM, 0), second = open_bound_reusable_socket(SOCK_DGRAM, 1),
	    third = open_bound_reusable_socket(SOCK_STREAM, 2);
	const int first_ring = ring_fd_of_socket(first), second_ring = ring_fd_of_socket(second),
	          third_ring = ring_fd_of_socket(third);
	pthread_t thread;
	int copy;

	expect(first_ring != second_ring && second_ring != third_ring && first_ring != third_ring, "rings differ");
	close(first);
	expect(fd_closes_within_10s(first_ring), "a ring's descriptor ends with its last socket");
	close(third);
	expect(fd_closes_within_10s(third_ring), "also with one that was bound only");
	expect(poll_events_of_fd(second_ring, 0) == 0, "others are as they were");
	copy = dup(second_ring);
	pthread_create(&thread, NULL, close_fd_after_50ms_thread, &second);
	expect(poll_events_of_fd(copy, TEST_WAIT_LIMIT_MS) == POLLHUP, "a wait ends with the ring");
	pthread_join(thread, NULL);
	expect(fd_closes_within_10s(second_ring), "so does the number");
	expect(poll_events_of_fd(copy, 0) == POLLHUP, "the program's copy stays");
	close(copy);
	for (int i = 0; i < 50; i++) {
		int ring;

		first = open_bound_reusable_socket(SOCK_DGRAM, 0);
		ring = ring_fd_of_socket(first);
		close(first);
		expect(fd_closes_within_10s(ring), "none is left behind");
	}
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
	if (strcmp(role, "send") == 0 && argc > 4)
		return send_numbered_datagrams(atoi(argv[4]));
	if (strcmp(role, "talk") == 0 && argc > 4)
		return run_connects_and_exchanges(atoi(argv[4]));
	api = vma_get_api();
	if (api == NULL) {
		printf("no api: %s\n", strerror(errno));
		return 1;
	}
	if (strcmp(role, "wait") == 0 && argc > 4)
		return receive_datagrams_waiting_on_ring_fd(argv[4]);
	if (strcmp(role, "moderate") == 0)
		return check_cq_moderation_holds_back_events();
	if (strcmp(role, "misuse") == 0)
		return check_ring_fd_api_errors();
	if (strcmp(role, "tcp") == 0)
		return accept_tcp_connections_polling_ring_fd();
	if (strcmp(role, "logic") == 0)
		return check_ring_alloc_logic();
	if (strcmp(role, "ends") == 0)
		return check_ring_fd_closes_with_last_socket();
	return 2;
}
