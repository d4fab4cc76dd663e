/* Receiving: what comes over the link, what comes through the shadow, and what the caller's arguments do to it. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include "../../sock/test/internal_thread.h"
#include "fixture.h"

enum { PEER = 9000 };

static struct udp_sock *sock;
static struct fixture_attached attached;

static int setup(void **state)
{
	(void)state;
	sock = udp_fixture_socket(true);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
	atomic_store(&sock->nonblocking, true);
	fixture.group_accepts = true;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fixture_detach_udp_flow(&attached);
	fixture_close(sock);
	return 0;
}

/* As interpose does it. */
static ssize_t receive_msg(struct msghdr *msg, int flags)
{
	struct vma_thread *self = vma_enter();
	ssize_t len = udp_recvmsg(&sock->file, fixture_fd(sock), msg, flags);

	vma_leave(self);
	return len;
}

static ssize_t udp_recv_receive(void *data, size_t size, int flags)
{
	struct {
		struct msghdr msg;
		struct iovec iov;
	} own = {.iov = {.iov_base = data, .iov_len = size}};

	own.msg.msg_iov = &own.iov;
	own.msg.msg_iovlen = 1;
	return receive_msg(&own.msg, flags);
}

static void come(const char *text)
{
	udp_fixture_peer_send(PEER, fixture_port(sock), text, (uint32_t)strlen(text));
}

static void send_datagram_to_shadow(const char *text)
{
	struct sockaddr_in to = sock->local;
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(vma_os.sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to, sizeof(to)), strlen(text));
	vma_os.close(fd);
}

static void recv_assert_receives(const char *text)
{
	char data[64];

	assert_int_equal(udp_recv_receive(data, sizeof(data), 0), strlen(text));
	assert_memory_equal(data, text, strlen(text));
}

static void assert_recv_would_block(void)
{
	char data[64];

	assert_int_equal(udp_recv_receive(data, sizeof(data), MSG_DONTWAIT), -EAGAIN);
}

/* ---- data ---- */

/* One datagram is queued, and one has come: whether a receive that takes the first looks for the second. */
static bool receive_drives_ring_after_first(void)
{
	char data[8];
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct vma_thread *self = vma_enter();
	bool found;

	come("one");
	vma_ring_ctxs_progress(attached.all->rings);
	come("two");
	assert_int_equal(udp_recvmsg_after_periodic_ring_drain(&sock->file, fixture_fd(sock), &msg, 0), 3);
	found = udp_has_datagram(attached.all);
	assert_int_equal(udp_recvmsg(&sock->file, fixture_fd(sock), &msg, 0), 3);
	vma_leave(self);
	return found;
}

static void test_a_receive_with_data_looks_as_often_as_the_environment_says(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;

	(void)state;
	hold_internal_thread();
	conf->rx_cq_drain_rate_nsec = 1;
	vma_inet_drain_init(&sock->drain, conf);
	assert_true(receive_drives_ring_after_first());
	assert_true(receive_drives_ring_after_first());
	conf->rx_cq_drain_rate_nsec = 1000000000;
	vma_inet_drain_init(&sock->drain, conf);
	assert_true(receive_drives_ring_after_first()); /* the first look of all is due */
	assert_false(receive_drives_ring_after_first());
	release_internal_thread();
	conf->rx_cq_drain_rate_nsec = 0;
}

static void test_datagrams_come_in_order_each_once(void **state)
{
	(void)state;
	come("one");
	come("two");
	recv_assert_receives("one");
	recv_assert_receives("two");
	assert_recv_would_block();
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_packets), 2);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_bytes), 6);
}

/* What is left, as readers of the statistics reckon it. */
static void assert_rx_queue_stats(uint64_t packets, uint64_t bytes)
{
	const struct vma_stats_socket *s = sock->stats;
	const uint64_t taken = vma_stats_read_counter(&s->rx_packets) + vma_stats_read_counter(&s->rx_lost);
	const uint64_t taken_bytes = vma_stats_read_counter(&s->rx_bytes) + vma_stats_read_counter(&s->rx_lost_bytes);

	assert_int_equal(vma_stats_read_counter(&s->rx_queued) + vma_stats_read_counter(&s->rx_peeks) - taken, packets);
	assert_int_equal(vma_stats_read_counter(&s->rx_queued_bytes) + vma_stats_read_counter(&s->rx_peek_bytes) -
	                         taken_bytes,
	                 bytes);
}

