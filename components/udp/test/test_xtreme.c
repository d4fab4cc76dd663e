/* SocketXtreme on a socket: datagrams as completions, from the sink itself and from the queue. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../../sock/test/internal_thread.h"
#include "fixture.h"

#include "../xtreme.h"

enum { PEER = 9000 };

static struct udp_sock *sock;
static struct fixture_attached attached;

static unsigned trains; /* datagrams of them that were given */

static unsigned take_train(struct vma_flow *flow, struct vma_buf *const *packets, unsigned n,
                           const struct vma_rx_info *info)
{
	const unsigned taken = udp_xtreme_take_train(flow->owner, packets, n, info);

	trains += taken;
	return taken;
}
static const struct vma_flow_ops train_ops = {.take_train = take_train};

static int setup(void **state)
{
	(void)state;
	sock = udp_fixture_socket(true);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
	attached.flow.ops = &train_ops;
	trains = 0;
	atomic_store(&sock->nonblocking, true);
	vma_enter();
	assert_int_equal(udp_xtreme_enable_on_sock(sock), 0);
	assert_int_equal(udp_xtreme_create_event_source(sock, &attached.at), 0);
	vma_leave(vma_thread_self());
	return 0;
}

static int teardown(void **state)
{
	struct vma_xtreme *xtreme = sock->xtreme;
	struct vma_thread *self = vma_enter();

	(void)state;
	vma_xtreme_source_end(attached.at.xtreme);
	vma_xtreme_source_put(attached.at.xtreme);
	atomic_store(&sock->rx_opts, 0);
	sock->xtreme = NULL;
	vma_xtreme_destroy(xtreme);
	vma_leave(self);
	fixture_detach_udp_flow(&attached);
	fixture_close(sock);
	return 0;
}

static void peer_send_text_to_socket(const char *text)
{
	udp_fixture_peer_send(PEER, fixture_port(sock), text, (uint32_t)strlen(text));
}

static int xtreme_poll(struct vma_completion_t *completions, unsigned n)
{
	struct vma_thread *self = vma_enter();
	const int rc = vma_xtreme_poll(vma_ring_ctx_bit(fixture.ring_ctx), completions, n);

	vma_leave(self);
	return rc;
}

static int free_xtreme_completion_packet(struct vma_completion_t *completion)
{
	struct vma_thread *self = vma_enter();
	const int rc = vma_xtreme_free_packets(&completion->packet, 1);

	vma_leave(self);
	return rc;
}

/* By another driver than a poll: as the internal thread, or epoll_wait. */
static void drive_fixture_ring(void)
{
	struct vma_thread *self = vma_enter();

	vma_ring_ctxs_progress(vma_ring_ctx_bit(fixture.ring_ctx));
	vma_leave(self);
}

static bool is_packet_memory(const void *pointer)
{
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	const size_t off = (size_t)((const char *)pointer - arena->frames);

	return off < (size_t)arena->capacity << arena->frame_shift;
}

static void assert_completion_has_text(const struct vma_completion_t *completion, const char *text)
{
	assert_true(completion->events == VMA_SOCKETXTREME_PACKET);
	assert_int_equal(completion->packet.total_len, strlen(text));
	assert_memory_equal(completion->packet.buff_lst->payload, text, strlen(text));
}

static void test_datagram_is_a_completion_where_the_device_put_it(void **state)
{
	struct vma_completion_t completions[4];

	(void)state;
	assert_int_equal(xtreme_poll(completions, 4), 0);
	peer_send_text_to_socket("a quote");
	assert_int_equal(xtreme_poll(completions, 4), 1);
	assert_completion_has_text(&completions[0], "a quote");
	assert_true(is_packet_memory(completions[0].packet.buff_lst->payload));
	assert_int_equal(completions[0].packet.num_bufs, 1);
	assert_int_equal((int)completions[0].user_data, fixture_fd(sock));
	assert_int_equal(completions[0].src.sin_family, AF_INET);
	assert_int_equal(completions[0].src.sin_port, htons(PEER));
	assert_memory_equal(&completions[0].src.sin_addr, fixture_remote, 4);
	assert_int_equal(atomic_load(&attached.at.queue.pushed), 0); /* not by way of the queue */
	assert_int_equal(vma_xtreme_held_bytes(sock->xtreme), UDP_BYTES_AT_LEAST);
	assert_int_equal(free_xtreme_completion_packet(&completions[0]), 0);
	assert_int_equal(vma_xtreme_held_bytes(sock->xtreme), 0);
	assert_int_equal(free_xtreme_completion_packet(&completions[0]), -ENOENT);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_zcopy), 1);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_packets), 1);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_bytes), 7);
}

