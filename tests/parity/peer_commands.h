/* peer_commands - the commands of parity_peer. */
#ifndef PEER_COMMANDS_H
#define PEER_COMMANDS_H

#include <stddef.h>

/* The answer begins with "failed" when it could not be done, and errors are told by number. */
void peer_command(const char *command, char *answer, size_t size);

#endif
