/* reinject - see nic_reinject.h. */
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/uio.h>

#include <vma/nic_reinject.h>
#include <vma/nic_repair.h>

#include "os.h"
#include "route_type.h"

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

#define PIECES_MAX 48 /* buffers of 2 KB: more than the longest packet has */
enum { ETH_BYTES = 14, TAG_BYTES = 4, IP_BYTES = 20 };

int vma_reinject_open_raw_socket(bool by_loopback)
{
	const int loopback = VMA_NIC_LOOPBACK;
	const int fd = os_socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);

	if (fd < 0)
		return -errno;
	if (by_loopback)
		os_setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &loopback, sizeof(loopback));
	return fd;
}

/* ---- addresses ---- */

#define ASK_AGAIN_NS 1000000000

int vma_reinject_open_netlink_socket(struct vma_reinject_addrs *addrs)
{
	memset(addrs, 0, sizeof(*addrs));
	addrs->fd = os_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	return addrs->fd < 0 ? -errno : 0;
}

static uint64_t coarse_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/*
 * As nic_route_type, of at most a second ago; what failed for another reason than that there is no route is asked
 * again. A peer that forges sources has the kernel asked for each packet.
 */
static int reinject_cached_route_type(struct vma_reinject_addrs *addrs, const uint8_t *address)
{
	const uint64_t now_ns = coarse_now_ns();
	struct vma_reinject_addr *at;
	uint32_t word;

	memcpy(&word, address, 4);
	at = &addrs->at[word * 0x9e3779b1u >> 26];
	_Static_assert(VMA_REINJECT_ADDRS == 1 << (32 - 26), "so many bits of the hash");
	if (at->until_ns <= now_ns || at->address != word) {
		const int type = nic_route_type(addrs->fd, address);

		*at = (struct vma_reinject_addr){
		        .address = word,
		        .type = type,
		        .until_ns = type >= 0 || type == -ENETUNREACH ? now_ns + ASK_AGAIN_NS : 0,
		};
	}
	return at->type;
}

/* The source of what comes from outside; a destination that is one host's. */
static bool reinject_addresses_are_martian(const uint8_t *ip)
{
	static const uint8_t none[4] = {0};

	return ip[12] == 127 || ip[12] >= 224 || ip[16] >= 224 || memcmp(ip + 12, none, 4) == 0 ||
	       memcmp(ip + 12, ip + 16, 4) == 0;
}

/* No route back to the source is no fault: that is for rp_filter, which looks at packets from outside only. */
static bool reinject_routes_are_martian(struct vma_reinject_addrs *addrs, const uint8_t *ip)
{
	const int source = reinject_cached_route_type(addrs, ip + 12);

	return (source >= 0 && source != RTN_UNICAST) || reinject_cached_route_type(addrs, ip + 16) != RTN_LOCAL;
}

/* ---- packets ---- */

/* The first piece has the header's first twenty bytes; `len` in all. */
static int reinject_send_unless_martian(int fd, struct vma_reinject_addrs *addrs, struct iovec *pieces, unsigned n,
                                        size_t len)
{
	const uint8_t *ip = pieces[0].iov_base;
	struct sockaddr_in to = {.sin_family = AF_INET};
	const struct msghdr msg = {.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = pieces, .msg_iovlen = n};
	ssize_t sent;

	if (len < IP_BYTES || ip[0] >> 4 != 4)
		return -EINVAL;
	if (reinject_addresses_are_martian(ip) || (addrs != NULL && reinject_routes_are_martian(addrs, ip)))
		return -EADDRNOTAVAIL;
	memcpy(&to.sin_addr, ip + 16, 4);
	sent = os_sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	return sent < 0 ? -errno : 0;
}

int vma_reinject_ip_packet_to_kernel(int fd, const void *packet, size_t len)
{
	struct iovec piece = {.iov_base = (void *)(uintptr_t)packet, .iov_len = len};

	return len < IP_BYTES ? -EINVAL : reinject_send_unless_martian(fd, NULL, &piece, 1, len);
}

/* Where the IPv4 header is, in the first buffer; 0: there is none. */
static size_t reinject_ip_offset(const uint8_t *frame, size_t len)
{
	size_t at = ETH_BYTES;

	if (len >= ETH_BYTES + TAG_BYTES && frame[12] == 0x81 && frame[13] == 0)
		at += TAG_BYTES;
	return len >= at + IP_BYTES && frame[at - 2] == 8 && frame[at - 1] == 0 ? at : 0;
}

/* Ethernet pads short packets: no more than the header says is given. */
int vma_reinject_frame_to_kernel(int fd, struct vma_reinject_addrs *addrs, const struct vma_bufarena *arena,
                                 const struct vma_buf *frame)
{
	const uint8_t *bytes = (const uint8_t *)vma_buf_data(arena, frame);
	const size_t at = reinject_ip_offset(bytes, frame->len);
	struct iovec pieces[PIECES_MAX];
	size_t skip = at, left, len;
	unsigned n = 0;

	if (at == 0)
		return -EINVAL;
	len = left = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
	for (const struct vma_buf *buf = frame; left > 0; buf = buf->next, skip = 0) {
		size_t here;

		if (buf == NULL || n == PIECES_MAX || buf->len < skip)
			return -EINVAL;
		here = buf->len - skip < left ? buf->len - skip : left;
		pieces[n++] = (struct iovec){.iov_base = vma_buf_data(arena, buf) + skip, .iov_len = here};
		left -= here;
	}
	return n == 0 ? -EINVAL : reinject_send_unless_martian(fd, addrs, pieces, n, len);
}
