/*
 * icmp_housekeeping - ICMP errors about connections, which the kernel cannot deliver: it has no socket that is
 * connected so.
 *
 * A raw socket that lets only errors pass (RFC 792: unreachable, time exceeded, parameter problem) gives this process a
 * copy of each. The stacks take those that quote a packet of theirs. Without CAP_NET_RAW there is none: timeouts come
 * instead. There is one per process, opened with its first stack.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock_os.h>
#include <vma/tcp.h>

#include "internal.h"

#ifndef ICMP_FILTER /* <linux/icmp.h> does not go together with <net/if.h> */
#define ICMP_FILTER 1
#endif
#define AT_ONCE 32 /* then others have their turn: the descriptor stays ready */

static _Atomic int icmp_fd = -1;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

static int open_icmp_raw_socket(void)
{
	const uint32_t refused = ~(1U << ICMP_DEST_UNREACH | 1U << ICMP_TIME_EXCEEDED | 1U << ICMP_PARAMETERPROB);
	const int on = 1;
	int fd = (int)syscall(SYS_socket, AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_ICMP);

	if (fd < 0)
		return -errno;
	if (vma_os.setsockopt(fd, SOL_RAW, ICMP_FILTER, &refused, sizeof(refused)) != 0 ||
	    vma_os.setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof(on)) != 0) {
		syscall(SYS_close, fd);
		return -EIO;
	}
	return vma_fd_move_high_and_guard(fd);
}

void icmp_open_and_watch_raw_socket_once(void)
{
	int fd;

	pthread_mutex_lock(&open_lock);
	if (atomic_load(&icmp_fd) == -1) {
		fd = open_icmp_raw_socket();
		if (fd >= 0 && internal_epoll_add_fd(fd, EPOLLIN, INTERNAL_NET, INTERNAL_NET_ICMP) < 0) {
			vma_fd_unguard_close(fd);
			fd = -ENODEV;
		}
		if (fd < 0)
			vma_log_debug("tcp: ICMP errors are not heard: %s", strerrordesc_np(-fd));
		atomic_store(&icmp_fd, fd >= 0 ? fd : -2);
	}
	pthread_mutex_unlock(&open_lock);
}

/* Of the interface that it came by, which as a rule is the one that the quoted packet left by. */
static uint16_t vlan_of_receiving_interface(struct vma_engine *engine, struct msghdr *msg)
{
	struct vma_net_link link;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
		struct in_pktinfo info;

		if (c->cmsg_level != IPPROTO_IP || c->cmsg_type != IP_PKTINFO)
			continue;
		memcpy(&info, CMSG_DATA(c), sizeof(info));
		if (vma_net_get_link(engine->net, (uint32_t)info.ipi_ifindex, &link) == 0)
			return link.vlan;
	}
	return 0;
}

struct message {
	const uint8_t *icmp;
	size_t len;
	uint16_t vlan;
};

static void icmp_deliver_to_stack(struct vma_ring_ctx *ring_ctx, void *arg)
{
	struct vma_tcp *tcp = atomic_load_explicit(&ring_ctx->tcp, memory_order_acquire);
	const struct message *m = arg;

	if (tcp != NULL)
		vma_tcp_icmp_packet(tcp, m->vlan, m->icmp, m->len);
}

/* The kernel has checked the sum, and the IP header is whole. */
void icmp_receive_errors_for_tcp_stacks(struct vma_engine *engine)
{
	uint8_t bytes[576];
	_Alignas(struct cmsghdr) char control[64];
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};

	for (int i = 0; i < AT_ONCE; i++) {
		struct msghdr msg = {
		        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
		long n = syscall(SYS_recvmsg, atomic_load(&icmp_fd), &msg, MSG_DONTWAIT);
		size_t header = (size_t)(bytes[0] & 15) * 4;
		struct message m;

		if (n < 0)
			return;
		if ((size_t)n <= header)
			continue;
		m = (struct message){.icmp = bytes + header,
		                     .len = (size_t)n - header,
		                     .vlan = vlan_of_receiving_interface(engine, &msg)};
		ring_ctxs_each(icmp_deliver_to_stack, &m);
	}
}

void icmp_housekeeping_close_in_fork_child(void)
{
	int fd = atomic_exchange(&icmp_fd, -1);

	pthread_mutex_init(&open_lock, NULL);
	if (fd >= 0)
		vma_fd_unguard_close(fd);
}
