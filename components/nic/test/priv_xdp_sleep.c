/*
 * priv_xdp_sleep - a queue pair whose only thread sleeps without a time limit, for tests/e2e/xdp_hardships.sh: a lost
 * wake-up is seen as silence.
 *
 *   serve INTERFACE ADDRESS PORT VMAD [FRESH]   echoes UDP; rebinds in the nic's callback, as rings do; after every
 *                                               FRESH datagrams with a new queue pair
 *   exchange ADDRESS PORT COUNT [TIMEOUT_MS]    a kernel socket: COUNT datagrams, each after the echo of the one
 *                                               before, at a random moment, and again when that does not come (100);
 *                                               'exchanged N resent N'
 *   crowded INTERFACE ADDRESS PORT              rents a second queue pair with hardly an fd left, ten times; then with
 *                                               all of them
 *   refused INTERFACE                           an open that fails leaves standard input open
 *   refuse INTERFACE COUNT                      plays a vmad that lets everybody in and rents out nothing; 'refused',
 *                                               each time from the one of that number on
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/nic.h>

#include "../xdp/proto.h"
#include "../xdp/xdp.h"
#include "repost.h"

#define BURST 32

struct server {
	pthread_mutex_t halves; /* of the queue pair; not held while asleep */
	struct vma_bufarena *arena;
	struct vma_nic *nic;
	struct vma_nic_qp *qp;
	struct vma_flow_rule rule;
	_Atomic unsigned rebound;
};

static uint64_t xdp_sleep_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void xdp_sleep_exit_on_error(const char *what, int rc)
{
	if (rc >= 0)
		return;
	printf("%s: %s\n", what, strerror(-rc));
	exit(2);
}

static void xdp_sleep_rebind_lost_qp_on_event(struct vma_nic_qp *qp, enum vma_nic_event event,
                                              const struct vma_flow_key *key, void *arg)
{
	struct server *server = arg;

	(void)key;
	if (event != VMA_NIC_EVENT_LOST)
		return;
	pthread_mutex_lock(&server->halves);
	if (vma_nic_qp_lost(qp) && vma_nic_qp_rebind(qp) == 0) {
		atomic_fetch_add(&server->rebound, 1);
		printf("rebound\n");
		fflush(stdout);
	}
	pthread_mutex_unlock(&server->halves);
}

static int xdp_sleep_open_nic(struct server *server, const char *interface, enum vma_nic_owner owner, const char *vmad)
{
	const struct vma_bufarena_attr arena = {.capacity = 65536, .frame_size = 2048};
	struct vma_nic_attr attr = {.owner = owner, .vmad_path = vmad};
	char spec[64];

	pthread_mutex_init(&server->halves, NULL);
	snprintf(spec, sizeof(spec), "xdp:%s", interface);
	xdp_sleep_exit_on_error("arena", vma_bufarena_create(&arena, &server->arena));
	attr.arena = server->arena;
	return vma_nic_open(spec, &attr, &server->nic);
}

static void xdp_sleep_open_qp_and_add_udp_flow(struct server *server, const char *address, const char *port)
{
	const struct vma_nic_qp_attr attr = {
	        .rx_wre = 256, .tx_wre = 256, .event = xdp_sleep_rebind_lost_qp_on_event, .event_arg = server};
	struct vma_flow_key *key = &server->rule.key;

	key->family = AF_INET;
	key->proto = IPPROTO_UDP;
	key->local_port_be = htons((uint16_t)atoi(port));
	inet_pton(AF_INET, address, key->local);
	xdp_sleep_exit_on_error("queue pair", vma_nic_qp_create(server->nic, &attr, &server->qp));
	xdp_sleep_exit_on_error("flow", vma_nic_flow_add(server->qp, &server->rule));
}

static void xdp_sleep_swap_bytes(unsigned char *a, unsigned char *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const unsigned char c = a[i];

		a[i] = b[i];
		b[i] = c;
	}
}

