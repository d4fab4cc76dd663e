/* cmsg.h - control messages of a received datagram, in the kernel's order and with its way of cutting them short. */
#ifndef VMA_UDP_CMSG_H
#define VMA_UDP_CMSG_H

#include "udp_priv.h"

/* Room for all that can be on at once. */
enum { UDP_CMSG_BYTES_MAX = 320 };

struct udp_cmsgs {
	size_t capacity, used; /* of the application's buffer: min(controllen, UDP_CMSG_BYTES_MAX) */
	bool truncated;        /* MSG_CTRUNC */
	_Alignas(8) uint8_t bytes[UDP_CMSG_BYTES_MAX];
};

/* As the kernel's put_cmsg. */
void udp_cmsg_put(struct udp_cmsgs *cmsgs, int level, int type, const void *data, size_t len);
/* What `rx_opts` ask for. spec_dst: IP_PKTINFO's. stamp_ns: never 0 when a stamp is on. */
void udp_cmsg_fill(struct udp_cmsgs *cmsgs, uint32_t rx_opts, const struct udp_datagram *datagram, uint64_t stamp_ns,
                   uint32_t spec_dst);
/* Writes them to msg_control, and msg_controllen and msg_flags; a bad pointer loses them, as with the kernel. */
void udp_put_cmsgs(struct msghdr *msg, uint32_t rx_opts, const struct udp_datagram *datagram);

#endif
