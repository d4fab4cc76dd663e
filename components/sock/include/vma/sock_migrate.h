/*
 * sock_migrate - when a socket moves to the ring of the thread or core that uses it. The parameters are
 * VMA_RING_MIGRATION_RATIO_TX and _RX, with the ring allocation logic per thread or per core.
 *
 * A *place* is a thread (its id) or a core (its number, plus 1). Accesses, a receive or a send each, are counted in
 * rounds of `ratio`:
 *
 *   round ends, and the place is `home` ─────────> next round
 *   round ends, the place is another ────────────> it is the candidate of the next round
 *   a round of the candidate's accesses alone ───> the socket moves there, in its last access
 *   an access from elsewhere meanwhile ──────────> there is no candidate any more
 *
 * So a place that has the socket to itself has it on its own ring after two rounds at most. A socket that two threads
 * use in turn stays where it is.
 *
 * Threads: any thread counts. Two that count at a time may lose a step, which makes the round longer by it.
 * Progress: no call waits.
 * Memory: the caller's. {0} is off.
 * Example: test/test_migrate.c.
 */
#ifndef VMA_SOCK_MIGRATE_H
#define VMA_SOCK_MIGRATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/sock_engine.h>

struct vma_migration {
	uint32_t ratio; /* 0: the socket stays where it is */
	bool by_core;
	_Atomic uint32_t accesses;  /* of this round */
	_Atomic uint64_t candidate; /* 0: none */
	_Atomic uint64_t home;      /* the place whose ring it is on, or that it cannot move to; 0: to be found out */
};

/*
 * Off as long as the parameter of that side is not set, is not above 0, or the logic has no rings per thread or core.
 * The logic is that of the side; a TCP connection has one ring, and one logic, for both.
 */
void vma_migration_init(struct vma_migration *migration, const struct vma_conf *conf, enum vma_ring_ctx_side side,
                        bool is_tcp);
uint64_t vma_migration_current_thread_or_core(const struct vma_migration *migration); /* the caller's */
/* For vma_ring_ctx_find_or_create: who asks is at this place. */
struct vma_ring_requester vma_migration_requester_of_place(const struct vma_migration *migration, uint64_t place,
                                                           uint64_t socket_id);

/* Where a candidate's round is counted, or ends. */
bool vma_migration_count_access_slow(struct vma_migration *migration, uint32_t accesses);
/* One access by the caller. True: the socket is to move to the caller's place, and `home` to be set. */
static inline bool vma_migration_count_access_and_decide(struct vma_migration *migration)
{
	const uint32_t accesses = atomic_load_explicit(&migration->accesses, memory_order_relaxed) + 1;

	if (__builtin_expect(migration->ratio == 0, 0))
		return false;
	if (accesses >= migration->ratio || atomic_load_explicit(&migration->candidate, memory_order_relaxed) != 0)
		return vma_migration_count_access_slow(migration, accesses);
	atomic_store_explicit(&migration->accesses, accesses, memory_order_relaxed);
	return false;
}
/* The caller has used what would move along, in a way that counts elsewhere: another place's candidacy is over. */
void vma_migration_drop_other_candidate_slow(struct vma_migration *migration);
static inline void vma_migration_drop_other_candidate(struct vma_migration *migration)
{
	if (__builtin_expect(atomic_load_explicit(&migration->candidate, memory_order_relaxed) != 0, 0))
		vma_migration_drop_other_candidate_slow(migration);
}
static inline void vma_migration_set_home(struct vma_migration *migration, uint64_t place)
{
	atomic_store_explicit(&migration->home, place, memory_order_relaxed);
}

#endif
