/*
 * table - from a descriptor's number to the file behind it.
 *
 *   0 .. 65535       vma_fd_low[fd]: one load
 *   above            directory ── 2^21 numbers ──> leaf ── 4096 numbers ──> page of slots
 *
 * The low part is zero pages of the library until it is used. Of the high part only what is used exists, and once made
 * it stays. So RLIMIT_NOFILE costs nothing, however large it is.
 *
 * A slot changes by one exchange. If several threads empty or fill it, each gets what stood there, and drops it, once.
 *
 * A file counts its slots. The thread that takes the last one out turns the count into VMA_FILE_ENDED, by the same
 * compare-and-swap that would take out any other. So exactly one thread ends the file, and no slot can be added
 * afterwards.
 */
#include <errno.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "file.h"

#define PAGE_SLOTS 4096U /* 32 KB */
#define LEAF_PAGES 512U  /* 4 KB */
#define LEAVES 1024U     /* to 2^31 */

struct page {
	struct vma_file *_Atomic slot[PAGE_SLOTS];
};
struct leaf {
	struct page *_Atomic page[LEAF_PAGES];
};
_Static_assert((uint64_t)PAGE_SLOTS *LEAF_PAGES *LEAVES > INT_MAX, "every number has a place");

struct vma_file *_Atomic vma_fd_low[VMA_FD_LOW] __attribute__((section(".bss.far")));
static struct leaf *_Atomic directory[LEAVES] __attribute__((section(".bss.far")));
static _Atomic int highest = -1;

/* ---- places ---- */

static struct leaf *fd_table_leaf_of(unsigned fd)
{
	return atomic_load_explicit(&directory[fd / PAGE_SLOTS / LEAF_PAGES], memory_order_acquire);
}

static struct page *fd_table_page_of(struct leaf *leaf, unsigned fd)
{
	return atomic_load_explicit(&leaf->page[fd / PAGE_SLOTS % LEAF_PAGES], memory_order_acquire);
}

struct vma_file *vma_fd_lookup_high(unsigned fd)
{
	struct leaf *leaf = fd <= INT_MAX ? fd_table_leaf_of(fd) : NULL;
	struct page *page = leaf != NULL ? fd_table_page_of(leaf, fd) : NULL;

	return page != NULL ? atomic_load_explicit(&page->slot[fd % PAGE_SLOTS], memory_order_acquire) : NULL;
}

/* Of two who make the same one the first wins; the other frees its own. Zeroed memory is published by the release. */
static struct leaf *fd_table_create_leaf(unsigned fd)
{
	struct leaf *mine = vma_alloc(sizeof(*mine)), *there = NULL;

	if (mine == NULL || atomic_compare_exchange_strong_explicit(&directory[fd / PAGE_SLOTS / LEAF_PAGES], &there,
	                                                            mine, memory_order_acq_rel, memory_order_acquire))
		return mine;
	vma_free(mine);
	return there;
}

static struct page *fd_page_create(struct leaf *leaf, unsigned fd)
{
	struct page *mine = vma_alloc(sizeof(*mine)), *there = NULL;

	if (mine == NULL || atomic_compare_exchange_strong_explicit(&leaf->page[fd / PAGE_SLOTS % LEAF_PAGES], &there,
	                                                            mine, memory_order_acq_rel, memory_order_acquire))
		return mine;
	vma_free(mine);
	return there;
}

static struct vma_file *_Atomic *fd_table_get_or_create_high_slot(unsigned fd)
{
	struct leaf *leaf = fd_table_leaf_of(fd);
	struct page *page;

	if (leaf == NULL)
		leaf = fd_table_create_leaf(fd);
	page = leaf != NULL ? fd_table_page_of(leaf, fd) : NULL;
	if (leaf != NULL && page == NULL)
		page = fd_page_create(leaf, fd);
	return page != NULL ? &page->slot[fd % PAGE_SLOTS] : NULL;
}

struct vma_file *_Atomic *fd_slot(int fd)
{
	if (fd < 0)
		return NULL;
	return fd < VMA_FD_LOW ? &vma_fd_low[fd] : fd_table_get_or_create_high_slot((unsigned)fd);
}

void fd_raise_highest(int fd)
{
	int seen = atomic_load_explicit(&highest, memory_order_relaxed);

	while (seen < fd &&
	       !atomic_compare_exchange_weak_explicit(&highest, &seen, fd, memory_order_relaxed, memory_order_relaxed))
		;
}

int vma_fd_highest(void)
{
	return atomic_load_explicit(&highest, memory_order_relaxed);
}

