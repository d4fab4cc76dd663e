/* watch - see watch.h. */
#include <errno.h>
#include <string.h>

#include "../os.h"
#include "vmad_priv.h"
#include "watch.h"

int vmad_watch_create_right_fd(unsigned ifindex, const char *ifname)
{
	return nic_fd_move_high(vmad_permission_socket_create(ifindex, ifname));
}

int vmad_watch_connect(unsigned ifindex, const char *ifname, int right_fd, struct vmad_connecting *connecting,
                       struct vmad_client **out)
{
	const struct vmad_connect_attr how = {.ifindex = ifindex,
	                                      .ifname = ifname,
	                                      .right_fd = right_fd,
	                                      .timeout_ms = VMAD_WATCH_BEGIN_MS,
	                                      .connecting = connecting};
	struct vmad_msg msg = {.type = VMAD_WATCH, .watch = {.op = VMAD_WATCH_BEGIN}};
	struct vmad_client *client;
	int fds[VMAD_FDS_MAX], rc = vmad_client_connect_once(&how, &client);
	unsigned nfds = 0;

	if (rc < 0)
		return rc;
	rc = vmad_client_request(client, &msg, NULL, 0, fds, &nfds, os_now_ms() + VMAD_WATCH_BEGIN_MS);
	for (unsigned i = 0; rc != -EPIPE && i < nfds; i++)
		os_close(fds[i]);
	if (rc == 0) {
		*out = client;
		return 0;
	}
	pthread_mutex_lock(connecting->lock);
	vmad_connecting_remove(connecting, client);
	vmad_client_close(client);
	pthread_mutex_unlock(connecting->lock);
	return rc;
}

void vmad_watch_disconnect(struct vmad_client *client)
{
	vmad_client_close(client);
}

int vmad_watch_fd(const struct vmad_client *client)
{
	return vmad_client_fd(client);
}

/* Not answered. What was not sent is not owed: the caller tells all anew. */
static bool vmad_watch_send_request(struct vmad_client *client, uint16_t op, const struct vma_flow_key *key)
{
	struct vmad_msg msg = {.magic = VMAD_MAGIC,
	                       .version = VMAD_VERSION,
	                       .type = VMAD_WATCH,
	                       .seq = ++client->seq,
	                       .watch = {.op = op}};
	struct vmad_watched *watched = &msg.watch.watched[0];

	if (key != NULL) {
		msg.watch.count = 1;
		watched->local_port_be = key->local_port_be;
		watched->peer_port_be = key->peer_port_be;
		watched->vlan = key->vlan;
		memcpy(watched->local, key->local, sizeof(watched->local));
		memcpy(watched->peer, key->peer, sizeof(watched->peer));
	}
	return vmad_send_message_with_fds(client->fd, &msg, NULL, 0) == 0;
}

bool vmad_watch_add(struct vmad_client *client, const struct vma_flow_key *key)
{
	return vmad_watch_send_request(client, VMAD_WATCH_ADD, key);
}

bool vmad_watch_del(struct vmad_client *client, const struct vma_flow_key *key)
{
	return vmad_watch_send_request(client, VMAD_WATCH_DEL, key);
}

bool vmad_watch_forget_all(struct vmad_client *client)
{
	return vmad_watch_send_request(client, VMAD_WATCH_FORGET, NULL);
}

/* An older vmad knows no such slot; one without CAP_NET_RAW to show has none of these connections. */
int vmad_export_minisocks_of_verbs_card(struct vmad_client *client, const struct vma_flow_minisock *minisocks,
                                        unsigned n)
{
	return vmad_client_minisock_export(client, VMAD_SLOT_CARD, minisocks, n) == 0 ? 0 : -EOPNOTSUPP;
}
