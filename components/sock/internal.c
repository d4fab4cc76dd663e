/*
 * internal - the thread that looks after what nobody else does. It sleeps in one epoll set:
 *
 *   net                      interfaces, addresses, routes, neighbours: told to files
 *   wake eventfd             tasks, frames sent LATER, new rails, retries
 *   ring of an idle rail     armed, until a packet comes
 *   connected shadows        EPOLLERR, edge-triggered: an ICMP error
 *
 * and without timeout, unless one of its deadlines runs: LATER frames (1 ms), rails with traffic
 * (VMA_PROGRESS_ENGINE_INTERVAL), refused offloads (1 s), retired rails. An idle process has none.
 *
 * A rail is in one of two states. Armed: its descriptor is in the set. The packet that ends this wakes the thread once.
 * Then, at every interval: has somebody driven it since the last look, nothing is done. Else the thread drives it; if
 * there was nothing, it arms it again. So who spins on a ring, or sleeps on it and gets a packet now and then, costs
 * this thread a tick per interval and no wake-up per packet.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "engine_priv.h"

#define MS 1000000ULL
#define LATER_NS (1 * MS)
#define RETRY_NS (1000 * MS)
#define NET_ROUND_NS (50 * MS) /* between two rounds of files: a storm of events costs no more */
#define END_FIRST_NS (2 * MS)
#define END_LAST_NS (1000 * MS)
#define EVENTS_MAX 32

/* What an event of the set is of: the kind in the upper bits, and a number. */
enum source { SOURCE_NET, SOURCE_WAKE, SOURCE_RAIL, SOURCE_ERROR };
#define SOURCE_SHIFT 62
#define FD_SHIFT 31
#define ID_MASK 0x7fffffffULL

/* All zero (deadlines: 0 is none) but for the descriptors. The deadlines are the thread's own. */
static struct {
	struct vma_engine *engine;
	int epoll_fd, wake_fd;
	uint64_t later_ns, drive_ns, net_ns, retry_ns, end_ns;
	uint64_t end_step_ns;  /* between looks whether a retired rail has ended */
	uint64_t net_seen;     /* generation that files have been told of */
	uint64_t net_round_ns; /* when */

	_Alignas(64) _Atomic bool woken; /* the eventfd has been written and not yet read */
	_Atomic uint64_t later;          /* rails, by bit, with frames sent LATER */
	_Atomic bool retry, tell;
	_Atomic uint32_t ending; /* retired rails */
} internal = {.epoll_fd = -1, .wake_fd = -1};

void (*vma_engine_on_error)(struct vma_file *file);

/* ---- waking ---- */

/*
 * A waker changes something, then sets `woken` (A) and writes if it was not set. The thread reads the eventfd, clears
 * `woken` (B), then looks at everything. A and B are exchanges of one variable: if A finds it set, B comes later, takes
 * over what A released, and the thread's look finds the change; if not, the eventfd is written and the thread comes
 * again.
 */
void internal_wake(void)
{
	const uint64_t one = 1;
	const int saved = errno;

	if (atomic_exchange(&internal.woken, true))
		return;
	syscall(SYS_write, internal.wake_fd, &one, sizeof(one));
	errno = saved;
}

static void take_wake(void)
{
	uint64_t count;

	syscall(SYS_read, internal.wake_fd, &count, sizeof(count));
	atomic_exchange(&internal.woken, false);
}

void vma_engine_retry(void)
{
	if (!atomic_exchange(&internal.retry, true))
		internal_wake();
}

void internal_tell_files(void)
{
	if (!atomic_exchange(&internal.tell, true))
		internal_wake();
}

void internal_expect_end(void)
{
	atomic_fetch_add(&internal.ending, 1);
	internal_wake();
}

/*
 * A read-modify-write each time, for its order: the frame was queued before, and a thread that takes the bit afterwards
 * flushes it. A bit that is set already has woken the thread already.
 */
void vma_engine_later(struct vma_rail *rail)
{
	if (atomic_fetch_or(&internal.later, vma_rail_bit(rail)) == 0)
		internal_wake();
}

/* ---- the set ---- */

