/* tcp_close: the end of connections: FIN, RST, halves, errors and their order, linger, signals. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

static char bytes[1 << 20];
static volatile sig_atomic_t pipes;

static void tcp_close_count_sigpipe(int sig)
{
	(void)sig;
	pipes++;
}

static void far_peer_resets(void)
{
	peer(far(), "reset 1");
	wait_until_sent_packets_arrived(50);
}

CASE(tcp_close_delivers, "what was written just before close arrives, then the end")
{
	int s = tcp_connected_to_far_peer();

	for (int i = 0; i < 10; i++)
		fill(bytes + i * 20000, 20000, i);
	kernel_segments_wait_idle_and_start_count();
	peer(far(), "later 100 state 1");
	SAY_RESULT(write(s, bytes, 200000));
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 20000, 0, 10);
	say_far_peer_reads(1, 1, 0, 1);
	check_kernel_segments_were_bypassed();
}

/* The peer reads meanwhile: the process waits for that, but not for ever. */
CASE(tcp_exit_delivers, "what was written just before exit arrives, then the end")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), status = 0;
	pid_t child = fork();

	if (child == 0) {
		int s = tcp_socket_connected_to(there, port);

		for (int i = 0; i < 10; i++)
			fill(bytes + i * 20000, 20000, i);
		exit(write(s, bytes, 200000) == 200000 ? 0 : 1);
	}
	peer(far(), "accept 0 1 3000");
	say_far_peer_reads(1, 20000, 0, 10);
	say_far_peer_reads(1, 1, 0, 1);
	waitpid(child, &status, 0);
	say("status %d", status);
}

static void *tcp_close_keep_writing_thread(void *arg)
{
	int s = *(const int *)arg;

	for (int i = 0; i < 1000; i++) {
		if (write(s, "0123456789", 10) != 10)
			break;
		sched_yield();
	}
	pause();
	return NULL;
}

static void *read_until_end(void *arg)
{
	char byte;

	while (read(*(const int *)arg, &byte, 1) > 0)
		;
	return NULL;
}

