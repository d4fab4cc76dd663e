/* Signals while a call waits or works: EINTR, SA_RESTART, masks, handlers that send and jump; and cancellation. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "parity.h"

static volatile sig_atomic_t handled;
static int the_socket;
static sigjmp_buf back;

static void signal_count_handled(int sig)
{
	(void)sig;
	handled++;
}

static void install_sigalrm_handler(void (*handler)(int), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	if (sigaction(SIGALRM, &action, NULL) != 0)
		die_with_message("sigaction");
	handled = 0;
}

/* Once; and then, if again_ms is not 0, time and again. */
static void set_alarm_itimer(unsigned ms, unsigned again_ms)
{
	struct itimerval when = {.it_value = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000},
	                         .it_interval = {.tv_usec = (suseconds_t)again_ms * 1000}};

	setitimer(ITIMER_REAL, &when, NULL);
}

static void alarm_after_ms(unsigned ms)
{
	set_alarm_itimer(ms, 0);
}

static int open_udp_socket_and_far_peer(void)
{
	int s = udp_socket_bound_to(here, 0);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	return s;
}

static long recv_once(int s)
{
	char bytes[64];

	return recv(s, bytes, sizeof(bytes), 0);
}

static long signal_poll_once(int s)
{
	struct pollfd p = {.fd = s, .events = POLLIN};

	return poll(&p, 1, 2000);
}

static long select_once(int s)
{
	struct timeval tv = {.tv_sec = 2};
	fd_set set;

	FD_ZERO(&set);
	FD_SET(s, &set);
	return select(s + 1, &set, NULL, NULL, &tv);
}

static long epoll_once(int s)
{
	struct epoll_event event = {.events = EPOLLIN}, got;
	int set = epoll_create1(0);
	long n;

	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	n = epoll_wait(set, &got, 1, 2000);
	close(set);
	return n;
}

static const struct {
	const char *name;
	long (*call)(int s);
} waits[] = {{"recv", recv_once}, {"poll", signal_poll_once}, {"select", select_once}, {"epoll_wait", epoll_once}};

#define AGAIN_MS 30

/* An alarm that comes before the wait has begun is followed by another: each but the first needs that time to come. */
static int handled_signals_except_late(uint64_t late_ms)
{
	return handled > 1 && (uint64_t)(handled - 1) <= late_ms / AGAIN_MS ? 1 : handled;
}

/* A signal after 1 ms finds a wait that spins, after 100 ms one that sleeps. Nothing but a signal ends most of them. */
static void say_interrupted_waits(int flags)
{
	static const unsigned delays[] = {1, 100};
	int s = open_udp_socket_and_far_peer();

	for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
		for (int d = 0; d < 2; d++) {
			bool ends = flags == 0 || i > 0;
			uint64_t start = now_ms(), armed, took;

			install_sigalrm_handler(signal_count_handled, flags);
			if (!ends)
				peer_ask_to_send_after_ms(far(), 250, 0, here, port_of(s), 20, 1);
			armed = now_ms() + delays[d];
			set_alarm_itimer(delays[d], ends ? AGAIN_MS : 0);
			result(waits[i].name, waits[i].call(s));
			set_alarm_itimer(0, 0);
			took = now_ms();
			say("handled %d", handled_signals_except_late(took > armed ? took - armed : 0));
			say_took_about("after", start, ends ? delays[d] : 250);
		}
}

CASE(signal_eintr, "a handler without SA_RESTART ends every wait with EINTR, spinning or asleep")
{
	say_interrupted_waits(0);
}

CASE(signal_restart, "with SA_RESTART recv goes on; poll, select and epoll_wait end all the same")
{
	say_interrupted_waits(SA_RESTART);
}

CASE(signal_recv_with_timeout, "recv with SO_RCVTIMEO is not restarted; EINTR in spite of SA_RESTART")
{
	int s = open_udp_socket_and_far_peer();
	struct timeval tv = {.tv_usec = 300000};

	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	install_sigalrm_handler(signal_count_handled, SA_RESTART);
	alarm_after_ms(100);
	SAY_RESULT(recv_once(s));
	say("handled %d", handled);
	SAY_RESULT(recv_once(s));
}

