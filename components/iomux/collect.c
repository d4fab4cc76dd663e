/*
 * collect - what a set has to tell: events of its items from the ready list, of their shadows from S, the OS's members
 * from E.
 *
 *   ready list ─┐
 *   S's shadows ┴──> pending ──> look at the file, tell, and (level) to the end of the queue again
 *   E ─────────────> the application's array
 *
 * The cost depends on the number of ready members; members without events are not touched. If more members are ready
 * than fit, they are told in turn: the queue goes round, and so does the kernel's behind S and E. When the OS is asked
 * it comes first, or last if its events filled the call before.
 */
#include <errno.h>

#include <vma/sock_os.h>

#include "iomux_priv.h"

#define OS_EVENTS_MAX 64 /* events of S at a time */
#define STALE_MAX 4      /* answers in a row: it does not go by itself */

/* ---- the queue ---- */

/* The stack gives the latest first: turned around, the queue goes on in the order of the pushes. */
static void epoll_take_ready_list(struct epoll_set *set)
{
	ck_stack_entry_t *entry = ready_list_take_all(&set->ready), *next;
	struct epoll_pending turned = TAILQ_HEAD_INITIALIZER(turned);
	uint32_t n = 0;

	for (; entry != NULL; entry = next, n++) {
		struct epoll_item *item = (struct epoll_item *)((char *)entry - offsetof(struct epoll_item, entry));

		next = ready_list_previously_pushed_entry(entry);
		item->is_pending = true;
		TAILQ_INSERT_HEAD(&turned, item, pending);
	}
	if (n == 0)
		return;
	TAILQ_CONCAT(&set->pending, &turned, pending);
	atomic_fetch_add_explicit(&set->n_pending, n, memory_order_relaxed);
}

static bool epoll_item_is_level_triggered(const struct epoll_item *item)
{
	return (item->events & (EPOLLET | EPOLLONESHOT)) == 0;
}

/* What of an answer is told. */
static uint32_t epoll_item_reported_events(const struct epoll_item *item, uint32_t mask)
{
	return mask & atomic_load_explicit(&item->wanted, memory_order_relaxed) & ~VMA_POLL_OWN_OUT;
}

static int store_epoll_event(struct epoll_event *to, uint32_t mask, const struct epoll_item *item)
{
	struct epoll_event event = {.events = mask, .data.u64 = item->data};

	return vma_memcpy_or_efault(to, &event, sizeof(event));
}

/* Told. One-shot: nothing more until it is changed. Level: looked at again in the next call, after all others. */
static void epoll_item_disable_or_requeue_reported(struct epoll_set *set, struct epoll_item *item, uint32_t own,
                                                   uint32_t mask)
{
	item->os_events = 0;
	if (atomic_load_explicit(&item->wanted, memory_order_relaxed) & ~mask & EPOLLIN)
		atomic_store_explicit(&set->drive_first, true, memory_order_relaxed);
	if (item->events & EPOLLONESHOT) {
		atomic_store_explicit(&item->wanted, 0, memory_order_relaxed);
		if (iomux_file_accept_rings(item->file) != 0)
			epoll_item_update_rings_and_notify(item);
	} else if (epoll_item_is_level_triggered(item) && own != 0) {
		epoll_item_enqueue(set, item, false);
	}
}

/*
 * What the file has to tell by itself. One that was writable by itself when its shadow entered S, and is not any more
 * (a socket that went back to the kernel), leaves it to the shadow from now on.
 */
static uint32_t epoll_item_own_events(struct epoll_set *set, struct epoll_item *item)
{
	uint32_t all = iomux_file_poll(item->file);
	struct pollfd shadow = {.fd = item->os_fd, .events = IOMUX_OUT};

	/* One that the shadow knows nothing of by now, and was asked of it when it entered S. */
	if (__builtin_expect(all & VMA_POLL_OWN_OUT, 0)) {
		item->os_events &= (uint16_t)~IOMUX_OUT;
		if (item->in_s && !item->out_unpolled && (item->events & IOMUX_OUT) != 0)
			epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_MOD, item);
	}
	if (__builtin_expect(item->out_unpolled && !(all & (EPOLLOUT | VMA_POLL_OWN_OUT)), 0) &&
	    epoll_item_reported_events(item, IOMUX_OUT) != 0 &&
	    epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_MOD, item) == 0 &&
	    iomux_os_poll_nonblocking(&shadow, 1) > 0)
		item->os_events |= (uint16_t)shadow.revents & IOMUX_OUT;
	return epoll_item_reported_events(item, all);
}

