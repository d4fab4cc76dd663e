/*
 * Conversations drawn by chance, each played on the fast path and on the slow one: after every step all that is known
 * of the connection, and all that the peer has got, is the same. test_pingpong.c and test_alone.c have the single
 * cases.
 *
 *   SEED=n    this one only
 *   SEEDS=n   so many of them (200), from SEED_BASE (1) on
 *
 * One side is a stack whose application does what applications do; the other is a peer that loses some segments and
 * answers what it has got. A quarter of the conversations is calm: what disturbs the fast path comes now and then
 * only.
 */
#include "paths.h"

enum { STEPS = 250, FRAMES = 1 << 16 };

static uint32_t seed;
static struct {
	uint32_t a, b, len; /* drawn for this step */
	uint32_t got;       /* the peer has all before it */
	bool lossy;
} peer;
static struct {
	struct vma_buf *held[FRAMES];
	size_t n;
} frames;
static struct vma_tcp_memory *stack_memory_before_exhaustion;

/* ---- the peer ---- */

static bool sequence_number_is_after(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) > 0;
}

/* What has come since it was looked at, but for what is lost on the way. */
static void peer_takes_segments_received(bool lossy)
{
	uint32_t luck = seed;

	for (; raw.seen < raw.count; raw.seen++) {
		const struct raw_segment *s = &raw.log[raw.seen];

		if (lossy && draw_random_below(&luck, 6) == 0)
			continue;
		if (!sequence_number_is_after(s->seq, peer.got) && sequence_number_is_after(s->seq + s->len, peer.got))
			peer.got = s->seq + s->len;
	}
}

static void peer_sends_message(void)
{
	raw_send_bytes(mine, peer.got, peer.len);
	mine += peer.len;
}

/* It is there when the stack is driven next. */
static void peer_sends_messages_for_next_run(unsigned messages)
{
	raw.holds = true;
	for (unsigned i = 0; i < messages; i++)
		peer_sends_message();
	raw.holds = false;
}

/* ---- what may happen ---- */

static void step_peer_sends_message(void)
{
	peer_sends_message();
}

static void step_app_writes(void)
{
	fixture_send_bytes(app, 1 + (peer.a < 800 ? peer.a % 200 : peer.a * 3));
}

static void step_app_sends_and_peer_answers(void)
{
	fixture_send_bytes(app, 1 + peer.a % 200);
	fixture_run_until_idle();
	peer_takes_segments_received(false);
	peer_sends_message();
}

static void step_medium_time_passes(void)
{
	fixture_run_for_ns(peer.a % 400 * MS);
}

static void step_short_time_passes(void)
{
	fixture_run_for_ns(peer.a * 1000 + 1);
}

static void step_long_time_passes(void)
{
	fixture_run_for_ns(peer.a * 10 * MS);
}

static void step_app_reads(void)
{
	read_bytes(app, peer.a * 5);
}

static void step_peer_sends_pure_ack(void)
{
	raw_send_segment(mine, peer.got, TCP_ACK, "", 0);
}

static void step_peer_sends_message_burst(void)
{
	peer_sends_messages_for_next_run(1 + peer.a % 4);
}

static void step_peer_sends_out_of_order(void)
{
	raw_send_bytes(mine + 50, peer.got, 50);
	if (peer.a & 1)
		fixture_run_for_ns(peer.b * 1000);
	raw_send_bytes(mine, peer.got, 50);
	mine += 100;
}

static void step_peer_retransmits_message(void)
{
	raw_send_bytes(mine - 60, peer.got, 60 + peer.a % 30);
	mine += peer.a % 30;
}

static void step_app_toggles_nodelay(void)
{
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_NODELAY, peer.a & 1);
}

static void step_app_toggles_cork(void)
{
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, peer.a % 5 == 0);
}

static void step_app_toggles_quickack(void)
{
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_QUICKACK, peer.a & 1);
}

static void step_app_writes_msg_more(void)
{
	send_flags(app, 1 + peer.b % 300, VMA_TCP_TX_MORE);
}

