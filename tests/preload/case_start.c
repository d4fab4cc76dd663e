/* case_start - beginning and end: before main, opened by name, numbers, leaving while threads are at work. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "fixture.h"

static bool before_main_worked;

/* PROBE_EARLY=ADDRESS:PORT asks for it; the library, if it is there, has not been called yet. */
static __attribute__((constructor)) void use_socket_before_main(void)
{
	const char *where = getenv("PROBE_EARLY"), *port = where != NULL ? strchr(where, ':') : NULL;
	char address[32] = "";
	struct fixture fixture;
	int fd;

	if (port == NULL)
		return;
	memcpy(address, where, (size_t)(port - where));
	fixture.peer = fixture_address(address, port + 1);
	fd = fixture_socket(&fixture);
	before_main_worked = fixture_echo(fd);
	close(fd);
}

static void before_main(const struct fixture *fixture)
{
	int fd;

	EXPECT(before_main_worked);
	fd = fixture_socket(fixture);
	EXPECT(fixture_echo(fd));
}

static void one_socket(const struct fixture *fixture)
{
	EXPECT(fixture_echo(fixture_socket(fixture)));
}

/* What a library opens for itself; what the program inherited is a file, a terminal or a pipe. */
static bool fd_looks_opened_by_library(int fd)
{
	char link[64], target[64] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, target, sizeof(target) - 1) < 0)
		return false;
	return strstr(target, "socket:") != NULL || strstr(target, "anon_inode:") != NULL ||
	       strstr(target, "mem") != NULL;
}

/* A program that makes none of the library's sockets: no thread, no descriptor, no file. */
static void process_without_sockets_is_untouched(const struct fixture *fixture)
{
	char status[4096];
	int pair[2], fd;
	ssize_t got;

	(void)fixture;
	EXPECT(pipe(pair) == 0);
	fd = open("/proc/self/status", O_RDONLY);
	EXPECT(fd >= 0);
	got = read(fd, status, sizeof(status) - 1);
	EXPECT(got > 0);
	status[got] = '\0';
	expect(strstr(status, "Threads:\t1\n") != NULL, "the program has its one thread");
	for (fd = 0; fd < 65536; fd++)
		expect(!fd_looks_opened_by_library(fd), "no descriptor is the library's");
	EXPECT(socket(AF_UNIX, SOCK_DGRAM, 0) >= 0);
	EXPECT(socket(AF_INET, SOCK_STREAM, 0) >= 0);
	EXPECT(close(pair[0]) == 0 && close(pair[1]) == 0);
}

/* The program gets the numbers that it would get without the library. */
static void sockets_get_lowest_fd_numbers(const struct fixture *fixture)
{
	int first = fixture_socket(fixture), second = fixture_socket(fixture);

	EXPECT(first == 3 && second == 4);
	EXPECT(fixture_echo(first) && fixture_echo(second));
	EXPECT(open("/dev/null", O_RDONLY) == 5);
	EXPECT(close(first) == 0);
	EXPECT(fixture_socket(fixture) == 3);
}

static void table_of_a_billion(const struct fixture *fixture)
{
	struct rlimit limit;
	int fd = fixture_socket(fixture), high;

	EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	high = fcntl(fd, F_DUPFD, (int)(limit.rlim_max < 200000 ? limit.rlim_max - 10 : 200000));
	EXPECT(high > 0);
	EXPECT(fixture_echo(high));
	EXPECT(close(fd) == 0);
	EXPECT(fixture_echo(high));
	EXPECT(fixture_get_socket_offload_state(high) == fixture_get_socket_offload_state(high));
	EXPECT(close(high) == 0);
}

