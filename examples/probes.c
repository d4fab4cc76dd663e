/* probes - see probes.h. */
#include "probes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int probes_init(struct probes *probes, uint64_t count, uint32_t bytes)
{
	*probes = (struct probes){.bytes = bytes, .all = malloc((count + 1) * sizeof(struct probe))};
	if (probes->all == NULL)
		return -ENOMEM;
	memset(probes->all, 0, (count + 1) * sizeof(struct probe)); /* its pages now, not on the way */
	return 0;
}

void probes_fini(struct probes *probes)
{
	free(probes->all);
}

uint64_t probes_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* Byte i of datagram seq: differs between neighbours in both, so that no shift and no mix-up goes unseen. */
static uint8_t probes_pattern(uint64_t seq, uint32_t i)
{
	return (uint8_t)((seq * 0x9e3779b97f4a7c15ULL >> 56) + i * 131 + (i >> 8));
}

void probes_fill_next_payload(struct probes *probes, uint8_t *payload)
{
	uint64_t seq = probes->sent++;

	memcpy(payload, &seq, sizeof(seq));
	for (uint32_t i = sizeof(seq); i < probes->bytes; i++)
		payload[i] = probes_pattern(seq, i);
	probes->all[seq].sent_ns = probes_now_ns();
}

void probes_unsend_last(struct probes *probes)
{
	probes->sent--;
}

static bool probe_payload_is_as_sent(const struct probes *probes, const uint8_t *payload, uint32_t len, uint64_t *seq)
{
	if (len != probes->bytes)
		return false;
	memcpy(seq, payload, sizeof(*seq));
	if (*seq >= probes->sent)
		return false;
	for (uint32_t i = sizeof(*seq); i < len; i++)
		if (payload[i] != probes_pattern(*seq, i))
			return false;
	return true;
}

void probes_record_answer(struct probes *probes, const uint8_t *payload, uint32_t len)
{
	uint64_t now = probes_now_ns(), seq;

	if (!probe_payload_is_as_sent(probes, payload, len, &seq)) {
		probes->corrupt++;
	} else if (probes->all[seq].rtt_ns != 0) {
		probes->duplicates++;
	} else {
		probes->all[seq].rtt_ns = now > probes->all[seq].sent_ns ? now - probes->all[seq].sent_ns : 1;
		probes->answered++;
	}
}

static int compare_probes_by_rtt(const void *a, const void *b)
{
	const struct probe *x = a, *y = b;

	return (x->rtt_ns > y->rtt_ns) - (x->rtt_ns < y->rtt_ns);
}

static double probe_rtt_usec(const struct probe *probe)
{
	return (double)probe->rtt_ns / 1000;
}

bool probes_report(struct probes *probes, double seconds)
{
	uint64_t n = probes->answered, lost = probes->sent - n;
	const struct probe *first = probes->all + lost; /* sorted: the lost ones, with 0, come first */

	printf("%llu sent, %llu answered, %llu lost, %llu duplicate, %llu corrupt\n", (unsigned long long)probes->sent,
	       (unsigned long long)n, (unsigned long long)lost, (unsigned long long)probes->duplicates,
	       (unsigned long long)probes->corrupt);
	if (n == 0)
		return false;
	qsort(probes->all, probes->sent, sizeof(*probes->all), compare_probes_by_rtt);
	printf("round trip in microseconds: p50 %.2f, p99 %.2f, p99.9 %.2f, most %.2f; %.0f per second\n",
	       probe_rtt_usec(&first[n / 2]), probe_rtt_usec(&first[n * 99 / 100]),
	       probe_rtt_usec(&first[n * 999 / 1000]), probe_rtt_usec(&first[n - 1]), (double)n / seconds);
	return lost == 0 && probes->duplicates == 0 && probes->corrupt == 0;
}

int probes_write_rtts_to_file(const struct probes *probes, const char *path)
{
	FILE *file = fopen(path, "w");
	int rc = 0;

	for (uint64_t i = probes->sent - probes->answered; file != NULL && i < probes->sent; i++)
		fprintf(file, "%llu\n", (unsigned long long)probes->all[i].rtt_ns);
	if (file == NULL || fclose(file) != 0) {
		rc = -errno;
		perror(path);
	}
	return rc;
}
