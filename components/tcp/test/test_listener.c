/* Connection requests: who is let in, who waits, who is refused. Side 0 listens, the raw peer asks. */
#include "raw.h"

static void open_listener(uint32_t backlog)
{
	fixture_listen_with(0, &side[0].options, backlog);
}

static void test_data_with_the_last_ack_of_the_handshake_arrives(void **state)
{
	const struct raw_segment *s;

	(void)state;
	open_listener(8);
	raw_send_syn_to_listener(0);
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_SYN | TCP_ACK);
	assert_int_equal(s->ack, 1);
	assert_int_equal(fixture_accepted_count, 0);
	raw_send_bytes(1, 1, 10);
	assert_int_equal(fixture_accepted_count, 1);
	assert_int_equal(read_bytes(fixture_last_accepted(), 100), 10);
	assert_true(fixture_last_accepted()->events & VMA_TCP_CONNECTED);
	assert_true(fixture_last_accepted()->events & VMA_TCP_READABLE);
}

static void test_syn_ack_offers_only_what_was_asked_for(void **state)
{
	const struct raw_segment *s;

	(void)state;
	open_listener(8);
	raw_send_syn_to_listener(0);
	s = raw_next_segment();
	assert_int_equal(s->options_len, 4);
	assert_int_equal(s->options[0], 2);
	assert_int_equal(s->options[2] << 8 | s->options[3], 1460);
}

static void test_syn_ack_offers_what_the_environments_mtu_leaves(void **state)
{
	const struct raw_segment *s;

	(void)state;
	side[0].tcp->attr.mtu_max = 600;
	open_listener(8);
	raw_send_syn_to_listener(0);
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_SYN | TCP_ACK);
	assert_int_equal(s->options[2] << 8 | s->options[3], 560);
}

static void test_cookie_offers_what_the_environments_mtu_leaves(void **state)
{
	const struct raw_segment *s;

	(void)state;
	side[0].tcp->attr.mtu_max = 600;
	open_listener(1);
	raw.port = RAW_PORT + 1; /* takes the only place */
	raw_send_syn_to_listener(0);
	raw.port = RAW_PORT;
	raw_mark_all_segments_seen();
	raw_send_syn_to_listener(0);
	s = raw_next_segment();
	assert_int_equal(fixture_stack_counts(0).cookies_sent, 1);
	assert_int_equal(s->options[2] << 8 | s->options[3], 560);
}

static void test_syn_ack_is_repeated_and_given_up(void **state)
{
	(void)state;
	side[0].options.synack_retries = 2;
	open_listener(8);
	raw_send_syn_to_listener(0);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(60 * SEC);
	assert_int_equal(raw_unseen_count(), 2);
	raw_mark_all_segments_seen();
	raw_send_segment(1, 1, TCP_ACK, "", 0); /* too late */
	assert_true(raw_next_segment()->flags & TCP_RST);
	assert_int_equal(fixture_accepted_count, 0);
}

static void test_repeated_syn_gets_the_same_answer(void **state)
{
	uint32_t isn;

	(void)state;
	open_listener(8);
	raw_send_syn_to_listener(0);
	isn = raw_next_segment()->seq_absolute;
	raw_send_syn_to_listener(0);
	assert_int_equal(raw_next_segment()->seq_absolute, isn);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
}

static void test_requests_beyond_the_backlog_are_dropped_without_cookies(void **state)
{
	(void)state;
	side[0].options.syncookies = 0;
	open_listener(2);
	for (uint16_t i = 0; i < 5; i++) {
		raw.port = (uint16_t)(RAW_PORT + i);
		raw_send_syn_to_listener(0);
	}
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 3);
	raw.port = RAW_PORT;
	raw_mark_all_segments_seen();
	/* The first one completes, and makes room. Only answers to RAW_PORT reach the raw peer. */
	raw_send_segment(1, raw.log[0].seq_absolute - raw.their_isn + 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
	raw.port = RAW_PORT + 9;
	raw_send_syn_to_listener(0);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 3);
}

