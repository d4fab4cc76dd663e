/*
 * instr_tcp - messages and bulk over connections of two stacks on a wire in memory, for callgrind to count
 * instructions.
 *
 *   instr_tcp MESSAGES PHASE [single]    single: VMA_THREAD_MODE=0
 *   valgrind --tool=callgrind --toggle-collect=phase_tcp_send_100 build/components/tcp/test/instr_tcp 4096 tcp_send_100
 *
 * The number is that of the connections, which take turns: what a message costs must not grow with it. "bbr" is one
 * connection without time stamps and with BBR, where the others have time stamps and Cubic. Each phase is a function of
 * its own, with ring and wire below it.
 *
 *   phase_tcp_send_N      64 bytes: reserve, copy, commit, which drives: segment, frame, kick. Acknowledges what came
 *   phase_tcp_receive_N   its receipt: progress, which brings it to the fifo; front, copy, consume
 *   phase_tcp_bulk_out_N  64 KB: reserve, copy, commit; ACKs that come and what they let go. Per segment
 *   phase_tcp_bulk_in_N   their receipt, and the ACKs for them. Per segment
 *
 * With "sums" the NIC finishes checksums, with "tso" it also cuts large packets into segments. "zcopy" receives without
 * copying: pieces are taken, looked at and given back. bench/instr.sh holds its bulk_in against that of "1".
 */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vma/nic_wire.h>
#include <vma/tcp.h>

enum { MESSAGE = 64, CONNECTIONS = 10000, PORT = 5001, CHUNK = 65536, SEGMENT = 1448 };

struct side {
	struct vma_bufarena *arena;
	struct vma_bufpool *spill;
	struct vma_nic *nic;
	struct vma_ring *ring;
	struct vma_tcp *tcp;
	struct vma_tcp_conn *conn[CONNECTIONS];
	struct vma_tcp_listener *listener;
};
static struct side side[2];
static enum vma_thread_mode thread_mode = VMA_THREAD_SPIN;
static uint64_t now_ns = 1000000000;
static uint8_t bytes[CHUNK];
static uint64_t received;
static struct vma_tcp_memory *memory_limit_of_both_sides;

static void exit_if_tcp_call_failed(int rc, const char *what)
{
	if (rc < 0) {
		fprintf(stderr, "%s: %s\n", what, strerror(-rc));
		exit(1);
	}
}

/* ---- what is counted ---- */

static inline __attribute__((always_inline)) size_t tcp_send_bytes(struct side *from, unsigned i, size_t len)
{
	struct vma_tcp_conn *conn = from->conn[i];
	struct iovec spans[4];
	size_t done = 0;
	int n = vma_tcp_tx_reserve(conn, len, spans, 4);

	for (int k = 0; k < n; k++) {
		memcpy(spans[k].iov_base, bytes + done, spans[k].iov_len);
		done += spans[k].iov_len;
	}
	if (n > 0)
		vma_tcp_tx_commit(conn, done, 0);
	return done;
}

static inline __attribute__((always_inline)) size_t receive_bytes(struct side *to, unsigned i)
{
	struct vma_tcp_conn *conn = to->conn[i];
	struct iovec spans[8];
	size_t done = 0;
	unsigned n;

	while (vma_ring_progress(to->ring) > 0)
		;
	n = vma_tcp_peek_rx_spans(conn, 0, spans, 8);
	for (unsigned k = 0; k < n && done < CHUNK; k++) {
		size_t part = spans[k].iov_len < CHUNK - done ? spans[k].iov_len : CHUNK - done;

		memcpy(bytes + done, spans[k].iov_base, part);
		done += part;
	}
	vma_tcp_rx_consume(conn, done);
	return done;
}