static void step_app_writes_deferred(void)
{
	send_flags(app, 1 + peer.b % 300, VMA_TCP_TX_LATER);
}

static void step_toggle_memory_pressure(void)
{
	static struct vma_tcp_memory tight = {.pressure = 0, .limit = INT64_MAX};

	side[0].tcp->attr.memory = peer.a & 1 ? &tight : stack_memory_before_exhaustion;
}

static void step_app_sends_urgent_data(void)
{
	if (peer.a % 4 == 0)
		send_flags(app, 1 + peer.b % 300, VMA_TCP_TX_URGENT);
}

static void step_app_changes_congestion_control(void)
{
	if (peer.a % 4 == 0)
		vma_tcp_set_option(app->conn, VMA_TCP_OPT_CONGESTION, (int32_t)(peer.b % 4));
}

static void step_path_mtu_changes(void)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, peer.a & 1 ? 1500 : 300 + peer.b);

	if (peer.a % 3 == 0)
		vma_tcp_set_path(app->conn, &path);
}

static void step_app_sets_notsent_lowat(void)
{
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_NOTSENT_LOWAT, peer.a & 1 ? -1 : (int32_t)peer.b);
}

static void step_app_toggles_keepalive(void)
{
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_KEEPALIVE, peer.a & 1);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_KEEPIDLE, 1 + (int32_t)(peer.b % 3));
}

static void step_app_sets_user_timeout(void)
{
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_USER_TIMEOUT, peer.a & 1 ? 0 : (int32_t)(peer.b * 20));
}

static void step_app_sets_socket_buffer_size(void)
{
	vma_tcp_set_option(app->conn, peer.b & 1 ? VMA_TCP_OPT_RCVBUF : VMA_TCP_OPT_SNDBUF,
	                   (int32_t)(2000 + peer.a * 20));
}

static void step_app_shuts_down_writing(void)
{
	if (peer.a % 12 != 0)
		return;
	peer_sends_messages_for_next_run(peer.b & 1);
	vma_tcp_shutdown(app->conn, SHUT_WR);
}

/* One is left, or two, or none: what finds none stays behind. */
static void step_tx_frames_run_short(void)
{
	if (peer.a % 3 != 0)
		return;
	while (frames.n < FRAMES && (frames.held[frames.n] = vma_ring_tx_buf(side[0].ring)) != NULL)
		frames.n++;
	for (uint32_t left = peer.b % 3; left > 0; left--)
		vma_buf_put(fixture_arena, frames.held[--frames.n]);
	fixture_send_bytes(app, 1 + peer.b % 100);
	fixture_run_until_idle();
	vma_buf_put(fixture_arena, frames.held[--frames.n]);
	peer_sends_message();
	while (frames.n > 0)
		vma_buf_put(fixture_arena, frames.held[--frames.n]);
}

/* What has come is refused, and offered again later; perhaps what leaves meanwhile announces a window. */
static void step_rx_allocation_fails_at_message(void)
{
	if (peer.a & 1)
		send_flags(app, 1 + peer.b % 300, VMA_TCP_TX_LATER);
	fixture_alloc_bytes_fails = true;
	peer_sends_message();
	fixture_alloc_bytes_fails = false;
}

/* Of what is out a part at the end has come, and perhaps a message says so. */
static void step_peer_sends_sack_of_last_part(void)
{
	uint8_t options[24] = {1, 1, 8, 10}, data[64];
	uint32_t una = app->conn->pcb->lastack - raw.their_isn, out = raw_peer_expected_ack() - una;
	uint32_t len = peer.b & 1 ? sizeof(data) : 0;

	if (out < 3)
		return;
	for (uint32_t i = 0; i < sizeof(data); i++)
		data[i] = fixture_pattern_byte_at(mine - 1 + i);
	raw_store_be(options + 4, raw.ts, 4);
	raw_store_be(options + 8, raw.ts_ecr, 4);
	memcpy(options + 12, "\1\1\5\12", 4);
	raw_store_be(options + 16, raw.their_isn + una + 1 + peer.a % (out - 1), 4);
	raw_store_be(options + 20, raw.their_isn + una + out, 4);
	raw_send_segment_with_options(mine, una, TCP_ACK, options, sizeof(options), 0, data, len);
	mine += len;
}

