/*
 * inherited.c - sockets that a program has had since it was executed. When the program uses one, it asks the process
 * that offloads it to hand it over.
 *
 *   parent ── offloads the socket ── fork ── exec ──> program: an os_only file for each number   untouched: no word
 *     ^                                                  │ first use
 *     └── "which of your files is my number 7?" ─────────┘ asked of all names of taken.c in /proc/net/unix
 *        the same file, says the kernel: ops->exec_export ──> the kernel's, in both; what waits for accept comes by a
 *                                                          descriptor that is sent along
 *
 * All processes are asked, because the workers of one service may offload one listener together. An answer counts only
 * if its sender is root or this process's user by the kernel's word. It counts for the name that it comes from, so a
 * process that has bound such a name answers for no other.
 *
 * A program that closes the socket, or leaves it alone, has never asked: its parent goes on as it was. So a shell that
 * was started with its parent's descriptors costs the parent nothing.
 *
 * Threads: any, inside. If several use the socket, the first one asks, and the others wait for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock_unix.h>
#include <vma/sock_os.h>

#include "engine.h"
#include "taken.h"

#define REPLY_TIMEOUT_NS 5000000000ULL
#define UNRESPONSIVE_NS 10000000000ULL /* who has not answered is not asked for so long */
#define SLEEP_NS 200000
enum { NAME_BYTES = 48, NAMES_MAX = 4096, UNRESPONSIVE_MAX = 16, WAITS_MAX = 16 };

bool (*vma_inherited_listener)(int fd, int waiting_fd);

/* ---- who may have it ---- */

struct names {
	uint32_t n, unanswered; /* that have not answered */
	struct {
		char text[NAME_BYTES]; /* empty: it has answered */
	} at[NAMES_MAX];
};

static struct {
	_Atomic uint64_t name_hash, until_ns;
} unresponsive[UNRESPONSIVE_MAX];

static uint64_t inherited_hash_of_text(const char *text)
{
	uint64_t h = 14695981039346656037ULL;

	for (; *text != '\0'; text++)
		h = (h ^ (unsigned char)*text) * 1099511628211ULL;
	return h;
}

static bool inherited_is_unresponsive(const char *text, uint64_t now)
{
	for (int i = 0; i < UNRESPONSIVE_MAX; i++)
		if (atomic_load(&unresponsive[i].name_hash) == inherited_hash_of_text(text) &&
		    now < atomic_load(&unresponsive[i].until_ns))
			return true;
	return false;
}

static void inherited_mark_unresponsive(const struct names *names)
{
	static _Atomic uint32_t at;
	const uint64_t until = vma_now_ns() + UNRESPONSIVE_NS;

	for (uint32_t i = 0; i < names->n; i++) {
		if (names->at[i].text[0] != '\0') {
			const uint32_t place = atomic_fetch_add(&at, 1) % UNRESPONSIVE_MAX;

			atomic_store(&unresponsive[place].until_ns, until);
			atomic_store(&unresponsive[place].name_hash, inherited_hash_of_text(names->at[i].text));
		}
	}
}

/* A line of /proc/net/unix ends with the socket's name, if it has one. */
static void inherited_add_name_of_unix_line(struct names *names, const char *line, uint64_t now)
{
	const char *at = strstr(line, " @" TAKEN_NAME);
	size_t len = at != NULL ? strlen(at + 2) : 0;

	if (len == 0 || len >= NAME_BYTES || names->n == NAMES_MAX || inherited_is_unresponsive(at + 2, now))
		return;
	memcpy(names->at[names->n].text, at + 2, len + 1);
	names->n++;
}

/* Opened when the program begins: it may be in another root directory when it uses a socket. */
static int proc_net_unix_fd = -1;

static int inherited_open_proc_net_unix(void)
{
	return (int)syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/net/unix", O_RDONLY | O_CLOEXEC);
}