static void test_statistics_tell_how_long_the_queue_is_and_was(void **state)
{
	char data[64];

	(void)state;
	come("one");
	come("three");
	come("seven");
	assert_int_equal(udp_recv_receive(data, sizeof(data), MSG_PEEK), 3);
	assert_rx_queue_stats(3, 13);
	assert_int_equal(udp_recv_receive(data, 2, MSG_PEEK), 2);
	assert_rx_queue_stats(3, 13);
	assert_int_equal(udp_recv_receive(data, 2, 0), 2); /* the rest is lost */
	assert_rx_queue_stats(2, 10);
	assert_int_equal(udp_recv_receive(data, 2, MSG_TRUNC), 5);
	assert_rx_queue_stats(1, 5);
	recv_assert_receives("seven");
	assert_rx_queue_stats(0, 0);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_queue_max), 3);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_queue_max_bytes), 13);
}

static void test_empty_datagram_is_a_datagram(void **state)
{
	(void)state;
	come("");
	come("after");
	recv_assert_receives("");
	recv_assert_receives("after");
}

static void test_sender_is_named(void **state)
{
	struct sockaddr_in from;
	char data[8];
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	struct msghdr msg = {.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &iov, .msg_iovlen = 1};

	(void)state;
	memset(&from, 0xff, sizeof(from));
	come("hi");
	assert_int_equal(receive_msg(&msg, 0), 2);
	assert_int_equal(msg.msg_namelen, sizeof(from));
	assert_int_equal(from.sin_family, AF_INET);
	assert_int_equal(from.sin_port, htons(PEER));
	assert_memory_equal(&from.sin_addr, fixture_remote, 4);
	assert_int_equal(from.sin_zero[0], 0);
	assert_int_equal(msg.msg_flags, 0);
	assert_int_equal(msg.msg_controllen, 0);
}

static void test_short_room_for_the_name_is_filled_and_the_whole_length_told(void **state)
{
	uint8_t name[16];
	char data[8];
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	struct msghdr msg = {.msg_name = name, .msg_namelen = 4, .msg_iov = &iov, .msg_iovlen = 1};

	(void)state;
	memset(name, 0xee, sizeof(name));
	come("hi");
	assert_int_equal(receive_msg(&msg, 0), 2);
	assert_int_equal(msg.msg_namelen, sizeof(struct sockaddr_in));
	assert_int_equal(name[0], AF_INET);
	assert_int_equal(name[4], 0xee);
}

static void test_what_does_not_fit_is_cut_and_flagged(void **state)
{
	char data[4];
	struct iovec iov = {.iov_base = data, .iov_len = 3};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	(void)state;
	come("abcdef");
	come("abcdef");
	come("next");
	data[3] = 'z';
	assert_int_equal(receive_msg(&msg, 0), 3);
	assert_int_equal(msg.msg_flags, MSG_TRUNC);
	assert_memory_equal(data, "abcz", 4);
	assert_int_equal(receive_msg(&msg, MSG_TRUNC), 6);
	assert_int_equal(msg.msg_flags, MSG_TRUNC);
	recv_assert_receives("next");
}

static void test_peek_leaves_the_datagram(void **state)
{
	char data[8];

	(void)state;
	come("same");
	come("other");
	assert_int_equal(udp_recv_receive(data, sizeof(data), MSG_PEEK), 4);
	assert_int_equal(udp_recv_receive(data, 2, MSG_PEEK), 2);
	assert_int_equal(udp_recv_receive(NULL, 0, MSG_PEEK | MSG_TRUNC), 4);
	assert_int_equal(udp_next_datagram_len(sock), 4);
	recv_assert_receives("same");
	recv_assert_receives("other");
	assert_int_equal(udp_next_datagram_len(sock), -1);
}

