/* The Extra API on a socket: packets that the application holds, and receive callbacks. */
#include <pthread.h>

#include "fixture.h"

#include "../extra.h"

enum { PEER = 9000 };

static struct udp_sock *sock;
static struct fixture_attached attached;

static struct {
	unsigned calls, nested;
	vma_recv_callback_retval_t verdict;
	void *id;
	char text[64];
	size_t len, n;
	struct vma_info_t info;
	struct sockaddr_in src, dst;
	const void *base;
	ssize_t (*within)(void);
	ssize_t within_said;
} seen;

static struct udp_extra_api_state *extra(void)
{
	return atomic_load(&sock->extra);
}

static int setup_udp_socket_with_extra_state(void **state)
{
	(void)state;
	sock = udp_fixture_socket(true);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
	atomic_store(&sock->nonblocking, true);
	memset(&seen, 0, sizeof(seen));
	assert_non_null(udp_extra_api_state_get_or_create(sock));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (attached.at.undecided != NULL) {
		udp_queue_fini(attached.at.undecided, vma_engine_get_or_start()->arena);
		vma_free(attached.at.undecided);
	}
	fixture_detach_udp_flow(&attached);
	fixture_close(sock);
	return 0;
}

static void peer_send_datagram_to_fixture(const char *text)
{
	udp_fixture_peer_send(PEER, fixture_port(sock), text, (uint32_t)strlen(text));
}

static ssize_t receive_lent(struct vma_recv_zcopy_call *lend, void *buf, size_t len, int flags)
{
	struct vma_thread *self = vma_enter();
	ssize_t rc;

	vma_recv_zcopy_call_init(lend, fixture_fd(sock), buf, len, (flags & MSG_VMA_ZCOPY_FORCE) != 0);
	rc = udp_recv_zero_copy(&sock->file, fixture_fd(sock), lend, flags);
	vma_leave(self);
	return rc;
}

static ssize_t receive_from_fixture_socket(void *data, size_t size)
{
	struct {
		struct msghdr msg;
		struct iovec iov;
	} own = {.iov = {.iov_base = data, .iov_len = size}};
	struct vma_thread *self = vma_enter();
	ssize_t len;

	own.msg.msg_iov = &own.iov;
	own.msg.msg_iovlen = 1;
	len = udp_recvmsg(&sock->file, fixture_fd(sock), &own.msg, 0);
	vma_leave(self);
	return len;
}

static int give_back(const struct vma_file *file, int fd, void *id)
{
	struct vma_thread *self = vma_enter();
	const int rc = vma_held_packet_free(file, fd, (uint64_t)(uintptr_t)id);

	vma_leave(self);
	return rc;
}

static bool is_packet_memory(const void *pointer)
{
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	const size_t off = (size_t)((const char *)pointer - arena->frames);

	return off < (size_t)arena->capacity << arena->frame_shift;
}

/* ---- without a copy ---- */

union room {
	struct vma_packets_t packets;
	char bytes[256];
};

static void test_packet_lies_where_the_device_put_it(void **state)
{
	union room room;
	struct vma_recv_zcopy_call lend;

	(void)state;
	peer_send_datagram_to_fixture("a quote");
	assert_int_equal(receive_lent(&lend, &room, sizeof(room), 0), 7);
	assert_int_equal(lend.packets, 1);
	assert_int_equal(room.packets.n_packet_num, 1);
	assert_int_equal(room.packets.pkts[0].sz_iov, 1);
	assert_int_equal(room.packets.pkts[0].iov[0].iov_len, 7);
	assert_true(is_packet_memory(room.packets.pkts[0].iov[0].iov_base));
	assert_memory_equal(room.packets.pkts[0].iov[0].iov_base, "a quote", 7);
	assert_int_equal(atomic_load(&extra()->holder.packets), 1);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_zcopy), 1);
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), room.packets.pkts[0].packet_id), 0);
	assert_int_equal(atomic_load(&extra()->holder.bytes), 0);
}

