/* sockets - the program's questions about a socket, and its settings for sockets to come. */
#include <errno.h>

#include <vma/extra.h>
#include <vma/sock_engine.h>

enum { HEADERS_MAX = 256 };

int vma_extra_get_network_header(struct vma_file *file, void *to, uint16_t *len)
{
	uint8_t headers[HEADERS_MAX];
	uint16_t room, have;
	ssize_t rc;

	if (len == NULL || file == NULL || (file->kind != VMA_FILE_UDP && file->kind != VMA_FILE_TCP))
		return -EINVAL;
	if (vma_memcpy_or_efault(&room, len, sizeof(room)) != 0)
		return -EFAULT;
	rc = !file->os_only && file->ops->network_header != NULL
	             ? file->ops->network_header(file, headers, sizeof(headers))
	             : -ENOTCONN;
	if (rc < 0)
		return (int)rc;
	have = (uint16_t)rc;
	if (to != NULL && room < have)
		return -ENOBUFS;
	if (to != NULL && vma_memcpy_or_efault(to, headers, have) != 0)
		return -EFAULT;
	return vma_memcpy_or_efault(len, &have, sizeof(have));
}

static void dump_one_socket_state_to_log(struct vma_file *file, void *arg)
{
	if (file->ops->dump != NULL)
		file->ops->dump(file, atomic_load(&file->fd), *(enum vma_log_level *)arg);
}

int vma_extra_dump_socket_state_to_log(struct vma_file *file, int fd, int level)
{
	enum vma_log_level log_level = (enum vma_log_level)level;

	if (level < VMA_LOG_NONE || level > VMA_LOG_ALL)
		return -EINVAL;
	if (fd != 0 && (file == NULL || file->ops->dump == NULL))
		return -EBADF;
	if (level == VMA_LOG_NONE)
		return 0;
	if (fd == 0)
		vma_file_each(dump_one_socket_state_to_log, &log_level);
	else
		file->ops->dump(file, fd, log_level);
	return 0;
}

int vma_extra_add_offload_rule_from_text(const char *line)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	char own[512];
	size_t n = 0;

	if (engine == NULL)
		return -ENODEV;
	do {
		if (n == sizeof(own))
			return -EINVAL;
		if (vma_memcpy_or_efault(&own[n], line + n, 1) != 0)
			return -EFAULT;
	} while (own[n++] != '\0');
	return vma_engine_add_rule(engine, own);
}

int vma_extra_set_thread_offload(int offload, pthread_t thread)
{
	return offload == 0 || offload == 1 ? vma_thread_set_offload(thread, offload != 0) : -EINVAL;
}
