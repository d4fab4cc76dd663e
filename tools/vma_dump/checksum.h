/* checksum - a checksum of UDP or TCP that the device, or the peer's, would finish. */
#ifndef VMA_DUMP_CHECKSUM_H
#define VMA_DUMP_CHECKSUM_H

#include <stdint.h>

/*
 * If the checksum field of the frame has just the pseudo-header's sum, the checksum takes its place. The frame has to
 * be whole: of a part nothing is changed. Frames that are no IPv4, and fragments, are left alone.
 */
void checksum_complete_l4_if_pseudo_only(uint8_t *frame, uint32_t len);

#endif
