/*
 * backends - one scenario on the kernel's sockets, on offloaded ones, and on ones whose datagrams come by the shadow:
 * what it sees must be the same in all of them.
 *
 *   KERNEL     UDP sockets on loopback, the kernel's calls
 *   OFFLOADED  a file of this test behind each of them, whose poll answers as a queue would; iomux's calls
 *   OWN        the same, and the file knows all by itself (own_poll)
 *   SHADOW     the same as OFFLOADED, but the datagrams go to the kernel's socket
 */
#ifndef VMA_IOMUX_TEST_BACKENDS_H
#define VMA_IOMUX_TEST_BACKENDS_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/test.h>

#include "../iomux_priv.h"

enum kind { KERNEL, OFFLOADED, OWN, SHADOW, BACKENDS };

struct backend {
	enum kind kind;
	char *seen;
	size_t size;
	FILE *log;
};

/* ---- the file behind a socket ---- */

struct fake {
	struct vma_file file;
	_Atomic int queued; /* datagrams */
	_Atomic uint64_t rings;
	_Atomic uint32_t polls;
	_Atomic uint32_t more; /* other bits of the answer */
	_Atomic bool is_full;  /* not writable, and the shadow is not to be asked */
	_Atomic bool is_os;    /* it has become the kernel's: the shadow knows */
};

static inline struct fake *fake_of_file(struct vma_file *file)
{
	return (struct fake *)file;
}
static uint32_t fake_poll(struct vma_file *file)
{
	struct fake *fake = fake_of_file(file);

	atomic_fetch_add_explicit(&fake->polls, 1, memory_order_relaxed);
	if (atomic_load(&fake->is_os))
		return 0;
	return (atomic_load(&fake->is_full) ? VMA_POLL_OWN_OUT : EPOLLOUT | EPOLLWRBAND) |
	       (atomic_load(&fake->queued) > 0 ? EPOLLIN : 0) | atomic_load(&fake->more);
}
static uint64_t fake_rings(struct vma_file *file)
{
	return atomic_load(&fake_of_file(file)->rings);
}
static _Atomic int fakes_destroyed;
static void backends_count_destroyed_fake(struct vma_file *file)
{
	(void)file;
	atomic_fetch_add(&fakes_destroyed, 1);
}
static const struct vma_file_ops fake_ops = {
        .name = "fake", .poll = fake_poll, .rings = fake_rings, .destroy = backends_count_destroyed_fake};

static inline int fake_install_udp_file(int fd)
{
	struct fake *fake = vma_alloc(sizeof(*fake));

	assert_non_null(fake);
	vma_file_init(&fake->file, VMA_FILE_UDP, &fake_ops);
	return vma_fd_install(fd, &fake->file);
}
static inline struct fake *fake_file_of_fd(int fd)
{
	return fake_of_file(vma_fd_lookup(fd));
}
static inline void fake_queue_datagram_and_wake(struct fake *fake)
{
	struct vma_thread *self = vma_enter();

	atomic_fetch_add(&fake->queued, 1);
	if (atomic_load(&fake->file.own_poll))
		vma_waitq_wake(&fake->file.waitq, true);
	vma_file_wake_sleepers_and_watchers(&fake->file, EPOLLIN);
	vma_leave(self);
}

static inline void fake_set_full(struct fake *fake, bool is_full)
{
	struct vma_thread *self = vma_enter();

	atomic_store(&fake->is_full, is_full);
	if (!is_full) {
		vma_waitq_wake(&fake->file.waitq, true);
		vma_file_wake_sleepers_and_watchers(&fake->file, EPOLLOUT);
	}
	vma_leave(self);
}

/* ---- what a program does ---- */

/* A loopback address of this process alone: what others send to 127.0.0.1, for a port that they had, does not come
 * here.
 */
static inline in_addr_t loopback_address_of_this_process(void)
{
	return htonl(INADDR_LOOPBACK | ((uint32_t)getpid() << 2 & 0xfffffc));
}

static inline int backend_socket(struct backend *be)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = loopback_address_of_this_process()};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	if (be->kind != KERNEL)
		assert_int_equal(fake_install_udp_file(fd), 0);
	if (be->kind == OWN)
		atomic_store(&fake_file_of_fd(fd)->file.own_poll, true);
	return fd;
}