/* A few forged requests do not keep others out until they are given up, a minute later. */
static void test_request_that_does_not_answer_makes_way_for_another(void **state)
{
	(void)state;
	side[0].options.syncookies = 0;
	open_listener(100);
	for (uint16_t i = 1; i <= 101; i++) {
		raw.port = (uint16_t)(RAW_PORT + i);
		raw_send_syn_to_listener(0);
	}
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 1);
	fixture_run_for_ns(1600 * MS); /* their SYN-ACKs have been repeated, half a second ago */
	raw.port = RAW_PORT;
	raw_send_syn_to_listener(0);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 1);
	assert_int_equal(raw_last_segment()->flags, TCP_SYN | TCP_ACK);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
	/* One place is free, the other 99 are made so, and then only new ones are there. */
	for (uint16_t i = 201; i <= 302; i++) {
		raw.port = (uint16_t)(RAW_PORT + i);
		raw_send_syn_to_listener(0);
	}
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 3);
}

static void test_owner_with_a_full_queue_drops_requests(void **state)
{
	(void)state;
	open_listener(8);
	fixture_listener_admits = false;
	raw_send_syn_to_listener(0);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_listener_admits = true;
	raw_send_syn_to_listener(0); /* again, as peers do */
	assert_int_equal(raw_next_segment()->flags, TCP_SYN | TCP_ACK);
}

static void test_refused_by_the_owner_is_reset(void **state)
{
	(void)state;
	open_listener(8);
	fixture_listener_accepts = false;
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_true(raw_next_segment()->flags & TCP_RST);
}

static void test_rate_of_requests_is_limited(void **state)
{
	(void)state;
	side[0].tcp->attr.max_syn_rate = 10;
	open_listener(100);
	for (uint16_t i = 0; i < 30; i++) {
		raw.port = (uint16_t)(5000 + i);
		raw_send_syn_to_listener(0);
	}
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 20);
	fixture_run_for_ns(500 * MS);
	for (uint16_t i = 0; i < 30; i++) {
		raw.port = (uint16_t)(6000 + i);
		raw_send_syn_to_listener(0);
	}
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 45);
}

static void test_each_listener_has_a_rate_of_its_own(void **state)
{
	struct vma_tcp_listen_attr attr = {.owner = &fixture_listener_owner,
	                                   .options = &side[0].options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(PORT + 1),
	                                   .backlog = 100};
	struct vma_tcp_listener *other;

	(void)state;
	memcpy(attr.local, side[0].ip, 16);
	side[0].tcp->attr.max_syn_rate = 10;
	open_listener(100);
	assert_int_equal(vma_tcp_listen(side[0].tcp, &attr, &other), 0);
	for (uint16_t i = 0; i < 30; i++) {
		raw.port = (uint16_t)(5000 + i);
		raw_send_syn_to_listener(0);
	}
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 20);
	raw.peer_port = htons(PORT + 1);
	for (uint16_t i = 0; i < 30; i++) {
		raw.port = (uint16_t)(5000 + i);
		raw_send_segment(0, 0, TCP_SYN, "", 0);
	}
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 40);
	vma_tcp_listener_close(other);
}

static void test_unmatched_segments_are_reset_but_not_resets(void **state)
{
	const struct raw_segment *s;

	(void)state;
	open_listener(8);
	raw.peer_port = htons(PORT);
	raw_send_segment(5, 77, TCP_ACK, "data", 4);
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_RST);
	assert_int_equal(s->seq_absolute, raw.their_isn + 77);
	raw_send_segment(5, 77, TCP_RST | TCP_ACK, "", 0);
	raw_send_segment(5, 77, TCP_FIN, "", 0);
	assert_int_equal(raw_unseen_count(), 0);
}

static void test_what_was_on_its_way_is_reset_once_and_again_later(void **state)
{
	(void)state;
	open_listener(8);
	raw.peer_port = htons(PORT);
	for (uint32_t i = 0; i < 10; i++)
		raw_send_segment(5 + 4 * i, 77, TCP_ACK, "data", 4);
	assert_int_equal(raw_unseen_count(), 1);
	raw_next_segment();
	raw_send_segment(45, 78, TCP_ACK, "data", 4); /* another number to be reset at */
	assert_int_equal(raw_next_segment()->seq_absolute, raw.their_isn + 78);
	fixture_run_for_ns(2 * MS);
	raw_send_segment(5, 78, TCP_ACK, "data", 4);
	assert_int_equal(raw_unseen_count(), 1);
}

