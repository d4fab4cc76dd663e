/*
 * ring_file - the descriptor of a ring, which a program polls. It is readable while the ring has events: packets have
 * been handled since the program looked. A wait for it drives the ring, as a wait for a socket does.
 *
 *   program ── descriptor ──> vma_file ── ring_file ──> ring context ──> ring
 *                                             └─ listener <── packets were handled, or the ring was told
 *
 * The descriptor is an eventfd, so the number is the kernel's to give out. No thread writes to it: readiness is the
 * file's own (own_poll). It ends in one of three ways:
 *   the program closes it     the ring context is without one, and the next ask makes another
 *   the ring context ends     the file leads nowhere at once (EPOLLHUP); the internal thread empties its slot and closes
 *                             the number, as the thread that puts the last reference may hold locks that watchers
 *                             want
 *   fork                      in the child the file leads nowhere; the number stays until the child closes it
 *
 * No event is missed. A thread that handles packets has put their contents into queues (A). Then it counts the packets
 * in `heard` (B), then looks for sleepers and epoll sets. A thread that looks copies `heard` to `seen` (C), then looks
 * into queues (D). If D misses A, then B comes after C, and the two counts differ until the next look. A sleeper stands
 * in the file's queue before it compares the counts; B and the queue's own fences (wait/waitq.c) order that. Of two
 * looks at a time the older count may stay: then the file is readable once too often.
 *
 * The first drive that begins after the descriptor was given out is told. For that the listener and busy_mask are
 * stored before the receive flag is taken once. No lock is held then: the flag's holder may be about to take this one.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine.h"

struct ring_file {
	struct vma_file file;
	struct vma_ring_listener listener;
	struct vma_ring_ctx *_Atomic ring_ctx; /* NULL: it leads nowhere any more */
	struct vma_internal_task close_task;   /* posted once, with the ring context's reference */
	_Alignas(64) _Atomic uint64_t heard;
	_Atomic uint64_t seen;
};

static pthread_mutex_t ring_files_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf: ring contexts' `file` */

_Atomic uint32_t vma_ring_files;

static struct ring_file *ring_file_of_vma_file(const struct vma_file *file)
{
	return (struct ring_file *)file;
}

struct vma_ring_ctx *vma_ring_file_ctx(const struct vma_file *file)
{
	return atomic_load_explicit(&ring_file_of_vma_file(file)->ring_ctx, memory_order_acquire);
}

struct vma_ring_ctx *vma_ring_file_get_ring_ref(const struct vma_file *file)
{
	struct vma_ring_ctx *ring_ctx = vma_ring_file_ctx(file);

	return ring_ctx != NULL && vma_ring_ctx_try_add_ref(ring_ctx) ? ring_ctx : NULL;
}

/* ---- events ---- */

/* Everybody: sleepers wait for different things. */
static void ring_file_wake(struct vma_file *file, uint32_t events)
{
	struct vma_watchers *watchers;

	vma_waitq_wake(&file->waitq, true);
	watchers = atomic_load_explicit(&file->watchers, memory_order_acquire);
	if (watchers != NULL)
		vma_file_wake_watchers(file, watchers, events);
}

static void ring_file_on_ring_activity(struct vma_ring_listener *listener)
{
	struct ring_file *ring_file = (struct ring_file *)((char *)listener - offsetof(struct ring_file, listener));

	atomic_fetch_add(&ring_file->heard, 1);
	ring_file_wake(&ring_file->file, VMA_FILE_READABLE);
}

uint64_t vma_ring_file_activity_count(struct vma_file *file)
{
	return atomic_load(&ring_file_of_vma_file(file)->heard);
}

void vma_ring_file_mark_seen(struct vma_file *file, uint64_t heard)
{
	struct ring_file *ring_file = ring_file_of_vma_file(file);

	if (atomic_load_explicit(&ring_file->seen, memory_order_relaxed) != heard)
		atomic_store(&ring_file->seen, heard);
}

void vma_ring_file_mark_all_seen(struct vma_file *file)
{
	vma_ring_file_mark_seen(file, vma_ring_file_activity_count(file));
}

/* ---- what is asked of the file ---- */