static void test_packet_is_given_back_once(void **state)
{
	union room room;
	struct vma_recv_zcopy_call lend;
	void *id;

	(void)state;
	peer_send_datagram_to_fixture("x");
	assert_int_equal(receive_lent(&lend, &room, sizeof(room), 0), 1);
	id = room.packets.pkts[0].packet_id;
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), NULL), -ENOENT);
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), (void *)UINTPTR_MAX), -ENOENT);
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), (char *)id + (1 << 25)), -ENOENT);
	assert_int_equal(give_back(NULL, fixture_fd(sock), id), -ENOENT); /* it is open, and so another one's */
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), id), 0);
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), id), -ENOENT);
}

static void test_too_little_room_is_a_copy_or_with_force_an_error(void **state)
{
	char small[24];
	struct vma_recv_zcopy_call lend;

	(void)state;
	peer_send_datagram_to_fixture("copied");
	assert_int_equal(receive_lent(&lend, small, sizeof(small), MSG_VMA_ZCOPY_FORCE), -ENOBUFS);
	assert_int_equal(receive_lent(&lend, small, sizeof(small), 0), 6);
	assert_int_equal(lend.packets, 0);
	assert_memory_equal(small, "copied", 6);
}

static void test_peek_copies_and_leaves(void **state)
{
	union room room;
	struct vma_recv_zcopy_call lend;

	(void)state;
	peer_send_datagram_to_fixture("peeked");
	assert_int_equal(receive_lent(&lend, &room, sizeof(room), MSG_PEEK), 6);
	assert_int_equal(lend.packets, 0);
	assert_int_equal(receive_lent(&lend, &room, sizeof(room), MSG_PEEK | MSG_VMA_ZCOPY_FORCE), -EIO);
	assert_int_equal(receive_lent(&lend, &room, sizeof(room), 0), 6);
	assert_int_equal(lend.packets, 1);
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), room.packets.pkts[0].packet_id), 0);
}

static void test_who_never_frees_gets_copies_and_what_is_forced_stays(void **state)
{
	union room room[4];
	struct vma_recv_zcopy_call lend;

	(void)state;
	atomic_store(&sock->rcvbuf, 3 * UDP_BYTES_AT_LEAST);
	for (int i = 0; i < 3; i++) {
		peer_send_datagram_to_fixture("held");
		assert_int_equal(receive_lent(&lend, &room[i], sizeof(room[i]), 0), 4);
		assert_int_equal(lend.packets, 1);
	}
	peer_send_datagram_to_fixture("more");
	assert_int_equal(receive_lent(&lend, &room[3], sizeof(room[3]), MSG_VMA_ZCOPY_FORCE), -EIO);
	assert_int_equal(receive_lent(&lend, &room[3], sizeof(room[3]), 0), 4);
	assert_int_equal(lend.packets, 0);
	assert_memory_equal(&room[3], "more", 4);
	for (int i = 0; i < 3; i++)
		assert_int_equal(give_back(&sock->file, fixture_fd(sock), room[i].packets.pkts[0].packet_id), 0);
	peer_send_datagram_to_fixture("free");
	assert_int_equal(receive_lent(&lend, &room[3], sizeof(room[3]), MSG_VMA_ZCOPY_FORCE), 4);
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), room[3].packets.pkts[0].packet_id), 0);
}

static void test_what_lies_in_the_kernel_is_copied_or_stays(void **state)
{
	struct sockaddr_in to = sock->local;
	const int fd = vma_os.socket(AF_INET, SOCK_DGRAM, 0);
	union room room;
	struct vma_recv_zcopy_call lend;

	(void)state;
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(vma_os.sendto(fd, "kernel", 6, 0, (struct sockaddr *)&to, sizeof(to)), 6);
	atomic_store(&sock->os_attention, true);
	assert_int_equal(receive_lent(&lend, &room, sizeof(room), MSG_VMA_ZCOPY_FORCE), -EIO);
	atomic_store(&sock->os_attention, true);
	assert_int_equal(receive_lent(&lend, &room, sizeof(room), 0), 6);
	assert_int_equal(lend.packets, 0);
	assert_memory_equal(&room, "kernel", 6);
	vma_os.close(fd);
}

