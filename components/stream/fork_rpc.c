/*
 * fork_rpc.c - requests between forked processes, through slots of shared memory.
 *
 * A slot belongs to the process that has put its id into `owner`, by compare-and-swap. The value before was 0, or the
 * id of a process that has been killed with the slot. Two cannot have it: a living process is never robbed, and of
 * those that find the same dead owner one wins. (One case would deceive it: an id is given to a new process, which
 * takes the same slot. All this would happen between another's look whether it lives and its compare-and-swap. That is
 * some thousand forks within two instructions.) Ids of another namespace mean nothing here. Such an owner is written
 * down negative, and is taken for alive; a process in another namespace takes every owner for alive.
 *
 * `word` has a number, which each owner raises, and the state. Only the owner makes it REQUESTED. From there the parent
 * makes it DONE or UNKNOWN, or the owner, which has waited long enough, makes it IDLE. Both do so by compare-and-swap,
 * so the two agree. The number keeps the parent from answering the next request in place of one whose process was
 * killed. The owner writes `id` between its IDLE and its REQUESTED. The parent reads it between REQUESTED and its own
 * compare-and-swap. If that succeeds, the number was the same all the time, and so was the id. If it fails, the id that
 * the parent has read was another valid request's.
 *
 * A request is never overlooked: it is REQUESTED before the parent is woken, and the parent takes the wake-up before it
 * looks. Nor is the parent's end: `closed` is set before the slots are looked at, and read after REQUESTED was set.
 *
 * `moving`: a child must not touch a socket of which the kernel is still being told; to its calls it would look
 * connected. The parent notes the connection before it makes the socket look so, and takes the note away when all is
 * done. A child looks first whether the socket is connected, then for the note. If it sees what the parent did to the
 * socket, it sees the note, or finds that all is done. The kernel's lock of the socket orders the parent's note before
 * the child's look.
 *
 * All accesses are sequentially consistent; nothing here is quick, or has to be.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/sock.h>

#include "fork_rpc.h"

enum { IDLE, REQUESTED, REPLIED_DONE, REPLIED_UNKNOWN };
enum { STATE_BITS = 2, STATE_MASK = 3 };
#define SLEEP_NS 50000000

static uint64_t pid_space(void)
{
	struct stat space;

	return stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
}

struct fork_rpc_page *fork_rpc_page_create(void)
{
	struct fork_rpc_page *page =
	        mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return NULL;
	page->pid_space = pid_space();
	return page;
}

void fork_rpc_page_free(struct fork_rpc_page *page)
{
	munmap(page, sizeof(*page));
}

static long futex_syscall_between_processes(_Atomic uint32_t *word, int op, uint32_t value,
                                            const struct timespec *timeout)
{
	return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* ---- the parent ---- */

static void fork_rpc_slot_reply(struct fork_rpc_slot *slot, uint32_t asked, uint32_t state)
{
	if (atomic_compare_exchange_strong(&slot->word, &asked, (asked & ~(uint32_t)STATE_MASK) | state))
		futex_syscall_between_processes(&slot->word, FUTEX_WAKE, INT_MAX, NULL);
}

void fork_rpc_answer_all(struct fork_rpc_page *page, enum fork_rpc_result (*answer)(uint64_t id))
{
	for (unsigned i = 0; i < FORK_RPC_SLOTS; i++) {
		struct fork_rpc_slot *slot = &page->slot[i];
		uint32_t word = atomic_load(&slot->word);

		if ((word & STATE_MASK) == REQUESTED)
			fork_rpc_slot_reply(slot, word,
			                    answer(atomic_load(&slot->id)) == FORK_RPC_UNKNOWN ? REPLIED_UNKNOWN
			                                                                       : REPLIED_DONE);
	}
}

void fork_rpc_close_page(struct fork_rpc_page *page)
{
	atomic_store(&page->closed, true);
	for (unsigned i = 0; i < FORK_RPC_SLOTS; i++) {
		uint32_t word = atomic_load(&page->slot[i].word);

		if ((word & STATE_MASK) == REQUESTED)
			fork_rpc_slot_reply(&page->slot[i], word, REPLIED_DONE);
	}
}

