/*
 * rights - descriptors that leave in a control message (SCM_RIGHTS), or arrive in one.
 *
 *   sendmsg ── carries a socket of ours ── hand_over_fd_to_kernel: it becomes the kernel's ──> the kernel's sendmsg
 *   recvmsg ── the kernel's ─┬─ a number that the table still has was closed unseen ── its slot empties
 *                            └─ a listener of a process that has the library, too ── served by both
 *
 * The receiver may be any process, and may go on with the socket the moment the message is sent. So the socket is the
 * kernel's before that, with all that is queued, as if a forked process used it. If the kernel then refuses the
 * message, only the offload is lost. A listener is told, since it comes back when it knows which process has it. A
 * message to a socket of ours carries no descriptors: only unix sockets take them.
 *
 * The application's message is read with vma_memcpy_or_efault, because the kernel's call answers EFAULT for a bad
 * pointer. If something is not well formed, the look ends; the kernel refuses the whole message then.
 */
#include <limits.h>
#include <string.h>

#include "rights.h"

#include "message.h"

enum {
	RIGHTS_MAX = 253, /* the kernel's SCM_MAX_FD: a message with more is refused */
	AT_ONCE = 16,     /* the application's stack may be a small one */
};

static int copy_from_application(void *to, const void *from, size_t size)
{
	const int saved = errno;
	struct vma_thread *self;
	int rc;

	process_check_for_raw_clone_child();
	self = vma_enter();
	rc = vma_memcpy_or_efault(to, from, size);
	vma_leave(self);
	errno = saved;
	return rc;
}

/* So many of them have been looked at; 0 ends the look. */
static unsigned rights_visit_some_fds(const char *fds, unsigned n, void (*visit)(int fd))
{
	int some[AT_ONCE];

	n = n < AT_ONCE ? n : AT_ONCE;
	if (n == 0 || copy_from_application(some, fds, n * sizeof(some[0])) != 0)
		return 0;
	for (unsigned i = 0; i < n; i++)
		visit(some[i]);
	return n;
}

static void for_each_passed_fd(const struct msghdr *msg, void (*visit)(int fd))
{
	const char *at = msg->msg_control;
	size_t left = msg->msg_controllen;
	unsigned total = 0;
	struct cmsghdr head;

	while (left >= sizeof(head)) {
		if (copy_from_application(&head, at, sizeof(head)) != 0 || head.cmsg_len < sizeof(head) ||
		    head.cmsg_len > left)
			return;
		if (head.cmsg_level == SOL_SOCKET && head.cmsg_type == SCM_RIGHTS) {
			size_t all = (head.cmsg_len - CMSG_LEN(0)) / sizeof(int);
			unsigned n = all < RIGHTS_MAX - total ? (unsigned)all : RIGHTS_MAX - total, done = 0, some;

			while ((some = rights_visit_some_fds(at + CMSG_LEN(done * sizeof(int)), n - done, visit)) != 0)
				done += some;
			total += done;
		}
		if (CMSG_ALIGN(head.cmsg_len) >= left)
			return;
		at += CMSG_ALIGN(head.cmsg_len);
		left -= CMSG_ALIGN(head.cmsg_len);
	}
}

/* ---- leaving ---- */

static void hand_over_fd_if_offloaded(int fd)
{
	if (!FD_IS_NOT_OURS(fd))
		hand_over_fd_to_kernel(fd);
}

void rights_hand_over_fds_passed_in_message(const struct msghdr *msg)
{
	struct msghdr own;

	/* The kernel refuses more. */
	if (copy_from_application(&own, msg, sizeof(own)) == 0 && own.msg_control != NULL &&
	    own.msg_controllen <= INT_MAX)
		for_each_passed_fd(&own, hand_over_fd_if_offloaded);
}

void rights_hand_over_fds_passed_in_messages(const struct mmsghdr *msgs, unsigned n)
{
	for (unsigned i = 0; i < n && i < MESSAGE_PIECES_MAX; i++)
		rights_hand_over_fds_passed_in_message(&msgs[i].msg_hdr);
}

static void undo_passing_of_fd(int fd)
{
	if (!FD_IS_NOT_OURS(fd) && !process_is_vfork_child())
		vma_stream_undo_scm_rights_send(fd);
}

void rights_undo_passing_of_fds(const struct msghdr *msg)
{
	const int saved = errno;
	struct msghdr own;

	if (copy_from_application(&own, msg, sizeof(own)) == 0 && own.msg_control != NULL &&
	    own.msg_controllen <= INT_MAX)
		for_each_passed_fd(&own, undo_passing_of_fd);
	errno = saved;
}

/* ---- arriving ---- */

void rights_register_received_fd(int fd)
{
	const int saved = errno;

	return_new_fd_forget_old_file(fd);
	if (fd >= 0 && vma_stream_fd_is_unconnected_tcp_socket(fd) && !process_is_vfork_child()) {
		process_start_library_once();
		vma_stream_adopt_passed_fd(fd);
	}
	errno = saved;
}

/* In a process whose table is empty nothing has been started. The kernel has just written what is read here. */
static void register_fds_of_received_rights(const struct msghdr *msg)
{
	struct msghdr own = *msg;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(&own); c != NULL; c = CMSG_NXTHDR(&own, c)) {
		const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			rights_register_received_fd(fd);
		}
	}
}

void rights_register_received_fds(const struct msghdr *msg)
{
	if (msg->msg_control == NULL || msg->msg_controllen < CMSG_LEN(sizeof(int)))
		return;
	if (process_has_had_own_fds())
		for_each_passed_fd(msg, rights_register_received_fd);
	else
		register_fds_of_received_rights(msg);
}
