/*
 * rail - ring contexts (ring_ctx): rings and their users. They are made by allocation logic, found by bit, and ended
 * when no holder is left.
 *
 * vma_rails is read inside, without a lock. When the last reference of a ring context goes, it is taken out of its
 * chain under the lock. It keeps its own `next` for a thread that stands on it. It is destroyed when no thread that
 * could still see it is inside, so a ring is never driven while it goes. A reference is only taken under the lock, from
 * a ring context that is still in the chain, or by a thread that holds one already: a count that has reached zero stays
 * there.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <vma/log.h>

#include "internal_priv.h"
#include "wait_priv.h"

#define BITS 64
#define CATCH_UP_TRIES 3
#define CATCH_UP_NSEC 50000000

struct vma_rail *_Atomic vma_rails[BITS];
static pthread_mutex_t rails_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the chains ---- */

struct vma_rail *rail_of_id(uint32_t id)
{
	struct vma_rail *rail = atomic_load_explicit(&vma_rails[id % BITS], memory_order_acquire);

	while (rail != NULL && rail->id != id)
		rail = atomic_load_explicit(&rail->next, memory_order_acquire);
	return rail;
}

void rails_each(void (*fn)(struct vma_rail *rail, void *arg), void *arg)
{
	for (unsigned bit = 0; bit < BITS; bit++) {
		struct vma_rail *rail = atomic_load_explicit(&vma_rails[bit], memory_order_acquire);

		for (; rail != NULL; rail = atomic_load_explicit(&rail->next, memory_order_acquire))
			fn(rail, arg);
	}
}

/* The lowest that is free: as long as there are no more than 64, each has a bit of its own. */
static uint32_t free_id(void)
{
	uint32_t id = 0;

	while (rail_of_id(id) != NULL)
		id++;
	return id;
}