static void xdp_sleep_send_echo_of_udp_frame(struct server *server, const struct vma_buf *in)
{
	struct vma_nic_seg seg = {.off = server->qp->tx_headroom, .len = in->len};
	unsigned char *frame;

	if (in->len < 42 || vma_bufpool_get(atomic_load(&server->qp->tx_pool), &seg.buf, 1) == 0)
		return;
	frame = (unsigned char *)vma_buf_frame(server->arena, seg.buf) + seg.off;
	memcpy(frame, vma_buf_data(server->arena, in), in->len);
	xdp_sleep_swap_bytes(frame, frame + 6, 6);
	xdp_sleep_swap_bytes(frame + 26, frame + 30, 4);
	xdp_sleep_swap_bytes(frame + 34, frame + 36, 2);
	frame[40] = frame[41] = 0;
	if (vma_nic_tx(server->qp, &seg, 1) != 1)
		vma_buf_put(server->arena, seg.buf);
}

/* Under both halves; the number of datagrams. */
static unsigned poll_and_echo_datagrams_with_halves_locked(struct server *server)
{
	struct vma_buf *bufs[BURST];
	const unsigned n = vma_nic_poll_rx(server->qp, bufs, BURST);
	unsigned reaped;

	for (unsigned i = 0; i < n; i++)
		xdp_sleep_send_echo_of_udp_frame(server, bufs[i]);
	if (n > 0)
		vma_nic_kick(server->qp);
	xdp_sleep_exit_on_error("post", repost_rx_bufs_until_taken(server->qp, bufs, n) ? 0 : -ETIMEDOUT);
	while ((reaped = vma_nic_reap_tx(server->qp, bufs, BURST)) > 0)
		vma_buf_put_burst(server->arena, bufs, reaped);
	return n;
}

static void xdp_sleep_wait_past_rebind(struct server *server)
{
	printf("ready\n");
	fflush(stdout);
	while (atomic_load(&server->rebound) == 0)
		usleep(1000);
	usleep(50000); /* and whatever woke the sleepers of that moment is over */
}

static __attribute__((noreturn)) void xdp_sleep_echo_main(int argc, char **argv)
{
	static struct server server;
	bool late = argc > 4 && strcmp(argv[4], "late") == 0;
	const unsigned fresh = argc > 4 ? (unsigned)atoi(argv[4]) : 0;
	unsigned served = 0;

	xdp_sleep_exit_on_error("open", xdp_sleep_open_nic(&server, argv[0], VMA_NIC_OWNER_VMAD, argv[3]));
	xdp_sleep_open_qp_and_add_udp_flow(&server, argv[1], argv[2]);
	if (!late)
		printf("ready\n");
	fflush(stdout);
	for (;;) {
		struct pollfd fd = {.fd = vma_nic_fd(server.qp), .events = POLLIN};
		unsigned n;
		int armed;

		pthread_mutex_lock(&server.halves);
		n = poll_and_echo_datagrams_with_halves_locked(&server);
		armed = n > 0 ? 1 : vma_nic_arm(server.qp);
		pthread_mutex_unlock(&server.halves);
		served += n;
		if (fresh != 0 && served >= fresh) {
			served = 0;
			vma_nic_qp_destroy(server.qp);
			xdp_sleep_open_qp_and_add_udp_flow(&server, argv[1], argv[2]);
		} else if (armed == 0) {
			if (late)
				xdp_sleep_wait_past_rebind(&server);
			late = false;
			poll(&fd, 1, -1);
		}
	}
}

static int udp_ping_pong_with_resend(char **argv)
{
	const uint32_t count = (uint32_t)atoi(argv[2]), timeout_ms = argv[3] == NULL ? 100 : (uint32_t)atoi(argv[3]);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	uint32_t resent = 0, done = 0, got;

	inet_pton(AF_INET, argv[0], &address.sin_addr);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return 1;
	for (uint32_t tries = 0; done < count && tries < count + 100;) {
		const uint64_t start = xdp_sleep_now_us(), sent_at = start + (uint64_t)(random() % 60);

		while (xdp_sleep_now_us() < sent_at) /* the other end is arming, asleep, or between */
			;
		tries++;
		send(fd, &done, sizeof(done), MSG_DONTWAIT);
		do {
			struct pollfd answer = {.fd = fd, .events = POLLIN};

			got = ~0u;
			poll(&answer, 1, (int)timeout_ms);
			recv(fd, &got, sizeof(got), MSG_DONTWAIT);
		} while (got != done && xdp_sleep_now_us() - sent_at < timeout_ms * 1000ull);
		if (got == done)
			done++;
		else
			resent++;
	}
	printf("exchanged %u resent %u\n", done, resent);
	return done < count;
}