static void step_peer_sends_message_with_partial_ack(void)
{
	uint32_t una = app->conn->pcb->lastack - raw.their_isn, out = raw_peer_expected_ack() - una;

	raw_send_bytes(mine, una + peer.a % (out + 1), peer.len);
	mine += peer.len;
}

static void step_message_arrives_with_app_write(void)
{
	peer_sends_messages_for_next_run(1);
	fixture_send_bytes(app, 1 + peer.a % 200);
}

static void step_message_arrives_with_deferred_write(void)
{
	peer_sends_messages_for_next_run(1);
	send_flags(app, 1 + peer.a % 200, VMA_TCP_TX_LATER);
	fixture_run_until_idle();
}

static void step_message_arrives_with_corked_write(void)
{
	peer_sends_messages_for_next_run(1);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 1);
	fixture_send_bytes(app, 1 + peer.a % 200);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 0);
}

static void step_message_arrives_as_timers_fire(void)
{
	peer_sends_messages_for_next_run(1);
	fixture_run_for_ns(200 * MS + peer.b * 1000);
}

#define PATHS_STEP(f, chance)                                                                                          \
	{                                                                                                              \
#f, f, chance                                                                                          \
	}
static const struct action {
	const char *name;
	void (*play)(void);
	uint32_t chance; /* in a disturbed conversation */
} actions[] = {
        PATHS_STEP(step_peer_sends_message, 4),
        PATHS_STEP(step_app_writes, 4),
        PATHS_STEP(step_app_sends_and_peer_answers, 2),
        PATHS_STEP(step_app_reads, 2),
        PATHS_STEP(step_medium_time_passes, 1),
        PATHS_STEP(step_short_time_passes, 1),
        PATHS_STEP(step_long_time_passes, 1),
        PATHS_STEP(step_peer_sends_pure_ack, 1),
        PATHS_STEP(step_peer_sends_message_burst, 1),
        PATHS_STEP(step_peer_sends_out_of_order, 1),
        PATHS_STEP(step_peer_retransmits_message, 1),
        PATHS_STEP(step_app_toggles_nodelay, 1),
        PATHS_STEP(step_app_toggles_cork, 1),
        PATHS_STEP(step_app_toggles_quickack, 1),
        PATHS_STEP(step_app_writes_msg_more, 1),
        PATHS_STEP(step_app_writes_deferred, 1),
        PATHS_STEP(step_toggle_memory_pressure, 1),
        PATHS_STEP(step_app_sends_urgent_data, 1),
        PATHS_STEP(step_app_changes_congestion_control, 1),
        PATHS_STEP(step_path_mtu_changes, 1),
        PATHS_STEP(step_app_sets_notsent_lowat, 1),
        PATHS_STEP(step_app_toggles_keepalive, 1),
        PATHS_STEP(step_app_sets_user_timeout, 1),
        PATHS_STEP(step_app_sets_socket_buffer_size, 2),
        PATHS_STEP(step_app_shuts_down_writing, 1),
        PATHS_STEP(step_tx_frames_run_short, 1),
        PATHS_STEP(step_rx_allocation_fails_at_message, 1),
        PATHS_STEP(step_peer_sends_sack_of_last_part, 1),
        PATHS_STEP(step_peer_sends_message_with_partial_ack, 1),
        PATHS_STEP(step_message_arrives_with_app_write, 1),
        PATHS_STEP(step_message_arrives_with_deferred_write, 1),
        PATHS_STEP(step_message_arrives_with_corked_write, 1),
        PATHS_STEP(step_message_arrives_as_timers_fire, 1),
};
enum { ACTIONS = sizeof(actions) / sizeof(*actions) };

