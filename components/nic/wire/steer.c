/*
 * steer - the flow table of one end: which queue pair a frame is for, as a device would decide.
 *
 * The table belongs to the engine: only the engine's holder reads and changes it, so it is an ordinary hash table.
 */
#include <errno.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "wire.h"

#define FLOWS_FIRST 64

static uint16_t steer_get16(const char *p)
{
	return (uint16_t)((uint8_t)p[0] << 8 | (uint8_t)p[1]);
}

bool wire_parse_packet_headers(const char *snap, uint32_t snap_len, uint32_t len, struct wire_headers *out)
{
	uint32_t l3 = ETHER_HDR_LEN;
	uint16_t type;

	memset(out, 0, sizeof(*out));
	if (snap_len < ETHER_HDR_LEN + 4)
		return false;
	type = steer_get16(snap + 12);
	if (type == ETHERTYPE_VLAN) {
		out->key.vlan = steer_get16(snap + 14) & 0xfff;
		type = steer_get16(snap + 16);
		l3 += 4;
	}
	if (type != ETHERTYPE_IP || snap_len < l3 + 20)
		return false;
	const char *ip = snap + l3;
	uint32_t header = ((uint8_t)ip[0] & 0xf) * 4U, total = steer_get16(ip + 2);
	if ((uint8_t)ip[0] >> 4 != 4 || header < 20 || total < header || total > len - l3)
		return false;
	if ((steer_get16(ip + 6) & 0x3fff) != 0) /* more fragments, or an offset */
		return false;
	uint32_t l4_min = ip[9] == IPPROTO_UDP ? 8 : 20;
	if ((ip[9] != IPPROTO_UDP && ip[9] != IPPROTO_TCP) || total - header < l4_min ||
	    snap_len < l3 + header + l4_min)
		return false;
	const char *l4 = ip + header;
	out->key.family = AF_INET;
	out->key.proto = (uint8_t)ip[9];
	memcpy(out->key.peer, ip + 12, 4);
	memcpy(out->key.local, ip + 16, 4);
	memcpy(&out->key.peer_port_be, l4, 2);
	memcpy(&out->key.local_port_be, l4 + 2, 2);
	out->l3_off = l3;
	out->l4_off = l3 + header;
	out->l4_len = total - header;
	return true;
}

/* ---- the table ---- */

static uint32_t key_hash(const struct vma_flow_key *key)
{
	uint64_t word, hash = 0x9e3779b97f4a7c15U;

	for (size_t i = 0; i < sizeof(*key); i += sizeof(word)) {
		memcpy(&word, (const char *)key + i, sizeof(word));
		hash = (hash ^ word) * 0xff51afd7ed558ccdU;
		hash ^= hash >> 32;
	}
	return (uint32_t)hash;
}

/* The slot that holds `key`, or the free one where it would go. The table is never more than half full. */
static struct wire_flow *wire_flow_find_slot(const struct wire_flows *flows, const struct vma_flow_key *key)
{
	uint32_t i = key_hash(key) & flows->mask;

	while (flows->slots[i].qp != NULL && memcmp(&flows->slots[i].key, key, sizeof(*key)) != 0)
		i = (i + 1) & flows->mask;
	return &flows->slots[i];
}

int wire_flows_init(struct wire_flows *flows)
{
	flows->slots = calloc(FLOWS_FIRST, sizeof(*flows->slots));
	flows->mask = FLOWS_FIRST - 1;
	flows->used = 0;
	return flows->slots != NULL ? 0 : -ENOMEM;
}

void wire_flows_fini(struct wire_flows *flows)
{
	free(flows->slots);
	flows->slots = NULL;
}

static int flows_grow(struct wire_flows *flows)
{
	struct wire_flows bigger = {.mask = flows->mask * 2 + 1, .used = flows->used};

	bigger.slots = calloc((size_t)bigger.mask + 1, sizeof(*bigger.slots));
	if (bigger.slots == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i <= flows->mask; i++)
		if (flows->slots[i].qp != NULL)
			*wire_flow_find_slot(&bigger, &flows->slots[i].key) = flows->slots[i];
	free(flows->slots);
	*flows = bigger;
	return 0;
}

int wire_flows_add(struct wire_flows *flows, struct wire_qp *qp, const struct vma_flow_rule *rule)
{
	struct wire_flow *flow = wire_flow_find_slot(flows, &rule->key);

	if (flow->qp != NULL)
		return flow->qp == qp ? -EEXIST : -EADDRINUSE;
	if (flows->used >= WIRE_FLOWS)
		return -ENOSPC;
	if (flows->used * 2 >= flows->mask) {
		int rc = flows_grow(flows);
		if (rc != 0)
			return rc;
		flow = wire_flow_find_slot(flows, &rule->key);
	}
	*flow = (struct wire_flow){.key = rule->key, .qp = qp, .tag = rule->tag};
	flows->used++;
	return 0;
}

/* Empties a slot and moves up those behind it that probed past it. */
static void flow_table_clear_slot(struct wire_flows *flows, struct wire_flow *flow)
{
	uint32_t hole = (uint32_t)(flow - flows->slots);

	flow->qp = NULL;
	flows->used--;
	for (uint32_t i = (hole + 1) & flows->mask; flows->slots[i].qp != NULL; i = (i + 1) & flows->mask) {
		uint32_t home = key_hash(&flows->slots[i].key) & flows->mask;
		if (((i - home) & flows->mask) < ((i - hole) & flows->mask))
			continue;
		flows->slots[hole] = flows->slots[i];
		flows->slots[i].qp = NULL;
		hole = i;
	}
}

int wire_flows_del(struct wire_flows *flows, struct wire_qp *qp, const struct vma_flow_key *key)
{
	struct wire_flow *flow = wire_flow_find_slot(flows, key);

	if (flow->qp != qp)
		return -ENOENT;
	flow_table_clear_slot(flows, flow);
	return 0;
}

int wire_flows_move(struct wire_flows *flows, const struct wire_qp *from, struct wire_qp *to,
                    const struct vma_flow_key *key)
{
	struct wire_flow *flow = wire_flow_find_slot(flows, key);

	if (flow->qp != from)
		return -ENOENT;
	flow->qp = to;
	return 0;
}

void wire_flows_del_qp(struct wire_flows *flows, const struct wire_qp *qp)
{
	for (uint32_t i = 0; i <= flows->mask;) {
		if (flows->slots[i].qp == qp)
			flow_table_clear_slot(
			        flows, &flows->slots[i]); /* another may have moved here, from further on: look again */
		else
			i++;
	}
}

const struct wire_flow *wire_flows_find(const struct wire_flows *flows, const struct wire_headers *headers)
{
	struct vma_flow_key any_peer = headers->key;
	const struct wire_flow *flow = wire_flow_find_slot(flows, &headers->key);

	if (flow->qp != NULL)
		return flow;
	any_peer.peer_port_be = 0;
	memset(any_peer.peer, 0, sizeof(any_peer.peer));
	flow = wire_flow_find_slot(flows, &any_peer);
	return flow->qp != NULL ? flow : NULL;
}