/* Takes every fd but `left` of those that the limit allows. */
static void limit_fds_to_64_and_use_up_all_but(unsigned left)
{
	struct rlimit limit;
	int fds[64];
	unsigned n = 0;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = 64;
	setrlimit(RLIMIT_NOFILE, &limit);
	while (n < 64 && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	while (n > 0 && left > 0) {
		close(fds[--n]);
		left--;
	}
}

static int qp_create_when_fds_run_out(char **argv)
{
	static struct server server;
	struct rlimit wide;
	const struct vma_nic_qp_attr attr = {.rx_wre = 64, .tx_wre = 64};
	struct vma_nic_qp *second;
	int rc = 0;

	getrlimit(RLIMIT_NOFILE, &wide);
	xdp_sleep_exit_on_error("open", xdp_sleep_open_nic(&server, argv[0], VMA_NIC_OWNER_VMAD, NULL));
	xdp_sleep_open_qp_and_add_udp_flow(&server, argv[1], argv[2]);
	limit_fds_to_64_and_use_up_all_but(3); /* two for the queue pair itself, one of the three of its rental */
	for (int i = 0; i < XDP_SLOTS_MAX + 6 && (rc == 0 || rc == -EMFILE); i++) {
		rc = vma_nic_qp_create(server.nic, &attr, &second);
		usleep(30000); /* until vmad has the slot back, or there will be none left */
	}
	printf("crowded: %s\n", strerror(-rc));
	usleep(200000); /* for the nic's thread to give it up, if it must */
	printf("first: %s\n", vma_nic_qp_lost(server.qp) || server.rebound > 0 ? "lost" : "kept");
	setrlimit(RLIMIT_NOFILE, &wide);
	xdp_sleep_exit_on_error("with fds", vma_nic_qp_create(server.nic, &attr, &second));
	printf("done\n");
	return 0;
}

static int open_nic_and_print_refusal(char **argv)
{
	static struct server server;
	int rc = xdp_sleep_open_nic(&server, argv[0], VMA_NIC_OWNER_SELF, NULL);

	printf("refused: %s, input %s\n", strerror(-rc), fcntl(0, F_GETFD) < 0 ? "closed" : "open");
	return 0;
}

/* One client; until it goes. */
static int fake_vmad_refuse_one_client(char **argv)
{
	const int count = atoi(argv[1]), on = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	const socklen_t len = vmad_address(if_nametoindex(argv[0]), &address);
	struct vmad_msg msg;
	int fds[VMAD_FDS_MAX], client, times = 0;
	unsigned nfds;
	size_t bytes;

	if (bind(on, (struct sockaddr *)&address, len) < 0 || listen(on, 8) < 0)
		xdp_sleep_exit_on_error("address", -errno);
	client = accept(on, NULL, NULL);
	while (poll(&(struct pollfd){.fd = client, .events = POLLIN}, 1, -1) == 1 &&
	       vmad_receive_message(client, &msg, &bytes, fds, &nfds) == 1) {
		while (nfds > 0)
			close(fds[--nfds]);
		msg.result = msg.type == VMAD_RENT ? -ENOSPC : 0;
		xdp_sleep_exit_on_error("answer", vmad_send_message_with_fds(client, &msg, NULL, 0));
		if (msg.type == VMAD_RENT && ++times >= count)
			printf("refused\n");
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const struct vma_log_attr log = {.level = VMA_LOG_INFO};

	vma_log_init(&log);
	if (argc >= 6 && strcmp(argv[1], "serve") == 0)
		xdp_sleep_echo_main(argc - 2, argv + 2);
	if ((argc == 5 || argc == 6) && strcmp(argv[1], "exchange") == 0)
		return udp_ping_pong_with_resend(argv + 2);
	if (argc == 5 && strcmp(argv[1], "crowded") == 0)
		return qp_create_when_fds_run_out(argv + 2);
	if (argc == 3 && strcmp(argv[1], "refused") == 0)
		return open_nic_and_print_refusal(argv + 2);
	if (argc == 4 && strcmp(argv[1], "refuse") == 0)
		return fake_vmad_refuse_one_client(argv + 2);
	fprintf(stderr, "usage: priv_xdp_sleep serve|exchange|crowded|refused|refuse ...\n");
	return 1;
}
