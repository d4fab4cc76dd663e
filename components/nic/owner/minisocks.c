/*
 * minisocks - see minisocks.h: their states and lives.
 *
 * The kernel knows nothing of these connections, and would answer a late FIN with RST. So the flow stays where it was,
 * as a *minisock*. minisock_rx.c says what a kernel would answer that had kept the connection.
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
 * A minisock blocks nothing. A new flow takes its place, and a SYN for a listener or a connection of the kernel's ends
 * it at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "../os.h"
#include "minisocks.h"

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

static struct owner_minisock **minisock_find_link(struct owner_minisocks *minisocks, const struct vma_flow_key *key)
{
	struct owner_minisock **place = &minisocks->bucket[owner_flow_key_bucket(key)];

	while (*place != NULL && memcmp(&(*place)->key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	return place;
}

struct owner_minisock *owner_minisock_find(struct owner_minisocks *minisocks, const struct vma_flow_key *key)
{
	return *minisock_find_link(minisocks, key);
}

/* Out of all lists; its place is not touched. */
static void minisock_unlink_and_free(struct owner_minisocks *minisocks, struct owner_minisock *minisock)
{
	*minisock_find_link(minisocks, &minisock->key) = minisock->next;
	TAILQ_REMOVE(&minisocks->list[minisock->state], minisock, link);
	minisocks->count--;
	if (minisocks->ops->forget != NULL)
		minisocks->ops->forget(minisocks, minisock);
	free(minisock);
}

void owner_minisock_end(struct owner_minisocks *minisocks, struct owner_minisock *minisock)
{
	minisocks->ops->del(minisocks, &minisock->key);
	minisock_unlink_and_free(minisocks, minisock);
}

uint32_t owner_minisocks_count_in_state(const struct owner_minisocks *minisocks, enum owner_minisock_state state)
{
	const struct owner_minisock *minisock;
	uint32_t n = 0;

	TAILQ_FOREACH(minisock, &minisocks->list[state], link)
	n++;
	return n;
}

int owner_minisock_state_from_message(uint32_t state)
{
	switch (state) {
	case VMA_MINISOCK_RESET:
		return MINISOCK_RESET;
	case VMA_MINISOCK_FIN_WAIT:
		return MINISOCK_FIN_WAIT;
	case VMA_MINISOCK_TIME_WAIT:
		return MINISOCK_TIME_WAIT;
	default:
		return -EINVAL;
	}
}

void owner_minisocks_end_all(struct owner_minisocks *minisocks)
{
	for (unsigned state = 0; minisocks->on && state < MINISOCK_STATES; state++)
		while (!TAILQ_EMPTY(&minisocks->list[state]))
			owner_minisock_end(minisocks, TAILQ_FIRST(&minisocks->list[state]));
}

static void minisock_write_to_record(struct owner_minisocks *minisocks, const struct owner_minisock *minisock)
{
	if (minisocks->ops->record != NULL)
		minisocks->ops->record(minisocks, minisock);
}

static void minisock_set_state_and_append(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                          enum owner_minisock_state state, uint64_t now)
{
	minisock->state = state;
	minisock->due_ns = now + minisock_lifetime_ns[state];
	minisock_write_to_record(minisocks, minisock);
	TAILQ_INSERT_TAIL(&minisocks->list[state], minisock, link);
}

void owner_minisock_set_state(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                              enum owner_minisock_state state, uint64_t now)
{
	TAILQ_REMOVE(&minisocks->list[minisock->state], minisock, link);
	minisock_set_state_and_append(minisocks, minisock, state, now);
}

