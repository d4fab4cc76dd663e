/*
 * item - a registration: one file under one number in one set.
 *
 * Items lie in chunks that double (16, 32, 64, ...) and never move. They are found by number and file in a hash, and by
 * place and generation from the key that S was given. Their end, in steps:
 *
 *   remove    (set->lock) live = false, wanted = 0: no thread queues it for events that it wants, none tells of it; the
 *             watcher is taken out
 *   retired   (every thread that was inside has left) epoll_item_free_retired: the watcher is not called any more;
 *             ended = true
 *   recycle   by the thread that turns `queued` from false to true after that: epoll_item_free_retired itself, or, if it
 *             found the item in the list, the collector that takes it out
 *
 * Both are exchanges of the same word after ended was written, so exactly one of the two sees that it is its turn.
 * `queued` stays true until the place is taken again, with the lock.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "iomux_priv.h"

#define BUCKETS_FIRST 16U

static struct epoll_item *epoll_item_of_watcher(struct vma_watcher *watcher)
{
	return (struct epoll_item *)((char *)watcher - offsetof(struct epoll_item, watcher));
}

/* ---- places ---- */

static unsigned item_chunk_of(uint32_t index, uint32_t *within)
{
	uint32_t n = index / EPOLL_CHUNK_FIRST + 1;
	unsigned chunk = 31U - (unsigned)__builtin_clz(n);

	*within = index - EPOLL_CHUNK_FIRST * ((1U << chunk) - 1);
	return chunk;
}

struct epoll_item *epoll_item_at(const struct epoll_set *set, uint32_t index)
{
	uint32_t within;
	unsigned chunk = item_chunk_of(index, &within);

	return &set->chunk[chunk][within];
}

static struct epoll_item *epoll_item_new_slot(struct epoll_set *set)
{
	uint32_t within;
	unsigned chunk = item_chunk_of(set->n_items, &within);
	struct epoll_item *item;

	if (chunk >= EPOLL_CHUNKS)
		return NULL;
	if (set->chunk[chunk] == NULL)
		set->chunk[chunk] = vma_alloc(((size_t)EPOLL_CHUNK_FIRST << chunk) * sizeof(*item));
	if (set->chunk[chunk] == NULL)
		return NULL;
	item = &set->chunk[chunk][within];
	item->index = set->n_items++;
	item->set = set;
	return item;
}

static struct epoll_item *item_alloc(struct epoll_set *set)
{
	struct epoll_item *item;

	pthread_mutex_lock(&set->leaf);
	item = set->free;
	if (item != NULL)
		set->free = item->next;
	pthread_mutex_unlock(&set->leaf);
	return item != NULL ? item : epoll_item_new_slot(set);
}

static void item_free(struct epoll_set *set, struct epoll_item *item)
{
	pthread_mutex_lock(&set->leaf);
	item->next = set->free;
	set->free = item;
	pthread_mutex_unlock(&set->leaf);
}

uint64_t epoll_item_key(const struct epoll_item *item)
{
	return (uint64_t)item->generation << 32 | (item->index + 1);
}

/* NULL: it has gone. */
struct epoll_item *epoll_item_of_key(struct epoll_set *set, uint64_t key)
{
	uint32_t place = (uint32_t)key;
	struct epoll_item *item = place > 0 && place <= set->n_items ? epoll_item_at(set, place - 1) : NULL;

	return item != NULL && item->live && epoll_item_key(item) == key ? item : NULL;
}

/* ---- by file and number ---- */

static struct epoll_item **item_bucket_of(const struct epoll_set *set, const struct vma_file *file, int fd)
{
	uint64_t hash = (file->id * 0x9e3779b97f4a7c15ULL) ^ ((uint64_t)(uint32_t)fd * 0xff51afd7ed558ccdULL);

	return &set->bucket[(hash >> 32) & (set->n_buckets - 1)];
}

static struct epoll_item *epoll_item_find_in_bucket(struct epoll_set *set, const struct vma_file *file, int fd)
{
	struct epoll_item *item = set->n_buckets > 0 ? *item_bucket_of(set, file, fd) : NULL;

	while (item != NULL && (item->file != file || item->fd != fd))
		item = item->next;
	return item;
}