static void test_what_does_not_fit_comes_next_in_order(void **state)
{
	static const char *const texts[] = {"one", "two", "three", "four", "five"};
	struct vma_completion_t completion;

	(void)state;
	for (unsigned i = 0; i < 5; i++)
		peer_send_text_to_socket(texts[i]);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(xtreme_poll(&completion, 1), 1);
		assert_completion_has_text(&completion, texts[i]);
		assert_int_equal(free_xtreme_completion_packet(&completion), 0);
	}
	assert_int_equal(xtreme_poll(&completion, 1), 0);
}

static void test_what_another_thread_has_driven_is_told_before_what_comes(void **state)
{
	struct vma_completion_t completions[4];

	(void)state;
	peer_send_text_to_socket("first");
	peer_send_text_to_socket("second");
	drive_fixture_ring();
	peer_send_text_to_socket("third");
	assert_int_equal(xtreme_poll(completions, 4), 3);
	assert_completion_has_text(&completions[0], "first");
	assert_completion_has_text(&completions[1], "second");
	assert_completion_has_text(&completions[2], "third");
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(free_xtreme_completion_packet(&completions[i]), 0);
	assert_true(udp_attachment_is_empty(&attached.at));
}

static void test_recv_gets_what_no_poll_has_taken(void **state)
{
	struct vma_completion_t completion;
	char room[32];
	struct {
		struct msghdr msg;
		struct iovec iov;
	} own = {.iov = {.iov_base = room, .iov_len = sizeof(room)}};
	struct vma_thread *self;

	(void)state;
	own.msg.msg_iov = &own.iov;
	own.msg.msg_iovlen = 1;
	peer_send_text_to_socket("mixed");
	self = vma_enter();
	assert_int_equal(udp_recvmsg(&sock->file, fixture_fd(sock), &own.msg, MSG_DONTWAIT), 5);
	vma_leave(self);
	assert_memory_equal(room, "mixed", 5);
	assert_int_equal(xtreme_poll(&completion, 1), 0);
}

static void test_who_frees_nothing_loses_packets_which_are_counted(void **state)
{
	struct vma_completion_t completions[16];
	unsigned got = 0;

	(void)state;
	atomic_store(&sock->rcvbuf, 8 * UDP_BYTES_AT_LEAST);
	for (unsigned i = 0; i < 6; i++)
		peer_send_text_to_socket("direct");
	got += (unsigned)xtreme_poll(completions, 16);
	for (unsigned i = 0; i < 4; i++)
		peer_send_text_to_socket("direct");
	got += (unsigned)xtreme_poll(completions + got, 16 - got);
	assert_int_equal(got, 8);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_hold_refused), 2);
	for (unsigned i = 0; i < 3; i++)
		peer_send_text_to_socket("queued");
	drive_fixture_ring();
	assert_int_equal(xtreme_poll(completions + got, 16 - got), 0);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_hold_refused), 5);
	for (unsigned i = 0; i < got; i++)
		assert_int_equal(free_xtreme_completion_packet(&completions[i]), 0);
	peer_send_text_to_socket("again");
	assert_int_equal(xtreme_poll(completions, 16), 1);
	assert_int_equal(free_xtreme_completion_packet(&completions[0]), 0);
}

static void test_user_data_takes_the_place_of_the_descriptor(void **state)
{
	const uint64_t data = UINT64_MAX - 5;
	struct vma_completion_t completion;
	struct vma_thread *self = vma_enter();

	(void)state;
	assert_int_equal(vma_xtreme_setsockopt(sock->xtreme, SO_VMA_USER_DATA, &data, sizeof(data)), 0);
	vma_leave(self);
	peer_send_text_to_socket("x");
	assert_int_equal(xtreme_poll(&completion, 1), 1);
	assert_true(completion.user_data == data);
	assert_int_equal(free_xtreme_completion_packet(&completion), 0);
}