static void handler_forks_child(int sig)
{
	const int saved = errno;
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	errno = saved;
	signal_count_handled(sig);
}

CASE(signal_handler_forks, "a handler that forks ends recv with EINTR, or recv goes on, as any other handler's")
{
	int s = open_udp_socket_and_far_peer();
	uint64_t begun = now_ms();

	install_sigalrm_handler(handler_forks_child, 0);
	alarm_after_ms(100);
	peer_ask_to_send_after_ms(far(), 600, 0, here, port_of(s), 10, 1);
	SAY_RESULT(recv_once(s));
	say_took_about("it ends", begun, 100);
	SAY_RESULT(recv_once(s));
	install_sigalrm_handler(handler_forks_child, SA_RESTART);
	alarm_after_ms(100);
	begun = now_ms();
	peer_ask_to_send_after_ms(far(), 600, 0, here, port_of(s), 10, 1);
	SAY_RESULT(recv_once(s));
	say_took_about("it goes on", begun, 600);
	say("%d handled", (int)handled);
}

CASE(signal_ignored, "ignored and blocked signals end no wait")
{
	int s = open_udp_socket_and_far_peer();
	sigset_t set;

	signal(SIGALRM, SIG_IGN);
	peer_ask_to_send_after_ms(far(), 150, 0, here, port_of(s), 20, 1);
	alarm_after_ms(50);
	SAY_RESULT(signal_poll_once(s));
	take(s, 0, 0);
	install_sigalrm_handler(signal_count_handled, 0);
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	peer_ask_to_send_after_ms(far(), 150, 0, here, port_of(s), 20, 2);
	alarm_after_ms(50);
	SAY_RESULT(signal_poll_once(s));
	say("handled %d", handled);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	say("handled %d", handled);
}

CASE(signal_masks, "ppoll, pselect and epoll_pwait let in the signals of their mask only")
{
	int s = open_udp_socket_and_far_peer(), set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	struct pollfd p = {.fd = s, .events = POLLIN};
	struct timespec second = {.tv_sec = 1};
	sigset_t blocked, none;
	fd_set readable;

	install_sigalrm_handler(signal_count_handled, 0);
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGALRM);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	alarm_after_ms(50);
	SAY_RESULT(ppoll(&p, 1, &second, &none));
	say("handled %d", handled);
	FD_ZERO(&readable);
	FD_SET(s, &readable);
	alarm_after_ms(50);
	SAY_RESULT(pselect(s + 1, &readable, NULL, NULL, &second, &none));
	say("handled %d", handled);
	alarm_after_ms(50);
	SAY_RESULT(epoll_pwait(set, &event, 1, 1000, &none));
	say("handled %d", handled);
	alarm_after_ms(50);
	SAY_RESULT(epoll_pwait2(set, &event, 1, &second, &none));
	say("handled %d", handled);
	/* One that is pending already. */
	raise(SIGALRM);
	SAY_RESULT(ppoll(&p, 1, &second, &none));
	say("handled %d", handled);
	raise(SIGALRM);
	SAY_RESULT(epoll_pwait(set, &event, 1, 0, &none));
	/* ThreadSanitizer takes from the kernel whatever a mask lets in, be it for a moment, and then runs the handler
	 * whatever the mask is: here it cannot be told whether the signal went back to waiting. */
#ifndef PARITY_TSAN
	say("handled %d", handled);
#endif
	sigprocmask(SIG_UNBLOCK, &blocked, NULL);
	second = (struct timespec){.tv_nsec = 100000000};
	alarm_after_ms(20);
	SAY_RESULT(ppoll(&p, 1, &second, &blocked));
	say("handled %d", handled);
}

static void handler_sends_one_datagram(int sig)
{
	char byte = 5;

	(void)sig;
	if (send(the_socket, &byte, 1, 0) == 1)
		handled++;
}