/* The first of the queue: 1 told, 0 it has nothing to tell any more, -EFAULT. */
static int epoll_report_first_item(struct epoll_set *set, struct epoll_event *to)
{
	struct epoll_item *item = TAILQ_FIRST(&set->pending);
	uint32_t own, mask;

	epoll_item_dequeue(set, item); /* before the look: see ready_list.h */
	if (!item->live) {
		epoll_item_free_if_ended(set, item);
		return 0;
	}
	own = epoll_item_own_events(set, item);
	mask = own | epoll_item_reported_events(item, item->os_events);
	if (mask == 0) {
		item->os_events = 0;
		return 0;
	}
	if (store_epoll_event(to, mask, item) < 0) {
		epoll_item_enqueue(set, item, true);
		return -EFAULT;
	}
	epoll_item_disable_or_requeue_reported(set, item, own, mask);
	return 1;
}

/* From the queue, each item once. */
static int epoll_report_pending_items(struct epoll_set *set, struct epoll_event *events, int max)
{
	uint32_t left = atomic_load_explicit(&set->n_pending, memory_order_relaxed);
	int n = 0;

	for (; left > 0 && n < max; left--) {
		int rc = epoll_report_first_item(set, events + n);

		if (rc < 0)
			return n > 0 ? n : rc;
		n += rc;
	}
	return n;
}

/* ---- the OS ---- */

/* S's answers into the items, and those to the front of the queue, in S's order. True: E has something. */
static bool poll_members_epfd(struct epoll_set *set, int max)
{
	struct epoll_event answers[OS_EVENTS_MAX];
	int n = iomux_os_epoll_nonblocking(set->members_epfd, answers, max < OS_EVENTS_MAX ? max : OS_EVENTS_MAX);
	bool outer = false, stale = false;

	iomux_note_os_polled_now(&set->os_polled);
	if (n > 0)
		set->os_polled.tsc = 0; /* it may say so again (level) */
	while (n-- > 0) {
		struct epoll_item *item = epoll_item_of_key(set, answers[n].data.u64);

		if (answers[n].data.u64 == 0) {
			outer = true;
		} else if (item == NULL) {
			/* Its number is being closed, by another thread; or was, and another process keeps the socket.
			 */
			stale = true;
		} else if (atomic_load_explicit(&item->wanted, memory_order_relaxed) != 0 &&
		           !atomic_load_explicit(&item->file->own_poll, memory_order_relaxed)) {
			iomux_pass_os_error(item->file, answers[n].events);
			item->os_events |= answers[n].events;
			epoll_item_enqueue(set, item, true);
		}
	}
	set->stale_events = stale ? set->stale_events + 1 : 0;
	if (set->stale_events == STALE_MAX) {
		set->stale_events = 0;
		atomic_store(&set->stale, true);
	}
	return outer;
}

static int poll_app_epfd(struct epoll_set *set, int epfd, struct epoll_event *events, int max)
{
	int n = max > 0 ? iomux_os_epoll_nonblocking(epfd, events, max) : 0;

	return n > 0 && set->kick >= 0 ? epoll_drop_and_clear_wakeup_fd(set, epfd, events, n) : n;
}

/* Level: S says it again as long as it is so, and this answer would be old. */
static void epoll_clear_stale_os_events(struct epoll_set *set)
{
	struct epoll_item *item;

	TAILQ_FOREACH(item, &set->pending, pending)
	{
		if (item->os_events == 0)
			return;
		if (epoll_item_is_level_triggered(item))
			item->os_events = 0;
	}
}

