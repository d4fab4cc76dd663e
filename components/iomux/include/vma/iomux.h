/*
 * iomux - select, poll and epoll over any mix of offloaded sockets and the OS's descriptors.
 *
 *   poll, select: spin over the offloaded ones and their rings, ask the OS every ratio, then sleep on all
 *   epoll: E  the application's own epoll descriptor: holds its OS descriptors, as the application gave them
 *          S  ours, one per set with an offloaded member: the members' shadows, and E
 *          ready list: members whose offloaded half has events; so a wait costs by events, not by members
 *
 * Results are as the system calls', errors are negative errno. Pointers are the application's: -EFAULT.
 *
 * Threads: any. One thread at a time collects from a set; others come to see what it left.
 * Progress: a call spins as VMA_SELECT_POLL says and as long as that pays, then sleeps.
 * Memory: a set is an object from its first offloaded member on, until its last descriptor closes. It spends one
 *         descriptor. A set that has OS descriptors only spends nothing and is not touched.
 * Example: test/test_epoll.c; tests/parity/.
 */
#ifndef VMA_IOMUX_H
#define VMA_IOMUX_H

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

#include <vma/sock.h>

/* Whether any of them is ours, or is to be looked at all the same (VMA_SELECT_POLL_OS_FORCE): if not, the caller makes
 * the kernel's call with its own arguments. No call into the kernel. */
bool vma_iomux_poll_has_offloaded_fd(const struct pollfd *fds, nfds_t n);
bool vma_iomux_must_handle_select(int n, const fd_set *r, const fd_set *w, const fd_set *e);
/* timeout NULL: for ever. *left, if not NULL, gets what is left of the timeout (select changes its timeval). */
int vma_iomux_poll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int vma_iomux_select(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask,
                     struct timespec *left);

/*
 * epoll_ctl for all sets: makes the set ours when fd is (or is a set that is). epoll_wait for a set that is ours
 * (vma_fd_lookup tells: kind VMA_FILE_EPOLL); others are the kernel's, by way of vma_iomux_epoll_wait_os.
 */
int vma_iomux_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int vma_iomux_epoll_wait(struct vma_file *set, int epfd, struct epoll_event *events, int max,
                         const struct timespec *timeout, const sigset_t *mask);
/*
 * epoll_wait for a set that is not ours, called outside: the kernel's, but for a set that becomes ours while the thread
 * waits, or has just become so: then the wait goes on as above.
 */
int vma_iomux_epoll_wait_os(int epfd, struct epoll_event *events, int max, const struct timespec *timeout,
                            const sigset_t *mask);
/*
 * A set that is not ours was made, or the kernel's epoll_ctl has added something to it: a set that becomes ours may be
 * in it. A number that was copied, to -1 if that failed, may be a set's: when that becomes ours it does so under both.
 */
void vma_iomux_record_epoll_fd(int epfd);
void vma_iomux_record_epoll_fd_dup(int from, int to);

#endif