/* In a calm one it is one of the first few, nearly always. */
static const struct action *draw_step_kind(bool calm)
{
	uint32_t total = 0, chance;

	if (calm && draw_random_below(&seed, 16) != 0)
		return &actions[draw_random_below(&seed, 6)];
	for (unsigned i = 0; i < ACTIONS; i++)
		total += actions[i].chance;
	chance = draw_random_below(&seed, total);
	for (unsigned i = 0;; chance -= actions[i++].chance)
		if (chance < actions[i].chance)
			return &actions[i];
}

/* ---- a conversation ---- */

struct played {
	struct known known[STEPS];
	const struct action *action[STEPS];
	unsigned steps, fast, alone;
};

/* Which initial sequence number it has is the secret's doing: one is looked for that is followed by `end` soon. */
static void choose_secret_for_isn(uint32_t end)
{
	struct vma_flow_key key = {
	        .family = AF_INET, .proto = IPPROTO_TCP, .local_port_be = htons(1000), .peer_port_be = htons(RAW_PORT)};
	uint8_t *secret = (uint8_t *)(uintptr_t)side[0].tcp->attr.secret;
	uint32_t tried = 0;

	memcpy(key.local, side[0].ip, 16);
	memcpy(key.peer, side[1].ip, 16);
	do {
		assert_true(tried < 10000000);
		memcpy(secret, &tried, sizeof(tried));
		tried++;
	} while (end - tcp_isn(side[0].tcp, &key) >= 20000);
}

static void open_with_random_options(int which)
{
	const uint32_t isn = draw_random_below(&seed, 8);

	setup_stack_with_fast_or_slow_path(which);
	side[0].options.congestion = draw_random_below(&seed, 3) == 0 ? VMA_TCP_CC_BBR : VMA_TCP_CC_CUBIC;
	if (isn < 2)
		choose_secret_for_isn(isn << 31); /* where it wraps, or changes its sign */
	handshake_with_raw_peer_and_options(draw_random_below(&seed, 3) != 0, true);
	stack_memory_before_exhaustion = side[0].tcp->attr.memory;
	peer.got = raw_peer_expected_ack();
	peer.lossy = draw_random_below(&seed, 3) == 0;
}

/* Drawn all at once, whatever of it is used: both paths have to find the same. */
static void draw_conversation_step(void)
{
	peer.a = draw_random_below(&seed, 1000);
	peer.b = draw_random_below(&seed, 1000);
	peer.len = 1 + draw_random_below(&seed, draw_random_below(&seed, 8) != 0 ? 100 : 900);
	raw.window = (uint16_t)(draw_random_below(&seed, 20) == 0 ? draw_random_below(&seed, 30)
	                                                          : 200 + draw_random_below(&seed, 1000));
	raw.ts += raw.ts != 0 ? draw_random_below(&seed, 3) : 0;
	raw.ts_ecr = port_clock_ms(side[0].tcp) - draw_random_below(&seed, 3);
	peer_takes_segments_received(peer.lossy);
	raw.count = raw.seen = 0;
}

/* What must be so between two runs, on either path. */
static void check_timer_invariants(void)
{
	const struct vma_tcp *tcp = side[0].tcp;
	const struct vma_tcp_conn *conn = app->conn;
	const uint64_t next_ns = wheel_next_due_ns(&tcp->wheel);

	assert_int_equal(tcp->frames_count, 0);
	assert_true(tcp->wheel_due_ns == next_ns);
	assert_true(vma_tcp_next_due_ns(tcp) <= next_ns);
	for (unsigned i = 0; i < TCP_TIMERS; i++)
		assert_true(!wheel_is_set(&conn->timer[i]) || next_ns <= conn->timer[i].due_ns);
	if (conn->pcb != NULL && conn->pcb->unacked != NULL)
		assert_true(wheel_is_set(&conn->timer[TCP_TIMER_RETRANSMIT]));
}

static void check_and_record_state_of_step(struct known *known)
{
	check_timer_invariants();
	fixture_poll_events_of_app(app); /* a writer who finds no room */
	record_compared_state(known);
	known->counts.no_memory = known->stack_counts.no_memory = 0; /* how often it was asked for */
	known->tx_space_freed = 0;                                   /* until it is told */
}

