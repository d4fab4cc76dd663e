/*
 * sim_peer - one end of a connection, and what it does: a plan, decided by the seed beforehand.
 *
 *   connect or be accepted -> write `total` bytes, read what comes -> end as planned -> close -> disown
 *
 * It acts when an event told it to, or when a pause of its own is over, never by looking again: an event that is lost
 * is a hang. What it reads is compared with what the other one writes, byte by byte.
 */
#ifndef SIM_PEER_H
#define SIM_PEER_H

#include <sys/epoll.h>
#include <sys/socket.h>

#include "sim_watch.h"

enum sim_early_action {
	SIM_EARLY_NONE,
	SIM_EARLY_CLOSE,
	SIM_EARLY_ABORT,
	SIM_EARLY_SHUT_RD,
	SIM_EARLY_SHUT_WR,
	SIM_EARLY_SHUT_RDWR,
	SIM_EARLY_DISOWN,
	SIM_EARLY_ACTIONS
};

enum { SIM_READER_PAUSES = 3 };

struct sim_plan {
	struct vma_tcp_options options;
	uint64_t total; /* bytes to write */
	uint32_t write_min, write_max, read_min, read_max;
	uint64_t write_gap_ns, read_gap_ns; /* at most, between two of them */
	struct {
		uint64_t at, ns; /* reading stops at this position for so long */
	} stop[SIM_READER_PAUSES];
	uint32_t more_percent, later_percent, cork_percent, urgent_percent;
	bool echo;             /* writes no more than it has read */
	bool waits_for_eof;    /* before it ends its own direction */
	bool shuts;            /* ends it by shutdown, else, if the end of the other one was seen, by close */
	bool eager;            /* acts within the event */
	bool lingers;          /* waits for DRAINED before it disowns */
	bool starts_early;     /* writes before it is connected */
	uint64_t path_late_ns; /* the way to the peer is not known before; 0: at once */
	uint64_t path_change_ns;
	uint32_t path_change_mtu; /* 0: none */
	bool path_by_icmp;
	uint64_t steer_ns; /* 0: never */
	uint64_t hold_ns;  /* reads without copying, and gives pieces back so much later; 0: copies */
	enum sim_early_action early;
	int early_state;                /* TCP_*: when it is in this state; 0: after early_ns, from its beginning */
	uint64_t early_ns, early_bytes; /* and only after so many bytes were read and written */
};

struct sim_pair;
struct sim_peer {
	struct sim_pair *pair;
	struct sim_side *side;
	struct vma_tcp_conn *conn;
	struct sim_plan plan;
	uint32_t events;  /* new */
	bool told;        /* has been called by an event since it last acted */
	uint64_t next_ns; /* acts by itself */
	uint64_t write_ns, read_ns, begin_ns, early_due_ns, obey_ns;
	uint64_t written, read;
	unsigned stops;
	bool connected, eof, shut_wr, shut_rd, early_done, early_armed, closed, gone, corked, path_late, path_changed,
	        steered;
	bool acting, keeps_frames;
	int error;
};

/* A piece that a peer has read without copying. It may be given back after the connection has gone. */
enum { SIM_HELD = 256 };
static struct sim_held_piece {
	struct vma_bufarena *arena;
	struct vma_tcp_memory *memory;
	struct vma_buf *buf;
	struct sim_peer *peer; /* NULL: it has left */
	uint64_t number, due_ns;
	uint32_t len;
} sim_held_piece[SIM_HELD];
static unsigned sim_held_count;

struct sim_pair {
	struct sim *sim;
	unsigned number;
	unsigned incarnation, repeats; /* the same addresses and ports again, when both have left */
	int connector;                 /* side */
	bool simultaneous;             /* both connect */
	struct sim_peer peer[2];       /* by side */
	uint64_t connect_ns;
	struct sim_rng chance; /* its own, so that a pair does not change when another one does */
};

/* ---- the bytes: a position in a stream has a value; period 65521 and a start per stream ---- */

enum { SIM_PERIOD = 65521, SIM_TABLE = 2 * 65536 + SIM_PERIOD };
static uint8_t sim_pattern_table[SIM_TABLE];