/* Workers that come and go all the time: the connection may be another one's for a while, and is nobody's then. */
static void test_unmatched_segments_are_reset_at_last_while_the_group_changes_all_the_time(void **state)
{
	static struct vma_nic_accept_page member;
	uint64_t begun = fixture_now_ns;

	(void)state;
	open_listener(8);
	raw.peer_port = htons(PORT);
	side[0].tcp->member = &member;
	for (int i = 0; i < 11; i++) {
		assert_int_equal(raw_unseen_count(), 0);
		atomic_store(&member.changed_ns, fixture_now_ns);
		raw_send_segment(5, 77, TCP_ACK, "data", 4);
		fixture_run_for_ns(200 * MS);
	}
	assert_true(fixture_now_ns - begun > 2 * SEC);
	assert_int_equal(raw_unseen_count(), 1);
	assert_true(raw_next_segment()->flags & TCP_RST);
	/* The same peer, long after: another connection, which another process may have. */
	fixture_run_for_ns(6 * SEC);
	atomic_store(&member.changed_ns, fixture_now_ns);
	raw_send_segment(5, 77, TCP_ACK, "data", 4);
	assert_int_equal(raw_unseen_count(), 0);
	side[0].tcp->member = NULL;
}

/* Another worker may have died a moment ago, and nobody has been told yet. */
static void test_unmatched_segments_of_a_group_are_reset_when_they_come_again(void **state)
{
	static struct vma_nic_accept_page member = {.groups = 1};

	(void)state;
	open_listener(8);
	fixture_run_for_ns(3 * SEC);
	raw.peer_port = htons(PORT);
	side[0].tcp->member = &member;
	raw_send_segment(5, 77, TCP_ACK, "data", 4);
	fixture_run_for_ns(10 * MS);
	raw_send_segment(5, 77, TCP_ACK, "data", 4);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(200 * MS);
	raw_send_segment(5, 77, TCP_ACK, "data", 4);
	assert_int_equal(raw_unseen_count(), 1);
	assert_true(raw_next_segment()->flags & TCP_RST);
	side[0].tcp->member = NULL;
}

/* An ACK that answers a RST comes once: who sends it is asked, and hears then that nobody has the connection. */
static void test_peer_of_a_group_that_has_sent_one_ack_is_asked_and_reset(void **state)
{
	static struct vma_nic_accept_page member = {.groups = 1};
	const struct raw_segment *s;

	(void)state;
	open_listener(8);
	fixture_run_for_ns(3 * SEC);
	raw.peer_port = htons(PORT);
	side[0].tcp->member = &member;
	raw_send_segment(5, 77, TCP_ACK, "", 0);
	fixture_run_for_ns(500 * MS);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(200 * MS);
	assert_int_equal(raw_unseen_count(), 1);
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_ACK);
	assert_int_equal(s->len, 0);
	assert_int_equal(s->seq_absolute, raw.their_isn + 76); /* just below what the peer takes */
	raw_send_segment(5, 77, TCP_ACK, "", 0);
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_RST);
	assert_int_equal(s->seq_absolute, raw.their_isn + 77);
	fixture_run_for_ns(10 * SEC);
	assert_int_equal(raw_unseen_count(), 0);
	side[0].tcp->member = NULL;
}

/* Its answer goes to whoever has the connection; and a peer that says nothing is left alone. */
static void test_peer_of_a_group_is_asked_twice_and_not_before_the_group_is_quiet(void **state)
{
	static struct vma_nic_accept_page member = {.groups = 1};

	(void)state;
	open_listener(8);
	raw.peer_port = htons(PORT);
	side[0].tcp->member = &member;
	atomic_store(&member.changed_ns, fixture_now_ns);
	raw_send_segment(5, 77, TCP_ACK, "", 0);
	raw_send_segment(5, 77, TCP_ACK, "", 0);
	fixture_run_for_ns(1900 * MS);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(200 * MS);
	assert_int_equal(raw_unseen_count(), 1);
	raw_next_segment();
	fixture_run_for_ns(1 * SEC);
	assert_int_equal(raw_unseen_count(), 1);
	raw_next_segment();
	fixture_run_for_ns(20 * SEC);
	assert_int_equal(raw_unseen_count(), 0);
	side[0].tcp->member = NULL;
}

