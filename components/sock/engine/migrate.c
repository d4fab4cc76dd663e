/* migrate.c - counts accesses of a socket by threads or cores other than its ring's; see <vma/sock_migrate.h>. */
#include <sched.h>

#include <vma/sock_migrate.h>

#include "engine.h"

void vma_migration_init(struct vma_migration *migration, const struct vma_conf *conf, enum vma_ring_ctx_side side,
                        bool is_tcp)
{
	const bool rx = side == VMA_RING_CTX_RX;
	const int logic = (int)conf_ring_allocation_logic_of_side(conf, is_tcp ? VMA_RING_CTX_TCP : side);
	const int64_t ratio = rx ? conf->ring_migration_ratio_rx : conf->ring_migration_ratio_tx;
	const bool is_given =
	        conf->given[rx ? VMA_CONF_AT_ring_migration_ratio_rx : VMA_CONF_AT_ring_migration_ratio_tx];

	*migration = (struct vma_migration){0};
	if (!is_given || ratio <= 0 || logic < VMA_RING_LOGIC_PER_THREAD)
		return;
	migration->by_core = logic != VMA_RING_LOGIC_PER_THREAD;
	migration->ratio = (uint32_t)ratio;
}

uint64_t vma_migration_current_thread_or_core(const struct vma_migration *migration)
{
	int core;

	if (!migration->by_core)
		return atomic_load_explicit(&vma_thread_self()->tid, memory_order_relaxed);
	core = sched_getcpu();
	return core >= 0 ? (uint64_t)core + 1 : 1;
}

struct vma_ring_requester vma_migration_requester_of_place(const struct vma_migration *migration, uint64_t place,
                                                           uint64_t socket_id)
{
	struct vma_ring_requester where = {.socket_id = socket_id};

	if (migration->by_core)
		where.core = (uint32_t)(place - 1);
	else
		where.thread_id = place;
	return where;
}

bool vma_migration_count_access_slow(struct vma_migration *migration, uint32_t accesses)
{
	const uint64_t place = vma_migration_current_thread_or_core(migration);
	uint64_t candidate = atomic_load_explicit(&migration->candidate, memory_order_relaxed);
	const bool ends = accesses >= migration->ratio;

	if (candidate != 0 && candidate != place)
		candidate = 0;
	else if (ends && candidate != 0)
		candidate = UINT64_MAX;
	if (ends && candidate == 0 && place != atomic_load_explicit(&migration->home, memory_order_relaxed))
		candidate = place;
	atomic_store_explicit(&migration->accesses, ends ? 0 : accesses, memory_order_relaxed);
	atomic_store_explicit(&migration->candidate, candidate != UINT64_MAX ? candidate : 0, memory_order_relaxed);
	return candidate == UINT64_MAX;
}

void vma_migration_drop_other_candidate_slow(struct vma_migration *migration)
{
	uint64_t candidate = atomic_load_explicit(&migration->candidate, memory_order_relaxed);

	if (candidate != vma_migration_current_thread_or_core(migration))
		atomic_store_explicit(&migration->candidate, 0, memory_order_relaxed);
}