static inline void send_by_kernel(int to)
{
	struct sockaddr_in addr;
	socklen_t len = sizeof(addr);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	assert_int_equal(getsockname(to, (struct sockaddr *)&addr, &len), 0);
	assert_int_equal(sendto(fd, "x", 1, 0, (struct sockaddr *)&addr, len), 1);
	close(fd);
}

#define ASKED_AGAIN_USEC 25 /* the OS is not asked twice within 20 us: what comes by a shadow may be seen so late */

/* A datagram arrives. */
static inline void backend_make_datagram_arrive(struct backend *be, int fd)
{
	if (be->kind == OFFLOADED || be->kind == OWN)
		fake_queue_datagram_and_wake(fake_file_of_fd(fd));
	else
		send_by_kernel(fd);
	if (be->kind == SHADOW)
		usleep(ASKED_AGAIN_USEC);
}

/* One is read. */
static inline void backend_recv(struct backend *be, int fd)
{
	char byte;

	if (be->kind == OFFLOADED || be->kind == OWN)
		assert_true(atomic_fetch_sub(&fake_file_of_fd(fd)->queued, 1) > 0);
	else
		assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), 1);
}

static inline int backend_dup(struct backend *be, int fd)
{
	int copy = dup(fd);

	if (be->kind != KERNEL && vma_fd_lookup(fd) != NULL)
		assert_int_equal(vma_fd_install(copy, vma_fd_lookup(fd)), 0);
	return copy;
}

static inline void backend_close(struct backend *be, int fd)
{
	if (be->kind != KERNEL)
		vma_fd_remove(fd);
	close(fd);
}

static inline int negative_errno_or_rc(int rc)
{
	return rc < 0 ? -errno : rc;
}

static inline int backend_epoll_ctl(struct backend *be, int epfd, int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = {.events = events, .data.u64 = data};
	struct vma_thread *self;
	int rc;

	if (be->kind == KERNEL)
		return negative_errno_or_rc(epoll_ctl(epfd, op, fd, &event));
	self = vma_enter();
	rc = vma_iomux_epoll_ctl(epfd, op, fd, &event);
	vma_leave(self);
	return rc;
}

static inline struct timespec timespec_from_msec(int msec)
{
	return (struct timespec){msec / 1000, msec % 1000 * 1000000L};
}

static __attribute__((noinline)) int backend_epoll_pwait(struct backend *be, int epfd, struct epoll_event *events,
                                                         int max, int msec, const sigset_t *mask)
{
	struct timespec timeout = timespec_from_msec(msec), *to = msec < 0 ? NULL : &timeout;
	struct vma_thread *self;
	struct epoll_set *set;
	int rc;

	if (be->kind == KERNEL)
		return negative_errno_or_rc(epoll_pwait2(epfd, events, max, to, mask));
	self = vma_enter();
	set = epoll_set_find(epfd);
	if (set != NULL)
		rc = vma_iomux_epoll_wait(&set->file, epfd, events, max, to, mask);
	vma_leave(self);
	return set != NULL ? rc : vma_iomux_epoll_wait_os(epfd, events, max, to, mask);
}

static __attribute__((noinline, unused)) int backend_epoll_wait(struct backend *be, int epfd,
                                                                struct epoll_event *events, int max, int msec)
{
	return backend_epoll_pwait(be, epfd, events, max, msec, NULL);
}

static __attribute__((noinline, unused)) int backend_ppoll(struct backend *be, struct pollfd *fds, nfds_t n,
                                                           const struct timespec *timeout, const sigset_t *mask)
{
	struct vma_thread *self;
	int rc;

	if (be->kind == KERNEL || !vma_iomux_poll_has_offloaded_fd(fds, n))
		return negative_errno_or_rc(ppoll(fds, n, timeout, mask));
	self = vma_enter();
	rc = vma_iomux_poll(fds, n, timeout, mask);
	vma_leave(self);
	return rc;
}

static inline int backend_poll(struct backend *be, struct pollfd *fds, nfds_t n, int msec)
{
	struct timespec timeout = timespec_from_msec(msec);

	return backend_ppoll(be, fds, n, msec < 0 ? NULL : &timeout, NULL);
}

