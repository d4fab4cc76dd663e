/* socket_filter - the packets of one socket, in libpcap's language. */
#ifndef VMA_DUMP_SOCKET_FILTER_H
#define VMA_DUMP_SOCKET_FILTER_H

#include <stdbool.h>
#include <stddef.h>

#include <vma/stats_read.h>

/* By the socket's protocol, addresses and ports at this moment. False: the process has no such socket, or it is unbound. */
bool socket_filter(struct vma_stats_view *view, int fd, char *text, size_t bytes);

#endif
