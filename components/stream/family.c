/*
 * family.c - connections and fork: who has them, and when they become the kernel's.
 *
 *   parent ── has the connection ──┬─ close, exit, exec: handed over ────────────────┐
 *                                  └─ internal thread <── eventfd, shared page ──┐   ├──> the shadow, which both have
 *   child ──┬─ closes it, ends: nothing                                          │   │
 *           └─ uses it: is the shadow connected? ── no: asks, waits ─────────────┘ <─┘
 *
 * The page and the eventfd are made before the first fork that finds a connection. A question is a slot of the page:
 * who asks takes a free one, says which file it is about (numbers of files are the same on both sides), and sleeps on
 * the slot's state. The state's changes are the only synchronisation: `id` is written between TAKEN and ASKED, and read
 * after ASKED was seen. ASKED goes to DONE or UNKNOWN by the parent, or to FREE by who has given up waiting, by
 * compare-and-swap, so one of the two sees the other. A slot whose owner was killed is taken again when all are in use.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "stream_priv.h"

enum { ASKS = 128, PATIENCE_NS = 1000000000, CLOSE_NS = 200000000, LOCK_TRIES = 1000 };
enum ask_state { ASK_FREE, ASK_TAKEN, ASK_ASKED, ASK_DONE, ASK_UNKNOWN };

struct ask {
	_Atomic uint32_t state;
	_Atomic int32_t pid;
	_Atomic uint64_t id; /* vma_file.id */
};

/* Shared between processes. */
struct stream_family {
	_Atomic bool gone; /* the parent has ended, and has handed over what it could */
	int event_fd;      /* the same number in all of them */
	struct ask ask[ASKS];
};

_Atomic bool vma_stream_inherits;

static struct stream_family *own; /* of this process as a parent; changed in fork's handlers only */

/* ---- the parent ---- */

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

struct search {
	uint64_t id;
	struct stream_sock *found;
};

static void look(struct vma_file *file, void *arg)
{
	struct search *search = arg;

	if (file->kind == VMA_FILE_TCP && file->id == search->id)
		search->found = stream_sock(file);
}

/* One that is not there any more has been handed over, is being closed just now, or has ended. */
static enum ask_state hand_over_id(uint64_t id)
{
	struct search search = {.id = id};
	struct stream_sock *sock;
	int rc = -ENOTCONN;

	vma_file_each(look, &search);
	sock = search.found;
	if (sock == NULL)
		return ASK_UNKNOWN;
	pthread_mutex_lock(&sock->file.lock);
	if (!sock->file.os_only && !stream_has_ended(sock))
		rc = stream_to_kernel(sock, atomic_load(&sock->file.fd));
	pthread_mutex_unlock(&sock->file.lock);
	if (rc == 0)
		stream_moved(sock);
	return ASK_DONE;
}

/* Nobody sleeps on a state that is not ASKED. */
static void done(struct ask *ask, enum ask_state answer)
{
	uint32_t asked = ASK_ASKED;

	if (atomic_compare_exchange_strong(&ask->state, &asked, answer))
		futex(&ask->state, FUTEX_WAKE, INT_MAX, NULL);
}

/* The internal thread's. */
static void answer(struct vma_task *task)
{
	uint64_t times;

	(void)task;
	if (syscall(SYS_read, own->event_fd, &times, sizeof(times)) < 0)
		return;
	for (unsigned i = 0; i < ASKS; i++) {
		struct ask *ask = &own->ask[i];

		if (atomic_load(&ask->state) != ASK_ASKED)
			continue;
		done(ask, hand_over_id(atomic_load(&ask->id)));
	}
}

static struct vma_task answer_task = {.run = answer};

/* Both sides have said their end, and all is read: of no use to a child, and whoever is here waits for the last ACK,
 * which may be on its way to the ring. */
static bool is_used_up(const struct stream_sock *sock)
{
	const struct vma_tcp_conn *conn = stream_conn(sock);
	const int state = conn != NULL ? vma_tcp_state(conn) : TCP_CLOSE;

	return (state == TCP_LAST_ACK || state == TCP_CLOSING || state == TCP_TIME_WAIT) && vma_tcp_rx_bytes(conn) == 0;
}

