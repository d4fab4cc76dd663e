/*
 * minisocks - connections whose process has gone, and for which the owner answers until nothing more is to be expected.
 *
 * The kernel knows nothing of them, and would answer a late FIN with RST. So the flow stays in the program's map as a
 * *minisock*. The program tells what comes for it (xdp/steer.bpf.c). minisock_rx.c says what a kernel would answer that
 * had kept the connection.
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
 * Only an owner that outlives its clients has minisocks (attr.minisocks: vmad). Otherwise a flow that ends is deleted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "../os.h"
#include "owner.h"
#include "../xdp/flow.h"

#define EXPIRE_AT_ONCE 1024 /* each is a system call */
#define MS 1000000ull

static const uint64_t minisock_lifetime_ns[MINISOCK_STATES] = {
        [MINISOCK_DELETED] = 1500 * MS,
        [MINISOCK_WAITS] = 3000 * MS,        /* longer than owner_reset_queue waits for it to come back */
        [MINISOCK_PARKED] = OWNER_PARKED_NS, /* for a service to start a process anew */
        [MINISOCK_RESET] = 3000 * MS,
        [MINISOCK_FIN_WAIT] = 60000 * MS, /* as the kernel's tcp_fin_timeout */
        [MINISOCK_TIME_WAIT] = 2000 * MS,
};