/* ---- files in and out ---- */

/* False: it has ended. The first descriptor puts the file on the list of all. */
static bool file_add_fd_slot_unless_ended(struct vma_file *file)
{
	uint32_t slots = atomic_load_explicit(&file->slots, memory_order_relaxed);

	do {
		if (slots & VMA_FILE_ENDED)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&file->slots, &slots, slots + 1, memory_order_relaxed,
	                                                memory_order_relaxed));
	if (slots == 0)
		file_list_add(file);
	return true;
}

/* True: that was the last one. */
static bool file_release_fd_slot_was_last(struct vma_file *file)
{
	uint32_t slots = atomic_load_explicit(&file->slots, memory_order_relaxed), left;

	do {
		left = slots == 1 ? VMA_FILE_ENDED : slots - 1;
	} while (!atomic_compare_exchange_weak_explicit(&file->slots, &slots, left, memory_order_seq_cst,
	                                                memory_order_relaxed));
	return left == VMA_FILE_ENDED;
}

struct vma_file *fd_table_peek(int fd)
{
	return fd < VMA_FD_LOW ? atomic_load(&vma_fd_low[fd]) : vma_fd_lookup_high((unsigned)fd);
}

/* Another number of the file, -1: there is none. Rare (the first of several duplicates was closed), so by looking. */
static int file_find_other_fd(const struct vma_file *file)
{
	for (int fd = 0; fd <= vma_fd_highest(); fd++)
		if (fd_table_peek(fd) == file)
			return fd;
	return -1;
}

/*
 * The number that the file is known by has been taken out: another one takes its place. That one may be taken out at
 * the same time: its remover empties the slot and then looks at file->fd, here file->fd is stored and then the slot is
 * looked at, all sequentially consistent, so at least one of the two sees the other and looks again.
 */
static void file_choose_other_fd(struct vma_file *file, int gone)
{
	while (atomic_load(&file->fd) == gone) {
		int other = file_find_other_fd(file);

		if (other == gone || !atomic_compare_exchange_strong(&file->fd, &gone, other))
			return;
		if (other < 0 || fd_table_peek(other) == file)
			return;
		gone = other;
	}
}

/* What has been taken out of slot fd. Inside: watchers and ops find what they look at. */
static void fd_drop_file(struct vma_file *file, int fd)
{
	bool last;

	if (file->kind == VMA_FILE_INTERNAL)
		return;
	last = file_release_fd_slot_was_last(file);
	if (!last)
		file_choose_other_fd(file, fd);
	file_notify_closed(file, last ? -1 : fd);
	if (!last)
		return;
	file_list_remove(file);
	if (file->ops->close != NULL)
		file->ops->close(file);
	vma_file_put(file);
}

int vma_fd_install(int fd, struct vma_file *file)
{
	struct vma_file *_Atomic *slot = fd_slot(fd);
	struct vma_thread *self;
	struct vma_file *before;
	int none = -1;
	bool alive;

	if (slot == NULL)
		return fd < 0 ? -EBADF : -ENOMEM;
	self = vma_enter();
	alive = file_add_fd_slot_unless_ended(file);
	before = atomic_exchange(slot, alive ? file : NULL);
	if (alive) {
		fd_raise_highest(fd);
		atomic_compare_exchange_strong(&file->fd, &none, fd);
	}
	if (before != NULL)
		fd_drop_file(before, fd);
	vma_leave(self);
	vma_run_deferred_frees_if_many();
	return alive ? 0 : -EBADF;
}

void vma_fd_remove(int fd)
{
	struct vma_file *file;
	struct vma_thread *self;

	if (vma_fd_lookup(fd) == NULL)
		return;
	self = vma_enter();
	file = atomic_exchange(fd_slot(fd), NULL);
	if (file != NULL)
		fd_drop_file(file, fd);
	vma_leave(self);
}

/*
 * The number stays marked until the kernel has it back. A program that closes it meanwhile gets EBADF; if it closed it
 * before, the number might be another file's by now, and would be closed here.
 */
bool vma_fd_close_file(int fd, struct vma_file *file)
{
	struct vma_file *_Atomic *slot = fd_slot(fd);
	struct vma_file *guard = fd_guard_file(), *mine = file;
	struct vma_thread *self;

	if (slot == NULL || !atomic_compare_exchange_strong(slot, &mine, guard))
		return false;
	syscall(SYS_close, fd);
	atomic_compare_exchange_strong(slot, &guard, NULL); /* but for a file that has the number by now */
	self = vma_enter();
	fd_drop_file(file, fd);
	vma_leave(self);
	return true;
}
