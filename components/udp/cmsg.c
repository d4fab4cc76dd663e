/* cmsg.c - control messages of a received datagram. */
#include <netinet/in.h>
#include <string.h>
#include <time.h>

#include "cmsg.h"

enum { /* SOL_SOCKET, by the numbers of both names: <asm-generic/socket.h> */
       STAMP_OLD = 29,
       STAMPNS_OLD = 35,
       STAMPING_OLD = 37,
       STAMP_NEW = 63,
       STAMPNS_NEW = 64,
       STAMPING_NEW = 65,
       NSEC = 1000000000
};

/*
 * A message that does not fit is cut, with its length as cut, and MSG_CTRUNC; less than a header's room: nothing. The
 * next one starts aligned, and what is left of the buffer may be less than that.
 */
void udp_cmsg_put(struct udp_cmsgs *cmsgs, int level, int type, const void *data, size_t len)
{
	size_t left = cmsgs->capacity - cmsgs->used, space = CMSG_SPACE(len);
	struct cmsghdr header = {.cmsg_len = CMSG_LEN(len), .cmsg_level = level, .cmsg_type = type};

	if (left < sizeof(header)) {
		cmsgs->truncated = true;
		return;
	}
	if (left < header.cmsg_len) {
		cmsgs->truncated = true;
		header.cmsg_len = left;
	}
	if (space > left)
		space = left;
	memset(cmsgs->bytes + cmsgs->used, 0, space);
	memcpy(cmsgs->bytes + cmsgs->used, &header, sizeof(header));
	memcpy(cmsgs->bytes + cmsgs->used + sizeof(header), data, header.cmsg_len - sizeof(header));
	cmsgs->used += space;
}

/* Both layouts of a time are the same where long has 64 bits. SO_TIMESTAMPNS overrules SO_TIMESTAMP. */
static void put_stamps(struct udp_cmsgs *cmsgs, uint32_t rx_opts, uint64_t stamp_ns)
{
	bool new = rx_opts &UDP_RX_OPT_STAMP_NEW;
	const struct timespec at = {.tv_sec = (time_t)(stamp_ns / NSEC), .tv_nsec = (long)(stamp_ns % NSEC)};
	const struct timeval at_usec = {.tv_sec = at.tv_sec, .tv_usec = at.tv_nsec / 1000};
	const struct timespec all[3] = {at}; /* struct scm_timestamping: software, and no hardware's */

	if (rx_opts & UDP_RX_OPT_TIMESTAMPNS)
		udp_cmsg_put(cmsgs, SOL_SOCKET, new ? STAMPNS_NEW : STAMPNS_OLD, &at, sizeof(at));
	else if (rx_opts & UDP_RX_OPT_TIMESTAMP)
		udp_cmsg_put(cmsgs, SOL_SOCKET, new ? STAMP_NEW : STAMP_OLD, &at_usec, sizeof(at_usec));
	if (rx_opts & UDP_RX_OPT_TIMESTAMPING)
		udp_cmsg_put(cmsgs, SOL_SOCKET, new ? STAMPING_NEW : STAMPING_OLD, all, sizeof(all));
}
_Static_assert(sizeof(long) == 8 && sizeof(time_t) == 8, "one layout for both names");