static void test_flag_of_a_program_in_a_plain_receive_is_nothing(void **state)
{
	struct {
		struct msghdr msg;
		struct iovec iov;
	} own;
	char data[16];
	struct vma_thread *self;

	(void)state;
	own.iov = (struct iovec){.iov_base = data, .iov_len = sizeof(data)};
	own.msg = (struct msghdr){.msg_iov = &own.iov, .msg_iovlen = 1};
	peer_send_datagram_to_fixture("plain");
	self = vma_enter();
	assert_int_equal(udp_recvmsg(&sock->file, fixture_fd(sock), &own.msg, MSG_VMA_ZCOPY), 5);
	vma_leave(self);
	assert_memory_equal(data, "plain", 5);
}

/* ---- callbacks ---- */

static vma_recv_callback_retval_t recv_callback_record_packet(int fd, size_t n, struct iovec iov[],
                                                              struct vma_info_t *info, void *context)
{
	assert_int_equal(fd, fixture_fd(sock));
	assert_ptr_equal(context, &seen);
	seen.calls++;
	seen.n = n;
	seen.info = *info;
	seen.src = *info->src;
	seen.dst = *info->dst;
	seen.id = info->packet_id;
	seen.base = iov[0].iov_base;
	seen.len = iov[0].iov_len;
	memcpy(seen.text, iov[0].iov_base, iov[0].iov_len < sizeof(seen.text) ? iov[0].iov_len : sizeof(seen.text));
	if (seen.within != NULL)
		seen.within_said = seen.within();
	return seen.verdict;
}

/* As udp_set_recv_callback does it, whose flows the fixture has not. */
static void register_fixture_recv_callback(vma_recv_callback_retval_t verdict)
{
	struct udp_callback *callback = vma_alloc(sizeof(*callback));

	callback->now = (struct vma_recv_callback){.function = recv_callback_record_packet, .context = &seen};
	seen.verdict = verdict;
	assert_int_equal(udp_attachment_make_undecided_queue(&attached.at), 0);
	atomic_store(&extra()->detour, true);
	vma_free(atomic_exchange(&extra()->callback, callback));
	atomic_fetch_or(&sock->rx_opts, UDP_RX_OPT_CALLBACK);
}

static void test_callback_sees_the_packet_in_its_frame(void **state)
{
	char data[16];

	(void)state;
	register_fixture_recv_callback(VMA_PACKET_DROP);
	peer_send_datagram_to_fixture("tick");
	assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), -EAGAIN);
	assert_int_equal(seen.calls, 1);
	assert_int_equal(seen.n, 1);
	assert_int_equal(seen.len, 4);
	assert_memory_equal(seen.text, "tick", 4);
	assert_true(is_packet_memory(seen.base));
	assert_int_equal(seen.info.struct_sz, sizeof(struct vma_info_t));
	assert_int_equal(seen.info.payload_sz, 4);
	assert_int_equal(seen.info.socket_ready_queue_pkt_count, 0);
	assert_int_not_equal(seen.info.sw_timestamp.tv_sec, 0);
	assert_int_equal(seen.src.sin_port, htons(PEER));
	assert_memory_equal(&seen.src.sin_addr, fixture_remote, 4);
	assert_int_equal(seen.dst.sin_port, htons(fixture_port(sock)));
	assert_memory_equal(&seen.dst.sin_addr, fixture_local, 4);
	assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), -EAGAIN);
	assert_int_equal(give_back(&sock->file, fixture_fd(sock), seen.id), -ENOENT);
	assert_int_equal(atomic_load(&extra()->holder.packets), 0);
}

