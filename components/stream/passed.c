/*
 * passed.c - listeners that go to other processes in messages (SCM_RIGHTS): which processes have one, and whether all
 * of them can serve it as a group.
 *
 *   giver ── given + 1, its flows go back ── sendmsg ─┬─> a receiver with the library: finds the page, taken + 1
 *                                                     └─> any other: accepts from the kernel, and says nothing
 *
 *   given == taken   every holder has the library: each asks for flows when it uses the listener, and they form a group
 *   else             connections are the kernel's, for all holders
 *
 * Each change is told by an eventfd that is never read, and that all watch for edges. A process that has no place left
 * to watch it looks once a second.
 *
 * So a receiver without the library, or without the right to use the device, gets its connections from the kernel's
 * listener. So do all others then. A message that is never read has the same effect: the two cannot be told apart.
 *
 * The giver resumes when another process serves the listener, or after ten seconds. Mostly it is about to close it: it
 * would take connections that it does not accept any more.
 *
 * The page is a sealed memfd. A process that has it answers for both, on a datagram socket whose abstract name is the
 * cookie of the kernel's socket. So the receiver needs only the descriptor, in any root directory and as any user. If
 * several have the page, the first answers; when that one has gone, the next that passes it on. A forked child has the
 * page by the fork.
 *
 * The answer carries the socket, too, so a process that cannot show the socket has no say. If a process has bound the
 * name of another's listener, it only keeps that listener from being offloaded. Because the answer carries the socket,
 * only root and the answerer's user get one: others could have the listener for the asking. A receiver of another user
 * gets its connections from the kernel, as one without the library does.
 *
 * A bound socket that does not listen yet is passed on in the same way, and is a listener when its receiver says so. In
 * the giver it is the kernel's.
 *
 * Threads: any, under file.lock; the counters are every process's. The internal thread answers.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock_unix.h>

#include "stream_priv.h"

enum { PAGE_BYTES = 4096, REPLY_TIMEOUT_MS = 500, CLOSED = -1, REQUESTS_PER_RUN = 16 };

struct passed_page {
	_Atomic uint32_t sent_count, received_count;
	_Atomic bool served; /* since it was given last, by somebody who did not give it */
};

struct stream_passed_state {
	struct vma_retired retired;
	struct vma_internal_task answer, change;
	struct passed_page *page;
	struct stream_sock *sock; /* whose this is; it is unwatched when that is closed */
	int page_fd, event_fd, server_fd;
	bool is_sender, watched;
};
_Static_assert(offsetof(struct stream_passed_state, retired) == 0, "end_passed");

/* ---- the page ---- */

static int passed_move_fd_high(int fd)
{
	int guarded = fd < 0 ? -errno : vma_fd_move_high_and_guard(fd);

	return guarded < 0 && fd >= 0 ? fd : guarded;
}

