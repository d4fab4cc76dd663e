/* peer_ping - echo requests, which follow what was sent before them. */
#ifndef PEER_PING_H
#define PEER_PING_H

#include <stddef.h>

/* Carries out "ping" of peer_commands.c. */
void peer_ping_command(const char *args, char *answer, size_t size);

#endif
