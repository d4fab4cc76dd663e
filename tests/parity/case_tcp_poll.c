/* tcp_poll: readiness of streams: epoll by level and edge, one-shot, select; signals; calls that are left by force. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include "parity.h"

static char bytes[1 << 20];

static void epoll_wait_and_say_events(const char *what, int set, int wait_ms)
{
	struct epoll_event events[4];
	int n = epoll_wait(set, events, 4, wait_ms);

	if (n < 0)
		say("%s: %s", what, error_name(errno));
	else if (n == 0)
		say("%s: nothing", what);
	for (int i = 0; i < n; i++)
		say("%s: %x data %lu", what, events[i].events, (unsigned long)events[i].data.u64);
}

static int create_epoll_set_watching(int s, unsigned events)
{
	struct epoll_event event = {.events = events, .data.u64 = 7};
	int set = epoll_create1(0);

	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	return set;
}

CASE(tcp_epoll_level, "level: readable as long as there are bytes, writable as long as there is room")
{
	int s = tcp_connected_to_far_peer(), set = create_epoll_set_watching(s, EPOLLIN | EPOLLOUT | EPOLLRDHUP);

	epoll_wait_and_say_events("fresh", set, 1000);
	far_peer_writes(1, 100, 1, 1);
	wait_until_sent_packets_arrived(50);
	epoll_wait_and_say_events("bytes", set, 1000);
	recv_and_print_result(s, 50, 0);
	epoll_wait_and_say_events("some left", set, 1000);
	recv_and_print_result(s, 50, 0);
	epoll_wait_and_say_events("none left", set, 1000);
	far_peer_shuts_down(1, SHUT_WR);
	wait_until_sent_packets_arrived(50);
	epoll_wait_and_say_events("closed by the peer", set, 1000);
	shutdown(s, SHUT_WR);
	wait_until_sent_packets_arrived(50);
	epoll_wait_and_say_events("closed by both", set, 1000);
	close(s);
	epoll_wait_and_say_events("gone", set, 50);
	close(set);
}

CASE(tcp_epoll_edge, "edge: told once of bytes, once of the end; acknowledgements are no events")
{
	int s = tcp_connected_to_far_peer(),
	    set = create_epoll_set_watching(s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);

	epoll_wait_and_say_events("fresh", set, 1000);
	epoll_wait_and_say_events("again", set, 50);
	send_pattern_and_print_result(s, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
	wait_until_sent_packets_arrived(80);
	epoll_wait_and_say_events("acknowledged", set, 50);
	far_peer_writes(1, 100, 1, 1);
	epoll_wait_and_say_events("bytes", set, 1000);
	epoll_wait_and_say_events("again", set, 50);
	far_peer_writes(1, 100, 2, 1);
	epoll_wait_and_say_events("more bytes", set, 1000);
	epoll_wait_and_say_events("again", set, 50);
	far_peer_shuts_down(1, SHUT_WR);
	epoll_wait_and_say_events("the end", set, 1000);
	epoll_wait_and_say_events("again", set, 50);
	close(s);
	close(set);
}

CASE(tcp_epoll_edge_room, "edge: a writer who found no room is told once when there is")
{
	int s = tcp_connected_to_far_peer(), set;

	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 40000));
	set = create_epoll_set_watching(s, EPOLLOUT | EPOLLET);
	epoll_wait_and_say_events("fresh", set, 1000);
	for (int i = 0; i < 3; i++) {
		while (write(s, bytes, 10000) > 0)
			;
		pause_ms(60);
	}
	while (epoll_wait(set, (struct epoll_event[1]){}, 1, 30) > 0)
		while (write(s, bytes, 10000) > 0)
			;
	epoll_wait_and_say_events("full", set, 50);
	peer(far(), "later 0 read 1 10000 70 1000 300");
	epoll_wait_and_say_events("room", set, 1000);
	say("written: %s", write(s, bytes, 100) == 100 ? "yes" : error_name(errno));
	close(s);
	close(set);
}

CASE(tcp_epoll_oneshot, "one-shot: told once, again after EPOLL_CTL_MOD")
{
	int s = tcp_connected_to_far_peer(), set = create_epoll_set_watching(s, EPOLLIN | EPOLLONESHOT);
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 8};

	far_peer_writes(1, 100, 1, 1);
	epoll_wait_and_say_events("bytes", set, 1000);
	epoll_wait_and_say_events("again", set, 50);
	far_peer_writes(1, 100, 2, 1);
	epoll_wait_and_say_events("more", set, 100);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_MOD, s, &event));
	epoll_wait_and_say_events("armed anew", set, 1000);
	close(s);
	close(set);
}

CASE(tcp_epoll_connecting, "a connect on its way in an epoll set: hung up before, writable then")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s = tcp_socket(), set;
	struct sockaddr_in address = ipv4_sockaddr_of(there, port), nobody = ipv4_sockaddr_of(there, 9);

	fcntl(s, F_SETFL, O_NONBLOCK);
	set = create_epoll_set_watching(s, EPOLLIN | EPOLLOUT | EPOLLET);
	epoll_wait_and_say_events("new", set, 50);
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	epoll_wait_and_say_events("connected", set, 1000);
	expect_offloaded(s);
	close(s);
	s = tcp_socket();
	fcntl(s, F_SETFL, O_NONBLOCK);
	SAY_RESULT(connect(s, (struct sockaddr *)&nobody, sizeof(nobody)));
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &(struct epoll_event){.events = EPOLLOUT, .data.u64 = 9}));
	epoll_wait_and_say_events("refused", set, 1000);
	close(s);
	close(set);
}

CASE(tcp_select, "select: readable, writable, exceptional")
{
	int s = tcp_connected_to_far_peer();
	struct timeval limit;
	fd_set in, out, except;

	for (int i = 0; i < 3; i++) {
		if (i == 1)
			far_peer_writes(1, 10, 1, 1);
		if (i == 2)
			peer(far(), "urgent 1 U");
		wait_until_sent_packets_arrived(50);
		FD_ZERO(&in);
		FD_ZERO(&out);
		FD_ZERO(&except);
		FD_SET(s, &in);
		FD_SET(s, &out);
		FD_SET(s, &except);
		limit = (struct timeval){.tv_sec = 1};
		SAY_RESULT(select(s + 1, &in, &out, &except, &limit));
		say("in %d out %d except %d", !!FD_ISSET(s, &in), !!FD_ISSET(s, &out), !!FD_ISSET(s, &except));
	}
	close(s);
}

static void tcp_poll_empty_alarm_handler(int sig)
{
	(void)sig;
}

/* What is to be interrupted may begin late, on a busy machine: the next one finds it. */
static void set_alarm_with_handler_flags(int flags)
{
	struct sigaction action = {.sa_handler = tcp_poll_empty_alarm_handler, .sa_flags = flags};

	sigaction(SIGALRM, &action, NULL);
	ualarm(100000, flags & SA_RESTART ? 0 : 100000);
}