static void test_waitall_and_oob_change_nothing(void **state)
{
	char data[8];

	(void)state;
	come("ab");
	come("cd");
	assert_int_equal(udp_recv_receive(data, sizeof(data), MSG_WAITALL), 2);
	assert_int_equal(udp_recv_receive(data, sizeof(data), MSG_OOB), 2);
}

/* ---- pieces ---- */

static void test_pieces_of_any_shape_are_filled_in_order(void **state)
{
	char a[3], b[4], c[9];
	struct iovec iov[] = {{a, 3}, {NULL, 0}, {b, 4}, {(void *)-1, 0}, {c, sizeof(c)}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 5};

	(void)state;
	come("0123456789");
	memset(c, 'x', sizeof(c));
	assert_int_equal(receive_msg(&msg, 0), 10);
	assert_memory_equal(a, "012", 3);
	assert_memory_equal(b, "3456", 4);
	assert_memory_equal(c, "789xxxxxx", 9);
}

static void test_many_pieces_are_taken_and_too_many_refused(void **state)
{
	static char data[1025];
	static struct iovec iov[1025];
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1024};

	(void)state;
	for (size_t i = 0; i < 1025; i++)
		iov[i] = (struct iovec){.iov_base = &data[i], .iov_len = 1};
	come("0123456789");
	assert_int_equal(receive_msg(&msg, 0), 10);
	assert_memory_equal(data, "0123456789", 10);
	come("stays");
	msg.msg_iovlen = 1025;
	assert_int_equal(receive_msg(&msg, 0), -EMSGSIZE);
	recv_assert_receives("stays");
}

static void test_no_piece_at_all_takes_the_datagram(void **state)
{
	struct msghdr msg = {0};

	(void)state;
	come("gone");
	assert_int_equal(receive_msg(&msg, 0), 0);
	assert_int_equal(msg.msg_flags, MSG_TRUNC);
	assert_recv_would_block();
}