CASE(tcp_exit_among_threads, "exit while threads write and read is orderly, and the peer sees the end")
{
	int s = tcp_connected_to_far_peer();
	pid_t child = fork();
	int status = 0;

	if (child == 0) {
		pthread_t thread;
		int own = tcp_socket_connected_to(there, atoi(peer(far(), "listen 0 %s 0", there)));

		for (int i = 0; i < 4; i++)
			pthread_create(&thread, NULL, tcp_close_keep_writing_thread, &own);
		pthread_create(&thread, NULL, read_until_end, &own);
		pause_ms(5);
		exit(7);
	}
	waitpid(child, &status, 0);
	say("status %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	say_far_peer_state(1);
	SAY_RESULT(close(s));
}

CASE(tcp_end_of_stream, "the peer closes: what it wrote is read, then the end; events tell")
{
	int s = tcp_connected_to_far_peer();

	wait_and_print_poll_events("connected", s, POLLOUT, 100);
	far_peer_writes(1, 100, 1, 1);
	far_peer_shuts_down(1, SHUT_WR);
	wait_and_print_poll_events("closed by the peer", s, POLLRDHUP, 1000);
	recv_and_print_result(s, 100, MSG_WAITALL);
	recv_and_print_result(s, 100, 0);
	recv_and_print_result(s, 100, 0);
	send_pattern_and_print_result(s, 50, 2, 0);
	say_far_peer_reads(1, 50, 2, 1);
	SAY_RESULT(shutdown(s, SHUT_WR));
	wait_until_sent_packets_arrived(50);
	wait_and_print_poll_events("both closed", s, POLLHUP, 1000);
	send_pattern_and_print_result(s, 50, 2, MSG_NOSIGNAL);
	SAY_RESULT(shutdown(s, SHUT_WR));
	SAY_RESULT(shutdown(s, SHUT_RDWR));
	say_peer_address("peer", s);
	say_so_error(s);
	close(s);
}

CASE(tcp_half_close, "shutdown(SHUT_WR): the peer sees the end and goes on writing; select says readable, not writable")
{
	int s = tcp_connected_to_far_peer();

	send_pattern_and_print_result(s, 10, 1, 0);
	SAY_RESULT(shutdown(s, SHUT_WR));
	wait_and_print_poll_events("half closed", s, POLLIN, 50);
	say_far_peer_reads(1, 10, 1, 1);
	say_far_peer_reads(1, 1, 0, 1);
	far_peer_writes(1, 1000, 2, 3);
	for (int i = 0; i < 3; i++)
		recv_and_print_result(s, 1000, MSG_WAITALL);
	signal(SIGPIPE, tcp_close_count_sigpipe);
	send_pattern_and_print_result(s, 10, 1, 0);
	say("SIGPIPE %d", (int)pipes);
	far_peer_shuts_down(1, SHUT_WR);
	recv_and_print_result(s, 10, 0);
	close(s);
}

CASE(tcp_shutdown_read, "shutdown(SHUT_RD): reads end, what comes later is dropped or not as the kernel does")
{
	int s = tcp_connected_to_far_peer();

	far_peer_writes(1, 100, 1, 1);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(shutdown(s, SHUT_RD));
	wait_and_print_poll_events("read side closed", s, POLLIN, 100);
	recv_and_print_result(s, 100, 0);
	recv_and_print_result(s, 100, MSG_DONTWAIT);
	far_peer_writes(1, 100, 2, 1);
	wait_until_sent_packets_arrived(50);
	recv_and_print_result(s, 100, MSG_DONTWAIT);
	send_pattern_and_print_result(s, 10, 1, 0);
	say_far_peer_reads(1, 10, 1, 1);
	close(s);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(tcp_reset_by_peer,
     "a reset: what was read before is lost or not as the kernel does, ECONNRESET once, then the end")
{
	int s = tcp_connected_to_far_peer();

	far_peer_resets();
	wait_and_print_poll_events("reset", s, POLLERR, 1000);
	recv_and_print_result(s, 10, 0);
	recv_and_print_result(s, 10, 0);
	signal(SIGPIPE, tcp_close_count_sigpipe);
	send_pattern_and_print_result(s, 10, 1, 0);
	say("SIGPIPE %d", (int)pipes);
	say_so_error(s);
	say_peer_address("peer", s);
	SAY_RESULT(shutdown(s, SHUT_RDWR));
	close(s);
}

CASE(tcp_reset_with_data, "a reset after data that was not read yet")
{
	int s = tcp_connected_to_far_peer();

	far_peer_writes(1, 100, 1, 1);
	wait_until_sent_packets_arrived(30);
	far_peer_resets();
	wait_and_print_poll_events("reset", s, POLLERR, 1000);
	recv_and_print_result(s, 100, 0);
	recv_and_print_result(s, 100, 0);
	recv_and_print_result(s, 100, 0);
	close(s);
}

CASE(tcp_reset_tells_so_error, "SO_ERROR takes the error of a reset")
{
	int s = tcp_connected_to_far_peer();

	far_peer_resets();
	say_so_error(s);
	say_so_error(s);
	recv_and_print_result(s, 10, 0);
	send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	close(s);
}

CASE(tcp_reset_tells_writer, "a writer is told of a reset first by ECONNRESET, then by EPIPE")
{
	int s = tcp_connected_to_far_peer();

	far_peer_resets();
	send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	signal(SIGPIPE, tcp_close_count_sigpipe);
	send_pattern_and_print_result(s, 10, 1, 0);
	say("SIGPIPE %d", (int)pipes);
	close(s);
}

CASE(tcp_close_unread, "close with data that was not read resets the peer")
{
	int s = tcp_connected_to_far_peer();

	far_peer_writes(1, 100, 1, 1);
	wait_until_sent_packets_arrived(50);
	close(s);
	wait_until_sent_packets_arrived(50);
	say_far_peer_reads(1, 1, 0, 1);
	s = tcp_connected_to_far_peer();
	close(s);
	say_far_peer_reads(1, 1, 0, 1);
	say("the peer writes: %s",
	    (peer(far(), "write 1 10 1 1"), wait_until_sent_packets_arrived(50), peer(far(), "write 1 10 1 1")));
}

CASE(tcp_linger_zero, "SO_LINGER of zero resets at close")
{
	int s = tcp_connected_to_far_peer();
	struct linger linger = {.l_onoff = 1, .l_linger = 0};

	send_pattern_and_print_result(s, 10, 1, 0);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 10, 1, 1);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(tcp_linger_waits, "SO_LINGER waits in close until the peer has acknowledged all, or for its time")
{
	int s = tcp_connected_to_far_peer();
	struct linger linger = {.l_onoff = 1, .l_linger = 1};
	uint64_t since;

	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	send_pattern_and_print_result(s, 1000, 1, 0);
	since = now_ms();
	SAY_RESULT(close(s));
	say_took_about("closed", since, 0);
	say_far_peer_reads(1, 1000, 1, 1);
	say_far_peer_reads(1, 1, 0, 1);
}

static void *recv_one_byte_and_say_thread(void *arg)
{
	char c;
	ssize_t n = recv(*(int *)arg, &c, 1, 0);

	if (n < 0)
		say("reader: %s", error_name(errno));
	else
		say("reader: %s", n == 0 ? "the end" : "a byte");
	return NULL;
}

CASE(tcp_shutdown_wakes_reader, "shutdown in another thread ends a read that waits")
{
	int s = tcp_connected_to_far_peer(), rc;
	pthread_t thread;

	pthread_create(&thread, NULL, recv_one_byte_and_say_thread, &s);
	pause_ms(100);
	rc = shutdown(s, SHUT_RD);
	pthread_join(thread, NULL);
	say("shutdown: %d", rc);
	close(s);
}

CASE(tcp_reset_wakes_reader, "a reset ends a read that waits")
{
	int s = tcp_connected_to_far_peer();
	pthread_t thread;

	pthread_create(&thread, NULL, recv_one_byte_and_say_thread, &s);
	pause_ms(100);
	peer(far(), "reset 1");
	pthread_join(thread, NULL);
	close(s);
}

CASE(tcp_reset_wakes_writer, "a reset ends a write that waits")
{
	int s = tcp_connected_to_far_peer();
	ssize_t n;

	signal(SIGPIPE, SIG_IGN);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 20000));
	peer(far(), "later 200 reset 1");
	do
		n = write(s, bytes, sizeof(bytes));
	while (n == (ssize_t)sizeof(bytes));
	if (n >= 0)
		n = write(s, bytes, sizeof(bytes));
	say("writer: %s", n < 0 ? error_name(errno) : "went on");
	SAY_RESULT(write(s, bytes, 1));
	close(s);
}

