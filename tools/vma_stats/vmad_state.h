/*
 * vmad_state - what the vmad of an interface has: its clients, their queue pairs, flows and frames.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_VMAD_STATE_H
#define VMA_STATS_TOOL_VMAD_STATE_H

#include <stdio.h>

#include <vma/nic_state.h>

/* Asks, and prints. 0, or -errno of vma_vmad_query_state; nothing is printed then. */
int vmad_state_show(const char *interface, FILE *out);
/* Why it was refused: a sentence without its end. */
const char *vmad_state_error_text(int rc);
void vmad_state_print(const struct vma_vmad_state *state, const char *interface, FILE *out);

#endif
