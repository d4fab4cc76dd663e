/*
 * repair - what a client and vmad's process for it say to each other when a connection is handed over to the kernel.
 *          There is one message per packet of a pair of SOCK_SEQPACKET sockets; VMAD_REPAIR gave the client one end.
 *
 *   client                                       vmad's process for it
 *   SOCKET + the socket, a sealed memfd  ------>       repaired, if it may have that connection
 *                                        <------ a result
 *   SEGMENT packet                       ------>       reinjected, if it is that connection's
 *   END                                  ------>
 *
 * The channel may end at any time, when vmad does. Before the result the client sends the socket to the next vmad.
 *
 * Threads: constants and a message, which is its sender's.
 */
#ifndef VMA_NIC_XDP_REPAIR_H
#define VMA_NIC_XDP_REPAIR_H

#include <stdint.h>

#include <vma/nic_repair.h>

#define VMAD_REPAIR_MAGIC 0x72706572u              /* "repr" */
#define VMAD_REPAIR_QUEUE_MAX (UINT32_C(64) << 20) /* bytes of a queue: more than a buffer of TCP's holds */
#define VMAD_REPAIR_PACKET_MAX 65535

enum vmad_repair_type { VMAD_REPAIR_SOCKET = 1, VMAD_REPAIR_SEGMENT, VMAD_REPAIR_END };

struct vmad_repair_head {
	uint32_t magic, type;
};

struct vmad_repair_socket {
	struct vmad_repair_head head;
	struct vma_repair what;
};

struct vmad_repair_reply {
	struct vmad_repair_head head;
	int32_t result, incomplete;
};

#endif
