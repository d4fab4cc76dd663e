/* packet_filter - libpcap compiles and runs it. */
#include <stdio.h>

#include <vma/capture.h>

#include "packet_filter.h"

#define IP_HEADER_MAX 60

bool packet_filter_init(struct packet_filter *filter, const char *text)
{
	pcap_t *pcap;

	*filter = (struct packet_filter){.is_set = false};
	if (text[0] == '\0')
		return true;
	pcap = pcap_open_dead(DLT_EN10MB, VMA_CAPTURE_DATA_MAX);
	if (pcap == NULL) {
		fputs("vma_dump: there is no memory for the filter\n", stderr);
		return false;
	}
	filter->is_set = pcap_compile(pcap, &filter->program, text, 1, PCAP_NETMASK_UNKNOWN) == 0;
	if (!filter->is_set)
		fprintf(stderr, "vma_dump: %s: %s\n", text, pcap_geterr(pcap));
	pcap_close(pcap);
	return filter->is_set;
}

void packet_filter_fini(struct packet_filter *filter)
{
	if (filter->is_set)
		pcap_freecode(&filter->program);
	filter->is_set = false;
}

bool packet_filter_passes(const struct packet_filter *filter, const uint8_t *data, uint32_t captured, uint32_t len)
{
	const struct pcap_pkthdr head = {.caplen = captured, .len = len};

	return !filter->is_set || pcap_offline_filter(&filter->program, &head, data) != 0;
}

/* The last byte that a load reads, and one. The index register is an IPv4 header's length, unless it is computed. */
static uint32_t bpf_insn_bytes_read(const struct bpf_insn *insn)
{
	if (BPF_CLASS(insn->code) == BPF_LD && BPF_MODE(insn->code) == BPF_ABS)
		return insn->k + 4;
	if (BPF_CLASS(insn->code) == BPF_LD && BPF_MODE(insn->code) == BPF_IND)
		return insn->k + 4 + IP_HEADER_MAX;
	if (BPF_CLASS(insn->code) == BPF_LDX)
		return BPF_MODE(insn->code) == BPF_MSH ? insn->k + 1 : VMA_CAPTURE_DATA_MAX;
	if (BPF_CLASS(insn->code) == BPF_MISC && BPF_MISCOP(insn->code) == BPF_TAX)
		return VMA_CAPTURE_DATA_MAX;
	return 0;
}

uint32_t packet_filter_bytes_needed(const struct packet_filter *filter)
{
	uint32_t most = 0;

	for (unsigned i = 0; filter->is_set && i < filter->program.bf_len; i++) {
		const uint32_t bytes = bpf_insn_bytes_read(&filter->program.bf_insns[i]);

		most = bytes > most ? bytes : most;
	}
	return most < VMA_CAPTURE_DATA_MAX ? most : VMA_CAPTURE_DATA_MAX;
}