CASE(signal_handler_sends, "a handler sends on the socket that the interrupted code sends on: all datagrams arrive")
{
	struct itimerval often = {.it_interval = {.tv_usec = 500}, .it_value = {.tv_usec = 500}}, never = {0};
	int port = peer_ask_to_open_socket(far(), 0, there, 0), sent = 0, failed = 0;
	uint64_t end;
	char byte = 5, answer[128];

	the_socket = udp_socket_connected_to(there, port);
	peer(far(), "opt 0 1 33 8000000");
	expect_offloaded(the_socket);
	install_sigalrm_handler(handler_sends_one_datagram, SA_RESTART);
	setitimer(ITIMER_REAL, &often, NULL);
	end = now_ms() + 200;
	while (now_ms() < end && sent < 8000) {
		if (send(the_socket, &byte, 1, 0) == 1)
			sent++;
		else
			failed++;
	}
	setitimer(ITIMER_REAL, &never, NULL);
	sent += handled;
	snprintf(answer, sizeof(answer), "%s", peer(far(), "count 0 %d 5 300", sent));
	say("%d failed, the handler sent %s, %s", failed, handled > 0 ? "some" : "none",
	    atoi(answer) == sent ? "all came" : answer);
}

static void handler_jumps_out(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

CASE(signal_handler_jumps, "siglongjmp out of recv, poll and epoll_wait, spinning or asleep; the socket works on")
{
	int s = open_udp_socket_and_far_peer();
	volatile int jumps = 0;

	install_sigalrm_handler(handler_jumps_out, 0);
	for (volatile int i = 0; i < 16; i++) {
		if (sigsetjmp(back, 1) == 0) {
			alarm_after_ms(i % 2 == 0 ? 1 : 60);
			waits[i / 2 % 4].call(s);
			say("no jump");
		} else {
			jumps++;
		}
	}
	say("%d jumps", jumps);
	signal(SIGALRM, SIG_DFL);
	save_kernel_udp_counters();
	for (int i = 0; i < 20; i++) {
		peer_send(far(), 0, here, port_of(s), 20, i);
		take(s, 2000, 0);
	}
	check_kernel_udp_was_bypassed(20, 0);
}

CASE(signal_handler_jumps_out_of_send, "siglongjmp out of whatever send is doing, 200 times")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0);
	volatile int jumps = 0;
	volatile uint64_t end = now_ms() + 10000;
	char byte = 5;

	the_socket = udp_socket_connected_to(there, port);
	peer(far(), "opt 0 1 33 8000000");
	expect_offloaded(the_socket);
	install_sigalrm_handler(handler_jumps_out, 0);
	while (jumps < 200 && now_ms() < end) {
		if (sigsetjmp(back, 1) == 0) {
			alarm_after_ms(1);
			for (;;)
				send(the_socket, &byte, 1, 0);
		}
		jumps++;
	}
	say("%s", jumps == 200 ? "200 jumps" : "too slow");
	signal(SIGALRM, SIG_DFL);
	register_port_name_of_fd(the_socket, "us");
	pause_ms(50);
	peer_ask_to_open_socket(far(), 1, there, 0);
	close(the_socket);
	the_socket = udp_socket_connected_to(there, atoi(peer(far(), "port 1")));
	register_port_name_of_fd(the_socket, "us");
	SAY_RESULT(send(the_socket, &byte, 1, 0));
	say_peer_received(far(), 1, 2000);
}

CASE(signal_actions, "sigaction and signal give back what was set, handlers and flags")
{
	struct sigaction action = {.sa_handler = signal_count_handled, .sa_flags = SA_RESTART}, old;
	int s = open_udp_socket_and_far_peer();

	sigaddset(&action.sa_mask, SIGUSR1);
	SAY_RESULT(sigaction(SIGALRM, &action, NULL));
	SAY_RESULT(sigaction(SIGALRM, NULL, &old));
	say("handler %d, flags %x, mask %d %d", old.sa_handler == signal_count_handled,
	    (unsigned)old.sa_flags & ~0x4000000U, /* the C library's own, SA_RESTORER */
	    sigismember(&old.sa_mask, SIGUSR1), sigismember(&old.sa_mask, SIGUSR2));
	say("%d", signal(SIGALRM, SIG_IGN) == signal_count_handled);
	say("%d", signal(SIGALRM, signal_count_handled) == SIG_IGN);
	action.sa_flags = (int)(SA_RESETHAND | SA_NODEFER);
	SAY_RESULT(sigaction(SIGALRM, &action, &old));
	say("handler %d", old.sa_handler == signal_count_handled);
	handled = 0;
	raise(SIGALRM);
	SAY_RESULT(sigaction(SIGALRM, NULL, &old));
	say("handled %d, default %d", handled, old.sa_handler == SIG_DFL);
	SAY_RESULT(sigaction(SIGKILL, &action, NULL));
	SAY_RESULT(sigaction(999, &action, NULL));
	close(s);
}

