/* getopt.c - getsockopt: the shadow's answer, but for values that only the connection knows. */
#include <asm/socket.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <string.h>

#include <vma/inet_ring_option.h>

#include "stream_priv.h"
#include "xtreme.h"

/* As the kernel: the length that there is, cut to what is asked for. */
static int getsockopt_copy_out(const void *from, socklen_t size, void *value, socklen_t *len)
{
	socklen_t room;

	if (vma_memcpy_or_efault(&room, len, sizeof(room)) != 0)
		return -EFAULT;
	if ((int)room < 0)
		return -EINVAL;
	if (room > size)
		room = size;
	if (room > 0 && vma_memcpy_or_efault(value, from, room) != 0)
		return -EFAULT;
	return vma_memcpy_or_efault(len, &room, sizeof(room));
}

static int getsockopt_copy_out_int(int number, void *value, socklen_t *len)
{
	return getsockopt_copy_out(&number, sizeof(number), value, len);
}

static int getsockopt_of_shadow(int fd, int level, int name, void *value, socklen_t *len)
{
	return vma_os.getsockopt(fd, level, name, value, len) < 0 ? -errno : 0;
}

/* Taken by telling, as the kernel's sock_error; of a socket that was never connected the shadow may have one. */
static int getsockopt_so_error(struct stream_sock *sock, int fd, void *value, socklen_t *len)
{
	int error = atomic_exchange(&sock->so_error, 0);

	if (error == 0 && stream_tcp_conn(sock) == NULL && stream_sock_phase(sock) != STREAM_FAILED)
		return getsockopt_of_shadow(fd, SOL_SOCKET, SO_ERROR, value, len);
	return getsockopt_copy_out_int(error, value, len);
}

/* The larger of what was set, or is there by default, and what the connection has grown to. */
static int getsockopt_buffer_size(const struct vma_tcp_conn *conn, int fd, int name, void *value, socklen_t *len)
{
	int shadow = 0;
	socklen_t size = sizeof(shadow);
	int64_t now = vma_tcp_get_option(conn, name == SO_SNDBUF ? VMA_TCP_OPT_SNDBUF : VMA_TCP_OPT_RCVBUF);

	if (vma_os.getsockopt(fd, SOL_SOCKET, name, &shadow, &size) != 0)
		return -errno;
	return getsockopt_copy_out_int(now > shadow ? (int)now : shadow, value, len);
}

/* TCP_INFO, with room for what kernels to come will say. */
union tcp_info_padded {
	struct vma_tcp_info ours;
	uint8_t bytes[512];
};