static __attribute__((noinline, unused)) int backend_pselect(struct backend *be, int n, fd_set *r, fd_set *wr,
                                                             fd_set *e, const struct timespec *timeout,
                                                             const sigset_t *mask)
{
	struct vma_thread *self;
	int rc;

	if (be->kind == KERNEL || !vma_iomux_must_handle_select(n, r, wr, e))
		return negative_errno_or_rc(pselect(n, r, wr, e, timeout, mask));
	self = vma_enter();
	rc = vma_iomux_select(n, r, wr, e, timeout, mask, NULL);
	vma_leave(self);
	return rc;
}

/* ---- what it sees ---- */

#define say(be, ...) fprintf((be)->log, __VA_ARGS__)

/* "2: 1 a, 5 b": in the order of the data, because the kernel's order among several is its own affair. */
static inline void backends_say_events(struct backend *be, struct epoll_event *events, int n)
{
	say(be, "%d:", n);
	for (int done = 0; done < n; done++) {
		int least = -1;

		for (int i = 0; i < n; i++)
			if (events[i].events != UINT32_MAX &&
			    (least < 0 || events[i].data.u64 < events[least].data.u64))
				least = i;
		say(be, " %x %llx", events[least].events, (unsigned long long)events[least].data.u64);
		events[least].events = UINT32_MAX;
	}
	say(be, "\n");
}

static inline void backends_say_epoll_wait(struct backend *be, int epfd, int max, int msec)
{
	struct epoll_event events[64];

	backends_say_events(be, events, backend_epoll_wait(be, epfd, events, max, msec));
}

/* ---- all of them ---- */

/* cmocka puts its own handler in place for each test; the library's answers bad pointers. */
static struct sigaction our_segv;
static inline void run_scenario_in_all_backends(void (*scenario)(struct backend *be))
{
	struct backend backends[BACKENDS];

	for (int k = 0; k < BACKENDS; k++) {
		struct backend *be = &backends[k];

		*be = (struct backend){.kind = (enum kind)k};
		sigaction(SIGSEGV, &our_segv, NULL);
		be->log = open_memstream(&be->seen, &be->size);
		scenario(be);
		fclose(be->log);
		if (getenv("WORLDS") != NULL)
			fprintf(stderr, "%d:\n%s", k, be->seen);
	}
	assert_true(backends[KERNEL].size > 0);
	for (int k = KERNEL + 1; k < BACKENDS; k++)
		assert_string_equal(backends[k].seen, backends[KERNEL].seen);
	for (int k = 0; k < BACKENDS; k++)
		free(backends[k].seen);
}
/* Under ThreadSanitizer a fault that is jumped out of is the last one that a handler gets to see, and other
 * signals' handlers run when it likes. */
#ifdef VMA_TSAN
#define SKIP_SIGNALS() vma_test_skip("ThreadSanitizer has handlers run when it likes")
#else
#define SKIP_SIGNALS() (void)0
#endif
#define SAME_ON_ALL_BACKENDS(scenario)                                                                                 \
	static void test_##scenario(void **state)                                                                      \
	{                                                                                                              \
		(void)state;                                                                                           \
		run_scenario_in_all_backends(scenario);                                                                \
	}

/* A datagram in a while, from another thread. */
struct later {
	pthread_t thread;
	struct backend *be;
	int fd, msec;
};
static void *backends_datagram_arrives_later_thread(void *arg)
{
	struct later *later = arg;

	usleep((useconds_t)later->msec * 1000);
	backend_make_datagram_arrive(later->be, later->fd);
	return NULL;
}
static inline void begin_delayed_send(struct later *later, struct backend *be, int fd, int msec)
{
	*later = (struct later){.be = be, .fd = fd, .msec = msec};
	assert_int_equal(pthread_create(&later->thread, NULL, backends_datagram_arrives_later_thread, later), 0);
}
static inline void join_delayed_send_thread(struct later *later)
{
	pthread_join(later->thread, NULL);
}

static inline uint64_t msec_now(void)
{
	return vma_now_ns() / 1000000;
}

static inline void backends_free_retired_objects(void)
{
	for (int i = 0; i < 8; i++)
		vma_run_due_deferred_frees();
}

#define run_backends(name, tests, n)                                                                                   \
	(vma_signals_wrap_existing_handlers(), sigaction(SIGSEGV, NULL, &our_segv), vma_test_set_filter_from_env(),    \
	 _cmocka_run_group_tests(name, tests, n, NULL, NULL))

#endif