static void test_packet_in_several_buffers_is_put_together(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_rx_info info = {.family = AF_INET, .src_port_be = htons(PEER), .dst_port_be = sock->local.sin_port};
	struct vma_buf *buf[3];
	char data[64], small[5];
	struct iovec iov[] = {{small, sizeof(small)}, {data, sizeof(data)}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

	(void)state;
	assert_int_equal(vma_bufpool_get(engine->spill, buf, 3), 3);
	for (int i = 0; i < 3; i++) {
		buf[i]->len = i == 0 ? 42 + 4 : 4;
		buf[i]->next = i < 2 ? buf[i + 1] : NULL;
		memcpy(vma_buf_data(engine->arena, buf[i]) + (i == 0 ? 42 : 0), &"abcdefghijkl"[4 * i], 4);
	}
	buf[0]->payload_off = 42;
	buf[0]->payload_len = 11; /* the last byte is padding */
	assert_true(udp_deliver(&attached.at, buf[0], &info));
	assert_int_equal(udp_recv_receive(data, 6, MSG_PEEK), 6);
	assert_memory_equal(data, "abcdef", 6);
	assert_int_equal(receive_msg(&msg, 0), 11);
	assert_memory_equal(small, "abcde", 5);
	assert_memory_equal(data, "fghijk", 6);
}

/* ---- bad pointers ---- */

static void *map_inaccessible_page(void)
{
	void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	udp_fixture_restore_fault_handlers();
	assert_ptr_not_equal(page, MAP_FAILED);
	return page;
}

/* As the kernel: a datagram that could not be written is lost, one that was peeked at stays. */
static void test_bad_buffer_loses_the_datagram_but_not_in_a_peek(void **state)
{
	void *page = map_inaccessible_page();

	(void)state;
	come("lost");
	come("stays");
	assert_int_equal(udp_recv_receive(page, 16, 0), -EFAULT);
	assert_int_equal(udp_recv_receive(page, 16, MSG_PEEK), -EFAULT);
	recv_assert_receives("stays");
	assert_recv_would_block();
	munmap(page, 4096);
}

static void test_address_that_nobody_has_is_refused_before_anything_is_taken(void **state)
{
	(void)state;
	come("stays");
	assert_int_equal(udp_recv_receive((void *)-4096, 16, 0), -EFAULT);
	recv_assert_receives("stays");
}

static void test_bad_name_or_control_pointer(void **state)
{
	void *page = map_inaccessible_page();
	char data[8];
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	struct msghdr msg = {.msg_name = page, .msg_namelen = 16, .msg_iov = &iov, .msg_iovlen = 1};

	(void)state;
	come("one");
	assert_int_equal(receive_msg(&msg, 0), -EFAULT);
	assert_recv_would_block();
	/* Control messages that cannot be written are left out in silence. */
	atomic_store(&sock->rx_opts, UDP_RX_OPT_RECVTTL);
	come("two");
	msg = (struct msghdr){.msg_control = page, .msg_controllen = 64, .msg_iov = &iov, .msg_iovlen = 1};
	assert_int_equal(receive_msg(&msg, 0), 3);
	assert_int_equal(msg.msg_controllen, 0);
	munmap(page, 4096);
}

/* ---- another thread drives ---- */

static _Atomic bool has_the_flag;

static void *hold_ring_drive_flag_20ms_thread(void *unused)
{
	assert_true(vma_ring_acquire(fixture.ring_ctx->ring));
	atomic_store(&has_the_flag, true);
	usleep(20000);
	vma_ring_release(fixture.ring_ctx->ring);
	return unused;
}

/* It may have been descheduled with the flag: what came before a call that does not wait is there all the same. */
static void test_a_call_that_does_not_wait_finds_what_came_while_another_thread_drives(void **state)
{
	pthread_t thread;

	(void)state;
	come("here");
	atomic_store(&has_the_flag, false);
	assert_int_equal(pthread_create(&thread, NULL, hold_ring_drive_flag_20ms_thread, NULL), 0);
	fixture_wait_until(atomic_load(&has_the_flag));
	recv_assert_receives("here");
	pthread_join(thread, NULL);
}

/* ---- who gets in ---- */

static void test_connected_socket_hears_only_its_peer(void **state)
{
	uint32_t remote;

	(void)state;
	memcpy(&remote, fixture_remote, 4);
	atomic_store(&sock->peer_key, udp_peer_key(remote, htons(PEER)));
	udp_fixture_peer_send(PEER + 1, fixture_port(sock), "other", 5);
	come("peer");
	recv_assert_receives("peer");
	assert_recv_would_block();
}

/* More than one step of driving takes, and nobody else drives soon. */
static void test_what_lies_behind_what_is_others_is_found(void **state)
{
	uint32_t remote;

	(void)state;
	memcpy(&remote, fixture_remote, 4);
	atomic_store(&sock->peer_key, udp_peer_key(remote, htons(PEER)));
	for (int i = 0; i < 100; i++)
		udp_fixture_peer_send(PEER + 1, fixture_port(sock), "other", 5);
	come("peer");
	recv_assert_receives("peer");
}

static void test_groups_pass_their_filter_only(void **state)
{
	const uint8_t group[4] = {239, 1, 1, 1};
	struct fixture_attached member;

	(void)state;
	fixture_detach_udp_flow(&attached);
	fixture_attach_udp_flow(&member, sock, group);
	fixture.group_accepts = false;
	fixture_peer_send_to(group, PEER, fixture_port(sock), "no", 2);
	assert_recv_would_block();
	fixture.group_accepts = true;
	fixture_peer_send_to(group, PEER, fixture_port(sock), "yes", 3);
	recv_assert_receives("yes");
	fixture_detach_udp_flow(&member);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
}

static void test_full_queue_drops_and_tells(void **state)
{
	char data[128], control[64];
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control};
	uint32_t drops;

	(void)state;
	memset(data, 'x', sizeof(data));
	atomic_store(&sock->rx_opts, UDP_RX_OPT_RXQ_OVFL);
	atomic_store(&sock->rcvbuf, 300);
	for (int i = 0; i < 5; i++)
		udp_fixture_peer_send(PEER, fixture_port(sock), data, 100);
	for (int i = 0; i < 3; i++) {
		msg.msg_controllen = sizeof(control);
		assert_int_equal(receive_msg(&msg, 0), 100);
		assert_int_equal(msg.msg_controllen, 0); /* nothing had been dropped before these */
	}
	udp_fixture_peer_send(PEER, fixture_port(sock), data, 100);
	msg.msg_controllen = sizeof(control);
	assert_int_equal(receive_msg(&msg, 0), 100);
	assert_int_equal(msg.msg_controllen, CMSG_SPACE(4));
	memcpy(&drops, CMSG_DATA((struct cmsghdr *)control), 4);
	assert_int_equal(drops, 2);
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_dropped), 2);
}

