/*
 * ask - the page that processes share by fork (fork_rpc): the children's requests to the owner process, which is their
 *       parent, for its connections; and which connections are on their way to the kernel at the moment.
 *
 *   child   take a slot ──> id ──> ASKED ──> sleep ───────────────┬─> give it back
 *   parent               └─ wakes up ──> hands over ──> DONE ─────┘
 *
 * Threads: of any of the processes. One thread of the parent answers; any may move connections.
 * Progress: a child waits for the parent, with a limit, and no longer than the parent lives. The parent waits for no
 *           process.
 * Memory: one shared mapping, made by the parent before the fork, and never unmapped.
 * Example: test/stress_ask.c.
 */
#ifndef VMA_STREAM_ASK_H
#define VMA_STREAM_ASK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum ask_answer {
	ASK_DONE,    /* the kernel has the connection, or will never have it */
	ASK_UNKNOWN, /* it is being closed just now, or has been */
	ASK_IN_VAIN, /* nobody has answered */
};

enum { ASK_SLOTS = 128, ASK_MOVES = 64 };

struct ask_slot {
	_Atomic uint32_t word; /* a number << 2 | what it is in: a futex */
	_Atomic int32_t owner;
	_Atomic uint64_t id;
};

struct ask_page {
	uint64_t pid_space;                 /* the parent's namespace of process ids, 0: unknown */
	_Atomic bool gone;                  /* the parent answers no more: it has handed over what it could */
	_Atomic bool forbidden;             /* the parent may not hand over connections */
	_Atomic uint64_t moving[ASK_MOVES]; /* ids of connections, 0: free */
	struct ask_slot slot[ASK_SLOTS];
};

struct ask_page *ask_page_create(void); /* NULL: no memory */
void ask_page_free(struct ask_page *page);

/* ---- the parent ---- */

/* Every question is answered by `answer`, once. */
void ask_answer_all(struct ask_page *page, enum ask_answer (*answer)(uint64_t id));
/* Nobody will answer any more: who asks now, or later, is told so at once. */
void ask_leave(struct ask_page *page);
/* Connection `id` is about to become the kernel's; and has become it wholly, or not at all. */
unsigned ask_move_begin(struct ask_page *page, uint64_t id);
void ask_move_end(struct ask_page *page, unsigned move);

/* ---- a child ---- */

struct ask_parent {
	void (*wake)(void *arg);     /* the parent, to answer */
	bool (*is_alive)(void *arg); /* looked at now and then */
	void *arg;
	uint64_t patience_ns;
};
enum ask_answer ask(struct ask_page *page, uint64_t id, const struct ask_parent *parent);
bool ask_is_moving(const struct ask_page *page, uint64_t id);

#endif
