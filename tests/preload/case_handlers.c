/* case_handlers - handlers look as the program has set them, whatever call set them, and run as they should. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "fixture.h"

/* The old calls are what is tested. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static _Atomic int count;
static int handler_send_fd = -1;

static void count_signal(int sig)
{
	(void)sig;
	count++;
}

static void count_signal_too(int sig)
{
	(void)sig;
	count++;
}

static void check_signal_and_sigaction_calls(void)
{
	struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_NODEFER}, old;

	EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
	EXPECT(sigaction(SIGUSR1, NULL, &old) == 0);
	EXPECT(old.sa_handler == count_signal && (old.sa_flags & SA_NODEFER) != 0 && (old.sa_flags & SA_RESTART) == 0);
	EXPECT(signal(SIGUSR1, count_signal_too) == count_signal);
	EXPECT(sigaction(SIGUSR1, NULL, &old) == 0);
	EXPECT(old.sa_handler == count_signal_too && (old.sa_flags & SA_RESTART) != 0);
	EXPECT(siginterrupt(SIGUSR1, 1) == 0);
	EXPECT(sigaction(SIGUSR1, NULL, &old) == 0 && (old.sa_flags & SA_RESTART) == 0);
	EXPECT(signal(SIGUSR1, count_signal) == count_signal_too);
	EXPECT(sigaction(SIGUSR1, NULL, &old) == 0 && (old.sa_flags & SA_RESTART) == 0);
	EXPECT(siginterrupt(SIGUSR1, 0) == 0);
	count = 0;
	EXPECT(raise(SIGUSR1) == 0 && count == 1);
	EXPECT(sysv_signal(SIGUSR2, count_signal) == SIG_DFL);
	EXPECT(raise(SIGUSR2) == 0 && count == 2);
	EXPECT(sigaction(SIGUSR2, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	EXPECT(sigset(SIGUSR2, count_signal) == SIG_DFL);
	EXPECT(sigset(SIGUSR2, SIG_HOLD) == count_signal);
	EXPECT(raise(SIGUSR2) == 0 && count == 2);
	EXPECT(sigset(SIGUSR2, count_signal_too) == SIG_HOLD && count == 3);
	EXPECT(sigignore(SIGUSR2) == 0);
	EXPECT(sigset(SIGUSR2, SIG_DFL) == SIG_IGN);
	EXPECT(signal(SIGKILL, count_signal) == SIG_ERR && errno == EINVAL);
	EXPECT(signal(NSIG + 10, count_signal) == SIG_ERR && errno == EINVAL);
	EXPECT(signal(SIGUSR1, SIG_ERR) == SIG_ERR && errno == EINVAL);
	EXPECT(signal(SIGUSR1, SIG_DFL) == count_signal);
}

/* The same before the library has started and after; what was set before is still the program's afterwards. */
static void test_signal_handlers_before_and_after_start(const struct fixture *fixture)
{
	struct sigaction old;

	check_signal_and_sigaction_calls();
	EXPECT(signal(SIGUSR1, count_signal) == SIG_DFL);
	EXPECT(fixture_echo(fixture_socket(fixture)));
	EXPECT(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == count_signal);
	EXPECT(signal(SIGUSR1, SIG_DFL) == count_signal);
	check_signal_and_sigaction_calls();
}

static void send_from_signal_handler(int sig)
{
	(void)sig;
	count++;
	send(handler_send_fd, "from a handler", 14, MSG_DONTWAIT);
}

/* A handler that sends on the socket that the program is using. */
static void handler_sends(const struct fixture *fixture)
{
	struct itimerval often = {.it_interval.tv_usec = 500, .it_value.tv_usec = 500}, never = {{0, 0}, {0, 0}};
	struct sigaction action = {.sa_handler = send_from_signal_handler, .sa_flags = SA_RESTART};
	int fd = fixture_socket(fixture);
	char back[64];

	handler_send_fd = fd;
	EXPECT(sigaction(SIGALRM, &action, NULL) == 0);
	EXPECT(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int i = 0; i < 2000; i++) {
		ssize_t rc = send(fd, "program", 7, 0);

		EXPECT(rc == 7);
		rc = recv(fd, back, sizeof(back), 0); /* one or the other's; with a timeout it is interrupted */
		EXPECT(rc == 7 || rc == 14 || (rc == -1 && (errno == EAGAIN || errno == EINTR)));
	}
	EXPECT(setitimer(ITIMER_REAL, &never, NULL) == 0);
	EXPECT(count > 0);
	while (recv(fd, back, sizeof(back), 0) >= 0)
		;
	EXPECT(fixture_echo(fd));
}

static void *thread_recv_forever(void *arg)
{
	char back[64];

	for (;;)
		recv(*(int *)arg, back, sizeof(back), 0);
	return NULL;
}

static void test_recv_is_cancellable(const struct fixture *fixture)
{
	struct timeval none = {0, 0};
	int fd = fixture_socket(fixture);

	EXPECT(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)) == 0);
	for (int i = 0; i < 20; i++) {
		pthread_t thread;
		void *result;

		EXPECT(pthread_create(&thread, NULL, thread_recv_forever, &fd) == 0);
		usleep(i % 4 * 5000);
		EXPECT(pthread_cancel(thread) == 0);
		EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	EXPECT(fixture_echo(fd));
}

const struct fixture_case cases_handlers[] = {
        {"calls", test_signal_handlers_before_and_after_start},
        {"handler_sends", handler_sends},
        {"cancelled", test_recv_is_cancellable},
        {NULL, NULL},
};