/* Other bytes come again by themselves. */
static void test_peer_of_a_group_that_has_sent_data_is_not_asked(void **state)
{
	static struct vma_nic_accept_page member = {.groups = 1};

	(void)state;
	open_listener(8);
	fixture_run_for_ns(3 * SEC);
	raw.peer_port = htons(PORT);
	side[0].tcp->member = &member;
	raw_send_segment(5, 77, TCP_ACK, "data", 4);
	raw.port++;
	raw_send_segment(5, 77, TCP_ACK | TCP_FIN, "", 0);
	fixture_run_for_ns(10 * SEC);
	assert_int_equal(raw_unseen_count(), 0);
	side[0].tcp->member = NULL;
}

/* Returns when a listener that several workers serve has answered the raw peer's SYN. */
static void answer_syn_as_member_of_group(struct vma_nic_accept_page *member)
{
	memset(member, 0, sizeof(*member));
	open_listener(8);
	fixture_run_for_ns(3 * SEC);
	member->groups = 1;
	side[0].tcp->member = member;
	raw_send_syn_to_listener(0);
	assert_int_equal(raw_next_segment()->flags, TCP_SYN | TCP_ACK);
}

/*
 * A worker that stood still finds a SYN that its peer has repeated since, and that another worker has answered: two
 * SYN-ACKs. The connection comes here then, from that worker; its peer has the other's number.
 */
static void adopt_pending_beside_late_syn(bool handshaken, int64_t since_ns)
{
	static struct vma_nic_accept_page member;
	struct vma_pending pending;

	answer_syn_as_member_of_group(&member);
	pending = member.pending[0];
	pending.iss += 1000000;
	pending.handshaken = handshaken;
	pending.since_ns = (uint64_t)((int64_t)fixture_now_ns + since_ns);
	fixture_run_for_ns(10 * MS);
	raw_mark_all_segments_seen();
	assert_true(vma_ring_acquire(side[0].ring));
	tcp_listener_adopt_pending_conn((struct vma_flow *)fixture_listener,
	                                &pending); /* the flow is its first member */
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	raw.their_isn = handshaken || since_ns <= 0 ? pending.iss : pending.iss - 1000000; /* which has come first */
	raw_send_segment(1, 1, TCP_ACK, "data", 4);
	assert_int_equal(fixture_accepted_count, 1);
	while (raw_unseen_count() != 0)
		assert_false(raw_next_segment()->flags & TCP_RST);
}

static void test_what_is_adopted_takes_the_place_of_a_late_syn(void **state)
{
	(void)state;
	adopt_pending_beside_late_syn(true, 0);
}

static void test_what_is_adopted_half_open_takes_the_place_of_a_later_syn(void **state)
{
	(void)state;
	adopt_pending_beside_late_syn(false, -200000000);
}

static void test_what_is_adopted_half_open_leaves_an_earlier_syn_its_place(void **state)
{
	(void)state;
	adopt_pending_beside_late_syn(false, 5000000);
}

/* Whether the peer of a connection that waits for accept is reset if this process ends, of one or several workers. */
static bool exit_resets_what_waits_for_accept(unsigned groups)
{
	static struct vma_nic_accept_page member;
	bool is_reset = false;

	answer_syn_as_member_of_group(&member);
	raw_send_segment(1, 1, TCP_ACK, "data", 4);
	assert_int_equal(atomic_load(&member.pending[0].state), VMA_PENDING_QUEUED);
	raw_mark_all_segments_seen();
	member.groups = groups;
	vma_tcp_end_all_connections_at_exit(side[0].tcp);
	fixture_run_until_idle();
	while (raw_unseen_count() != 0)
		is_reset |= (raw_next_segment()->flags & TCP_RST) != 0;
	assert_int_equal(atomic_load(&member.pending[0].state), is_reset ? VMA_PENDING_FREE : VMA_PENDING_QUEUED);
	return is_reset;
}

static void test_what_waits_for_accept_is_left_to_other_workers_at_exit(void **state)
{
	(void)state;
	assert_false(exit_resets_what_waits_for_accept(1));
}

static void test_without_other_workers_what_waits_for_accept_is_reset_at_exit(void **state)
{
	(void)state;
	assert_true(exit_resets_what_waits_for_accept(0));
}

