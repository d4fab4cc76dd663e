/* Sockets by syscall(): numbers of calls in the place of their names, with the kernel's arguments. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

#define MASK_BYTES 8

/* Processors that came late have fewer numbers. */
#ifndef SYS_poll
#define SYS_dup2 SYS_dup3
#define SYS_poll SYS_ppoll
#define SYS_select SYS_pselect6
#define SYS_epoll_wait SYS_epoll_pwait
#endif

CASE(syscall_udp, "a UDP socket made, used and closed by syscall()")
{
	struct sockaddr_in own = ipv4_sockaddr_of(here, 0), to;
	char bytes[64], got[64];
	struct iovec piece = {.iov_base = bytes, .iov_len = 20};
	struct msghdr msg = {.msg_iov = &piece, .msg_iovlen = 1};
	socklen_t len = sizeof(own);
	int s;

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	to = ipv4_sockaddr_of(there, atoi(peer(far(), "port 0")));
	SAY_OK_OR_ERROR(s = (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0));
	SAY_RESULT(syscall(SYS_bind, s, &own, sizeof(own)));
	SAY_RESULT(syscall(SYS_getsockname, s, &own, &len));
	say("a name of %u bytes, the same: %d", len, ntohs(own.sin_port) == port_of(s));
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, there, ntohs(to.sin_port));
	save_kernel_udp_counters();
	fill(bytes, sizeof(bytes), 1);
	SAY_RESULT(syscall(SYS_sendto, s, bytes, 20, 0, &to, sizeof(to)));
	say_peer_received(far(), 0, 2000);
	msg.msg_name = &to;
	msg.msg_namelen = sizeof(to);
	SAY_RESULT(syscall(SYS_sendmsg, s, &msg, 0));
	say_peer_received(far(), 0, 2000);
	for (int i = 0; i < 4; i++)
		peer_send(far(), 0, here, port_of(s), 20, i);
	wait_until_sent_packets_arrived(20);
	len = sizeof(to);
	SAY_RESULT(syscall(SYS_recvfrom, s, got, sizeof(got), 0, &to, &len));
	say("from the peer: %d, %u", ntohs(to.sin_port) == atoi(peer(far(), "port 0")), len);
	SAY_RESULT(syscall(SYS_read, s, got, 10));
	piece = (struct iovec){.iov_base = got, .iov_len = sizeof(got)};
	SAY_RESULT(syscall(SYS_readv, s, &piece, 1));
	SAY_RESULT(syscall(SYS_recvmsg, s, &msg, 0));
	check_kernel_udp_was_bypassed(4, 2);
	SAY_RESULT(syscall(SYS_recvfrom, s, got, sizeof(got), MSG_DONTWAIT, NULL, NULL));
	SAY_RESULT(syscall(SYS_connect, s, &to, sizeof(to)));
	SAY_RESULT(syscall(SYS_write, s, bytes, 20));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(syscall(SYS_writev, s, &piece, 1));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(syscall(SYS_preadv, s, &piece, 1, 0L, 0L));
	SAY_RESULT(syscall(SYS_pwritev2, s, &piece, 1, -1L, -1L, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(syscall(SYS_close, s));
	SAY_RESULT(syscall(SYS_close, s));
	SAY_RESULT(syscall(SYS_recvfrom, s, got, sizeof(got), 0, NULL, NULL));
	SAY_OK_OR_ERROR(s = (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0));
	SAY_RESULT(syscall(SYS_bind, s, &own, sizeof(own)));
	expect_offloaded(s);
}

CASE(syscall_close_ends, "the peer sees the end of a connection that SYS_close closes, and a reset after unread bytes")
{
	int s = tcp_connected_to_far_peer();

	SAY_RESULT(syscall(SYS_write, s, "hello", 5));
	SAY_RESULT(syscall(SYS_close, s));
	say_far_peer_reads(1, 5, 0, 1);
	say_far_peer_reads(1, 1, 0, 1);
	say_far_peer_state(1);
	s = tcp_connected_to_far_peer();
	far_peer_writes(1, 100, 1, 1);
	wait_until_sent_packets_arrived(20);
	SAY_RESULT(syscall(SYS_close, s));
	say_far_peer_reads(1, 1, 0, 1);
	s = tcp_connected_to_far_peer();
	SAY_RESULT(syscall(SYS_close_range, s, s, 0));
	say_far_peer_reads(1, 1, 0, 1);
	s = tcp_connected_to_far_peer();
	SAY_RESULT(syscall(SYS_dup3, tcp_socket(), s, 0) == s);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(syscall_tcp, "a connection made, used and ended by syscall(), and one that is accepted so")
{
	struct sockaddr_in to = ipv4_sockaddr_of(there, atoi(peer(far(), "listen 0 %s 0", there))), from;
	int s, listener, value = 0, one = 1;
	socklen_t len = sizeof(value);
	char got[64];

	SAY_OK_OR_ERROR(s = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
	SAY_RESULT(syscall(SYS_setsockopt, s, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)));
	SAY_RESULT(syscall(SYS_connect, s, &to, sizeof(to)));
	peer(far(), "accept 0 1 2000");
	expect_offloaded(s);
	kernel_segments_wait_idle_and_start_count();
	SAY_RESULT(syscall(SYS_write, s, "0123456789", 10));
	say_far_peer_reads(1, 10, 0, 1);
	far_peer_writes(1, 40, 1, 1);
	SAY_RESULT(syscall(SYS_recvfrom, s, got, 40, MSG_WAITALL, NULL, NULL));
	SAY_RESULT(syscall(SYS_getsockopt, s, SOL_SOCKET, SO_KEEPALIVE, &value, &len));
	say("keepalive %d", value);
	far_peer_writes(1, 7, 1, 1);
	wait_until_sent_packets_arrived(20);
	SAY_RESULT(syscall(SYS_ioctl, s, FIONREAD, &value));
	say("%d bytes wait", value);
	SAY_RESULT(syscall(SYS_fcntl, s, F_SETFL, O_NONBLOCK));
	SAY_RESULT(syscall(SYS_read, s, got, sizeof(got)));
	SAY_RESULT(syscall(SYS_read, s, got, sizeof(got)));
	SAY_RESULT(syscall(SYS_shutdown, s, SHUT_WR));
	say_far_peer_reads(1, 1, 0, 1);
	check_kernel_segments_were_bypassed();
	len = sizeof(from);
	SAY_RESULT(syscall(SYS_getpeername, s, &from, &len));
	say("the peer: %d", from.sin_port == to.sin_port);
	SAY_RESULT(syscall(SYS_close, s));

	from = ipv4_sockaddr_of(here, 0);
	SAY_OK_OR_ERROR(listener = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
	SAY_RESULT(syscall(SYS_bind, listener, &from, sizeof(from)));
	SAY_RESULT(syscall(SYS_listen, listener, 5));
	peer(far(), "dial 2 %s %d", here, port_of(listener));
	SAY_OK_OR_ERROR(s = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_NONBLOCK));
	expect_offloaded(s);
	SAY_RESULT(syscall(SYS_read, s, got, sizeof(got)));
	SAY_RESULT(syscall(SYS_close, listener));
	SAY_RESULT(syscall(SYS_close, s));
	say_far_peer_reads(2, 1, 0, 1);
}

/* What is left, in classes of 100 ms. */
static void say_time_left(const char *what, long ms)
{
	say("%s: about %ld ms left", what, (ms + 99) / 100 * 100);
}

CASE(syscall_waits,
     "poll, ppoll, select, pselect6 and epoll by syscall(): sets of eight bytes, times that are written back")
{
	struct timespec left = {.tv_sec = 3};
	struct timeval short_left = {.tv_sec = 3};
	struct epoll_event event = {.events = EPOLLIN}, found;
	int s = udp_socket_bound_to(here, 0), set;
	struct pollfd p = {.fd = s, .events = POLLIN};
	uint64_t mask = 0;
	struct {
		uint64_t *mask;
		size_t size;
	} sized = {&mask, MASK_BYTES};
	fd_set r;

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	left = (struct timespec){0};
	SAY_RESULT(syscall(SYS_poll, &p, 1, SYS_poll == SYS_ppoll ? (long)&left : 0L, NULL, 0));
	left = (struct timespec){.tv_nsec = 50000000};
	SAY_RESULT(syscall(SYS_ppoll, &p, 1, &left, NULL, 0));
	say("%ld.%09ld", (long)left.tv_sec, left.tv_nsec);
	left = (struct timespec){.tv_sec = 3};
	peer_ask_to_send_after_ms(far(), 150, 0, here, port_of(s), 20, 1);
	SAY_RESULT(syscall(SYS_ppoll, &p, 1, &left, &mask, MASK_BYTES));
	say_time_left("ppoll", left.tv_sec * 1000 + left.tv_nsec / 1000000);
	SAY_RESULT(syscall(SYS_ppoll, &p, 1, &left, &mask, 7));
	SAY_RESULT(syscall(SYS_ppoll, &p, 1, &left, &mask, sizeof(sigset_t)));
	SAY_RESULT(syscall(SYS_ppoll, &p, 1, &left, bad_pointer(), MASK_BYTES));
	SAY_RESULT(syscall(SYS_ppoll, &p, 1, bad_pointer(), NULL, 0));
	SAY_RESULT(syscall(SYS_ppoll, bad_pointer(), 1, NULL, NULL, 0));
	left.tv_nsec = -1;
	SAY_RESULT(syscall(SYS_ppoll, &p, 1, &left, NULL, 0));
	take(s, 2000, 0);

	FD_ZERO(&r);
	FD_SET(s, &r);
	peer_ask_to_send_after_ms(far(), 150, 0, here, port_of(s), 20, 1);
	SAY_RESULT(syscall(SYS_select, s + 1, &r, NULL, NULL, &short_left, NULL));
	say_time_left("select", short_left.tv_sec * 1000 + short_left.tv_usec / 1000);
	take(s, 2000, 0);
	left = (struct timespec){.tv_sec = 3};
	peer_ask_to_send_after_ms(far(), 150, 0, here, port_of(s), 20, 1);
	SAY_RESULT(syscall(SYS_pselect6, s + 1, &r, NULL, NULL, &left, &sized));
	say_time_left("pselect6", left.tv_sec * 1000 + left.tv_nsec / 1000000);
	say("set: %d", FD_ISSET(s, &r));
	sized.size = 4;
	SAY_RESULT(syscall(SYS_pselect6, s + 1, &r, NULL, NULL, &left, &sized));
	SAY_RESULT(syscall(SYS_pselect6, s + 1, &r, NULL, NULL, &left, bad_pointer()));
	SAY_RESULT(syscall(SYS_pselect6, s + 1, &r, NULL, NULL, &left, NULL));

	SAY_OK_OR_ERROR(set = (int)syscall(SYS_epoll_create1, 0));
	event.data.u64 = 77;
	SAY_RESULT(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, s, &event));
	SAY_RESULT(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, s, &event));
	SAY_RESULT(syscall(SYS_epoll_wait, set, &found, 1, 1000, NULL, 0));
	say("%x %d", found.events, (int)found.data.u64);
	take(s, 2000, 0);
	SAY_RESULT(syscall(SYS_epoll_pwait, set, &found, 1, 20, &mask, MASK_BYTES));
	SAY_RESULT(syscall(SYS_epoll_pwait, set, &found, 1, 20, &mask, 4));
	SAY_RESULT(syscall(SYS_epoll_pwait, set, &found, 1, 20, NULL, 0));
	left = (struct timespec){.tv_sec = 3};
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	SAY_RESULT(syscall(SYS_epoll_pwait2, set, &found, 1, &left, &mask, MASK_BYTES));
	say("%ld s, as before", (long)left.tv_sec);
	SAY_RESULT(syscall(SYS_close, s));
	SAY_RESULT(syscall(SYS_epoll_wait, set, &found, 1, 20, NULL, 0));
}

