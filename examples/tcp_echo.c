/*
 * tcp_echo - TCP without sockets: connections to one address and port, or one to a peer, whose bytes go back.
 *
 *   tcp_echo --local 10.9.0.2 [--port 7000] [--steer-after MS] [OPTIONS] xdp:veth0
 *   tcp_echo --local 10.9.0.2 --connect 10.9.0.1 --peer-mac 02:00:00:00:00:01 [--peer-port 7000] [OPTIONS] xdp:veth0
 *
 * One thread. Callbacks of the stack run within vma_ring_progress and only note what is to be done.
 * An accepted connection gets a rule of its own in the NIC when it has lived for a while; so the many short ones of a
 * server cost none.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include <vma/tcp.h>

#include "stack.h"

#define SLEEP_NS 100000000ULL /* at most, so that a signal that comes just before the sleep is seen soon, too */
#define MS_NS 1000000ULL

struct conn {
	struct conn *next;
	struct vma_tcp_conn *tcp;
	uint64_t steer_ns;
	bool steered, over, closing;
};

static struct stack stack;
static struct vma_tcp *tcp;
static struct vma_tcp_listener *listener;
static struct conn *conns;
static uint64_t steer_after_ns = 50 * MS_NS;
static uint64_t accepted_count, echoed;
static uint8_t peer[4], peer_mac[6];
static uint16_t peer_port_be;

static uint64_t tcp_echo_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- what the stack tells; it is looked at after each round ---- */

static void event(struct vma_tcp_conn *of, void *arg, uint32_t events)
{
	struct conn *conn = arg;

	if (events & VMA_TCP_CONNECTED)
		puts("connected");
	if (events & VMA_TCP_FAILED)
		printf("failed: %s\n", strerror(vma_tcp_error(of)));
	if (events & (VMA_TCP_FAILED | VMA_TCP_CLOSED))
		conn->over = true;
	fflush(stdout);
}
static const struct vma_tcp_conn_ops owner = {.event = event};

static bool tcp_echo_admit(struct vma_tcp_listener *of, void *arg)
{
	(void)of, (void)arg;
	return true;
}

static bool tcp_echo_accepted(struct vma_tcp_listener *of, void *arg, struct vma_tcp_conn *of_stack)
{
	struct conn *conn = calloc(1, sizeof(*conn));

	(void)of, (void)arg;
	if (conn == NULL)
		return false;
	conn->tcp = of_stack;
	conn->steer_ns = tcp_echo_now_ns() + steer_after_ns;
	conn->next = conns;
	conns = conn;
	accepted_count++;
	vma_tcp_conn_set_owner_and_replay_events(of_stack, &owner, conn);
	return true;
}
static const struct vma_tcp_listener_ops listens = {.admit = tcp_echo_admit, .accepted = tcp_echo_accepted};

/* ---- what is done about it ---- */

/* As many bytes as have come, and fit. */
static void tcp_echo_back(struct conn *conn)
{
	struct iovec from, to;

	while (vma_tcp_peek_rx_spans(conn->tcp, 0, &from, 1) == 1 &&
	       vma_tcp_tx_reserve(conn->tcp, from.iov_len, &to, 1) == 1) {
		size_t bytes = from.iov_len < to.iov_len ? from.iov_len : to.iov_len;

		memcpy(to.iov_base, from.iov_base, bytes);
		vma_tcp_tx_commit(conn->tcp, bytes, VMA_TCP_TX_LATER);
		vma_tcp_rx_consume(conn->tcp, bytes);
		echoed += bytes;
	}
	vma_tcp_send_committed(conn->tcp);
	if (!conn->closing && vma_tcp_rx_eof(conn->tcp)) {
		conn->closing = true;
		vma_tcp_close(conn->tcp, false);
	}
}

static void request_own_nic_rule_when_due(struct conn *conn)
{
	if (conn->steered || tcp_echo_now_ns() < conn->steer_ns)
		return;
	conn->steered = vma_tcp_conn_add_own_nic_rule(conn->tcp) == 0;
	puts(conn->steered ? "steered" : "not steered");
	fflush(stdout);
}

static void serve_all_connections(void)
{
	struct conn **place = &conns;

	while (*place != NULL) {
		struct conn *conn = *place;

		if (!conn->over)
			tcp_echo_back(conn);
		if (!conn->over)
			request_own_nic_rule_when_due(conn);
		if (!conn->over) {
			place = &conn->next;
			continue;
		}
		*place = conn->next;
		vma_tcp_conn_drop_owner_and_abort(conn->tcp);
		vma_tcp_conn_put(conn->tcp);
		free(conn);
	}
}

/* ---- begin and end ---- */

static int tcp_echo_print_failure(const char *step, int rc)
{
	fprintf(stderr, "%s: %s\n", step, strerror(-rc));
	return rc;
}

static int create_tcp_stack_on_ring(void)
{
	struct vma_tcp_attr attr = {.ring = stack.ring, .arena = stack.arena, .name = stack.device};
	int rc;

	if (getrandom(attr.secret, sizeof(attr.secret), 0) != sizeof(attr.secret))
		return tcp_echo_print_failure("getrandom", -errno);
	rc = vma_tcp_create(&attr, &tcp);
	return rc == 0 ? 0 : tcp_echo_print_failure("vma_tcp_create", rc);
}