struct epoll_item *epoll_item_find(struct epoll_set *set, const struct vma_file *file, int fd)
{
	struct epoll_item *item = epoll_item_find_in_bucket(set, file, fd);

	return item != NULL && item->live ? item : NULL;
}

static void epoll_item_insert_in_hash(struct epoll_set *set, struct epoll_item *item)
{
	struct epoll_item **bucket = item_bucket_of(set, item->file, item->fd);

	item->next = *bucket;
	*bucket = item;
}

static void epoll_item_remove_from_hash(struct epoll_set *set, struct epoll_item *item)
{
	struct epoll_item **at = item_bucket_of(set, item->file, item->fd);

	while (*at != item)
		at = &(*at)->next;
	*at = item->next;
}

/* The places say what there is. */
void epoll_item_rehash(struct epoll_set *set)
{
	set->n_linked = 0;
	memset(set->bucket, 0, set->n_buckets * sizeof(*set->bucket));
	for (uint32_t i = 0; i < set->n_items; i++) {
		struct epoll_item *item = epoll_item_at(set, i);

		if (item->live || item->parked) {
			epoll_item_insert_in_hash(set, item);
			set->n_linked++;
		}
	}
}

static int buckets_grow(struct epoll_set *set)
{
	uint32_t n = set->n_buckets > 0 ? set->n_buckets * 2 : BUCKETS_FIRST;
	struct epoll_item **bucket;

	if (set->n_linked < set->n_buckets)
		return 0;
	bucket = vma_alloc(n * sizeof(*bucket));
	if (bucket == NULL)
		return -ENOMEM;
	vma_free(set->bucket);
	set->bucket = bucket;
	set->n_buckets = n;
	epoll_item_rehash(set);
	return 0;
}

/* ---- queued ---- */

/* Into the set's own queue, unless it is in the ready list already. With the lock. */
void epoll_item_enqueue(struct epoll_set *set, struct epoll_item *item, bool first)
{
	if (item->is_pending && first)
		TAILQ_REMOVE(&set->pending, item, pending);
	else if (item->is_pending || atomic_exchange(&item->queued, true))
		return;
	else
		atomic_fetch_add_explicit(&set->n_pending, 1, memory_order_relaxed);
	item->is_pending = true;
	if (first)
		TAILQ_INSERT_HEAD(&set->pending, item, pending);
	else
		TAILQ_INSERT_TAIL(&set->pending, item, pending);
}

/* Out of it; from now on events queue it again. */
void epoll_item_dequeue(struct epoll_set *set, struct epoll_item *item)
{
	TAILQ_REMOVE(&set->pending, item, pending);
	atomic_fetch_sub_explicit(&set->n_pending, 1, memory_order_relaxed);
	item->is_pending = false;
	atomic_exchange(&item->queued, false);
}

/* ---- what a file tells ---- */

/* Whoever delivers, perhaps under a ring's flag. */
static void item_on_ready(struct vma_watcher *watcher, uint32_t events)
{
	struct epoll_item *item = epoll_item_of_watcher(watcher);

	if ((atomic_load_explicit(&item->wanted, memory_order_relaxed) & iomux_with_event_aliases(events)) == 0)
		return;
	ready_list_push_mpsc(&item->set->ready, &item->entry, &item->queued);
	vma_file_wake_sleepers_and_watchers(&item->set->file, EPOLLIN);
}

/* One of them counts for other rings than before. True: *rings has changed. */
static bool ring_bits_update_users(uint32_t users[64], _Atomic uint64_t *rings, uint64_t before, uint64_t now)
{
	const uint64_t old = atomic_load_explicit(rings, memory_order_relaxed);
	uint64_t all = old;

	for (uint64_t bits = before ^ now; bits != 0; bits &= bits - 1) {
		const unsigned bit = (unsigned)__builtin_ctzll(bits);

		users[bit] += now >> bit & 1 ? 1 : UINT32_MAX;
		all = users[bit] > 0 ? all | 1ULL << bit : all & ~(1ULL << bit);
	}
	atomic_store_explicit(rings, all, memory_order_relaxed);
	return all != old;
}

