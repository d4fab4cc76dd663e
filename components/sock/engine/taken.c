/*
 * taken - sockets that another process takes by pidfd_getfd: the taker asks the owner process to hand them over.
 *
 *   taker   pidfd_getfd ── "your number 7 is the socket with cookie c" ──> owner
 *           the kernel says that the answer is the owner's <── SHOW ────── it has the number, and offloads the socket
 *           ── the same, and the socket itself ──────────────────────────> it is that socket: ops->hand_over
 *           goes on with it <── HANDED_OVER ────────────────────────────── the kernel's from now on
 *
 * A process that has an interface open serves an abstract name, in its network namespace, which only this process can
 * have rightfully. It is the number of its pidfd's inode, which the kernel gives out once (pidfs), or its pid on a
 * kernel whose pidfds have none.
 *
 * The owner hears root and its own user, as pidfd_getfd does. It hands over only a socket that it has been shown: a
 * process that has the socket may do with it what it likes. The sender is the kernel's word (SCM_CREDENTIALS). The
 * descriptors in a message of another sender are never this process's: their close could wait for a file system of the
 * sender's.
 *
 * The taker shows the socket only to the process that it has taken it from. A process which has bound the name before
 * cannot send an answer in the name of the owner's pid.
 *
 * A program of any user that has inherited a socket through exec (inherited.c) asks as well: it shows the number that
 * it has. The kernel compares the files (kcmp), so no descriptor of a stranger comes here. If the kernel does not
 * compare, a sender that is heard shows the socket as above.
 *
 * So many messages in a millisecond are looked at, then the thread goes on with its work. Senders wait in the kernel
 * meanwhile: the queue of a socket is short.
 *
 * Threads: taken_open_hand_over_server under the devices' lock; the internal thread answers; any thread asks.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock_unix.h>
#include <vma/sock_os.h>

#include "internal.h"
#include "taken.h"

#ifndef PID_FS_MAGIC
#define PID_FS_MAGIC 0x50494446
#endif

#define REPLY_TIMEOUT_NS 5000000000ULL
#define UNRESPONSIVE_NS 10000000000ULL /* an owner that has not answered is not asked for so long */
enum { MESSAGES_IN_MS = 8, NAME_BYTES = 48 };

/* ---- what a pidfd says ---- */

