/* xtreme - SocketXtreme: a poll of rings, and the buffers that it has given. */
#include <errno.h>

#include <vma/extra.h>
#include <vma/inet_xtreme.h>
#include <vma/sock_engine.h>

/* Before the start nothing has been read yet, and a question starts nothing. */
bool vma_extra_is_socketxtreme_enabled(void)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	struct vma_conf own;

	if (engine != NULL)
		return engine->conf.socketxtreme;
	vma_conf_load_without_warnings(&own, environ);
	return own.socketxtreme;
}

/*
 * True: *rings are those that the descriptor stands for. A socket that a forked child has inherited has none before it
 * is used. The question whether it is readable is such a use, after which it is taken up soon.
 */
static bool file_get_rings_mask(struct vma_file *file, uint64_t *rings)
{
	if (file == NULL || file->ops->rings == NULL || file->kind == VMA_FILE_EXEC)
		return false;
	if ((file->kind == VMA_FILE_UDP || file->kind == VMA_FILE_TCP) && file->os_only)
		return false;
	*rings = file->ops->rings(file);
	if (*rings == 0 && file->ops->poll != NULL) {
		file->ops->poll(file);
		*rings = file->ops->rings(file);
	}
	return true;
}

/*
 * A ring's descriptor is readable until a poll by it has found all that it had heard of. After a poll whose array is
 * full, or that has not looked because another thread did, there may be more.
 */
static int xtreme_poll_rings(struct vma_file *file, uint64_t rings, struct vma_completion_t *completions, unsigned n)
{
	bool has_skipped = false;
	uint64_t heard;
	int rc;

	if (file->kind != VMA_FILE_RING)
		return vma_xtreme_poll(rings, completions, n);
	heard = vma_ring_file_activity_count(file);
	rc = vma_xtreme_poll_and_note_skips(rings, completions, n, &has_skipped);
	if (rc >= 0 && (unsigned)rc < n && !has_skipped)
		vma_ring_file_mark_seen(file, heard);
	return rc;
}

int vma_extra_xtreme_poll(struct vma_file *file, struct vma_completion_t *completions, unsigned n, int flags)
{
	uint64_t rings;

	if (!vma_extra_is_socketxtreme_enabled())
		return -EOPNOTSUPP;
	if (!file_get_rings_mask(file, &rings))
		return -EBADF;
	if (flags != 0 || n > INT32_MAX)
		return -EINVAL;
	if (completions == NULL && n != 0)
		return -EFAULT;
	return n != 0 ? xtreme_poll_rings(file, rings, completions, n) : 0;
}

int vma_extra_xtreme_free_packets(const struct vma_packet_desc_t *packets, int n)
{
	return vma_extra_is_socketxtreme_enabled() ? vma_xtreme_free_packets(packets, n) : -EOPNOTSUPP;
}

int vma_extra_xtreme_ref(const struct vma_buff_t *buff)
{
	return vma_extra_is_socketxtreme_enabled() ? vma_xtreme_ref(buff) : -EOPNOTSUPP;
}

int vma_extra_xtreme_free_buff(const struct vma_buff_t *buff)
{
	return vma_extra_is_socketxtreme_enabled() ? vma_xtreme_free_buff(buff) : -EOPNOTSUPP;
}