static void test_rx_opts_come_as_control_messages(void **state)
{
	char data[8], control[256];
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct timespec now, *at;
	struct in_pktinfo *info;
	struct cmsghdr *c;

	(void)state;
	atomic_store(&sock->rx_opts,
	             UDP_RX_OPT_TIMESTAMPNS | UDP_RX_OPT_PKTINFO | UDP_RX_OPT_RECVTTL | UDP_RX_OPT_RECVTOS);
	come("hi");
	clock_gettime(CLOCK_REALTIME, &now);
	assert_int_equal(receive_msg(&msg, 0), 2);
	c = CMSG_FIRSTHDR(&msg);
	at = (struct timespec *)CMSG_DATA(c);
	assert_int_equal(c->cmsg_type, SCM_TIMESTAMPNS);
	assert_true(at->tv_sec - now.tv_sec <= 1 && now.tv_sec - at->tv_sec <= 1);
	c = CMSG_NXTHDR(&msg, c);
	info = (struct in_pktinfo *)CMSG_DATA(c);
	assert_int_equal(c->cmsg_type, IP_PKTINFO);
	assert_int_equal(info->ipi_ifindex, FIXTURE_IFINDEX);
	assert_memory_equal(&info->ipi_addr, fixture_local, 4);
	assert_memory_equal(&info->ipi_spec_dst, fixture_local, 4);
	c = CMSG_NXTHDR(&msg, c);
	assert_int_equal(c->cmsg_type, IP_TTL);
	assert_int_equal(*(int *)CMSG_DATA(c), 33);
	c = CMSG_NXTHDR(&msg, c);
	assert_int_equal(c->cmsg_type, IP_TOS);
	assert_int_equal(*CMSG_DATA(c), 0x20);
	assert_null(CMSG_NXTHDR(&msg, c));
	assert_int_equal(msg.msg_flags, 0);
}

/* ---- the shadow ---- */

static void test_first_empty_look_asks_the_shadow(void **state)
{
	(void)state;
	send_datagram_to_shadow("kernel");
	recv_assert_receives("kernel");
	assert_int_equal(vma_stats_read_counter(&sock->stats->rx_os_packets), 1);
	assert_recv_would_block();
}

static void test_shadow_comes_first_while_it_has_attention(void **state)
{
	(void)state;
	come("newer");
	send_datagram_to_shadow("older");
	send_datagram_to_shadow("old");
	atomic_store(&sock->os_attention, true);
	recv_assert_receives("older");
	recv_assert_receives("old");
	recv_assert_receives("newer");
	assert_false(atomic_load(&sock->os_attention));
}

static void test_shadow_is_asked_again_after_twenty_microseconds(void **state)
{
	(void)state;
	assert_recv_would_block();
	send_datagram_to_shadow("kernel");
	usleep(1000);
	recv_assert_receives("kernel");
}

static void test_socket_without_rings_is_the_shadows(void **state)
{
	(void)state;
	fixture_detach_udp_flow(&attached);
	send_datagram_to_shadow("kernel");
	recv_assert_receives("kernel");
	assert_recv_would_block();
	assert_int_equal(udp_poll(&sock->file), 0);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
}

