/*
 * call - what every exported function is made of.
 *
 *   application ── recv() ──┬─ the table has nothing under this number ──> vma_os.recv, a jump
 *                           └─ ours: call_begin_and_flush_held_sends ── ops->recvmsg ── call_end ──> errno
 *                                       └─ no op, os_only, ended meanwhile: call_leave ──> vma_os.recv
 *
 * The functions bear their names in the assembler only. As C identifiers they would meet the C library's own
 * declarations, with attributes (nonnull, fortify) that let the compiler drop checks of the application's pointers.
 *
 * Threads: any. A struct call lives in its caller's stack frame. From call_begin_and_flush_held_sends to call_end or
 * call_leave the thread is inside.
 */
#ifndef VMA_INTERPOSE_CALL_H
#define VMA_INTERPOSE_CALL_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include <vma/inet.h>
#include <vma/sock.h>
#include <vma/sock_engine.h>
#include <vma/sock_os.h>
#include <vma/stream.h>
#include <vma/udp.h>

#include "process.h"

/* vma_call_NAME is the same function under a name that --wrap leaves alone, for other files of this folder. */
#define EXPORT(type, name, parameters)                                                                                 \
	__asm__(".globl vma_call_" #name "\n.hidden vma_call_" #name "\n.set vma_call_" #name ", " #name "\n");        \
	type call_##name parameters __asm__(#name) __attribute__((visibility("default")));                             \
	type call_##name parameters
#define ALIAS(type, alias_name, name, parameters)                                                                      \
	type call_##alias_name parameters __asm__(#alias_name) __attribute__((visibility("default"), alias(#name)));

/* Whether the table has nothing under a number. */
#define FD_IS_NOT_OURS(fd) __builtin_expect(vma_fd_lookup(fd) == NULL, 1)
/*
 * The same in one load, with no call that would make the compiler keep the arguments: what follows is a jump. Not of
 * numbers beyond the array, which go the long way.
 */
#define FD_IS_NOT_OURS_BY_ONE_LOAD(fd)                                                                                 \
	__builtin_expect((unsigned)(fd) < VMA_FD_LOW && atomic_load_explicit(&vma_fd_low[(unsigned)(fd) % VMA_FD_LOW], \
	                                                                     memory_order_relaxed) == NULL,            \
	                 1)

struct call {
	struct vma_thread *self;
	struct vma_file *file;
	int saved_errno; /* system calls that succeed leave errno alone */
};

/*
 * Inside, or false and outside: the descriptor is the kernel's (again), or the library's own. The data path's: frames
 * that this thread holds back stay.
 */
static inline bool call_begin_without_flushing_sends(struct call *call, int fd)
{
	process_check_for_raw_clone_child();
	call->saved_errno = errno;
	call->self = vma_enter();
	call->file = vma_fd_lookup(fd);
	if (__builtin_expect(call->file != NULL && call->file->kind != VMA_FILE_INTERNAL, 1))
		return true;
	vma_leave(call->self);
	return false;
}

/* Any other call makes frames leave that this thread held back for a batch. */
static inline bool call_begin_and_flush_held_sends(struct call *call, int fd)
{
	if (!call_begin_without_flushing_sends(call, fd))
		return false;
	vma_inet_flush_sends(call->self);
	return true;
}

/* Without a result: the kernel's call follows. */
static inline void call_leave(struct call *call)
{
	vma_leave(call->self);
	errno = call->saved_errno;
}

static inline ssize_t call_end(struct call *call, ssize_t rc)
{
	vma_leave(call->self);
	if (__builtin_expect(rc < 0, 0)) {
		errno = (int)-rc;
		return -1;
	}
	errno = call->saved_errno;
	return rc;
}

/* True: another file, which serves the call, stands under the number now. See descriptor.c. */
bool call_refetch_file_after_touch(struct call *call, int fd) __attribute__((cold));

/* Inside with a file that has this op, or false and outside. */
#define CALL_BEGIN_OP(call, fd, op)                                                                                    \
	(call_begin_and_flush_held_sends((call), (fd)) &&                                                              \
	 call_leave_unless_file_supports_op((call), (fd), (call)->file->ops->op != NULL))
#define CALL_BEGIN_DATA_OP(call, fd, op)                                                                               \
	(call_begin_without_flushing_sends((call), (fd)) &&                                                            \
	 call_leave_unless_file_supports_op((call), (fd), (call)->file->ops->op != NULL))
static inline bool call_leave_unless_file_supports_op(struct call *call, int fd, bool has)
{
	if (__builtin_expect(has && !call->file->os_only, 1))
		return true;
	if (__builtin_expect(has && atomic_load_explicit(&vma_any_file_needs_touch, memory_order_relaxed), 0) &&
	    call_refetch_file_after_touch(call, fd))
		return true;
	vma_ring_ctxs_drive_overdue(call->self);
	call_leave(call);
	return false;
}

/*
 * A number that the kernel has just given out: what the table has under it was closed unseen, by a system call of the
 * application's own or inside the C library.
 */
void remove_stale_file_of_new_fd(int fd) __attribute__((cold));
static inline int return_new_fd_forget_old_file(int fd)
{
	if (__builtin_expect(fd >= 0 && vma_fd_lookup(fd) != NULL, 0))
		remove_stale_file_of_new_fd(fd);
	return fd;
}

/* Outside. A descriptor of ours is passed on: see descriptor.c. */
void hand_over_fd_to_kernel(int fd) __attribute__((cold));

/*
 * The library's own descriptors are nobody else's to close. Who is inside is the library itself: libnl and libbpf
 * close theirs through us.
 */
static inline bool fd_is_librarys_own(int fd)
{
	return __builtin_expect(vma_fd_is_library_internal(fd), 0) &&
	       (vma_thread_cache == NULL || vma_thread_cache->inside == 0);
}

#endif
