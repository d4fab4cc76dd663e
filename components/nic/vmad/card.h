/*
 * card - vmad's own queue pair of the interface's RDMA device, by which it answers for connections over verbs whose
 * process has ended.
 *
 *   client ── MINISOCK_EXPORT ──> rule of vmad's in the card ── answer ──> the client's own rule ends
 *   peer ── FIN ──> card ── rule ──> queue pair ──> minisock (owner/minisocks.h) ── ACK, RST ──> raw socket
 *
 * The two rules are the same for a moment, and both get what comes. So no packet meets neither, and the kernel, which
 * would answer with RST, none at all.
 *
 * The device is opened at the first export. When the last minisock has ended, its rule has, too, and two seconds later
 * the queue pair and its memory. If the device fails, all minisocks end; the next export opens it anew. Like that it
 * ends with vmad: the kernel then resets what comes.
 *
 * A minisock ends at once if a client adds a rule with its key. It also ends if a SYN comes for which the kernel has a
 * socket: a listener, or a connection of its own. That SYN is given to the kernel. A SYN with an ACK ends it as well:
 * it answers a process that has begun a connection. A client says that it adds a rule before its SYN leaves. So packets
 * are taken before a turn's messages are heard, and looked at after them (receive, handle). The answer to that SYN then
 * meets no minisock.
 *
 * Threads: vmad's only one; the device's events come by another thread, which only says that the device is lost.
 * Progress: no call waits but for the kernel's answers about sockets, and for the device's commands: open, rules.
 * Memory: create allocates; 8192 frames of addresses, of which the queue pair registers 1 MB, with jumbo frames 4.
 * Bounds: OWNER_MINISOCKS_MAX; the room in the card's table of rules; answers as minisock_rx.c.
 * Example: test/test_vmad_card.c.
 */
#ifndef VMA_NIC_VMAD_CARD_H
#define VMA_NIC_VMAD_CARD_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>
#include <vma/nic_state.h>

struct vmad_card;
struct xdp_minisock_segment;

struct vmad_card *vmad_card_create(unsigned ifindex, const char *interface); /* NULL: no memory. Opens nothing */
void vmad_card_destroy(struct vmad_card *card);                              /* NULL is allowed, as for those below */
/* The device is open: 0, or -errno, and the log has a line. After a failure it is not tried again for ten seconds. */
int vmad_card_open(struct vmad_card *card);
/* With an open one: the connection has a minisock, and its rule is in the card. 0; -EINVAL; -ENOMEM, -ENOSPC, ...: the
 * kernel gets what comes. */
int vmad_card_minisock_create(struct vmad_card *card, const struct vma_flow_minisock *what);
void vmad_card_end_minisock(struct vmad_card *card,
                            const struct vma_flow_key *key); /* a client has the connection, or a new one */

#define VMAD_CARD_FDS 2
unsigned vmad_card_fds(const struct vmad_card *card, int fds[VMAD_CARD_FDS]); /* readable: receive */
bool vmad_card_receive(struct vmad_card *card); /* takes what has come; true: do not sleep before handle */
void vmad_card_handle_received_packets(struct vmad_card *card);
int vmad_card_tick(struct vmad_card *card); /* what is due. How long to the next, ms; -1: nothing is to come */
uint32_t vmad_card_minisock_count(const struct vmad_card *card);
void vmad_card_add_minisock_counts(const struct vmad_card *card, struct vma_vmad_interface *out); /* its minisocks */

/*
 * A frame of TCP over IPv4, with one tag at most, of which `bytes` are here; is_whole: that is all of it.
 * False: it is none, or a fragment, or cut within its headers. `number` is 0.
 */
bool vmad_card_parse_segment(const uint8_t *frame, uint32_t bytes, bool is_whole, struct xdp_minisock_segment *out);

#endif
