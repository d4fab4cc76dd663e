/*
 * owner_heirs - minisocks: connections whose process has gone, and for which the owner answers until nothing more is to
 * be expected.
 *
 * The kernel knows nothing of them, and would answer a late FIN with RST. So the flow stays in the program's map as a
 * *minisock* (heir). The program tells what comes for it (xdp_steer.bpf.c). owner_answers.c says what a kernel would
 * answer that had kept the connection.
 *
 *   state      from                                                        answers                   lives
 *   DELETED    a client has deleted the flow, or the peer has reset it     RST                       1.5 s
 *   WAITS      the client has left and its process lives: it may be back   nothing                   3 s
 *   PARKED     it was not accepted, and the listener lives on              nothing                   10 s, then RESET
 *   RESET      the process is dead, or has cut it and ended                RST                       3 s
 *   FIN_WAIT   it has ended, our FIN is acknowledged                       ACK to FIN, RST to data   60 s
 *   TIME_WAIT  the peer's FIN has come, too                                ACK to what comes again   2 s
 *
 * A connection that is given up before its SYN was answered has an answer on its way. The peer repeats it after a
 * second (RFC 6298, 2.1), or somewhat later. A deleted flow's minisock is still there then.
 *
 * A listener's flow becomes a minisock, too (DELETED, WAITS, RESET), for connections that had no flow of their own.
 *
 * A minisock blocks nothing: a new flow takes its place, a SYN for a listener or a connection of the kernel's ends it
 * at once, and the oldest make way when the program's map is full.
 *
 * Only an owner that outlives its clients has minisocks (attr.heirs: vmad). Otherwise a flow that ends is deleted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "nic_os.h"
#include "owner_priv.h"
#include "xdp_flow.h"

#define EXPIRE_AT_ONCE 1024 /* each is a system call */
#define MS 1000000ull

static const uint64_t life_ns[HEIR_STATES] = {
        [HEIR_DELETED] = 1500 * MS,
        [HEIR_WAITS] = 3000 * MS,        /* longer than owner_resets waits for it to come back */
        [HEIR_PARKED] = OWNER_PARKED_NS, /* for a service to start a process anew */
        [HEIR_RESET] = 3000 * MS,
        [HEIR_FIN_WAIT] = 60000 * MS, /* as the kernel's tcp_fin_timeout */
        [HEIR_TIME_WAIT] = 2000 * MS,
};

