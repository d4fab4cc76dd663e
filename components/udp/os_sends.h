/* os_sends.h - messages between the two halves of the data path. */
#ifndef VMA_UDP_OS_SENDS_H
#define VMA_UDP_OS_SENDS_H

#include "udp_priv.h"

/*
 * Datagrams that sockets of this process have sent through their shadows: they may have arrived at another one of its
 * shadows by now, so a receiver that finds nothing asks the OS anew when this has moved.
 */
extern _Atomic uint64_t udp_sends_by_os_count __attribute__((visibility("hidden")));

/* After fork: flows and ring contexts of this process's own. */
void udp_offload_inherited_socket(struct udp_sock *sock) __attribute__((cold));

#endif