static void test_a_burst_is_given_at_once_and_back_in_one_call(void **state)
{
	struct vma_packet_desc_t packets[16];
	struct vma_completion_t completions[16];
	struct vma_thread *self;
	char text[16];

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		snprintf(text, sizeof(text), "number %u", i);
		peer_send_text_to_socket(text);
	}
	assert_int_equal(xtreme_poll(completions, 16), 12);
	assert_true(trains >= 8); /* the rest found no packet of theirs before them in a burst */
	for (unsigned i = 0; i < 12; i++) {
		snprintf(text, sizeof(text), "number %u", i);
		assert_completion_has_text(&completions[i], text);
		assert_int_equal((int)completions[i].user_data, fixture_fd(sock));
		assert_int_equal(completions[i].src.sin_port, htons(PEER));
		assert_int_equal(completions[i].listen_fd, 0);
		packets[i] = completions[i].packet;
	}
	assert_int_equal(vma_xtreme_held_bytes(sock->xtreme), 12 * UDP_BYTES_AT_LEAST);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_packets), 12);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_queued), 12);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_zcopy), 12);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_bytes),
	                 10 * strlen("number 0") + 2 * strlen("number 10"));
	self = vma_enter();
	assert_int_equal(vma_xtreme_free_packets(packets, 12), 0);
	assert_int_equal(vma_xtreme_free_packets(packets, 12), -ENOENT);
	vma_leave(self);
	assert_int_equal(vma_xtreme_held_bytes(sock->xtreme), 0);
}

static void test_a_burst_that_does_not_fit_keeps_its_order(void **state)
{
	struct vma_completion_t completions[5];
	unsigned next = 0;
	char text[16];

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		snprintf(text, sizeof(text), "number %u", i);
		peer_send_text_to_socket(text);
	}
	while (next < 12) {
		const int got = xtreme_poll(completions, 5);

		assert_in_range(got, 1, 5);
		for (int i = 0; i < got; i++) {
			snprintf(text, sizeof(text), "number %u", next++);
			assert_completion_has_text(&completions[i], text);
			assert_int_equal(free_xtreme_completion_packet(&completions[i]), 0);
		}
	}
	assert_int_equal(xtreme_poll(completions, 5), 0);
	assert_true(trains > 0);
}

/* A connected socket's peer is another one: the train goes the way of each datagram, which is refused. */
static void test_a_burst_of_strangers_is_refused(void **state)
{
	struct vma_completion_t completions[8];

	(void)state;
	atomic_store(&sock->peer_key, udp_peer_key(1, 2));
	for (unsigned i = 0; i < 6; i++)
		peer_send_text_to_socket("stranger");
	assert_int_equal(xtreme_poll(completions, 8), 0);
	assert_int_equal(trains, 0);
	atomic_store(&sock->peer_key, 0);
	peer_send_text_to_socket("friend");
	assert_int_equal(xtreme_poll(completions, 8), 1);
	assert_completion_has_text(&completions[0], "friend");
	assert_int_equal(free_xtreme_completion_packet(&completions[0]), 0);
}

/* The table does not grow with what comes: places are used again. */
static void test_packets_come_and_go_in_the_same_places(void **state)
{
	struct vma_completion_t completions[16];
	uintptr_t low = UINTPTR_MAX, high = 0;

	(void)state;
	hold_internal_thread();
	for (unsigned round = 0; round < 2000; round++) {
		int got;

		for (unsigned i = 0; i < 10; i++)
			peer_send_text_to_socket("x");
		got = xtreme_poll(completions, 16);
		assert_int_equal(got, 10);
		for (int i = 0; i < got; i++) {
			const uintptr_t buff = (uintptr_t)completions[i].packet.buff_lst;

			low = buff < low ? buff : low;
			high = buff > high ? buff : high;
			assert_int_equal(free_xtreme_completion_packet(&completions[i]), 0);
		}
	}
	release_internal_thread();
	assert_true(high - low < 64 * 1024);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_datagram_is_a_completion_where_the_device_put_it),
        CASE(test_what_does_not_fit_comes_next_in_order),
        CASE(test_what_another_thread_has_driven_is_told_before_what_comes),
        CASE(test_recv_gets_what_no_poll_has_taken),
        CASE(test_who_frees_nothing_loses_packets_which_are_counted),
        CASE(test_user_data_takes_the_place_of_the_descriptor),
        CASE(test_a_burst_is_given_at_once_and_back_in_one_call),
        CASE(test_a_burst_that_does_not_fit_keeps_its_order),
        CASE(test_a_burst_of_strangers_is_refused),
        CASE(test_packets_come_and_go_in_the_same_places),
};

FIXTURE_MAIN(tests)