static void *receive_for_ever(void *arg)
{
	char byte;

	for (;;)
		recv(*(int *)arg, &byte, 1, 0);
	return NULL;
}

static void *poll_for_ever(void *arg)
{
	for (;;)
		signal_poll_once(*(int *)arg);
	return NULL;
}

static void *epoll_for_ever(void *arg)
{
	for (;;)
		epoll_once(*(int *)arg);
	return NULL;
}

CASE(cancel_waiters, "pthread_cancel of threads in recv, poll and epoll_wait; the socket works on")
{
	static void *(*const thread_bodies[])(void *) = {receive_for_ever, poll_for_ever, epoll_for_ever};
	int s = open_udp_socket_and_far_peer();

	for (int i = 0; i < 6; i++) {
		pthread_t thread;
		void *how;

		SAY_RESULT(pthread_create(&thread, NULL, thread_bodies[i / 2], &s));
		pause_ms(i % 2 == 0 ? 2 : 100);
		SAY_RESULT(pthread_cancel(thread));
		SAY_RESULT(pthread_join(thread, &how));
		say("cancelled %d", how == PTHREAD_CANCELED);
	}
	save_kernel_udp_counters();
	peer_send(far(), 0, here, port_of(s), 20, 1);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(1, 0);
}

/* ---- calls that are no cancellation points ---- */

struct made_sockets {
	int udp, listener;
	int results[6];
};

/* All that the process's first sockets take: the engine, the interface, a ring and its rules. */
static void *make_sockets_before_cancellation(void *arg)
{
	struct made_sockets *made = arg;
	struct sockaddr_in at = {.sin_family = AF_INET};
	struct ip_mreq group;

	inet_aton(here, &at.sin_addr);
	group.imr_interface = at.sin_addr;
	inet_aton("239.9.0.77", &group.imr_multiaddr);
	pthread_cancel(pthread_self());
	made->udp = socket(AF_INET, SOCK_DGRAM, 0);
	made->results[0] = bind(made->udp, (struct sockaddr *)&at, sizeof(at));
	made->results[1] = setsockopt(made->udp, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof(group));
	made->results[2] = setsockopt(made->udp, IPPROTO_IP, IP_DROP_MEMBERSHIP, &group, sizeof(group));
	made->listener = socket(AF_INET, SOCK_STREAM, 0);
	made->results[3] = bind(made->listener, (struct sockaddr *)&at, sizeof(at));
	made->results[4] = listen(made->listener, 5);
	made->results[5] = 1;
	pthread_testcancel();
	made->results[5] = 2;
	return NULL;
}

CASE(udp_cancel_while_sockets_are_made, "a thread that is to be cancelled makes the first sockets; they work on")
{
	struct made_sockets made = {.udp = -1, .listener = -1};
	pthread_t thread;
	void *how;

	SAY_RESULT(pthread_create(&thread, NULL, make_sockets_before_cancellation, &made));
	SAY_RESULT(pthread_join(thread, &how));
	say("cancelled %d", how == PTHREAD_CANCELED);
	for (int i = 0; i < 6; i++)
		say("call %d: %d", i, made.results[i]);
	say("sockets %d %d", made.udp >= 0, made.listener >= 0);
	expect_offloaded(made.udp);
	expect_offloaded(made.listener);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	save_kernel_udp_counters();
	peer_send(far(), 0, here, port_of(made.udp), 20, 1);
	take(made.udp, 2000, 0);
	check_kernel_udp_was_bypassed(1, 0);
	close(made.udp);
	close(made.listener);
}
