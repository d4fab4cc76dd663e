/* pcapng - blocks: a type, a length, a body with options, the length again; all in whole words of 32 bits. */
#include <string.h>

#include "pcapng.h"

enum { BLOCK_SECTION = 0x0a0d0d0a, BLOCK_INTERFACE = 1, BLOCK_STATISTICS = 5, BLOCK_PACKET = 6 };
enum { OPT_COMMENT = 1, SHB_USERAPPL = 4, IF_NAME = 2, IF_TSRESOL = 9, EPB_FLAGS = 2, ISB_IFRECV = 4, ISB_IFDROP = 5 };
enum { LINKTYPE_ETHERNET = 1 };

/* What does not fit is left out, to whole words; callers' parts are far smaller than a body. */
static void pcapng_body_append(struct pcapng *pcapng, const void *data, uint32_t n)
{
	const uint32_t padded = (n + 3) & ~3u;

	if (padded > PCAPNG_BODY_MAX - pcapng->len)
		return;
	memcpy(pcapng->body + pcapng->len, data, n);
	memset(pcapng->body + pcapng->len + n, 0, padded - n);
	pcapng->len += padded;
}

static void pcapng_body_append_u32(struct pcapng *pcapng, uint32_t value)
{
	pcapng_body_append(pcapng, &value, sizeof(value));
}

static void pcapng_body_append_time(struct pcapng *pcapng, uint64_t ns)
{
	pcapng_body_append_u32(pcapng, (uint32_t)(ns >> 32));
	pcapng_body_append_u32(pcapng, (uint32_t)ns);
}

static void pcapng_body_append_option(struct pcapng *pcapng, uint16_t code, const void *data, uint16_t n)
{
	const uint16_t head[2] = {code, n};

	pcapng_body_append(pcapng, head, sizeof(head));
	pcapng_body_append(pcapng, data, n);
}

static void pcapng_body_append_text(struct pcapng *pcapng, uint16_t code, const char *text)
{
	pcapng_body_append_option(pcapng, code, text, (uint16_t)strlen(text));
}

/* The body, after the end of its options. */
static bool pcapng_write_block(struct pcapng *pcapng, uint32_t type)
{
	uint32_t len, head[2];

	pcapng_body_append_u32(pcapng, 0);
	len = pcapng->len + 12;
	head[0] = type;
	head[1] = len;
	if (fwrite(head, sizeof(head), 1, pcapng->out) != 1 || fwrite(pcapng->body, pcapng->len, 1, pcapng->out) != 1 ||
	    fwrite(&len, sizeof(len), 1, pcapng->out) != 1)
		return false;
	pcapng->len = 0;
	return true;
}

bool pcapng_write_section_header(struct pcapng *pcapng, FILE *out, uint32_t snap, const char *comment)
{
	const uint64_t unknown = UINT64_MAX;

	pcapng->out = out;
	pcapng->snap = snap;
	pcapng->count = 0;
	pcapng->len = 0;
	pcapng_body_append_u32(pcapng, 0x1a2b3c4d);
	pcapng_body_append_u32(pcapng, 1); /* version 1.0 */
	pcapng_body_append(pcapng, &unknown, sizeof(unknown));
	pcapng_body_append_text(pcapng, SHB_USERAPPL, "vma_dump");
	pcapng_body_append_text(pcapng, OPT_COMMENT, comment);
	return pcapng_write_block(pcapng, BLOCK_SECTION);
}

static bool pcapng_write_interface_block(struct pcapng *pcapng, const char *name)
{
	const uint8_t nanoseconds = 9;

	pcapng_body_append_u32(pcapng, LINKTYPE_ETHERNET);
	pcapng_body_append_u32(pcapng, pcapng->snap);
	pcapng_body_append_text(pcapng, IF_NAME, name);
	pcapng_body_append_option(pcapng, IF_TSRESOL, &nanoseconds, 1);
	return pcapng_write_block(pcapng, BLOCK_INTERFACE);
}

/* Its number; one more than there is room for counts as the last. */
static bool pcapng_find_or_add_interface(struct pcapng *pcapng, const char *name, uint32_t *number)
{
	for (*number = 0; *number < pcapng->count; (*number)++)
		if (strcmp(pcapng->names[*number], name) == 0)
			return true;
	if (pcapng->count == PCAPNG_INTERFACES) {
		*number = PCAPNG_INTERFACES - 1;
		return true;
	}
	snprintf(pcapng->names[pcapng->count++], VMA_CAPTURE_TEXT_MAX, "%s", name);
	return pcapng_write_interface_block(pcapng, name);
}

bool pcapng_write_packet(struct pcapng *pcapng, const struct vma_capture_info *info, const uint8_t *data,
                         const char *const *comments, unsigned n)
{
	const uint32_t captured = info->captured < pcapng->snap ? info->captured : pcapng->snap;
	const uint32_t direction = info->kind == VMA_CAPTURE_IN ? 1 : 2; /* inbound, outbound */
	uint32_t number;

	if (!pcapng_find_or_add_interface(pcapng, info->text, &number))
		return false;
	pcapng_body_append_u32(pcapng, number);
	pcapng_body_append_time(pcapng, info->time_ns);
	pcapng_body_append_u32(pcapng, captured);
	pcapng_body_append_u32(pcapng, info->len);
	pcapng_body_append(pcapng, data, captured);
	pcapng_body_append_option(pcapng, EPB_FLAGS, &direction, sizeof(direction));
	for (unsigned i = 0; i < n; i++)
		pcapng_body_append_text(pcapng, OPT_COMMENT, comments[i]);
	return pcapng_write_block(pcapng, BLOCK_PACKET);
}

bool pcapng_write_statistics_and_flush(struct pcapng *pcapng, uint64_t seen, uint64_t lost, uint64_t time_ns)
{
	uint32_t number;

	if (pcapng->count == 0 && !pcapng_find_or_add_interface(pcapng, "none", &number))
		return false;
	pcapng_body_append_u32(pcapng, 0);
	pcapng_body_append_time(pcapng, time_ns);
	pcapng_body_append_option(pcapng, ISB_IFRECV, &seen, sizeof(seen));
	pcapng_body_append_option(pcapng, ISB_IFDROP, &lost, sizeof(lost));
	return pcapng_write_block(pcapng, BLOCK_STATISTICS) && fflush(pcapng->out) == 0;
}