/* Two parts, the OS's E and ours, in one order or the other. An error counts if nothing was told before it. */
static int epoll_collect_os_and_ours(struct epoll_set *set, int epfd, struct epoll_event *events, int max)
{
	bool ours_first = set->ours_first;
	int n = ours_first ? epoll_report_pending_items(set, events, max) : poll_app_epfd(set, epfd, events, max), more;

	set->ours_first = !ours_first && n == max;
	if (n < 0)
		return n;
	set->os_told += ours_first ? 0 : (unsigned)n;
	more = ours_first ? poll_app_epfd(set, epfd, events + n, max - n)
	                  : epoll_report_pending_items(set, events + n, max - n);
	set->os_told += ours_first && more > 0 ? (unsigned)more : 0;
	return more < 0 ? (n > 0 ? n : more) : n + more;
}

static bool epoll_set_os_poll_is_due(const struct epoll_set *set, enum epoll_os_poll ask,
                                     const struct iomux_policy *policy)
{
	bool os = atomic_load_explicit(&set->n_os, memory_order_relaxed) > 0;

	if (ask == EPOLL_OS_POLL_IF_READY)
		return atomic_load_explicit(&set->n_pending, memory_order_relaxed) > 0 &&
		       (iomux_os_poll_is_long_ago(&set->os_polled) ||
		        (os && set->os_polled.skipped >= policy->skip_os));
	return ask == EPOLL_OS_POLL_ALWAYS || os || iomux_os_poll_is_long_ago(&set->os_polled);
}

static void stats_count_reported_events(struct epoll_set *set, int n)
{
	struct vma_stats_iomux *stats;

	if (__builtin_expect(atomic_load_explicit(&set->stats, memory_order_relaxed) == NULL, 0))
		epoll_set_begin_stats(set);
	stats = atomic_load_explicit(&set->stats, memory_order_relaxed);
	if (stats == NULL || n <= 0)
		return;
	vma_stats_add(&stats->ready, (unsigned)n - set->os_told);
	if (set->os_told != 0)
		vma_stats_add(&stats->os_ready, set->os_told);
}

int epoll_collect(struct epoll_set *set, int epfd, struct epoll_event *events, int max, enum epoll_os_poll ask,
                  const struct iomux_policy *policy)
{
	bool outer;
	int n;

	set->os_told = 0;

	if (__builtin_expect(atomic_load_explicit(&set->stale, memory_order_relaxed), 0))
		epoll_set_recreate_inner_epfd(set);
	epoll_take_ready_list(set);
	if (!epoll_set_os_poll_is_due(set, ask, policy)) {
		n = epoll_report_pending_items(set, events, max);
		set->os_polled.skipped += n > 0;
		stats_count_reported_events(set, n);
		return n;
	}
	outer = poll_members_epfd(set, max);
	n = outer ? epoll_collect_os_and_ours(set, epfd, events, max) : epoll_report_pending_items(set, events, max);
	epoll_clear_stale_os_events(set);
	stats_count_reported_events(set, n);
	return n;
}

/* ---- for a set around this one, for poll and select ---- */

/* Whether the first has something to tell; if not it leaves the queue. */
static bool epoll_first_item_is_ready(struct epoll_set *set)
{
	struct epoll_item *item = TAILQ_FIRST(&set->pending);

	if (item->live && (epoll_item_own_events(set, item) | epoll_item_reported_events(item, item->os_events)) != 0)
		return true;
	epoll_item_dequeue(set, item);
	if (!item->live)
		epoll_item_free_if_ended(set, item);
	else if (epoll_item_reported_events(item, iomux_file_poll(item->file)) != 0)
		epoll_item_enqueue(set, item, false); /* events between the look and the leaving */
	return false;
}

/* If somebody else collects at this moment, the answer is whether there was something to collect. */
uint32_t epoll_set_poll(struct vma_file *file)
{
	struct epoll_set *set = epoll_set_of_file(file);
	bool ready;

	if (!epoll_set_has_pending_events(set) && !atomic_load_explicit(&set->stale, memory_order_relaxed))
		return 0;
	if (pthread_mutex_trylock(&set->lock) != 0)
		return IOMUX_IN;
	if (atomic_load_explicit(&set->stale, memory_order_relaxed))
		epoll_set_recreate_inner_epfd(set);
	epoll_take_ready_list(set);
	for (ready = false; !ready && !TAILQ_EMPTY(&set->pending);)
		ready = epoll_first_item_is_ready(set);
	epoll_set_unlock_and_wake_waiter(set);
	return ready ? IOMUX_IN : 0;
}
