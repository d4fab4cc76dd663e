/*
 * listen - metrics by HTTP: GET and HEAD of /metrics.
 *
 * One thread serves all clients, and waits for none of them: a slow one has its answer in a buffer of its own. There
 * are at most LISTEN_CLIENTS connections. A further client waits to be accepted, and a connection that is idle for
 * LISTEN_IDLE_SECONDS is closed. Each request reads the counters anew.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_LISTEN_H
#define VMA_STATS_TOOL_LISTEN_H

#include <sys/socket.h>

#include "options.h"

#define LISTEN_CLIENTS 32
#define LISTEN_IDLE_SECONDS 10

struct listen_address {
	struct sockaddr_storage address;
	socklen_t bytes;
};
/* "PORT" (of 127.0.0.1), "10.0.0.1:PORT" or "[::1]:PORT"; numbers only. Port 0: the kernel chooses. `out` may be NULL.
 * */
bool listen_address_parse(const char *text, struct listen_address *out);
/* Until a signal ends the process, or listening fails: the exit status. */
int http_listen_and_serve_metrics(const struct options *options);

#endif
