/*
 * priv_xdp_client - processes that share an interface, for tests/e2e/xdp_processes.sh.
 *
 *   serve INTERFACE ADDRESS PORT [OPTION...]    a queue pair that echoes UDP datagrams sent to ADDRESS:PORT
 *     vmad              rent from vmad (default: own the interface)
 *     start=PROGRAM     and start it when there is none
 *     user=UID          become this user before opening the interface
 *     drop=UID          become this user after opening it
 *     child=PORT,UID    fork a child that becomes UID and serves PORT through a queue pair of its own
 *     nopass            ... without passing the right on
 *     sameuser          ... passing it on to children of the same user only
 *     leak              first clone a child behind libc's back that keeps every fd and sleeps
 *     shadow            have a kernel socket on the same port, named as the flow's shadow
 *     members=N         N further kernel sockets on the port, each named as a shadow of the flow, too
 *     guest             have a pipe, a handler of SIGCHLD and every signal blocked before opening the interface, and
 * say whether numbers of descriptors, children and signals are what they would be without again             ask for a
 * flow that was refused or taken back again every half second hoard             keep every buffer received, echo
 * nothing ping ADDRESS SECONDS PORT...    kernel sockets that send to each port and want everything back; a line per
 * port: 'PORT sent N back N gap MS' (the longest time without an echo) kernel ADDRESS PORT             a kernel socket
 * that echoes
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/nic.h>
#include <vma/nic_owner.h>

#include "repost.h"

#define BURST 32

struct server {
	const char *interface, *address, *program;
	uint16_t port, child_port;
	uid_t user, drop, child_user;
	unsigned members;
	bool vmad, pass, same_user, leak, shadow, hoard, again, guest;
	_Atomic bool has_flow;
	struct vma_bufarena *arena;
	struct vma_nic *nic;
	struct vma_nic_qp *qp;
	struct vma_flow_rule rule;
};

static uint64_t xdp_client_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void xdp_client_print_result(const char *what, int port, int rc)
{
	printf("%s %d: %s\n", what, port, rc < 0 ? strerror(-rc) : "ok");
	fflush(stdout);
}

static void xdp_client_exit_on_error(const char *what, int port, int rc)
{
	xdp_client_print_result(what, port, rc);
	if (rc < 0)
		exit(2);
}

/* ---- serve ---- */

static void xdp_client_on_flow_revoked(struct vma_nic_qp *qp, enum vma_nic_event event, const struct vma_flow_key *key,
                                       void *arg)
{
	struct server *server = arg;

	(void)qp;
	if (event != VMA_NIC_EVENT_FLOW_REVOKED)
		return;
	atomic_store(&server->has_flow, false);
	xdp_client_print_result("revoked", ntohs(key->local_port_be), 0);
}

static void set_process_uid_or_exit(uid_t uid)
{
	if (uid != 0 && (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0))
		exit(3);
	if (uid != 0)
		prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

static void xdp_client_open_nic(struct server *server)
{
	const struct vma_bufarena_attr arena = {.capacity = 65536, .frame_size = 2048};
	struct vma_nic_attr attr = {
	        .owner = server->vmad ? VMA_NIC_OWNER_VMAD : VMA_NIC_OWNER_SELF,
	        .vmad_path = server->program,
	};
	char spec[64];

	snprintf(spec, sizeof(spec), "xdp:%s", server->interface);
	xdp_client_exit_on_error("arena", server->port, vma_bufarena_create(&arena, &server->arena));
	attr.arena = server->arena;
	xdp_client_exit_on_error("open", server->port, vma_nic_open(spec, &attr, &server->nic));
}

static uint64_t xdp_client_bind_udp_socket_get_cookie(const struct server *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(server->port)};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);
	int yes = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	inet_pton(AF_INET, server->address, &address.sin_addr);
	xdp_client_exit_on_error("shadow", server->port,
	                         bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0);
	getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len);
	return cookie;
}

