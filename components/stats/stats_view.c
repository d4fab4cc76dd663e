/*
 * stats_view - the reader's side: another process's segment, of which nothing is believed.
 *
 * The header is copied, then compared with what this build would write. After that all sizes and places are our own
 * constants, and nothing in the file is ever used as a place or length. Types are range-checked, names terminated.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stats_priv.h"

#define TRIES 8 /* per block, while it changes hands; then it is passed over */

struct copy {
	union stats_any_block block;
	char name[VMA_STATS_NAME_MAX];
};

struct vma_stats_view {
	const struct stats_segment *segment; /* read-only mapping */
	struct copy *copies;                 /* one per block */
	int fd;
	int pid;
};

static bool large_enough(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= (off_t)sizeof(struct stats_segment);
}

/* memcmp over our own header shape: all of it but magic and pid must be what this build writes. */
static bool header_fits(const struct stats_header *found)
{
	struct stats_header wanted = {0};

	stats_header_fill(&wanted);
	return found->fields_hash == wanted.fields_hash && found->file_bytes == wanted.file_bytes &&
	       found->version == wanted.version && found->header_bytes == wanted.header_bytes &&
	       found->entry_bytes == wanted.entry_bytes && found->block_bytes == wanted.block_bytes &&
	       found->block_count == wanted.block_count &&
	       memcmp(found->type_bytes, wanted.type_bytes, sizeof(wanted.type_bytes)) == 0;
}

static int check_header(struct vma_stats_view *view)
{
	const struct stats_header *header = &view->segment->header;
	struct stats_header found;

	/* Acquire: pairs with the writer's last store of the header. */
	if (atomic_load_explicit(&header->magic, memory_order_acquire) != STATS_MAGIC)
		return -EPROTO;
	memcpy(&found, header, sizeof(found));
	view->pid = found.pid;
	return header_fits(&found) ? 0 : -EPROTO;
}

static int map_view(struct vma_stats_view *view)
{
	void *map;

	if (!large_enough(view->fd))
		return -EPROTO;
	map = mmap(NULL, sizeof(*view->segment), PROT_READ, MAP_SHARED, view->fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	view->segment = map;
	return check_header(view);
}

int vma_stats_view_open(const char *path, struct vma_stats_view **out)
{
	struct vma_stats_view *view = calloc(1, sizeof(*view));
	int rc;

	if (view == NULL)
		return -ENOMEM;
	view->fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	rc = view->fd >= 0 ? map_view(view) : -errno;
	if (rc == 0) {
		view->copies = aligned_alloc(VMA_STATS_ALIGN, STATS_BLOCKS * sizeof(struct copy));
		rc = view->copies != NULL ? 0 : -ENOMEM;
	}
	if (rc < 0) {
		vma_stats_view_close(view);
		return rc;
	}
	*out = view;
	return 0;
}

void vma_stats_view_close(struct vma_stats_view *view)
{
	if (view == NULL)
		return;
	if (view->segment != NULL)
		munmap((void *)view->segment, sizeof(*view->segment));
	if (view->fd >= 0)
		syscall(SYS_close, view->fd);
	free(view->copies);
	free(view);
}

int vma_stats_view_pid(const struct vma_stats_view *view)
{
	return view->pid;
}

static void stats_copy_name(struct copy *copy, const struct stats_entry *entry)
{
	uint64_t words[STATS_NAME_WORDS];

	for (unsigned i = 0; i < STATS_NAME_WORDS; i++)
		words[i] = atomic_load_explicit(&entry->name[i], memory_order_acquire);
	memcpy(copy->name, words, sizeof(copy->name));
	copy->name[sizeof(copy->name) - 1] = '\0';
}

static void copy_block(struct copy *copy, const union stats_any_block *block)
{
	const _Atomic uint64_t *from = (const _Atomic uint64_t *)block;
	_Atomic uint64_t *to = (_Atomic uint64_t *)&copy->block;

	for (size_t w = 0; w < STATS_BLOCK_WORDS; w++)
		atomic_store_explicit(&to[w], atomic_load_explicit(&from[w], memory_order_acquire),
		                      memory_order_relaxed);
}

/*
 * The reader's half of the sequence (stats_block.c has the writer's): even before and the same after means that type,
 * name and block belong together. The first load acquires, so what follows is not older; every load in between
 * acquires, so the second look at the sequence is not older than any of them: whoever read a value of the next owner
 * reads the next owner's sequence too.
 */
static enum vma_stats_type copy_entry(const struct vma_stats_view *view, size_t i)
{
	const struct stats_entry *entry = &view->segment->entries[i];
	struct copy *copy = &view->copies[i];

	for (int tries = 0; tries < TRIES; tries++) {
		uint32_t sequence = atomic_load_explicit(&entry->sequence, memory_order_acquire);
		uint32_t type = atomic_load_explicit(&entry->type, memory_order_acquire);

		if (sequence % 2 != 0)
			continue;
		if (type == VMA_STATS_TYPE_FREE || type >= VMA_STATS_TYPE_COUNT)
			return VMA_STATS_TYPE_FREE;
		stats_copy_name(copy, entry);
		copy_block(copy, &view->segment->blocks[i]);
		if (atomic_load_explicit(&entry->sequence, memory_order_relaxed) == sequence)
			return (enum vma_stats_type)type;
	}
	return VMA_STATS_TYPE_FREE;
}

bool vma_stats_view_next(const struct vma_stats_view *view, size_t *cursor, enum vma_stats_type *type,
                         const char **name, const void **block)
{
	if (!large_enough(view->fd))
		return false;
	while (*cursor < STATS_BLOCKS) {
		size_t i = (*cursor)++;

		*type = copy_entry(view, i);
		if (*type == VMA_STATS_TYPE_FREE)
			continue;
		*name = view->copies[i].name;
		*block = &view->copies[i].block;
		return true;
	}
	return false;
}