static void inherited_keep_proc_net_unix_open(void)
{
	const int fd = proc_net_unix_fd < 0 ? inherited_open_proc_net_unix() : -1;

	if (fd < 0)
		return;
	proc_net_unix_fd = vma_fd_move_high_and_guard(fd);
	if (proc_net_unix_fd < 0)
		syscall(SYS_close, fd);
}

static void inherited_list_library_unix_sockets(struct names *names)
{
	const int fd = proc_net_unix_fd >= 0 ? proc_net_unix_fd : inherited_open_proc_net_unix();
	const uint64_t now = vma_now_ns();
	char text[2048];
	size_t deferred_signals = 0;
	long n, at = 0;

	while (fd >= 0 &&
	       (n = syscall(SYS_pread64, fd, text + deferred_signals, sizeof(text) - 1 - deferred_signals, at)) > 0) {
		char *line = text, *end;

		at += n;
		deferred_signals += (size_t)n;
		text[deferred_signals] = '\0';
		for (; (end = memchr(line, '\n', deferred_signals - (size_t)(line - text))) != NULL; line = end + 1) {
			*end = '\0';
			inherited_add_name_of_unix_line(names, line, now);
		}
		deferred_signals -= (size_t)(line - text);
		if (deferred_signals == sizeof(text) - 1)
			deferred_signals = 0; /* no line of ours */
		memmove(text, line, deferred_signals);
	}
	if (fd >= 0 && fd != proc_net_unix_fd)
		syscall(SYS_close, fd);
}

/* ---- the conversation ---- */

/* The queue of a socket is short, and the server's thread takes few at a time. */
static int inherited_send_blocking(int fd, const struct vma_unix_message *message, uint64_t deadline_ns)
{
	const struct timespec nap = {.tv_nsec = SLEEP_NS};
	int rc;

	while ((rc = vma_unix_send(fd, message)) == -EAGAIN && vma_now_ns() < deadline_ns)
		syscall(SYS_nanosleep, &nap, NULL);
	return rc;
}

static void inherited_send_requests(int fd, struct names *names, struct inherited_request *question,
                                    uint64_t deadline_ns)
{
	struct vma_unix_message message = {.data = question, .size = sizeof(*question), .fd = -1};

	names->unanswered = 0;
	for (uint32_t i = 0; i < names->n; i++) {
		vma_unix_set_abstract_dest(names->at[i].text, &message);
		if (inherited_send_blocking(fd, &message, deadline_ns) == 0)
			names->unanswered++;
		else
			names->at[i].text[0] = '\0'; /* it is gone */
	}
}

/* False: it has answered before, or was not asked. */
static bool inherited_record_reply(struct names *names, const struct vma_unix_message *message, bool is_last)
{
	struct vma_unix_message requested;

	for (uint32_t i = 0; i < names->n; i++) {
		if (names->at[i].text[0] == '\0')
			continue;
		vma_unix_set_abstract_dest(names->at[i].text, &requested);
		if (requested.name_len != message->name_len ||
		    memcmp(&requested.name, &message->name, requested.name_len) != 0)
			continue;
		if (is_last) {
			names->at[i].text[0] = '\0';
			names->unanswered--;
		}
		return true;
	}
	return false;
}

/* One answer; the first descriptor that comes with one is kept. */
static void inherited_receive_reply(int fd, struct names *names, struct inherited_request *question, int socket_fd,
                                    uint64_t deadline_ns, int *waiting_fd)
{
	uint8_t answer = TAKEN_NOT_MINE;
	struct vma_unix_message message = {.data = &answer, .size = sizeof(answer)};
	struct vma_unix_cred sender;
	bool trusted;

	if (vma_unix_peek_sender_cred(fd, &sender) < 0)
		return;
	trusted = vma_unix_sender_is_root_or_self(&sender);
	if (vma_unix_recv_with_sender_and_fd(fd, &message, trusted) < 0)
		return;
	if (inherited_record_reply(names, &message, !trusted || answer != TAKEN_SHOW_SOCKET) && trusted &&
	    answer == TAKEN_SHOW_SOCKET) {
		message.data = question;
		message.size = sizeof(*question);
		message.fd = socket_fd;
		inherited_send_blocking(fd, &message, deadline_ns);
		return;
	}
	if (answer == TAKEN_HANDED_OVER && *waiting_fd < 0) {
		*waiting_fd = message.fd;
		message.fd = -1;
	} else if (answer == TAKEN_STAYS) {
		vma_log_once(VMA_LOG_WARN, "a socket that was inherited through exec stays with the process that made "
		                           "it, which cannot hand it over");
	}
	if (message.fd >= 0)
		syscall(SYS_close, message.fd);
}

