/*
 * Threads send over one socket, connected and not, while its options and the path change under them and what is
 * replaced is freed: every frame that leaves is whole, and belongs to one state or another of path and options.
 * STRESS_SECONDS.
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "fake_net.h"

enum { SENDERS = 2, PORT = 9000, BACKLOG_MAX = 128 };

static struct udp_sock *sock;
static _Atomic bool stop;
static _Atomic uint64_t accepted;
static _Atomic uint64_t received; /* by the peer */
static _Atomic unsigned bad_frames;

struct load {
	uint32_t number, inverse;
};

/* The MAC's last byte and the TTL are moved in step: 10, 20, 30, or 40 each. */
static bool sink_check_numbered_frame(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	const uint8_t *frame = (uint8_t *)vma_buf_data(vma_engine_get_or_start()->arena, packet);
	struct load load;

	(void)flow;
	memcpy(&load, frame + 42, sizeof(load));
	if (packet->payload_len != sizeof(load) || load.inverse != ~load.number || frame[5] % 10 != 0 ||
	    info->ttl % 10 != 0)
		atomic_fetch_add(&bad_frames, 1);
	fixture.frames++;
	atomic_fetch_add(&received, 1);
	vma_buf_put(vma_engine_get_or_start()->arena, packet);
	return true;
}

static ssize_t send_numbered_datagram(const struct sockaddr_in *to, uint32_t number)
{
	struct {
		struct msghdr msg;
		struct iovec iov;
		struct load load;
	} own = {.load = {.number = number, .inverse = ~number}};
	struct vma_thread *self = vma_enter();
	ssize_t len;

	own.iov = (struct iovec){.iov_base = &own.load, .iov_len = sizeof(own.load)};
	own.msg = (struct msghdr){.msg_iov = &own.iov, .msg_iovlen = 1};
	own.msg.msg_name = (void *)to;
	own.msg.msg_namelen = to != NULL ? sizeof(*to) : 0;
	len = udp_sendmsg(&sock->file, fixture_fd(sock), &own.msg, MSG_DONTWAIT);
	vma_leave(self);
	return len;
}

static void *send_load_until_stop_thread(void *arg)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	bool connected = *(unsigned *)arg == 0;
	uint32_t number = 0;

	memcpy(&to.sin_addr, fixture_remote, 4);
	while (!atomic_load(&stop)) {
		ssize_t len;

		/* A peer that is held up for long would have no buffers left, and lose what comes. */
		if ((int64_t)(atomic_load(&accepted) - atomic_load(&received)) > BACKLOG_MAX) {
			sched_yield();
			continue;
		}
		len = send_numbered_datagram(connected ? NULL : &to, number++);

		if (len == sizeof(struct load))
			atomic_fetch_add(&accepted, 1);
		else if (len == -EAGAIN)
			sched_yield();
	}
	return NULL;
}

static void set_ttl_and_reset_destinations(uint8_t ttl)
{
	struct vma_thread *self = vma_enter();

	pthread_mutex_lock(&sock->file.lock);
	sock->ttl = ttl;
	udp_dst_rebuild_after_change(sock);
	pthread_mutex_unlock(&sock->file.lock);
	vma_run_due_deferred_frees();
	vma_leave(self);
}

static void change_fake_path_until_end(time_t end)
{
	uint8_t step = 0;

	do {
		step = (uint8_t)(step % 40 + 10);
		fake_net_change(bytes[5], step);
		while (fixture_peer_receive() > 0)
			;
		if (step == 20)
			set_ttl_and_reset_destinations((uint8_t)(step + 10));
		fixture_peer_receive();
		usleep(200);
	} while (vma_test_goes_on((uint64_t)time(NULL) * 1000000000, (uint64_t)end * 1000000000,
	                          atomic_load(&accepted) > 100));
}

static void setup_connected_socket_and_checking_peer(void)
{
	fake_net_reset();
	fake_net.known = true;
	fake_net.template.bytes[5] = 10;
	udp_fixture_peer_listen(PORT);
	fixture.peer_flow.sink = sink_check_numbered_frame;
	sock = udp_fixture_socket(true);
	sock->ttl = 10;
	sock->peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT)};
	memcpy(&sock->peer.sin_addr, fixture_remote, 4);
	atomic_store(&sock->connected, true);
	set_ttl_and_reset_destinations(10);
}

static void test_frames_are_whole_while_everything_changes(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	unsigned numbers[SENDERS];
	pthread_t senders[SENDERS];
	(void)state;
	setup_connected_socket_and_checking_peer();
	for (unsigned i = 0; i < SENDERS; i++) {
		numbers[i] = i;
		assert_int_equal(pthread_create(&senders[i], NULL, send_load_until_stop_thread, &numbers[i]), 0);
	}
	change_fake_path_until_end(time(NULL) + (seconds != NULL ? atoi(seconds) : 1));
	atomic_store(&stop, true);
	for (unsigned i = 0; i < SENDERS; i++)
		pthread_join(senders[i], NULL);
	vma_ring_flush_tx(fixture.ring_ctx->ring);
	assert_int_equal(atomic_load(&bad_frames), 0);
	assert_true(atomic_load(&accepted) > 100);
	/* Nothing was lost in silence. (What went to the shadow was refused there: it has no way to that address.) */
	fixture_wait_until((fixture_peer_receive(), fixture.frames == atomic_load(&accepted)));
	fixture_close(sock);
	vma_ring_detach_flow(fixture.peer, &fixture.peer_flow);
	fixture_wait_until((vma_run_due_deferred_frees(), atomic_load(&fake_net.held) == 0));
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_frames_are_whole_while_everything_changes)};

FIXTURE_MAIN(tests)
