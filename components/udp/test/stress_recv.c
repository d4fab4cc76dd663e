/*
 * Several threads receive from one socket, each driving its ring, some peeking; the peer sends without a pause. Every
 * datagram comes to exactly one of them, whole, and every buffer goes home. STRESS_SECONDS.
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "fixture.h"

enum { READERS = 3, PEER = 9000, ROUND = 4096 };

static struct udp_sock *sock;
static struct fixture_attached attached;
static _Atomic uint32_t got[ROUND];
static _Atomic unsigned total;
static _Atomic bool stop;

struct load {
	uint32_t number, inverse;
	uint8_t more[56];
};

static ssize_t recv_receive(struct load *load, int flags)
{
	struct {
		struct msghdr msg;
		struct iovec iov;
	} own = {.iov = {.iov_base = load, .iov_len = sizeof(*load)}};
	struct vma_thread *self = vma_enter();
	ssize_t len;

	own.msg.msg_iov = &own.iov;
	own.msg.msg_iovlen = 1;
	len = udp_recvmsg(&sock->file, fixture_fd(sock), &own.msg, flags | MSG_DONTWAIT);
	vma_leave(self);
	return len;
}

static void abort_if_load_is_corrupt(const struct load *load, ssize_t len)
{
	if (len != sizeof(*load) || load->inverse != ~load->number || load->more[0] != (uint8_t)load->number ||
	    load->more[55] != (uint8_t)load->number)
		abort();
}

static void *receive_and_check_until_stop_thread(void *arg)
{
	unsigned looks = 0, reader = *(unsigned *)arg;
	struct load load;

	while (!atomic_load(&stop)) {
		bool peek = reader == 0 && looks++ % 8 == 0;
		ssize_t len = recv_receive(&load, peek ? MSG_PEEK : 0);

		if (len == -EAGAIN) {
			sched_yield();
			continue;
		}
		abort_if_load_is_corrupt(&load, len);
		if (!peek) {
			atomic_fetch_add(&got[load.number % ROUND], 1);
			atomic_fetch_add(&total, 1);
		}
	}
	return NULL;
}

static void peer_send_numbered_load(uint32_t number)
{
	struct load load = {.number = number, .inverse = ~number};

	memset(load.more, (uint8_t)number, sizeof(load.more));
	udp_fixture_peer_send(PEER, fixture_port(sock), &load, sizeof(load));
}

/* The wire loses nothing as long as its lane has room. */
static void peer_send_round_of_datagrams(unsigned so_far)
{
	for (uint32_t i = 0; i < ROUND; i++) {
		while (so_far + i - atomic_load(&total) > 200)
			sched_yield();
		peer_send_numbered_load(i);
	}
}

static void test_every_datagram_comes_to_one_reader(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	time_t end = time(NULL) + (seconds != NULL ? atoi(seconds) : 1);
	unsigned numbers[READERS], rounds = 0;
	pthread_t readers[READERS];

	(void)state;
	sock = udp_fixture_socket(true);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
	atomic_store(&sock->rcvbuf, 1 << 30);
	for (unsigned i = 0; i < READERS; i++) {
		numbers[i] = i;
		assert_int_equal(pthread_create(&readers[i], NULL, receive_and_check_until_stop_thread, &numbers[i]),
		                 0);
	}
	do {
		peer_send_round_of_datagrams(rounds++ * ROUND);
		fixture_wait_until(atomic_load(&total) == rounds * ROUND);
	} while (time(NULL) < end);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	for (unsigned i = 0; i < ROUND; i++)
		assert_int_equal(atomic_load(&got[i]), rounds);
	assert_true(udp_queue_is_empty(&attached.at.queue));
	fixture_detach_udp_flow(&attached);
	fixture_close(sock);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_datagram_comes_to_one_reader)};

FIXTURE_MAIN(tests)