/* Asked under the lock, so that of two answers the later one stays. True: the set's rings are others now. */
static bool epoll_item_update_ring_counts(struct epoll_item *item)
{
	struct epoll_set *set = item->set;
	uint64_t rings = 0, accept_rings = 0;
	bool changed;

	pthread_mutex_lock(&set->leaf);
	if (!atomic_load_explicit(&item->removed, memory_order_relaxed))
		rings = iomux_file_rings(item->file);
	if (rings != 0 && (atomic_load_explicit(&item->wanted, memory_order_relaxed) & EPOLLIN) != 0)
		accept_rings = iomux_file_accept_rings(item->file);
	changed = ring_bits_update_users(set->ring_users, &set->rings, item->rings, rings);
	changed |= ring_bits_update_users(set->acceptors, &set->accept_rings, item->accept_rings, accept_rings);
	item->rings = rings;
	item->accept_rings = accept_rings;
	pthread_mutex_unlock(&set->leaf);
	return changed;
}

/* Sleepers watch the new rings, too, and ask on them; sets around this one count them as theirs. */
static void epoll_set_on_rings_changed(struct epoll_set *set)
{
	struct vma_watchers *watchers = atomic_load_explicit(&set->file.watchers, memory_order_acquire);
	uint64_t rings = atomic_load_explicit(&set->rings, memory_order_relaxed);

	vma_waitq_wake(&set->file.waitq, true);
	for (uint32_t i = 0; watchers != NULL && i < watchers->n; i++)
		watchers->watcher[i]->rings(watchers->watcher[i], rings);
}

void epoll_item_update_rings_and_notify(struct epoll_item *item)
{
	if (epoll_item_update_ring_counts(item))
		epoll_set_on_rings_changed(item->set);
}

static void epoll_item_on_rings_changed(struct vma_watcher *watcher, uint64_t rings)
{
	struct epoll_item *item = epoll_item_of_watcher(watcher);

	(void)rings;
	if (epoll_item_update_ring_counts(item))
		epoll_set_on_rings_changed(item->set);
}

/*
 * The kernel takes the shadow out of S by itself when the socket's last number is closed, unless another process has
 * it: by a fork; or, unseen, passed on or inherited by a program that was started: collect.c comes upon those.
 */
static bool item_shadow_has_left_epoll(const struct epoll_item *item)
{
	return item->file->kind != VMA_FILE_EPOLL &&
	       item->file->forks == atomic_load_explicit(&vma_fork_count, memory_order_relaxed);
}

/*
 * As in the kernel, a registration outlives its number as long as the file has another one, and goes with the last. The
 * number is still open then if it is the item's own.
 */
static void item_on_closed(struct vma_watcher *watcher, int fd)
{
	struct epoll_item *item = epoll_item_of_watcher(watcher);
	struct epoll_set *set = item->set;

	pthread_mutex_lock(&set->lock);
	if (item->live && fd == item->fd)
		item->number_closed = true;
	if (item->parked && (fd < 0 || fd == item->fd))
		epoll_item_remove(set, item);
	if (item->live && fd < 0) {
		if (!item->number_closed && !item_shadow_has_left_epoll(item))
			epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_DEL, item);
		epoll_item_remove(set, item);
	}
	epoll_set_unlock_and_wake_waiter(set);
}

/* The shadow is to be asked from now on, or not any more. A member that is told once was told already, or will be. */
static void epoll_item_on_shadow_change(struct vma_watcher *watcher)
{
	struct epoll_item *item = epoll_item_of_watcher(watcher);
	struct epoll_set *set = item->set;

	pthread_mutex_lock(&set->lock);
	if (item->live && item->number_closed) {
		atomic_store(&set->stale, true); /* under another number, which is looked for then */
	} else if (item->live) {
		epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_DEL, item);
		epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_ADD, item);
	}
	epoll_set_unlock_and_wake_waiter(set);
	vma_waitq_wake(&set->file.waitq, true);
}

/* The file is a set whose inner descriptor is another one now. No lock of the outer set: only marks. */
void epoll_item_mark_outer_set_stale(struct vma_watcher *watcher)
{
	struct epoll_set *outer;

	if (watcher->ready != item_on_ready)
		return;
	outer = epoll_item_of_watcher(watcher)->set;
	atomic_store(&outer->stale, true);
	vma_waitq_wake(&outer->file.waitq, true);
}

