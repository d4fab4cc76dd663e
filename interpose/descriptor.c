/*
 * descriptor - calls that copy and end descriptors.
 *
 * A copy leads to the same file. If the kernel ends a number (close), its slot empties before. If the kernel puts
 * something else under it at once (dup2), its slot empties after. A vfork child ends numbers of its own and must not
 * touch the table.
 */
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include <vma/iomux.h>
#include <vma/log.h>
#include <vma/stream.h>

#include "call.h"
#include "inherited.h"
#include "more.h"
#include "rights.h"

/*
 * Inside or not; the file's ops may want to be. Sends of connections that are queued leave after the close, whose FIN
 * joins the last of them.
 */
static void flush_sends_and_remove_fd_file(int fd)
{
	const int saved = errno;
	struct vma_thread *self = vma_enter();

	if (self->tx_batched == 0)
		vma_inet_flush_sends(self);
	vma_fd_remove(fd);
	vma_inet_flush_sends(self);
	vma_leave(self);
	errno = saved;
}

void remove_stale_file_of_new_fd(int fd)
{
	if (process_is_vfork_child())
		return;
	flush_sends_and_remove_fd_file(fd);
	vma_stream_linger_after_close();
}

/* What touch puts in a file's place is a TCP socket, which has every op that the file had. */
bool call_refetch_file_after_touch(struct call *call, int fd)
{
	struct vma_file *file;

	vma_fd_call_before_use_hook(fd);
	file = vma_fd_lookup(fd);
	if (file == NULL || file == call->file || file->kind != VMA_FILE_TCP || file->os_only)
		return false;
	call->file = file;
	return true;
}

/* ---- close ---- */

static __attribute__((noinline)) int close_offloaded_fd(int fd)
{
	int rc;

	pthread_testcancel();
	if (fd_is_librarys_own(fd)) {
		errno = EBADF;
		return -1;
	}
	if (process_is_vfork_child())
		return vma_os.close(fd);
	flush_sends_and_remove_fd_file(fd);
	rc = vma_os.close(fd);
	vma_stream_linger_after_close(); /* the number is free meanwhile, as the kernel's */
	return rc;
}

EXPORT(int, close, (int fd))
{
	if (FD_IS_NOT_OURS(fd))
		return vma_os.close(fd);
	return close_offloaded_fd(fd);
}
ALIAS(int, __close, close, (int fd))

/*
 * Empties the slots of a range that the kernel is about to close, and closes around the library's own: also in a vfork
 * child, which reaches its parent's internal thread by them (hand_over_fd_to_kernel), and loses them by exec.
 */
static int close_range_around_library_fds(unsigned first, unsigned last, int flags)
{
	const bool borrowed = process_is_vfork_child();
	const unsigned highest = (unsigned)vma_fd_highest(), end = last < highest ? last : highest;
	unsigned from = first;

	for (unsigned fd = first; fd <= end; fd++) {
		if (FD_IS_NOT_OURS((int)fd))
			continue;
		if (!fd_is_librarys_own((int)fd)) {
			if (!borrowed)
				flush_sends_and_remove_fd_file((int)fd);
			continue;
		}
		if (from < fd && vma_os.close_range(from, fd - 1, flags) != 0)
			return -1;
		from = fd + 1;
	}
	return from <= last ? vma_os.close_range(from, last, flags) : 0;
}

static int close_range_sparing_library_fds(unsigned first, unsigned last, int flags)
{
	int rc = close_range_around_library_fds(first, last, flags);

	vma_stream_linger_after_close();
	return rc;
}

/* Whether the kernel's own call does exactly what is wanted; also where it fails. */
static bool close_range_needs_only_kernel_call(unsigned first, unsigned last, int flags)
{
	const int highest = vma_fd_highest();

	return highest < 0 || first > (unsigned)highest || first > last || (flags & ~CLOSE_RANGE_UNSHARE) != 0;
}

EXPORT(int, close_range, (unsigned first, unsigned last, int flags))
{
	if (close_range_needs_only_kernel_call(first, last, flags))
		return vma_os.close_range(first, last, flags);
	/* Known to the kernel? Before anything is forgotten. An empty range at the top closes nothing. */
	if (vma_os.close_range(~0U, ~0U, 0) != 0)
		return -1;
	return close_range_sparing_library_fds(first, last, flags);
}

EXPORT(void, closefrom, (int low))
{
	const int highest = vma_fd_highest();

	if (low < 0)
		low = 0;
	if (highest < low) {
		libc_functions_get()->closefrom(low);
		return;
	}
	if (vma_os.close_range(~0U, ~0U, 0) == 0) {
		close_range_sparing_library_fds((unsigned)low, ~0U, 0);
		return;
	}
	for (; low <= highest; low++)
		call_close(low); /* refuses the library's own */
	libc_functions_get()->closefrom(low);
}