static uint32_t send_syn_and_get_isn_of_answer(uint32_t seq)
{
	uint32_t isn;

	raw_send_segment(seq, 0, TCP_SYN, "", 0);
	isn = raw_next_segment()->seq_absolute;
	raw_send_segment(seq + 1, 0, TCP_RST, "", 0);
	assert_int_equal(raw_unseen_count(), 0);
	return isn;
}

/* The peer takes the first of two SYN-ACKs, whichever worker it is from, and goes on with the other. */
static void test_workers_answer_the_same_syn_by_the_same_number(void **state)
{
	static struct vma_nic_accept_page member = {.groups = 1};
	uint32_t isn;

	(void)state;
	open_listener(8);
	raw.peer_port = htons(PORT);
	side[0].tcp->member = &member;
	memset(side[0].tcp->isn_key, 5, sizeof(side[0].tcp->isn_key));
	isn = send_syn_and_get_isn_of_answer(0);
	fixture_run_for_ns(1 * SEC);
	side[0].tcp->attr.secret[0] ^= 1; /* as in another process */
	assert_int_equal(send_syn_and_get_isn_of_answer(0), isn);
	assert_int_not_equal(send_syn_and_get_isn_of_answer(1), isn);
	atomic_store(&member.groups, 0);
	assert_int_not_equal(send_syn_and_get_isn_of_answer(0), isn);
}

static void test_wrong_ack_of_a_syn_ack_is_reset(void **state)
{
	(void)state;
	open_listener(8);
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_segment(1, 5, TCP_ACK, "", 0);
	assert_true(raw_next_segment()->flags & TCP_RST);
	assert_int_equal(fixture_accepted_count, 0);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
}

static void test_reset_of_a_request_frees_its_place(void **state)
{
	(void)state;
	open_listener(1);
	raw_send_syn_to_listener(0);
	raw_send_segment(1, 0, TCP_RST, "", 0);
	raw.port = RAW_PORT + 1;
	raw_send_syn_to_listener(0);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 0);
}

static void test_deferred_accept_waits_for_data(void **state)
{
	(void)state;
	side[0].options.defer_accept_sec = 5;
	open_listener(8);
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 0);
	fixture_run_for_ns(2 * SEC);
	raw_send_bytes(1, 1, 10);
	assert_int_equal(fixture_accepted_count, 1);
	assert_int_equal(vma_tcp_readable_bytes(fixture_last_accepted()->conn), 10);
}

static void test_deferred_accept_does_not_wait_for_ever(void **state)
{
	(void)state;
	side[0].options.defer_accept_sec = 2;
	open_listener(8);
	raw_send_syn_to_listener(0);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	fixture_run_for_ns(10 * SEC);
	assert_true(raw_last_segment()->flags & TCP_SYN); /* asked once more */
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
}

static void test_closing_a_listener_resets_who_waits(void **state)
{
	(void)state;
	open_listener(8);
	raw_send_syn_to_listener(0);
	raw_next_segment();
	vma_tcp_listener_close(fixture_listener);
	fixture_listener = NULL;
	fixture_run_until_idle();
	assert_true(raw_next_segment()->flags & TCP_RST);
}

/* A NIC that has no room for a listener's rule, while a wider one brings a request. */
static const struct vma_nic_ops *ops_of_nic;
static int fake_flow_add_refuses_after_syn(struct vma_nic_qp *qp, const struct vma_flow_rule *rule)
{
	assert_int_equal(ops_of_nic->flow_add(qp, rule), 0);
	raw_send_syn_to_listener(0);
	assert_int_equal(ops_of_nic->flow_del(qp, &rule->key), 0);
	return -ENOSPC;
}

static void test_a_listener_that_the_nic_refuses_resets_who_waits(void **state)
{
	struct vma_tcp_listen_attr attr = {.owner = &fixture_listener_owner,
	                                   .options = &side[0].options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(PORT),
	                                   .backlog = 8};
	struct vma_nic_qp *qp = vma_ring_qp(side[0].ring);
	struct vma_nic_ops refusing = *qp->ops;

	(void)state;
	memcpy(attr.local, side[0].ip, 16);
	ops_of_nic = qp->ops;
	refusing.flow_add = fake_flow_add_refuses_after_syn;
	qp->ops = &refusing;
	assert_int_equal(vma_tcp_listen(side[0].tcp, &attr, &fixture_listener), -ENOSPC);
	qp->ops = ops_of_nic;
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->flags, TCP_SYN | TCP_ACK);
	assert_true(raw_next_segment()->flags & TCP_RST);
	assert_int_equal(raw_unseen_count(), 0);
}