static void tcp_poll_cancel_alarm(void)
{
	ualarm(0, 0);
}

CASE(tcp_signals, "a signal interrupts recv, send and connect; with SA_RESTART recv goes on")
{
	int s = tcp_connected_to_far_peer(), other = tcp_socket();
	struct sockaddr_in nobody = ipv4_sockaddr_of("10.9.0.99", 80);
	ssize_t n;

	set_alarm_with_handler_flags(0);
	recv_and_print_result(s, 10, 0);
	tcp_poll_cancel_alarm();
	set_alarm_with_handler_flags(SA_RESTART);
	peer(far(), "later 250 write 1 10 3");
	recv_and_print_result(s, 10, 0);
	set_int(s, SOL_SOCKET, SO_SNDBUF, 20000);
	set_alarm_with_handler_flags(0);
	n = write(s, bytes, sizeof(bytes));
	tcp_poll_cancel_alarm();
	say("write: %s", n > 0 && n < (ssize_t)sizeof(bytes) ? "a part" : n < 0 ? error_name(errno) : "all");
	run_shell_command_here(
	        "ip neigh replace 10.9.0.99 lladdr 02:00:00:00:00:99 dev $PARITY_IF_FIRST nud permanent");
	set_alarm_with_handler_flags(0);
	SAY_RESULT(connect(other, (struct sockaddr *)&nobody, sizeof(nobody)));
	tcp_poll_cancel_alarm();
	close(other);
	close(s);
}