static uint32_t ring_file_poll(struct vma_file *file)
{
	const struct ring_file *ring_file = ring_file_of_vma_file(file);
	const struct vma_ring_ctx *ring_ctx = vma_ring_file_ctx(file);

	if (ring_ctx == NULL)
		return EPOLLHUP;
	return atomic_load(&ring_file->heard) != atomic_load(&ring_file->seen) ? EPOLLIN : 0;
}

static uint64_t ring_file_mask_of_rings(struct vma_file *file)
{
	const struct vma_ring_ctx *ring_ctx = vma_ring_file_ctx(file);

	return ring_ctx != NULL ? vma_ring_ctx_bit(ring_ctx) : 0;
}

static ssize_t ring_file_recvmsg_einval(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	(void)file, (void)fd, (void)msg, (void)flags;
	return -EINVAL;
}

static ssize_t ring_file_sendmsg_einval(struct vma_file *file, int fd, const struct msghdr *msg, int flags)
{
	(void)file, (void)fd, (void)msg, (void)flags;
	return -EINVAL;
}

/*
 * With the lock; the ring context lives, as its `file` is emptied here before it ends. A thread inside may still call
 * the listener: the file is retired later.
 */
static void ring_file_detach_ring(struct ring_file *ring_file, struct vma_ring_ctx *ring_ctx)
{
	ring_ctx->file = NULL;
	atomic_fetch_sub_explicit(&vma_ring_files, 1, memory_order_relaxed);
	vma_ring_set_listener(ring_ctx->ring, NULL);
	atomic_store_explicit(&ring_ctx->busy_mask, RING_CTX_BUSY_DRIVES - 1, memory_order_relaxed);
	atomic_store_explicit(&ring_file->ring_ctx, NULL, memory_order_release);
}

static void ring_file_close(struct vma_file *file)
{
	struct ring_file *ring_file = ring_file_of_vma_file(file);
	struct vma_ring_ctx *ring_ctx;
	bool parts;

	pthread_mutex_lock(&ring_files_lock);
	ring_ctx = vma_ring_file_ctx(file);
	parts = ring_ctx != NULL && ring_ctx->file == ring_file;
	if (parts)
		ring_file_detach_ring(ring_file, ring_ctx);
	pthread_mutex_unlock(&ring_files_lock);
	if (parts)
		vma_file_put(file);
}

/* The parent's ring context had a reference. */
static void ring_file_drop_ring_in_fork_child(struct vma_file *file)
{
	if (atomic_exchange(&ring_file_of_vma_file(file)->ring_ctx, NULL) != NULL)
		vma_file_put(file);
}

static const struct vma_file_ops ring_file_ops = {
        .name = "ring",
        .recvmsg = ring_file_recvmsg_einval,
        .sendmsg = ring_file_sendmsg_einval,
        .poll = ring_file_poll,
        .rings = ring_file_mask_of_rings,
        .close = ring_file_close,
        .forked = ring_file_drop_ring_in_fork_child,
};

/* ---- its life ---- */

/* On the internal thread, inside, with the ring context's reference. */
static void ring_file_close_fd_task(struct vma_internal_task *task)
{
	struct ring_file *ring_file = (struct ring_file *)((char *)task - offsetof(struct ring_file, close_task));
	struct vma_file *file = &ring_file->file;
	const int fd = atomic_load(&file->fd);

	ring_file_wake(file, EPOLLHUP);
	vma_fd_close_file(fd, file);
	vma_file_put(file);
}

void ring_file_detach_and_close_of_ended_ring(struct vma_ring_ctx *ring_ctx)
{
	struct ring_file *ring_file;

	pthread_mutex_lock(&ring_files_lock);
	ring_file = ring_ctx->file;
	if (ring_file != NULL)
		ring_file_detach_ring(ring_file, ring_ctx);
	pthread_mutex_unlock(&ring_files_lock);
	if (ring_file != NULL)
		vma_engine_post_task_to_internal_thread(&ring_file->close_task);
}

static struct ring_file *ring_file_create(void)
{
	struct ring_file *ring_file = vma_alloc(sizeof(*ring_file));