static void test_verdict_recv_queues_in_order(void **state)
{
	char data[16];

	(void)state;
	register_fixture_recv_callback(VMA_PACKET_RECV);
	peer_send_datagram_to_fixture("1");
	peer_send_datagram_to_fixture("2");
	receive_from_fixture_socket(data, sizeof(data)); /* drives; what it finds itself is the first */
	assert_int_equal(seen.calls, 2);
	assert_int_equal(seen.info.socket_ready_queue_pkt_count, 1);
	assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), 1);
	if (data[0] == '1')
		assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), 1);
	assert_int_equal(data[0], '2');
}

static void test_held_packet_outlives_the_callback(void **state)
{
	char data[16];

	(void)state;
	register_fixture_recv_callback(VMA_PACKET_HOLD);
	peer_send_datagram_to_fixture("kept");
	assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), -EAGAIN);
	peer_send_datagram_to_fixture("next");
	seen.verdict = VMA_PACKET_DROP;
	{
		const void *kept = seen.base;
		void *id = seen.id;

		assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), -EAGAIN);
		assert_memory_equal(kept, "kept", 4);
		assert_int_equal(give_back(&sock->file, fixture_fd(sock), id), 0);
	}
	assert_int_equal(seen.calls, 2);
}

static void test_who_holds_everything_is_not_called_any_more(void **state)
{
	char data[16];
	void *ids[3];

	(void)state;
	register_fixture_recv_callback(VMA_PACKET_HOLD);
	atomic_store(&sock->rcvbuf, 3 * UDP_BYTES_AT_LEAST);
	for (unsigned i = 0; i < 3; i++) {
		peer_send_datagram_to_fixture("held");
		receive_from_fixture_socket(data, sizeof(data));
		ids[i] = seen.id;
	}
	peer_send_datagram_to_fixture("lost");
	receive_from_fixture_socket(data, sizeof(data));
	assert_int_equal(seen.calls, 3);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_hold_refused), 1);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_dropped), 1);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(give_back(&sock->file, fixture_fd(sock), ids[i]), 0);
	seen.verdict = VMA_PACKET_DROP;
	peer_send_datagram_to_fixture("seen");
	receive_from_fixture_socket(data, sizeof(data));
	assert_int_equal(seen.calls, 4);
}

static ssize_t free_packet_within_callback(void)
{
	return give_back(&sock->file, fixture_fd(sock), seen.id);
}

static void test_packet_freed_in_its_callback_is_over_whatever_the_verdict(void **state)
{
	char data[16];

	(void)state;
	seen.within = free_packet_within_callback;
	for (int verdict = VMA_PACKET_DROP; verdict <= VMA_PACKET_HOLD; verdict++) {
		register_fixture_recv_callback((vma_recv_callback_retval_t)verdict);
		peer_send_datagram_to_fixture("gone");
		assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), -EAGAIN);
		assert_int_equal(seen.within_said, 0);
		assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), -EAGAIN);
	}
	assert_int_equal(seen.calls, 3);
	assert_int_equal(atomic_load(&extra()->holder.packets), 0);
}

static ssize_t receive_inside_recv_callback(void)
{
	char data[16];

	if (seen.nested++ == 0)
		peer_send_datagram_to_fixture("second"); /* the receive that follows drives it in */
	return receive_from_fixture_socket(data, sizeof(data));
}

static void test_receive_in_a_callback_gets_what_is_queued_and_does_not_nest(void **state)
{
	char data[16];

	(void)state;
	seen.within = receive_inside_recv_callback;
	register_fixture_recv_callback(VMA_PACKET_DROP);
	peer_send_datagram_to_fixture("first");
	receive_from_fixture_socket(data, sizeof(data));
	assert_int_equal(seen.calls, 2); /* one after the other: the second when the first had returned */
	assert_memory_equal(seen.text, "second", 6);
	assert_int_equal(seen.within_said, -EAGAIN);
}