/* /proc's word about it, a string; false: /proc is not there. */
static bool read_fdinfo_of_pidfd(int pidfd, char *text, size_t size)
{
	char path[48];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/thread-self/fdinfo/%d", pidfd);
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = syscall(SYS_read, fd, text, size - 1);
	syscall(SYS_close, fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0;
}

int parse_pid_of_fdinfo(const char *fdinfo)
{
	const char *line = strstr(fdinfo, "\nPid:\t");

	return line != NULL ? atoi(line + sizeof("\nPid:\t") - 1) : 0;
}

int parse_innermost_pid_of_fdinfo(const char *fdinfo)
{
	const char *line = strstr(fdinfo, "\nNSpid:\t"), *last;

	if (line == NULL)
		return 0;
	last = line += sizeof("\nNSpid:") - 1;
	for (; *line != '\0' && *line != '\n'; line++)
		if (*line == '\t')
			last = line;
	return atoi(last + 1);
}

/* The same for all who have a pidfd of the process. */
static bool unix_socket_name_of_process(int pidfd, char name[NAME_BYTES])
{
	char text[1024];
	struct statfs fs;
	struct stat state;
	int pid;

	if (syscall(SYS_fstatfs, pidfd, &fs) == 0 && fs.f_type == PID_FS_MAGIC && fstat(pidfd, &state) == 0) {
		snprintf(name, NAME_BYTES, TAKEN_NAME "%llu", (unsigned long long)state.st_ino);
		return true;
	}
	pid = read_fdinfo_of_pidfd(pidfd, text, sizeof(text)) ? parse_innermost_pid_of_fdinfo(text) : 0;
	snprintf(name, NAME_BYTES, TAKEN_NAME "pid/%d", pid);
	return pid > 0;
}

/* ---- the owner ---- */

static struct {
	int fd;
	struct vma_internal_task answer, rest;
	uint64_t since_ns; /* of the messages that are counted */
	unsigned messages;
} server = {.fd = -1};

/*
 * A number leaves the table before the kernel closes it: if the file is still there after the look at the socket, the
 * socket is the file's.
 */
static enum taken_reply hand_over_socket_taken_by_process(const struct taken_request *question, int shown)
{
	struct vma_file *file = vma_fd_lookup(question->number);

	if (file == NULL || file->kind == VMA_FILE_INTERNAL || file->ops->hand_over == NULL || question->cookie == 0 ||
	    vma_sock_cookie(question->number) != question->cookie || vma_fd_lookup(question->number) != file)
		return TAKEN_NOT_MINE;
	if (shown < 0)
		return TAKEN_SHOW_SOCKET;
	if (vma_sock_cookie(shown) != question->cookie)
		return TAKEN_NOT_MINE;
	file->ops->hand_over(file);
	return file->ops->reason(file) == VMA_SOCK_OFFLOADED ? TAKEN_STAYS : TAKEN_HANDED_OVER;
}

struct search {
	uint64_t cookie;
	struct vma_file *found;
};

static void find_file_by_socket_cookie(struct vma_file *file, void *arg)
{
	struct search *search = arg;
	const int fd = atomic_load(&file->fd);

	if (search->found == NULL && (file->kind == VMA_FILE_TCP || file->kind == VMA_FILE_UDP) && fd >= 0 &&
	    vma_sock_cookie(fd) == search->cookie && vma_fd_lookup(fd) == file)
		search->found = file;
}

/* 1: it is; 0: it is not; -EPERM, -ENOSYS, ...: the kernel does not say. */
static int process_fd_is_same_open_file(int fd, pid_t other, int number)
{
	const long rc = other > 0 ? syscall(SYS_kcmp, syscall(SYS_getpid), other, KCMP_FILE, fd, number) : -1;

	return rc < 0 ? -EPERM : rc == 0;
}

/*
 * A stranger whose file it is not hears only that it is refused, whether there is such a socket or not. A stranger's
 * question that nothing comes of costs a system call for each socket, so the next one waits for the next
 * millisecond.
 */
static enum taken_reply answer_request_for_inherited_socket(const struct inherited_request *question,
                                                            const struct vma_unix_message *message, int *waiting_fd)
{
	struct search search = {.cookie = question->cookie};
	const bool is_trusted = vma_unix_sender_is_root_or_self(&message->sender);
	int same;

	if (question->cookie != 0)
		vma_file_each(find_file_by_socket_cookie, &search);
	if (search.found == NULL) {
		server.messages = is_trusted ? server.messages : MESSAGES_IN_MS;
		return is_trusted ? TAKEN_NOT_MINE : TAKEN_REFUSED;
	}
	same = message->fd >= 0 ? vma_sock_cookie(message->fd) == question->cookie
	                        : process_fd_is_same_open_file(atomic_load(&search.found->fd), message->sender.pid,
	                                                       question->number);
	if (same <= 0)
		return !is_trusted ? TAKEN_REFUSED : same == 0 ? TAKEN_NOT_MINE : TAKEN_SHOW_SOCKET;
	if (search.found->ops->exec_export != NULL)
		*waiting_fd = search.found->ops->exec_export(search.found);
	else if (search.found->ops->hand_over != NULL)
		search.found->ops->hand_over(search.found);
	return search.found->ops->reason(search.found) == VMA_SOCK_OFFLOADED ? TAKEN_STAYS : TAKEN_HANDED_OVER;
}

/* False: there is none. */
static bool serve_one_taken_or_inherited_request(void)
{
	union {
		struct taken_request taken;
		struct inherited_request inherited;
	} question;
	struct vma_unix_message message = {.data = &question, .size = sizeof(question)};
	enum taken_reply answer = TAKEN_REFUSED;
	struct vma_unix_cred sender;
	int rc = vma_unix_peek_sender_cred(server.fd, &sender), waiting_fd = -1;
	uint8_t byte;

	if (rc == 0)
		rc = vma_unix_recv_with_sender_and_fd(server.fd, &message, vma_unix_sender_is_root_or_self(&sender));
	if (rc < 0)
		return false;
	if (rc == sizeof(question.taken) && vma_unix_sender_is_root_or_self(&message.sender))
		answer = hand_over_socket_taken_by_process(&question.taken, message.fd);
	else if (rc == sizeof(question.inherited))
		answer = answer_request_for_inherited_socket(&question.inherited, &message, &waiting_fd);
	if (message.fd >= 0)
		syscall(SYS_close, message.fd);
	byte = (uint8_t)answer;
	message.data = &byte;
	message.size = sizeof(byte);
	message.fd = waiting_fd;
	vma_unix_send(server.fd, &message);
	return true;
}

/*
 * The descriptor is watched for edges: a message that comes while others are left does not wake the thread again and
 * again, and what is left is looked at a millisecond later.
 */
static void serve_taken_requests_rate_limited(void)
{
	const uint64_t now = vma_now_ns();

	if (now - server.since_ns >= MS) {
		server.since_ns = now;
		server.messages = 0;
	}
	while (server.messages < MESSAGES_IN_MS) {
		if (!serve_one_taken_or_inherited_request())
			return;
		server.messages++;
	}
	vma_engine_post_task_within_1ms(&server.rest);
}

static void taken_serve_task(struct vma_internal_task *task)
{
	(void)task;
	if (server.fd >= 0)
		serve_taken_requests_rate_limited();
}

/* Without a name its sockets stay with this process. */
void taken_open_hand_over_server(void)
{
	const int pidfd = server.fd < 0 ? (int)syscall(SYS_pidfd_open, syscall(SYS_getpid), 0) : -1;
	char name[NAME_BYTES];
	int rc;

	if (pidfd < 0)
		return;
	rc = unix_socket_name_of_process(pidfd, name) ? vma_unix_bind_abstract(name) : -ENOTSUP;
	syscall(SYS_close, pidfd);
	if (rc >= 0) {
		server.fd = rc;
		server.answer.run = server.rest.run = taken_serve_task;
		rc = vma_engine_watch_fd_with_task(server.fd, EPOLLIN | EPOLLET, &server.answer);
	}
	if (rc >= 0)
		return;
	vma_log_debug("what other processes take by pidfd_getfd stays here: %s", strerrordesc_np(-rc));
	if (server.fd >= 0)
		vma_fd_unguard_close(server.fd);
	server.fd = -1;
}

/* The name is the parent's. */
__attribute__((cold)) void taken_server_close_in_fork_child(void)
{
	if (server.fd >= 0)
		vma_fd_unguard_close(server.fd);
	server.fd = -1;
	server.answer = server.rest = (struct vma_internal_task){0};
	server.messages = 0;
}

/* ---- the taker ---- */

/* The last owner that did not answer: it may be stopped, by a debugger that takes one descriptor after the other. */
static _Atomic int taken_unresponsive_pid;
static _Atomic uint64_t taken_unresponsive_until_ns;

static int taken_send_request_and_await_reply(int fd, int pid, const struct taken_request *question, int shown,
                                              uint64_t deadline_ns)
{
	const struct vma_unix_message asked = {.data = (void *)question, .size = sizeof(*question), .fd = shown};
	uint8_t answer = TAKEN_NOT_MINE;
	struct vma_unix_message answered = {.data = &answer, .size = sizeof(answer)};
	int rc;

	while ((rc = vma_unix_send(fd, &asked)) == -EAGAIN)
		if (!vma_unix_poll_until_deadline(fd, POLLOUT, deadline_ns))
			return -ETIMEDOUT;
	while (rc == 0 && (rc = vma_unix_recv_with_sender_and_fd(fd, &answered, false)) == -EAGAIN) {
		rc = 0;
		if (!vma_unix_poll_until_deadline(fd, POLLIN, deadline_ns))
			return -ETIMEDOUT;
	}
	if (rc < 0)
		return rc;
	return answered.sender.pid == pid ? answer : -EPERM;
}

static int taken_ask_process_to_hand_over(const char *name, int pid, int number, int copy)
{
	const struct taken_request question = {.cookie = vma_sock_cookie(copy), .number = number};
	const uint64_t now = vma_now_ns(), deadline_ns = now + REPLY_TIMEOUT_NS;
	int fd, rc;

	if (question.cookie == 0)
		return -ENOTSOCK;
	if (atomic_load(&taken_unresponsive_pid) == pid && now < atomic_load(&taken_unresponsive_until_ns))
		return -ETIMEDOUT;
	fd = vma_unix_connect_abstract(name);
	if (fd < 0)
		return fd;
	rc = taken_send_request_and_await_reply(fd, pid, &question, -1, deadline_ns);
	if (rc == TAKEN_SHOW_SOCKET)
		rc = taken_send_request_and_await_reply(fd, pid, &question, copy, deadline_ns);
	syscall(SYS_close, fd);
	if (rc == -ETIMEDOUT) {
		atomic_store(&taken_unresponsive_until_ns, vma_now_ns() + UNRESPONSIVE_NS);
		atomic_store(&taken_unresponsive_pid, pid);
	}
	return rc == TAKEN_SHOW_SOCKET ? -EPROTO : rc;
}

int vma_engine_ask_process_to_hand_over_fd(int pidfd, int number, int copy)
{
	char name[NAME_BYTES], text[1024];
	const int saved = errno, pid = read_fdinfo_of_pidfd(pidfd, text, sizeof(text)) ? parse_pid_of_fdinfo(text) : 0;
	int rc = -ESRCH;

	if (pid > 0 && unix_socket_name_of_process(pidfd, name))
		rc = taken_ask_process_to_hand_over(name, pid, number, copy);
	errno = saved;
	switch (rc) {
	case TAKEN_NOT_MINE:
		return 0;
	case TAKEN_HANDED_OVER:
		return 1;
	case TAKEN_STAYS:
		return -EOPNOTSUPP;
	default:
		return rc < 0 ? rc : -EACCES;
	}
}
