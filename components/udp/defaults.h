/*
 * defaults.h - the system's defaults for new sockets: asked once a second, not for each of them (defaults.c).
 *
 * The sysctls behind these (net.core.rmem_default, net.ipv4.ip_no_pmtu_disc, net.ipv4.ip_default_ttl) change without an
 * event. A socket may be made within a second of such a change, or in another network namespace. Then its mirror may
 * have the old value; its shadow has the right one.
 *
 * Threads: any. Progress: no call waits. `fd` has the option as the system gave it.
 */
#ifndef VMA_UDP_DEFAULTS_H
#define VMA_UDP_DEFAULTS_H

#include <stdbool.h>

int udp_default_rcvbuf(int fd);
int udp_default_pmtu_discover(int fd);
int udp_default_ttl(int fd);
/* AF_INET6 sockets hear only the IPv4 groups that they have joined themselves, unless they say otherwise. */
bool udp_default_mc_all(int fd, int family);

#endif