/* What of a listener's queue the shadow does not know. */
static int getsockopt_listener_tcp_info(struct stream_sock *sock, int fd, void *value, socklen_t *len)
{
	union tcp_info_padded info;
	socklen_t size = sizeof(info);

	if (vma_os.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
		return -errno;
	info.ours.kernel.tcpi_unacked += atomic_load_explicit(&sock->n_queued, memory_order_relaxed);
	return getsockopt_copy_out(&info, size, value, len);
}

/* As long as this kernel's is: a program learns from the length which members there are. */
static int getsockopt_tcp_info(struct vma_tcp_conn *conn, int fd, void *value, socklen_t *len)
{
	union tcp_info_padded info;
	socklen_t size = sizeof(info);

	if (vma_os.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
		return -errno;
	memset(&info, 0, sizeof(info));
	vma_tcp_info(conn, &info.ours);
	return getsockopt_copy_out(&info, size, value, len);
}

static int getsockopt_cc_info(struct vma_tcp_conn *conn, void *value, socklen_t *len)
{
	union tcp_cc_info info;

	return getsockopt_copy_out(&info, (socklen_t)vma_tcp_cc_info(conn, &info), value, len);
}

/* One that was not set is what the kernel begins with: half of the buffer, but for a segment. */
static int getsockopt_window_clamp(struct vma_tcp_conn *conn, int fd, void *value, socklen_t *len)
{
	struct vma_tcp_info info;
	int clamp = vma_tcp_get_option(conn, VMA_TCP_OPT_WINDOW_CLAMP), buffer = 0;
	socklen_t size = sizeof(buffer);

	if (clamp == 0 && vma_os.getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, &size) == 0) {
		vma_tcp_info(conn, &info);
		clamp = buffer / 2 - (int)info.kernel.tcpi_advmss;
		clamp = clamp > 0 ? clamp : buffer / 2;
	}
	return getsockopt_copy_out_int(clamp, value, len);
}

/* The kernel's words for memory: what is queued, and the limits; what it has allocated itself nobody else knows. */
static int getsockopt_meminfo(const struct vma_tcp_conn *conn, int fd, void *value, socklen_t *len)
{
	uint32_t words[SK_MEMINFO_VARS] = {0};
	socklen_t size = sizeof(words);
	int buffer;

	if (vma_os.getsockopt(fd, SOL_SOCKET, SO_MEMINFO, words, &size) != 0)
		return -errno;
	words[SK_MEMINFO_RMEM_ALLOC] = (uint32_t)vma_tcp_readable_bytes(conn);
	words[SK_MEMINFO_WMEM_QUEUED] = (uint32_t)vma_tcp_tx_unacked_bytes(conn);
	size = sizeof(buffer);
	if (getsockopt_buffer_size(conn, fd, SO_RCVBUF, &buffer, &size) == 0)
		words[SK_MEMINFO_RCVBUF] = (uint32_t)buffer;
	size = sizeof(buffer);
	if (getsockopt_buffer_size(conn, fd, SO_SNDBUF, &buffer, &size) == 0)
		words[SK_MEMINFO_SNDBUF] = (uint32_t)buffer;
	return getsockopt_copy_out(words, sizeof(words), value, len);
}

static int getsockopt_congestion(const struct stream_sock *sock, int fd, void *value, socklen_t *len)
{
	const char *kernel = stream_congestion_name(sock);
	char name[16] = "";

	if (kernel == NULL)
		return getsockopt_of_shadow(fd, IPPROTO_TCP, TCP_CONGESTION, value, len);
	memcpy(name, kernel, strlen(kernel));
	return getsockopt_copy_out(name, sizeof(name), value, len);
}

/* Unlike getpeername, also while it connects, and when the connection is over; more room than needed is refused. */
static int getsockopt_peername(const struct stream_sock *sock, void *value, socklen_t *len)
{
	union vma_name peer;
	const socklen_t size = vma_name_fill_from_sockaddr_in(sock->file.family, &sock->peer, &peer);
	socklen_t room;

	if (vma_memcpy_or_efault(&room, len, sizeof(room)) != 0)
		return -EFAULT;
	if (room > size)
		return -EINVAL;
	return getsockopt_copy_out(&peer, size, value, len);
}

static int getsockopt_ip6_path_mtu(uint32_t mtu, void *value, socklen_t *len)
{
	const struct ip6_mtuinfo info = {.ip6m_mtu = mtu};
	socklen_t room;

	if (vma_memcpy_or_efault(&room, len, sizeof(room)) != 0)
		return -EFAULT;
	return room < sizeof(info) ? -EINVAL : getsockopt_copy_out(&info, sizeof(info), value, len);
}

static bool is_mtu_option(const struct stream_sock *sock, int level, int name)
{
	return stream_sock_phase(sock) != STREAM_FAILED &&
	       ((level == IPPROTO_IP && name == IP_MTU) ||
	        (level == IPPROTO_IPV6 && (name == IPV6_MTU || name == IPV6_PATHMTU) && sock->file.family == AF_INET6));
}

static int getsockopt_of_connection(struct stream_sock *sock, struct vma_tcp_conn *conn, int fd, int level, int name,
                                    void *value, socklen_t *len)
{
	struct vma_tcp_info info;

	if (level == IPPROTO_TCP && name == TCP_INFO)
		return getsockopt_tcp_info(conn, fd, value, len);
	if (level == IPPROTO_TCP && name == TCP_CC_INFO)
		return getsockopt_cc_info(conn, value, len);
	if (level == IPPROTO_TCP && name == TCP_MAXSEG) {
		vma_tcp_info(conn, &info);
		return getsockopt_copy_out_int((int)info.kernel.tcpi_snd_mss, value, len);
	}
	if (is_mtu_option(sock, level, name)) {
		vma_tcp_info(conn, &info); /* routers on the way may have asked for less than the route's */
		if (info.kernel.tcpi_pmtu != 0 && level == IPPROTO_IPV6 && name == IPV6_PATHMTU)
			return getsockopt_ip6_path_mtu(info.kernel.tcpi_pmtu, value, len);
		if (info.kernel.tcpi_pmtu != 0)
			return getsockopt_copy_out_int((int)info.kernel.tcpi_pmtu, value, len);
	}
	if (level == IPPROTO_TCP && name == TCP_WINDOW_CLAMP && stream_sock_phase(sock) == STREAM_CONNECTED)
		return getsockopt_window_clamp(conn, fd, value, len);
	if (level == SOL_SOCKET && name == SO_PEERNAME)
		return getsockopt_peername(sock, value, len);
	if (level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_RCVBUF))
		return getsockopt_buffer_size(conn, fd, name, value, len);
	if (level == SOL_SOCKET && name == SO_MEMINFO)
		return getsockopt_meminfo(conn, fd, value, len);
	return getsockopt_of_shadow(fd, level, name, value, len);
}

int stream_getsockopt(struct vma_file *file, int fd, int level, int name, void *value, socklen_t *len)
{
	struct stream_sock *sock = stream_sock(file);
	struct vma_tcp_conn *conn;
	int rc, number;

	if (level == SOL_SOCKET && name == SO_ERROR) {
		vma_ring_ctxs_catch_up(stream_ring_bits(file));
		return getsockopt_so_error(sock, fd, value, len);
	}
	if (vma_inet_is_ring_option(level, name))
		return vma_inet_get_ring_option(file, name, value, len);
	if (vma_xtreme_is_option(level, name) && stream_xtreme_is_on(sock) && !file->os_only)
		return stream_xtreme_getsockopt(sock, name, value, len);
	pthread_mutex_lock(&file->lock);
	if (stream_get_option_without_shadow(sock, level, name, &number)) {
		pthread_mutex_unlock(&file->lock);
		return getsockopt_copy_out_int(number, value, len);
	}
	stream_options_apply_to_shadow(sock, fd);
	conn = stream_tcp_conn(sock);
	if (level == SOL_SOCKET && name == SO_REUSEADDR && sock->reserved.sin_family == AF_INET)
		rc = getsockopt_copy_out_int(sock->reuse_addr, value, len); /* the shadow's is ours: port.c */
	else if (level == IPPROTO_TCP && name == TCP_CONGESTION)
		rc = getsockopt_congestion(sock, fd, value, len);
	else if (conn != NULL)
		rc = getsockopt_of_connection(sock, conn, fd, level, name, value, len);
	else if (level == IPPROTO_TCP && name == TCP_INFO && stream_sock_phase(sock) == STREAM_LISTENING)
		rc = getsockopt_listener_tcp_info(sock, fd, value, len);
	else
		rc = getsockopt_of_shadow(fd, level, name, value, len);
	pthread_mutex_unlock(&file->lock);
	return rc;
}
