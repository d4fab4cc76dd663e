/* settings.h - the host's defaults (net.ipv4.*): read once, when the first socket is made. */
#ifndef VMA_STREAM_SETTINGS_H
#define VMA_STREAM_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include <vma/tcp.h>

/* The text of /proc/sys/net/ipv4/NAME, cut to size; false: it cannot be read. */
bool sysctl_read(const char *name, char *text, size_t size);
/* The name of a TCP socket's congestion control; false: the kernel does not say. */
bool get_congestion_name_of_kernel_socket(int fd, char name[16]);
/* Options of a new socket, as a kernel socket has them; fd: any TCP socket that has no option set. */
const struct vma_tcp_options *kernel_default_tcp_options(int fd);

#endif