/* A program that limits its address space means its own: vsftpd allows its sessions 200 MB. */
static void limited_addresses(const struct fixture *fixture)
{
	const struct rlimit limit = {.rlim_cur = 200 << 20, .rlim_max = 200 << 20};
	const size_t size = 64 << 20;
	int fd = fixture_socket(fixture);
	void *memory;

	EXPECT(fixture_echo(fd));
	EXPECT(setrlimit(RLIMIT_AS, &limit) == 0);
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(memory != MAP_FAILED);
	EXPECT(munmap(memory, size) == 0);
	EXPECT(mmap(NULL, (size_t)16 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
	EXPECT(fixture_echo(fd));
}

/* ---- opened by name, as sockperf --load-vma does ---- */

static void by_name(const struct fixture *fixture)
{
	void *library = dlopen(getenv("PROBE_LIBRARY"), RTLD_LAZY);
	int (*make)(int, int, int), (*join)(int, const struct sockaddr *, socklen_t), (*end)(int);
	ssize_t (*out)(int, const void *, size_t, int), (*in)(int, void *, size_t, int);
	int (*state)(int, const char **);
	const char *text;
	char back[16];
	int fd;

	if (library == NULL)
		fprintf(stderr, "%s\n", dlerror());
	EXPECT(library != NULL);
	*(void **)&make = dlsym(library, "socket");
	*(void **)&join = dlsym(library, "connect");
	*(void **)&end = dlsym(library, "close");
	*(void **)&out = dlsym(library, "send");
	*(void **)&in = dlsym(library, "recv");
	*(void **)&state = dlsym(library, "vma_get_socket_state");
	EXPECT(make != NULL && join != NULL && end != NULL && out != NULL && in != NULL && state != NULL);
	expect((void *)make != (void *)socket, "the library's socket is not the C library's");
	fd = make(AF_INET, SOCK_DGRAM, 0);
	EXPECT(fd >= 0);
	EXPECT(join(fd, (const struct sockaddr *)&fixture->peer, sizeof(fixture->peer)) == 0);
	EXPECT(state(fd, &text) == 1);
	EXPECT(out(fd, "by name", 7, 0) == 7);
	EXPECT(in(fd, back, sizeof(back), 0) == 7);
	dlclose(library); /* its thread and its handlers are still there: so is it */
	EXPECT(out(fd, "by name", 7, 0) == 7);
	EXPECT(in(fd, back, sizeof(back), 0) == 7);
	EXPECT(end(fd) == 0);
}

static int (*named_socket)(int, int, int);
static ssize_t (*named_send)(int, const void *, size_t, int), (*named_recv)(int, void *, size_t, int);
static int named_fd;
static volatile sig_atomic_t named_handled, named_restarts, named_sent;

/* A receive that it ends gets nothing to read. One that goes on does, but not by the first, which may come before it.
 * */
static void count_alarm_and_send_when_restarting(int sig)
{
	(void)sig;
	if (++named_handled > 1 && named_restarts)
		named_sent += named_send(named_fd, "handled", 7, MSG_DONTWAIT) == 7;
}

/* The answers, which a busy peer sends late. */
static void receive_late_answers(int taken)
{
	char back[16];

	for (int ms = 0; ms < 5000 && taken < named_sent; ms++) {
		taken += named_recv(named_fd, back, sizeof(back), MSG_DONTWAIT) == 7;
		usleep(1000);
	}
}

static void start_100ms_alarm_with_sa_flags(int flags)
{
	const struct itimerval when = {.it_value = {.tv_usec = 100000}, .it_interval = {.tv_usec = 100000}};
	struct sigaction action = {.sa_handler = count_alarm_and_send_when_restarting, .sa_flags = flags};

	named_handled = named_sent = 0;
	named_restarts = flags == SA_RESTART;
	EXPECT(sigaction(SIGALRM, &action, NULL) == 0);
	EXPECT(setitimer(ITIMER_REAL, &when, NULL) == 0);
}

/* Handlers that the C library's sigaction installs after the library has started. */
static void interrupted_by_name(const struct fixture *fixture)
{
	const struct itimerval never = {.it_value = {0}};
	void *library = dlopen(getenv("PROBE_LIBRARY"), RTLD_LAZY);
	int (*join)(int, const struct sockaddr *, socklen_t), (*state)(int, const char **);
	const char *text;
	char back[16];

	EXPECT(library != NULL);
	*(void **)&named_socket = dlsym(library, "socket");
	*(void **)&join = dlsym(library, "connect");
	*(void **)&state = dlsym(library, "vma_get_socket_state");
	*(void **)&named_send = dlsym(library, "send");
	*(void **)&named_recv = dlsym(library, "recv");
	named_fd = named_socket(AF_INET, SOCK_DGRAM, 0);
	EXPECT(join(named_fd, (const struct sockaddr *)&fixture->peer, sizeof(fixture->peer)) == 0);
	EXPECT(state(named_fd, &text) == 1);
	for (int round = 0; round < 2; round++) {
		start_100ms_alarm_with_sa_flags(0);
		EXPECT(named_recv(named_fd, back, sizeof(back), 0) == -1 && errno == EINTR);
		EXPECT(setitimer(ITIMER_REAL, &never, NULL) == 0);
		start_100ms_alarm_with_sa_flags(SA_RESTART);
		EXPECT(named_recv(named_fd, back, sizeof(back), 0) == 7 && named_handled > 1);
		EXPECT(setitimer(ITIMER_REAL, &never, NULL) == 0);
		signal(SIGALRM, SIG_DFL);
		receive_late_answers(1);
	}
}

/* ---- the end ---- */

static void *echo_for_ever_in_thread(void *arg)
{
	int fd = fixture_socket(arg);

	for (;;)
		fixture_echo(fd);
	return NULL;
}

static void exit_among_threads(const struct fixture *fixture)
{
	static struct fixture shared;
	pthread_t thread;

	shared = *fixture;
	for (int i = 0; i < 4; i++)
		EXPECT(pthread_create(&thread, NULL, echo_for_ever_in_thread, &shared) == 0);
	usleep(100000);
	exit(0);
}

/* Sent in a row and left: the last of them, too. */
static void send_20_datagrams_and_leave_open(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture);

	EXPECT(fixture_echo(fd));
	for (int i = 0; i < 20; i++)
		EXPECT(send(fd, "last", 4, 0) == 4);
}

static void datagrams_sent_before_exit(const struct fixture *fixture)
{
	send_20_datagrams_and_leave_open(fixture);
	exit(0);
}

static void last_words_at_once(const struct fixture *fixture)
{
	send_20_datagrams_and_leave_open(fixture);
	_exit(0);
}

static void last_words_before_exec(const struct fixture *fixture)
{
	send_20_datagrams_and_leave_open(fixture);
	execlp("sh", "sh", "-c", "test \"$1 $2\" = 'two words'", "sh", "two", "words", NULL);
	_exit(1);
}

static long io_uring_setup_by_syscall(void)
{
	char parameters[256] = {0}; /* struct io_uring_params, and more */

	return syscall(SYS_io_uring_setup, 4, parameters);
}

/* As a program that is linked with liburing's shared library finds it. */
static int init_liburing(void)
{
	int (*init)(unsigned entries, void *ring, unsigned flags);
	char ring[1024] = {0};

	*(void **)&init = dlsym(RTLD_DEFAULT, "io_uring_queue_init");
	return init == NULL ? 0 : init(4, ring, 0);
}

/* The program's own libraries ask before the first socket, and after it. */
static void without_rings(const struct fixture *fixture)
{
	EXPECT(io_uring_setup_by_syscall() == -1 && errno == ENOSYS);
	EXPECT(init_liburing() == -ENOSYS);
	EXPECT(fixture_echo(fixture_socket(fixture)));
	EXPECT(io_uring_setup_by_syscall() == -1 && errno == ENOSYS);
}

/* With VMA_IO_URING=1; a kernel that has no rings says so itself, and the sockets stay its own all the same. */
static void allowed_io_uring_leaves_sockets_to_kernel(const struct fixture *fixture)
{
	int before = fixture_socket(fixture), after, stream = socket(AF_INET, SOCK_STREAM, 0), ring;
	struct timeval timeout = {.tv_usec = 500000};

	EXPECT(fixture_echo(before));
	ring = (int)io_uring_setup_by_syscall();
	EXPECT(ring >= 0 || errno == ENOSYS || errno == EPERM);
	EXPECT(fixture_get_socket_offload_state(before) == 0);
	EXPECT(fixture_echo(before));
	EXPECT(fixture_get_socket_offload_state(stream) == 0);
	after = socket(AF_INET, SOCK_DGRAM, 0);
	EXPECT(setsockopt(after, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
	EXPECT(connect(after, (const struct sockaddr *)&fixture->peer, sizeof(fixture->peer)) == 0);
	EXPECT(fixture_get_socket_offload_state(after) == 0);
	EXPECT(fixture_echo(after));
}

const struct fixture_case cases_start[] = {
        {"before_main", before_main},
        {"one_socket", one_socket},
        {"untouched", process_without_sockets_is_untouched},
        {"numbers", sockets_get_lowest_fd_numbers},
        {"table_of_a_billion", table_of_a_billion},
        {"limited_addresses", limited_addresses},
        {"by_name", by_name},
        {"interrupted_by_name", interrupted_by_name},
        {"exit_among_threads", exit_among_threads},
        {"without_rings", without_rings},
        {"with_rings", allowed_io_uring_leaves_sockets_to_kernel},
        {"last_words", datagrams_sent_before_exit},
        {"last_words_at_once", last_words_at_once},
        {"last_words_before_exec", last_words_before_exec},
        {NULL, NULL},
};
