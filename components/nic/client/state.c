/* state - asks the vmad of an interface what it has, as a client that rents nothing. */
#include <errno.h>
#include <net/if.h>
#include <string.h>

#include <vma/nic_state.h>

#include "../os.h"
#include "vmad_priv.h"

#define STATE_TIMEOUT_MS 3000

/* The next place that has something: its number, or -ENOENT. */
static int vmad_request_state_from(struct vmad_client *client, uint32_t place, struct vmad_msg_state *out)
{
	struct vmad_msg msg = {.type = VMAD_STATE, .state = {.place = place}};
	int fds[VMAD_FDS_MAX];
	unsigned nfds = 0;
	int rc = vmad_client_request(client, &msg, NULL, 0, fds, &nfds, os_now_ms() + VMAD_REPLY_TIMEOUT_MS);

	if (rc == -EPIPE)
		return rc;
	for (unsigned i = 0; i < nfds; i++) /* none belong here */
		os_close(fds[i]);
	if (rc < 0)
		return rc;
	if (msg.state.place < place || msg.state.place >= VMAD_STATE_PLACES)
		return -EPROTO;
	*out = msg.state;
	return (int)out->place;
}

int vmad_client_fetch_vmad_state(struct vmad_client *client, struct vma_vmad_state *out)
{
	struct vmad_msg_state state;
	int place = 0;

	*out = (struct vma_vmad_state){0};
	for (uint32_t from = 0; (place = vmad_request_state_from(client, from, &state)) >= 0;
	     from = (uint32_t)place + 1) {
		if (place == 0)
			out->interface = state.interface;
		else if (place <= VMA_VMAD_CLIENTS_MAX)
			out->client[out->clients++] = state.client;
		else
			out->queue_pair[out->queue_pairs++] = state.queue_pair;
	}
	return place == -ENOENT ? 0 : place;
}

int vma_vmad_query_state(const char *interface, struct vma_vmad_state *out)
{
	struct vmad_connect_attr how = {
	        .ifindex = if_nametoindex(interface), .ifname = interface, .timeout_ms = STATE_TIMEOUT_MS};
	struct vmad_client *client;
	int rc;

	if (how.ifindex == 0)
		return -ENODEV;
	how.right_fd = vmad_permission_socket_create(how.ifindex, interface);
	rc = vmad_client_connect(&how, &client);
	if (how.right_fd >= 0)
		os_close(how.right_fd);
	if (rc < 0)
		return rc;
	rc = vmad_client_fetch_vmad_state(client, out);
	vmad_client_close(client);
	return rc;
}
