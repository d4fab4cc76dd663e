/* peer_stream - TCP sockets of a peer. Functions that make a descriptor return it, or -1, and write the answer. */
#ifndef PEER_STREAM_H
#define PEER_STREAM_H

#include <stdbool.h>
#include <stddef.h>

int stream_listen(const char *args, char *text, size_t size);    /* IP PORT [BACKLOG] */
int peer_stream_dial(const char *args, char *text, size_t size); /* IP PORT [FROM_IP FROM_PORT] */
int peer_stream_accept(int listener, int wait_ms, char *text, size_t size);
/* False: not one of these commands. */
bool peer_stream_command(const char *verb, int fd, const char *args, char *text, size_t size);

#endif
