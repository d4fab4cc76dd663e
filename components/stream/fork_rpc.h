/*
 * fork_rpc - the page that processes share by fork. It has the children's requests to the owner process, their parent,
 *            for its connections. It also names the connections that are on their way to the kernel at the moment.
 *
 *   child   take a slot ──> id ──> REQUESTED ──> sleep ───────────────┬─> give it back
 *   parent               └─ wakes up ──> hands over ──> DONE ─────┘
 *
 * Threads: of any of the processes. One thread of the parent answers; any thread may move connections.
 * Progress: a child waits for the parent, with a limit, and no longer than the parent lives. The parent waits for no
 *           process.
 * Memory: one shared mapping, made by the parent before the fork, and never unmapped.
 * Example: test/stress_fork_rpc.c.
 */
#ifndef VMA_STREAM_FORK_RPC_H
#define VMA_STREAM_FORK_RPC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum fork_rpc_result {
	FORK_RPC_DONE,      /* the kernel has the connection, or will never have it */
	FORK_RPC_UNKNOWN,   /* it is being closed just now, or has been */
	FORK_RPC_TIMED_OUT, /* nobody has answered */
};

enum { FORK_RPC_SLOTS = 128, FORK_RPC_MOVES = 64 };

struct fork_rpc_slot {
	_Atomic uint32_t word; /* a number << 2 | what it is in: a futex */
	_Atomic int32_t owner;
	_Atomic uint64_t id;
};

struct fork_rpc_page {
	uint64_t pid_space;                      /* the parent's namespace of process ids, 0: unknown */
	_Atomic bool closed;                     /* the parent answers no more: it has handed over what it could */
	_Atomic bool forbidden;                  /* the parent may not hand over connections */
	_Atomic uint64_t moving[FORK_RPC_MOVES]; /* ids of connections, 0: free */
	struct fork_rpc_slot slot[FORK_RPC_SLOTS];
};

struct fork_rpc_page *fork_rpc_page_create(void); /* NULL: no memory */
void fork_rpc_page_free(struct fork_rpc_page *page);

/* ---- the parent ---- */

/* Every request is answered by `answer`, once. */
void fork_rpc_answer_all(struct fork_rpc_page *page, enum fork_rpc_result (*answer)(uint64_t id));
/* There will be no answers any more: a child that asks now, or later, is told so at once. */
void fork_rpc_close_page(struct fork_rpc_page *page);
/* Connection `id` is about to become the kernel's; and has become it wholly, or not at all. */
unsigned fork_rpc_mark_hand_over_begin(struct fork_rpc_page *page, uint64_t id);
void fork_rpc_mark_hand_over_end(struct fork_rpc_page *page, unsigned move);

/* ---- a child ---- */

struct fork_rpc_parent {
	void (*wake)(void *arg);     /* the parent, to answer */
	bool (*is_alive)(void *arg); /* looked at now and then */
	void *arg;
	uint64_t timeout_ns;
};
enum fork_rpc_result fork_rpc_call(struct fork_rpc_page *page, uint64_t id, const struct fork_rpc_parent *parent);
bool fork_rpc_hand_over_in_progress(const struct fork_rpc_page *page, uint64_t id);

#endif
