/* vmad_priv - the connection to vmad; shared by vmad.c (requests) and connect.c (how it is made). */
#ifndef VMA_NIC_CLIENT_VMAD_PRIV_H
#define VMA_NIC_CLIENT_VMAD_PRIV_H

#include <stdatomic.h>

#include "vmad.h"
#include "../xdp/proto.h"

#define VMAD_REVOKED_MAX 64 /* kept while an answer is awaited; beyond that the connection counts as broken */
#define VMAD_ADOPTS_MAX 256 /* the same; of more than that the rest is lost, and their peers ask in vain */

struct vmad_client {
	int fd;
	int over_fd; /* while it connects: readable, and it ends in vain; -1 */
	struct vmad_client *next_connecting;
	_Atomic bool broken; /* no answer came: nothing more is said here */
	_Atomic uint32_t seq;
	unsigned revoked, adoptions;
	struct vmad_msg_flow revoked_flow[VMAD_REVOKED_MAX];
	struct vmad_msg_adopt adopt[VMAD_ADOPTS_MAX];
};

/* Sends `msg` and replaces it by the answer. Its result, or -EPIPE; the answer's fds are the caller's. */
int vmad_client_request(struct vmad_client *client, struct vmad_msg *msg, const int *send_fds, unsigned nsend, int *fds,
                        unsigned *nfds, uint64_t until_ms);

#endif