static void xdp_client_add_flow_or_exit(struct server *server)
{
	int rc;

	/* Before the call: an event may come while it is under way. */
	atomic_store(&server->has_flow, true);
	rc = vma_nic_flow_add(server->qp, &server->rule);
	if (rc < 0)
		atomic_store(&server->has_flow, false);
	if (rc == -EADDRINUSE && server->again)
		xdp_client_print_result("refused", server->port, rc);
	else
		xdp_client_exit_on_error("flow", server->port, rc);
}

static void xdp_client_open_qp_and_add_udp_flows(struct server *server)
{
	const struct vma_nic_qp_attr attr = {
	        .rx_wre = 1024, .tx_wre = 512, .event = xdp_client_on_flow_revoked, .event_arg = server};
	struct vma_flow_key *key = &server->rule.key;

	key->family = AF_INET;
	key->proto = IPPROTO_UDP;
	key->local_port_be = htons(server->port);
	inet_pton(AF_INET, server->address, key->local);
	xdp_client_exit_on_error("queue pair", server->port, vma_nic_qp_create(server->nic, &attr, &server->qp));
	xdp_client_add_flow_or_exit(server);
	for (unsigned i = 0; i < server->members; i++) {
		struct vma_flow_rule rule = server->rule;
		int rc;

		rule.shadow_cookie = xdp_client_bind_udp_socket_get_cookie(server);
		rc = vma_nic_flow_add(server->qp, &rule);
		xdp_client_exit_on_error("member", server->port, rc == -EEXIST ? 0 : rc);
	}
}

static void xdp_client_swap_bytes(unsigned char *a, unsigned char *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const unsigned char c = a[i];

		a[i] = b[i];
		b[i] = c;
	}
}

/* A copy with both ends exchanged: sums stay what they were, the UDP checksum included. */
static bool xdp_client_send_echo_of_udp_frame(struct server *server, const struct vma_buf *in)
{
	struct vma_buf *out;
	struct vma_nic_seg seg;
	unsigned char *frame;

	if (in->len < 42 || vma_bufpool_get(atomic_load(&server->qp->tx_pool), &out, 1) == 0)
		return false;
	frame = (unsigned char *)vma_buf_frame(server->arena, out) + server->qp->tx_headroom;
	memcpy(frame, vma_buf_data(server->arena, in), in->len);
	xdp_client_swap_bytes(frame, frame + 6, 6);
	xdp_client_swap_bytes(frame + 26, frame + 30, 4);
	xdp_client_swap_bytes(frame + 34, frame + 36, 2);
	frame[40] = frame[41] = 0; /* the sender's half-finished checksum: none is as good */
	seg = (struct vma_nic_seg){.buf = out, .off = server->qp->tx_headroom, .len = in->len};
	if (vma_nic_tx(server->qp, &seg, 1) == 1)
		return true;
	vma_buf_put(server->arena, out);
	return false;
}

static unsigned xdp_client_poll_and_echo(struct server *server)
{
	struct vma_buf *bufs[BURST];
	const unsigned n = vma_nic_poll_rx(server->qp, bufs, BURST);

	if (server->hoard)
		return n;
	for (unsigned i = 0; i < n; i++)
		xdp_client_send_echo_of_udp_frame(server, bufs[i]);
	if (n > 0)
		vma_nic_kick(server->qp);
	xdp_client_exit_on_error("post", server->port,
	                         repost_rx_bufs_until_taken(server->qp, bufs, n) ? 0 : -ETIMEDOUT);
	return n;
}

static void xdp_client_reap_and_free_tx_bufs(struct server *server)
{
	struct vma_buf *bufs[BURST];
	unsigned n;

	while ((n = vma_nic_reap_tx(server->qp, bufs, BURST)) > 0)
		vma_buf_put_burst(server->arena, bufs, n);
}