void udp_cmsg_fill(struct udp_cmsgs *cmsgs, uint32_t rx_opts, const struct udp_datagram *datagram, uint64_t stamp_ns,
                   uint32_t spec_dst)
{
	const struct in_pktinfo pktinfo = {.ipi_ifindex = (int)datagram->ifindex,
	                                   .ipi_spec_dst.s_addr = spec_dst,
	                                   .ipi_addr.s_addr = datagram->dst};
	const struct in6_pktinfo pktinfo6 = {.ipi6_addr = vma_name_mapped(datagram->dst),
	                                     .ipi6_ifindex = datagram->ifindex};
	const struct sockaddr_in to = {
	        .sin_family = AF_INET, .sin_port = datagram->dst_port_be, .sin_addr.s_addr = datagram->dst};
	int ttl = datagram->ttl;

	put_stamps(cmsgs, rx_opts, stamp_ns);
	if (rx_opts & UDP_RX_OPT_RXQ_OVFL && datagram->drops != 0)
		udp_cmsg_put(cmsgs, SOL_SOCKET, SO_RXQ_OVFL, &datagram->drops, sizeof(datagram->drops));
	if (rx_opts & UDP_RX_OPT_PKTINFO6)
		udp_cmsg_put(cmsgs, IPPROTO_IPV6, IPV6_PKTINFO, &pktinfo6, sizeof(pktinfo6));
	if (rx_opts & UDP_RX_OPT_PKTINFO)
		udp_cmsg_put(cmsgs, IPPROTO_IP, IP_PKTINFO, &pktinfo, sizeof(pktinfo));
	if (rx_opts & UDP_RX_OPT_RECVTTL)
		udp_cmsg_put(cmsgs, IPPROTO_IP, IP_TTL, &ttl, sizeof(ttl));
	if (rx_opts & UDP_RX_OPT_RECVTOS)
		udp_cmsg_put(cmsgs, IPPROTO_IP, IP_TOS, &datagram->tos, 1);
	if (rx_opts & UDP_RX_OPT_ORIGDST)
		udp_cmsg_put(cmsgs, IPPROTO_IP, IP_ORIGDSTADDR, &to, sizeof(to));
}

/*
 * The local address that a datagram was "really" sent to: its destination, if that is one of ours; for a group or a
 * broadcast the source that the kernel would answer the sender from. Not known yet: an address of the interface.
 */
static uint32_t spec_dst_of(const struct udp_datagram *datagram)
{
	struct vma_net_key key = {.family = AF_INET};
	struct vma_engine *engine = vma_engine();
	struct vma_net_template path;
	struct vma_net_addr addr;
	uint32_t out = 0;

	if (engine == NULL)
		return datagram->dst;
	memcpy(key.dst, &datagram->src, 4);
	if (vma_net_find(engine->net, &key, &path)) {
		memcpy(&out, path.src, 4);
		return out;
	}
	vma_net_want(engine->net, &key);
	if (vma_net_addrs(engine->net, datagram->ifindex, &addr, 1) > 0 && addr.family == AF_INET)
		memcpy(&out, addr.address, 4);
	return out;
}

/* Of groups and broadcasts of all kinds the frame tells: its destination MAC has the group bit. */
static bool is_for_many(const struct udp_datagram *datagram)
{
	const struct vma_engine *engine = vma_engine();

	return engine != NULL && *vma_buf_data(engine->arena, datagram->packet) & 1;
}

static uint64_t stamp_of(const struct udp_datagram *datagram)
{
	struct timespec now;

	if (datagram->arrival_ns != 0)
		return datagram->arrival_ns;
	/* It came before anybody asked: the kernel, too, then tells the time of the call. */
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * NSEC + (uint64_t)now.tv_nsec;
}

void udp_put_cmsgs(struct msghdr *msg, uint32_t rx_opts, const struct udp_datagram *datagram)
{
	const uint32_t stamps = UDP_RX_OPT_TIMESTAMP | UDP_RX_OPT_TIMESTAMPNS | UDP_RX_OPT_TIMESTAMPING;
	size_t capacity = msg->msg_control != NULL ? msg->msg_controllen : 0;
	struct udp_cmsgs cmsgs = {.capacity = capacity < UDP_CMSG_BYTES_MAX ? capacity : UDP_CMSG_BYTES_MAX};
	uint32_t spec_dst = datagram->dst;

	if ((rx_opts & ~(uint32_t)UDP_RX_OPT_FORK_SHARED) == 0) {
		msg->msg_controllen = 0;
		return;
	}
	if (rx_opts & UDP_RX_OPT_PKTINFO && is_for_many(datagram))
		spec_dst = spec_dst_of(datagram);
	udp_cmsg_fill(&cmsgs, rx_opts, datagram, rx_opts & stamps ? stamp_of(datagram) : 0, spec_dst);
	if (cmsgs.used != 0 && vma_copy(msg->msg_control, cmsgs.bytes, cmsgs.used) != 0)
		cmsgs.used = 0;
	msg->msg_controllen = cmsgs.used;
	if (cmsgs.truncated)
		msg->msg_flags |= MSG_CTRUNC;
}