static sigjmp_buf handler_jump_target;

static void tcp_poll_handler_jumps_out(int sig)
{
	(void)sig;
	siglongjmp(handler_jump_target, 1);
}

CASE(tcp_jump, "siglongjmp out of recv leaves the stream as it was")
{
	int s = tcp_connected_to_far_peer();

	signal(SIGALRM, tcp_poll_handler_jumps_out);
	if (sigsetjmp(handler_jump_target, 1) == 0) {
		ualarm(100000, 0);
		recv_and_print_result(s, 10, 0);
		say("not reached");
	}
	far_peer_writes(1, 10, 5, 1);
	recv_and_print_result(s, 10, MSG_WAITALL);
	send_pattern_and_print_result(s, 10, 6, 0);
	say_far_peer_reads(1, 10, 6, 1);
	close(s);
}

static void *block_in_recv_thread(void *arg)
{
	recv(*(int *)arg, bytes, 10, 0);
	return NULL;
}

CASE(tcp_cancel, "a thread is cancelled in recv; the stream goes on")
{
	int s = tcp_connected_to_far_peer();
	pthread_t thread;
	void *how = NULL;

	pthread_create(&thread, NULL, block_in_recv_thread, &s);
	pause_ms(100);
	pthread_cancel(thread);
	pthread_join(thread, &how);
	say("cancelled: %d", how == PTHREAD_CANCELED);
	far_peer_writes(1, 10, 5, 1);
	recv_and_print_result(s, 10, MSG_WAITALL);
	close(s);
}

static int handler_socket;

static void tcp_poll_send_from_handler(int sig)
{
	(void)sig;
	fill(bytes, 10, 9);
	if (write(handler_socket, bytes, 10) != 10)
		say("the handler could not write");
}

CASE(tcp_handler_sends, "a signal handler sends on the socket that the program waits on")
{
	/* Not signal(), whose flags ThreadSanitizer does not pass on. */
	struct sigaction action = {.sa_handler = tcp_poll_send_from_handler, .sa_flags = SA_RESTART};

	handler_socket = tcp_connected_to_far_peer();
	sigaction(SIGALRM, &action, NULL);
	ualarm(100000, 0);
	peer(far(), "later 250 write 1 10 3");
	recv_and_print_result(handler_socket, 10, 0);
	say_far_peer_reads(1, 10, 9, 1);
	close(handler_socket);
}

/* ---- O_ASYNC ---- */

static volatile sig_atomic_t told, sigio_code, sigio_fd, sigio_band;

static void sigio_handler(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (told == 0) {
		sigio_code = info->si_code;
		sigio_fd = info->si_fd;
		sigio_band = (int)info->si_band;
		told = sig;
	}
}

/* The first signal of several; of one that nobody has chosen only which it is. */
static void wait_for_signal_and_say(const char *what, int s, bool chosen)
{
	for (int i = 0; i < 100 && told == 0; i++)
		pause_ms(10);
	pause_ms(30);
	say("%s: %s", what, told == 0 ? "no signal" : strsignal(told));
	if (told != 0 && chosen)
		say("%s, code %d, band %#x", sigio_fd == s ? "of the socket" : "of another", (int)sigio_code,
		    (unsigned)sigio_band);
	told = 0;
}

