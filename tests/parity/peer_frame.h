/* peer_frame - frames as no kernel would send them. */
#ifndef PEER_FRAME_H
#define PEER_FRAME_H

#include <stddef.h>

/* Carries out "frame" of peer_commands.c. */
void peer_frame_send_by_command(const char *args, char *answer, size_t size);

#endif
