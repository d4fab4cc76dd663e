/* lend - what recvfrom_zcopy writes into the application's buffer, and the kernel's part of such a call. */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/inet.h>
#include <vma/inet_held.h>

/* As messages of programs: see interpose. */
#define BYTES_MAX ((size_t)INT32_MAX & ~(size_t)4095)

void vma_recv_zcopy_call_init(struct vma_recv_zcopy_call *lend, int fd, void *buf, size_t len, bool forced)
{
	*lend = (struct vma_recv_zcopy_call){
	        .piece = {.iov_base = buf, .iov_len = len < BYTES_MAX ? len : BYTES_MAX},
	        .used = sizeof(struct vma_packets_t),
	        .forced = forced,
	        .fd = fd,
	};
	lend->msg.msg_iov = &lend->piece;
	lend->msg.msg_iovlen = 1;
}

static size_t lent_packet_description_bytes(size_t n)
{
	return sizeof(struct vma_packet_t) + n * sizeof(struct iovec);
}

bool vma_recv_zcopy_buffer_has_room(const struct vma_recv_zcopy_call *lend, size_t n)
{
	return lend->piece.iov_len >= lend->used &&
	       lend->piece.iov_len - lend->used >= lent_packet_description_bytes(n);
}

bool vma_recv_zcopy_buffer_is_writable(const struct vma_recv_zcopy_call *lend)
{
	static const char zeros[sizeof(struct vma_packet_t) + sizeof(struct iovec)];
	char *buf = lend->piece.iov_base;

	return vma_memcpy_or_efault(buf, zeros, sizeof(struct vma_packets_t)) == 0 &&
	       vma_memcpy_or_efault(buf + lend->used, zeros, sizeof(zeros)) == 0;
}

static int lent_packet_copy_fragment_iovec(const struct vma_bufarena *arena, const struct vma_fragment *fragment,
                                           char *to)
{
	const struct iovec iov = {.iov_base = vma_buf_data(arena, fragment->buf) + fragment->off,
	                          .iov_len = fragment->len};

	return vma_memcpy_or_efault(to, &iov, sizeof(iov));
}

int vma_recv_zcopy_add_packet(struct vma_recv_zcopy_call *lend, const struct vma_bufarena *arena, uint64_t id,
                              const struct vma_fragment *fragments, size_t n)
{
	char *buf = lend->piece.iov_base, *to = buf + lend->used;
	const struct vma_packet_t packet = {.packet_id = (void *)(uintptr_t)id, .sz_iov = n};
	const size_t packets = lend->packets + 1;

	if (vma_memcpy_or_efault(to, &packet, sizeof(packet)) != 0)
		return -EFAULT;
	for (size_t i = 0; i < n; i++) {
		if (lent_packet_copy_fragment_iovec(arena, &fragments[i], to + lent_packet_description_bytes(i)) != 0)
			return -EFAULT;
	}
	if (vma_memcpy_or_efault(buf + offsetof(struct vma_packets_t, n_packet_num), &packets, sizeof(packets)) != 0)
		return -EFAULT;
	lend->used += lent_packet_description_bytes(n);
	lend->packets = packets;
	return 0;
}

static ssize_t recvmsg_nonblocking_by_syscall(int fd, struct msghdr *msg, int flags)
{
	const ssize_t rc = syscall(SYS_recvmsg, fd, msg, flags | MSG_DONTWAIT);

	return rc < 0 ? -errno : rc;
}

static ssize_t recv_from_os_refusing_forced_zcopy(int fd, struct msghdr *msg, int flags,
                                                  ssize_t (*receive)(int fd, struct msghdr *msg, int flags))
{
	struct msghdr look = {0};
	ssize_t rc;

	flags &= ~(VMA_LEND_FLAG | MSG_VMA_ZCOPY_FORCE);
	if (!vma_recv_zcopy_call_of_msghdr(msg)->forced || flags & MSG_ERRQUEUE)
		return receive(fd, msg, flags);
	rc = receive(fd, &look, flags | MSG_PEEK);
	return rc < 0 ? rc : -EIO;
}

ssize_t vma_zcopy_call_recv_from_os_nonblocking(int fd, struct msghdr *msg, int flags)
{
	return recv_from_os_refusing_forced_zcopy(fd, msg, flags, recvmsg_nonblocking_by_syscall);
}

ssize_t vma_zcopy_call_recv_from_os_blocking(int fd, struct msghdr *msg, int flags)
{
	return recv_from_os_refusing_forced_zcopy(fd, msg, flags, vma_inet_os_recv);
}
