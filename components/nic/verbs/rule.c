/* rule - see rule.h. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "rule.h"

#define VLAN_ID_BITS 0x0fff

/* RFC 1112, section 6.4: the low 23 bits of the group. */
static void rule_set_dest_mac(const struct vma_flow_key *key, const struct verbs_rule_port *at, uint8_t mac[6])
{
	const uint8_t *ip = key->local;

	if (at->is_broadcast)
		memset(mac, 0xff, 6);
	else if ((ip[0] & 0xf0) == 0xe0)
		memcpy(mac, (const uint8_t[]){0x01, 0x00, 0x5e, ip[1] & 0x7f, ip[2], ip[3]}, 6);
	else
		memcpy(mac, at->mac, 6);
}

void verbs_rule_build(const struct vma_flow_key *key, const struct verbs_rule_port *at, struct verbs_rule_spec *out)
{
	*out = (struct verbs_rule_spec){
	        .attr = {.type = IBV_FLOW_ATTR_NORMAL,
	                 .size = sizeof(*out),
	                 .priority = at->priority,
	                 .num_of_specs = 3,
	                 .port = at->port},
	        .eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof(out->eth)},
	        .ipv4 = {.type = IBV_FLOW_SPEC_IPV4, .size = sizeof(out->ipv4)},
	        .l4 = {.type = key->proto == IPPROTO_UDP ? IBV_FLOW_SPEC_UDP : IBV_FLOW_SPEC_TCP,
	               .size = sizeof(out->l4),
	               .val = {.dst_port = key->local_port_be, .src_port = key->peer_port_be},
	               .mask = {.dst_port = key->local_port_be != 0 ? 0xffff : 0}},
	};
	rule_set_dest_mac(key, at, out->eth.val.dst_mac);
	memset(out->eth.mask.dst_mac, 0xff, sizeof(out->eth.mask.dst_mac));
	if (key->vlan != 0) {
		out->eth.val.vlan_tag = htons(key->vlan);
		out->eth.mask.vlan_tag = htons(VLAN_ID_BITS);
	}
	memcpy(&out->ipv4.val.dst_ip, key->local, 4);
	out->ipv4.mask.dst_ip = UINT32_MAX;
	if (key->peer_port_be != 0) {
		memcpy(&out->ipv4.val.src_ip, key->peer, 4);
		out->ipv4.mask.src_ip = UINT32_MAX;
		out->l4.mask.src_port = 0xffff;
	}
}