/* What cannot be had without copying is copied. */
static inline __attribute__((always_inline)) size_t receive_zero_copy_pieces(struct side *to, unsigned i)
{
	struct vma_tcp_conn *conn = to->conn[i];
	struct vma_tcp_rx_stream_piece piece[64];
	size_t done = 0;
	unsigned n = 0;

	while (vma_ring_progress(to->ring) > 0)
		;
	while (n < 64 && vma_tcp_peek_first_rx_piece(conn, &piece[n]) && piece[n].buf != NULL) {
		vma_buf_ref(piece[n].buf);
		vma_tcp_rx_hold_piece(conn, &piece[n]);
		done += piece[n++].len;
	}
	for (unsigned k = 0; k < n; k++) {
		bytes[k] = *(const uint8_t *)piece[k].data;
		vma_buf_put(to->arena, piece[k].buf);
		vma_tcp_held_bytes_returned(conn, memory_limit_of_both_sides, vma_tcp_zcopy_conn_id(conn), piece[k].len,
		                            1);
	}
	return done != 0 ? done : receive_bytes(to, i);
}

static inline __attribute__((always_inline)) size_t send_bulk_bytes(struct side *from, unsigned i, size_t len)
{
	size_t done = tcp_send_bytes(from, i, len);

	while (vma_ring_progress(from->ring) > 0)
		;
	return done;
}

/* X(name, number of connections, how they are received) */
#define COUNTS(X)                                                                                                      \
	X(1, 1, receive_bytes)                                                                                         \
	X(100, 100, receive_bytes)                                                                                     \
	X(10000, 10000, receive_bytes)                                                                                 \
	X(bbr, 1, receive_bytes)                                                                                       \
	X(sums, 1, receive_bytes)                                                                                      \
	X(tso, 1, receive_bytes)                                                                                       \
	X(zcopy, 1, receive_zero_copy_pieces)
#define PHASE __attribute__((noinline))
#define X(n, connections, receives)                                                                                    \
	PHASE size_t phase_tcp_send_##n(struct side *from, unsigned i, size_t len);                                    \
	PHASE size_t phase_tcp_receive_##n(struct side *to, unsigned i);                                               \
	PHASE size_t phase_tcp_bulk_out_##n(struct side *from, unsigned i, size_t len);                                \
	PHASE size_t phase_tcp_bulk_in_##n(struct side *to, unsigned i);                                               \
	size_t phase_tcp_send_##n(struct side *from, unsigned i, size_t len)                                           \
	{                                                                                                              \
		return tcp_send_bytes(from, i, len);                                                                   \
	}                                                                                                              \
	size_t phase_tcp_receive_##n(struct side *to, unsigned i)                                                      \
	{                                                                                                              \
		return receives(to, i);                                                                                \
	}                                                                                                              \
	size_t phase_tcp_bulk_out_##n(struct side *from, unsigned i, size_t len)                                       \
	{                                                                                                              \
		return send_bulk_bytes(from, i, len);                                                                  \
	}                                                                                                              \
	size_t phase_tcp_bulk_in_##n(struct side *to, unsigned i)                                                      \
	{                                                                                                              \
		return receives(to, i);                                                                                \
	}
COUNTS(X)
#undef X

