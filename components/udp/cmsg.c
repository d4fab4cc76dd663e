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
       STAMPING_PKTINFO = 58,
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

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / NSEC), .tv_nsec = (long)(ns % NSEC)};
}

/* The stamp of the card, 0: there is none. Of what comes out of a fork's queue the packet is no more. */
static uint64_t datagram_hw_timestamp(const struct udp_datagram *datagram)
{
	const struct vma_buf *packet = datagram->packet;

	return packet != NULL && packet->flags & VMA_BUF_RX_HW_TIMESTAMP ? packet->timestamp_ns : 0;
}

/* Through which interface the stamp came, and how long the frame was: struct scm_ts_pktinfo. */
static void cmsg_put_ts_pktinfo(struct udp_cmsgs *cmsgs, const struct udp_datagram *datagram)
{
	const uint32_t about[4] = {datagram->ifindex, datagram->packet->packet_len};

	udp_cmsg_put(cmsgs, SOL_SOCKET, STAMPING_PKTINFO, about, sizeof(about));
}

/* struct scm_timestamping: by software, nothing, by hardware. The kernel sends none that is empty. */
static void cmsg_put_scm_timestamping(struct udp_cmsgs *cmsgs, uint32_t rx_opts, const struct udp_datagram *datagram,
                                      struct timespec at)
{
	const uint64_t hw_ns = rx_opts & UDP_RX_OPT_HW_STAMP ? datagram_hw_timestamp(datagram) : 0;
	struct timespec all[3] = {0};

	if (rx_opts & UDP_RX_OPT_TIMESTAMPING)
		all[0] = at;
	else if (hw_ns == 0)
		return;
	all[2] = timespec_of(hw_ns);
	if (hw_ns != 0 && rx_opts & UDP_RX_OPT_STAMP_PKTINFO)
		cmsg_put_ts_pktinfo(cmsgs, datagram);
	udp_cmsg_put(cmsgs, SOL_SOCKET, rx_opts & UDP_RX_OPT_STAMP_NEW ? STAMPING_NEW : STAMPING_OLD, all, sizeof(all));
}

/* Both layouts of a time are the same where long has 64 bits. SO_TIMESTAMPNS overrules SO_TIMESTAMP. */
static void cmsg_put_timestamps(struct udp_cmsgs *cmsgs, uint32_t rx_opts, const struct udp_datagram *datagram,
                                uint64_t stamp_ns)
{
	bool new = rx_opts &UDP_RX_OPT_STAMP_NEW;
	const struct timespec at = timespec_of(stamp_ns);
	const struct timeval at_usec = {.tv_sec = at.tv_sec, .tv_usec = at.tv_nsec / 1000};

	if (rx_opts & UDP_RX_OPT_TIMESTAMPNS)
		udp_cmsg_put(cmsgs, SOL_SOCKET, new ? STAMPNS_NEW : STAMPNS_OLD, &at, sizeof(at));
	else if (rx_opts & UDP_RX_OPT_TIMESTAMP)
		udp_cmsg_put(cmsgs, SOL_SOCKET, new ? STAMP_NEW : STAMP_OLD, &at_usec, sizeof(at_usec));
	if (rx_opts & (UDP_RX_OPT_TIMESTAMPING | UDP_RX_OPT_HW_STAMP))
		cmsg_put_scm_timestamping(cmsgs, rx_opts, datagram, at);
}
_Static_assert(sizeof(long) == 8 && sizeof(time_t) == 8, "one layout for both names");

void udp_cmsg_fill(struct udp_cmsgs *cmsgs, uint32_t rx_opts, const struct udp_datagram *datagram, uint64_t stamp_ns,
                   uint32_t spec_dst)
{
	const struct in_pktinfo pktinfo = {.ipi_ifindex = (int)datagram->ifindex,
	                                   .ipi_spec_dst.s_addr = spec_dst,
	                                   .ipi_addr.s_addr = datagram->dst};
	const struct in6_pktinfo pktinfo6 = {.ipi6_addr = vma_v4mapped_in6_addr(datagram->dst),
	                                     .ipi6_ifindex = datagram->ifindex};
	const struct sockaddr_in to = {
	        .sin_family = AF_INET, .sin_port = datagram->dst_port_be, .sin_addr.s_addr = datagram->dst};
	int ttl = datagram->ttl;

	cmsg_put_timestamps(cmsgs, rx_opts, datagram, stamp_ns);
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
static uint32_t ipi_spec_dst_of(const struct udp_datagram *datagram)
{
	struct vma_net_key key = {.family = AF_INET};
	struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_net_template path;
	struct vma_net_addr addr;
	uint32_t out = 0;

	if (engine == NULL)
		return datagram->dst;
	memcpy(key.dst, &datagram->src, 4);
	if (vma_net_find_template(engine->net, &key, &path)) {
		memcpy(&out, path.src, 4);
		return out;
	}
	vma_net_request_path(engine->net, &key);
	if (vma_net_addrs(engine->net, datagram->ifindex, &addr, 1) > 0 && addr.family == AF_INET)
		memcpy(&out, addr.address, 4);
	return out;
}

/* Of groups and broadcasts of all kinds the frame tells: its destination MAC has the group bit. */
static bool datagram_is_multicast_or_broadcast(const struct udp_datagram *datagram)
{
	const struct vma_engine *engine = vma_engine_get_or_start();

	return engine != NULL && *vma_buf_data(engine->arena, datagram->packet) & 1;
}

static uint64_t datagram_timestamp_ns(const struct udp_datagram *datagram)
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
	size_t capacity = msg->msg_control != NULL ? msg->msg_controllen : 0;
	struct udp_cmsgs cmsgs = {.capacity = capacity < UDP_CMSG_BYTES_MAX ? capacity : UDP_CMSG_BYTES_MAX};
	uint32_t spec_dst = datagram->dst;

	if ((rx_opts & ~(uint32_t)(UDP_RX_OPT_FORK_SHARED | UDP_RX_OPT_CALLBACK)) == 0) {
		msg->msg_controllen = 0;
		return;
	}
	if (rx_opts & UDP_RX_OPT_PKTINFO && datagram_is_multicast_or_broadcast(datagram))
		spec_dst = ipi_spec_dst_of(datagram);
	udp_cmsg_fill(&cmsgs, rx_opts, datagram, rx_opts & UDP_RX_OPT_STAMPS ? datagram_timestamp_ns(datagram) : 0,
	              spec_dst);
	if (cmsgs.used != 0 && vma_memcpy_or_efault(msg->msg_control, cmsgs.bytes, cmsgs.used) != 0)
		cmsgs.used = 0;
	msg->msg_controllen = cmsgs.used;
	if (cmsgs.truncated)
		msg->msg_flags |= MSG_CTRUNC;
}
