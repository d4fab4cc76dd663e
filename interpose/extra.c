/*
 * extra - the table of functions that vma_get_api() answers with: each enters, asks the component `extra`, leaves, and
 * sets errno.
 */
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

#include <vma/extra.h>
#include <vma/vma_api.h>

#include "call.h"
#include "extra.h"
#include "message.h"

/* Inside, whatever stands under the number: NULL where nothing of ours does, or the library's own. */
static void extra_enter(struct call *call, int fd)
{
	process_check_for_raw_clone_child();
	call->saved_errno = errno;
	call->self = vma_enter();
	call->file = vma_fd_lookup(fd);
	if (call->file != NULL && call->file->kind == VMA_FILE_INTERNAL)
		call->file = NULL;
	vma_inet_flush_sends(call->self);
}

static int extra_register_recv_callback(int s, vma_recv_callback_t callback, void *context)
{
	struct call call;

	extra_enter(&call, s);
	return (int)call_end(&call, vma_extra_register_recv_callback(call.file, callback, context));
}

/* False: EFAULT. */
static bool copy_application_memory(void *to, const void *from, size_t size)
{
	struct vma_thread *self = vma_enter();
	const bool copied = vma_memcpy_or_efault(to, from, size) == 0;

	vma_leave(self);
	if (!copied)
		errno = EFAULT;
	return copied;
}

/* The kernel's recvmsg: of such a socket nothing is given without a copy. */
static int recvfrom_kernel(int s, void *buf, size_t len, int *flags, struct sockaddr *from, socklen_t *fromlen)
{
	struct iovec piece = {.iov_base = buf, .iov_len = len};
	struct msghdr msg = {.msg_iov = &piece, .msg_iovlen = 1};
	const bool names = from != NULL && fromlen != NULL;
	bool forced, faults;
	socklen_t room = 0;
	int wanted;
	ssize_t rc;

	if (!copy_application_memory(&wanted, flags, sizeof(wanted)) ||
	    (names && !copy_application_memory(&room, fromlen, sizeof(room))))
		return -1;
	forced = (wanted & MSG_VMA_ZCOPY_FORCE) != 0;
	if (forced)
		msg = (struct msghdr){0};
	if (names) {
		msg.msg_name = from;
		msg.msg_namelen = room;
	}
	rc = vma_os.recvmsg(s, &msg, (wanted & ~(MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE)) | (forced ? MSG_PEEK : 0));
	if (rc < 0)
		return -1;
	if (forced) {
		errno = EIO;
		return -1;
	}
	faults = !copy_application_memory(flags, &msg.msg_flags, sizeof(msg.msg_flags)) ||
	         (names && !copy_application_memory(fromlen, &msg.msg_namelen, sizeof(msg.msg_namelen)));
	return faults ? -1 : (int)rc;
}

static int extra_recvfrom_zcopy(int s, void *buf, size_t len, int *flags, struct sockaddr *from, socklen_t *fromlen)
{
	struct call call;
	ssize_t rc;

	pthread_testcancel();
	extra_enter(&call, s);
	rc = vma_extra_recvfrom_zcopy(call.file, s, buf, len, flags, from, fromlen);
	if (rc == -EBADF) {
		call_leave(&call);
		return recvfrom_kernel(s, buf, len, flags, from, fromlen);
	}
	return (int)call_end(&call, rc);
}

static int extra_free_packets(int s, struct vma_packet_t *packets, size_t count)
{
	struct call call;

	extra_enter(&call, s);
	return (int)call_end(&call, vma_extra_free_packets(call.file, s, packets, count));
}

static int extra_add_conf_rule(const char *config_line)
{
	struct call call;

	process_start_library_once();
	extra_enter(&call, -1);
	return (int)call_end(&call, vma_extra_add_offload_rule_from_text(config_line));
}

static int extra_thread_offload(int offload, pthread_t tid)
{
	struct call call;

	process_start_library_once();
	extra_enter(&call, -1);
	return (int)call_end(&call, vma_extra_set_thread_offload(offload, tid));
}

static int extra_dump_fd_stats(int fd, int log_level)
{
	struct call call;

	extra_enter(&call, fd);
	return (int)call_end(&call, vma_extra_dump_socket_state_to_log(call.file, fd, log_level));
}

static int extra_get_socket_rings_num(int fd)
{
	struct call call;

	extra_enter(&call, fd);
	return (int)call_end(&call, vma_extra_get_rings_num(call.file));
}

static int extra_get_socket_rings_fds(int fd, int *ring_fds, int n)
{
	struct call call;

	extra_enter(&call, fd);
	return (int)call_end(&call, vma_extra_get_ring_fds(call.file, ring_fds, n));
}

static int extra_get_socket_tx_ring_fd(int fd, struct sockaddr *to, socklen_t len)
{
	struct call call;

	extra_enter(&call, fd);
	return (int)call_end(&call, vma_extra_get_tx_ring_fd(call.file, to, len));
}

static int extra_add_ring_profile(struct vma_ring_type_attr *profile, vma_ring_profile_key *key)
{
	struct call call;

	extra_enter(&call, -1);
	return (int)call_end(&call, vma_extra_add_ring_profile(profile, key));
}

static int extra_modify_ring(struct vma_modify_ring_attr *data)
{
	struct call call;

	extra_enter(&call, -1);
	return (int)call_end(&call, vma_extra_modify_ring(data));
}