static void xdp_client_echo_loop(struct server *server)
{
	uint64_t lost_ms = 0, asked_ms = xdp_client_now_ms();

	for (;;) {
		struct pollfd fd = {.fd = vma_nic_fd(server->qp), .events = POLLIN};

		if (vma_nic_qp_lost(server->qp)) {
			if (lost_ms == 0)
				lost_ms = xdp_client_now_ms();
			if (vma_nic_qp_rebind(server->qp) == 0) {
				printf("rebound %d: after %d ms, mtu %u\n", server->port,
				       (int)(xdp_client_now_ms() - lost_ms), vma_nic_info(server->nic)->mtu);
				fflush(stdout);
				lost_ms = 0;
			}
		}
		if (server->again && !atomic_load(&server->has_flow) && xdp_client_now_ms() - asked_ms > 500) {
			asked_ms = xdp_client_now_ms();
			xdp_client_add_flow_or_exit(server);
		}
		if (xdp_client_poll_and_echo(server) > 0)
			continue;
		xdp_client_reap_and_free_tx_bufs(server);
		if (vma_nic_arm(server->qp) == 0)
			poll(&fd, 1, 50);
	}
}

/* What the child can do with its parent's queue pair: nothing. */
static void child_cannot_use_inherited_qp(struct server *server)
{
	struct vma_buf *buf;
	const bool nothing = vma_nic_poll_rx(server->qp, &buf, 1) == 0 && vma_nic_kick(server->qp) == -ENODEV &&
	                     vma_nic_arm(server->qp) == -ENODEV &&
	                     vma_nic_flow_add(server->qp, &server->rule) == -ENODEV &&
	                     vma_nic_flow_del(server->qp, &server->rule.key) == -ENODEV;

	vma_nic_qp_destroy(server->qp);
	vma_nic_close(server->nic);
	xdp_client_print_result("inherited", server->child_port, nothing ? 0 : -EBADE);
}

static void run_echo_server_child_with_own_nic(struct server *server)
{
	child_cannot_use_inherited_qp(server);
	set_process_uid_or_exit(server->child_user);
	server->port = server->child_port;
	server->shadow = false;
	if (geteuid() != 0)
		server->rule.shadow_cookie = xdp_client_bind_udp_socket_get_cookie(server);
	xdp_client_open_nic(server);
	xdp_client_open_qp_and_add_udp_flows(server);
	printf("ready %d pid %d\n", server->port, getpid());
	fflush(stdout);
	xdp_client_echo_loop(server);
}

static void leak(void)
{
	if (syscall(SYS_clone, (unsigned long)SIGCHLD, 0, 0, 0, 0) == 0) {
		prctl(PR_SET_NAME, "leaked");
		for (int i = 0; i < 300; i++)
			poll(NULL, 0, 100);
		_exit(0);
	}
}

static void xdp_client_parse_option(struct server *server, const char *option)
{
	unsigned port, uid;

	if (strcmp(option, "vmad") == 0)
		server->vmad = true;
	else if (strncmp(option, "start=", 6) == 0)
		server->program = option + 6;
	else if (sscanf(option, "user=%u", &uid) == 1)
		server->user = uid;
	else if (sscanf(option, "drop=%u", &uid) == 1)
		server->drop = uid;
	else if (sscanf(option, "child=%u,%u", &port, &uid) == 2) {
		server->child_port = (uint16_t)port;
		server->child_user = uid;
	} else if (strcmp(option, "nopass") == 0)
		server->pass = false;
	else if (strcmp(option, "sameuser") == 0)
		server->same_user = true;
	else if (strcmp(option, "leak") == 0)
		server->leak = true;
	else if (strcmp(option, "shadow") == 0)
		server->shadow = true;
	else if (strcmp(option, "guest") == 0)
		server->guest = true;
	else if (strcmp(option, "again") == 0)
		server->again = true;
	else if (sscanf(option, "members=%u", &uid) == 1)
		server->members = uid;
	else if (strcmp(option, "hoard") == 0)
		server->hoard = true;
	else
		exit(1);
}

/* ---- what a program sees of us ---- */

