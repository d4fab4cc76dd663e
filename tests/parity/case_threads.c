/* Threads: several in one socket, one that closes what another waits for, exit while others work. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "parity.h"

static int the_socket, threads_epoll_set;
static atomic_int received, wrong;

static int threads_open_offloaded_udp_socket(void)
{
	int s = udp_socket_bound_to(here, 0);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	return s;
}

static void *thread_receive_until_empty_datagram(void *arg)
{
	char bytes[64];

	(void)arg;
	for (;;) {
		ssize_t len = recv(the_socket, bytes, sizeof(bytes), 0);

		/* An empty datagram for each is the end. */
		if (len == 0)
			return NULL;
		if (len != 32 || seed_of_payload(bytes, 32) < 0)
			atomic_fetch_add(&wrong, 1);
		atomic_fetch_add(&received, 1);
	}
}

CASE(threads_receive, "eight threads receive on one socket: each datagram goes to one of them")
{
	pthread_t threads[8];

	the_socket = threads_open_offloaded_udp_socket();
	set_int(the_socket, SOL_SOCKET, SO_RCVBUFFORCE, 8000000);
	save_kernel_udp_counters();
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, thread_receive_until_empty_datagram, NULL);
	peer(far(), "send 0 %s %d 32 0 2000 20", here, port_of(the_socket));
	pause_ms(50);
	peer(far(), "send 0 %s %d 0 0 8 1000", here, port_of(the_socket));
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	check_kernel_udp_was_bypassed(2000, 0);
	say("%d received, %d wrong", atomic_load(&received), atomic_load(&wrong));
}

static void *thread_send_500_datagrams(void *arg)
{
	char bytes[32];

	fill(bytes, sizeof(bytes), (int)(intptr_t)arg);
	for (int i = 0; i < 500; i++)
		if (send(the_socket, bytes, sizeof(bytes), 0) != sizeof(bytes))
			atomic_fetch_add(&wrong, 1);
	return NULL;
}

CASE(threads_send, "eight threads send on one socket: all arrives, whole")
{
	pthread_t threads[8];
	char answer[64];

	the_socket = udp_socket_connected_to(there, peer_ask_to_open_socket(far(), 0, there, 0));
	peer(far(), "opt 0 1 33 8000000");
	expect_offloaded(the_socket);
	warm_up_until_offloaded_send(the_socket, NULL, 0);
	save_kernel_udp_counters();
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, thread_send_500_datagrams, (void *)(intptr_t)i);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	snprintf(answer, sizeof(answer), "%s", peer(far(), "count 0 4000 0 500"));
	say("%d failed, %d came", atomic_load(&wrong), atoi(answer));
	check_kernel_udp_was_bypassed(0, 4000);
}

static void *receive_one(void *arg)
{
	char bytes[64];

	(void)arg;
	result("recv in a thread", recv(the_socket, bytes, sizeof(bytes), 0));
	return NULL;
}

static void *thread_receive_and_count_one(void *arg)
{
	char bytes[64];

	(void)arg;
	atomic_fetch_add(&received, recv(the_socket, bytes, sizeof(bytes), 0) == 20);
	return NULL;
}

CASE(threads_close_while_receiving, "a socket is closed while a thread waits in recv: as with the kernel, it waits on")
{
	pthread_t thread;
	int port;

	the_socket = threads_open_offloaded_udp_socket();
	port = port_of(the_socket);
	pthread_create(&thread, NULL, receive_one, NULL);
	pause_ms(100);
	SAY_RESULT(close_fd_in_use_without_tsan_report(the_socket));
	pause_ms(50);
	peer_send(far(), 0, here, port, 20, 1);
	pthread_join(thread, NULL);
}

CASE(threads_shutdown_while_receiving, "shutdown ends the recv of another thread")
{
	pthread_t thread;

	the_socket = udp_socket_connected_to(there, peer_ask_to_open_socket(far(), 0, there, 0));
	expect_offloaded(the_socket);
	pthread_create(&thread, NULL, receive_one, NULL);
	pause_ms(100);
	if (shutdown(the_socket, SHUT_RD) != 0)
		say("shutdown: %s", error_name(errno));
	pthread_join(thread, NULL);
	pthread_create(&thread, NULL, receive_one, NULL);
	pthread_join(thread, NULL);
}