/* ---- copies ---- */

/*
 * A socket that stands at 0, 1 or 2 is what the C library's streams, and every program that this one starts, read and
 * write past us. A vfork child has no other use for a copy than its next program; but what it asks for is its parent's
 * to do (vma_engine_hand_over_from_vfork_child), and the table is not to change. A connection that the parent has
 * inherited itself is asked for by the child: that needs shared memory and an eventfd only.
 */
void hand_over_fd_to_kernel(int fd)
{
	const bool borrowed = process_is_vfork_child();
	struct vma_file *file;
	struct call call;

	if (!call_begin_without_flushing_sends(&call, fd))
		return;
	file = call.file;
	if (file->ops->hand_over == NULL) {
		call_leave(&call);
		return;
	}
	if (!borrowed || file->os_only) {
		vma_inet_flush_sends(call.self);
		file->ops->hand_over(file);
		call_leave(&call);
		return;
	}
	vma_file_get(file); /* not inside for as long as it takes: the child may be killed meanwhile */
	call_leave(&call);
	vma_engine_hand_over_from_vfork_child(file);
	vma_file_put(file);
	errno = call.saved_errno;
}

/* Of a descriptor that is not ours: of an epoll set that may become so, say. */
static int record_epoll_copy_of_dup_fd(int from, int to)
{
	vma_iomux_record_epoll_fd_dup(from, to);
	return return_new_fd_forget_old_file(to);
}

/*
 * `to` has just become a copy of `from`. Without memory for the table the copy would be a shadow that receives nothing:
 * it is taken back.
 */
static int register_dup_of_fd(int from, int to, bool cloexec)
{
	struct call call;
	bool from_parent;
	int rc;

	if (to < 0)
		return to;
	if (process_is_vfork_child()) {
		if (!cloexec)
			hand_over_fd_to_kernel(from);
		return to;
	}
	if (!call_begin_and_flush_held_sends(&call, from)) {
		record_epoll_copy_of_dup_fd(from, to);
		return to;
	}
	rc = vma_fd_install(to, call.file);
	from_parent = call.file->from_parent;
	call_leave(&call);
	vma_stream_linger_after_close(); /* for what `to` was */
	if (rc == -EBADF) {              /* closed meanwhile */
		return_new_fd_forget_old_file(to);
		return to;
	}
	if (rc == 0) {
		if (to <= STDERR_FILENO)
			hand_over_fd_to_kernel(to);
		else if (!cloexec && from_parent)
			inherited_mark_copied(to);
		return to;
	}
	vma_os.close(to);
	errno = -rc;
	return -1;
}

EXPORT(int, dup, (int fd))
{
	if (FD_IS_NOT_OURS(fd))
		return record_epoll_copy_of_dup_fd(fd, vma_os.dup(fd));
	return register_dup_of_fd(fd, vma_os.dup(fd), false);
}

static bool refuse_library_own_fd(int fd)
{
	if (!fd_is_librarys_own(fd) || process_is_vfork_child())
		return false;
	errno = EBADF;
	return true;
}

/* A connection that a forked process uses, too, is handed over while it still has a descriptor. */
static void hand_over_shared_conn_to_kernel_before_dup2(int from, int to)
{
	const int saved = errno;

	if (!FD_IS_NOT_OURS(to) && !process_is_vfork_child() && vma_os.fcntl(from, F_GETFD, NULL) >= 0)
		vma_stream_give_conn_to_kernel_before_dup2(to);
	errno = saved;
}

/* Frames held back leave by the old `to` first. */
EXPORT(int, dup2, (int from, int to))
{
	if (FD_IS_NOT_OURS(from) && FD_IS_NOT_OURS(to))
		return record_epoll_copy_of_dup_fd(from, vma_os.dup2(from, to));
	if (from == to)
		return vma_os.dup2(from, to);
	if (refuse_library_own_fd(to))
		return -1;
	hand_over_shared_conn_to_kernel_before_dup2(from, to);
	return register_dup_of_fd(from, vma_os.dup2(from, to), false);
}
ALIAS(int, __dup2, dup2, (int from, int to))

EXPORT(int, dup3, (int from, int to, int flags))
{
	if (FD_IS_NOT_OURS(from) && FD_IS_NOT_OURS(to))
		return record_epoll_copy_of_dup_fd(from, vma_os.dup3(from, to, flags));
	if (from == to)
		return vma_os.dup3(from, to, flags);
	if (refuse_library_own_fd(to))
		return -1;
	hand_over_shared_conn_to_kernel_before_dup2(from, to);
	return register_dup_of_fd(from, vma_os.dup3(from, to, flags), flags != 0);
}

static int descriptor_protocol_of(int fd)
{
	return vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_PROTOCOL, 0);
}