/* As many as have a place go on at once; the others wait for them, who wait for nobody. */
unsigned fork_rpc_mark_hand_over_begin(struct fork_rpc_page *page, uint64_t id)
{
	for (;;) {
		for (unsigned i = 0; i < FORK_RPC_MOVES; i++) {
			uint64_t none = 0;

			if (atomic_compare_exchange_strong(&page->moving[i], &none, id))
				return i;
		}
		sched_yield();
	}
}

void fork_rpc_mark_hand_over_end(struct fork_rpc_page *page, unsigned move)
{
	atomic_store(&page->moving[move], 0);
}

/* ---- a child ---- */

static bool fork_rpc_slot_try_own(struct fork_rpc_slot *slot, int32_t self, bool may_rob)
{
	int32_t owner = 0;

	if (atomic_compare_exchange_strong(&slot->owner, &owner, self))
		return true;
	return may_rob && owner > 0 && kill(owner, 0) != 0 && errno == ESRCH &&
	       atomic_compare_exchange_strong(&slot->owner, &owner, self);
}

/* Those of the killed only when all are in use. */
static struct fork_rpc_slot *fork_rpc_slot_claim_free(struct fork_rpc_page *page)
{
	const bool at_home = page->pid_space != 0 && pid_space() == page->pid_space;
	const int32_t pid = (int32_t)syscall(SYS_getpid);

	for (unsigned pass = 0; pass < (at_home ? 2 : 1); pass++)
		for (unsigned i = 0; i < FORK_RPC_SLOTS; i++)
			if (fork_rpc_slot_try_own(&page->slot[i], at_home ? pid : -pid, pass != 0))
				return &page->slot[i];
	return NULL;
}

static uint32_t fork_rpc_put_question(struct fork_rpc_slot *slot, uint64_t id)
{
	const uint32_t number = (atomic_load(&slot->word) >> STATE_BITS) + 1;

	atomic_store(&slot->word, number << STATE_BITS | IDLE);
	atomic_store(&slot->id, id);
	atomic_store(&slot->word, number << STATE_BITS | REQUESTED);
	return number << STATE_BITS | REQUESTED;
}

static enum fork_rpc_result fork_rpc_take_result(struct fork_rpc_slot *slot, uint32_t asked)
{
	uint32_t word = asked;

	if (atomic_compare_exchange_strong(&slot->word, &word, (asked & ~(uint32_t)STATE_MASK) | IDLE))
		return FORK_RPC_TIMED_OUT;
	return (word & STATE_MASK) == REPLIED_UNKNOWN ? FORK_RPC_UNKNOWN : FORK_RPC_DONE;
}

enum fork_rpc_result fork_rpc_call(struct fork_rpc_page *page, uint64_t id, const struct fork_rpc_parent *parent)
{
	const struct timespec nap = {.tv_nsec = SLEEP_NS};
	const uint64_t deadline_ns = vma_now_ns() + parent->timeout_ns;
	struct fork_rpc_slot *slot = atomic_load(&page->closed) ? NULL : fork_rpc_slot_claim_free(page);
	enum fork_rpc_result answer;
	uint32_t asked;

	if (slot == NULL)
		return FORK_RPC_TIMED_OUT;
	asked = fork_rpc_put_question(slot, id);
	parent->wake(parent->arg);
	while (atomic_load(&slot->word) == asked && !atomic_load(&page->closed) && parent->is_alive(parent->arg) &&
	       vma_now_ns() < deadline_ns)
		futex_syscall_between_processes(&slot->word, FUTEX_WAIT, asked, &nap);
	answer = fork_rpc_take_result(slot, asked);
	atomic_store(&slot->owner, 0);
	return answer;
}

bool fork_rpc_hand_over_in_progress(const struct fork_rpc_page *page, uint64_t id)
{
	for (unsigned i = 0; i < FORK_RPC_MOVES; i++)
		if (atomic_load(&page->moving[i]) == id)
			return true;
	return false;
}