CASE(tcp_async, "O_ASYNC: the owner's signal; the one of F_SETSIG says what is ready, and where")
{
	const struct f_owner_ex thread = {.type = F_OWNER_TID, .pid = gettid()};
	struct sigaction action = {.sa_sigaction = sigio_handler, .sa_flags = SA_SIGINFO | SA_RESTART};
	int s = tcp_connected_to_far_peer();

	sigaction(SIGIO, &action, NULL);
	sigaction(SIGURG, &action, NULL);
	sigaction(SIGRTMIN + 1, &action, NULL);
	SAY_RESULT(fcntl(s, F_SETOWN, getpid()));
	peer(far(), "urgent 1 U");
	wait_for_signal_and_say("an urgent byte", s, false);
	SAY_RESULT(fcntl(s, F_SETFL, O_ASYNC | O_NONBLOCK));
	far_peer_writes(1, 10, 1, 1);
	wait_for_signal_and_say("bytes", s, false);
	SAY_RESULT(fcntl(s, F_SETSIG, SIGRTMIN + 1));
	far_peer_writes(1, 10, 1, 1);
	wait_for_signal_and_say("bytes, by a signal of one's own", s, true);
	SAY_RESULT(fcntl(s, F_SETSIG, SIGIO));
	far_peer_writes(1, 10, 1, 1);
	wait_for_signal_and_say("bytes, by SIGIO as one's own", s, true);
	SAY_RESULT(fcntl(s, F_SETOWN_EX, &thread));
	far_peer_writes(1, 10, 1, 1);
	wait_for_signal_and_say("bytes, to a thread", s, true);
	SAY_RESULT(fcntl(s, F_SETSIG, 0));
	far_peer_writes(1, 10, 1, 1);
	wait_for_signal_and_say("bytes, to a thread, by SIGIO", s, false);
	SAY_RESULT(fcntl(s, F_SETSIG, SIGRTMIN + 1));
	SAY_RESULT(fcntl(s, F_SETOWN, 0));
	far_peer_writes(1, 10, 1, 1);
	wait_for_signal_and_say("bytes, to nobody", s, true);
	SAY_RESULT(fcntl(s, F_SETOWN, getpid()));
	far_peer_shuts_down(1, SHUT_WR);
	wait_for_signal_and_say("the end", s, true);
	peer(far(), "reset 1");
	wait_for_signal_and_say("a reset", s, true);
	close(s);
}

static void *sleep_in_epoll_wait(void *arg)
{
	struct epoll_event event;

	return (void *)(intptr_t)epoll_wait(*(int *)arg, &event, 1, 10);
}

/* The kernel tells EPOLLHUP of a socket that is not connected, which the shadow of a connection is. */
CASE(tcp_epoll_first_member,
     "a thread sleeps in a set while a connection without events is added: nothing ends its wait")
{
	struct epoll_event quiet = {.events = EPOLLIN, .data.u64 = 1}, event = {.events = EPOLLIN, .data.u64 = 7};
	int s = tcp_connected_to_far_peer(), ends[2], told = 0;

	if (pipe(ends) != 0)
		die_with_message("pipe");
	for (int i = 0; i < 100; i++) {
		int set = epoll_create1(0);
		pthread_t sleeper;
		void *n;

		if (epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &quiet) != 0 ||
		    pthread_create(&sleeper, NULL, sleep_in_epoll_wait, &set) != 0)
			die_with_message("a sleeper");
		pause_ms(2);
		if (epoll_ctl(set, EPOLL_CTL_ADD, s, &event) != 0)
			die_with_message("epoll_ctl");
		pthread_join(sleeper, &n);
		told += n != NULL;
		close(set);
	}
	say("waits that ended with something: %d", told);
	close(ends[0]);
	close(ends[1]);
	close(s);
}
