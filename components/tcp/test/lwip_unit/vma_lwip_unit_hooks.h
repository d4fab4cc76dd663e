/*
 * vma_lwip_unit_hooks - what the adapted source asks for, under lwIP's own tests: nothing, as in the component, or for
 * a test that counts on it what lwIP does by itself.
 */
#ifndef VMA_LWIP_UNIT_HOOKS_H
#define VMA_LWIP_UNIT_HOOKS_H

extern int unit_as_lwip; /* this test gets what lwIP does by itself */

#define VMA_LWIP_REXMIT_FAST(pcb)                                                                                      \
	do {                                                                                                           \
		if (unit_as_lwip)                                                                                      \
			tcp_rexmit_fast(pcb);                                                                          \
	} while (0)
#define VMA_LWIP_INPUT_DONE(pcb)                                                                                       \
	do {                                                                                                           \
		if (unit_as_lwip)                                                                                      \
			tcp_output(pcb);                                                                               \
	} while (0)
#define VMA_LWIP_ACK_HOLE(pcb) tcp_send_empty_ack(pcb)

#endif
