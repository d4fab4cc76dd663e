/*
 * internal - the internal thread, which does the work that no other thread does. It sleeps in one epoll set:
 *
 *   net                      interfaces, addresses, routes, neighbours: told to files
 *   raw socket               ICMP errors, told to connections
 *   wake eventfd             tasks, frames sent LATER, new ring contexts, retries, timers of TCP that became earlier
 *   ring of an idle context  armed, until a packet comes
 *   connected shadows        EPOLLERR, edge-triggered: an ICMP error
 *
 * It has no timeout, unless one of its deadlines runs. These are LATER frames (1 ms), ring contexts with traffic,
 * timers of TCP, refused offloads (1 s) and retired ring contexts. The deadline of a ring context with traffic is
 * VMA_PROGRESS_ENGINE_INTERVAL. It is 1 ms with TCP unless that is set, and while there is a busy poller. An idle
 * process has no deadline. If VMA_TIMER_RESOLUTION_MSEC is set, the timeout ends at a multiple of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "internal.h"
#include "sleep_time.h"

#define EVENTS_MAX 32

static struct {
	struct vma_engine *engine;
	int epoll_fd, wake_fd;
	uint64_t resolution_ns; /* 0: none */

	_Alignas(64) _Atomic bool woken; /* the eventfd has been written and not yet read */
	struct sleep_time sleeps;
} internal = {.epoll_fd = -1, .wake_fd = -1};

/* ---- waking ---- */

/*
 * A waker changes something, then sets `woken` (A) and writes if it was not set. The thread reads the eventfd, clears
 * `woken` (B), then looks at everything. A and B are exchanges of one variable: if A finds it set, B comes later, takes
 * over what A released, and the thread's look finds the change; if not, the eventfd is written and the thread comes
 * again.
 */
void internal_thread_wake(void)
{
	const uint64_t one = 1;
	const int saved = errno;

	if (atomic_exchange(&internal.woken, true))
		return;
	syscall(SYS_write, internal.wake_fd, &one, sizeof(one));
	errno = saved;
}

void internal_thread_wake_no_later_than(uint64_t at_ns)
{
	if (internal_sleeps_until() > round_up_to_timer_resolution(at_ns))
		internal_thread_wake();
}

/*
 * `woken` is left alone: the caller's descriptors are not this process's, and a write that came to nothing would leave
 * it set for ever. What has no type of file is what eventfds, and nothing that a program writes to, are: it is ours
 * unless the child has closed the number and made another such descriptor under it.
 */
bool internal_thread_wake_from_vfork_child(void)
{
	const uint64_t one = 1;
	struct stat stat;

	return syscall(SYS_fstat, internal.wake_fd, &stat) == 0 && (stat.st_mode & S_IFMT) == 0 &&
	       syscall(SYS_write, internal.wake_fd, &one, sizeof(one)) == (long)sizeof(one);
}

uint64_t round_up_to_timer_resolution(uint64_t at_ns)
{
	const uint64_t step = internal.resolution_ns;

	return step == 0 || at_ns == NO_DEADLINE ? at_ns : (at_ns + step - 1) / step * step;
}

uint64_t internal_sleeps_until(void)
{
	return sleep_time_load(&internal.sleeps);
}

static void internal_drain_wake_eventfd(void)
{
	uint64_t count;

	syscall(SYS_read, internal.wake_fd, &count, sizeof(count));
	atomic_exchange(&internal.woken, false);
}

/* ---- the set ---- */

