/*
 * repair.c - a socket of the kernel is given all that a connection knows, and is connected from then on.
 *
 *   TCP_REPAIR on ── sequence numbers, addresses, options, both queues, windows      undone if one fails
 *   TCP_REPAIR off ── it lives: answers come from the kernel's stack
 *                     what had not been sent yet
 *
 * CAP_NET_ADMIN is needed only for the first and the last of these steps, and for buffers larger than the host allows.
 */
#include <errno.h>
#include <limits.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>

#include <vma/nic_repair.h>

#include "os.h"

#define CHUNK 32768   /* of a queue's bytes in one call */
#define OVERHEAD 4096 /* what the kernel counts at most for a chunk besides its bytes */

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

/* The kernel's struct tcp_repair_opt. */
struct saved_socket_option {
	uint32_t code, value;
};

int (*vma_repair_setsockopt)(int fd, int level, int name, const void *value, socklen_t len) = os_setsockopt;

static int repair_getsockopt_int(int fd, int level, int name, int *value)
{
	socklen_t len = sizeof(*value);

	return os_getsockopt(fd, level, name, value, &len) != 0 ? -errno : 0;
}

static int repair_setsockopt_int(int fd, int level, int name, int value)
{
	return vma_repair_setsockopt(fd, level, name, &value, sizeof(value)) != 0 ? -errno : 0;
}

/* ---- the socket's options, for the time of the repair ---- */

struct saved_options {
	int reuse, sndbuf, rcvbuf, locks, nodelay;
	bool has_locks;
};

static void save_options(int fd, struct saved_options *saved_options)
{
	repair_getsockopt_int(fd, SOL_SOCKET, SO_SNDBUF, &saved_options->sndbuf);
	repair_getsockopt_int(fd, SOL_SOCKET, SO_RCVBUF, &saved_options->rcvbuf);
	repair_getsockopt_int(fd, IPPROTO_TCP, TCP_NODELAY, &saved_options->nodelay);
	saved_options->has_locks = repair_getsockopt_int(fd, SOL_SOCKET, SO_BUF_LOCK, &saved_options->locks) == 0;
}

/* Buffers are told doubled. Those that grew with the connection here grow in the kernel by themselves. */
static void restore_options(int fd, const struct saved_options *saved_options)
{
	repair_setsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR,
	                      saved_options->reuse); /* the end of a repair takes it away */
	repair_setsockopt_int(fd, SOL_SOCKET, SO_SNDBUFFORCE, saved_options->sndbuf / 2);
	repair_setsockopt_int(fd, SOL_SOCKET, SO_RCVBUFFORCE, saved_options->rcvbuf / 2);
	repair_setsockopt_int(fd, IPPROTO_TCP, TCP_NODELAY, saved_options->nodelay);
	if (saved_options->has_locks)
		repair_setsockopt_int(fd, SOL_SOCKET, SO_BUF_LOCK, saved_options->locks);
}

static void repair_grow_buffer(int fd, int now, int name, uint64_t bytes)
{
	uint64_t wanted = bytes + (bytes / CHUNK + 2) * OVERHEAD;

	if (bytes != 0 && (uint64_t)now < 2 * wanted)
		repair_setsockopt_int(fd, SOL_SOCKET, name, wanted < INT_MAX / 4 ? (int)wanted : INT_MAX / 4);
}

/* ---- what the kernel is told ---- */

/* As the socket's family has it: IPv4, or IPv4 behind ::ffff:. */
static socklen_t repair_sockaddr_of(int domain, const uint8_t *ip, uint16_t port_be, struct sockaddr_storage *out)
{
	struct sockaddr_in *in = (struct sockaddr_in *)out;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (domain != AF_INET6) {
		*in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port_be};
		memcpy(&in->sin_addr, ip, 4);
		return sizeof(*in);
	}
	*in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = port_be};
	memset(&in6->sin6_addr.s6_addr[10], 0xff, 2);
	memcpy(&in6->sin6_addr.s6_addr[12], ip, 4);
	return sizeof(*in6);
}

static int repair_set_queue_seq(int fd, int queue, uint32_t seq)
{
	int rc = repair_setsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue);

	return rc < 0 ? rc : repair_setsockopt_int(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, (int)seq);
}

/* The address has gone with its interface, and may come back with another one. */
static int bind_repaired(int fd, const struct vma_repair *what, const struct sockaddr *local, socklen_t len)
{
	int free_bind = 0, rc = os_bind(fd, local, len) != 0 ? -errno : 0;

	if (rc != -EADDRNOTAVAIL || !what->interface_gone)
		return rc;
	repair_getsockopt_int(fd, IPPROTO_IP, IP_FREEBIND, &free_bind);
	repair_setsockopt_int(fd, IPPROTO_IP, IP_FREEBIND, 1);
	rc = os_bind(fd, local, len) != 0 ? -errno : 0;
	repair_setsockopt_int(fd, IPPROTO_IP, IP_FREEBIND, free_bind);
	return rc;
}