static void test_inherited_socket_is_taken_up_by_its_first_receive(void **state)
{
	unsigned before = fixture.takes_up;

	(void)state;
	fixture_detach_udp_flow(&attached);
	atomic_store(&sock->inherited, true);
	assert_recv_would_block();
	assert_recv_would_block();
	assert_int_equal(fixture.takes_up, before + 1);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
}

/* ---- waiting ---- */

static void *receive_one_thread(void *unused)
{
	char byte;

	(void)unused;
	return (void *)(intptr_t)udp_recv_receive(&byte, 1, 0);
}

/* Dead in the middle of its wait for the lock it would keep the mutex, and no thread could receive any more. */
static void test_a_receive_that_waits_for_another_s_lock_is_not_cancelled_there(void **state)
{
	pthread_t thread;
	void *got = NULL;

	(void)state;
	come("x");
	atomic_store(&sock->taking, true);
	assert_int_equal(pthread_create(&thread, NULL, receive_one_thread, NULL), 0);
	fixture_wait_until(pthread_mutex_trylock(&sock->reader) != 0 || pthread_mutex_unlock(&sock->reader) != 0);
	assert_int_equal(pthread_cancel(thread), 0);
	usleep(50000); /* many naps */
	atomic_store(&sock->taking, false);
	assert_int_equal(pthread_join(thread, &got), 0);
	assert_int_equal((intptr_t)got, 1);
	assert_int_equal(pthread_mutex_trylock(&sock->reader), 0);
	pthread_mutex_unlock(&sock->reader);
}

static void *peer_send_datagram_after_20ms_thread(void *text)
{
	usleep(20000);
	come(text);
	return NULL;
}

static void *send_to_shadow_after_20ms_thread(void *text)
{
	usleep(20000);
	send_datagram_to_shadow(text);
	return NULL;
}

static void assert_receives_text_while_thread_runs(void *(*other)(void *), const char *text)
{
	pthread_t thread;

	atomic_store(&sock->nonblocking, false);
	assert_int_equal(pthread_create(&thread, NULL, other, (void *)text), 0);
	recv_assert_receives(text);
	pthread_join(thread, NULL);
}

static void test_blocking_receive_waits_for_the_link(void **state)
{
	(void)state;
	assert_receives_text_while_thread_runs(peer_send_datagram_after_20ms_thread, "late");
}

static void test_blocking_receive_waits_for_the_shadow_as_well(void **state)
{
	(void)state;
	assert_receives_text_while_thread_runs(send_to_shadow_after_20ms_thread, "late");
}

static uint64_t recv_now_ms(void)
{
	return vma_now_ns() / 1000000;
}

static void test_receive_timeout_ends_with_eagain(void **state)
{
	uint64_t start = recv_now_ms();
	char data[8];

	(void)state;
	atomic_store(&sock->nonblocking, false);
	atomic_store(&sock->rcvtimeo_ns, 50000000);
	assert_int_equal(udp_recv_receive(data, sizeof(data), 0), -EAGAIN);
	assert_true(recv_now_ms() - start >= 49);
	assert_true(recv_now_ms() - start < 5000);
}

/* An ICMP error, which waits until somebody asks for it with MSG_ERRQUEUE. */
static void make_icmp_error_on_shadow(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct pollfd shadow = {.fd = fixture_fd(sock)};
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM, 0), on = 1;
	socklen_t len = sizeof(to);
	char data[8];

	assert_int_equal(vma_os.bind(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_int_equal(vma_os.getsockname(fd, (struct sockaddr *)&to, &len), 0);
	vma_os.close(fd);
	assert_int_equal(vma_os.setsockopt(shadow.fd, IPPROTO_IP, IP_RECVERR, &on, sizeof(on)), 0);
	assert_int_equal(vma_os.sendto(shadow.fd, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)), 1);
	assert_int_equal(vma_os.ppoll(&shadow, 1, &(struct timespec){.tv_sec = 2}, NULL), 1);
	assert_int_equal(udp_recv_receive(data, sizeof(data), MSG_DONTWAIT), -ECONNREFUSED);
	assert_int_equal(udp_recv_receive(data, sizeof(data), MSG_DONTWAIT), -EAGAIN);
	assert_int_equal(vma_os.ppoll(&shadow, 1, &(struct timespec){0}, NULL), 1);
}

