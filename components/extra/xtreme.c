/* xtreme - SocketXtreme: a poll of rings, and the buffers that it has given. */
#include <errno.h>

#include <vma/extra.h>
#include <vma/inet_xtreme.h>
#include <vma/sock_engine.h>

bool vma_extra_has_xtreme(void)
{
	const struct vma_engine *engine = vma_engine();

	return engine != NULL && engine->conf.socketxtreme;
}

/* True: *rings are those that the descriptor stands for. */
static bool rings_of(struct vma_file *file, uint64_t *rings)
{
	if (file == NULL || file->ops->rings == NULL || file->kind == VMA_FILE_EXEC)
		return false;
	if ((file->kind == VMA_FILE_UDP || file->kind == VMA_FILE_TCP) && file->os_only)
		return false;
	*rings = file->ops->rings(file);
	return true;
}

int vma_extra_xtreme_poll(struct vma_file *file, struct vma_completion_t *completions, unsigned n, int flags)
{
	uint64_t rings;

	if (!vma_extra_has_xtreme())
		return -EOPNOTSUPP;
	if (!rings_of(file, &rings))
		return -EBADF;
	if (flags != 0 || n > INT32_MAX)
		return -EINVAL;
	if (completions == NULL && n != 0)
		return -EFAULT;
	return n != 0 ? vma_xtreme_poll(rings, completions, n) : 0;
}

int vma_extra_xtreme_free_packets(const struct vma_packet_desc_t *packets, int n)
{
	return vma_extra_has_xtreme() ? vma_xtreme_free_packets(packets, n) : -EOPNOTSUPP;
}

int vma_extra_xtreme_ref(const struct vma_buff_t *buff)
{
	return vma_extra_has_xtreme() ? vma_xtreme_ref(buff) : -EOPNOTSUPP;
}

int vma_extra_xtreme_free_buff(const struct vma_buff_t *buff)
{
	return vma_extra_has_xtreme() ? vma_xtreme_free_buff(buff) : -EOPNOTSUPP;
}