static void chain_add(struct vma_rail *rail)
{
	struct vma_rail *_Atomic *head = &vma_rails[rail->id % BITS];

	atomic_store_explicit(&rail->next, atomic_load_explicit(head, memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(head, rail, memory_order_release);
}

static void chain_remove(struct vma_rail *rail)
{
	struct vma_rail *_Atomic *place = &vma_rails[rail->id % BITS];

	while (atomic_load_explicit(place, memory_order_relaxed) != rail)
		place = &atomic_load_explicit(place, memory_order_relaxed)->next;
	atomic_store_explicit(place, atomic_load_explicit(&rail->next, memory_order_relaxed), memory_order_release);
}

/* ---- making and ending ---- */

static int make_ring(struct vma_device *device, uint32_t id, struct vma_ring **out)
{
	struct vma_engine *engine = device->engine;
	char name[sizeof(device->nic->info.name) + 16];
	struct vma_ring_attr attr = {
	        .nic = device->nic,
	        .spill_pool = engine->spill,
	        .stats = engine->stats,
	        .name = name,
	};

	vma_ring_conf(&engine->conf, &attr);
	/* Plain flags are for rings that one thread drives; the internal thread drives all. */
	if (attr.thread_mode == VMA_THREAD_SINGLE)
		attr.thread_mode = VMA_THREAD_SPIN;
	snprintf(name, sizeof(name), "%s#%u", vma_nic_info(device->nic)->name, id);
	return vma_ring_create(&attr, out);
}

static bool same_rail_key(const struct vma_ring_key *a, const struct vma_ring_key *b)
{
	return memcmp(a, b, sizeof(*a)) == 0; /* vma_ring_key zeroes the padding */
}

static struct vma_rail *rail_find(struct vma_device *device, const struct vma_ring_key *key)
{
	struct vma_rail *rail = device->priv->rails;

	while (rail != NULL && !same_rail_key(&rail->key, key))
		rail = rail->next_of_device;
	return rail;
}

static int rail_create_new(struct vma_device *device, const struct vma_ring_key *key, struct vma_rail **out)
{
	struct vma_rail *rail = vma_alloc(sizeof(*rail));
	int rc;

	if (rail == NULL)
		return -ENOMEM;
	rail->device = device;
	rail->id = free_id();
	memcpy(&rail->key, key, sizeof(*key));
	/* The ring of the whole interface stays: a program that opens a socket per request does not rent one each time.
	 */
	atomic_init(&rail->refs, key->logic == VMA_RING_LOGIC_PER_INTERFACE ? 1 : 0);
	rc = make_ring(device, rail->id, &rail->ring);
	if (rc < 0) {
		vma_log_once(VMA_LOG_WARN, "%s: no more queue pairs: %s", vma_nic_info(device->nic)->name,
		             strerrordesc_np(-rc));
		vma_free(rail);
		return rc;
	}
	rail->member = vma_ring_qp(rail->ring)->member;
	rail->next_of_device = device->priv->rails;
	device->priv->rails = rail;
	device->priv->rails_made++;
	chain_add(rail);
	*out = rail;
	return 0;
}

/* The one at this place of the device's list. */
static struct vma_rail *rail_nth(struct vma_device *device, int n)
{
	struct vma_rail *rail = device->priv->rails;

	while (n-- > 0 && rail != NULL)
		rail = rail->next_of_device;
	return rail;
}

/* With the lock. */
static int rail_get(struct vma_device *device, const struct vma_ring_key *key, struct vma_rail **out)
{
	const uint32_t limit = (uint32_t)device->engine->conf.ring_limit_per_interface;
	struct vma_rail *rail = rail_find(device, key);
	int shared, rc = 0;

	if (rail == NULL) {
		shared = vma_ring_choose(*key, device->priv->rails_made, limit);
		rail = shared >= 0 ? rail_nth(device, shared) : NULL;
	}
	if (rail == NULL)
		rc = rail_create_new(device, key, &rail);
	if (rc < 0 && device->priv->rails != NULL) { /* the device has no more: share one */
		rail = rail_nth(device, vma_ring_choose(*key, device->priv->rails_made, 1));
		rc = 0;
	}
	if (rc < 0)
		return rc;
	atomic_fetch_add_explicit(&rail->refs, 1, memory_order_relaxed);
	*out = rail;
	return 0;
}

int vma_rail_get(struct vma_device *device, enum vma_rail_side side, const struct vma_ring_where *where,
                 struct vma_rail **out)
{
	const struct vma_conf *conf = &device->engine->conf;
	const int logic = side == VMA_RAIL_RX ? conf->ring_allocation_logic_rx : conf->ring_allocation_logic_tx;
	struct vma_ring_where here = *where;
	struct vma_ring_key key;
	uint32_t before;
	bool is_new;
	int cpu, rc;

	if (here.thread_id == 0)
		here.thread_id = atomic_load_explicit(&vma_thread_self()->tid, memory_order_relaxed);
	if (here.core == 0) {
		cpu = sched_getcpu();
		here.core = cpu > 0 ? (uint32_t)cpu : 0;
	}
	key = vma_ring_key((enum vma_ring_logic)logic, &here);
	pthread_mutex_lock(&rails_lock);
	before = device->priv->rails_made;
	rc = rail_get(device, &key, out);
	is_new = device->priv->rails_made != before;
	pthread_mutex_unlock(&rails_lock);
	if (rc == 0 && is_new)
		internal_wake(); /* it is to be looked after */
	return rc;
}

static void end_rail(struct vma_retired *retired)
{
	struct vma_rail *rail = (struct vma_rail *)((char *)retired - offsetof(struct vma_rail, retired));

	ring_housekeeping_forget(rail);
	rail_tcp_end(rail);
	vma_ring_destroy(rail->ring);
	vma_free(rail);
}

/* With the lock. */
static void unlink_rail(struct vma_rail *rail)
{
	struct vma_rail **place = &rail->device->priv->rails;

	while (*place != rail)
		place = &(*place)->next_of_device;
	*place = rail->next_of_device;
	rail->device->priv->rails_made--;
	chain_remove(rail);
}

void rail_put_last(struct vma_rail *rail)
{
	bool last;

	pthread_mutex_lock(&rails_lock);
	last = atomic_fetch_sub_explicit(&rail->refs, 1, memory_order_acq_rel) == 1;
	if (last)
		unlink_rail(rail);
	pthread_mutex_unlock(&rails_lock);
	if (!last)
		return;
	ring_housekeeping_expect_end();
	vma_retire(&rail->retired, end_rail);
}

/* The last reference to a rail with a stack becomes the internal thread's: connections may have to end on it. */
void vma_rail_put(struct vma_rail *rail)
{
	bool abandoned = false;

	pthread_mutex_lock(&rails_lock);
	if (atomic_load_explicit(&rail->refs, memory_order_relaxed) == 1 &&
	    atomic_load_explicit(&rail->tcp, memory_order_relaxed) != NULL)
		abandoned = !atomic_exchange(&rail->abandoned, true);
	pthread_mutex_unlock(&rails_lock);
	if (abandoned)
		tcp_housekeeping_abandoned();
	else
		rail_put_last(rail);
}

__attribute__((cold)) void rails_fork_child(void)
{
	pthread_mutex_init(&rails_lock, NULL);
	rail_tcp_fork_child();
	for (unsigned bit = 0; bit < BITS; bit++)
		atomic_store_explicit(&vma_rails[bit], NULL, memory_order_relaxed);
}

/* ---- the data path ---- */

/* One sleeper for each datagram, as far as there are any; epoll sets once. */
static inline void tell_after_release(struct vma_file *file, uint32_t datagrams)
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

void vma_file_tell_readable(struct vma_file *file, uint32_t datagrams)
{
#ifndef VMA_TSAN
	atomic_thread_fence(memory_order_seq_cst);
#endif
	tell_after_release(file, datagrams);
}

/*
 * Drives a ring, and tells of what its sinks have put into queues. The argument is that of waitq.c, with another fence:
 * a datagram was queued (C), then the drive flag was released (a sequentially consistent store), then `used` is loaded
 * so (D): neither x86's exchange nor arm64's release and acquire lets D overtake C. A ring of a rail is never of
 * VMA_THREAD_SINGLE, whose release is a plain store. The file lives: this thread has been inside all the time.
 */
static inline int rail_drive(struct vma_thread *self, struct vma_ring *ring, bool timers)
{
	int n;

	self->gathers = true;
	n = timers ? vma_ring_progress(ring) : vma_ring_look(ring);
	self->gathers = false;
	if (self->readable != NULL) {
		tell_after_release(self->readable, self->datagrams);
		self->readable = NULL;
	}
	return n;
}

/* Between two threads a step may be lost; that it moves is all that counts. */
void vma_rails_ask_slow(uint64_t rings)
{
	for (; rings != 0; rings &= rings - 1) {
		struct vma_rail *rail = atomic_load_explicit(&vma_rails[__builtin_ctzll(rings)], memory_order_acquire);

		for (; rail != NULL; rail = atomic_load_explicit(&rail->next, memory_order_acquire)) {
			struct vma_nic_member *member = rail->member;

			if (member != NULL && atomic_load_explicit(&member->groups, memory_order_relaxed) != 0)
				atomic_store_explicit(&member->asks,
				                      atomic_load_explicit(&member->asks, memory_order_relaxed) + 1,
				                      memory_order_relaxed);
		}
	}
}

/* For as long as a preempted thread may have to wait for a core. */
static int __attribute__((cold, noinline)) drive_after_others(struct vma_thread *self, struct vma_ring *ring)
{
	int n = -EBUSY;

	for (int tries = 0; n == -EBUSY && tries < CATCH_UP_TRIES && vma_ring_await(ring, CATCH_UP_NSEC); tries++)
		n = rail_drive(self, ring, true);
	return n;
}

static inline __attribute__((always_inline)) int rails_progress_some(uint64_t rings, bool timers, bool awaits)
{
	struct vma_thread *self = vma_thread_self();
	int total = 0;
	bool driven = false, busy = false;

	for (; rings != 0; rings &= rings - 1) {
		struct vma_rail *rail = atomic_load_explicit(&vma_rails[__builtin_ctzll(rings)], memory_order_acquire);

		for (; rail != NULL; rail = atomic_load_explicit(&rail->next, memory_order_acquire)) {
			int n = rail_drive(self, rail->ring, timers);

			if (awaits && __builtin_expect(n < 0, 0))
				n = drive_after_others(self, rail->ring);
			if (n < 0) {
				busy = true;
				continue;
			}
			total += n;
			driven = true;
			if (n != 0)
				rail_note_busy(rail);
			/* Between two drivers a step may be lost; that it moves is all that counts. */
			atomic_store_explicit(&rail->driven,
			                      atomic_load_explicit(&rail->driven, memory_order_relaxed) + 1,
			                      memory_order_relaxed);
		}
	}
	return busy && !driven ? -EBUSY : total;
}

int vma_rails_progress(uint64_t rings)
{
	return rails_progress_some(rings, true, false);
}

int vma_rails_catch_up(uint64_t rings)
{
	return rails_progress_some(rings, true, true);
}

void vma_rails_pass_slow(struct vma_thread *self)
{
	vma_rails_progress(self->pass_rings);
	self->pass_tsc = vma_tsc();
}

int rails_look(uint64_t rings)
{
	return rails_progress_some(rings, false, false);
}