/* ---- its life ---- */

void epoll_item_set_events(struct epoll_item *item, uint32_t events, uint64_t data)
{
	item->events = events;
	item->data = data;
	item->os_events = 0;
	atomic_store_explicit(&item->wanted, (events & ~EPOLL_PRIVATE) | IOMUX_ALWAYS, memory_order_relaxed);
}

/* Taken out of the list, and removed: with the lock. */
void epoll_item_free_if_ended(struct epoll_set *set, struct epoll_item *item)
{
	if (atomic_load(&item->ended) && !atomic_exchange(&item->queued, true))
		item_free(set, item);
}

static void epoll_item_free_retired(struct vma_retired *retired)
{
	struct epoll_item *item = (struct epoll_item *)((char *)retired - offsetof(struct epoll_item, retired));
	struct epoll_set *set = item->set;
	struct vma_file *file = item->file;

	atomic_store(&item->ended, true);
	if (!atomic_exchange(&item->queued, true))
		item_free(set, item);
	vma_file_put(file);
	vma_file_put(&set->file);
}

/*
 * Programs that delete a registration with every event and add it again (libraries that know only "readable" and
 * "writable" do) find everything as it was: a parked item is still counted and watches, but wants nothing. It may be
 * queued still: then it is looked at in its turn, as any that is there again.
 */
void epoll_item_keep_after_delete(struct epoll_set *set, struct epoll_item *item)
{
	(void)set;
	item->live = false;
	item->parked = true;
	atomic_store_explicit(&item->wanted, 0, memory_order_relaxed);
	if (iomux_file_accept_rings(item->file) != 0)
		epoll_item_update_rings_and_notify(item);
}

static void epoll_item_unpark(struct epoll_item *item)
{
	item->parked = false;
	item->live = true;
}

int epoll_item_add(struct epoll_set *set, struct vma_file *file, int fd, struct epoll_item **out)
{
	struct epoll_item *item = epoll_item_find_in_bucket(set, file, fd);
	int rc;

	if (item != NULL) {
		epoll_item_unpark(item);
		*out = item;
		return 0;
	}
	rc = buckets_grow(set);
	item = rc == 0 ? item_alloc(set) : NULL;
	if (item == NULL)
		return -ENOMEM;
	item->watcher = (struct vma_watcher){.ready = item_on_ready,
	                                     .rings = epoll_item_on_rings_changed,
	                                     .closed = item_on_closed,
	                                     .shadow = epoll_item_on_shadow_change};
	item->file = file;
	item->fd = fd;
	item->number_closed = item->is_pending = item->os_fd_own = item->in_s = false;
	item->os_fd = fd;
	item->rings = item->accept_rings = 0;
	item->generation++;
	atomic_store_explicit(&item->removed, false, memory_order_relaxed);
	atomic_store(&item->ended, false);
	atomic_store(&item->queued, false);
	rc = vma_file_watch(file, &item->watcher);
	if (rc < 0) {
		item_free(set, item);
		return rc;
	}
	vma_file_get(file);
	vma_file_get(&set->file);
	epoll_item_insert_in_hash(set, item);
	set->n_linked++;
	if (file->kind == VMA_FILE_EPOLL) /* it may have members of the OS in its turn */
		atomic_fetch_add_explicit(&set->n_os, 1, memory_order_relaxed);
	item->live = true;
	*out = item;
	return 0;
}

void epoll_item_remove(struct epoll_set *set, struct epoll_item *item)
{
	item->live = item->parked = false;
	atomic_store_explicit(&item->removed, true, memory_order_relaxed);
	atomic_store_explicit(&item->wanted, 0, memory_order_relaxed);
	epoll_item_remove_from_hash(set, item);
	set->n_linked--;
	if (item->file->kind == VMA_FILE_EPOLL)
		atomic_fetch_sub_explicit(&set->n_os, 1, memory_order_relaxed);
	if (item->os_fd_own)
		vma_fd_unguard_close(item->os_fd);
	vma_file_unwatch(item->file, &item->watcher);
	if (epoll_item_update_ring_counts(item))
		epoll_set_on_rings_changed(set);
	vma_defer_free_until_no_readers(&item->retired, epoll_item_free_retired);
}
