/* notify - messages of the internal thread to files: the network has changed, try again, your shadow has an error. */
#include <sys/epoll.h>

#include "internal.h"

#define RETRY_NS (1000 * MS)
#define NET_ROUND_NS (50 * MS) /* between two rounds of files: a storm of events costs no more */
#define FD_SHIFT 31
#define ID_MASK 0x7fffffffULL

/* Deadlines and what has been seen are the thread's own, 0: none. */
static struct {
	uint64_t net_ns, retry_ns;
	uint64_t net_seen;     /* generation that files have been told of */
	uint64_t net_round_ns; /* when */

	_Alignas(64) _Atomic bool retry, tell;
} notify;

void (*vma_engine_on_error)(struct vma_file *file);

/* ---- the network, and refused offloads ---- */

void vma_engine_schedule_offload_retry(void)
{
	if (!atomic_exchange(&notify.retry, true))
		internal_thread_wake();
}

void schedule_notify_of_all_files(void)
{
	if (!atomic_exchange(&notify.tell, true))
		internal_thread_wake();
}

static bool sock_offload_may_be_retried(struct vma_file *file)
{
	const enum vma_sock_reason reason = file->ops->reason != NULL ? file->ops->reason(file) : VMA_SOCK_OFFLOADED;

	return atomic_load_explicit(&file->retry, memory_order_relaxed) || reason == VMA_SOCK_PORT_SHARED ||
	       reason == VMA_SOCK_INHERITED || reason == VMA_SOCK_NO_MEMORY;
}

struct round {
	bool all;   /* else only those that were refused for now */
	bool again; /* somebody still is */
};

static void file_notify_net_changed(struct vma_file *file, void *arg)
{
	struct round *round = arg;

	if (file->ops->net_changed == NULL || (!round->all && !sock_offload_may_be_retried(file)))
		return;
	file->ops->net_changed(file);
	round->again |= sock_offload_may_be_retried(file);
}

static void notify_all_files_of_net_change(bool all)
{
	struct round round = {.all = all};

	vma_file_each(file_notify_net_changed, &round);
	if (round.again)
		atomic_store(&notify.retry, true);
}

static void notify_files_of_net_change_when_due(const struct vma_net *net, uint64_t now)
{
	const uint64_t generation = vma_net_generation(net);

	if ((generation != notify.net_seen || atomic_load(&notify.tell)) && notify.net_ns == 0)
		notify.net_ns = notify.net_round_ns + NET_ROUND_NS;
	if (notify.net_ns == 0 || now < notify.net_ns)
		return;
	notify.net_ns = 0;
	notify.net_seen = generation;
	atomic_store(&notify.tell, false);
	notify.net_round_ns = now;
	notify_all_files_of_net_change(true);
}

static void notify_files_to_retry_offload_when_due(uint64_t now)
{
	if (notify.retry_ns == 0 && atomic_load(&notify.retry))
		notify.retry_ns = now + RETRY_NS;
	if (notify.retry_ns == 0 || now < notify.retry_ns)
		return;
	notify.retry_ns = 0;
	atomic_store(&notify.retry, false);
	notify_all_files_of_net_change(false);
	if (atomic_load(&notify.retry))
		notify.retry_ns = now + RETRY_NS;
}

uint64_t notify_files_of_changes_when_due(struct vma_engine *engine, uint64_t now)
{
	uint64_t next = NO_DEADLINE;

	notify_files_of_net_change_when_due(engine->net, now);
	notify_files_to_retry_offload_when_due(now);
	if (notify.net_ns != 0)
		next = notify.net_ns;
	if (notify.retry_ns != 0 && notify.retry_ns < next)
		next = notify.retry_ns;
	return next;
}

void notify_init(struct vma_engine *engine)
{
	notify.net_seen = vma_net_generation(engine->net);
}

void notify_reset_in_fork_child(void)
{
	notify.net_ns = notify.retry_ns = notify.net_round_ns = 0;
	atomic_store(&notify.retry, false);
	atomic_store(&notify.tell, false);
}

/* ---- errors of shadows ---- */

/*
 * A registration outlives its file where a forked child holds the shadow as well. So it names the file by number and
 * id, and what is not found is nobody's.
 */
int vma_engine_watch_errors(int fd, struct vma_file *file)
{
	return internal_epoll_add_fd(fd, EPOLLERR | EPOLLET, INTERNAL_ERROR,
	                             (uint64_t)fd << FD_SHIFT | (file->id & ID_MASK));
}

struct search {
	uint64_t id;
	struct vma_file *found;
};

static void find_file_by_id(struct vma_file *file, void *arg)
{
	struct search *search = arg;

	if ((file->id & ID_MASK) == search->id)
		search->found = file;
}

void notify_file_of_socket_error(uint64_t number)
{
	struct search search = {.id = number & ID_MASK, .found = vma_fd_lookup((int)(number >> FD_SHIFT & ID_MASK))};

	if (search.found == NULL || (search.found->id & ID_MASK) != search.id) {
		search.found = NULL;
		vma_file_each(find_file_by_id, &search);
	}
	if (search.found != NULL && vma_engine_on_error != NULL)
		vma_engine_on_error(search.found);
}