/*
 * A TCP socket that neither listens nor is connected, for the kernel: as the shadow of an offloaded connection is.
 * Whoever takes another process's socket wants one in use, so only few others are told of.
 */
static bool fd_may_be_shadow_of_offloaded_tcp(int fd)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(peer);

	return descriptor_protocol_of(fd) == IPPROTO_TCP &&
	       vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_ACCEPTCONN, 1) == 0 &&
	       vma_os.getpeername(fd, (struct sockaddr *)&peer, &len) != 0 && errno == ENOTCONN;
}

/* Of another process, which hands it over as if it had sent it. */
static int register_fd_got_by_pidfd_getfd(int pidfd, int number, int fd)
{
	const int saved = errno;
	int protocol, rc;

	if (return_new_fd_forget_old_file(fd) < 0)
		return fd;
	protocol = descriptor_protocol_of(fd);
	rc = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP
	             ? vma_engine_ask_process_to_hand_over_fd(pidfd, number, fd)
	             : 0;
	if (rc == 1)
		rights_register_received_fd(fd);
	else if (rc < 0 && fd_may_be_shadow_of_offloaded_tcp(fd))
		vma_log_once(
		        VMA_LOG_WARN,
		        "pidfd_getfd has taken an unconnected TCP socket from a process that does not hand it over "
		        "(%s): a connection that is offloaded there stays there, have it sent by SCM_RIGHTS",
		        strerrordesc_np(-rc));
	errno = saved;
	return fd;
}

/*
 * A copy of another process's descriptor, or of this one's own. Of a socket that this process has under the same number
 * (its own, or one that a fork has left to both) it is one more number. Any other is the kernel's socket, and its owner
 * is asked for what it has taken past the kernel.
 */
EXPORT(int, pidfd_getfd, (int pidfd, int fd, unsigned flags))
{
	const int copy = libc_functions_get()->pidfd_getfd(pidfd, fd, flags), saved = errno;
	uint64_t cookie;

	if (copy < 0 || FD_IS_NOT_OURS(fd) || fd == copy)
		return register_fd_got_by_pidfd_getfd(pidfd, fd, copy);
	cookie = vma_sock_cookie(fd);
	if (cookie == 0 || cookie != vma_sock_cookie(copy)) {
		errno = saved;
		return register_fd_got_by_pidfd_getfd(pidfd, fd, copy);
	}
	errno = saved;
	return register_dup_of_fd(fd, copy, true);
}

/* ---- fcntl ---- */

static __attribute__((noinline)) int fcntl_offloaded_fd(int fd, int cmd, void *arg)
{
	struct call call;

	if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC)
		return register_dup_of_fd(fd, vma_os.fcntl(fd, cmd, arg), cmd != F_DUPFD);
	if (cmd == F_SETFD && ((intptr_t)arg & FD_CLOEXEC) == 0 && process_is_vfork_child())
		hand_over_fd_to_kernel(fd);
	else if (cmd == F_SETFD && ((intptr_t)arg & FD_CLOEXEC) == 0)
		inherited_mark_copied(fd);
	pthread_testcancel();
	if (!call_begin_and_flush_held_sends(&call, fd))
		return vma_os.fcntl(fd, cmd, arg);
	if (call.file->ops->fcntl == NULL || call.file->os_only) {
		call_leave(&call); /* says nothing of the connection: a parent's stays there */
		return vma_os.fcntl(fd, cmd, arg);
	}
	return (int)call_end(&call, call.file->ops->fcntl(call.file, fd, cmd, arg));
}

static inline int fcntl_offloaded_or_os_fd(int fd, int cmd, void *arg, int (*os)(int fd, int cmd, void *arg))
{
	if (!FD_IS_NOT_OURS(fd))
		return fcntl_offloaded_fd(fd, cmd, arg);
	if (__builtin_expect(cmd != F_DUPFD && cmd != F_DUPFD_CLOEXEC, 1))
		return os(fd, cmd, arg);
	return record_epoll_copy_of_dup_fd(fd, os(fd, cmd, arg));
}

EXPORT(int, fcntl, (int fd, int cmd, void *arg))
{
	return fcntl_offloaded_or_os_fd(fd, cmd, arg, vma_os.fcntl);
}
ALIAS(int, __fcntl, fcntl, (int fd, int cmd, void *arg))

EXPORT(int, fcntl64, (int fd, int cmd, void *arg))
{
	return fcntl_offloaded_or_os_fd(fd, cmd, arg, vma_os.fcntl64);
}

/* ---- inside the C library ---- */

/*
 * The resolver makes and closes its sockets inside the C library, so none of them is ever ours. Here because programs
 * that open a library like this one by name (sockperf --load-vma) look for it.
 */
EXPORT(void, __res_iclose, (void *state, int free_addresses))
{
	libc_functions_get()->__res_iclose(state, free_addresses);
}
