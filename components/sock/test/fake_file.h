/* fake_file - an object behind a descriptor that remembers what was done to it. */
#ifndef VMA_SOCK_TEST_FAKE_FILE_H
#define VMA_SOCK_TEST_FAKE_FILE_H

#include <vma/sock.h>

#define FAKE_ALIVE 0x51ab1e

struct fake_file {
	struct vma_file file;
	_Atomic uint32_t magic; /* FAKE_ALIVE until destroyed */
	_Atomic int reason;
	int closed, forked;
	_Atomic int net_changed;
};

static _Atomic unsigned fakes_closed, fakes_destroyed;

static inline struct fake_file *fake_of(struct vma_file *file)
{
	return (struct fake_file *)file;
}
static void fake_close(struct vma_file *file)
{
	fake_of(file)->closed++;
	atomic_fetch_add(&fakes_closed, 1);
}
static void fake_destroy(struct vma_file *file)
{
	atomic_store(&fake_of(file)->magic, 0);
	atomic_fetch_add(&fakes_destroyed, 1);
}
static void fake_forked(struct vma_file *file)
{
	fake_of(file)->forked++;
}
static void fake_net_changed(struct vma_file *file)
{
	atomic_fetch_add(&fake_of(file)->net_changed, 1);
}
static enum vma_sock_reason fake_reason(struct vma_file *file)
{
	return (enum vma_sock_reason)atomic_load(&fake_of(file)->reason);
}
static const struct vma_file_ops fake_ops = {
        .name = "fake",
        .close = fake_close,
        .destroy = fake_destroy,
        .forked = fake_forked,
        .net_changed = fake_net_changed,
        .reason = fake_reason,
};

static inline struct fake_file *fake_file_create(void)
{
	struct fake_file *fake = vma_alloc(sizeof(*fake));

	if (fake != NULL) {
		vma_file_init(&fake->file, VMA_FILE_UDP, &fake_ops);
		atomic_store(&fake->magic, FAKE_ALIVE);
		fake->reason = VMA_SOCK_NEW;
	}
	return fake;
}

/* Retired objects end once nobody who was inside still is: at most a few polls later. */
static inline void fake_poll_until_retired_are_freed(void)
{
	for (int i = 0; i < 8; i++)
		vma_run_due_deferred_frees();
}

#endif
