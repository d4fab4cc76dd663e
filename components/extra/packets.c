/* packets - received without a copy, or by a callback, and given back. */
#include <errno.h>

#include <vma/extra.h>
#include <vma/inet_held.h>

static bool file_is_udp_or_tcp(const struct vma_file *file)
{
	return file != NULL && (file->kind == VMA_FILE_UDP || file->kind == VMA_FILE_TCP);
}

int vma_extra_register_recv_callback(struct vma_file *file, vma_recv_callback_t function, void *context)
{
	const struct vma_recv_callback callback = {.function = function, .context = context};

	if (!file_is_udp_or_tcp(file) || file->os_only)
		return -EINVAL;
	return file->ops->set_callback != NULL ? file->ops->set_callback(file, &callback) : -EOPNOTSUPP;
}

/* A socket that gives nothing without a copy: with force it says so of what is there. */
static ssize_t recv_zcopy_by_copying(struct vma_file *file, int fd, struct vma_recv_zcopy_call *lend, int flags)
{
	struct msghdr look = {0};
	ssize_t rc;

	flags &= ~(MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE);
	if (!lend->forced)
		return file->ops->recvmsg(file, fd, &lend->msg, flags);
	rc = file->ops->recvmsg(file, fd, &look, flags | MSG_PEEK);
	return rc < 0 ? rc : -EIO;
}

static ssize_t recv_lent(struct vma_file *file, int fd, struct vma_recv_zcopy_call *lend, int flags)
{
	return file->ops->recv_lent != NULL ? file->ops->recv_lent(file, fd, lend, flags)
	                                    : recv_zcopy_by_copying(file, fd, lend, flags);
}

ssize_t vma_extra_recvfrom_zcopy(struct vma_file *file, int fd, void *buf, size_t len, int *flags,
                                 struct sockaddr *from, socklen_t *fromlen)
{
	struct sockaddr_storage name;
	struct vma_recv_zcopy_call lend;
	int wanted, got, given;
	ssize_t rc;

	if (!file_is_udp_or_tcp(file) || file->os_only || file->ops->recvmsg == NULL)
		return -EBADF;
	if (vma_memcpy_or_efault(&wanted, flags, sizeof(wanted)) != 0)
		return -EFAULT;
	vma_recv_zcopy_call_init(&lend, fd, buf, len, (wanted & MSG_VMA_ZCOPY_FORCE) != 0);
	if (from != NULL) {
		lend.msg.msg_name = &name;
		lend.msg.msg_namelen = sizeof(name);
	}
	rc = recv_lent(file, fd, &lend, wanted);
	if (rc < 0)
		return rc;
	got = lend.msg.msg_flags | (lend.packets != 0 ? MSG_VMA_ZCOPY : 0);
	given = vma_memcpy_or_efault(flags, &got, sizeof(got));
	if (given == 0 && from != NULL)
		given = vma_copy_sockaddr_to_program(&name, lend.msg.msg_namelen, from, fromlen);
	return given < 0 ? given : rc;
}

int vma_extra_free_packets(const struct vma_file *file, int fd, const struct vma_packet_t *packets, size_t count)
{
	const bool is_offloaded = file_is_udp_or_tcp(file) && !file->os_only;
	const char *at = (const char *)packets;
	struct vma_packet_t packet;
	int rc;

	if (count == 0)
		return is_offloaded ? 0 : -EINVAL;
	for (size_t i = 0; i < count; i++) {
		if (vma_memcpy_or_efault(&packet, at, sizeof(packet)) != 0)
			return -EFAULT;
		rc = vma_held_packet_free(file, fd, (uint64_t)(uintptr_t)packet.packet_id);
		if (rc != 0)
			return i == 0 && !is_offloaded ? -EINVAL : rc;
		at += sizeof(packet) + packet.sz_iov * sizeof(struct iovec);
	}
	return 0;
}