CASE(syscall_copies, "dup, dup2, dup3 and F_DUPFD by syscall() share the socket; numbers are used again")
{
	int s = udp_socket_bound_to(here, 0), copies[4], ends[2];

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	SAY_OK_OR_ERROR(copies[0] = (int)syscall(SYS_dup, s));
	SAY_OK_OR_ERROR(copies[1] = (int)syscall(SYS_dup2, s, 200, 0));
	SAY_OK_OR_ERROR(copies[2] = (int)syscall(SYS_dup3, s, 201, O_CLOEXEC));
	SAY_OK_OR_ERROR(copies[3] = (int)syscall(SYS_fcntl, s, F_DUPFD_CLOEXEC, 300));
	SAY_RESULT(syscall(SYS_close, s));
	for (int i = 0; i < 4; i++) {
		expect_offloaded(copies[i]);
		peer_send(far(), 0, here, port_of(copies[i]), 20, i);
		take(copies[i], 2000, 0);
	}
	SAY_RESULT(syscall(SYS_close_range, 200, 400, 0));
	SAY_RESULT(syscall(SYS_fcntl, 200, F_GETFD));
	peer_send(far(), 0, here, port_of(copies[0]), 20, 9);
	take(copies[0], 2000, 0);
	SAY_RESULT(syscall(SYS_close, copies[0]));
	SAY_RESULT(syscall(SYS_pipe2, ends, 0));
	SAY_RESULT(syscall(SYS_write, ends[1], "x", 1));
	SAY_RESULT(syscall(SYS_read, ends[0], &s, 1));
	SAY_RESULT(syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, ends));
	SAY_RESULT(syscall(SYS_write, ends[1], "x", 1));
	SAY_RESULT(syscall(SYS_read, ends[0], &s, 1));
}