static volatile sig_atomic_t children_seen;

static void count_child_signal(int sig)
{
	(void)sig;
	children_seen++;
}

static uint64_t open_fds_before_bits[16]; /* numbers below 1024, a bit each */

/* Notes what is open; with `report` names what is new and low. */
static bool note_and_report_new_fds_below_1000(bool report)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	bool high = dir != NULL;

	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		const int fd = atoi(entry->d_name);

		if (fd >= 1000 || fd == dirfd(dir))
			continue;
		if (report && !(open_fds_before_bits[fd / 64] >> fd % 64 & 1)) {
			printf("low number %d\n", fd);
			high = false;
		}
		open_fds_before_bits[fd / 64] |= 1ull << fd % 64;
	}
	closedir(dir);
	return high;
}

static int lowest_free_fd_number(void)
{
	const int fd = dup(0);

	close(fd);
	return fd;
}

/* Also while threads do what they do twice a second: what they open for a moment has the lowest number meanwhile. */
static bool lowest_free_fd_stays(int expected)
{
	struct timespec now, begin;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		for (int i = 0; i < 1000; i++)
			if (lowest_free_fd_number() != expected)
				return false;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - begin.tv_sec < 2);
	return true;
}

static void mask_signals_and_take_low_fds(void)
{
	const struct sigaction on = {.sa_handler = count_child_signal};
	sigset_t most;
	int ends[2];

	if (pipe(ends) < 0)
		exit(4);
	sigaction(SIGCHLD, &on, NULL);
	sigfillset(&most);
	sigdelset(&most, SIGCHLD);
	sigprocmask(SIG_SETMASK, &most, NULL);
}

static void print_library_left_process_undisturbed(const struct server *server, int lowest_before)
{
	sigset_t mask;

	sigprocmask(SIG_SETMASK, NULL, &mask);
	xdp_client_print_result("no child", server->port,
	                        waitpid(-1, NULL, WNOHANG | __WALL) < 0 && errno == ECHILD ? 0 : -EBADE);
	xdp_client_print_result("no signal", server->port,
	                        children_seen == 0 && sigismember(&mask, SIGTERM) == 1 ? 0 : -EBADE);
	xdp_client_print_result("lowest number", server->port, lowest_free_fd_stays(lowest_before) ? 0 : -EBADE);
	xdp_client_print_result("high numbers", server->port, note_and_report_new_fds_below_1000(true) ? 0 : -EBADE);
	sigemptyset(&mask);
	sigprocmask(SIG_SETMASK, &mask, NULL);
}

static int echo_server_main(int argc, char **argv)
{
	static struct server server = {.pass = true};
	int lowest;

	server.interface = argv[0];
	server.address = argv[1];
	server.port = (uint16_t)atoi(argv[2]);
	for (int i = 3; i < argc; i++)
		xdp_client_parse_option(&server, argv[i]);
	signal(SIGCHLD, SIG_DFL);
	if (server.guest)
		mask_signals_and_take_low_fds();
	set_process_uid_or_exit(server.user);
	if (server.shadow || geteuid() != 0) /* of others than root vmad wants to see one */
		server.rule.shadow_cookie = xdp_client_bind_udp_socket_get_cookie(&server);
	lowest = lowest_free_fd_number();
	note_and_report_new_fds_below_1000(false);
	xdp_client_open_nic(&server);
	xdp_client_open_qp_and_add_udp_flows(&server);
	set_process_uid_or_exit(server.drop);
	if (server.child_port != 0) {
		if (server.pass && server.vmad)
			xdp_client_exit_on_error("pass on", server.port,
			                         vma_nic_set_children_inherit_right(
			                                 server.nic, server.same_user ? VMA_NIC_INHERIT_SAME_USER
			                                                              : VMA_NIC_INHERIT_ANY_USER));
		if (fork() == 0)
			run_echo_server_child_with_own_nic(&server);
	}
	if (server.leak)
		leak();
	if (server.guest)
		print_library_left_process_undisturbed(&server, lowest);
	printf("ready %d pid %d mtu %u\n", server.port, getpid(), vma_nic_info(server.nic)->mtu);
	fflush(stdout);
	xdp_client_echo_loop(&server);
	return 0;
}

