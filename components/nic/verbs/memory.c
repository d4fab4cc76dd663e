/*
 * memory - windows of the arena that the device may read and write.
 *
 * A window is a memfd of its own, mapped shared and MADV_DONTFORK. A copy on write would part the process from the
 * pages that the device knows. It is registered as a whole. The table of local keys says for each unit of the arena
 * which key its frames have.
 */
#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <vma/log.h>

#include "../os.h"
#include "verbs.h"

#define WINDOW_FIRST 4096 /* frames: so many are registered while the user waits */
#define WINDOW_NEXT 4096
#define WINDOW_LEAST 64
#define POOL_BATCH 16
#define PAUSE_FIRST_MS 1000 /* until memory is asked for again: at first, */
#define PAUSE_MAX_MS 64000  /* and at last */

uint32_t verbs_frames_max(const struct vma_bufarena *arena)
{
	struct rlimit limit;
	uint64_t bytes = VERBS_MEMORY_MAX;

	if (!verbs_has_capability(CAP_IPC_LOCK) && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < bytes)
		bytes = limit.rlim_cur;
	return (uint32_t)(bytes >> arena->frame_shift);
}

void *verbs_wipeonfork_alloc(size_t bytes, bool *is_wiped)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (map == MAP_FAILED)
		return NULL;
	if (madvise(map, bytes, MADV_WIPEONFORK) != 0)
		*is_wiped = false;
	return map;
}

void verbs_wipeonfork_free(void *memory, size_t bytes)
{
	if (memory != NULL)
		munmap(memory, bytes);
}

static void lkeys_set_generation(struct nic_verbs *nic, const struct verbs_registered_memory *window,
                                 uint32_t generation)
{
	const uint32_t end = (window->first + window->count - 1) >> VERBS_UNIT_SHIFT;

	for (uint32_t unit = window->first >> VERBS_UNIT_SHIFT; unit <= end; unit++)
		atomic_store_explicit(&nic->lkeys[unit].generation, generation, memory_order_relaxed);
}

static void set_lkeys(struct nic_verbs *nic, const struct verbs_registered_memory *window, uint32_t generation,
                      uint32_t key)
{
	const uint32_t end = (window->first + window->count - 1) >> VERBS_UNIT_SHIFT;

	for (uint32_t unit = window->first >> VERBS_UNIT_SHIFT; unit <= end; unit++)
		atomic_store_explicit(&nic->lkeys[unit].key, key, memory_order_relaxed);
	lkeys_set_generation(nic, window, generation);
}

/* It is registered no more. The keys stay: verbs_lkey says why. */
static void forget_lkeys(struct nic_verbs *nic, const struct verbs_registered_memory *window)
{
	lkeys_set_generation(nic, window, 0);
}

static int map_shared_frames(struct vma_bufarena *arena, uint32_t count, uint32_t *first)
{
	const int fd = (int)syscall(SYS_memfd_create, "vma-verbs", MFD_CLOEXEC);
	int rc;

	if (fd < 0)
		return -errno;
	rc = syscall(SYS_ftruncate, fd, (off_t)count << arena->frame_shift) < 0 ? -errno : 0;
	if (rc == 0)
		rc = vma_bufarena_map_fd(arena, fd, 0, count, first);
	os_close(fd);
	return rc;
}

static int pool_add_registered_memory(struct nic_verbs *nic, const struct verbs_device *device, struct verbs_pool *pool,
                                      uint32_t count)
{
	struct verbs_registered_memory *window = calloc(1, sizeof(*window));
	int rc;

	if (window == NULL)
		return -ENOMEM;
	window->count = count;
	rc = map_shared_frames(pool->arena, count, &window->first);
	if (rc < 0)
		goto fail;
	window->mr =
	        device->lib->ibv_reg_mr(device->pd, vma_buf_frame(pool->arena, vma_buf_at(pool->arena, window->first)),
	                                (size_t)count << pool->arena->frame_shift, IBV_ACCESS_LOCAL_WRITE);
	if (window->mr == NULL) {
		rc = errno != 0 ? -errno : -ENOMEM;
		goto fail_map;
	}
	set_lkeys(nic, window, device->generation, window->mr->lkey);
	rc = vma_bufpool_add_frames(pool->pool, window->first, count);
	if (rc < 0)
		goto fail_mr;
	window->next = pool->windows;
	pool->windows = window;
	pool->frames += count;
	nic->frames += count;
	return 0;
fail_mr:
	forget_lkeys(nic, window);
	device->lib->ibv_dereg_mr(window->mr);
fail_map:
	vma_bufarena_unmap(pool->arena, window->first, count);
fail:
	free(window);
	return rc;
}