	if (ring_file == NULL)
		return NULL;
	vma_file_init(&ring_file->file, VMA_FILE_RING, &ring_file_ops);
	atomic_store(&ring_file->file.own_poll, true);
	ring_file->listener.heard = ring_file_on_ring_activity;
	ring_file->close_task.run = ring_file_close_fd_task;
	vma_file_get(&ring_file->file); /* the caller's: once it has a number, any thread may close it */
	return ring_file;
}

/* Referenced. A number of its own, to which nothing of a ring leads yet. */
static int ring_file_open(struct ring_file **out)
{
	const int saved = errno;
	int fd = (int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK), rc;

	rc = fd < 0 ? -errno : 0;
	errno = saved;
	*out = rc == 0 ? ring_file_create() : NULL;
	if (rc == 0)
		rc = *out != NULL ? vma_fd_install(fd, &(*out)->file) : -ENOMEM;
	if (rc == 0)
		return fd;
	if (fd >= 0)
		syscall(SYS_close, fd);
	if (*out != NULL) {
		vma_file_put(&(*out)->file);
		vma_file_put(&(*out)->file);
	}
	return rc;
}

/* With the lock. The one that is open, or -1. */
static int ring_file_fd_of_ring(const struct vma_ring_ctx *ring_ctx)
{
	return ring_ctx->file != NULL ? atomic_load(&ring_ctx->file->file.fd) : -1;
}

/*
 * With a reference to the ring context. A file that has ended meanwhile (another thread has closed all descriptors that
 * it does not know) stays without a ring: ring_file_close comes after the mark, and takes the lock. One that has lost
 * its last number, and whose close is on its way, is parted here.
 */
static int ring_file_attach_ring(struct ring_file *ring_file, int fd, struct vma_ring_ctx *ring_ctx)
{
	struct ring_file *ended = NULL;
	int there;

	pthread_mutex_lock(&ring_files_lock);
	there = ring_file_fd_of_ring(ring_ctx);
	if (there < 0 && vma_file_is_closed(&ring_file->file)) {
		there = -EBADF;
	} else if (there < 0) {
		ended = ring_ctx->file;
		if (ended != NULL)
			ring_file_detach_ring(ended, ring_ctx);
		vma_file_get(&ring_file->file);
		atomic_store_explicit(&ring_file->ring_ctx, ring_ctx, memory_order_release);
		atomic_store_explicit(&ring_ctx->busy_mask, 0, memory_order_relaxed);
		ring_ctx->file = ring_file;
		atomic_fetch_add_explicit(&vma_ring_files, 1, memory_order_relaxed);
		vma_ring_set_listener(ring_ctx->ring, &ring_file->listener);
		there = fd;
	}
	pthread_mutex_unlock(&ring_files_lock);
	if (ended != NULL)
		vma_file_put(&ended->file);
	return there;
}

static int ring_file_open_fd_of_ring(struct vma_ring_ctx *ring_ctx)
{
	struct ring_file *ring_file;
	int fd = ring_file_open(&ring_file), joined;

	if (fd < 0)
		return fd;
	joined = ring_file_attach_ring(ring_file, fd, ring_ctx);
	if (vma_ring_acquire(ring_ctx->ring))
		vma_ring_release(ring_ctx->ring);
	if (joined != fd)
		vma_fd_close_file(fd, &ring_file->file);
	vma_file_put(&ring_file->file);
	return joined;
}

int vma_ring_ctx_get_or_open_fd(struct vma_ring_ctx *ring_ctx)
{
	int fd;

	pthread_mutex_lock(&ring_files_lock);
	fd = ring_file_fd_of_ring(ring_ctx);
	pthread_mutex_unlock(&ring_files_lock);
	if (fd >= 0)
		return fd;
	if (!vma_ring_ctx_try_add_ref(ring_ctx))
		return -ENODEV;
	fd = ring_file_open_fd_of_ring(ring_ctx);
	vma_ring_ctx_put(ring_ctx);
	return fd;
}

__attribute__((cold)) void ring_files_reset_in_fork_child(void)
{
	pthread_mutex_init(&ring_files_lock, NULL);
	atomic_store_explicit(&vma_ring_files, 0, memory_order_relaxed);
}
