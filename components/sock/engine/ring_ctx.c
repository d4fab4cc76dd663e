/*
 * ring_ctx - ring contexts: rings and their users. They are made by allocation logic, found by bit, and ended when no
 * holder is left.
 *
 * vma_ring_ctxs is read inside, without a lock. When the last reference of a ring context goes, it is taken out of its
 * chain under the lock. It keeps its own `next` for a thread that stands on it. It is destroyed when no thread that
 * could still see it is inside, so a ring is never driven while it goes. A reference is only taken under the lock, from
 * a ring context in the chain, or by a thread that holds one already. So a count that has reached zero stays there.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <vma/log.h>

#include "internal.h"
#include "../wait/wait.h"

#define BITS 64
#define CATCH_UP_TRIES 3
#define CATCH_UP_NSEC 50000000

struct vma_ring_ctx *_Atomic vma_ring_ctxs[BITS];
static pthread_mutex_t ring_ctxs_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the chains ---- */

struct vma_ring_ctx *ring_ctx_of_id(uint32_t id)
{
	struct vma_ring_ctx *ring_ctx = atomic_load_explicit(&vma_ring_ctxs[id % BITS], memory_order_acquire);

	while (ring_ctx != NULL && ring_ctx->id != id)
		ring_ctx = atomic_load_explicit(&ring_ctx->next, memory_order_acquire);
	return ring_ctx;
}

void ring_ctxs_each(void (*fn)(struct vma_ring_ctx *ring_ctx, void *arg), void *arg)
{
	for (unsigned bit = 0; bit < BITS; bit++) {
		struct vma_ring_ctx *ring_ctx = atomic_load_explicit(&vma_ring_ctxs[bit], memory_order_acquire);

		for (; ring_ctx != NULL; ring_ctx = atomic_load_explicit(&ring_ctx->next, memory_order_acquire))
			fn(ring_ctx, arg);
	}
}

/* The lowest that is free: as long as there are no more than 64, each has a bit of its own. */
static uint32_t ring_ctx_lowest_free_id(void)
{
	uint32_t id = 0;

	while (ring_ctx_of_id(id) != NULL)
		id++;
	return id;
}