static void *say_epoll_wait_in_thread(void *arg)
{
	struct epoll_event got = {0};
	int n = epoll_wait(threads_epoll_set, &got, 1, 2000);

	(void)arg;
	say("epoll_wait in a thread = %d, events %x of %lu", n, got.events, (unsigned long)got.data.u64);
	return NULL;
}

CASE(threads_add_while_waiting, "a socket is added to a set while a thread waits for it")
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
	pthread_t thread;
	int s = threads_open_offloaded_udp_socket();

	threads_epoll_set = epoll_create1(0);
	pthread_create(&thread, NULL, say_epoll_wait_in_thread, NULL);
	pause_ms(100);
	SAY_RESULT(epoll_ctl(threads_epoll_set, EPOLL_CTL_ADD, s, &event));
	pause_ms(50);
	peer_send(far(), 0, here, port_of(s), 20, 1);
	pthread_join(thread, NULL);
	take(s, 0, 0);
	pthread_create(&thread, NULL, say_epoll_wait_in_thread, NULL);
	pause_ms(100);
	peer_send(far(), 0, here, port_of(s), 20, 2);
	pthread_join(thread, NULL);
}

CASE(threads_bind_while_waiting, "a socket is bound and connected while a thread waits in recv")
{
	struct sockaddr_in address = ipv4_sockaddr_of(here, 7500);
	pthread_t thread;

	the_socket = udp_socket();
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	pthread_create(&thread, NULL, receive_one, NULL);
	pause_ms(100);
	SAY_RESULT(bind(the_socket, (struct sockaddr *)&address, sizeof(address)));
	expect_offloaded(the_socket);
	peer_send(far(), 0, here, 7500, 20, 1);
	pthread_join(thread, NULL);
}

static void *say_poll_in_thread(void *arg)
{
	struct pollfd p = {.fd = the_socket, .events = POLLIN};

	(void)arg;
	result("poll in a thread", poll(&p, 1, 2000));
	return NULL;
}

CASE(threads_all_woken, "a datagram wakes every thread that polls for it")
{
	pthread_t threads[4];

	the_socket = threads_open_offloaded_udp_socket();
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, say_poll_in_thread, NULL);
	pause_ms(150);
	peer_send(far(), 0, here, port_of(the_socket), 20, 1);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

static void *thread_poll_and_count_failure(void *arg)
{
	struct pollfd p = {.fd = the_socket, .events = POLLIN};

	(void)arg;
	atomic_fetch_add(&wrong, poll(&p, 1, 2000) != 1);
	return NULL;
}

static void *send_and_receive_for_ever(void *arg)
{
	char bytes[64];

	(void)arg;
	for (;;) {
		send(the_socket, bytes, sizeof(bytes), 0);
		recv(the_socket, bytes, sizeof(bytes), MSG_DONTWAIT);
	}
	return NULL;
}

CASE(threads_exit_while_busy, "exit while other threads send and receive is orderly")
{
	pthread_t threads[3];

	the_socket = udp_socket_connected_to(there, peer_ask_to_open_socket(far(), 0, there, 0));
	expect_offloaded(the_socket);
	for (int i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, i < 2 ? send_and_receive_for_ever : receive_one, NULL);
	pause_ms(50);
	say("exits");
	exit(0);
}

CASE(threads_end, "threads that used sockets come and go, 200 of them")
{
	pthread_t thread;

	the_socket = threads_open_offloaded_udp_socket();
	for (int i = 0; i < 200; i++) {
		peer_send(far(), 0, here, port_of(the_socket), 20, i % 64);
		pthread_create(&thread, NULL, i % 2 == 0 ? thread_receive_and_count_one : thread_poll_and_count_failure,
		               NULL);
		pthread_join(thread, NULL);
		if (i % 2 != 0)
			thread_receive_and_count_one(NULL);
	}
	say("%d received, %d not polled", atomic_load(&received), atomic_load(&wrong));
}