bool stream_hand_over(struct stream_sock *sock)
{
	int lingering = atomic_load(&sock->lingering_fd);

	return atomic_load(&sock->forked) && !is_used_up(sock) &&
	       stream_to_kernel(sock, lingering != 0 ? lingering : atomic_load(&sock->file.fd)) == 0;
}

void stream_family_leave(void)
{
	if (own == NULL)
		return;
	atomic_store(&own->gone, true);
	for (unsigned i = 0; i < ASKS; i++)
		done(&own->ask[i], ASK_DONE);
}

void vma_stream_before_replace(int fd)
{
	struct vma_thread *self = vma_enter();
	struct vma_file *file = vma_fd_lookup(fd);
	bool moved = false;

	if (file != NULL && file->kind == VMA_FILE_TCP && !file->os_only && atomic_load(&stream_sock(file)->forked) &&
	    atomic_load(&file->slots) == 1) {
		pthread_mutex_lock(&file->lock);
		moved = stream_hand_over(stream_sock(file));
		pthread_mutex_unlock(&file->lock);
		if (moved)
			stream_moved(stream_sock(file));
	}
	vma_leave(self);
}

/* ---- exec ---- */

static void before_exec(struct vma_file *file, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	int fd = atomic_load(&file->fd), flags = vma_os.fcntl(fd, F_GETFD, NULL);
	bool moved;

	(void)arg;
	if (file->kind != VMA_FILE_TCP || file->os_only || stream_conn(sock) == NULL || flags < 0 ||
	    (flags & FD_CLOEXEC) != 0 || pthread_mutex_trylock(&file->lock) != 0)
		return;
	stream_cookie(sock, fd);
	moved = stream_to_kernel(sock, fd) == 0;
	pthread_mutex_unlock(&file->lock);
	if (moved)
		stream_moved(sock);
}

/*
 * The program's own connections go along where their descriptors do. Of a parent's connections only those that stand
 * where the new program looks for them: children that have forgotten to close the others would cost the parent its
 * offload.
 */
void vma_stream_before_exec(void)
{
	struct vma_thread *self = vma_enter();

	vma_file_each(before_exec, NULL);
	for (int fd = 0; fd <= STDERR_FILENO && atomic_load(&vma_stream_inherits); fd++) {
		struct vma_file *file = vma_fd_lookup(fd);

		if (file != NULL)
			vma_stream_take_over(file);
	}
	vma_leave(self);
}

/* ---- fork ---- */

static int make_family(void)
{
	struct stream_family *family =
	        mmap(NULL, sizeof(*family), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd, rc;

	if (family == MAP_FAILED)
		return -errno;
	fd = (int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = fd < 0 ? -errno : vma_fd_guard(fd);
	if (rc >= 0) {
		fd = family->event_fd = rc;
		own = family;
		rc = vma_engine_watch(fd, &answer_task);
		if (rc == 0)
			return 0;
		own = NULL;
		vma_fd_unguard_close(fd);
	} else if (fd >= 0) {
		syscall(SYS_close, fd);
	}
	munmap(family, sizeof(*family));
	return rc;
}

/* The lock is held for short times, but perhaps by this very thread, when a handler of a signal forks. */
static void note_shadow(struct stream_sock *sock)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (pthread_mutex_trylock(&sock->file.lock) == 0) {
			stream_cookie(sock, atomic_load(&sock->file.fd));
			pthread_mutex_unlock(&sock->file.lock);
			return;
		}
		sched_yield();
	}
}

static void mark(struct vma_file *file, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	bool *any = arg;

	if (file->kind != VMA_FILE_TCP || file->os_only || stream_conn(sock) == NULL)
		return;
	*any = true;
	if (!atomic_exchange(&sock->forked, true))
		note_shadow(sock);
}