/* To take a binding to an interface back needs CAP_NET_RAW, to make it nothing. */
static bool may_unbind_from_device(void)
{
	const int fd = os_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	const bool may = fd >= 0 && repair_setsockopt_int(fd, SOL_SOCKET, SO_BINDTOIFINDEX, VMA_NIC_LOOPBACK) == 0 &&
	                 repair_setsockopt_int(fd, SOL_SOCKET, SO_BINDTOIFINDEX, 0) == 0;

	if (fd >= 0)
		os_close(fd);
	return may;
}

/*
 * The peer's route has gone with the interface. A socket that is bound to the loopback interface needs no route, and
 * one that is transparent no address. Both are taken back, and with them what the kernel has noted of the way: it looks
 * for one when it sends, as for each connection whose interface has gone.
 */
static int repair_connect_without_route(int fd, const struct sockaddr *peer, socklen_t len)
{
	int bound = 0, transparent = 0, rc;

	if (!may_unbind_from_device())
		return -EPERM;
	repair_getsockopt_int(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &bound);
	repair_getsockopt_int(fd, IPPROTO_IP, IP_TRANSPARENT, &transparent);
	rc = repair_setsockopt_int(fd, IPPROTO_IP, IP_TRANSPARENT, 1);
	if (rc == 0)
		rc = repair_setsockopt_int(fd, SOL_SOCKET, SO_BINDTOIFINDEX, VMA_NIC_LOOPBACK);
	if (rc == 0 && os_connect(fd, peer, len) != 0)
		rc = -errno;
	repair_setsockopt_int(fd, SOL_SOCKET, SO_BINDTOIFINDEX, bound);
	repair_setsockopt_int(fd, IPPROTO_IP, IP_TRANSPARENT, transparent);
	return rc;
}

/* The kernel chooses an address where only a port was bound. That of another interface is another connection's. */
static int repair_check_kernel_chose_our_address(int fd, const struct vma_repair *what)
{
	struct sockaddr_storage name = {0};
	const uint8_t *ip = (const uint8_t *)&((struct sockaddr_in *)&name)->sin_addr;
	socklen_t len = sizeof(name);

	if (syscall(SYS_getsockname, fd, &name, &len) != 0)
		return -errno;
	if (name.ss_family == AF_INET6)
		ip = &((struct sockaddr_in6 *)&name)->sin6_addr.s6_addr[12];
	return memcmp(ip, what->local, sizeof(what->local)) == 0 ? 0 : -EADDRNOTAVAIL;
}

static int connect_repaired(int fd, const struct vma_repair *what)
{
	struct sockaddr_storage name;
	struct sockaddr_in6 bound = {0}; /* the port lies where that of sockaddr_in does */
	socklen_t len = sizeof(bound);
	int domain = AF_INET;
	int rc = repair_set_queue_seq(fd, TCP_SEND_QUEUE, what->snd_una);

	if (rc == 0)
		rc = repair_set_queue_seq(fd, TCP_RECV_QUEUE, what->rcv_nxt - what->unread);
	if (rc == 0)
		rc = repair_getsockopt_int(fd, SOL_SOCKET, SO_DOMAIN, &domain);
	if (rc < 0)
		return rc;
	if (syscall(SYS_getsockname, fd, &bound, &len) != 0)
		return -errno;
	len = repair_sockaddr_of(domain, what->local, what->local_port_be, &name);
	if (bound.sin6_port == 0)
		rc = bind_repaired(fd, what, (struct sockaddr *)&name, len);
	if (rc < 0)
		return rc;
	if (bound.sin6_port != 0 && bound.sin6_port != what->local_port_be)
		return -EADDRINUSE;
	len = repair_sockaddr_of(domain, what->peer, what->peer_port_be, &name);
	rc = os_connect(fd, (struct sockaddr *)&name, len) != 0 ? -errno : 0;
	if (rc < 0 && what->interface_gone && repair_connect_without_route(fd, (struct sockaddr *)&name, len) == 0)
		rc = 0;
	return rc == 0 ? repair_check_kernel_chose_our_address(fd, what) : rc;
}

/*
 * The kernel computes the size of its segments when it connects, from 536 bytes at that time, and not again when it is
 * told the peer's MSS. It does so when IP options are set: these are set to what they are.
 */
static void recompute_segment_size(int fd)
{
	uint8_t options[MAX_IPOPTLEN];
	socklen_t len = sizeof(options);

	if (os_getsockopt(fd, IPPROTO_IP, IP_OPTIONS, options, &len) == 0)
		vma_repair_setsockopt(fd, IPPROTO_IP, IP_OPTIONS, options, len);
}