static void run_random_conversation_on_path(uint32_t number, int which, struct played *played)
{
	bool calm;

	seed = number;
	draw_random_below(&seed, 1);
	open_with_random_options(which);
	calm = draw_random_below(&seed, 4) == 0;
	for (unsigned i = 0; i < STEPS && app->conn->pcb != NULL; i++) {
		uint64_t came = app->conn->counts.segments_in;

		draw_conversation_step();
		played->action[i] = draw_step_kind(calm);
		arm_fast_path_detection();
		played->action[i]->play();
		fixture_run_until_idle();
		check_and_record_state_of_step(&played->known[i]);
		played->fast += fast_path_was_taken() && app->conn->counts.segments_in != came;
		played->steps++;
	}
	played->alone = side[0].tcp->alone;
	side[0].tcp->attr.memory = stack_memory_before_exhaustion;
	teardown_connection_and_raw_peer();
}

/* ---- all of them ---- */

static struct played played[TCP_PATHS];
static uint32_t seed_being_played; /* the seed; 0: none */

static void say_how_to_replay(uint32_t number)
{
	printf("#   again: make test-tcp T='*on_both_paths*' SEED=%u\n", number);
}

/* An assertion has ended a conversation. */
static int teardown_print_seed_of_failure(void **state)
{
	(void)state;
	if (seed_being_played == 0)
		return 0;
	printf("# seed %u, step %u: an assertion fails\n", seed_being_played,
	       played[SLOW].steps ? played[SLOW].steps : played[FAST].steps);
	say_how_to_replay(seed_being_played);
	return 0;
}

/* Says what is not, and how to have it again. */
static bool compare_fast_and_slow_path_states(uint32_t number)
{
	unsigned least = played[FAST].steps < played[SLOW].steps ? played[FAST].steps : played[SLOW].steps, i;
	char text[200] = "one goes on, the other has ended";

	for (i = 0; i < least; i++)
		if (compared_state_difference(&played[FAST].known[i], &played[SLOW].known[i], text, sizeof(text)) !=
		    NULL)
			break;
	if (i == least && played[FAST].steps == played[SLOW].steps)
		return true;
	printf("# seed %u, step %u, %s: %s\n", number, i, played[FAST].action[i < least ? i : least - 1]->name, text);
	say_how_to_replay(number);
	return false;
}

static uint32_t paths_getenv_number_or_default(const char *name, uint32_t otherwise)
{
	const char *text = getenv(name);

	return text != NULL && *text != '\0' ? (uint32_t)strtoul(text, NULL, 0) : otherwise;
}

static void test_whatever_happens_is_the_same_on_both_paths(void **state)
{
	uint32_t one = paths_getenv_number_or_default("SEED", 0),
	         base = one != 0 ? one : paths_getenv_number_or_default("SEED_BASE", 1);
	uint32_t most = one != 0 ? 1 : paths_getenv_number_or_default("SEEDS", 200), failed = 0;
	uint64_t steps = 0, fast = 0, alone = 0;

	(void)state;
	for (uint32_t number = base; number < base + most && failed < 5; number++) {
		seed_being_played = number;
		memset(played, 0, sizeof(played));
		for (int which = 0; which < TCP_PATHS; which++)
			run_random_conversation_on_path(number, which, &played[which]);
		failed += !compare_fast_and_slow_path_states(number);
		assert_int_equal(played[SLOW].fast, 0);
		assert_int_equal(played[SLOW].alone, 0);
		steps += played[FAST].steps;
		fast += played[FAST].fast;
		alone += played[FAST].alone;
		seed_being_played = 0;
	}
	printf("# %u seeds from %u: %llu steps, in %llu nothing but messages came, %llu left alone\n", most, base,
	       (unsigned long long)steps, (unsigned long long)fast, (unsigned long long)alone);
	assert_int_equal(failed, 0);
	if (most >= 20) {
		assert_true(fast > steps / 8);
		assert_true(alone > steps / 8);
	}
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_whatever_happens_is_the_same_on_both_paths, teardown_print_seed_of_failure)};
VMA_TEST_MAIN(tests)
