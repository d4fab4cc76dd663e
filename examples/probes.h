/*
 * probes - the numbered datagrams of udp_ping: what each must contain, which came back, how long they took.
 *
 * Threads: one. Progress: no call waits. Memory: 16 bytes per datagram, allocated before the first one leaves.
 * Example: udp_ping.c.
 */
#ifndef EXAMPLES_PROBES_H
#define EXAMPLES_PROBES_H

#include <stdbool.h>
#include <stdint.h>

#define PROBES_BYTES_MIN 8u /* the number */

struct probe {
	uint64_t sent_ns;
	uint64_t rtt_ns; /* 0: not answered */
};

struct probes {
	struct probe *all;
	uint32_t bytes; /* payload of each */
	uint64_t sent, answered, duplicates, corrupt;
};

int probes_init(struct probes *probes, uint64_t count, uint32_t bytes); /* 0 or -ENOMEM */
void probes_fini(struct probes *probes);

uint64_t probes_now_ns(void);
/* Fills the payload of the next datagram; it counts as sent from now on. */
void probes_fill_next_payload(struct probes *probes, uint8_t *payload);
/* The one just filled could not be sent: it will be the next one again. */
void probes_unsend_last(struct probes *probes);
/* Checks every byte of an answer and counts it. */
void probes_record_answer(struct probes *probes, const uint8_t *payload, uint32_t len);

/* Prints counts and percentiles; true if all came back, once each, as they were. Ends the series: only dump
 * and fini may follow. */
bool probes_report(struct probes *probes, double seconds);
/* After the report: every round trip, nanoseconds, one per line. 0 or -errno; a message tells. */
int probes_write_rtts_to_file(const struct probes *probes, const char *path);

#endif