/*
 * A limit that is lower than it was said to be, or a process without a free descriptor. What is there has to do for a
 * while, twice as long each time: an attempt at a limit that stays costs pages that are pinned in vain.
 */
static void note_memory_refused(struct nic_verbs *nic, struct verbs_device *device, const struct verbs_pool *pool,
                                int rc)
{
	const uint32_t pause_ms = nic->memory_pause_ms != 0 ? nic->memory_pause_ms : PAUSE_FIRST_MS;

	if (verbs_device_failure_explains_error(nic, device))
		return;
	vma_log_once(VMA_LOG_WARN,
	             "%s: no more memory for its card (%s): it has %u MB (RLIMIT_MEMLOCK, if CAP_IPC_LOCK is missing)",
	             nic->name, strerror(-rc), nic->frames >> (20 - pool->arena->frame_shift));
	nic->frames_max = nic->frames;
	nic->memory_again_ms = os_now_ms() + pause_ms;
	nic->memory_pause_ms = 2 * pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS;
	if (!pthread_equal(pthread_self(), nic->thread))
		verbs_thread_wake(nic); /* it sleeps no longer than the pause. The thread itself looks again. */
}

int verbs_memory_end_pause_if_due(struct nic_verbs *nic)
{
	const uint64_t now_ms = os_now_ms();

	if (nic->memory_again_ms == 0)
		return -1;
	if (now_ms < nic->memory_again_ms)
		return (int)(nic->memory_again_ms - now_ms);
	nic->memory_again_ms = 0;
	nic->frames_max = verbs_frames_max(nic->base.arena);
	return 0;
}

bool verbs_pool_grow(struct nic_verbs *nic, struct verbs_device *device, struct verbs_pool *pool)
{
	const uint32_t most = nic->frames_max > nic->frames ? nic->frames_max - nic->frames : 0;
	uint32_t count = pool->wanted > pool->frames ? pool->wanted - pool->frames : 0;
	int rc;

	if (count > WINDOW_NEXT)
		count = WINDOW_NEXT;
	if (count > most)
		count = most;
	if (count == 0)
		return false;
	rc = pool_add_registered_memory(nic, device, pool, count);
	if (rc < 0)
		note_memory_refused(nic, device, pool, rc);
	else
		nic->memory_pause_ms = 0;
	return rc == 0;
}

static void verbs_pool_unmap_and_free_when_drained(void *arg)
{
	struct verbs_pool *pool = arg;

	while (pool->windows != NULL) {
		struct verbs_registered_memory *window = pool->windows;

		pool->windows = window->next;
		vma_bufarena_unmap(pool->arena, window->first, window->count);
		free(window);
	}
	free(pool);
}

int verbs_pool_create(struct nic_verbs *nic, struct verbs_device *device, const char *name, const void *named_by,
                      uint32_t wanted, struct verbs_pool **out)
{
	static const int modes[] = {
	        [VMA_NIC_CACHES_NONE] = 0, [VMA_NIC_CACHES_RECLAIMED] = 1, [VMA_NIC_CACHES_KEPT] = 2};
	struct verbs_pool *pool = calloc(1, sizeof(*pool));
	uint32_t first = wanted < WINDOW_FIRST ? wanted : WINDOW_FIRST;
	struct vma_bufpool_attr attr = {.arena = nic->base.arena,
	                                .name = name,
	                                .batch = POOL_BATCH,
	                                .batching_mode = modes[nic->caches],
	                                .stats = nic->stats,
	                                .named_by = named_by};
	int rc;

	if (pool == NULL)
		return -ENOMEM;
	pool->arena = nic->base.arena;
	pool->wanted = wanted;
	rc = vma_bufpool_create(&attr, &pool->pool);
	if (rc < 0) {
		free(pool);
		return rc;
	}
	do
		rc = pool_add_registered_memory(nic, device, pool, first);
	while (rc < 0 && (first /= 2) >= WINDOW_LEAST);
	if (rc < 0) {
		note_memory_refused(nic, device, pool, rc);
		vma_bufpool_retire(pool->pool, verbs_pool_unmap_and_free_when_drained, pool);
		return rc;
	}
	*out = pool;
	return 0;
}

void verbs_pool_deregister_and_retire(struct nic_verbs *nic, const struct verbs_device *device, struct verbs_pool *pool)
{
	if (pool == NULL)
		return;
	for (struct verbs_registered_memory *window = pool->windows; window != NULL; window = window->next) {
		forget_lkeys(nic, window);
		device->lib->ibv_dereg_mr(window->mr);
		window->mr = NULL;
		nic->frames -= window->count;
	}
	vma_bufpool_retire(pool->pool, verbs_pool_unmap_and_free_when_drained, pool);
}