static int inherited_ask_processes_for_socket(int fd, struct names *names, int socket_fd, uint64_t cookie)
{
	struct inherited_request question = {.cookie = cookie, .number = socket_fd};
	const uint64_t deadline_ns = vma_now_ns() + REPLY_TIMEOUT_NS;
	int waiting_fd = -1;

	inherited_send_requests(fd, names, &question, deadline_ns);
	while (names->unanswered > 0 && vma_unix_poll_until_deadline(fd, POLLIN, deadline_ns))
		inherited_receive_reply(fd, names, &question, socket_fd, deadline_ns, &waiting_fd);
	inherited_mark_unresponsive(names);
	return waiting_fd;
}

int vma_inherited_ask_owners_for_conn_queue_fd(int socket_fd)
{
	const uint64_t cookie = vma_sock_cookie(socket_fd);
	struct names *names;
	int fd, waiting_fd = -1;

	if (cookie == 0)
		return -1;
	names = mmap(NULL, sizeof(*names), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (names == MAP_FAILED)
		return -1;
	inherited_list_library_unix_sockets(names);
	fd = names->n != 0 ? vma_unix_open_autobound_dgram() : -1;
	if (fd >= 0) {
		waiting_fd = inherited_ask_processes_for_socket(fd, names, socket_fd, cookie);
		syscall(SYS_close, fd);
	}
	munmap(names, sizeof(*names));
	return waiting_fd;
}

/* ---- what the program that this one was before has left ---- */

static struct {
	uint64_t cookie; /* of the listener */
	_Atomic int fd;  /* -1: taken */
} waits[WAITS_MAX];
static uint32_t n_inherited_waits; /* changes before there are threads */

void vma_inherited_record_conn_queue_fd(int fd)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	socklen_t len = sizeof(name);
	unsigned long long cookie;
	int guarded;

	if (n_inherited_waits == WAITS_MAX || syscall(SYS_getsockname, fd, &name, &len) != 0 || len >= sizeof(name) ||
	    sscanf(name.sun_path + 1, VMA_WAITS_FORMAT, &cookie) != 1)
		return;
	guarded = vma_fd_move_high_and_guard(fd);
	if (guarded < 0)
		return;
	waits[n_inherited_waits].cookie = cookie;
	atomic_store(&waits[n_inherited_waits].fd, guarded);
	n_inherited_waits++;
}

static int inherited_take_conn_queue_fd_of_cookie(uint64_t cookie)
{
	int guarded = -1, fd;

	for (uint32_t i = 0; i < n_inherited_waits && guarded < 0; i++)
		if (waits[i].cookie == cookie)
			guarded = atomic_exchange(&waits[i].fd, -1);
	if (guarded < 0)
		return -1;
	fd = (int)syscall(SYS_fcntl, guarded, F_DUPFD_CLOEXEC, 0);
	vma_fd_unguard_close(guarded);
	return fd;
}

/* ---- the file ---- */

struct inherited {
	struct vma_file file;
	pthread_mutex_t request_lock; /* not file.lock, which is taken when another file gets the number */
	bool requested, is_listener;  /* a TCP socket stands in its place */
};

static bool inherited_listens(int fd)
{
	return vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_ACCEPTCONN, 0) != 0;
}

/* What has waited longest: of two that may be, the one that this process has had itself. */
static int inherited_get_conn_queue_fd(int fd)
{
	const int requested = vma_inherited_ask_owners_for_conn_queue_fd(fd),
	          mine = inherited_take_conn_queue_fd_of_cookie(vma_sock_cookie(fd));

	if (mine < 0)
		return requested;
	if (requested >= 0)
		syscall(SYS_close, requested);
	return mine;
}