int internal_epoll_add_fd(int fd, uint32_t events, enum internal_source source, uint64_t number)
{
	struct epoll_event event = {.events = events, .data.u64 = (uint64_t)source << INTERNAL_SOURCE_SHIFT | number};
	const int saved = errno;
	int rc = 0;

	if (internal.epoll_fd < 0)
		return -ENODEV;
	if (syscall(SYS_epoll_ctl, internal.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		rc = -errno;
	if (rc == -EEXIST)
		rc = syscall(SYS_epoll_ctl, internal.epoll_fd, EPOLL_CTL_MOD, fd, &event) < 0 ? -errno : 0;
	errno = saved;
	return rc;
}

void internal_epoll_remove_fd(int fd)
{
	struct epoll_event none = {0};
	const int saved = errno;

	syscall(SYS_epoll_ctl, internal.epoll_fd, EPOLL_CTL_DEL, fd, &none);
	errno = saved;
}

/* ---- the loop ---- */

static struct timespec timespec_until(uint64_t deadline)
{
	const uint64_t now = vma_now_ns(), left = deadline > now ? deadline - now : 0;

	return (struct timespec){.tv_sec = (time_t)(left / (1000 * MS)), .tv_nsec = (long)(left % (1000 * MS))};
}

static int timespec_to_ms(const struct timespec *left)
{
	return left->tv_sec > INT_MAX / 1000 - 1
	               ? INT_MAX
	               : (int)(left->tv_sec * 1000 + (left->tv_nsec + (long)MS - 1) / (long)MS);
}

/* A program has closed the epoll descriptor by an instruction of its own: nothing tells of anything any more. */
static void nap_without_epoll_fd(const struct timespec *left, bool forever)
{
	struct timespec nap = {.tv_nsec = 100 * MS};

	if (!forever && left->tv_sec == 0 && left->tv_nsec < nap.tv_nsec)
		nap = *left;
	syscall(SYS_nanosleep, &nap, NULL);
}

/* To the nanosecond where the kernel can (5.11), as timers of connections are finer than a millisecond. */
static long wait_for_events(struct epoll_event *events, uint64_t deadline)
{
	static bool coarse;
	const bool forever = deadline == NO_DEADLINE;
	const struct timespec left = timespec_until(forever ? 0 : deadline);
	long n = -1;

	if (!coarse) {
		n = syscall(SYS_epoll_pwait2, internal.epoll_fd, events, EVENTS_MAX, forever ? NULL : &left, NULL,
		            (size_t)8);
		coarse = n < 0 && errno == ENOSYS;
	}
	if (coarse)
		n = syscall(SYS_epoll_pwait, internal.epoll_fd, events, EVENTS_MAX,
		            forever ? -1 : timespec_to_ms(&left), NULL, (size_t)8);
	if (n < 0 && errno != EINTR)
		nap_without_epoll_fd(&left, forever);
	return n;
}

enum { WATCHED_MAX = 64 };
static struct vma_internal_task *_Atomic watched[WATCHED_MAX];

/* An event of before an unwatch may run the place's next task once in vain. */
static void internal_run_watched_task(uint64_t place)
{
	struct vma_internal_task *task = place < WATCHED_MAX ? atomic_load(&watched[place]) : NULL;

	if (task != NULL)
		task->run(task);
}

int vma_engine_watch_fd_with_task(int fd, uint32_t events, struct vma_internal_task *task)
{
	for (uint64_t place = 0; place < WATCHED_MAX; place++) {
		struct vma_internal_task *none = NULL;
		int rc;

		if (!atomic_compare_exchange_strong(&watched[place], &none, task))
			continue;
		rc = internal_epoll_add_fd(fd, events, INTERNAL_WAKE, INTERNAL_WAKE_WATCHED + place);
		if (rc < 0)
			atomic_store(&watched[place], NULL);
		return rc;
	}
	return -EBUSY;
}

void vma_engine_unwatch_fd(int fd, struct vma_internal_task *task)
{
	internal_epoll_remove_fd(fd);
	for (unsigned place = 0; place < WATCHED_MAX; place++) {
		struct vma_internal_task *mine = task;

		atomic_compare_exchange_strong(&watched[place], &mine, NULL);
	}
}

static void internal_dispatch_epoll_event(const struct epoll_event *event)
{
	const uint64_t number = event->data.u64 & ((1ULL << INTERNAL_SOURCE_SHIFT) - 1);

	switch ((enum internal_source)(event->data.u64 >> INTERNAL_SOURCE_SHIFT)) {
	case INTERNAL_NET:
		if (number == INTERNAL_NET_ICMP)
			icmp_receive_errors_for_tcp_stacks(internal.engine);
		else
			vma_net_process_events(internal.engine->net);
		break;
	case INTERNAL_WAKE:
		if (number >= INTERNAL_WAKE_WATCHED)
			internal_run_watched_task(number - INTERNAL_WAKE_WATCHED);
		else
			internal_drain_wake_eventfd();
		break;
	case INTERNAL_RING_CTX:
		ring_housekeeping_handle_ring_readable(internal.engine, number);
		break;
	case INTERNAL_ERROR:
		notify_file_of_socket_error(number);
		break;
	}
}

static uint64_t earlier_ns(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Returns when the next turn is due at the latest. */
static uint64_t internal_run_once(const struct epoll_event *events, long n)
{
	struct vma_thread *self = vma_enter();
	uint64_t now, next;

	for (long i = 0; i < n; i++)
		internal_dispatch_epoll_event(&events[i]);
	tcp_housekeeping_delete_stale_rules();
	tasks_run();
	vfork_handoffs_run();
	now = vma_now_ns();
	next = ring_housekeeping_run(internal.engine, now);
	next = earlier_ns(next, tcp_housekeeping_run(&internal.engine->conf, now));
	next = earlier_ns(next, notify_files_of_changes_when_due(internal.engine, now));
	vma_leave(self);
	vma_run_due_deferred_frees();
	return earlier_ns(next, ring_housekeeping_reclaim_due_with_backoff(now));
}

static void set_affinity(const char *wanted)
{
	cpu_set_t cpus;

	if (vma_conf_parse_cpus(wanted, &cpus) > 0 && sched_setaffinity(0, sizeof(cpus), &cpus) < 0)
		vma_log_once(VMA_LOG_WARN, "VMA_INTERNAL_THREAD_AFFINITY='%s': this program may not run there", wanted);
}

static bool write_thread_id(const char *folder, const char *file)
{
	char path[PATH_MAX], id[16];
	const int len = snprintf(id, sizeof(id), "%ld", syscall(SYS_gettid));
	bool written;
	int fd;

	if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= (int)sizeof(path))
		return false;
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	written = syscall(SYS_write, fd, id, len) == len;
	syscall(SYS_close, fd);
	return written;
}

/* The folder of a control group: of version 1 threads are named in one file, of version 2 in the other. */
static void join_cpuset(const char *folder)
{
	if (folder[0] != '\0' && !write_thread_id(folder, "tasks") && !write_thread_id(folder, "cgroup.threads"))
		vma_log_once(VMA_LOG_WARN, "VMA_INTERNAL_THREAD_CPUSET='%s': the internal thread cannot move there: %s",
		             folder, strerrordesc_np(errno));
}

/* See sleep_time.h. */
static uint64_t publish_sleep_time(uint64_t deadline)
{
	struct vma_thread *self;
	uint64_t again;

	deadline = round_up_to_timer_resolution(deadline);
	sleep_time_publish(&internal.sleeps, deadline);
	self = vma_enter();
	again = earlier_ns(ring_housekeeping_next_due_ns(),
	                   earlier_ns(tcp_housekeeping_next_due_ns(), tasks_next_due_ns()));
	vma_leave(self);
	return earlier_ns(deadline, round_up_to_timer_resolution(again));
}

/*
 * In a copy of the process that the system call makes, the C library still counts this thread; that is well as long as
 * it has begun. Else a change of user or group there would wait for its beginning for ever (setxid_mark_thread of
 * glibc): so who starts it waits until it has. vsftpd makes such copies as soon as it has a connection.
 */
static _Atomic uint32_t begun; /* a futex */

static void internal_signal_thread_running(void)
{
	atomic_store(&begun, 1);
	syscall(SYS_futex, &begun, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void internal_wait_thread_running(void)
{
	while (atomic_load(&begun) == 0)
		syscall(SYS_futex, &begun, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static void *internal_thread_main(void *arg)
{
	struct epoll_event events[EVENTS_MAX];
	uint64_t deadline = NO_DEADLINE;

	(void)arg;
	vma_thread_self()->is_internal = true;
	internal_signal_thread_running();
	vma_ring_mark_thread_as_internal_driver();
	pthread_setname_np(pthread_self(), "vma-internal");
	join_cpuset(internal.engine->conf.internal_thread_cpuset);
	set_affinity(internal.engine->conf.internal_thread_affinity);
	for (;;) {
		long n = wait_for_events(events, publish_sleep_time(deadline));

		sleep_time_publish(&internal.sleeps, 0);
		deadline = internal_run_once(events, n);
	}
	return NULL;
}

static int internal_start_thread(void)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not for this thread */
	atomic_store(&begun, 0);
	rc = pthread_create(&thread, &attr, internal_thread_main, NULL);
	if (rc == 0)
		internal_wait_thread_running();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -rc;
}

static void internal_close_fds(void)
{
	vma_fd_unguard_close(internal.epoll_fd);
	vma_fd_unguard_close(internal.wake_fd);
	internal.epoll_fd = internal.wake_fd = -1;
}

static int internal_guard_new_fd(long fd)
{
	return fd < 0 ? -errno : vma_fd_move_high_and_guard((int)fd);
}

int internal_thread_setup_and_start(struct vma_engine *engine)
{
	int rc;

	internal.engine = engine;
	internal.resolution_ns = engine->conf.given[VMA_CONF_AT_timer_resolution_msec]
	                                 ? (uint64_t)engine->conf.timer_resolution_msec * MS
	                                 : 0;
	notify_init(engine);
	internal.epoll_fd = internal_guard_new_fd(syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
	internal.wake_fd = internal_guard_new_fd(syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK));
	rc = internal.epoll_fd < 0 ? internal.epoll_fd : internal.wake_fd;
	if (rc >= 0)
		rc = internal_epoll_add_fd(internal.wake_fd, EPOLLIN, INTERNAL_WAKE, 0);
	if (rc == 0)
		rc = internal_epoll_add_fd(vma_net_fd(engine->net), EPOLLIN, INTERNAL_NET, 0);
	if (rc == 0)
		rc = internal_start_thread();
	if (rc < 0) {
		internal_close_fds();
		return rc;
	}
	atomic_store(&internal.woken, false); /* what was left before there was a thread wrote nowhere */
	internal_thread_wake();
	return 0;
}

__attribute__((cold)) void internal_thread_reset_in_fork_child(void)
{
	internal_close_fds();
	taken_server_close_in_fork_child();
	internal.engine = NULL;
	for (unsigned place = 0; place < WATCHED_MAX; place++)
		atomic_store(&watched[place], NULL);
	atomic_store(&internal.woken, false);
	sleep_time_publish(&internal.sleeps, 0);
	ring_housekeeping_reset_in_fork_child();
	tcp_housekeeping_reset_in_fork_child();
	icmp_housekeeping_close_in_fork_child();
	notify_reset_in_fork_child();
	tasks_discard_in_fork_child();
}