static struct owner_heir **heir_place_of(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_heir **place = &owner->heirs.bucket[owner_flow_bucket(key)];

	while (*place != NULL && memcmp(&(*place)->key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	return place;
}

struct owner_heir *owner_heir_find(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	return *heir_place_of(owner, key);
}

/* Out of all lists; the map is not touched. */
static void heir_forget(struct xdp_owner *owner, struct owner_heir *heir)
{
	struct owner_heirs *heirs = &owner->heirs;

	*heir_place_of(owner, &heir->key) = heir->next;
	TAILQ_REMOVE(&heirs->list[heir->state], heir, link);
	heirs->count--;
	owner_forget_heir(owner, heir->number);
	owner_parked_free(owner, heir);
	free(heir);
}

void owner_heir_end(struct xdp_owner *owner, struct owner_heir *heir)
{
	xdp_prog_flow_del(owner->prog, &heir->key);
	heir_forget(owner, heir);
}

static void heir_list_append(struct xdp_owner *owner, struct owner_heir *heir, enum owner_heir_state state,
                             uint64_t now)
{
	heir->state = state;
	heir->due_ns = now + life_ns[state];
	owner_record_heir(owner, heir);
	TAILQ_INSERT_TAIL(&owner->heirs.list[state], heir, link);
}

void owner_heir_live_on(struct xdp_owner *owner, struct owner_heir *heir, enum owner_heir_state state, uint64_t now)
{
	TAILQ_REMOVE(&owner->heirs.list[heir->state], heir, link);
	heir_list_append(owner, heir, state, now);
}

/* Not later than it would have been: connections are kept for ten seconds, however many owners there are. */
void owner_heir_park_until(struct xdp_owner *owner, struct owner_heir *heir, uint64_t due_ns)
{
	struct owner_heir_list *list = &owner->heirs.list[HEIR_PARKED];
	struct owner_heir *before;

	owner_heir_live_on(owner, heir, HEIR_PARKED, owner_now_ns());
	if (due_ns >= heir->due_ns)
		return;
	heir->due_ns = due_ns;
	TAILQ_REMOVE(list, heir, link);
	before = TAILQ_LAST(list, owner_heir_list);
	while (before != NULL && before->due_ns > due_ns)
		before = TAILQ_PREV(before, owner_heir_list, link);
	if (before != NULL)
		TAILQ_INSERT_AFTER(list, before, heir, link);
	else
		TAILQ_INSERT_HEAD(list, heir, link);
}

/* ---- come and go ---- */

static uint32_t next_heir_number(struct owner_heirs *heirs)
{
	if (++heirs->last_number == 0)
		heirs->last_number = 1;
	return heirs->last_number;
}

/* NULL: no memory. */
static struct owner_heir *new_heir(struct xdp_owner *owner, const struct vma_flow_heir *what)
{
	struct owner_heirs *heirs = &owner->heirs;
	struct owner_heir *heir;

	if (heirs->count >= OWNER_HEIRS_MAX)
		owner_heirs_yield_any(owner);
	heir = calloc(1, sizeof(*heir));
	if (heir == NULL)
		return NULL;
	heir->key = what->key;
	heir->number = next_heir_number(heirs);
	heir->snd_nxt = what->snd_nxt;
	heir->rcv_nxt = what->rcv_nxt;
	return heir;
}

/* A flow's place is taken whatever the map's state; a place of its own a heir gets only while the flows leave some. */
static bool heir_put_in_map(struct xdp_owner *owner, const struct owner_heir *heir, bool in_map)
{
	int rc = xdp_prog_heir_set(owner->prog, &heir->key, heir->number, in_map);

	if (rc < 0)
		vma_log_debug("%s: no heir in the program's map: error %d", owner->name, -rc);
	return rc == 0;
}

void owner_heirs_put(struct xdp_owner *owner, const struct vma_flow_heir *what, enum owner_heir_state state,
                     bool in_map)
{
	struct owner_heirs *heirs = &owner->heirs;
	struct owner_heir *heir = heirs->on ? new_heir(owner, what) : NULL;
	struct owner_heir **place;

	if (heir != NULL) {
		heir->state = state;
		owner_record_heir(owner, heir); /* before the map has its number */
	}
	if (heir == NULL || !heir_put_in_map(owner, heir, in_map)) {
		if (heir != NULL)
			owner_forget_heir(owner, heir->number);
		free(heir);
		if (in_map)
			xdp_prog_flow_del(owner->prog, &what->key);
		return;
	}
	place = &heirs->bucket[owner_flow_bucket(&heir->key)];
	heir->next = *place;
	*place = heir;
	heirs->count++;
	heir_list_append(owner, heir, state, owner_now_ns());
}

/* Its life begins again. */
void owner_heir_adopt(struct xdp_owner *owner, const struct vma_flow_key *key, uint32_t number)
{
	const struct owner_record_heir *recorded = owner_recorded_heir(owner, number);
	enum owner_heir_state state = HEIR_DELETED;
	struct owner_heirs *heirs = &owner->heirs;
	struct owner_heir *heir = calloc(1, sizeof(*heir)), **place;

	if (heir == NULL)
		return;
	heir->key = *key;
	heir->number = number;
	if (recorded != NULL) {
		const uint64_t known = atomic_load(&recorded->state);

		state = (uint32_t)known < HEIR_STATES ? (enum owner_heir_state)(uint32_t)known : HEIR_DELETED;
		state = state == HEIR_PARKED ? HEIR_RESET : state; /* until owner_parked_adopt */
		heir->snd_nxt = recorded->snd_nxt;
		heir->rcv_nxt = (uint32_t)(known >> 32);
	}
	if (number > heirs->last_number)
		heirs->last_number = number;
	place = &heirs->bucket[owner_flow_bucket(key)];
	heir->next = *place;
	*place = heir;
	heirs->count++;
	heir_list_append(owner, heir, state, owner_now_ns());
}

bool owner_heirs_yield(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_heir *heir = owner_heir_find(owner, key);

	if (heir == NULL)
		return false;
	heir_forget(owner, heir);
	return true;
}

/* Whose life is the shortest first, and of those the oldest: they have the least to expect. */
bool owner_heirs_yield_any(struct xdp_owner *owner)
{
	static const enum owner_heir_state order[] = {HEIR_DELETED,  HEIR_TIME_WAIT, HEIR_RESET,
	                                              HEIR_FIN_WAIT, HEIR_WAITS,     HEIR_PARKED};

	if (owner->heirs.count == 0)
		return false;
	for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
		struct owner_heir *oldest = TAILQ_FIRST(&owner->heirs.list[order[i]]);

		if (oldest == NULL)
			continue;
		owner_heir_end(owner, oldest);
		return true;
	}
	return false;
}

void owner_heirs_cut(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_heir *heir = owner_heir_find(owner, key);

	if (heir != NULL && heir->state == HEIR_WAITS)
		owner_heir_live_on(owner, heir, HEIR_RESET, owner_now_ns());
}

bool owner_heirs_last(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	const struct owner_heir *heir = owner_heir_find(owner, key);

	return !owner->heirs.on || (heir != NULL && (heir->state == HEIR_WAITS || heir->state == HEIR_RESET));
}

/* ---- time ---- */

static void heirs_close_socket(struct owner_heirs *heirs)
{
	if (heirs->is_open)
		os_close(heirs->fd);
	heirs->is_open = false;
}

static unsigned heirs_expire(struct xdp_owner *owner, struct owner_heir_list *list, uint64_t now, unsigned left)
{
	struct owner_heir *heir;

	while (left > 0 && (heir = TAILQ_FIRST(list)) != NULL && heir->due_ns <= now) {
		if (heir->state == HEIR_PARKED)
			owner_parked_reset(owner, heir, now);
		else
			owner_heir_end(owner, heir);
		left--;
	}
	return left;
}

void owner_heirs_tick(struct xdp_owner *owner, uint64_t now)
{
	struct owner_heirs *heirs = &owner->heirs;
	unsigned left = EXPIRE_AT_ONCE;

	if (!heirs->on)
		return;
	heirs->reads = OWNER_HEIR_READS;
	xdp_prog_segments_read(owner->prog);
	for (unsigned state = 0; state < HEIR_STATES; state++)
		left = heirs_expire(owner, &heirs->list[state], now, left);
	if (heirs->count == 0)
		heirs_close_socket(heirs);
}

uint64_t owner_heirs_due_ns(const struct xdp_owner *owner)
{
	uint64_t due = UINT64_MAX;

	for (unsigned state = 0; owner->heirs.count > 0 && state < HEIR_STATES; state++) {
		const struct owner_heir *first = TAILQ_FIRST(&owner->heirs.list[state]);

		if (first != NULL && first->due_ns < due)
			due = first->due_ns;
	}
	return due;
}

/* ---- life ---- */

static int heirs_see_segment(void *arg, void *segment, size_t bytes)
{
	struct xdp_owner *owner = arg;

	return bytes < sizeof(struct xdp_heir_segment) ? 0 : owner_heirs_hear(owner, segment, owner_now_ns());
}

int owner_heirs_init(struct xdp_owner *owner)
{
	int rc = xdp_prog_segments_open(owner->prog, heirs_see_segment, owner);

	if (rc < 0)
		return rc;
	for (unsigned state = 0; state < HEIR_STATES; state++)
		TAILQ_INIT(&owner->heirs.list[state]);
	owner->heirs.on = true;
	return 0;
}

/* The map goes with the program. */
void owner_heirs_fini(struct xdp_owner *owner)
{
	struct owner_heirs *heirs = &owner->heirs;

	for (unsigned state = 0; heirs->on && state < HEIR_STATES; state++)
		while (!TAILQ_EMPTY(&heirs->list[state]))
			heir_forget(owner, TAILQ_FIRST(&heirs->list[state]));
	heirs->on = false;
	heirs_close_socket(heirs);
}
