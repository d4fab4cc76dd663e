/* Rules: what a program's specifications say, as the fields that the card compares. */
#include "driver.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <time.h>

/* memcpy of a field's value and mask. */
#define TAKE(rule, field, spec, name)                                                                                  \
	do {                                                                                                           \
		memcpy(&(rule)->value.field, &(spec)->val.name, sizeof((rule)->value.field));                          \
		memcpy(&(rule)->mask.field, &(spec)->mask.name, sizeof((rule)->mask.field));                           \
	} while (0)

static void rule_wants(uint8_t *value, uint8_t *mask, uint8_t wanted)
{
	*value = wanted;
	*mask = 0xff;
}

static int rule_add_eth(struct card_rule *rule, const struct ibv_flow_spec_eth *spec)
{
	TAKE(rule, dst_mac, spec, dst_mac);
	TAKE(rule, src_mac, spec, src_mac);
	TAKE(rule, ether_type, spec, ether_type);
	TAKE(rule, vlan_tag, spec, vlan_tag);
	if (spec->mask.vlan_tag)
		rule_wants(&rule->value.has_tag, &rule->mask.has_tag, 1);
	return 0;
}

static int rule_add_ipv4(struct card_rule *rule, const struct ibv_flow_spec_ipv4 *spec)
{
	rule_wants(&rule->value.ip_version, &rule->mask.ip_version, 4);
	TAKE(rule, src_ip4, spec, src_ip);
	TAKE(rule, dst_ip4, spec, dst_ip);
	return 0;
}

static int rule_add_ipv4_ext(struct card_rule *rule, const struct ibv_flow_spec_ipv4_ext *spec)
{
	if (spec->mask.flags)
		return EOPNOTSUPP;
	rule_wants(&rule->value.ip_version, &rule->mask.ip_version, 4);
	TAKE(rule, src_ip4, spec, src_ip);
	TAKE(rule, dst_ip4, spec, dst_ip);
	TAKE(rule, proto, spec, proto);
	TAKE(rule, tos, spec, tos);
	TAKE(rule, ttl, spec, ttl);
	return 0;
}

static int rule_add_ipv6(struct card_rule *rule, const struct ibv_flow_spec_ipv6 *spec)
{
	if (spec->mask.flow_label)
		return EOPNOTSUPP;
	rule_wants(&rule->value.ip_version, &rule->mask.ip_version, 6);
	TAKE(rule, src_ip6, spec, src_ip);
	TAKE(rule, dst_ip6, spec, dst_ip);
	TAKE(rule, proto, spec, next_hdr);
	TAKE(rule, tos, spec, traffic_class);
	TAKE(rule, ttl, spec, hop_limit);
	return 0;
}

static int rule_add_ports(struct card_rule *rule, const struct ibv_flow_spec_tcp_udp *spec, uint8_t proto)
{
	rule_wants(&rule->value.proto, &rule->mask.proto, proto);
	TAKE(rule, src_port, spec, src_port);
	TAKE(rule, dst_port, spec, dst_port);
	/* Fragments have none. */
	if (spec->mask.src_port || spec->mask.dst_port)
		rule_wants(&rule->value.has_ports, &rule->mask.has_ports, 1);
	return 0;
}