static int set_add(int fd, uint32_t events, enum source source, uint64_t number)
{
	struct epoll_event event = {.events = events, .data.u64 = (uint64_t)source << SOURCE_SHIFT | number};

	if (syscall(SYS_epoll_ctl, internal.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0)
		return 0;
	if (errno == EEXIST && syscall(SYS_epoll_ctl, internal.epoll_fd, EPOLL_CTL_MOD, fd, &event) == 0)
		return 0;
	return -errno;
}

static void set_remove(int fd)
{
	struct epoll_event none = {0};

	syscall(SYS_epoll_ctl, internal.epoll_fd, EPOLL_CTL_DEL, fd, &none);
}

/*
 * A registration outlives its file where a forked child holds the shadow as well. So it names the file by number and
 * id, and what is not found is nobody's.
 */
int vma_engine_watch_errors(int fd, struct vma_file *file)
{
	const int saved = errno;
	int rc = -ENODEV;

	if (internal.epoll_fd >= 0)
		rc = set_add(fd, EPOLLERR | EPOLLET, SOURCE_ERROR, (uint64_t)fd << FD_SHIFT | (file->id & ID_MASK));
	errno = saved;
	return rc;
}

struct search {
	uint64_t id;
	struct vma_file *found;
};

static void compare_id(struct vma_file *file, void *arg)
{
	struct search *search = arg;

	if ((file->id & ID_MASK) == search->id)
		search->found = file;
}

static void take_error(uint64_t number)
{
	struct search search = {.id = number & ID_MASK, .found = vma_fd_lookup((int)(number >> FD_SHIFT & ID_MASK))};

	if (search.found == NULL || (search.found->id & ID_MASK) != search.id) {
		search.found = NULL;
		vma_file_each(compare_id, &search);
	}
	if (search.found != NULL && vma_engine_on_error != NULL)
		vma_engine_on_error(search.found);
}

/* ---- rails ---- */

static void arm(struct vma_rail *rail)
{
	if (vma_ring_arm(rail->ring) == 0 && set_add(vma_ring_fd(rail->ring), EPOLLIN, SOURCE_RAIL, rail->id) == 0)
		rail->armed = true;
}

static void disarm(struct vma_rail *rail)
{
	set_remove(vma_ring_fd(rail->ring));
	rail->armed = false;
}

void internal_forget(struct vma_rail *rail)
{
	set_remove(vma_ring_fd(rail->ring));
	atomic_fetch_sub(&internal.ending, 1);
}

/* Whether there was anything, or there is somebody at it. */
static bool drive(struct vma_rail *rail, int64_t max)
{
	int64_t total = 0;
	int n = 0;

	while (total < max) {
		n = vma_ring_progress(rail->ring);
		if (n <= 0)
			break;
		total += n;
	}
	return total > 0 || n < 0;
}

static void look_after(struct vma_rail *rail, void *arg)
{
	const uint64_t driven = atomic_load_explicit(&rail->driven, memory_order_relaxed);

	(void)arg;
	if (rail->armed)
		return;
	if (driven != rail->driven_seen)
		rail->driven_seen = driven;
	else if (!drive(rail, internal.engine->conf.progress_engine_wce_max))
		arm(rail);
}

static void count_awake(struct vma_rail *rail, void *arg)
{
	*(unsigned *)arg += !rail->armed;
}

static void turn_rails(uint64_t now)
{
	const struct vma_conf *conf = &internal.engine->conf;
	const uint64_t interval = (uint64_t)conf->progress_engine_interval * MS;
	unsigned awake = 0;

	if (interval == 0 || conf->progress_engine_wce_max == 0)
		return;
	if (internal.drive_ns != 0 && now >= internal.drive_ns) {
		rails_each(look_after, NULL);
		internal.drive_ns = 0;
	}
	rails_each(count_awake, &awake);
	if (awake == 0)
		internal.drive_ns = 0;
	else if (internal.drive_ns == 0)
		internal.drive_ns = now + interval;
}

static void flush_bit(struct vma_rail *rail, void *arg)
{
	if (*(const uint64_t *)arg & vma_rail_bit(rail))
		vma_ring_flush(rail->ring);
}

static void turn_later(uint64_t now)
{
	uint64_t rails;

	if (internal.later_ns == 0 && atomic_load(&internal.later) != 0)
		internal.later_ns = now + LATER_NS;
	if (internal.later_ns == 0 || now < internal.later_ns)
		return;
	internal.later_ns = 0;
	rails = atomic_exchange(&internal.later, 0);
	rails_each(flush_bit, &rails);
}

/*
 * Retired rails give their queue pairs back only when they are ended, which takes everybody who is inside to leave:
 * microseconds, as a rule. Who stays inside for long is waited for with ever longer pauses.
 */
static void turn_ending(uint64_t now)
{
	if (atomic_load(&internal.ending) == 0) {
		internal.end_ns = internal.end_step_ns = 0;
		return;
	}
	if (internal.end_ns > now)
		return;
	internal.end_step_ns = internal.end_step_ns == 0 ? END_FIRST_NS : internal.end_step_ns * 2;
	if (internal.end_step_ns > END_LAST_NS)
		internal.end_step_ns = END_LAST_NS;
	internal.end_ns = now + internal.end_step_ns;
}

/* ---- files: what they are told ---- */

static bool is_refused(struct vma_file *file)
{
	const enum vma_sock_reason reason = file->ops->reason != NULL ? file->ops->reason(file) : VMA_SOCK_OFFLOADED;

	return reason == VMA_SOCK_PORT_SHARED || reason == VMA_SOCK_INHERITED || reason == VMA_SOCK_NO_MEMORY;
}

struct round {
	bool all;   /* else only those that were refused for now */
	bool again; /* somebody still is */
};

static void tell(struct vma_file *file, void *arg)
{
	struct round *round = arg;

	if (file->ops->net_changed == NULL || (!round->all && !is_refused(file)))
		return;
	file->ops->net_changed(file);
	round->again |= is_refused(file);
}

static void tell_files(bool all)
{
	struct round round = {.all = all};

	vma_file_each(tell, &round);
	if (round.again)
		atomic_store(&internal.retry, true);
}

static void turn_net(uint64_t now)
{
	const uint64_t generation = vma_net_generation(internal.engine->net);

	if ((generation != internal.net_seen || atomic_load(&internal.tell)) && internal.net_ns == 0)
		internal.net_ns = internal.net_round_ns + NET_ROUND_NS;
	if (internal.net_ns == 0 || now < internal.net_ns)
		return;
	internal.net_ns = 0;
	internal.net_seen = generation;
	atomic_store(&internal.tell, false);
	internal.net_round_ns = now;
	tell_files(true);
}

static void turn_retry(uint64_t now)
{
	if (internal.retry_ns == 0 && atomic_load(&internal.retry))
		internal.retry_ns = now + RETRY_NS;
	if (internal.retry_ns == 0 || now < internal.retry_ns)
		return;
	internal.retry_ns = 0;
	atomic_store(&internal.retry, false);
	tell_files(false);
	if (atomic_load(&internal.retry))
		internal.retry_ns = now + RETRY_NS;
}

/* ---- the loop ---- */

static int timeout_ms(uint64_t now)
{
	const uint64_t deadlines[] = {internal.later_ns, internal.drive_ns, internal.net_ns, internal.retry_ns,
	                              internal.end_ns};
	uint64_t first = UINT64_MAX;

	for (size_t i = 0; i < sizeof(deadlines) / sizeof(deadlines[0]); i++)
		if (deadlines[i] != 0 && deadlines[i] < first)
			first = deadlines[i];
	if (first == UINT64_MAX)
		return -1;
	return first > now ? (int)((first - now + MS - 1) / MS) : 0;
}

static void take_event(const struct epoll_event *event)
{
	const uint64_t number = event->data.u64 & ((1ULL << SOURCE_SHIFT) - 1);
	struct vma_rail *rail;

	switch ((enum source)(event->data.u64 >> SOURCE_SHIFT)) {
	case SOURCE_NET:
		vma_net_process(internal.engine->net);
		break;
	case SOURCE_WAKE:
		take_wake();
		break;
	case SOURCE_RAIL:
		rail = rail_of_id((uint32_t)number);
		if (rail != NULL)
			disarm(rail);
		break;
	case SOURCE_ERROR:
		take_error(number);
		break;
	}
}

static void turn(const struct epoll_event *events, long n)
{
	struct vma_thread *self = vma_enter();
	uint64_t now;

	for (long i = 0; i < n; i++)
		take_event(&events[i]);
	tasks_run();
	now = vma_now_ns();
	turn_later(now);
	turn_rails(now);
	turn_net(now);
	turn_retry(now);
	vma_leave(self);
	vma_retire_poll();
	turn_ending(now);
}

static void set_affinity(const char *wish)
{
	cpu_set_t cpus;

	if (vma_conf_cpus(wish, &cpus) > 0 && sched_setaffinity(0, sizeof(cpus), &cpus) < 0)
		vma_log_once(VMA_LOG_WARN, "VMA_INTERNAL_THREAD_AFFINITY='%s': this program may not run there", wish);
}

static void *thread_main(void *arg)
{
	struct epoll_event events[EVENTS_MAX];

	(void)arg;
	pthread_setname_np(pthread_self(), "vma-internal");
	set_affinity(internal.engine->conf.internal_thread_affinity);
	for (;;) {
		long n = syscall(SYS_epoll_pwait, internal.epoll_fd, events, EVENTS_MAX, timeout_ms(vma_now_ns()), NULL,
		                 (size_t)8);

		turn(events, n);
	}
	return NULL;
}

static int start_thread(void)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not for this thread */
	rc = pthread_create(&thread, &attr, thread_main, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -rc;
}

static void close_fds(void)
{
	vma_fd_unguard_close(internal.epoll_fd);
	vma_fd_unguard_close(internal.wake_fd);
	internal.epoll_fd = internal.wake_fd = -1;
}

static int open_fd(long fd)
{
	return fd < 0 ? -errno : vma_fd_guard((int)fd);
}

int internal_start(struct vma_engine *engine)
{
	int rc;

	internal.engine = engine;
	internal.net_seen = vma_net_generation(engine->net);
	internal.epoll_fd = open_fd(syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
	internal.wake_fd = open_fd(syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK));
	rc = internal.epoll_fd < 0 ? internal.epoll_fd : internal.wake_fd;
	if (rc >= 0)
		rc = set_add(internal.wake_fd, EPOLLIN, SOURCE_WAKE, 0);
	if (rc == 0)
		rc = set_add(vma_net_fd(engine->net), EPOLLIN, SOURCE_NET, 0);
	if (rc == 0)
		rc = start_thread();
	if (rc < 0) {
		close_fds();
		return rc;
	}
	atomic_store(&internal.woken, false); /* what was left before there was a thread wrote nowhere */
	internal_wake();
	return 0;
}

void internal_fork_child(void)
{
	close_fds();
	memset(&internal, 0, sizeof(internal));
	internal.epoll_fd = internal.wake_fd = -1;
	tasks_fork_child();
}
