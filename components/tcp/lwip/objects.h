/*
 * objects - objects of lwIP's kinds, from lists of free ones that a stack keeps.
 *
 * Threads: the driver. Progress: no call waits; only growth calls host.alloc. Memory: at most 512 KB of free objects of
 *          each kind, and as many segments in one piece as headers (none under AddressSanitizer). All of them go with
 *          the stack.
 * Example: test/test_lwip_memory.c.
 */
#ifndef VMA_TCP_LWIP_OBJECTS_H
#define VMA_TCP_LWIP_OBJECTS_H

#include <stdbool.h>
#include <stdint.h>

struct vma_tcp;

enum memory_kind {
	MEMORY_PCB,
	MEMORY_LISTENER,
	MEMORY_SEGMENT,
	MEMORY_PBUF,
	MEMORY_HEADER,    /* pbufs that hold the headers of a segment to be sent */
	MEMORY_RX_DATA,   /* pbufs of received data, which lies in a frame; 64 bytes */
	MEMORY_RX_HEADER, /* pbufs of received headers, with the header; 128 bytes */
	MEMORY_KINDS
};
void *lwip_object_alloc(struct vma_tcp *tcp, enum memory_kind kind); /* NULL: none, counted */
void lwip_object_free(struct vma_tcp *tcp, enum memory_kind kind, void *memory);
/* Objects change stacks: n of any kind, and how many of these are segments. Both receive flags held. */
void memory_move_count_to_stack(struct vma_tcp *from, struct vma_tcp *to, unsigned n);
void memory_move_segment_counts_to_stack(struct vma_tcp *from, struct vma_tcp *to, unsigned n);

/*
 * A segment as tcp_write makes it of bytes that stay where they are: pbufs for its header and for the bytes. All but
 * flags and the header's contents is set. NULL: none, counted.
 */
struct tcp_seg;
#define MEMORY_SEGMENT_PBUFS 2
/* VMA_TX_SEGS_TCP (vma_tcp_memory): none is kept here, and the process has as many as it may have. */
bool memory_lacks_segments(const struct vma_tcp *tcp);
struct tcp_seg *memory_get_segment_of_bytes(struct vma_tcp *tcp, void *bytes, uint16_t len, uint16_t options_len);
/* The same in two steps, if one is kept in one piece; NULL: none is, which counts for nothing. Before it is filled it
 * may be freed, and nothing else. */
struct tcp_seg *memory_get_whole_segment(struct vma_tcp *tcp);
void memory_segment_fill(struct tcp_seg *seg, void *bytes, uint16_t len, uint16_t options_len);
/* tcp_seg_free of any segment that is or was to be sent. Returns how many pbufs it had. Within lwip_enter. */
unsigned memory_segment_free(struct vma_tcp *tcp, struct tcp_seg *seg);

#endif