static int passed_create_page(void)
{
	int fd = passed_move_fd_high((int)syscall(SYS_memfd_create, "vma-passed", MFD_CLOEXEC | MFD_ALLOW_SEALING));

	if (fd >= 0 && (syscall(SYS_ftruncate, fd, (off_t)PAGE_BYTES) != 0 ||
	                syscall(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
		vma_fd_unguard_close(fd);
		return -EINVAL;
	}
	return fd;
}

static int create_eventfd(void)
{
	return passed_move_fd_high((int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK));
}

/* Nobody can take it from under a reader. */
static bool fd_is_sealed_memfd(int fd)
{
	struct stat state;

	return (syscall(SYS_fcntl, fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0 && fstat(fd, &state) == 0 &&
	       state.st_size >= PAGE_BYTES;
}

/* A write to anything else could wait. */
static bool fd_is_nonblocking_eventfd(int fd)
{
	static const char wanted[] = "anon_inode:[eventfd]";
	char link[32], is[sizeof(wanted)];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return readlink(link, is, sizeof(is)) == (ssize_t)sizeof(wanted) - 1 &&
	       memcmp(is, wanted, sizeof(wanted) - 1) == 0 && (syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK) != 0;
}

/* What an answer carries. The socket: only to be looked at. */
struct ends {
	int page_fd, event_fd, socket_fd;
};

static void passed_answer_close_fds(const struct ends *ends)
{
	if (ends->page_fd >= 0)
		vma_fd_unguard_close(ends->page_fd);
	if (ends->event_fd >= 0)
		vma_fd_unguard_close(ends->event_fd);
	if (ends->socket_fd >= 0)
		syscall(SYS_close, ends->socket_fd);
}

/* The descriptors pass, also if it fails: NULL. */
static struct stream_passed_state *passed_create(const struct ends *ends)
{
	struct stream_passed_state *passed =
	        ends->page_fd >= 0 && ends->event_fd >= 0 ? vma_alloc(sizeof(*passed)) : NULL;
	void *page = MAP_FAILED;

	if (passed != NULL)
		page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, ends->page_fd, 0);
	if (page == MAP_FAILED) {
		passed_answer_close_fds(ends);
		vma_free(passed);
		return NULL;
	}
	passed->page = page;
	passed->page_fd = ends->page_fd;
	passed->event_fd = ends->event_fd;
	passed->server_fd = CLOSED;
	return passed;
}

static void free_retired_passed(struct vma_retired *retired)
{
	struct stream_passed_state *passed = (struct stream_passed_state *)retired;

	if (passed->server_fd != CLOSED)
		vma_fd_unguard_close(passed->server_fd);
	passed_answer_close_fds(
	        &(struct ends){.page_fd = passed->page_fd, .event_fd = passed->event_fd, .socket_fd = -1});
	munmap(passed->page, PAGE_BYTES);
	vma_free(passed);
}

/* A task that the internal thread has begun finds the socket: it began inside, before the socket is retired. */
void stream_passed_unwatch(const struct stream_sock *sock)
{
	struct stream_passed_state *passed = sock->passed;

	if (passed == NULL)
		return;
	if (passed->server_fd != CLOSED)
		vma_engine_unwatch_fd(passed->server_fd, &passed->answer);
	if (passed->watched)
		vma_engine_unwatch_fd(passed->event_fd, &passed->change);
}

void stream_passed_free(struct stream_sock *sock)
{
	struct stream_passed_state *passed = sock->passed;

	stream_passed_unwatch(sock); /* of one that never had a descriptor */
	sock->passed = NULL;
	if (passed == NULL)
		return;
	vma_defer_free_until_no_readers(&passed->retired, free_retired_passed);
}

/* The parent answers. */
void stream_passed_stop_answering_in_child(struct stream_sock *sock)
{
	if (sock->passed == NULL)
		return;
	if (sock->passed->server_fd != CLOSED)
		vma_fd_unguard_close(sock->passed->server_fd);
	sock->passed->server_fd = CLOSED;
	sock->passed->watched = false;
	sock->passed->answer = sock->passed->change = (struct vma_internal_task){0};
}

/* ---- changes ---- */

/* The internal thread's: as when the network changes. */
static void passed_update_listener_task(struct vma_internal_task *task)
{
	struct stream_sock *sock =
	        ((struct stream_passed_state *)((char *)task - offsetof(struct stream_passed_state, change)))->sock;

	pthread_mutex_lock(&sock->file.lock);
	if (!stream_has_ended(sock) && !sock->file.os_only && sock->passed != NULL)
		stream_listener_update_flows(sock);
	pthread_mutex_unlock(&sock->file.lock);
}

void stream_passed_watch_page(struct stream_sock *sock)
{
	struct stream_passed_state *passed = sock->passed;

	if (passed->watched)
		return;
	passed->change.run = passed_update_listener_task;
	passed->watched = vma_engine_watch_fd_with_task(passed->event_fd, EPOLLIN | EPOLLET, &passed->change) == 0;
}

static void passed_signal_event(const struct stream_passed_state *passed)
{
	const uint64_t one = 1;

	syscall(SYS_write, passed->event_fd, &one, sizeof(one)); /* full after 2^64 - 1 */
}

/* ---- questions and answers ---- */

/* The kernel says who has sent it, too, before the descriptors. */
union control {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(struct ends))];
};

enum { NAME_BYTES = 40 };

static void passed_format_socket_name(uint64_t cookie, char name[NAME_BYTES])
{
	snprintf(name, NAME_BYTES, "vma/passed/%llx", (unsigned long long)cookie);
}

/*
 * The number may be another file's, if the socket is being closed. So its copy is looked at, which is what it is.
 */
static int passed_dup_socket(const struct stream_passed_state *passed)
{
	const int copy = (int)syscall(SYS_fcntl, atomic_load(&passed->sock->file.fd), F_DUPFD_CLOEXEC, 0);

	if (copy < 0 || stream_fd_is_own_shadow(passed->sock, copy))
		return copy;
	syscall(SYS_close, copy);
	return -1;
}

static void passed_answer_with_page(const struct stream_passed_state *passed, struct vma_unix_message *asked)
{
	const struct ends ends = {
	        .page_fd = passed->page_fd, .event_fd = passed->event_fd, .socket_fd = passed_dup_socket(passed)};
	char byte = 0;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	union control control = {.head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	const struct msghdr msg = {.msg_name = &asked->name,
	                           .msg_namelen = asked->name_len,
	                           .msg_iov = &iov,
	                           .msg_iovlen = 1,
	                           .msg_control = &control,
	                           .msg_controllen = CMSG_SPACE(sizeof(ends))};

	if (ends.socket_fd < 0)
		return;
	control.head.cmsg_len = CMSG_LEN(sizeof(ends));
	memcpy(CMSG_DATA(&control.head), &ends, sizeof(ends));
	syscall(SYS_sendmsg, passed->server_fd, &msg,
	        MSG_DONTWAIT | MSG_NOSIGNAL); /* who does not hear is a stranger */
	syscall(SYS_close, ends.socket_fd);
}

/* Nothing but a byte: the asker need not wait for more. */
static void passed_refuse(const struct stream_passed_state *passed, struct vma_unix_message *asked)
{
	vma_log_debug("user %u asks for a listener that is not theirs", asked->sender.uid);
	vma_unix_send(passed->server_fd, asked);
}

/* The internal thread's, which has other things to do: who asks without end is heard now and then. */
static void passed_answer_receivers_task(struct vma_internal_task *task)
{
	struct stream_passed_state *passed =
	        (struct stream_passed_state *)((char *)task - offsetof(struct stream_passed_state, answer));

	for (int i = 0; i < REQUESTS_PER_RUN; i++) {
		char byte = 0;
		struct vma_unix_message asked = {.data = &byte, .size = sizeof(byte)};

		if (vma_unix_recv_with_sender_and_fd(passed->server_fd, &asked, false) < 0)
			return;
		if (vma_unix_sender_is_root_or_self(&asked.sender))
			passed_answer_with_page(passed, &asked);
		else
			passed_refuse(passed, &asked);
	}
}

/* -EADDRINUSE: somebody else has the page, and answers. */
static int passed_start_answering_receivers(struct stream_passed_state *passed, uint64_t cookie)
{
	char name[NAME_BYTES];
	int fd, rc;

	passed_format_socket_name(cookie, name);
	fd = vma_unix_bind_abstract(name);
	if (fd < 0)
		return fd;
	passed->answer.run = passed_answer_receivers_task;
	passed->server_fd = fd;
	rc = vma_engine_get_or_start() != NULL ? vma_engine_watch_fd_with_task(fd, EPOLLIN, &passed->answer) : -ENODEV;
	if (rc < 0) {
		passed->server_fd = CLOSED;
		vma_fd_unguard_close(fd);
	}
	return rc;
}

/* The descriptors of an answer as it should be; what comes with another one is closed. */
static bool passed_parse_scm_rights(struct msghdr *msg, struct ends *ends)
{
	struct cmsghdr *head = CMSG_FIRSTHDR(msg);
	const int *fds;

	while (head != NULL && (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS))
		head = CMSG_NXTHDR(msg, head);
	if (head == NULL)
		return false;
	if (head->cmsg_len == CMSG_LEN(sizeof(*ends))) {
		memcpy(ends, CMSG_DATA(head), sizeof(*ends));
		return true;
	}
	fds = (const int *)CMSG_DATA(head);
	for (size_t i = 0; i < (head->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
		syscall(SYS_close, fds[i]);
	return false;
}

static bool passed_receive_answer_fds(int fd, struct ends *ends)
{
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	union control control;
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	if (!vma_unix_poll_until_deadline(fd, POLLIN, vma_now_ns() + REPLY_TIMEOUT_MS * 1000000ULL) ||
	    syscall(SYS_recvmsg, fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0 || !passed_parse_scm_rights(&msg, ends))
		return false;
	ends->page_fd = passed_move_fd_high(ends->page_fd);
	ends->event_fd = passed_move_fd_high(ends->event_fd);
	return true;
}

/* The page of who passes this socket on, if that one has the library. Outside: it waits for the answer. */
static bool passed_request_page_from_sender(uint64_t cookie, struct ends *ends)
{
	char name[NAME_BYTES];
	bool found;
	int fd;

	passed_format_socket_name(cookie, name);
	fd = vma_unix_connect_abstract(name);
	if (fd < 0)
		return false;
	found = syscall(SYS_sendto, fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) == 1 &&
	        passed_receive_answer_fds(fd, ends);
	syscall(SYS_close, fd);
	if (found && (!fd_is_sealed_memfd(ends->page_fd) || !fd_is_nonblocking_eventfd(ends->event_fd) ||
	              vma_sock_cookie(ends->socket_fd) != cookie)) {
		passed_answer_close_fds(ends);
		return false;
	}
	if (found)
		syscall(SYS_close, ends->socket_fd);
	ends->socket_fd = -1;
	return found;
}

/* ---- leaving ---- */

bool stream_prepare_send_by_scm_rights(struct stream_sock *sock)
{
	if (sock->passed == NULL)
		sock->passed = passed_create(
		        &(struct ends){.page_fd = passed_create_page(), .event_fd = create_eventfd(), .socket_fd = -1});
	if (sock->passed == NULL)
		return false;
	atomic_store(&sock->has_takers, true);
	vma_engine_steer_conns_under_wide_rules(); /* what was accepted is not the takers' */
	sock->passed->sock = sock;
	sock->passed->is_sender = true;
	atomic_store(&sock->passed->page->served, false);
	atomic_fetch_add(&sock->passed->page->sent_count, 1);
	passed_signal_event(sock->passed);
	if (sock->passed->server_fd == CLOSED)
		passed_start_answering_receivers(sock->passed, sock->cookie);
	return true;
}

void stream_uncount_scm_rights_send(struct stream_sock *sock)
{
	if (sock->passed == NULL)
		return;
	atomic_fetch_sub(&sock->passed->page->sent_count, 1);
	passed_signal_event(sock->passed);
}

void stream_passed_count_non_vma_receiver(struct stream_sock *sock)
{
	if (sock->passed == NULL)
		return;
	atomic_fetch_add(&sock->passed->page->sent_count, 1);
	passed_signal_event(sock->passed);
}

bool stream_all_passed_fds_were_received(const struct stream_sock *sock)
{
	const struct passed_page *page = sock->passed->page;

	return atomic_load(&page->sent_count) == atomic_load(&page->received_count);
}

bool stream_passed_may_offload_again(const struct stream_sock *sock)
{
	const struct stream_passed_state *passed = sock->passed;

	return stream_all_passed_fds_were_received(sock) &&
	       (!passed->is_sender || atomic_load(&passed->page->served) || vma_now_ns() >= sock->drain_until_ns);
}

void stream_passed_tell_sender_we_serve(struct stream_sock *sock)
{
	if (!sock->passed->is_sender && !atomic_exchange(&sock->passed->page->served, true))
		passed_signal_event(sock->passed);
}

/* ---- arriving ---- */

struct search {
	uint64_t cookie;
	struct stream_sock *found;
};

static void passed_match_file_by_cookie(struct vma_file *file, void *arg)
{
	struct search *search = arg;
	struct stream_sock *sock = stream_sock(file);

	if (file->kind == VMA_FILE_TCP && sock->cookie == search->cookie && !stream_has_ended(sock) &&
	    (stream_sock_phase(sock) == STREAM_LISTENING || stream_sock_phase(sock) == STREAM_FRESH))
		search->found = sock;
}

static void passed_count_received_fd(const struct stream_passed_state *passed)
{
	atomic_fetch_add(&passed->page->received_count, 1);
	passed_signal_event(passed);
}

/* This process has it under another number: its own, or by fork. */
bool stream_install_fd_of_own_file_by_cookie(int fd, uint64_t cookie)
{
	struct search search = {.cookie = cookie};

	vma_file_each(passed_match_file_by_cookie, &search);
	if (search.found == NULL || vma_fd_install(fd, &search.found->file) != 0)
		return false;
	pthread_mutex_lock(&search.found->file.lock);
	if (search.found->passed != NULL && !search.found->file.os_only)
		passed_count_received_fd(search.found->passed);
	pthread_mutex_unlock(&search.found->file.lock);
	return true;
}

/* As after a fork: its flows are asked for when it is used. */
static bool passed_read_sock_state_from_shadow(struct stream_sock *sock, int fd, bool listens)
{
	pthread_mutex_lock(&sock->file.lock);
	stream_so_cookie(sock, fd);
	stream_read_local_name(sock, fd);
	stream_options_init(sock, fd);
	stream_options_read_from_shadow(sock, fd);
	if (listens)
		stream_init_listener_received_by_message(sock, fd);
	pthread_mutex_unlock(&sock->file.lock);
	return stream_listener_can_be_offloaded(sock);
}

static void passed_create_sock_for_received_fd(int fd, int family, bool listens, const struct ends *ends)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	struct stream_passed_state *passed = passed_create(ends);
	struct stream_sock *sock = NULL;

	if (passed != NULL && engine != NULL && engine->conf.offloaded_sockets && !atomic_load(&vma_sockets_stay))
		sock = stream_create(engine, family, (vma_os.fcntl(fd, F_GETFL, NULL) & O_NONBLOCK) != 0);
	if (sock == NULL) {
		if (passed != NULL)
			free_retired_passed(&passed->retired);
		return;
	}
	sock->passed = passed;
	passed->sock = sock;
	vma_file_record_creating_thread_and_core(&sock->file);
	if (!passed_read_sock_state_from_shadow(sock, fd, listens) || vma_fd_install(fd, &sock->file) != 0) {
		vma_file_put(&sock->file);
		return;
	}
	sock->stats = vma_engine_alloc_socket_stats(engine, fd, &sock->stats_count);
	stream_describe_for_stats(sock);
	passed_count_received_fd(passed); /* inside: it is there as long */
}

static int passed_get_sol_socket_int(int fd, int name)
{
	return vma_os_getsockopt_int_or(fd, SOL_SOCKET, name, -1);
}

bool vma_stream_fd_is_unconnected_tcp_socket(int fd)
{
	const int family = passed_get_sol_socket_int(fd, SO_DOMAIN);
	struct tcp_info info;
	socklen_t len = sizeof(info);

	return (family == AF_INET || family == AF_INET6) && passed_get_sol_socket_int(fd, SO_PROTOCOL) == IPPROTO_TCP &&
	       vma_os.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
	       (info.tcpi_state == TCP_LISTEN || info.tcpi_state == TCP_CLOSE);
}

void vma_stream_adopt_passed_fd(int fd)
{
	struct vma_thread *self;
	const uint64_t cookie = vma_sock_cookie(fd);
	struct ends ends;
	bool shared;

	if (cookie == 0)
		return;
	self = vma_enter();
	shared = stream_install_fd_of_own_file_by_cookie(fd, cookie);
	vma_leave(self);
	if (shared || !passed_request_page_from_sender(cookie, &ends))
		return;
	self = vma_enter();
	passed_create_sock_for_received_fd(fd, passed_get_sol_socket_int(fd, SO_DOMAIN),
	                                   passed_get_sol_socket_int(fd, SO_ACCEPTCONN) == 1, &ends);
	vma_leave(self);
}

/*
 * By exec, from a process that has handed it over to the kernel: no flows are asked for here, since that process, and
 * programs without the library, accept from the kernel's.
 */
bool vma_stream_inherit_by_exec(int fd, int waiting_fd)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	struct stream_sock *sock;
	bool filled;

	if (stream_install_fd_of_own_file_by_cookie(fd, vma_sock_cookie(fd))) {
		if (waiting_fd >= 0)
			syscall(SYS_close, waiting_fd);
		return true;
	}
	if (engine == NULL || waiting_fd < 0)
		return false;
	sock = stream_create(engine, passed_get_sol_socket_int(fd, SO_DOMAIN),
	                     (vma_os.fcntl(fd, F_GETFL, NULL) & O_NONBLOCK) != 0);
	if (sock == NULL)
		return false;
	vma_file_record_creating_thread_and_core(&sock->file);
	passed_read_sock_state_from_shadow(sock, fd, true);
	pthread_mutex_lock(&sock->file.lock);
	filled = stream_listener_use_conn_queue_fd(sock, waiting_fd);
	if (filled)
		stream_listen_leave_to_kernel(sock, VMA_SOCK_EXEC);
	pthread_mutex_unlock(&sock->file.lock);
	if (!filled || vma_fd_install(fd, &sock->file) != 0) {
		vma_file_put(&sock->file);
		return filled; /* the descriptor has gone with it */
	}
	sock->stats = vma_engine_alloc_socket_stats(engine, fd, &sock->stats_count);
	stream_describe_for_stats(sock);
	return true;
}

/* ---- what the giver is told ---- */

static void passed_call_with_file_lock(int fd, void (*tell)(struct stream_sock *sock))
{
	struct vma_thread *self = vma_enter();
	struct vma_file *file = vma_fd_lookup(fd);

	if (file != NULL && file->kind == VMA_FILE_TCP) {
		pthread_mutex_lock(&file->lock);
		tell(stream_sock(file));
		pthread_mutex_unlock(&file->lock);
	}
	vma_leave(self);
}

void vma_stream_undo_scm_rights_send(int fd)
{
	passed_call_with_file_lock(fd, stream_uncount_scm_rights_send);
}

static void sock_count_kernel_listener_if_os_only(struct stream_sock *sock)
{
	if (sock->file.os_only)
		stream_passed_count_non_vma_receiver(sock);
}

void vma_stream_note_kernel_listens(int fd)
{
	passed_call_with_file_lock(fd, sock_count_kernel_listener_if_os_only);
}