static int extra_get_socket_network_header(int fd, void *ptr, uint16_t *len)
{
	struct call call;

	extra_enter(&call, fd);
	return (int)call_end(&call, vma_extra_get_network_header(call.file, ptr, len));
}

/* ---- SocketXtreme: without VMA_SOCKETXTREME=1 missing in the mask, too ---- */

static int extra_socketxtreme_poll(int fd, struct vma_completion_t *completions, unsigned int n, int flags)
{
	struct call call;

	extra_enter(&call, fd);
	return (int)call_end(&call, vma_extra_xtreme_poll(call.file, completions, n, flags));
}

static int extra_socketxtreme_free_vma_packets(struct vma_packet_desc_t *packets, int n)
{
	struct call call;

	extra_enter(&call, -1);
	return (int)call_end(&call, vma_extra_xtreme_free_packets(packets, n));
}

static int extra_socketxtreme_ref_vma_buff(struct vma_buff_t *buff)
{
	struct call call;

	extra_enter(&call, -1);
	return (int)call_end(&call, vma_extra_xtreme_ref(buff));
}

static int extra_socketxtreme_free_vma_buff(struct vma_buff_t *buff)
{
	struct call call;

	extra_enter(&call, -1);
	return (int)call_end(&call, vma_extra_xtreme_free_buff(buff));
}

/* ---- what is missing in the mask ---- */

static int fail_with_eopnotsupp(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

static int extra_get_ring_direct_descriptors(int fd, struct vma_mlx_hw_device_data *data)
{
	(void)fd, (void)data;
	return fail_with_eopnotsupp();
}

static int extra_register_memory_on_ring(int fd, void *addr, size_t length, uint32_t *key)
{
	(void)fd, (void)addr, (void)length, (void)key;
	return fail_with_eopnotsupp();
}

static int extra_deregister_memory_on_ring(int fd, void *addr, size_t length)
{
	(void)fd, (void)addr, (void)length;
	return fail_with_eopnotsupp();
}

static int extra_ioctl(void *cmsg_hdr, size_t cmsg_len)
{
	(void)cmsg_hdr, (void)cmsg_len;
	return fail_with_eopnotsupp();
}

/* ---- the table ---- */

static struct vma_api_t api = {
        .register_recv_callback = extra_register_recv_callback,
        .recvfrom_zcopy = extra_recvfrom_zcopy,
        .free_packets = extra_free_packets,
        .add_conf_rule = extra_add_conf_rule,
        .thread_offload = extra_thread_offload,
        .socketxtreme_poll = extra_socketxtreme_poll,
        .get_socket_rings_num = extra_get_socket_rings_num,
        .get_socket_rings_fds = extra_get_socket_rings_fds,
        .get_socket_tx_ring_fd = extra_get_socket_tx_ring_fd,
        .socketxtreme_free_vma_packets = extra_socketxtreme_free_vma_packets,
        .socketxtreme_ref_vma_buff = extra_socketxtreme_ref_vma_buff,
        .socketxtreme_free_vma_buff = extra_socketxtreme_free_vma_buff,
        .dump_fd_stats = extra_dump_fd_stats,
        .vma_add_ring_profile = extra_add_ring_profile,
        .get_socket_network_header = extra_get_socket_network_header,
        .get_ring_direct_descriptors = extra_get_ring_direct_descriptors,
        .register_memory_on_ring = extra_register_memory_on_ring,
        .deregister_memory_on_ring = extra_deregister_memory_on_ring,
        .vma_modify_ring = extra_modify_ring,
        .ioctl = extra_ioctl,
};

/* <vma/vma_api.h>: functions that libvma.so exports as well. */
static const struct vma_own_api own_api = {
        .version = VMA_OWN_API_VERSION,
        .size = sizeof(own_api),
        .get_version = vma_get_version,
        .get_socket_state = vma_get_socket_state,
};

static void extra_api_mask_init(void)
{
	api.vma_extra_supported_mask = vma_extra_mask();
}

/* The engine may not have started, and asking starts nothing: so the kernel copies, and is told no bad address by a
 * signal. */
static bool copy_memory_by_kernel(void *to, const void *from, size_t size)
{
	const struct iovec local = {.iov_base = to, .iov_len = size};
	const struct iovec remote = {.iov_base = (void *)(uintptr_t)from, .iov_len = size};
	const int saved_errno = errno;
	const long copied = syscall(SYS_process_vm_readv, getpid(), &local, 1, &remote, 1, 0);
	const bool denied = copied < 0 && errno != EFAULT; /* by a filter of system calls */

	errno = saved_errno;
	if (denied)
		memcpy(to, from, size);
	return denied || copied == (long)size;
}

int extra_get_api(int level, int name, void *value, const socklen_t *len)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const void *table = name == SO_VMA_GET_API ? (const void *)&api : &own_api;
	socklen_t room;

	if (level != SOL_SOCKET || (name != SO_VMA_GET_API && name != SO_VMA_GET_OWN_API))
		return -ENOENT;
	if (!copy_memory_by_kernel(&room, len, sizeof(room)))
		return -EFAULT;
	if (room < sizeof(table))
		return -ENOENT;
	if (name == SO_VMA_GET_API)
		pthread_once(&once, extra_api_mask_init);
	return copy_memory_by_kernel(value, &table, sizeof(table)) ? 0 : -EFAULT;
}
