/* news - messages of the internal thread to files: the network has changed, try again, your shadow has an error. */
#include <sys/epoll.h>

#include "internal_priv.h"

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
} news;

void (*vma_engine_on_error)(struct vma_file *file);

/* ---- the network, and refused offloads ---- */

void vma_engine_retry(void)
{
	if (!atomic_exchange(&news.retry, true))
		internal_wake();
}

void news_tell_files(void)
{
	if (!atomic_exchange(&news.tell, true))
		internal_wake();
}

static bool is_refused(struct vma_file *file)
{
	const enum vma_sock_reason reason = file->ops->reason != NULL ? file->ops->reason(file) : VMA_SOCK_OFFLOADED;

	return atomic_load_explicit(&file->retry, memory_order_relaxed) || reason == VMA_SOCK_PORT_SHARED ||
	       reason == VMA_SOCK_INHERITED || reason == VMA_SOCK_NO_MEMORY;
}

struct round {
	bool all;   /* else only those that were refused for now */
	bool again; /* somebody still is */
};

static void file_tell_net_changed(struct vma_file *file, void *arg)
{
	struct round *round = arg;

	if (file->ops->net_changed == NULL || (!round->all && !is_refused(file)))
		return;
	file->ops->net_changed(file);
	round->again |= is_refused(file);
}

static void tell_files(bool all)
{
	struct round round = {.all = all};

	vma_file_each(file_tell_net_changed, &round);
	if (round.again)
		atomic_store(&news.retry, true);
}

static void turn_net(const struct vma_net *net, uint64_t now)
{
	const uint64_t generation = vma_net_generation(net);

	if ((generation != news.net_seen || atomic_load(&news.tell)) && news.net_ns == 0)
		news.net_ns = news.net_round_ns + NET_ROUND_NS;
	if (news.net_ns == 0 || now < news.net_ns)
		return;
	news.net_ns = 0;
	news.net_seen = generation;
	atomic_store(&news.tell, false);
	news.net_round_ns = now;
	tell_files(true);
}

static void turn_retry(uint64_t now)
{
	if (news.retry_ns == 0 && atomic_load(&news.retry))
		news.retry_ns = now + RETRY_NS;
	if (news.retry_ns == 0 || now < news.retry_ns)
		return;
	news.retry_ns = 0;
	atomic_store(&news.retry, false);
	tell_files(false);
	if (atomic_load(&news.retry))
		news.retry_ns = now + RETRY_NS;
}

uint64_t news_turn(struct vma_engine *engine, uint64_t now)
{
	uint64_t next = NO_DEADLINE;

	turn_net(engine->net, now);
	turn_retry(now);
	if (news.net_ns != 0)
		next = news.net_ns;
	if (news.retry_ns != 0 && news.retry_ns < next)
		next = news.retry_ns;
	return next;
}

void news_start(struct vma_engine *engine)
{
	news.net_seen = vma_net_generation(engine->net);
}

void news_fork_child(void)
{
	news.net_ns = news.retry_ns = news.net_round_ns = 0;
	atomic_store(&news.retry, false);
	atomic_store(&news.tell, false);
}

/* ---- errors of shadows ---- */

/*
 * A registration outlives its file where a forked child holds the shadow as well. So it names the file by number and
 * id, and what is not found is nobody's.
 */
int vma_engine_watch_errors(int fd, struct vma_file *file)
{
	return internal_set_add(fd, EPOLLERR | EPOLLET, INTERNAL_ERROR,
	                        (uint64_t)fd << FD_SHIFT | (file->id & ID_MASK));
}

struct search {
	uint64_t id;
	struct vma_file *found;
};

static void compare_id(struct vma_file *file, void *arg)
{
	struct search *search = arg;

	if ((file->id & ID_MASK) == search->id)
		search->found = file;
}

void news_take_error(uint64_t number)
{
	struct search search = {.id = number & ID_MASK, .found = vma_fd_lookup((int)(number >> FD_SHIFT & ID_MASK))};

	if (search.found == NULL || (search.found->id & ID_MASK) != search.id) {
		search.found = NULL;
		vma_file_each(compare_id, &search);
	}
	if (search.found != NULL && vma_engine_on_error != NULL)
		vma_engine_on_error(search.found);
}