/* Not later than it would have been: connections are kept for ten seconds, however many owners there are. */
void owner_minisock_set_parked_until(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                     uint64_t due_ns, uint64_t now)
{
	struct owner_minisock_list *list = &minisocks->list[MINISOCK_PARKED];
	struct owner_minisock *before;

	owner_minisock_set_state(minisocks, minisock, MINISOCK_PARKED, now);
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
static struct owner_minisock *minisock_alloc(struct owner_minisocks *minisocks, const struct vma_flow_minisock *what)
{
	struct owner_minisock *minisock;

	if (minisocks->count >= OWNER_MINISOCKS_MAX)
		owner_minisock_evict_one(minisocks);
	minisock = calloc(1, sizeof(*minisock));
	if (minisock == NULL)
		return NULL;
	minisock->key = what->key;
	minisock->number = next_minisock_number(minisocks);
	minisock->snd_nxt = what->snd_nxt;
	minisock->rcv_nxt = what->rcv_nxt;
	return minisock;
}

void owner_minisock_insert(struct owner_minisocks *minisocks, struct owner_minisock *minisock, uint64_t now)
{
	struct owner_minisock **place = &minisocks->bucket[owner_flow_key_bucket(&minisock->key)];

	if (minisock->number > minisocks->last_number)
		minisocks->last_number = minisock->number;
	minisock->next = *place;
	*place = minisock;
	minisocks->count++;
	minisock_set_state_and_append(minisocks, minisock, minisock->state, now);
}

/* It may always take a flow's place. It gets a place of its own only while the flows leave some. */
static int minisock_record_and_insert_in_map(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                             bool in_place)
{
	int rc;

	minisock_write_to_record(minisocks, minisock); /* before its number can be met */
	rc = minisocks->ops->put(minisocks, minisock, in_place);
	if (rc == 0)
		return 0;
	vma_log_debug("%s: no place for a minisock: error %d", minisocks->name, -rc);
	if (minisocks->ops->forget != NULL)
		minisocks->ops->forget(minisocks, minisock);
	return rc;
}

int owner_minisock_create(struct owner_minisocks *minisocks, const struct vma_flow_minisock *what,
                          enum owner_minisock_state state, bool in_place, uint64_t now)
{
	struct owner_minisock *minisock = minisock_alloc(minisocks, what);
	int rc = -ENOMEM;

	if (minisock != NULL) {
		minisock->state = state;
		rc = minisock_record_and_insert_in_map(minisocks, minisock, in_place);
	}
	if (rc == 0) {
		owner_minisock_insert(minisocks, minisock, now);
		return 0;
	}
	free(minisock);
	if (in_place)
		minisocks->ops->del(minisocks, &what->key);
	return rc;
}

bool owner_minisock_end_for_key(struct owner_minisocks *minisocks, const struct vma_flow_key *key)
{
	struct owner_minisock *minisock = owner_minisock_find(minisocks, key);

	if (minisock == NULL)
		return false;
	minisock_unlink_and_free(minisocks, minisock);
	return true;
}

/* Whose life is the shortest first, and of those the oldest: they have the least to expect. */
bool owner_minisock_evict_one(struct owner_minisocks *minisocks)
{
	static const enum owner_minisock_state order[] = {MINISOCK_DELETED,  MINISOCK_TIME_WAIT, MINISOCK_RESET,
	                                                  MINISOCK_FIN_WAIT, MINISOCK_WAITS,     MINISOCK_PARKED};

	if (minisocks->count == 0)
		return false;
	for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
		struct owner_minisock *oldest = TAILQ_FIRST(&minisocks->list[order[i]]);

		if (oldest == NULL)
			continue;
		owner_minisock_end(minisocks, oldest);
		return true;
	}
	return false;
}

void owner_minisock_reset_waiting(struct owner_minisocks *minisocks, const struct vma_flow_key *key, uint64_t now)
{
	struct owner_minisock *minisock = owner_minisock_find(minisocks, key);

	if (minisock != NULL && minisock->state == MINISOCK_WAITS)
		owner_minisock_set_state(minisocks, minisock, MINISOCK_RESET, now);
}

bool owner_minisock_is_waiting_or_reset(struct owner_minisocks *minisocks, const struct vma_flow_key *key)
{
	const struct owner_minisock *minisock = owner_minisock_find(minisocks, key);

	return !minisocks->on ||
	       (minisock != NULL && (minisock->state == MINISOCK_WAITS || minisock->state == MINISOCK_RESET));
}

/* ---- time ---- */

static void minisocks_close_socket(struct owner_minisocks *minisocks)
{
	if (minisocks->is_open)
		os_close(minisocks->fd);
	minisocks->is_open = false;
}

static unsigned minisocks_expire(struct owner_minisocks *minisocks, struct owner_minisock_list *list, uint64_t now,
                                 unsigned left)
{
	struct owner_minisock *minisock;

	while (left > 0 && (minisock = TAILQ_FIRST(list)) != NULL && minisock->due_ns <= now) {
		if (minisock->state == MINISOCK_PARKED)
			minisocks->ops->unpark(minisocks, minisock, now);
		else
			owner_minisock_end(minisocks, minisock);
		left--;
	}
	return left;
}

void owner_minisocks_expire(struct owner_minisocks *minisocks, uint64_t now)
{
	unsigned left = EXPIRE_AT_ONCE;

	for (unsigned state = 0; state < MINISOCK_STATES; state++)
		left = minisocks_expire(minisocks, &minisocks->list[state], now, left);
	if (minisocks->count == 0)
		minisocks_close_socket(minisocks);
}

uint64_t owner_minisocks_due_ns(const struct owner_minisocks *minisocks)
{
	uint64_t due = UINT64_MAX;

	for (unsigned state = 0; minisocks->count > 0 && state < MINISOCK_STATES; state++) {
		const struct owner_minisock *first = TAILQ_FIRST(&minisocks->list[state]);

		if (first != NULL && first->due_ns < due)
			due = first->due_ns;
	}
	return due;
}

/* ---- life ---- */

void owner_minisocks_init(struct owner_minisocks *minisocks, const struct owner_minisocks_ops *ops, unsigned ifindex,
                          const char *name)
{
	for (unsigned state = 0; state < MINISOCK_STATES; state++)
		TAILQ_INIT(&minisocks->list[state]);
	minisocks->ops = ops;
	minisocks->ifindex = ifindex;
	minisocks->name = name;
	minisocks->on = true;
}

void owner_minisocks_fini(struct owner_minisocks *minisocks)
{
	for (unsigned state = 0; minisocks->on && state < MINISOCK_STATES; state++)
		while (!TAILQ_EMPTY(&minisocks->list[state]))
			minisock_unlink_and_free(minisocks, TAILQ_FIRST(&minisocks->list[state]));
	minisocks->on = false;
	minisocks_close_socket(minisocks);
}