CASE(tcp_simultaneous_close, "both close at the same time")
{
	for (int i = 0; i < 5; i++) {
		int s = tcp_connected_to_far_peer();

		peer(far(), "later 5 close 1");
		pause_ms(5);
		SAY_RESULT(close(s));
		pause_ms(20);
	}
}

CASE(tcp_port_again, "the address of a connection that this side closed can be listened at anew, with SO_REUSEADDR")
{
	int l, s = tcp_accepted_from_far_peer(&l), port = port_of(l);

	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
	peer(far(), "close 1");
	SAY_RESULT(close(l));
	l = tcp_socket();
	{
		struct sockaddr_in address = ipv4_sockaddr_of(here, port);

		SAY_RESULT(bind(l, (struct sockaddr *)&address, sizeof(address)));
		SAY_RESULT(set_int(l, SOL_SOCKET, SO_REUSEADDR, 1));
		SAY_RESULT(bind(l, (struct sockaddr *)&address, sizeof(address)));
		SAY_RESULT(listen(l, 5));
	}
	expect_offloaded(l);
	close(l);
}

CASE(tcp_connect_close_many, "a hundred connections, one after the other, each with a question and an answer")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), good = 0;

	kernel_segments_wait_idle_and_start_count();
	for (int i = 0; i < 100; i++) {
		struct sockaddr_in address = ipv4_sockaddr_of(there, port);
		int s = tcp_socket();

		if (connect(s, (struct sockaddr *)&address, sizeof(address)) != 0)
			say("connect %d: %s", i, error_name(errno));
		peer(far(), "accept 0 1 2000");
		if (send(s, bytes, 100, 0) == 100)
			far_peer_writes(1, 50, i % 64, 1);
		if (recv(s, bytes, 50, MSG_WAITALL) == 50 && seed_of_payload(bytes, 50) == i % 64)
			good++;
		peer(far(), "close 1");
		close(s);
	}
	say("%d good ones", good);
	check_kernel_segments_were_bypassed();
}

CASE(tcp_linger_nonblocking, "SO_LINGER waits in close of a non-blocking socket, too")
{
	struct linger linger = {.l_onoff = 1, .l_linger = 1};
	int s = tcp_connected_to_far_peer();
	uint64_t since;

	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	while (write(s, bytes, sizeof(bytes)) > 0)
		pause_ms(1);
	since = now_ms();
	SAY_RESULT(close(s));
	say_took_about("closed", since, 1000);
	s = tcp_connected_to_far_peer();
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	SAY_RESULT(write(s, bytes, 1000));
	since = now_ms();
	SAY_RESULT(close(s));
	say_took_about("closed with nothing in its way", since, 0);
}