static int begin_listening(void)
{
	struct vma_tcp_options options;
	struct vma_tcp_listen_attr attr = {.owner = &listens,
	                                   .options = &options,
	                                   .family = AF_INET,
	                                   .local_port_be = stack.port_be,
	                                   .backlog = 1024};
	int rc;

	vma_tcp_options_init(&options);
	memcpy(attr.local, stack.local, 4);
	rc = vma_tcp_listen(tcp, &attr, &listener);
	if (rc != 0)
		return tcp_echo_print_failure("vma_tcp_listen", rc);
	printf("listening on %s, port %u\n", stack.device, ntohs(stack.port_be));
	return 0;
}

/* The header template that vma_net would give: here the peer is a neighbour, and its address an option. */
static struct vma_tcp_path path_to_peer(void)
{
	const struct vma_nic_info *info = vma_nic_info(stack.nic);
	struct vma_tcp_path path = {.len = 34, .ip_off = 14, .mtu = info->mtu};

	memcpy(path.bytes, peer_mac, 6);
	memcpy(path.bytes + 6, info->mac, 6);
	path.bytes[12] = 0x08; /* IPv4 */
	path.bytes[14] = 0x45;
	memcpy(path.bytes + 26, stack.local, 4);
	memcpy(path.bytes + 30, peer, 4);
	return path;
}

static int begin_connecting(void)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	struct vma_tcp_options options;
	struct vma_tcp_conn_attr attr = {.owner = &owner,
	                                 .arg = conn,
	                                 .options = &options,
	                                 .path = path_to_peer(),
	                                 .family = AF_INET,
	                                 .local_port_be = stack.port_be,
	                                 .peer_port_be = peer_port_be};
	int rc = -ENOMEM;

	vma_tcp_options_init(&options);
	memcpy(attr.local, stack.local, 4);
	memcpy(attr.peer, peer, 4);
	if (conn != NULL)
		rc = vma_tcp_connect(tcp, &attr, &conn->tcp);
	if (rc != 0) {
		free(conn);
		return tcp_echo_print_failure("vma_tcp_connect", rc);
	}
	conn->steered = true; /* from the start */
	conns = conn;
	return 0;
}

/* Until the next timer, or a packet. */
static void sleep_until_timer_or_packet(void)
{
	uint64_t due = vma_tcp_next_due_ns(tcp), now = tcp_echo_now_ns(), left = due <= now ? 0 : due - now;

	if (left > 0)
		stack_wait_for_packets(&stack, left < SLEEP_NS ? left : SLEEP_NS);
}

static void tcp_echo_end(void)
{
	if (listener != NULL)
		vma_tcp_listener_close(listener);
	while (conns != NULL) {
		struct conn *conn = conns;

		conns = conn->next;
		vma_tcp_close(conn->tcp, true);
		vma_tcp_conn_drop_owner_and_abort(conn->tcp);
		vma_tcp_conn_put(conn->tcp);
		free(conn);
	}
	vma_tcp_destroy(tcp);
}

static int tcp_echo_usage(int status)
{
	fputs("usage: tcp_echo --local ADDRESS [OPTIONS] xdp:IFNAME|wire:FILE|IFNAME\n" STACK_USAGE
	      "  --connect ADDRESS   make one connection to this neighbour instead of listening\n"
	      "  --peer-mac MAC      its Ethernet address\n"
	      "  --peer-port PORT    its port (7000)\n"
	      "  --steer-after MS    age at which an accepted connection gets a rule of its own (50)\n",
	      stderr);
	return status;
}

static bool tcp_echo_take_option(int letter, const char *value)
{
	uint8_t *mac = peer_mac;

	switch (letter) {
	case 'c':
		return inet_pton(AF_INET, value, peer) == 1;
	case 'm':
		return sscanf(value, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4],
		              &mac[5]) == 6;
	case 'P':
		peer_port_be = htons((uint16_t)stack_parse_number_or_exit("--peer-port", value, 65535));
		return true;
	case 's':
		steer_after_ns = stack_parse_number_or_exit("--steer-after", value, 3600000) * MS_NS;
		return true;
	default:
		return stack_handle_cli_option(&stack, letter, value);
	}
}

static const struct option options[] = {STACK_OPTIONS,
                                        {"connect", required_argument, NULL, 'c'},
                                        {"peer-mac", required_argument, NULL, 'm'},
                                        {"peer-port", required_argument, NULL, 'P'},
                                        {"steer-after", required_argument, NULL, 's'},
                                        {"help", no_argument, NULL, 'h'},
                                        {0}};

int main(int argc, char **argv)
{
	int letter, rc;

	stack.port_be = peer_port_be = htons(7000);
	while ((letter = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (letter == 'h' || !tcp_echo_take_option(letter, optarg))
			return tcp_echo_usage(letter == 'h' ? 0 : 2);
	if (optind + 1 != argc || stack.local[0] == 0)
		return tcp_echo_usage(2);
	stack.device = argv[optind];

	rc = stack_open(&stack, NULL, NULL);
	if (rc == 0)
		rc = create_tcp_stack_on_ring();
	if (rc == 0)
		rc = peer[0] != 0 ? begin_connecting() : begin_listening();
	fflush(stdout);
	while (rc == 0 && !stack_stop) {
		if (vma_ring_progress(stack.ring) <= 0)
			sleep_until_timer_or_packet();
		serve_all_connections();
	}
	if (tcp != NULL)
		tcp_echo_end();
	printf("accepted %llu, echoed %llu bytes\n", (unsigned long long)accepted_count, (unsigned long long)echoed);
	stack_close(&stack);
	return rc == 0 ? 0 : 1;
}