static void ring_ctx_list_add(struct vma_ring_ctx *ring_ctx)
{
	struct vma_ring_ctx *_Atomic *head = &vma_ring_ctxs[ring_ctx->id % BITS];

	atomic_store_explicit(&ring_ctx->next, atomic_load_explicit(head, memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(head, ring_ctx, memory_order_release);
}

static void ring_ctx_list_remove(struct vma_ring_ctx *ring_ctx)
{
	struct vma_ring_ctx *_Atomic *place = &vma_ring_ctxs[ring_ctx->id % BITS];

	while (atomic_load_explicit(place, memory_order_relaxed) != ring_ctx)
		place = &atomic_load_explicit(place, memory_order_relaxed)->next;
	atomic_store_explicit(place, atomic_load_explicit(&ring_ctx->next, memory_order_relaxed), memory_order_release);
}

/* ---- making and ending ---- */

static int create_ring(struct vma_device *device, uint32_t id, struct vma_ring **out)
{
	struct vma_engine *engine = device->engine;
	char name[sizeof(device->nic->info.name) + 16];
	struct vma_ring_attr attr = {
	        .nic = device->nic,
	        .spill_pool = engine->spill,
	        .stats = engine->stats,
	        .name = name,
	};
	int rc;

	vma_ring_conf_to_ring_attr(&engine->conf, &attr);
	snprintf(name, sizeof(name), "%s#%u", vma_nic_info(device->nic)->name, id);
	rc = vma_ring_create(&attr, out);
	if (rc == 0)
		vma_ring_conf_log_granted_depths(&engine->conf, vma_nic_info(device->nic)->name, vma_ring_qp(*out));
	return rc;
}

static bool same_ring_ctx_key(const struct vma_ring_key *a, const struct vma_ring_key *b)
{
	return memcmp(a, b, sizeof(*a)) == 0; /* vma_ring_key zeroes the padding */
}

static struct vma_ring_ctx *ring_ctx_find(struct vma_device *device, const struct vma_ring_key *key)
{
	struct vma_ring_ctx *ring_ctx = device->priv->ring_ctxs;

	while (ring_ctx != NULL && !same_ring_ctx_key(&ring_ctx->key, key))
		ring_ctx = ring_ctx->next_of_device;
	return ring_ctx;
}

static int ring_ctx_create_new(struct vma_device *device, const struct vma_ring_key *key, struct vma_ring_ctx **out)
{
	struct vma_ring_ctx *ring_ctx = vma_alloc(sizeof(*ring_ctx));
	int rc;

	if (ring_ctx == NULL)
		return -ENOMEM;
	ring_ctx->device = device;
	ring_ctx->id = ring_ctx_lowest_free_id();
	memcpy(&ring_ctx->key, key, sizeof(*key));
	/* The ring of the whole interface stays: a program that opens a socket per request does not rent one each time.
	 */
	atomic_init(&ring_ctx->refs, key->logic == VMA_RING_LOGIC_PER_INTERFACE && key->profile == 0 ? 1 : 0);
	rc = create_ring(device, ring_ctx->id, &ring_ctx->ring);
	if (rc < 0) {
		vma_log_once(VMA_LOG_WARN, "%s: no more queue pairs: %s", vma_nic_info(device->nic)->name,
		             strerrordesc_np(-rc));
		vma_free(ring_ctx);
		return rc;
	}
	ring_ctx->member = vma_ring_qp(ring_ctx->ring)->member;
	atomic_init(&ring_ctx->hold.is_asked_for, vma_cq_moderation_is_on(vma_ring_cq(ring_ctx->ring)));
	atomic_init(&ring_ctx->busy_mask, RING_CTX_BUSY_DRIVES - 1);
	ring_ctx->next_of_device = device->priv->ring_ctxs;
	device->priv->ring_ctxs = ring_ctx;
	device->priv->ring_ctxs_made++;
	ring_ctx_list_add(ring_ctx);
	*out = ring_ctx;
	return 0;
}

/* The one at this place of the device's list. */
static struct vma_ring_ctx *ring_ctx_nth(struct vma_device *device, int n)
{
	struct vma_ring_ctx *ring_ctx = device->priv->ring_ctxs;

	while (n-- > 0 && ring_ctx != NULL)
		ring_ctx = ring_ctx->next_of_device;
	return ring_ctx;
}

/* With the lock. The one for this key among those that there are; NULL: one is to be made. */
static struct vma_ring_ctx *ring_ctx_find_or_share_by_key(struct vma_device *device, const struct vma_ring_key *key)
{
	const uint32_t limit = (uint32_t)device->engine->conf.ring_limit_per_interface;
	struct vma_ring_ctx *ring_ctx = ring_ctx_find(device, key);
	int shared;

	if (ring_ctx != NULL)
		return ring_ctx;
	shared = vma_ring_choose_existing_or_new(*key, device->priv->ring_ctxs_made, limit);
	return shared >= 0 ? ring_ctx_nth(device, shared) : NULL;
}

/* With the lock. */
static int ring_ctx_find_or_create(struct vma_device *device, const struct vma_ring_key *key, struct vma_ring_ctx **out)
{
	struct vma_ring_ctx *ring_ctx = ring_ctx_find_or_share_by_key(device, key);
	int rc = 0;

	if (ring_ctx == NULL)
		rc = ring_ctx_create_new(device, key, &ring_ctx);
	if (rc < 0 && device->priv->ring_ctxs != NULL) { /* the device has no more: share one */
		ring_ctx = ring_ctx_nth(device, vma_ring_choose_existing_or_new(*key, device->priv->ring_ctxs_made, 1));
		rc = 0;
	}
	if (rc < 0)
		return rc;
	atomic_fetch_add_explicit(&ring_ctx->refs, 1, memory_order_relaxed);
	*out = ring_ctx;
	return 0;
}

int vma_ring_ctx_find_or_create(struct vma_device *device, enum vma_ring_ctx_side side,
                                const struct vma_ring_requester *where, struct vma_ring_ctx **out)
{
	const struct vma_ring_key key = ring_ctx_key(&device->engine->conf, side, where);
	uint32_t before;
	bool is_new;
	int rc;

	pthread_mutex_lock(&ring_ctxs_lock);
	before = device->priv->ring_ctxs_made;
	rc = ring_ctx_find_or_create(device, &key, out);
	is_new = device->priv->ring_ctxs_made != before;
	pthread_mutex_unlock(&ring_ctxs_lock);
	if (rc == 0 && is_new)
		internal_thread_wake(); /* it is to be looked after */
	return rc;
}

bool vma_ring_ctx_is_that_of_requester(const struct vma_ring_ctx *ring_ctx, enum vma_ring_ctx_side side,
                                       const struct vma_ring_requester *where)
{
	const struct vma_ring_key key = ring_ctx_key(&ring_ctx->device->engine->conf, side, where);
	bool is;

	pthread_mutex_lock(&ring_ctxs_lock);
	is = ring_ctx_find_or_share_by_key(ring_ctx->device, &key) == ring_ctx;
	pthread_mutex_unlock(&ring_ctxs_lock);
	return is;
}

bool vma_ring_ctx_try_add_ref(struct vma_ring_ctx *ring_ctx)
{
	bool lives;

	pthread_mutex_lock(&ring_ctxs_lock);
	lives = atomic_load_explicit(&ring_ctx->refs, memory_order_relaxed) != 0;
	if (lives)
		atomic_fetch_add_explicit(&ring_ctx->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&ring_ctxs_lock);
	return lives;
}

int vma_ring_ctx_set_moderation(struct vma_ring_ctx *ring_ctx, uint32_t count, uint32_t period_usec)
{
	if (!vma_ring_acquire(ring_ctx->ring))
		return -EDEADLK;
	vma_cq_set_moderation(vma_ring_cq(ring_ctx->ring), (struct vma_cq_moderation){count, period_usec});
	atomic_store_explicit(&ring_ctx->hold.is_asked_for, true, memory_order_relaxed);
	vma_ring_release(ring_ctx->ring);
	return 0;
}

static void ring_ctx_free_retired(struct vma_retired *retired)
{
	struct vma_ring_ctx *ring_ctx =
	        (struct vma_ring_ctx *)((char *)retired - offsetof(struct vma_ring_ctx, retired));

	ring_housekeeping_remove(ring_ctx);
	ring_ctx_tcp_end(ring_ctx);
	vma_ring_destroy(ring_ctx->ring);
	vma_free(ring_ctx);
}

/* With the lock. */
static void unlink_ring_ctx(struct vma_ring_ctx *ring_ctx)
{
	struct vma_ring_ctx **place = &ring_ctx->device->priv->ring_ctxs;

	while (*place != ring_ctx)
		place = &(*place)->next_of_device;
	*place = ring_ctx->next_of_device;
	ring_ctx->device->priv->ring_ctxs_made--;
	ring_ctx_list_remove(ring_ctx);
}

void ring_ctx_put_and_retire_if_last(struct vma_ring_ctx *ring_ctx)
{
	bool last;

	pthread_mutex_lock(&ring_ctxs_lock);
	last = atomic_fetch_sub_explicit(&ring_ctx->refs, 1, memory_order_acq_rel) == 1;
	if (last)
		unlink_ring_ctx(ring_ctx);
	pthread_mutex_unlock(&ring_ctxs_lock);
	if (!last)
		return;
	ring_file_detach_and_close_of_ended_ring(ring_ctx);
	ring_housekeeping_wake_to_reclaim_ring();
	vma_defer_free_until_no_readers(&ring_ctx->retired, ring_ctx_free_retired);
}

/*
 * The last reference to a ring context with a stack becomes the internal thread's: connections may have to end on it.
 */
void vma_ring_ctx_put(struct vma_ring_ctx *ring_ctx)
{
	bool abandoned = false;

	pthread_mutex_lock(&ring_ctxs_lock);
	if (atomic_load_explicit(&ring_ctx->refs, memory_order_relaxed) == 1 &&
	    atomic_load_explicit(&ring_ctx->tcp, memory_order_relaxed) != NULL)
		abandoned = !atomic_exchange(&ring_ctx->abandoned, true);
	pthread_mutex_unlock(&ring_ctxs_lock);
	if (abandoned)
		tcp_housekeeping_count_abandoned_stack();
	else
		ring_ctx_put_and_retire_if_last(ring_ctx);
}

__attribute__((cold)) void ring_ctxs_forget_in_fork_child(void)
{
	pthread_mutex_init(&ring_ctxs_lock, NULL);
	ring_files_reset_in_fork_child();
	ring_ctx_tcp_reset_in_fork_child();
	for (unsigned bit = 0; bit < BITS; bit++)
		atomic_store_explicit(&vma_ring_ctxs[bit], NULL, memory_order_relaxed);
}

/* ---- the data path ---- */

/* One sleeper for each datagram, as far as there are any; epoll sets once. */
static inline void wake_file_readers_of_datagrams(struct vma_file *file, uint32_t datagrams)
{
	struct vma_watchers *watchers;

#ifdef VMA_TSAN
	atomic_fetch_add(&file->waitq.used, 0); /* see vma_waitq_wake */
#endif
	for (; vma_waitq_has_sleepers(&file->waitq) && datagrams > 0; datagrams--)
		vma_waitq_wake_slow(&file->waitq, false);
	watchers = atomic_load(&file->watchers);
	if (__builtin_expect(watchers != NULL, 0))
		vma_file_wake_watchers(file, watchers, VMA_FILE_READABLE);
}

void vma_file_notify_readable(struct vma_file *file, uint32_t datagrams)
{
#ifndef VMA_TSAN
	atomic_thread_fence(memory_order_seq_cst);
#endif
	wake_file_readers_of_datagrams(file, datagrams);
}

/*
 * Drives a ring, and tells of what its sinks have put into queues. The argument is that of wait/waitq.c, with another
 * fence: a datagram was queued (C), then the drive flag was released (a sequentially consistent store, also of a biased
 * flag after a drive: drive_flag_release_with_full_barrier), then `used` is loaded so (D): neither x86's exchange nor
 * arm64's release and acquire lets D overtake C. The file lives: this thread has been inside all the time.
 */
static inline int ring_ctx_drive(struct vma_thread *self, struct vma_ring *ring, bool timers)
{
	int n;

	self->gathers = true;
	n = timers ? vma_ring_progress(ring) : vma_ring_poll(ring);
	self->gathers = false;
	if (self->readable != NULL) {
		wake_file_readers_of_datagrams(self->readable, self->datagrams);
		self->readable = NULL;
	}
	return n;
}

/* Between two threads a step may be lost; that it moves is all that counts. */
void vma_ring_ctxs_count_accept_slow(uint64_t rings)
{
	for (; rings != 0; rings &= rings - 1) {
		struct vma_ring_ctx *ring_ctx =
		        atomic_load_explicit(&vma_ring_ctxs[__builtin_ctzll(rings)], memory_order_acquire);

		for (; ring_ctx != NULL; ring_ctx = atomic_load_explicit(&ring_ctx->next, memory_order_acquire)) {
			struct vma_nic_accept_page *member = ring_ctx->member;

			if (member != NULL && atomic_load_explicit(&member->groups, memory_order_relaxed) != 0)
				atomic_store_explicit(
				        &member->accept_calls,
				        atomic_load_explicit(&member->accept_calls, memory_order_relaxed) + 1,
				        memory_order_relaxed);
		}
	}
}

/* For as long as a preempted thread may have to wait for a core. */
static int __attribute__((cold, noinline))
ring_poll_after_waiting_for_driver(struct vma_thread *self, struct vma_ring *ring)
{
	int n = -EBUSY;

	for (int tries = 0; n == -EBUSY && tries < CATCH_UP_TRIES && vma_ring_wait_for_rx_driver(ring, CATCH_UP_NSEC);
	     tries++)
		n = ring_ctx_drive(self, ring, true);
	return n;
}

static inline __attribute__((always_inline)) int ring_ctxs_poll_rings_of_mask(uint64_t rings, bool timers, bool awaits)
{
	struct vma_thread *self = vma_thread_self();
	int total = 0;
	bool driven = false, busy = false;

	for (; rings != 0; rings &= rings - 1) {
		struct vma_ring_ctx *ring_ctx =
		        atomic_load_explicit(&vma_ring_ctxs[__builtin_ctzll(rings)], memory_order_acquire);

		for (; ring_ctx != NULL; ring_ctx = atomic_load_explicit(&ring_ctx->next, memory_order_acquire)) {
			int n = ring_ctx_drive(self, ring_ctx->ring, timers);

			if (awaits && __builtin_expect(n < 0, 0))
				n = ring_poll_after_waiting_for_driver(self, ring_ctx->ring);
			if (n < 0) {
				busy = true;
				continue;
			}
			total += n;
			driven = true;
			if (n != 0)
				ring_ctx_count_busy_poll(ring_ctx);
			/* Between two drivers a step may be lost; that it moves is all that counts. */
			atomic_store_explicit(&ring_ctx->driven,
			                      atomic_load_explicit(&ring_ctx->driven, memory_order_relaxed) + 1,
			                      memory_order_relaxed);
		}
	}
	return busy && !driven ? -EBUSY : total;
}

int vma_ring_ctxs_progress(uint64_t rings)
{
	return ring_ctxs_poll_rings_of_mask(rings, true, false);
}

int vma_ring_ctxs_catch_up(uint64_t rings)
{
	return ring_ctxs_poll_rings_of_mask(rings, true, true);
}

void vma_ring_ctxs_drive_overdue_slow(struct vma_thread *self)
{
	vma_ring_ctxs_progress(self->overdue_rings);
	self->overdue_tsc = vma_tsc();
}

int ring_ctxs_poll_without_timers(uint64_t rings)
{
	return ring_ctxs_poll_rings_of_mask(rings, false, false);
}