/* What has come while nobody looked, as well as what comes while the rule is being taken away. */
static void test_requests_that_meet_the_end_of_a_listener_are_refused(void **state)
{
	const struct raw_segment *s;

	(void)state;
	open_listener(8);
	raw.holds = true;
	raw_send_syn_to_listener(7);
	raw.port = RAW_PORT + 1;
	raw_send_syn_to_listener(50);
	raw.holds = false;
	vma_tcp_listener_close(fixture_listener);
	fixture_listener = NULL;
	fixture_run_until_idle();
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_RST | TCP_ACK);
	assert_int_equal(s->ack, 8);
	assert_int_equal(fixture_stack_counts(0).resets_out, 2);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 0);
}

/* Another one listens, and is asked next time. */
static void test_requests_that_meet_the_end_of_a_listener_that_has_finished_are_dropped(void **state)
{
	(void)state;
	open_listener(8);
	vma_tcp_listener_drain(fixture_listener, 0);
	raw.holds = true;
	raw_send_syn_to_listener(0);
	raw.holds = false;
	vma_tcp_listener_close(fixture_listener);
	fixture_listener = NULL;
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 1);
}

/* It lets nobody in, so that what is half open is less and less. */
static void test_a_listener_that_finishes_has_those_who_wait_come_in(void **state)
{
	(void)state;
	open_listener(8);
	raw_send_syn_to_listener(0);
	vma_tcp_listener_drain(fixture_listener, 0); /* the time is over at once */
	raw.port = RAW_PORT + 1;
	raw_send_syn_to_listener(0);
	side[0].options.syncookies = 2;
	vma_tcp_listener_set_options(fixture_listener, &side[0].options, 8);
	raw_send_syn_to_listener(0);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 2);
	raw.port = RAW_PORT;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
	vma_tcp_listener_drain(fixture_listener, SEC); /* there is nobody to wait for: time stands still here */
}

/* Its flow has gone, and may be another's; who was half open comes in nevertheless. */
static void test_a_listener_that_is_withdrawn_has_those_who_wait_come_in(void **state)
{
	struct vma_tcp_listener *withdrawn;

	(void)state;
	open_listener(8);
	raw_send_syn_to_listener(0);
	withdrawn = fixture_listener;
	vma_tcp_listener_withdraw(withdrawn);
	assert_false(vma_tcp_listener_has_no_half_open(withdrawn));
	open_listener(8);
	vma_tcp_listener_close(fixture_listener);
	fixture_listener = withdrawn;
	raw.port = RAW_PORT + 1;
	raw_send_syn_to_listener(0);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 0); /* it did not come here */
	raw.port = RAW_PORT;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
	assert_true(vma_tcp_listener_has_no_half_open(withdrawn));
	vma_tcp_listener_withdraw(withdrawn);
}

/* Nobody would ask again before a second has passed. */
static void test_what_has_come_before_a_listener_finishes_is_let_in(void **state)
{
	(void)state;
	open_listener(8);
	raw.holds = true;
	raw_send_syn_to_listener(0);
	vma_tcp_listener_drain(fixture_listener, 0);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 0);
	raw.holds = false;
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->flags, TCP_SYN | TCP_ACK);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
}

static void test_accepted_connections_outlive_their_listener(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_listener_close(fixture_listener);
	fixture_listener = NULL;
	fixture_transfer_and_check_bytes(client, server, 10000, SEC);
	fixture_transfer_and_check_bytes(server, client, 10000, SEC);
	app_free(client);
}

static void test_accepted_connection_may_be_steered_by_itself(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), 0);
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), 0);
	fixture_transfer_and_check_bytes(client, server, 10000, SEC);
	app_free(client);
}

static void test_two_listeners_cannot_have_one_address(void **state)
{
	struct vma_tcp_listen_attr attr = {.owner = &fixture_listener_owner,
	                                   .options = &side[0].options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(PORT)};
	struct vma_tcp_listener *other;

	(void)state;
	open_listener(1);
	memcpy(attr.local, side[0].ip, 16);
	assert_int_equal(vma_tcp_listen(side[0].tcp, &attr, &other), -EADDRINUSE);
}