void vma_stream_fork_prepare(void)
{
	struct vma_thread *self;
	bool any = false;
	int rc = 0;

	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) == NULL)
		return;
	self = vma_enter();
	vma_file_each(mark, &any);
	if (any && own == NULL)
		rc = make_family();
	vma_leave(self);
	if (rc < 0)
		vma_log_warn("a forked process cannot ask for connections: %s", strerrordesc_np(-rc));
}

/* The engine's has told the files by now. */
void vma_stream_fork_child(void)
{
	own = NULL;
}

/* ---- the child ---- */

void stream_forked_connection(struct stream_sock *sock)
{
	sock->family = own;
	if (own == NULL)
		return;
	atomic_store(&sock->is_parents, true);
	atomic_store(&vma_stream_inherits, true);
}

static bool is_connected(int fd)
{
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);

	return vma_os.getpeername(fd, (struct sockaddr *)&peer, &len) == 0;
}

static bool take_slot(struct ask *ask, bool abandoned_too)
{
	uint32_t state = ASK_FREE;

	if (atomic_compare_exchange_strong(&ask->state, &state, ASK_TAKEN))
		return true;
	return abandoned_too && kill(atomic_load(&ask->pid), 0) != 0 && errno == ESRCH &&
	       atomic_compare_exchange_strong(&ask->state, &state, ASK_TAKEN);
}

static struct ask *find_slot(struct stream_family *family)
{
	for (int pass = 0; pass < 2; pass++)
		for (unsigned i = 0; i < ASKS; i++)
			if (take_slot(&family->ask[i], pass != 0))
				return &family->ask[i];
	return NULL;
}

/* Whether it is worth waiting for the end of a close. */
static bool await_answer(struct stream_family *family, struct ask *ask)
{
	const uint64_t deadline_ns = vma_now_ns() + PATIENCE_NS;
	const struct timespec nap = {.tv_nsec =
	                                     50000000}; /* it may have ended without a word, or before it was asked */
	uint32_t state = ASK_ASKED;

	while (atomic_load(&ask->state) == ASK_ASKED && !atomic_load(&family->gone) && vma_now_ns() < deadline_ns)
		futex(&ask->state, FUTEX_WAIT, ASK_ASKED, &nap);
	atomic_store(&ask->pid, 0); /* before somebody else has it: whose pid is there, has it */
	if (!atomic_compare_exchange_strong(&ask->state, &state, ASK_FREE))
		atomic_store(&ask->state, ASK_FREE);
	return state == ASK_UNKNOWN;
}

/* The parent's close takes the file from the list of all before it hands the connection over. */
static void await_close(int fd)
{
	const uint64_t deadline_ns = vma_now_ns() + CLOSE_NS;
	const struct timespec nap = {.tv_nsec = 100000};

	while (!is_connected(fd) && vma_now_ns() < deadline_ns)
		syscall(SYS_nanosleep, &nap, NULL);
}

static void ask_parent(struct stream_sock *sock, int fd)
{
	struct stream_family *family = sock->family;
	const uint64_t one = 1;
	struct ask *ask = atomic_load(&family->gone) ? NULL : find_slot(family);

	if (ask == NULL)
		return;
	atomic_store(&ask->pid, (int32_t)syscall(SYS_getpid));
	atomic_store(&ask->id, sock->file.id);
	atomic_store(&ask->state, ASK_ASKED);
	if (syscall(SYS_write, family->event_fd, &one, sizeof(one)) < 0)
		vma_log_debug("a connection cannot be asked for: %s", strerrordesc_np(errno));
	if (await_answer(family, ask))
		await_close(fd);
}

/* Two threads may ask for the same one: the second question finds it done. */
void vma_stream_take_over(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);
	int fd = atomic_load(&file->fd);

	if (file->kind != VMA_FILE_TCP || !atomic_load(&sock->is_parents))
		return;
	if (!is_connected(fd))
		ask_parent(sock, fd);
	if (is_connected(fd))
		atomic_store(&sock->reason, VMA_SOCK_FORKED);
	atomic_store(&sock->is_parents, false);
}