static void sim_fill_pattern_table(void)
{
	struct sim_rng chance = {42};

	for (unsigned i = 0; i < SIM_PERIOD; i++)
		sim_pattern_table[i] = (uint8_t)sim_rng_next(&chance);
	for (unsigned i = SIM_PERIOD; i < SIM_TABLE; i++)
		sim_pattern_table[i] = sim_pattern_table[i - SIM_PERIOD];
}

/* Of the stream that `peer` writes; good for 128 KB. */
static const uint8_t *sim_stream_bytes_at(const struct sim_peer *peer, uint64_t at)
{
	unsigned stream = (peer->pair->incarnation * SIM_PAIRS + peer->pair->number) * 2 + (unsigned)peer->side->number;

	return sim_pattern_table + (at + stream * 7919) % SIM_PERIOD;
}

static struct sim_peer *sim_other_peer(const struct sim_peer *peer)
{
	return &peer->pair->peer[1 - peer->side->number];
}

#define sim_peer_fail(peer, format, ...)                                                                               \
	sim_fail((peer)->side->sim, "connection %u, side %d: " format, (peer)->pair->number, (peer)->side->number,     \
	         ##__VA_ARGS__)

static void sim_trace_peer_action(const struct sim_peer *peer, const char *what, uint64_t number)
{
	if (peer->side->sim->trace)
		fprintf(stderr, "%12.6f %s%u %s %" PRIu64 "\n", (double)peer->side->sim->now_ns / 1e9,
		        peer->side->number == 0 ? "0: " : "  1:", peer->pair->number, what, number);
}

/* ---- the way ---- */

static void sim_ip_address_of_side(int side, uint8_t out[16])
{
	memset(out, 0, 16);
	out[0] = 10;
	out[3] = (uint8_t)(side + 1);
}

static struct vma_tcp_path sim_path_to_peer(const struct sim_side *side, uint32_t mtu)
{
	struct vma_tcp_path path = {.len = 34, .ip_off = 14, .mtu = mtu};
	uint8_t address[16];

	memcpy(path.bytes, vma_nic_info(side->sim->side[1 - side->number].nic)->mac, 6);
	memcpy(path.bytes + 6, vma_nic_info(side->nic)->mac, 6);
	path.bytes[12] = 8; /* IPv4 */
	path.bytes[14] = 0x45;
	sim_ip_address_of_side(side->number, address);
	memcpy(path.bytes + 26, address, 4);
	sim_ip_address_of_side(1 - side->number, address);
	memcpy(path.bytes + 30, address, 4);
	return path;
}

static uint16_t sim_local_port_of_peer(const struct sim_peer *peer)
{
	bool own = peer->pair->simultaneous || peer->pair->connector == peer->side->number;

	return own ? (uint16_t)(SIM_PORT + peer->pair->number) : SIM_LISTEN;
}

/* ---- events ---- */

static bool sim_peer_run_actions(struct sim_peer *peer);

static void sim_on_connection_event(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	struct sim_peer *peer = arg;

	if (peer->conn != NULL && conn != peer->conn) {
		sim_peer_fail(peer, "an event of another connection");
		return;
	}
	if (peer->gone) {
		sim_peer_fail(peer, "event %#x after it was disowned", events);
		return;
	}
	sim_trace_peer_action(peer, "events", events);
	peer->events |= events;
	peer->told = true;
	if (peer->plan.eager && peer->conn != NULL && !peer->acting)
		sim_peer_run_actions(peer);
}

static const struct vma_tcp_conn_ops sim_owner = {.event = sim_on_connection_event};

static void sim_peer_assign_connection(struct sim_peer *peer, struct vma_tcp_conn *conn)
{
	peer->conn = conn;
	peer->begin_ns = peer->side->sim->now_ns;
	peer->early_due_ns = UINT64_MAX;
	peer->told = true;
}

/* ---- what it does: each returns whether something happened ---- */

static void sim_wake_at(struct sim_peer *peer, uint64_t ns)
{
	if (ns < peer->next_ns)
		peer->next_ns = ns;
}

static void sim_return_held_piece(unsigned i)
{
	const struct sim_held_piece held = sim_held_piece[i];

	sim_held_piece[i] = sim_held_piece[--sim_held_count];
	vma_buf_put(held.arena, held.buf);
	vma_tcp_held_bytes_returned(held.peer != NULL ? held.peer->conn : NULL, held.memory, held.number, held.len, 1);
}

/* Those of this peer (NULL: of all that have left) that it is time for. */
static void sim_return_held_pieces_when_due(const struct sim_peer *peer, uint64_t now_ns)
{
	for (unsigned i = sim_held_count; i-- > 0;)
		if (sim_held_piece[i].peer == peer && sim_held_piece[i].due_ns <= now_ns)
			sim_return_held_piece(i);
}

static void sim_peer_release_conn(struct sim_peer *peer)
{
	struct vma_tcp_conn *conn = peer->conn;

	sim_return_held_pieces_when_due(NULL, UINT64_MAX); /* of connections before */
	for (unsigned i = 0; i < sim_held_count; i++)
		if (sim_held_piece[i].peer == peer)
			sim_held_piece[i].peer = NULL;

	peer->error = vma_tcp_error(conn);
	sim_trace_peer_action(peer, "leaves; error", (uint64_t)peer->error);
	peer->gone = true;
	vma_tcp_conn_drop_owner_and_abort(conn);
	vma_tcp_conn_put(conn);
	peer->conn = NULL;
	peer->next_ns = UINT64_MAX;
}

static void sim_close(struct sim_peer *peer, bool abort)
{
	sim_trace_peer_action(peer, abort ? "aborts" : "closes", 0);
	peer->closed = true;
	peer->shut_wr = true;
	peer->told = true; /* it may be over already: then no event comes */
	vma_tcp_close(peer->conn, abort);
	if (!peer->plan.lingers || abort)
		sim_peer_release_conn(peer);
}

static void sim_shutdown(struct sim_peer *peer, int how)
{
	int rc = vma_tcp_shutdown(peer->conn, how);

	sim_trace_peer_action(peer, "shuts down", (uint64_t)how);
	if (rc == -ENOTCONN && vma_tcp_state(peer->conn) != TCP_ESTABLISHED)
		return;
	if (rc != 0)
		sim_peer_fail(peer, "shutdown(%d) is refused: %s in state %d", how, strerror(-rc),
		              vma_tcp_state(peer->conn));
	if (how != SHUT_RD)
		peer->shut_wr = true;
	if (how != SHUT_WR)
		peer->shut_rd = true;
}

static bool sim_check_read(struct sim_peer *peer, const struct iovec *span)
{
	size_t done = 0;

	while (done < span->iov_len) {
		size_t part = span->iov_len - done < 65536 ? span->iov_len - done : 65536;
		const uint8_t *expected = sim_stream_bytes_at(sim_other_peer(peer), peer->read + done);

		if (memcmp((const uint8_t *)span->iov_base + done, expected, part) != 0) {
			size_t i = 0;

			while (((const uint8_t *)span->iov_base)[done + i] == expected[i])
				i++;
			sim_peer_fail(peer, "wrong byte at %" PRIu64 " of %" PRIu64, peer->read + done + i,
			              sim_other_peer(peer)->written);
			return false;
		}
		done += part;
	}
	return true;
}

/* So many of the next bytes were urgent ones, each when another was announced, and reading leaves them out. */
static unsigned sim_urgent_bytes_left_out(const struct sim_peer *peer)
{
	const struct vma_tcp_conn *conn = peer->conn;

	return (unsigned)urgent_passed_from(conn, fifo_consumed(&conn->rx));
}

/* The urgent byte is read by itself when it has come; reading steps over it, unless it is read inline. */
static void sim_read_urgent(struct sim_peer *peer)
{
	int64_t mark = vma_tcp_bytes_before_urgent_mark(peer->conn);
	uint64_t at = peer->read + sim_urgent_bytes_left_out(peer) + (uint64_t)mark;
	uint8_t byte;
	int rc = vma_tcp_read_urgent_byte(peer->conn, &byte, sim_rng_happens(&peer->pair->chance, 50));

	if (rc == 1 && mark >= 0 && !peer->eof && byte != *sim_stream_bytes_at(sim_other_peer(peer), at))
		sim_peer_fail(peer, "wrong urgent byte at %" PRIu64, at);
	if (rc != 1 && rc != 0 && rc != -EINVAL)
		sim_peer_fail(peer, "urgent byte: %d", rc);
}

/* So many of the next bytes are urgent ones, which reading leaves out. */
static unsigned sim_urgent_bytes_to_leave_out(const struct sim_peer *peer)
{
	return sim_urgent_bytes_left_out(peer) +
	       (vma_tcp_bytes_before_urgent_mark(peer->conn) == 0 && !peer->plan.options.oobinline);
}

/* As sim_read_and_check_bytes takes its first span: the piece is held. Its bytes; 0: it is to be copied. */
static uint64_t sim_read_piece_zero_copy_and_hold(struct sim_peer *peer, uint64_t wanted)
{
	struct vma_tcp_rx_stream_piece piece;

	if (!peer->keeps_frames || sim_held_count == SIM_HELD || vma_tcp_bytes_before_urgent_mark(peer->conn) >= 0 ||
	    sim_urgent_bytes_left_out(peer) || !vma_tcp_peek_first_rx_piece(peer->conn, &piece) || piece.buf == NULL ||
	    piece.len > wanted)
		return 0;
	if (!sim_check_read(peer, &(const struct iovec){piece.data, piece.len}))
		return 0;
	vma_buf_ref(piece.buf);
	sim_held_piece[sim_held_count++] =
	        (struct sim_held_piece){.arena = peer->side->arena,
	                                .memory = vma_tcp_memory_limits_of(peer->conn),
	                                .buf = piece.buf,
	                                .peer = peer,
	                                .number = vma_tcp_zcopy_conn_id(peer->conn),
	                                .due_ns = peer->side->sim->now_ns + peer->plan.hold_ns,
	                                .len = piece.len};
	sim_wake_at(peer, peer->side->sim->now_ns + peer->plan.hold_ns);
	vma_tcp_rx_hold_piece(peer->conn, &piece);
	peer->read += piece.len;
	return piece.len;
}

/* What is not due yet wakes it again. */
static void sim_return_due_pieces_and_schedule_rest(struct sim_peer *peer)
{
	if (peer->plan.hold_ns == 0)
		return;
	sim_return_held_pieces_when_due(peer, peer->side->sim->now_ns);
	for (unsigned i = 0; i < sim_held_count; i++)
		if (sim_held_piece[i].peer == peer)
			sim_wake_at(peer, sim_held_piece[i].due_ns);
	if (!peer->keeps_frames && peer->connected)
		peer->keeps_frames = vma_tcp_enable_rx_zcopy(peer->conn) == 0;
}

static bool sim_read_and_check_bytes(struct sim_peer *peer)
{
	struct sim_rng *chance = &peer->pair->chance;
	struct sim *sim = peer->side->sim;
	struct iovec spans[4];
	uint64_t wanted, taken = 0;
	unsigned n, step;

	if (peer->read_ns > sim->now_ns) {
		if (vma_tcp_readable_bytes(peer->conn) > 0)
			sim_wake_at(peer, peer->read_ns);
		return false;
	}
	wanted = sim_rng_between(chance, peer->plan.read_min, peer->plan.read_max);
	if (peer->stops < SIM_READER_PAUSES && peer->plan.stop[peer->stops].ns != 0) {
		uint64_t at = peer->plan.stop[peer->stops].at;

		if (peer->read >= at) {
			peer->read_ns = sim->now_ns + peer->plan.stop[peer->stops++].ns;
			sim_trace_peer_action(peer, "stops reading at", peer->read);
			sim_wake_at(peer, peer->read_ns);
			return false;
		}
		if (wanted > at - peer->read)
			wanted = at - peer->read;
	}
	sim_read_urgent(peer);
	taken = sim_read_piece_zero_copy_and_hold(peer, wanted);
	if (taken != 0) {
		sim_trace_peer_action(peer, "holds, and has read", peer->read);
		peer->told = true;
		return true;
	}
	step = sim_urgent_bytes_to_leave_out(peer);
	n = vma_tcp_peek_rx_spans(peer->conn, 0, spans, 4);
	if (n > 0)
		peer->read += step;
	for (unsigned i = 0; i < n && taken < wanted; i++) {
		if (spans[i].iov_len > wanted - taken)
			spans[i].iov_len = wanted - taken;
		if (!sim_check_read(peer, &spans[i]))
			return false;
		peer->read += spans[i].iov_len;
		taken += spans[i].iov_len;
	}
	if (taken == 0)
		return false;
	if (peer->read > sim_other_peer(peer)->written)
		sim_peer_fail(peer, "more bytes than were written");
	vma_tcp_rx_consume(peer->conn, taken);
	sim_trace_peer_action(peer, "has read", peer->read);
	if (peer->plan.read_gap_ns != 0)
		peer->read_ns = sim->now_ns + sim_rng_between(chance, 0, peer->plan.read_gap_ns);
	sim_wake_at(peer, peer->read_ns);
	peer->told = true;
	return true;
}

static uint64_t sim_writable_bytes(const struct sim_peer *peer)
{
	uint64_t limit = peer->plan.total;

	if (peer->plan.echo && !peer->eof && limit > peer->read)
		limit = peer->read;
	return limit > peer->written ? limit - peer->written : 0;
}

static void sim_commit_written(struct sim_peer *peer, uint64_t bytes)
{
	struct sim_rng *chance = &peer->pair->chance;
	bool last = peer->written + bytes >= peer->plan.total || peer->plan.echo;
	unsigned flags = 0;

	if (!last && sim_rng_happens(chance, peer->plan.more_percent))
		flags |= VMA_TCP_TX_MORE;
	if (sim_rng_happens(chance, peer->plan.later_percent))
		flags |= VMA_TCP_TX_LATER;
	if (sim_rng_happens(chance, peer->plan.urgent_percent))
		flags |= VMA_TCP_TX_URGENT;
	peer->written += bytes; /* first: the other side may read them before commit returns */
	vma_tcp_tx_commit(peer->conn, bytes, flags);
	if (flags & VMA_TCP_TX_LATER)
		vma_tcp_send_committed(peer->conn);
	sim_trace_peer_action(peer, "has written", peer->written);
}

static void sim_set_cork(struct sim_peer *peer, bool on)
{
	if (peer->corked == on)
		return;
	peer->corked = on;
	if (vma_tcp_set_option(peer->conn, VMA_TCP_OPT_CORK, on) != 0)
		sim_peer_fail(peer, "TCP_CORK is refused");
}

static bool sim_write_some_planned_bytes(struct sim_peer *peer)
{
	struct sim_rng *chance = &peer->pair->chance;
	struct sim *sim = peer->side->sim;
	uint64_t may = sim_writable_bytes(peer), wanted, done = 0;
	struct iovec spans[3];
	int n;

	if (may == 0 || peer->shut_wr)
		return false;
	if (peer->write_ns > sim->now_ns) {
		sim_wake_at(peer, peer->write_ns);
		return false;
	}
	wanted = sim_rng_between(chance, peer->plan.write_min, peer->plan.write_max);
	if (wanted > may)
		wanted = may;
	sim_set_cork(peer,
	             peer->plan.cork_percent != 0 && may > wanted && sim_rng_happens(chance, peer->plan.cork_percent));
	n = vma_tcp_tx_reserve(peer->conn, wanted, spans, (unsigned)sim_rng_between(chance, 1, 3));
	if (n == -ENOMEM && sim_alloc_fail_ppm != 0) {
		sim_wake_at(peer, sim->now_ns + SIM_MS);
		return false;
	}
	if (n == -EPIPE && (peer->events & (VMA_TCP_FAILED | VMA_TCP_CLOSED)) != 0)
		return false;
	if (n < 0) {
		sim_peer_fail(peer, "tx_reserve: %s in state %d", strerror(-n), vma_tcp_state(peer->conn));
		return false;
	}
	for (int i = 0; i < n; i++) {
		size_t at = 0;

		for (; at < spans[i].iov_len && done < wanted;) {
			size_t part = spans[i].iov_len - at < 65536 ? spans[i].iov_len - at : 65536;

			memcpy((uint8_t *)spans[i].iov_base + at, sim_stream_bytes_at(peer, peer->written + done),
			       part);
			at += part;
			done += part;
		}
	}
	if (n == 0) {
		sim_trace_peer_action(peer, "finds no room at", peer->written);
		return false; /* WRITABLE comes */
	}
	if (done > wanted)
		sim_peer_fail(peer, "reserves more than was asked");
	sim_commit_written(peer, sim_rng_happens(chance, 10) ? sim_rng_between(chance, 1, done) : done);
	if (peer->plan.write_gap_ns != 0)
		peer->write_ns = sim->now_ns + sim_rng_between(chance, 0, peer->plan.write_gap_ns);
	sim_wake_at(peer, peer->write_ns);
	peer->told = true;
	return true;
}

/* ---- what may come early ---- */

static void sim_end_connection_early_as_planned(struct sim_peer *peer)
{
	peer->early_done = true;
	sim_trace_peer_action(peer, "early", peer->plan.early);
	switch (peer->plan.early) {
	case SIM_EARLY_CLOSE:
		sim_close(peer, false);
		break;
	case SIM_EARLY_ABORT:
		sim_close(peer, true);
		break;
	case SIM_EARLY_SHUT_RD:
		sim_shutdown(peer, SHUT_RD);
		break;
	case SIM_EARLY_SHUT_WR:
		sim_shutdown(peer, SHUT_WR);
		break;
	case SIM_EARLY_SHUT_RDWR:
		sim_shutdown(peer, SHUT_RDWR);
		break;
	case SIM_EARLY_DISOWN:
		sim_peer_release_conn(peer);
		break;
	default:
		break;
	}
	peer->told = true;
}

static bool sim_run_early_action_when_due(struct sim_peer *peer)
{
	const struct sim_plan *plan = &peer->plan;
	uint64_t now = peer->side->sim->now_ns;

	if (plan->early == SIM_EARLY_NONE || peer->early_done || peer->closed)
		return false;
	if (!peer->early_armed) {
		if (plan->early_state != 0 ? vma_tcp_state(peer->conn) != plan->early_state
		                           : peer->read + peer->written < plan->early_bytes)
			return false;
		peer->early_armed = true;
		peer->early_due_ns = now + plan->early_ns;
	}
	if (now < peer->early_due_ns) {
		sim_wake_at(peer, peer->early_due_ns);
		return false;
	}
	sim_end_connection_early_as_planned(peer);
	return true;
}

static void sim_apply_path_changes(struct sim_peer *peer)
{
	uint64_t now = peer->side->sim->now_ns, at;
	struct vma_tcp_path path;

	at = peer->begin_ns + peer->plan.path_late_ns;
	if (peer->path_late) {
		if (now < at) {
			sim_wake_at(peer, at);
			return;
		}
		path = sim_path_to_peer(peer->side, peer->side->sim->mtu);
		peer->path_late = vma_tcp_set_path(peer->conn, &path) != 0;
		if (peer->path_late)
			sim_wake_at(peer, now + SIM_MS);
	}
	at = peer->begin_ns + peer->plan.path_change_ns;
	if (peer->plan.path_change_mtu == 0 || peer->path_changed)
		return;
	if (now < at) {
		sim_wake_at(peer, at);
		return;
	}
	peer->path_changed = true;
	sim_trace_peer_action(peer, "path's mtu", peer->plan.path_change_mtu);
	if (peer->plan.path_by_icmp) {
		vma_tcp_post_icmp_error(peer->conn, 3, 4, (uint16_t)peer->plan.path_change_mtu,
		                        sim_seen_direction[peer->pair->number][peer->side->number].highest - 1);
	} else {
		path = sim_path_to_peer(peer->side, peer->plan.path_change_mtu);
		if (vma_tcp_set_path(peer->conn, &path) == 0)
			peer->obey_ns = now + 10 * SIM_MS; /* not what is in the stack's hands at the moment */
	}
}

static void sim_peer_obey_path_mtu(struct sim_peer *peer)
{
	if (peer->obey_ns == 0)
		return;
	if (peer->side->sim->now_ns < peer->obey_ns) {
		sim_wake_at(peer, peer->obey_ns);
		return;
	}
	peer->obey_ns = 0;
	sim_largest_segment_allowed[peer->pair->number][peer->side->number] = peer->plan.path_change_mtu;
}

static void sim_request_own_nic_rule_when_due(struct sim_peer *peer)
{
	uint64_t at = peer->begin_ns + peer->plan.steer_ns;
	int rc;

	if (peer->plan.steer_ns == 0 || peer->steered)
		return;
	if (peer->side->sim->now_ns < at) {
		sim_wake_at(peer, at);
		return;
	}
	peer->steered = true;
	rc = vma_tcp_conn_add_own_nic_rule(peer->conn);
	if (rc == -EDEADLK) { /* in an event: control path is not allowed there */
		peer->steered = false;
		sim_wake_at(peer, peer->side->sim->now_ns + 1000);
		return;
	}
	if (rc != 0 && vma_tcp_state(peer->conn) != TCP_CLOSE && vma_tcp_state(peer->conn) != TCP_TIME_WAIT &&
	    rc != -ENOMEM)
		sim_peer_fail(peer, "steer: %s", strerror(-rc));
}

/* ---- the whole ---- */

/* What readiness says must agree with what the calls would do, as epoll's users rely on it. */
static void sim_check_readiness(struct sim_peer *peer)
{
	uint32_t bits = vma_tcp_poll_events(peer->conn);
	bool readable = vma_tcp_readable_bytes(peer->conn) > 0 || vma_tcp_rx_eof(peer->conn);

	if (readable != ((bits & EPOLLIN) != 0))
		sim_peer_fail(peer, "EPOLLIN is %d, but %" PRIu64 " bytes are there, end %d", (bits & EPOLLIN) != 0,
		              vma_tcp_readable_bytes(peer->conn), vma_tcp_rx_eof(peer->conn));
	if ((bits & EPOLLIN) != 0 && (bits & EPOLLRDNORM) == 0)
		sim_peer_fail(peer, "EPOLLIN without EPOLLRDNORM");
	if (vma_tcp_state(peer->conn) == TCP_ESTABLISHED && !peer->shut_wr && (bits & EPOLLOUT) != 0 &&
	    vma_tcp_tx_space(peer->conn) == 0)
		sim_peer_fail(peer, "EPOLLOUT, but no room");
	if (vma_tcp_error(peer->conn) != 0 && vma_tcp_state(peer->conn) == TCP_CLOSE && (bits & EPOLLERR) == 0)
		sim_peer_fail(peer, "error %d, but no EPOLLERR", vma_tcp_error(peer->conn));
}

static bool sim_connection_failed_or_closed(const struct sim_peer *peer)
{
	return (peer->events & (VMA_TCP_FAILED | VMA_TCP_CLOSED)) != 0;
}

/* All that was planned has been done, or cannot be done any more. */
static bool sim_peer_close_when_plan_is_done(struct sim_peer *peer)
{
	bool all_written = peer->written >= peer->plan.total || peer->shut_wr;
	bool may_end = all_written && (peer->eof || !peer->plan.waits_for_eof);

	if (peer->plan.echo && peer->eof && peer->written < peer->plan.total && !peer->shut_wr)
		may_end = false;
	if (peer->closed) {
		if ((peer->events & VMA_TCP_DRAINED) == 0 && !sim_connection_failed_or_closed(peer))
			return false;
		sim_peer_release_conn(peer);
		return true;
	}
	if (sim_connection_failed_or_closed(peer) && vma_tcp_readable_bytes(peer->conn) == 0) {
		sim_close(peer, false);
		return true;
	}
	if (!peer->connected)
		return false;
	if (all_written && peer->eof) {
		sim_close(peer, false);
		return true;
	}
	if (may_end && !peer->shut_wr && (peer->plan.shuts || !peer->eof)) {
		sim_set_cork(peer, false);
		sim_shutdown(peer, SHUT_WR);
		return true;
	}
	return false;
}

/* Who reads the end steps over an urgent byte before it. */
static void sim_consume_urgent_byte_at_stream_end(struct sim_peer *peer)
{
	struct iovec span;

	peer->read += sim_urgent_bytes_to_leave_out(peer);
	vma_tcp_peek_rx_spans(peer->conn, 0, &span, 1);
	vma_tcp_rx_consume(peer->conn, 0);
}

static bool sim_peer_run_one_action(struct sim_peer *peer)
{
	bool moved = false;

	sim_check_readiness(peer);
	sim_return_due_pieces_and_schedule_rest(peer);
	sim_apply_path_changes(peer);
	sim_peer_obey_path_mtu(peer);
	sim_request_own_nic_rule_when_due(peer);
	if (sim_run_early_action_when_due(peer)) {
		moved = true;
		if (peer->gone)
			return true;
	}
	if (peer->closed)
		return sim_peer_close_when_plan_is_done(peer) || moved;
	if ((peer->events & VMA_TCP_CONNECTED) != 0)
		peer->connected = true;
	moved |= sim_read_and_check_bytes(peer);
	if (!peer->eof && (vma_tcp_rx_eof(peer->conn) || (peer->shut_rd && vma_tcp_readable_bytes(peer->conn) == 0))) {
		peer->eof = moved = true;
		sim_consume_urgent_byte_at_stream_end(peer);
		sim_trace_peer_action(peer, "sees the end at", peer->read);
	}
	if (peer->connected || peer->plan.starts_early)
		moved |= sim_write_some_planned_bytes(peer);
	return sim_peer_close_when_plan_is_done(peer) || moved;
}

static bool sim_peer_run_actions(struct sim_peer *peer)
{
	bool moved = false;

	if (peer->conn == NULL || peer->gone || peer->acting)
		return false;
	if (!peer->told && peer->next_ns > peer->side->sim->now_ns)
		return false;
	peer->acting = true;
	do {
		peer->told = false;
		peer->next_ns = UINT64_MAX;
		moved |= sim_peer_run_one_action(peer);
	} while (peer->told && peer->conn != NULL && !peer->side->sim->failed);
	peer->acting = false;
	return moved;
}

/* ---- connecting ---- */

static bool sim_connect(struct sim_peer *peer)
{
	struct sim *sim = peer->side->sim;
	struct vma_tcp_conn_attr attr = {.owner = &sim_owner,
	                                 .arg = peer,
	                                 .options = &peer->plan.options,
	                                 .family = AF_INET,
	                                 .local_port_be = htons(sim_local_port_of_peer(peer)),
	                                 .peer_port_be = htons(sim_local_port_of_peer(sim_other_peer(peer)))};
	struct vma_tcp_conn *conn = NULL;
	int rc;

	sim_ip_address_of_side(peer->side->number, attr.local);
	sim_ip_address_of_side(1 - peer->side->number, attr.peer);
	sim_largest_segment_allowed[peer->pair->number][0] = sim_largest_segment_allowed[peer->pair->number][1] =
	        sim->mtu;
	if (peer->plan.path_late_ns == 0)
		attr.path = sim_path_to_peer(peer->side, sim->mtu);
	else
		peer->path_late = true;
	rc = vma_tcp_connect(peer->side->tcp, &attr, &conn);
	if (rc == -ENOMEM && sim_alloc_fail_ppm != 0) {
		peer->pair->connect_ns = sim->now_ns + 10 * SIM_MS;
		peer->path_late = false;
		return false;
	}
	if (rc == -EADDRINUSE && peer->pair->incarnation > 0) { /* the one before is in TIME_WAIT, or ends */
		sim_trace_peer_action(peer, "may not connect yet", 0);
		peer->pair->connect_ns = sim->now_ns + SIM_S;
		peer->path_late = false;
		return false;
	}
	if (rc != 0) {
		sim_peer_fail(peer, "connect: %s", strerror(-rc));
		return false;
	}
	sim_trace_peer_action(peer, "connects", 0);
	sim_peer_assign_connection(peer, conn);
	return true;
}

#endif
