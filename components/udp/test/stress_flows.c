/*
 * Sockets come and go on one key, connect, share the port, join and leave, while two threads drive the ring and one
 * receives: nobody sees a choice, a queue or a membership that has ended (the sanitizers would tell), the socket that
 * stays is served to the end, and the tables are empty then. STRESS_SECONDS, default 1.
 */
#include "control_fixture.h"

enum { PORT = 36800, CHANGERS = 2 };

static _Atomic bool stress_is_over;
static _Atomic uint64_t received, changes;

static void *drive_all_rings_until_over_thread(void *arg)
{
	(void)arg;
	while (!atomic_load(&stress_is_over)) {
		struct vma_thread *self = vma_enter();

		vma_ring_ctxs_progress(UINT64_MAX);
		vma_leave(self);
		usleep(20);
	}
	return NULL;
}

static uint64_t receive_and_count_all_datagrams(int fd)
{
	char text[64];
	struct iovec iov = {.iov_base = text, .iov_len = sizeof(text)};
	uint64_t n = 0;

	for (;;) {
		struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
		struct vma_thread *self = vma_enter();
		ssize_t len = udp_recvmsg(vma_fd_lookup(fd), fd, &msg, MSG_DONTWAIT);

		vma_leave(self);
		if (len < 0)
			return n;
		n++;
	}
}

/* One life of a socket that shares the port, with everything that moves flows in it. */
static void open_use_and_close_sharing_socket(unsigned what)
{
	int fd = fixture_open_offloaded_udp_socket();

	control_fixture_setsockopt_int(fd, SOL_SOCKET, what % 2 != 0 ? SO_REUSEPORT : SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
	if (control_fixture_bind_to(fd, what % 3 != 0 ? "10.77.0.1" : "0.0.0.0", PORT) != 0) {
		control_fixture_close(fd);
		return;
	}
	if (what % 5 == 0)
		set_socket_as_if_connected(fd, "10.77.0.2", 7000);
	if (what % 3 == 0)
		control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.8.0.1");
	atomic_fetch_add(&received, receive_and_count_all_datagrams(fd));
	if (what % 5 == 0)
		set_socket_as_if_connected(fd, "", 0);
	if (what % 7 == 0)
		control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_PEEK_OFF, 0);
	if (what % 6 == 0)
		control_fixture_set_membership(fd, IP_DROP_MEMBERSHIP, "239.8.0.1");
	atomic_fetch_add(&received, receive_and_count_all_datagrams(fd));
	control_fixture_close(fd);
	atomic_fetch_add(&changes, 1);
}

static void *churn_sharing_sockets_until_over_thread(void *arg)
{
	for (unsigned what = (unsigned)(uintptr_t)arg; !atomic_load(&stress_is_over); what += CHANGERS)
		open_use_and_close_sharing_socket(what);
	return NULL;
}

static unsigned flows_stress_seconds_from_env(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return text != NULL ? (unsigned)atoi(text) : 1;
}

static void test_flows_change_under_traffic(void **state)
{
	pthread_t drivers[2], changers[CHANGERS];
	uint64_t end = vma_now_ns() + flows_stress_seconds_from_env() * 1000000000ULL, sent = 0;
	int stays = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(stays, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(stays, SOL_SOCKET, SO_REUSEPORT, 1);
	assert_int_equal(control_fixture_bind_to(stays, "10.77.0.1", PORT), 0);
	for (int i = 0; i < 2; i++)
		pthread_create(&drivers[i], NULL, drive_all_rings_until_over_thread, NULL);
	for (uintptr_t i = 0; i < CHANGERS; i++)
		pthread_create(&changers[i], NULL, churn_sharing_sockets_until_over_thread, (void *)i);
	while (vma_test_goes_on(vma_now_ns(), end, atomic_load(&changes) > 0 && atomic_load(&received) > 0)) {
		for (unsigned i = 0; i < 8; i++)
			peer_send("10.77.0.2", (uint16_t)(7000 + (sent + i) % 16), i == 7 ? "239.8.0.1" : "10.77.0.1",
			          PORT, "x");
		sent += 8;
		atomic_fetch_add(&received, receive_and_count_all_datagrams(stays));
		usleep(200);
	}
	atomic_store(&stress_is_over, true);
	for (int i = 0; i < 2; i++)
		pthread_join(drivers[i], NULL);
	for (int i = 0; i < CHANGERS; i++)
		pthread_join(changers[i], NULL);
	atomic_fetch_add(&received, receive_and_count_all_datagrams(stays));
	assert_true(atomic_load(&changes) > 0);
	assert_true(atomic_load(&received) > 0);
	/* Now nothing changes, and nothing may be lost. */
	peer_send("10.77.0.2", 7000, "10.77.0.1", PORT, "the end");
	assert_string_equal(control_fixture_receive(stays), "the end");
	assert_int_equal(control_fixture_reason(stays), VMA_SOCK_OFFLOADED);
	control_fixture_close(stays);
	for (unsigned i = 0; i < UDP_PORTS; i++) {
		assert_null(udp_ports[i].endpoints);
		assert_null(udp_ports[i].flows);
	}
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_flows_change_under_traffic)};

FIXTURE_MAIN("stress_flows", tests)
