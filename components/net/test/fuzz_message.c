/* Any bytes as a message of the kernel: links, addresses, neighbours, routes, rules. */
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "../message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const struct vma_net_key key = {.family = AF_INET, .dst = {10, 0, 0, 1}};
	struct nlmsghdr *message;
	struct net_msg_prefix prefix;
	struct vma_net_link link;
	struct vma_net_addr addr;
	struct vma_net_neigh neigh;
	struct vma_net_route route;
	bool ports;

	if (bytes < NLMSG_HDRLEN || bytes > 65536)
		return 0;
	message = malloc(bytes);
	if (message == NULL)
		return 0;
	memcpy(message, data, bytes);
	message->nlmsg_len = (uint32_t)bytes; /* as what is handed over always has it */
	net_msg_parse_link(message, &link);
	net_msg_parse_addr(message, &addr);
	net_msg_parse_neigh(message, &neigh);
	net_msg_parse_route(message, &key, &route);
	if (net_msg_parse_rule_selects_ports(message, &ports) == 0 && (unsigned)ports > 1)
		abort();
	if (net_msg_parse_prefix(message, &prefix) == 0)
		net_msg_prefix_covers(&prefix, key.dst);
	free(message);
	return 0;
}