static uint64_t own_cpu_ms(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

static void test_blocking_receive_sleeps_beside_an_error_that_nobody_takes(void **state)
{
	uint64_t before;
	char data[8];

	(void)state;
	make_icmp_error_on_shadow();
	atomic_store(&sock->nonblocking, false);
	atomic_store(&sock->rcvtimeo_ns, 300000000);
	before = own_cpu_ms();
	assert_int_equal(udp_recv_receive(data, sizeof(data), 0), -EAGAIN);
	assert_in_range(own_cpu_ms() - before, 0, 50);
	assert_receives_text_while_thread_runs(send_to_shadow_after_20ms_thread, "kernel");
	assert_receives_text_while_thread_runs(peer_send_datagram_after_20ms_thread, "link");
	make_icmp_error_on_shadow();
	assert_receives_text_while_thread_runs(send_to_shadow_after_20ms_thread, "again");
}

static void *shut_rd_after_20ms_thread(void *unused)
{
	(void)unused;
	usleep(20000);
	atomic_store(&sock->shut_rd, true);
	vma_file_wake_sleepers_and_watchers(&sock->file, 1);
	return NULL;
}

static void test_shutdown_ends_a_blocking_receive_with_nothing(void **state)
{
	pthread_t thread;
	char data[8];

	(void)state;
	atomic_store(&sock->nonblocking, false);
	assert_int_equal(pthread_create(&thread, NULL, shut_rd_after_20ms_thread, NULL), 0);
	assert_int_equal(udp_recv_receive(data, sizeof(data), 0), 0);
	pthread_join(thread, NULL);
	assert_int_equal(udp_recv_receive(data, sizeof(data), MSG_DONTWAIT),
	                 -EAGAIN); /* as the kernel: only who waits */
	come("still");
	recv_assert_receives("still");
}

static _Atomic unsigned handled;

static void count_signal_handler(int sig)
{
	(void)sig;
	atomic_fetch_add(&handled, 1);
}

struct delayed_signals {
	pthread_t target;
	unsigned times; /* 0: until the receive has ended, 5 seconds at most */
	_Atomic bool ended;
};

/* Each signal 20 ms after the last handler: the receive is asleep by then, or it will be in one of the next. */
static void *signal_then_deliver_datagram(void *arg)
{
	struct delayed_signals *delayed_signals = arg;
	const unsigned times = delayed_signals->times > 0 ? delayed_signals->times : 250;

	for (unsigned i = 0; i < times && !atomic_load(&delayed_signals->ended); i++) {
		usleep(20000);
		pthread_kill(delayed_signals->target, SIGUSR1);
		for (int ms = 0; ms < 5000 && atomic_load(&handled) == i && !atomic_load(&delayed_signals->ended); ms++)
			usleep(1000);
	}
	usleep(20000);
	come("end");
	return NULL;
}

static ssize_t receive_interrupted_by_signals(int sa_flags, uint64_t timeout_ns, unsigned times)
{
	struct sigaction action = {.sa_handler = count_signal_handler, .sa_flags = sa_flags};
	struct delayed_signals delayed_signals = {.target = pthread_self(), .times = times};
	char data[8];
	pthread_t thread;
	ssize_t len;

	vma_signals_wrap_existing_handlers();
	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	atomic_store(&sock->nonblocking, false);
	atomic_store(&sock->rcvtimeo_ns, timeout_ns);
	atomic_store(&handled, 0);
	assert_int_equal(pthread_create(&thread, NULL, signal_then_deliver_datagram, &delayed_signals), 0);
	len = udp_recv_receive(data, sizeof(data), 0);
	atomic_store(&delayed_signals.ended, true);
	pthread_join(thread, NULL);
	if (len < 0)
		recv_assert_receives("end");
	return len;
}

static void test_handler_ends_a_receive_unless_it_restarts(void **state)
{
	(void)state;
	assert_int_equal(receive_interrupted_by_signals(0, UINT64_MAX, 0), -EINTR);
	assert_int_equal(receive_interrupted_by_signals(SA_RESTART, UINT64_MAX, 3), 3);
	/* With a time limit there is no restart (signal(7)). */
	assert_int_equal(receive_interrupted_by_signals(SA_RESTART, 10000000000, 0), -EINTR);
}

/* ---- readiness ---- */

static void test_poll_tells_what_is_queued(void **state)
{
	(void)state;
	assert_int_equal(udp_poll(&sock->file) & 1, 0);
	assert_int_equal(udp_poll(&sock->file) & 4, 4);
	assert_true(udp_socket_rings_mask(&sock->file) == vma_ring_ctx_bit(fixture.ring_ctx));
	come("x");
	fixture_wait_until(vma_ring_ctxs_progress(udp_socket_rings_mask(&sock->file)) >= 0 &&
	                   udp_poll(&sock->file) & 1);
	recv_assert_receives("x");
	assert_int_equal(udp_poll(&sock->file) & 1, 0);
	atomic_store(&sock->shut_rd, true);
	assert_int_equal(udp_poll(&sock->file) & 0x2011, 0x2001);
	atomic_store(&sock->shut_wr, true);
	assert_int_equal(udp_poll(&sock->file) & 0x2011, 0x2011);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const struct CMUnitTest tests[] = {
        CASE(test_a_receive_that_waits_for_another_s_lock_is_not_cancelled_there),
        CASE(test_a_receive_with_data_looks_as_often_as_the_environment_says),
        CASE(test_datagrams_come_in_order_each_once),
        CASE(test_statistics_tell_how_long_the_queue_is_and_was),
        CASE(test_empty_datagram_is_a_datagram),
        CASE(test_sender_is_named),
        CASE(test_short_room_for_the_name_is_filled_and_the_whole_length_told),
        CASE(test_what_does_not_fit_is_cut_and_flagged),
        CASE(test_peek_leaves_the_datagram),
        CASE(test_waitall_and_oob_change_nothing),
        CASE(test_pieces_of_any_shape_are_filled_in_order),
        CASE(test_many_pieces_are_taken_and_too_many_refused),
        CASE(test_no_piece_at_all_takes_the_datagram),
        CASE(test_packet_in_several_buffers_is_put_together),
        CASE(test_bad_buffer_loses_the_datagram_but_not_in_a_peek),
        CASE(test_address_that_nobody_has_is_refused_before_anything_is_taken),
        CASE(test_bad_name_or_control_pointer),
        CASE(test_a_call_that_does_not_wait_finds_what_came_while_another_thread_drives),
        CASE(test_connected_socket_hears_only_its_peer),
        CASE(test_what_lies_behind_what_is_others_is_found),
        CASE(test_groups_pass_their_filter_only),
        CASE(test_full_queue_drops_and_tells),
        CASE(test_rx_opts_come_as_control_messages),
        CASE(test_first_empty_look_asks_the_shadow),
        CASE(test_shadow_comes_first_while_it_has_attention),
        CASE(test_shadow_is_asked_again_after_twenty_microseconds),
        CASE(test_socket_without_rings_is_the_shadows),
        CASE(test_inherited_socket_is_taken_up_by_its_first_receive),
        CASE(test_blocking_receive_waits_for_the_link),
        CASE(test_blocking_receive_waits_for_the_shadow_as_well),
        CASE(test_blocking_receive_sleeps_beside_an_error_that_nobody_takes),
        CASE(test_receive_timeout_ends_with_eagain),
        CASE(test_shutdown_ends_a_blocking_receive_with_nothing),
        CASE(test_handler_ends_a_receive_unless_it_restarts),
        CASE(test_poll_tells_what_is_queued),
};

FIXTURE_MAIN(tests)