static int rule_add_spec(struct card_rule *rule, const struct ibv_flow_spec *spec)
{
#define SPEC(member, call) (spec->hdr.size == sizeof(spec->member) ? call : EINVAL)
	switch (spec->hdr.type) {
	case IBV_FLOW_SPEC_ETH:
		return SPEC(eth, rule_add_eth(rule, &spec->eth));
	case IBV_FLOW_SPEC_IPV4:
		return SPEC(ipv4, rule_add_ipv4(rule, &spec->ipv4));
	case IBV_FLOW_SPEC_IPV4_EXT:
		return SPEC(ipv4_ext, rule_add_ipv4_ext(rule, &spec->ipv4_ext));
	case IBV_FLOW_SPEC_IPV6:
		return SPEC(ipv6, rule_add_ipv6(rule, &spec->ipv6));
	case IBV_FLOW_SPEC_TCP:
		return SPEC(tcp_udp, rule_add_ports(rule, &spec->tcp_udp, IPPROTO_TCP));
	case IBV_FLOW_SPEC_UDP:
		return SPEC(tcp_udp, rule_add_ports(rule, &spec->tcp_udp, IPPROTO_UDP));
	case IBV_FLOW_SPEC_ACTION_TAG:
		rule->flow_tag = spec->flow_tag.tag_id;
		return SPEC(flow_tag, 0);
	case IBV_FLOW_SPEC_ACTION_DROP:
		rule->drops = 1;
		return SPEC(drop, 0);
	default:
		return EOPNOTSUPP;
	}
#undef SPEC
}

static int rule_read(struct card_rule *rule, const struct ibv_flow_attr *attr)
{
	const char *at = (const char *)(attr + 1);
	int error = 0;

	if (attr->comp_mask || attr->flags ||
	    (attr->type != IBV_FLOW_ATTR_NORMAL && attr->type != IBV_FLOW_ATTR_ALL_DEFAULT))
		return EOPNOTSUPP;
	if (attr->port != 1)
		return EINVAL;
	rule->priority = attr->priority;
	rule->is_default = attr->type == IBV_FLOW_ATTR_ALL_DEFAULT;
	for (int i = 0; i < attr->num_of_specs && !error; i++) {
		struct ibv_flow_spec spec = {0};

		/* They follow each other without regard to alignment. */
		memcpy(&spec.hdr, at, sizeof(spec.hdr));
		if (spec.hdr.size < sizeof(spec.hdr) || spec.hdr.size > sizeof(spec))
			return EINVAL;
		memcpy(&spec, at, spec.hdr.size);
		error = rule_add_spec(rule, &spec);
		at += spec.hdr.size;
	}
	return error;
}

static void sleep_ms(uint32_t ms)
{
	struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};

	while (nanosleep(&time, &time) && errno == EINTR)
		;
}

struct ibv_flow *soft_create_flow(struct ibv_qp *ibv_qp, struct ibv_flow_attr *attr)
{
	struct soft_context *context = soft_context(ibv_qp->context);
	struct card_request request = {.type = CARD_FLOW_CREATE};
	struct card_reply reply = {0};
	struct soft_flow *flow;
	int error = soft_check(context, &soft_qp(ibv_qp)->object);

	if (!error)
		error = rule_read(&request.flow.rule, attr);
	request.flow.rule.qp_num = ibv_qp->qp_num;
	if (!error)
		error = soft_ask(context, &request, &reply, NULL);
	if (error == EAGAIN) {
		/* A slow card keeps the caller waiting, and nobody else. */
		sleep_ms(reply.wait_ms);
		request.flow.has_waited = 1;
		error = soft_ask(context, &request, &reply, NULL);
	}
	if (error) {
		errno = error;
		return NULL;
	}
	flow = soft_object_new(context, sizeof(*flow), offsetof(struct soft_flow, object), "rule");
	if (!flow) {
		soft_ask_about(context, CARD_FLOW_DESTROY, reply.object);
		errno = ENOMEM;
		return NULL;
	}
	flow->flow.context = ibv_qp->context;
	flow->flow.handle = reply.object;
	return &flow->flow;
}

int soft_destroy_flow(struct ibv_flow *ibv_flow)
{
	struct soft_flow *flow = (struct soft_flow *)ibv_flow;
	struct soft_context *context = soft_context(ibv_flow->context);
	int error = soft_check(context, &flow->object);

	if (!error)
		error = soft_ask_about(context, CARD_FLOW_DESTROY, ibv_flow->handle);
	if (!error)
		soft_object_end(&flow->object);
	return error;
}