static int repair_set_options(int fd, const struct vma_repair *what)
{
	struct saved_socket_option options[4];
	unsigned n = 0;

	options[n++] = (struct saved_socket_option){TCPOPT_MAXSEG, what->mss};
	if (what->has_scale)
		options[n++] =
		        (struct saved_socket_option){TCPOPT_WINDOW, what->snd_scale | (uint32_t)what->rcv_scale << 16};
	if (what->has_sack)
		options[n++] = (struct saved_socket_option){TCPOPT_SACK_PERMITTED, 0};
	if (what->has_ts)
		options[n++] = (struct saved_socket_option){TCPOPT_TIMESTAMP, 0};
	if (vma_repair_setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options, (socklen_t)(n * sizeof(options[0]))) !=
	    0)
		return -errno;
	recompute_segment_size(fd);
	/* Even: the lowest bit asks for stamps of microseconds. */
	return what->has_ts ? repair_setsockopt_int(fd, IPPROTO_TCP, TCP_TIMESTAMP, (int)((what->ts_now + 1) & ~1U))
	                    : 0;
}

static int repair_set_window(int fd, const struct vma_repair *what)
{
	const struct tcp_repair_window window = {.snd_wl1 = what->snd_wl1,
	                                         .snd_wnd = what->snd_wnd,
	                                         .max_window = what->snd_wnd_max,
	                                         .rcv_wnd = what->rcv_wnd + what->fin_received, /* for the FIN */
	                                         .rcv_wup = what->rcv_wup};

	return vma_repair_setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &window, sizeof(window)) != 0 ? -errno : 0;
}

/* ---- queues ---- */

static int repair_write_queue_bytes(int fd, const struct vma_repair_bytes *bytes, uint64_t from, uint64_t to)
{
	while (from < to) {
		struct iovec span;
		int rc = bytes->read(bytes, from, to - from < CHUNK ? (size_t)(to - from) : CHUNK, &span);
		ssize_t put;

		if (rc < 0)
			return rc;
		put = os_send(fd, span.iov_base, span.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (put <= 0)
			return put == 0 ? -EIO : -errno;
		from += (uint64_t)put;
	}
	return 0;
}

/* While it is repaired, what is put into the send queue counts as sent. */
static int repair_fill_both_queues(int fd, const struct vma_repair *what, const struct vma_repair_bytes *bytes)
{
	int rc = repair_setsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_RECV_QUEUE);

	if (rc == 0)
		rc = repair_write_queue_bytes(fd, bytes, 0, what->unread);
	if (rc == 0)
		rc = repair_setsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
	if (rc == 0)
		rc = repair_write_queue_bytes(fd, bytes, what->unread, (uint64_t)what->unread + what->sent);
	return rc;
}

/*
 * A new way: what was under way on the old one is lost. The kernel, which has not measured the new one, would wait
 * three seconds before it repeats what counts as sent. If all of it fits into the window that it begins with, it is
 * given as bytes that have not been sent, and leaves at once. It must leave whole: what the peer acknowledges beyond is
 * ignored.
 */
static void repair_lower_unacked_to_unsent(int fd, struct vma_repair *what)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	if (!what->rerouted || os_getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
	    (what->sent + info.tcpi_snd_mss - 1) / (info.tcpi_snd_mss != 0 ? info.tcpi_snd_mss : 1) >=
	            info.tcpi_snd_cwnd ||
	    what->sent > what->snd_wnd)
		return;
	what->sent = 0;
	repair_setsockopt_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

/* ---- all of it ---- */

/* Not connected any more, and without a word about it. It stays bound. */
static void repair_undo_connect_and_end(int fd)
{
	const struct sockaddr none = {.sa_family = AF_UNSPEC};

	os_connect(fd, &none, sizeof(none));
	repair_setsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
}

int vma_repair_restore_connection(int fd, const struct vma_repair *state, const struct vma_repair_bytes *bytes,
                                  int *incomplete)
{
	struct vma_repair changed = *state, *what = &changed;
	struct saved_options saved_options = {0};
	int rc;

	*incomplete = 0;
	repair_getsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR, &saved_options.reuse); /* a repair changes it */
	rc = repair_setsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON);
	if (rc < 0)
		return rc;
	save_options(fd, &saved_options);
	repair_grow_buffer(fd, saved_options.rcvbuf, SO_RCVBUFFORCE, what->unread);
	repair_grow_buffer(fd, saved_options.sndbuf, SO_SNDBUFFORCE, what->unacked);
	rc = connect_repaired(fd, what);
	if (rc == 0)
		rc = repair_set_options(fd, what);
	if (rc == 0)
		repair_lower_unacked_to_unsent(fd, what);
	if (rc == 0)
		rc = repair_fill_both_queues(fd, what, bytes);
	if (rc == 0)
		rc = repair_set_window(fd, what);
	if (rc < 0) {
		repair_undo_connect_and_end(fd);
	} else {
		/* The kernel has it: what is left to do cannot be undone, and may fail as a connection may. */
		*incomplete = repair_setsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
		if (*incomplete == 0)
			*incomplete = repair_write_queue_bytes(fd, bytes, (uint64_t)what->unread + what->sent,
			                                       (uint64_t)what->unread + what->unacked);
	}
	restore_options(fd, &saved_options);
	return rc;
}