static void test_blocking_receive_in_the_own_callback_fails(void **state)
{
	char data[16];

	(void)state;
	atomic_store(&sock->nonblocking, true);
	seen.within = receive_inside_recv_callback;
	seen.nested = 1;
	register_fixture_recv_callback(VMA_PACKET_DROP);
	peer_send_datagram_to_fixture("x");
	{
		struct vma_thread *self = vma_enter();

		while (vma_ring_ctxs_progress(attached.all->rings) == 0)
			;
		atomic_store(&sock->nonblocking, false);
		vma_leave(self); /* the callback runs here */
	}
	assert_int_equal(seen.calls, 1);
	assert_int_equal(seen.within_said, -EDEADLK);
	atomic_store(&sock->nonblocking, true);
	assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), -EAGAIN);
}

static void test_without_a_callback_any_more_packets_are_queued(void **state)
{
	char data[16];

	(void)state;
	register_fixture_recv_callback(VMA_PACKET_DROP);
	vma_free(atomic_exchange(&extra()->callback, NULL));
	peer_send_datagram_to_fixture("plain");
	if (receive_from_fixture_socket(data, sizeof(data)) == -EAGAIN)
		assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), 5);
	assert_int_equal(seen.calls, 0);
}

/* ---- another thread drives, or none of the program's ---- */

static void *send_later(void *arg)
{
	usleep(50000);
	peer_send_datagram_to_fixture(arg);
	return NULL;
}

static void test_blocked_receiver_runs_its_callback_and_gets_the_packet(void **state)
{
	pthread_t thread;
	char data[16];

	(void)state;
	atomic_store(&sock->nonblocking, false);
	register_fixture_recv_callback(VMA_PACKET_RECV);
	assert_int_equal(pthread_create(&thread, NULL, send_later, (char *)"late"), 0);
	assert_int_equal(receive_from_fixture_socket(data, sizeof(data)), 4);
	assert_int_equal(seen.calls, 1);
	pthread_join(thread, NULL);
}

static void test_packet_that_the_librarys_thread_drove_in_wakes_the_program(void **state)
{
	struct vma_thread *self = vma_thread_self();
	const bool was = self->is_internal;

	(void)state;
	register_fixture_recv_callback(VMA_PACKET_DROP);
	peer_send_datagram_to_fixture("theirs");
	self->is_internal = true;
	vma_enter();
	while (vma_ring_ctxs_progress(attached.all->rings) == 0)
		;
	self->is_internal = was;
	assert_int_equal(seen.calls, 0);
	vma_leave(self);
	assert_int_equal(seen.calls, 0); /* nobody has marked this thread: it was the library's */
	vma_callback_post(&extra()->source);
	atomic_fetch_or(&self->held, VMA_HELD_CALLBACKS);
	vma_leave(vma_enter());
	assert_int_equal(seen.calls, 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_udp_socket_with_extra_state, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_packet_lies_where_the_device_put_it),
        CASE(test_packet_is_given_back_once),
        CASE(test_too_little_room_is_a_copy_or_with_force_an_error),
        CASE(test_peek_copies_and_leaves),
        CASE(test_who_never_frees_gets_copies_and_what_is_forced_stays),
        CASE(test_what_lies_in_the_kernel_is_copied_or_stays),
        CASE(test_flag_of_a_program_in_a_plain_receive_is_nothing),
        CASE(test_callback_sees_the_packet_in_its_frame),
        CASE(test_verdict_recv_queues_in_order),
        CASE(test_held_packet_outlives_the_callback),
        CASE(test_who_holds_everything_is_not_called_any_more),
        CASE(test_packet_freed_in_its_callback_is_over_whatever_the_verdict),
        CASE(test_receive_in_a_callback_gets_what_is_queued_and_does_not_nest),
        CASE(test_blocking_receive_in_the_own_callback_fails),
        CASE(test_without_a_callback_any_more_packets_are_queued),
        CASE(test_blocked_receiver_runs_its_callback_and_gets_the_packet),
        CASE(test_packet_that_the_librarys_thread_drove_in_wakes_the_program),
};

FIXTURE_MAIN(tests)