struct phases {
	const char *name;
	unsigned connections;
	size_t (*send)(struct side *from, unsigned i, size_t len);
	size_t (*receive)(struct side *to, unsigned i);
	size_t (*send_bulk_bytes)(struct side *from, unsigned i, size_t len);
	size_t (*bulk_in)(struct side *to, unsigned i);
};
static const struct phases phases[] = {
#define X(n, connections, receives)                                                                                    \
	{#n, connections, phase_tcp_send_##n, phase_tcp_receive_##n, phase_tcp_bulk_out_##n, phase_tcp_bulk_in_##n},
        COUNTS(X)
#undef X
};

static size_t send_bytes_uncounted(struct side *from, unsigned i, size_t len)
{
	return tcp_send_bytes(from, i, len);
}

static size_t send_bulk_bytes_uncounted(struct side *from, unsigned i, size_t len)
{
	return send_bulk_bytes(from, i, len);
}

static size_t receive_bytes_uncounted(struct side *to, unsigned i)
{
	return receive_bytes(to, i);
}

/* A message goes there, its answer comes back. A connection's turn comes after the same time, however many there are,
 * or delayed ACKs would leave by themselves. */
static void tcp_ping_pong(const struct phases *p, unsigned messages)
{
	for (unsigned m = 0; m < messages; m++) {
		unsigned i = m / 2 % p->connections;

		now_ns += 5000 / p->connections + 1;
		if (p->send(&side[m & 1], i, MESSAGE) != MESSAGE || p->receive(&side[~m & 1], i) != MESSAGE) {
			fprintf(stderr, "message %u did not arrive\n", m);
			exit(1);
		}
		received++;
	}
}

static void tcp_send_bulk(const struct phases *p, unsigned segments)
{
	uint64_t left = (uint64_t)segments * SEGMENT, missing = 0;
	unsigned i = 0;

	for (unsigned idle = 0; left + missing > 0 && idle < 1000; idle++) {
		size_t out = left == 0 ? 0 : p->send_bulk_bytes(&side[0], i, left < CHUNK ? left : CHUNK), in;

		left -= out;
		missing += out;
		now_ns += 20000;
		while ((in = p->bulk_in(&side[1], i)) > 0) {
			missing -= in;
			now_ns += 20000;
			p->send_bulk_bytes(&side[0], i, 0);
			idle = 0;
		}
		if (missing == 0)
			i = (i + 1) % p->connections;
	}
	if (left + missing > 0) {
		fprintf(stderr, "bulk: %lu bytes did not arrive\n", (unsigned long)(left + missing));
		exit(1);
	}
}

/* ---- the fixture ---- */

static uint64_t clock_of_stack_ns(void *arg)
{
	(void)arg;
	return now_ns;
}

static bool admit_every_connection(struct vma_tcp_listener *listener, void *arg)
{
	(void)listener, (void)arg;
	return true;
}

static void ignore_conn_event(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	(void)conn, (void)arg, (void)events;
}
static const struct vma_tcp_conn_ops owner = {.event = ignore_conn_event};

static bool store_accepted_connection_by_port(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	struct vma_flow_key names;

	(void)listener, (void)arg;
	vma_tcp_conn_key(conn, &names);
	side[1].conn[ntohs(names.peer_port_be) - 10000] = conn;
	vma_tcp_conn_set_owner_and_replay_events(conn, &owner, NULL);
	return true;
}

static void tcp_open_side(int number, struct vma_nic *nic, bool no_timestamps)
{
	struct side *s = &side[number];
	struct vma_ring_attr ring = {.nic = nic,
	                             .rx_wre = 512,
	                             .tx_wre = 512,
	                             .thread_mode = thread_mode,
	                             .rx_sw_csum = true,
	                             .name = "instr"};
	struct vma_tcp_attr attr = {.arena = s->arena,
	                            .host = {.now_ns = clock_of_stack_ns},
	                            .no_timestamps = no_timestamps,
	                            .gro_streams_max = 32,
	                            .name = "instr"};

	s->nic = nic;
	ring.spill_pool = s->spill;
	exit_if_tcp_call_failed(vma_ring_create(&ring, &s->ring), "ring");
	attr.ring = s->ring;
	exit_if_tcp_call_failed(vma_tcp_create(&attr, &s->tcp), "stack");
}

static void open_sides(const char *group)
{
	const bool no_timestamps = strcmp(group, "bbr") == 0, tso = strcmp(group, "tso") == 0;
	struct vma_wire_pair_attr wire = {.checksum_offload = tso || strcmp(group, "sums") == 0,
	                                  .segmentation_offload = tso};
	struct vma_nic *nic[2];

	for (int i = 0; i < 2; i++) {
		struct vma_bufarena_attr arena = {.capacity = 65536};
		struct vma_bufpool_attr spill = {.max_bufs = 8192, .name = "spill"};

		exit_if_tcp_call_failed(vma_bufarena_create(&arena, &side[i].arena), "arena");
		wire.arena[i] = spill.arena = side[i].arena;
		exit_if_tcp_call_failed(vma_bufpool_create(&spill, &side[i].spill), "pool");
	}
	exit_if_tcp_call_failed(vma_wire_create_pair(&wire, nic), "wire");
	tcp_open_side(0, nic[0], no_timestamps);
	tcp_open_side(1, nic[1], no_timestamps);
}

static void tcp_open_listener(const struct vma_tcp_options *options)
{
	static const struct vma_tcp_listener_ops listener_owner = {.admit = admit_every_connection,
	                                                           .accepted = store_accepted_connection_by_port};
	struct vma_tcp_listen_attr attr = {.owner = &listener_owner,
	                                   .options = options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(PORT),
	                                   .local = {10, 0, 0, 2},
	                                   .backlog = 1024};

	exit_if_tcp_call_failed(vma_tcp_listen(side[1].tcp, &attr, &side[1].listener), "listen");
}

static void tcp_connect_pair_by_index(unsigned i, const struct vma_tcp_options *options)
{
	struct vma_tcp_conn_attr attr = {.owner = &owner,
	                                 .options = options,
	                                 .path = {.len = 34, .ip_off = 14, .mtu = 1500},
	                                 .family = AF_INET,
	                                 .local_port_be = htons((uint16_t)(10000 + i)),
	                                 .peer_port_be = htons(PORT),
	                                 .local = {10, 0, 0, 1},
	                                 .peer = {10, 0, 0, 2}};

	memcpy(attr.path.bytes, vma_nic_info(side[1].nic)->mac, 6);
	memcpy(attr.path.bytes + 6, vma_nic_info(side[0].nic)->mac, 6);
	attr.path.bytes[12] = 8;
	attr.path.bytes[14] = 0x45;
	memcpy(attr.path.bytes + 26, attr.local, 4);
	memcpy(attr.path.bytes + 30, attr.peer, 4);
	exit_if_tcp_call_failed(vma_tcp_connect(side[0].tcp, &attr, &side[0].conn[i]), "connect");
	for (int n = 0; n < 8; n++) {
		now_ns += 1000;
		vma_ring_progress(side[(n + 1) % 2].ring);
	}
	exit_if_tcp_call_failed(side[1].conn[i] != NULL ? 0 : -1, "accept");
}

/* The phases of the group that NAME ends with; the others are not needed for it. */
static const struct phases *find_phases_by_name_suffix(const char *name)
{
	const char *group = strrchr(name, '_');

	for (unsigned i = 0; group != NULL && i < sizeof(phases) / sizeof(*phases); i++)
		if (strcmp(phases[i].name, group + 1) == 0)
			return &phases[i];
	fprintf(stderr, "no phase %s\n", name);
	exit(1);
}

int main(int argc, char **argv)
{
	unsigned messages = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) / 2 * 2 : 4096;
	const char *name = argc > 2 ? argv[2] : "tcp_send_1";

	if (argc > 3)
		thread_mode = VMA_THREAD_SINGLE;
	const struct phases *p = find_phases_by_name_suffix(name);
	struct phases quiet = {p->name,
	                       p->connections,
	                       send_bytes_uncounted,
	                       receive_bytes_uncounted,
	                       send_bulk_bytes_uncounted,
	                       receive_bytes_uncounted};
	const bool is_bbr = strcmp(p->name, "bbr") == 0;
	struct vma_tcp_options options;

	vma_tcp_options_init(&options);
	options.nodelay = 1;
	options.quickack = 0; /* the steady state of a conversation, from the beginning */
	if (is_bbr)
		options.congestion = VMA_TCP_CC_BBR;
	open_sides(p->name);
	tcp_open_listener(&options);
	for (unsigned i = 0; i < p->connections; i++)
		tcp_connect_pair_by_index(i, &options);
	memory_limit_of_both_sides = vma_tcp_memory_limits_of(side[1].conn[0]);
	for (int i = 0; i < 2 && strcmp(p->name, "zcopy") == 0; i++)
		exit_if_tcp_call_failed(vma_tcp_enable_rx_zcopy(side[i].conn[0]), "zcopy");
	tcp_ping_pong(&quiet, p->connections * 4 > 1024 ? p->connections * 4 : 1024); /* each has found its memory */
	received = 0;
	if (strstr(name, "bulk") != NULL) {
		tcp_send_bulk(&quiet, 4096);
		tcp_send_bulk(p, messages);
	} else {
		tcp_ping_pong(p, messages);
	}
	printf("received %lu\n", (unsigned long)received);
	return 0;
}