static struct owner_minisock **minisock_find_link(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_minisock **place = &owner->minisocks.bucket[owner_flow_bucket(key)];

	while (*place != NULL && memcmp(&(*place)->key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	return place;
}

struct owner_minisock *owner_minisock_find(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	return *minisock_find_link(owner, key);
}

/* Out of all lists; the map is not touched. */
static void minisock_unlink(struct xdp_owner *owner, struct owner_minisock *minisock)
{
	struct owner_minisocks *minisocks = &owner->minisocks;

	*minisock_find_link(owner, &minisock->key) = minisock->next;
	TAILQ_REMOVE(&minisocks->list[minisock->state], minisock, link);
	minisocks->count--;
	owner_record_free_minisock(owner, minisock->number);
	owner_parked_free(owner, minisock);
	free(minisock);
}

void owner_minisock_end(struct xdp_owner *owner, struct owner_minisock *minisock)
{
	xdp_prog_flow_del(owner->prog, &minisock->key);
	minisock_unlink(owner, minisock);
}

static void minisock_list_append(struct xdp_owner *owner, struct owner_minisock *minisock,
                                 enum owner_minisock_state state, uint64_t now)
{
	minisock->state = state;
	minisock->due_ns = now + minisock_lifetime_ns[state];
	owner_record_minisock(owner, minisock);
	TAILQ_INSERT_TAIL(&owner->minisocks.list[state], minisock, link);
}

void owner_minisock_set_state(struct xdp_owner *owner, struct owner_minisock *minisock, enum owner_minisock_state state,
                              uint64_t now)
{
	TAILQ_REMOVE(&owner->minisocks.list[minisock->state], minisock, link);
	minisock_list_append(owner, minisock, state, now);
}

/* Not later than it would have been: connections are kept for ten seconds, however many owners there are. */
void owner_minisock_set_parked_until(struct xdp_owner *owner, struct owner_minisock *minisock, uint64_t due_ns)
{
	struct owner_minisock_list *list = &owner->minisocks.list[MINISOCK_PARKED];
	struct owner_minisock *before;

	owner_minisock_set_state(owner, minisock, MINISOCK_PARKED, owner_now_ns());
	if (due_ns >= minisock->due_ns)
		return;
	minisock->due_ns = due_ns;
	TAILQ_REMOVE(list, minisock, link);
	before = TAILQ_LAST(list, owner_minisock_list);
	while (before != NULL && before->due_ns > due_ns)
		before = TAILQ_PREV(before, owner_minisock_list, link);
	if (before != NULL)
		TAILQ_INSERT_AFTER(list, before, minisock, link);
	else
		TAILQ_INSERT_HEAD(list, minisock, link);
}

/* ---- come and go ---- */

static uint32_t next_minisock_number(struct owner_minisocks *minisocks)
{
	if (++minisocks->last_number == 0)
		minisocks->last_number = 1;
	return minisocks->last_number;
}

/* NULL: no memory. */
static struct owner_minisock *minisock_alloc(struct xdp_owner *owner, const struct vma_flow_minisock *what)
{
	struct owner_minisocks *minisocks = &owner->minisocks;
	struct owner_minisock *minisock;

	if (minisocks->count >= OWNER_MINISOCKS_MAX)
		owner_minisock_evict_one(owner);
	minisock = calloc(1, sizeof(*minisock));
	if (minisock == NULL)
		return NULL;
	minisock->key = what->key;
	minisock->number = next_minisock_number(minisocks);
	minisock->snd_nxt = what->snd_nxt;
	minisock->rcv_nxt = what->rcv_nxt;
	return minisock;
}

/* It may always take a flow's place in the map. It gets a place of its own only while the flows leave some. */
static bool minisock_put_in_map(struct xdp_owner *owner, const struct owner_minisock *minisock, bool in_map)
{
	int rc = xdp_prog_minisock_set(owner->prog, &minisock->key, minisock->number, in_map);

	if (rc < 0)
		vma_log_debug("%s: no minisock in the program's map: error %d", owner->name, -rc);
	return rc == 0;
}

void owner_minisock_create(struct xdp_owner *owner, const struct vma_flow_minisock *what,
                           enum owner_minisock_state state, bool in_map)
{
	struct owner_minisocks *minisocks = &owner->minisocks;
	struct owner_minisock *minisock = minisocks->on ? minisock_alloc(owner, what) : NULL;
	struct owner_minisock **place;

	if (minisock != NULL) {
		minisock->state = state;
		owner_record_minisock(owner, minisock); /* before the map has its number */
	}
	if (minisock == NULL || !minisock_put_in_map(owner, minisock, in_map)) {
		if (minisock != NULL)
			owner_record_free_minisock(owner, minisock->number);
		free(minisock);
		if (in_map)
			xdp_prog_flow_del(owner->prog, &what->key);
		return;
	}
	place = &minisocks->bucket[owner_flow_bucket(&minisock->key)];
	minisock->next = *place;
	*place = minisock;
	minisocks->count++;
	minisock_list_append(owner, minisock, state, owner_now_ns());
}

/* Its life begins again. */
void owner_minisock_adopt(struct xdp_owner *owner, const struct vma_flow_key *key, uint32_t number)
{
	const struct owner_record_minisock *recorded = owner_record_find_minisock(owner, number);
	enum owner_minisock_state state = MINISOCK_DELETED;
	struct owner_minisocks *minisocks = &owner->minisocks;
	struct owner_minisock *minisock = calloc(1, sizeof(*minisock)), **place;

	if (minisock == NULL)
		return;
	minisock->key = *key;
	minisock->number = number;
	if (recorded != NULL) {
		const uint64_t known = atomic_load(&recorded->state);

		state = (uint32_t)known < MINISOCK_STATES ? (enum owner_minisock_state)(uint32_t)known
		                                          : MINISOCK_DELETED;
		state = state == MINISOCK_PARKED ? MINISOCK_RESET : state; /* until owner_parked_adopt */
		minisock->snd_nxt = recorded->snd_nxt;
		minisock->rcv_nxt = (uint32_t)(known >> 32);
	}
	if (number > minisocks->last_number)
		minisocks->last_number = number;
	place = &minisocks->bucket[owner_flow_bucket(key)];
	minisock->next = *place;
	*place = minisock;
	minisocks->count++;
	minisock_list_append(owner, minisock, state, owner_now_ns());
}

bool owner_minisock_end_for_key(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_minisock *minisock = owner_minisock_find(owner, key);

	if (minisock == NULL)
		return false;
	minisock_unlink(owner, minisock);
	return true;
}

/* Whose life is the shortest first, and of those the oldest: they have the least to expect. */
bool owner_minisock_evict_one(struct xdp_owner *owner)
{
	static const enum owner_minisock_state order[] = {MINISOCK_DELETED,  MINISOCK_TIME_WAIT, MINISOCK_RESET,
	                                                  MINISOCK_FIN_WAIT, MINISOCK_WAITS,     MINISOCK_PARKED};

	if (owner->minisocks.count == 0)
		return false;
	for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
		struct owner_minisock *oldest = TAILQ_FIRST(&owner->minisocks.list[order[i]]);

		if (oldest == NULL)
			continue;
		owner_minisock_end(owner, oldest);
		return true;
	}
	return false;
}

void owner_minisocks_cut(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_minisock *minisock = owner_minisock_find(owner, key);

	if (minisock != NULL && minisock->state == MINISOCK_WAITS)
		owner_minisock_set_state(owner, minisock, MINISOCK_RESET, owner_now_ns());
}

bool owner_minisocks_last(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	const struct owner_minisock *minisock = owner_minisock_find(owner, key);

	return !owner->minisocks.on ||
	       (minisock != NULL && (minisock->state == MINISOCK_WAITS || minisock->state == MINISOCK_RESET));
}

/* ---- time ---- */

static void minisocks_close_socket(struct owner_minisocks *minisocks)
{
	if (minisocks->is_open)
		os_close(minisocks->fd);
	minisocks->is_open = false;
}

static unsigned minisocks_expire(struct xdp_owner *owner, struct owner_minisock_list *list, uint64_t now, unsigned left)
{
	struct owner_minisock *minisock;

	while (left > 0 && (minisock = TAILQ_FIRST(list)) != NULL && minisock->due_ns <= now) {
		if (minisock->state == MINISOCK_PARKED)
			owner_parked_reset_connection(owner, minisock, now);
		else
			owner_minisock_end(owner, minisock);
		left--;
	}
	return left;
}

void owner_minisocks_tick(struct xdp_owner *owner, uint64_t now)
{
	struct owner_minisocks *minisocks = &owner->minisocks;
	unsigned left = EXPIRE_AT_ONCE;

	if (!minisocks->on)
		return;
	minisocks->reads = OWNER_MINISOCK_READS;
	xdp_prog_segments_read(owner->prog);
	for (unsigned state = 0; state < MINISOCK_STATES; state++)
		left = minisocks_expire(owner, &minisocks->list[state], now, left);
	if (minisocks->count == 0)
		minisocks_close_socket(minisocks);
}

uint64_t owner_minisocks_due_ns(const struct xdp_owner *owner)
{
	uint64_t due = UINT64_MAX;

	for (unsigned state = 0; owner->minisocks.count > 0 && state < MINISOCK_STATES; state++) {
		const struct owner_minisock *first = TAILQ_FIRST(&owner->minisocks.list[state]);

		if (first != NULL && first->due_ns < due)
			due = first->due_ns;
	}
	return due;
}

/* ---- life ---- */

static int minisocks_ringbuf_callback(void *arg, void *segment, size_t bytes)
{
	struct xdp_owner *owner = arg;

	return bytes < sizeof(struct xdp_minisock_segment)
	               ? 0
	               : owner_minisocks_handle_segment(owner, segment, owner_now_ns());
}

int owner_minisocks_init(struct xdp_owner *owner)
{
	int rc = xdp_prog_segments_open(owner->prog, minisocks_ringbuf_callback, owner);

	if (rc < 0)
		return rc;
	for (unsigned state = 0; state < MINISOCK_STATES; state++)
		TAILQ_INIT(&owner->minisocks.list[state]);
	owner->minisocks.on = true;
	return 0;
}

/* The map goes with the program. */
void owner_minisocks_fini(struct xdp_owner *owner)
{
	struct owner_minisocks *minisocks = &owner->minisocks;

	for (unsigned state = 0; minisocks->on && state < MINISOCK_STATES; state++)
		while (!TAILQ_EMPTY(&minisocks->list[state]))
			minisock_unlink(owner, TAILQ_FIRST(&minisocks->list[state]));
	minisocks->on = false;
	minisocks_close_socket(minisocks);
}
