/*
 * pcapng - the file format of wireshark (draft-ietf-opsawg-pcapng): section, interfaces, packets, statistics.
 *
 * Threads: one. Functions return false if the output fails.
 */
#ifndef VMA_DUMP_PCAPNG_H
#define VMA_DUMP_PCAPNG_H

#include <stdbool.h>
#include <stdio.h>

#include <vma/capture.h>

#define PCAPNG_INTERFACES 64

#define PCAPNG_BODY_MAX (VMA_CAPTURE_DATA_MAX + 8192)

struct pcapng {
	FILE *out;
	uint32_t snap;
	char names[PCAPNG_INTERFACES][VMA_CAPTURE_TEXT_MAX];
	unsigned count;
	uint32_t len; /* of the block that is being made */
	uint8_t body[PCAPNG_BODY_MAX];
};

bool pcapng_write_section_header(struct pcapng *pcapng, FILE *out, uint32_t snap, const char *comment);
/* A packet with n comments. The interface's block goes before its first packet. */
bool pcapng_write_packet(struct pcapng *pcapng, const struct vma_capture_info *info, const uint8_t *data,
                         const char *const *comments, unsigned n);
/* How many packets were seen and lost; says so for the first interface. */
bool pcapng_write_statistics_and_flush(struct pcapng *pcapng, uint64_t seen, uint64_t lost, uint64_t time_ns);

#endif
