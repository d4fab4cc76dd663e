/*
 * vma_lwip_hooks - the calls back of the adapted lwIP; port.h says which file implements each.
 *
 * The VMA_LWIP_* macros stand for calls that lwIP makes and this component does not want. Loss recovery on duplicate
 * ACKs, output at the end of input, and an ACK for each segment behind a hole are the caller's.
 */
#ifndef VMA_LWIP_HOOKS_H
#define VMA_LWIP_HOOKS_H

#include "port.h"

#define LWIP_HOOK_TCP_INPACKET_PCB(pcb, hdr, optlen, opt1len, opt2, p)                                                 \
	tcp_hook_inpacket(pcb, hdr, optlen, opt1len, opt2, p)
#define LWIP_HOOK_TCP_ISN(local_ip, local_port, remote_ip, remote_port)                                                \
	tcp_hook_isn(local_ip, local_port, remote_ip, remote_port)
#define VMA_LWIP_PASSIVE_OPEN(listener, pcb) tcp_hook_passive(listener, pcb)
#define VMA_LWIP_REXMIT_FAST(pcb) ((void)0)
#define VMA_LWIP_INPUT_DONE(pcb) ((void)0)
/* A peer without SACK counts duplicate ACKs, so it gets each. */
#define VMA_LWIP_ACK_HOLE(pcb)                                                                                         \
	do {                                                                                                           \
		if ((pcb)->flags & TF_SACK)                                                                            \
			tcp_ack_now(pcb);                                                                              \
		else                                                                                                   \
			tcp_send_empty_ack(pcb);                                                                       \
	} while (0)

#endif
