/*
 * fuzz_vmad_card - any frame to vmad's queue pair of a card. The first byte says whether it is whole. Held: what is read
 * lies within the frame, and a segment has no more payload than the frame says that the packet has.
 */
#include <stdlib.h>
#include <string.h>

#include "../vmad/card.h"
#include "../xdp/flow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct xdp_minisock_segment segment;
	uint8_t *frame;

	if (size == 0 || size > 65536)
		return 0;
	frame = malloc(size > 1 ? size - 1 : 1); /* of its own, so that a byte beyond it is seen */
	if (frame == NULL)
		return 0;
	memcpy(frame, data + 1, size - 1);
	if (vmad_card_parse_segment(frame, (uint32_t)size - 1, data[0] & 1, &segment) &&
	    ((data[0] & 1 && segment.payload_bytes > size - 1) || segment.key.vlan > 4095 || segment.number != 0))
		abort();
	free(frame);
	return 0;
}
