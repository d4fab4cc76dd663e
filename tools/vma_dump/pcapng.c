/* pcapng - blocks: a type, a length, a body with options, the length again; all in whole words of 32 bits. */
#include <string.h>

#include "pcapng.h"

enum { BLOCK_SECTION = 0x0a0d0d0a, BLOCK_INTERFACE = 1, BLOCK_STATISTICS = 5, BLOCK_PACKET = 6 };
enum { OPT_COMMENT = 1, SHB_USERAPPL = 4, IF_NAME = 2, IF_TSRESOL = 9, EPB_FLAGS = 2, ISB_IFRECV = 4, ISB_IFDROP = 5 };
enum { LINKTYPE_ETHERNET = 1, BODY_MAX = 8192 };

struct body {
	uint8_t bytes[BODY_MAX];
	uint32_t len;
};

/* What does not fit is left out, to whole words; callers' parts are far smaller than a body. */
static void body_put(struct body *body, const void *data, uint32_t n)
{
	const uint32_t padded = (n + 3) & ~3u;

	if (padded > BODY_MAX - body->len)
		return;
	memcpy(body->bytes + body->len, data, n);
	memset(body->bytes + body->len + n, 0, padded - n);
	body->len += padded;
}

static void body_u32(struct body *body, uint32_t value)
{
	body_put(body, &value, sizeof(value));
}

static void body_time(struct body *body, uint64_t ns)
{
	body_u32(body, (uint32_t)(ns >> 32));
	body_u32(body, (uint32_t)ns);
}

static void body_option(struct body *body, uint16_t code, const void *data, uint16_t n)
{
	const uint16_t head[2] = {code, n};

	body_put(body, head, sizeof(head));
	body_put(body, data, n);
}

static bool block_write(const struct pcapng *pcapng, uint32_t type, const struct body *body)
{
	const uint32_t len = body->len + 12, head[2] = {type, len};

	return fwrite(head, sizeof(head), 1, pcapng->out) == 1 && fwrite(body->bytes, body->len, 1, pcapng->out) == 1 &&
	       fwrite(&len, sizeof(len), 1, pcapng->out) == 1;
}

bool pcapng_begin(struct pcapng *pcapng, FILE *out, uint32_t snap, const char *application)
{
	struct body body = {.len = 0};
	const uint64_t unknown = UINT64_MAX;

	*pcapng = (struct pcapng){.out = out, .snap = snap};
	body_u32(&body, 0x1a2b3c4d);
	body_u32(&body, 1); /* version 1.0 */
	body_put(&body, &unknown, sizeof(unknown));
	body_option(&body, SHB_USERAPPL, "vma_dump", 8);
	body_option(&body, OPT_COMMENT, application, (uint16_t)strlen(application));
	body_u32(&body, 0);
	return block_write(pcapng, BLOCK_SECTION, &body);
}

static bool write_interface(struct pcapng *pcapng, const char *name)
{
	struct body body = {.len = 0};
	const uint8_t nanoseconds = 9;

	body_u32(&body, LINKTYPE_ETHERNET);
	body_u32(&body, pcapng->snap);
	body_option(&body, IF_NAME, name, (uint16_t)strlen(name));
	body_option(&body, IF_TSRESOL, &nanoseconds, 1);
	body_u32(&body, 0);
	return block_write(pcapng, BLOCK_INTERFACE, &body);
}

/* Its number; one more than there is room for counts as the last. */
static bool interface_of(struct pcapng *pcapng, const char *name, uint32_t *number)
{
	for (*number = 0; *number < pcapng->count; (*number)++)
		if (strcmp(pcapng->names[*number], name) == 0)
			return true;
	if (pcapng->count == PCAPNG_INTERFACES) {
		*number = PCAPNG_INTERFACES - 1;
		return true;
	}
	snprintf(pcapng->names[pcapng->count++], VMA_CAPTURE_TEXT_MAX, "%s", name);
	return write_interface(pcapng, name);
}

bool pcapng_packet(struct pcapng *pcapng, const struct vma_capture_info *info, const uint8_t *data, const char *comment)
{
	const uint32_t captured = info->captured < pcapng->snap ? info->captured : pcapng->snap;
	const uint32_t direction = info->kind == VMA_CAPTURE_IN ? 1 : 2; /* inbound, outbound */
	struct body body = {.len = 0};
	uint32_t number;

	if (!interface_of(pcapng, info->text, &number))
		return false;
	body_u32(&body, number);
	body_time(&body, info->time_ns);
	body_u32(&body, captured);
	body_u32(&body, info->len);
	body_put(&body, data, captured);
	body_option(&body, EPB_FLAGS, &direction, sizeof(direction));
	if (comment != NULL)
		body_option(&body, OPT_COMMENT, comment, (uint16_t)strlen(comment));
	body_u32(&body, 0);
	return block_write(pcapng, BLOCK_PACKET, &body);
}

bool pcapng_end(struct pcapng *pcapng, uint64_t seen, uint64_t lost, uint64_t time_ns)
{
	struct body body = {.len = 0};
	uint32_t number;

	if (pcapng->count == 0 && !interface_of(pcapng, "none", &number))
		return false;
	body_u32(&body, 0);
	body_time(&body, time_ns);
	body_option(&body, ISB_IFRECV, &seen, sizeof(seen));
	body_option(&body, ISB_IFDROP, &lost, sizeof(lost));
	body_u32(&body, 0);
	return block_write(pcapng, BLOCK_STATISTICS, &body) && fflush(pcapng->out) == 0;
}
