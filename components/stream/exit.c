/*
 * exit.c - the end of the process: the bytes that have been sent are to arrive.
 *
 * The kernel would go on for every socket by itself. Here the process stays until the peers have acknowledged all of
 * it, or two seconds are over. Then it stays a moment for the peers' own ends, which come at once as a rule. Those need
 * not be left to vmad, which answers what comes later (vma_tcp_end_all_connections_at_exit, by
 * vma_engine_flush_and_log_at_exit). Connections are not taken down beyond that: other threads may still be inside.
 *
 * Other threads go on until the process is gone, and the kernel's sockets do not change for them before. Here they find
 * their connections closed. That could give a thread an error, an end of stream, or a SIGPIPE, which would be the
 * status of the process. Such a thread rests until the end. It rests no longer than the end takes, in case a later
 * handler of exit waits for it.
 */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "stream_priv.h"

enum { FLUSH_NS = 2000000000, PART_NS = 5000000, LOCK_S = 1, SLEEP_NS = 100000, REST_NS = 50000000 };

_Atomic bool stream_process_is_exiting;
static _Atomic uint64_t exit_sleep_until_ns;

/* Inside. Not the C library's nanosleep, which is a cancellation point. */
void stream_sleep_until_exit_deadline(void)
{
	const struct timespec nap = {.tv_nsec = SLEEP_NS};
	struct vma_thread *self = vma_thread_self();

	vma_leave(self);
	while (vma_now_ns() < atomic_load(&exit_sleep_until_ns))
		syscall(SYS_nanosleep, &nap, NULL);
	vma_enter();
}

struct timespec exit_lock_deadline_of_realtime(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += LOCK_S;
	return until;
}

static bool stream_hand_over_forked_conn_to_kernel(struct stream_sock *sock, const struct timespec *until)
{
	bool given;

	if (!atomic_load(&sock->forked) || pthread_mutex_timedlock(&sock->file.lock, until) != 0)
		return false;
	given = stream_hand_over_to_kernel(sock);
	pthread_mutex_unlock(&sock->file.lock);
	return given;
}

static void stream_close_conn_at_exit(struct vma_file *file, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	struct vma_tcp_conn *conn;

	if (file->kind != VMA_FILE_TCP || file->os_only)
		return;
	conn = stream_tcp_conn(sock);
	if (conn == NULL || stream_hand_over_forked_conn_to_kernel(sock, arg))
		return;
	vma_tcp_close(conn, sock->linger_on && sock->linger_sec == 0);
}

static bool any_tcp_stack_satisfies(bool (*is)(struct vma_tcp *tcp))
{
	for (unsigned bit = 0; bit < 64; bit++) {
		struct vma_ring_ctx *ring_ctx = atomic_load_explicit(&vma_ring_ctxs[bit], memory_order_acquire);

		for (; ring_ctx != NULL; ring_ctx = atomic_load_explicit(&ring_ctx->next, memory_order_acquire)) {
			struct vma_tcp *tcp = atomic_load_explicit(&ring_ctx->tcp, memory_order_acquire);

			if (tcp != NULL && is(tcp))
				return true;
		}
	}
	return false;
}

static bool stack_is_busy(struct vma_tcp *tcp)
{
	return vma_tcp_is_busy(tcp);
}

static void exit_drive_rings_while(bool (*is)(struct vma_tcp *tcp), uint64_t limit_ns)
{
	const struct timespec nap = {.tv_nsec = SLEEP_NS};
	const uint64_t end_ns = vma_now_ns() + limit_ns;
	struct vma_thread *self;
	bool more;

	do {
		self = vma_enter();
		vma_ring_ctxs_progress(UINT64_MAX);
		more = any_tcp_stack_satisfies(is);
		vma_leave(self);
		if (more)
			nanosleep(&nap, NULL);
	} while (more && vma_now_ns() < end_ns);
}

void vma_stream_close_and_flush_at_exit(void)
{
	struct timespec until;
	struct vma_thread *self;

	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) == NULL)
		return;
	atomic_store(&exit_sleep_until_ns, vma_now_ns() + FLUSH_NS + REST_NS);
	atomic_store(&stream_process_is_exiting, true);
	until = exit_lock_deadline_of_realtime();
	self = vma_enter();
	vma_file_each(stream_close_conn_at_exit, &until);
	stream_fork_owner_close_rpc_page();
	vma_leave(self);
	exit_drive_rings_while(stack_is_busy, FLUSH_NS);
	exit_drive_rings_while(vma_tcp_has_orphans, PART_NS);
	self = vma_enter();
	stream_create_kernel_timewait_sockets_at_exit();
	vma_leave(self);
	atomic_store(&exit_sleep_until_ns, vma_now_ns() + REST_NS);
}