static bool inherited_give_conn_queue_to_listener(int fd, int waiting_fd)
{
	const bool given = vma_inherited_listener(fd, waiting_fd);

	if (!given)
		syscall(SYS_close, waiting_fd);
	return given;
}

/* Another number of the same file finds the listener that the first one has got. */
static void inherited_ask_and_adopt_listener_once(struct vma_file *file, int fd)
{
	struct inherited *inherited = (struct inherited *)file;
	int waiting_fd = -1;

	pthread_mutex_lock(&inherited->request_lock);
	if (!inherited->requested) {
		inherited->requested = true;
		waiting_fd = inherited_get_conn_queue_fd(fd);
		inherited->is_listener = waiting_fd >= 0 && vma_inherited_listener != NULL && inherited_listens(fd);
		if (waiting_fd >= 0 && !inherited->is_listener)
			syscall(SYS_close, waiting_fd);
		if (inherited->is_listener)
			inherited->is_listener = inherited_give_conn_queue_to_listener(fd, waiting_fd);
		sock_log_why_not_offloaded_inside(fd, true);
	} else if (inherited->is_listener) {
		vma_inherited_listener(fd, -1);
	}
	pthread_mutex_unlock(&inherited->request_lock);
}

/* Passed on without having been used. */
static void inherited_ask_and_adopt_before_passing_on(struct vma_file *file)
{
	inherited_ask_and_adopt_listener_once(file, atomic_load(&file->fd));
}

/* A thread that is not here may have been asking. */
static __attribute__((cold)) void inherited_reset_lock_in_fork_child(struct vma_file *file)
{
	pthread_mutex_init(&((struct inherited *)file)->request_lock, NULL);
}

static enum vma_sock_reason inherited_reason_of(struct vma_file *file)
{
	(void)file;
	return VMA_SOCK_EXEC;
}

static uint32_t inherited_poll_nothing(struct vma_file *file)
{
	(void)file;
	return 0;
}

static uint64_t inherited_no_rings(struct vma_file *file)
{
	(void)file;
	return 0;
}

/* The ops say which calls use the socket, and are never called, as it is os_only. */
static void inherited_op_placeholder(void)
{
}

#define USES(op) .op = (__typeof__(((struct vma_file_ops *)NULL)->op))inherited_op_placeholder
#define USE                                                                                                            \
	.name = "inherited", USES(bind), USES(connect), USES(listen), USES(accept4), USES(shutdown), USES(ioctl),      \
	USES(recvmsg), USES(sendmsg), .poll = inherited_poll_nothing, .rings = inherited_no_rings,                     \
	.reason = inherited_reason_of, .forked = inherited_reset_lock_in_fork_child,                                   \
	.hand_over = inherited_ask_and_adopt_before_passing_on, .touch = inherited_ask_and_adopt_listener_once

/* Of a listener and a UDP socket the kernel's knows all but what has come; of a connection it knows nothing. */
static const struct vma_file_ops ops = {USE};
static const struct vma_file_ops connection_ops = {USE, USES(setsockopt), USES(getsockopt), USES(getpeername)};
#undef USE
#undef USES

void vma_inherited_fd_install_placeholder(int fd)
{
	struct inherited *inherited = vma_alloc(sizeof(*inherited));

	if (inherited == NULL)
		return;
	inherited_keep_proc_net_unix_open();
	vma_file_init(&inherited->file, VMA_FILE_EXEC,
	              vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_PROTOCOL, 0) == IPPROTO_TCP && !inherited_listens(fd)
	                      ? &connection_ops
	                      : &ops);
	pthread_mutex_init(&inherited->request_lock, NULL);
	inherited->file.os_only = true;
	atomic_store(&vma_any_file_needs_touch, true);
	if (vma_fd_install(fd, &inherited->file) < 0)
		vma_file_put(&inherited->file);
}
