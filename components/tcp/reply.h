/*
 * reply - answers to segments that no connection takes, and connections that have left.
 *
 * Threads: the driver. tcp_export_minisocks_to_nic_owner: the control path.
 */
#ifndef VMA_TCP_REPLY_H
#define VMA_TCP_REPLY_H

#include "stack.h"

/* ---- reply.c: driver ---- */

/* Answers to a packet that belongs to no connection, addresses exchanged. */
void tcp_reply_rst(struct vma_tcp *tcp, struct vma_buf *packet);
struct tcp_reply {
	uint32_t seq, ack;
	uint16_t window;
	uint8_t flags;
	bool has_ts;
	bool is_always; /* however many answers there have been */
	uint32_t ts_val, ts_ecr;
	uint8_t options[20], options_len; /* in place of time stamps */
};
void tcp_reply(struct vma_tcp *tcp, struct vma_buf *packet, const struct tcp_reply *reply);
/* To a packet that has gone: the frame of which `lower` was the start, as far as the IPv4 header (without options) at
 * l3_off, and the two ports of its TCP header. */
void tcp_reply_to_headers(struct vma_tcp *tcp, const uint8_t *lower, uint32_t l3_off, const uint8_t *ports,
                          const struct tcp_reply *reply);
bool tcp_take_reply_token(struct vma_tcp *tcp); /* one more now; counts it */

/* ---- export.c: driver ---- */

struct vma_flow_key
tcp_flow_key_of_packet(const struct vma_rx_info *info); /* listener.c: of the connection that it is about */

void tcp_remember_exported_conn(struct vma_tcp *tcp, const struct vma_flow_key *key, enum tcp_left_to left);
/* A NIC that gives the kernel what is not known here: for a second it is known that the connection ended here. */
void tcp_note_ended_conn(struct vma_tcp *tcp, const struct vma_flow_key *key);
/* Where the connection of a segment that no flow takes was last. */
enum tcp_left_to tcp_find_who_took_conn(const struct vma_tcp *tcp, const struct vma_rx_info *info);
/* Until when a packet may still be on its way here to a connection that has left for another stack; 0: it is to none.
 */
uint64_t tcp_exported_conn_remembered_until_ns(const struct vma_tcp *tcp, const struct vma_rx_info *info);

/*
 * A NIC whose rules match headers brings in all segments to a listener's port, or to an address, also of the kernel's
 * connections. What is not known here is the kernel's, to take or to refuse. A connection that ended here a moment ago
 * is known, and so is one that another stack of this process has. True: the packet has been taken.
 */
bool tcp_pass_foreign_segment_to_kernel(struct vma_tcp *tcp, struct vma_buf *packet, const struct vma_rx_info *info);

/* ---- stranger.c: driver ---- */

/*
 * No connection here takes the segment, which has ACK. It is not to be answered now, because the connection may be
 * elsewhere: it has just left for another stack; or the listener has a group, and another process has it; or SYN
 * cookies are out, and one that was lost would make it. A peer that may not send again is asked later.
 */
bool tcp_stranger_gets_no_reset(struct vma_tcp *tcp, struct vma_buf *packet, const struct vma_rx_info *info,
                                bool cookies);
void tcp_strangers_probe(struct vma_tcp *tcp); /* those that it is time for */

/* ---- minisocks.c: control path ---- */

/* minisocks.c: the owner of the device goes on for all, or `most`, of them. Control path; nothing ends here. */
/* False: nobody answers for them: the device has no owner that does, or could not be told. */
bool tcp_export_minisocks_to_nic_owner(struct vma_tcp *tcp, uint32_t most);

#endif
