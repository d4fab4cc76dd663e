/* checksum.c - checksum.h's sum as a function. */
#include <vma/packet.h>

#include "checksum.h"

uint64_t vma_csum_add(uint64_t sum, const void *data, size_t len)
{
	return checksum_add(sum, data, len);
}