/* ---- ping and kernel: plain sockets ---- */

struct target {
	int fd;
	uint32_t sent, back;
	uint64_t last_ms, gap_ms;
};

static void ping_target_once(struct target *target)
{
	char text[64] = {0};

	memcpy(text, &target->sent, sizeof(target->sent));
	if (send(target->fd, text, sizeof(text), MSG_DONTWAIT) == sizeof(text))
		target->sent++;
}

static void receive_echoes(struct target *target)
{
	const uint64_t now = xdp_client_now_ms();
	char text[64];

	while (recv(target->fd, text, sizeof(text), MSG_DONTWAIT) == sizeof(text)) {
		target->back++;
		if (now - target->last_ms > target->gap_ms)
			target->gap_ms = now - target->last_ms;
		target->last_ms = now;
	}
}

static bool some_echo_is_missing(const struct target *targets, int n)
{
	for (int i = 0; i < n; i++)
		if (targets[i].back > 0 && targets[i].back < targets[i].sent)
			return true;
	return false;
}

/* An echo that comes twice has 0.2 s after the end; one that is missing has a second, if its port has ever answered. */
static int xdp_client_udp_ping_main(int argc, char **argv)
{
	struct target targets[16] = {0};
	const int n = argc - 2 < 16 ? argc - 2 : 16;
	const uint64_t start = xdp_client_now_ms(), end = start + (uint64_t)(atof(argv[1]) * 1000);

	for (int i = 0; i < n; i++) {
		struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[i + 2]))};

		inet_pton(AF_INET, argv[0], &address.sin_addr);
		targets[i].fd = socket(AF_INET, SOCK_DGRAM, 0);
		targets[i].last_ms = start;
		if (connect(targets[i].fd, (struct sockaddr *)&address, sizeof(address)) < 0)
			return 1;
	}
	while (xdp_client_now_ms() < end + 200 ||
	       (xdp_client_now_ms() < end + 1000 && some_echo_is_missing(targets, n))) {
		for (int i = 0; i < n; i++) {
			if (xdp_client_now_ms() < end)
				ping_target_once(&targets[i]);
			receive_echoes(&targets[i]);
		}
		usleep(1000);
	}
	for (int i = 0; i < n; i++)
		printf("%s sent %u back %u gap %u\n", argv[i + 2], targets[i].sent, targets[i].back,
		       (unsigned)targets[i].gap_ms);
	return 0;
}

static int kernel_echo_main(char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))}, peer;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	char text[2048];

	inet_pton(AF_INET, argv[0], &address.sin_addr);
	xdp_client_exit_on_error("bind", atoi(argv[1]),
	                         bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0);
	printf("ready %s\n", argv[1]);
	fflush(stdout);
	for (;;) {
		socklen_t len = sizeof(peer);
		ssize_t bytes = recvfrom(fd, text, sizeof(text), 0, (struct sockaddr *)&peer, &len);

		if (bytes < 0)
			return 1;
		sendto(fd, text, (size_t)bytes, 0, (struct sockaddr *)&peer, len);
	}
}

int main(int argc, char **argv)
{
	const struct vma_log_attr log = {.level = VMA_LOG_INFO};

	vma_log_init(&log);
	if (argc >= 5 && strcmp(argv[1], "serve") == 0)
		return echo_server_main(argc - 2, argv + 2);
	if (argc >= 5 && strcmp(argv[1], "ping") == 0)
		return xdp_client_udp_ping_main(argc - 2, argv + 2);
	if (argc == 4 && strcmp(argv[1], "kernel") == 0)
		return kernel_echo_main(argv + 2);
	fprintf(stderr, "usage: priv_xdp_client serve|ping|kernel ...\n");
	return 1;
}