struct kernel_action {
	void *handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

static volatile sig_atomic_t handled;

static void signal_handler_count_calls(int sig)
{
	(void)sig;
	handled++;
}

static void start_50ms_itimer(void)
{
	const struct itimerval when = {.it_value = {.tv_usec = 50000}, .it_interval = {.tv_usec = 50000}};

	handled = 0;
	setitimer(ITIMER_REAL, &when, NULL);
}

static void stop_itimer(void)
{
	const struct itimerval never = {.it_interval = {0}};

	setitimer(ITIMER_REAL, &never, NULL);
}

CASE(syscall_rt_sigaction, "a handler that rt_sigaction installs ends a wait, and is shown again as it was given")
{
	struct sigaction by_name = {.sa_handler = signal_handler_count_calls}, seen;
	struct kernel_action action, had;
	int s = udp_socket_bound_to(here, 0);
	char byte;

	expect_offloaded(s);
	sigemptyset(&by_name.sa_mask);
	sigaddset(&by_name.sa_mask, SIGUSR2);
	SAY_RESULT(sigaction(SIGALRM, &by_name, NULL));
	SAY_RESULT(syscall(SYS_rt_sigaction, SIGALRM, NULL, &action, MASK_BYTES)); /* with a restorer */
	say("the same: %d, %lx, mask %lx", action.handler == (void *)signal_handler_count_calls,
	    action.flags & ~0x04000000UL, (unsigned long)action.mask);
	by_name.sa_handler = SIG_DFL;
	SAY_RESULT(sigaction(SIGALRM, &by_name, NULL));
	SAY_RESULT(syscall(SYS_rt_sigaction, SIGALRM, &action, &had, MASK_BYTES));
	say("it was the default: %d", had.handler == (void *)SIG_DFL);
	start_50ms_itimer();
	SAY_RESULT(recv(s, &byte, 1, 0));
	start_50ms_itimer();
	SAY_RESULT(syscall(SYS_recvfrom, s, &byte, 1, 0, NULL, NULL));
	stop_itimer();
	say("handled: %d", handled > 0);
	SAY_RESULT(sigaction(SIGALRM, NULL, &seen));
	say("%d %d %d", seen.sa_handler == signal_handler_count_calls, sigismember(&seen.sa_mask, SIGUSR2),
	    sigismember(&seen.sa_mask, SIGUSR1));
	SAY_RESULT(syscall(SYS_rt_sigaction, SIGALRM, &action, NULL, 4));
	SAY_RESULT(syscall(SYS_rt_sigaction, SIGKILL, &action, NULL, MASK_BYTES));
	SAY_RESULT(syscall(SYS_rt_sigaction, 65, &action, NULL, MASK_BYTES));
	SAY_RESULT(syscall(SYS_rt_sigaction, SIGALRM, bad_pointer(), NULL, MASK_BYTES));
	SAY_RESULT(syscall(SYS_rt_sigaction, SIGALRM, NULL, bad_pointer(), MASK_BYTES));
}

static int the_socket;
static volatile sig_atomic_t came_through;

static void *read_by_syscall_number(void *arg)
{
	char bytes[32];

	(void)arg;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	syscall(SYS_read, the_socket, bytes, sizeof(bytes));
	syscall(SYS_write, the_socket, bytes, 5);
	syscall(SYS_close, the_socket);
	came_through = 1;
	pthread_testcancel();
	return NULL;
}

CASE(syscall_is_no_cancellation_point, "a thread that is to be cancelled reads, writes and closes by syscall() first")
{
	pthread_t thread;
	void *end;

	the_socket = tcp_connected_to_far_peer();
	far_peer_writes(1, 20, 1, 1);
	pthread_create(&thread, NULL, read_by_syscall_number, NULL);
	pthread_join(thread, &end);
	say("came through %d, cancelled %d", came_through, end == PTHREAD_CANCELED);
	say_far_peer_reads(1, 5, 0, 1);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(syscall_exit_group, "exit_group and execve by syscall() deliver what was written before them")
{
	char *const none[] = {NULL}, *const argv[] = {(char *)"/bin/true", NULL};
	int port = atoi(peer(far(), "listen 0 %s 0", there)), status = 0;

	for (int i = 0; i < 2; i++) {
		pid_t child = fork();

		if (child == 0) {
			int s = tcp_socket_connected_to(there, port);

			fcntl(s, F_SETFD, FD_CLOEXEC);
			if (write(s, "0123456789", 10) != 10)
				_exit(1);
			if (i == 0)
				syscall(SYS_exit_group, 3);
			syscall(SYS_execve, "/bin/true", argv, none);
		}
		peer(far(), "accept 0 1 3000");
		say_far_peer_reads(1, 10, 0, 1);
		say_far_peer_reads(1, 1, 0, 1);
		waitpid(child, &status, 0);
		say("status %d", WEXITSTATUS(status));
	}
}

CASE(syscall_errors, "numbers that nobody has, descriptors that are none, pointers that lead nowhere")
{
	int s = udp_socket_bound_to(here, 0);

	expect_offloaded(s);
	SAY_RESULT(syscall(-1));
	SAY_RESULT(syscall(511));
	SAY_RESULT(syscall(512));
	SAY_RESULT(syscall(1000000));
	SAY_RESULT(syscall(SYS_close, -1));
	SAY_RESULT(syscall(SYS_close, 9999));
	SAY_RESULT(syscall(SYS_read, 9999, &s, 1));
	SAY_RESULT(syscall(SYS_sendto, s, "x", 1, 0, bad_pointer(), 16));
	SAY_RESULT(syscall(SYS_bind, s, bad_pointer(), 16));
	SAY_RESULT(syscall(SYS_recvmsg, s, bad_pointer(), MSG_DONTWAIT));
	SAY_RESULT(syscall(SYS_sendmsg, s, bad_pointer(), 0));
	SAY_RESULT(syscall(SYS_getsockname, s, bad_pointer(), bad_pointer()));
	errno = 0;
	SAY_RESULT(syscall(SYS_getpid) == getpid());
	say("errno %d", errno);
	/* The descriptor is the lower half of the register. */
	SAY_RESULT(syscall(SYS_fcntl, (1L << 32) | s, F_GETFD));
}
