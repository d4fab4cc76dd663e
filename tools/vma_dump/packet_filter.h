/* packet_filter - a filter in libpcap's language (pcap-filter(7)). */
#ifndef VMA_DUMP_PACKET_FILTER_H
#define VMA_DUMP_PACKET_FILTER_H

#include <pcap/pcap.h>
#include <stdbool.h>
#include <stdint.h>

struct packet_filter {
	struct bpf_program program;
	bool is_set; /* false: every packet passes */
};

/* "": every packet passes. False after a message. */
bool packet_filter_init(struct packet_filter *filter, const char *text);
void packet_filter_fini(struct packet_filter *filter);
/* Of a frame of len bytes, the first `captured` of which are there. */
bool packet_filter_passes(const struct packet_filter *filter, const uint8_t *data, uint32_t captured, uint32_t len);
/* How many bytes of a frame it looks at, at most. */
uint32_t packet_filter_bytes_needed(const struct packet_filter *filter);

#endif