static void test_many_connections_at_once(void **state)
{
	struct app *client[40];

	(void)state;
	fixture_listen_with(1, &side[1].options, 64);
	for (unsigned i = 0; i < 40; i++)
		client[i] = fixture_connect_from(0, (uint16_t)(2000 + i));
	fixture_run_for_ns(10 * MS);
	assert_int_equal(fixture_accepted_count, 40);
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(fixture_send_bytes(client[i], 2000), 2000);
	fixture_run_for_ns(10 * MS);
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(read_bytes(fixture_accepted[i], 10000), 2000);
	for (unsigned i = 0; i < 40; i++)
		app_free(client[i]);
}

static const struct CMUnitTest tests[] = {
        RAW_CASE(test_data_with_the_last_ack_of_the_handshake_arrives),
        RAW_CASE(test_syn_ack_offers_only_what_was_asked_for),
        RAW_CASE(test_syn_ack_is_repeated_and_given_up),
        RAW_CASE(test_syn_ack_offers_what_the_environments_mtu_leaves),
        RAW_CASE(test_cookie_offers_what_the_environments_mtu_leaves),
        RAW_CASE(test_repeated_syn_gets_the_same_answer),
        RAW_CASE(test_requests_beyond_the_backlog_are_dropped_without_cookies),
        RAW_CASE(test_request_that_does_not_answer_makes_way_for_another),
        RAW_CASE(test_owner_with_a_full_queue_drops_requests),
        RAW_CASE(test_refused_by_the_owner_is_reset),
        RAW_CASE(test_rate_of_requests_is_limited),
        RAW_CASE(test_each_listener_has_a_rate_of_its_own),
        RAW_CASE(test_unmatched_segments_are_reset_but_not_resets),
        RAW_CASE(test_what_was_on_its_way_is_reset_once_and_again_later),
        RAW_CASE(test_unmatched_segments_are_reset_at_last_while_the_group_changes_all_the_time),
        RAW_CASE(test_unmatched_segments_of_a_group_are_reset_when_they_come_again),
        RAW_CASE(test_peer_of_a_group_that_has_sent_one_ack_is_asked_and_reset),
        RAW_CASE(test_peer_of_a_group_is_asked_twice_and_not_before_the_group_is_quiet),
        RAW_CASE(test_peer_of_a_group_that_has_sent_data_is_not_asked),
        RAW_CASE(test_what_is_adopted_takes_the_place_of_a_late_syn),
        RAW_CASE(test_workers_answer_the_same_syn_by_the_same_number),
        RAW_CASE(test_what_is_adopted_half_open_takes_the_place_of_a_later_syn),
        RAW_CASE(test_what_is_adopted_half_open_leaves_an_earlier_syn_its_place),
        RAW_CASE(test_wrong_ack_of_a_syn_ack_is_reset),
        RAW_CASE(test_reset_of_a_request_frees_its_place),
        RAW_CASE(test_deferred_accept_waits_for_data),
        RAW_CASE(test_deferred_accept_does_not_wait_for_ever),
        RAW_CASE(test_closing_a_listener_resets_who_waits),
        RAW_CASE(test_a_listener_that_the_nic_refuses_resets_who_waits),
        RAW_CASE(test_requests_that_meet_the_end_of_a_listener_are_refused),
        RAW_CASE(test_requests_that_meet_the_end_of_a_listener_that_has_finished_are_dropped),
        RAW_CASE(test_a_listener_that_finishes_has_those_who_wait_come_in),
        RAW_CASE(test_a_listener_that_is_withdrawn_has_those_who_wait_come_in),
        RAW_CASE(test_what_has_come_before_a_listener_finishes_is_let_in),
        CASE(test_accepted_connections_outlive_their_listener),
        CASE(test_accepted_connection_may_be_steered_by_itself),
        RAW_CASE(test_two_listeners_cannot_have_one_address),
        RAW_CASE(test_what_waits_for_accept_is_left_to_other_workers_at_exit),
        RAW_CASE(test_without_other_workers_what_waits_for_accept_is_reset_at_exit),
        CASE(test_many_connections_at_once),
};
VMA_TEST_MAIN(tests)
