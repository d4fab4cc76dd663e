/*
 * endpoint.h - (ring context, address, port): a listener of tcp, and the sockets that share it.
 *
 * One lock for all of them, held while rings attach and detach; nothing that runs under a ring's flag takes it. The
 * calls below are made with it, and with the socket's file.lock.
 */
#ifndef VMA_STREAM_ENDPOINT_H
#define VMA_STREAM_ENDPOINT_H

#include "stream_priv.h"

struct endpoint;

void endpoints_lock(void);
void endpoints_unlock(void);
/* The socket takes part in the endpoint of its port and this address, made if need be. 0, or why not. */
int stream_endpoint_join(struct stream_sock *sock, struct vma_device *device, uint32_t local, uint16_t vlan,
                         struct endpoint **out);
/* Before the last one leaves: what is half open becomes a connection, if it does so soon. */
void stream_endpoint_drain_half_open(struct endpoint *endpoint);
/*
 * False: other sockets share it. Else the kernel gets who comes from now on, and the socket stays for what is half
 * open: until stream_endpoint_has_no_half_open, and then as long as it likes.
 */
bool stream_endpoint_withdraw(struct endpoint *endpoint);
bool stream_endpoint_has_no_half_open(const struct endpoint *endpoint);
/* Nothing arrives at the socket through it any more. The last one ends it. */
void stream_endpoint_remove_member(struct endpoint *endpoint, const struct stream_sock *sock);
/* The NIC has given its flow back to the kernel. */
bool stream_endpoint_is_revoked(const struct endpoint *endpoint);
bool stream_endpoint_awaits_conn_rules(
        const struct endpoint *endpoint); /* of its connections; a revoked one that is kept meanwhile */
uint64_t stream_endpoint_ring_bit(const struct endpoint *endpoint); /* its bit */
struct vma_ring_ctx *stream_endpoint_ring_ctx(const struct endpoint *endpoint);
void stream_endpoint_set_listener_options(struct endpoint *endpoint, const struct stream_sock *sock);

#endif
