/*
 * watch - the watchers that are told of a file's readiness and end, besides sleepers: an immutable array, replaced as a
 * whole.
 */
#include <errno.h>

#include "file.h"

static void watchers_free_retired(struct vma_retired *retired)
{
	vma_free((char *)retired - offsetof(struct vma_watchers, retired));
}

static struct vma_watchers *watchers_allocate(uint32_t n)
{
	return vma_alloc(sizeof(struct vma_watchers) + n * sizeof(struct vma_watcher *));
}

/* With the lock. Readers are inside and see the old array or the new one, whole; the old one waits for them. */
static void watchers_publish(struct vma_file *file, struct vma_watchers *old, struct vma_watchers *fresh)
{
	atomic_store_explicit(&file->watchers, fresh, memory_order_release);
	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, watchers_free_retired);
}

static void watchers_copy_except(struct vma_watchers *to, const struct vma_watchers *from,
                                 const struct vma_watcher *but)
{
	for (uint32_t i = 0; from != NULL && i < from->n; i++)
		if (from->watcher[i] != but)
			to->watcher[to->n++] = from->watcher[i];
}

/*
 * A file whose last descriptor goes is marked (slots) before its watchers are told. Under the lock either the mark is
 * seen here, or the telling, which takes the lock as well, sees the new watcher.
 */
int vma_file_watch(struct vma_file *file, struct vma_watcher *watcher)
{
	struct vma_watchers *old, *fresh;
	int rc = 0;

	pthread_mutex_lock(&file->lock);
	old = atomic_load_explicit(&file->watchers, memory_order_relaxed);
	if (atomic_load_explicit(&file->slots, memory_order_relaxed) & VMA_FILE_ENDED) {
		rc = -EBADF;
	} else {
		fresh = watchers_allocate(old != NULL ? old->n + 1 : 1);
		if (fresh == NULL) {
			rc = -ENOMEM;
		} else {
			watchers_copy_except(fresh, old, watcher);
			fresh->watcher[fresh->n++] = watcher;
			watchers_publish(file, old, fresh);
		}
	}
	pthread_mutex_unlock(&file->lock);
	return rc;
}

/*
 * Taking out must not fail. Without memory for a smaller array the place is given to another watcher, who is told
 * everything twice, which is harmless; its own removal then clears both places.
 */
static void replace_watcher(struct vma_watchers *watchers, const struct vma_watcher *gone, struct vma_watcher *other)
{
	for (uint32_t i = 0; i < watchers->n; i++)
		if (watchers->watcher[i] == gone)
			watchers->watcher[i] = other;
}

static struct vma_watcher *watchers_find_other(const struct vma_watchers *watchers, const struct vma_watcher *watcher)
{
	for (uint32_t i = 0; watchers != NULL && i < watchers->n; i++)
		if (watchers->watcher[i] != watcher)
			return watchers->watcher[i];
	return NULL;
}

void vma_file_unwatch(struct vma_file *file, struct vma_watcher *watcher)
{
	struct vma_watchers *old, *fresh = NULL;
	struct vma_watcher *other;

	pthread_mutex_lock(&file->lock);
	old = atomic_load_explicit(&file->watchers, memory_order_relaxed);
	other = watchers_find_other(old, watcher);
	if (other != NULL)
		fresh = watchers_allocate(old->n);
	if (fresh != NULL)
		watchers_copy_except(fresh, old, watcher);
	if (other == NULL || fresh != NULL)
		watchers_publish(file, old, fresh);
	else
		replace_watcher(old, watcher, other);
	pthread_mutex_unlock(&file->lock);
}

void vma_file_wake_watchers(struct vma_file *file, struct vma_watchers *watchers, uint32_t events)
{
	(void)file;
	for (uint32_t i = 0; i < watchers->n; i++)
		watchers->watcher[i]->ready(watchers->watcher[i], events);
}

void vma_file_set_poll_without_shadow(struct vma_file *file, bool own)
{
	struct vma_watchers *watchers;

	if (atomic_exchange(&file->own_poll, own) == own)
		return;
	pthread_mutex_lock(&file->lock); /* who watches from now on has seen the change: vma_file_watch locks as well */
	watchers = atomic_load_explicit(&file->watchers, memory_order_relaxed);
	pthread_mutex_unlock(&file->lock);
	for (uint32_t i = 0; watchers != NULL && i < watchers->n; i++)
		watchers->watcher[i]->shadow(watchers->watcher[i]);
}

void file_notify_closed(struct vma_file *file, int fd)
{
	struct vma_watchers *watchers;

	pthread_mutex_lock(&file->lock);
	watchers = atomic_load_explicit(&file->watchers, memory_order_relaxed);
	pthread_mutex_unlock(&file->lock);
	/* Without the lock: a watcher may take itself out. The array lives as long as we are inside. */
	for (uint32_t i = 0; watchers != NULL && i < watchers->n; i++)
		watchers->watcher[i]->closed(watchers->watcher[i], fd);
}
