/* Rules: what a program's specifications say, as the fields that the card compares. */
#include "driver.h"
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* memcpy of a field's value and mask. */
#define RULE_COPY_FIELD(rule, field, spec, name)                                                                       \
	do {                                                                                                           \
		memcpy(&(rule)->value.field, &(spec)->val.name, sizeof((rule)->value.field));                          \
		memcpy(&(rule)->mask.field, &(spec)->mask.name, sizeof((rule)->mask.field));                           \
	} while (0)

static void rule_match_whole_byte(uint8_t *value, uint8_t *mask, uint8_t wanted)
{
	*value = wanted;
	*mask = 0xff;
}

static int rule_add_eth(struct card_rule *rule, const struct ibv_flow_spec_eth *spec)
{
	RULE_COPY_FIELD(rule, dst_mac, spec, dst_mac);
	RULE_COPY_FIELD(rule, src_mac, spec, src_mac);
	RULE_COPY_FIELD(rule, ether_type, spec, ether_type);
	RULE_COPY_FIELD(rule, vlan_tag, spec, vlan_tag);
	if (spec->mask.vlan_tag)
		rule_match_whole_byte(&rule->value.has_tag, &rule->mask.has_tag, 1);
	return 0;
}

static int rule_add_ipv4(struct card_rule *rule, const struct ibv_flow_spec_ipv4 *spec)
{
	rule_match_whole_byte(&rule->value.ip_version, &rule->mask.ip_version, 4);
	RULE_COPY_FIELD(rule, src_ip4, spec, src_ip);
	RULE_COPY_FIELD(rule, dst_ip4, spec, dst_ip);
	return 0;
}

static int rule_add_ipv4_ext(struct card_rule *rule, const struct ibv_flow_spec_ipv4_ext *spec)
{
	if (spec->mask.flags)
		return EOPNOTSUPP;
	rule_match_whole_byte(&rule->value.ip_version, &rule->mask.ip_version, 4);
	RULE_COPY_FIELD(rule, src_ip4, spec, src_ip);
	RULE_COPY_FIELD(rule, dst_ip4, spec, dst_ip);
	RULE_COPY_FIELD(rule, proto, spec, proto);
	RULE_COPY_FIELD(rule, tos, spec, tos);
	RULE_COPY_FIELD(rule, ttl, spec, ttl);
	return 0;
}

static int rule_add_ipv6(struct card_rule *rule, const struct ibv_flow_spec_ipv6 *spec)
{
	if (spec->mask.flow_label)
		return EOPNOTSUPP;
	rule_match_whole_byte(&rule->value.ip_version, &rule->mask.ip_version, 6);
	RULE_COPY_FIELD(rule, src_ip6, spec, src_ip);
	RULE_COPY_FIELD(rule, dst_ip6, spec, dst_ip);
	RULE_COPY_FIELD(rule, proto, spec, next_hdr);
	RULE_COPY_FIELD(rule, tos, spec, traffic_class);
	RULE_COPY_FIELD(rule, ttl, spec, hop_limit);
	return 0;
}

static int rule_add_ports(struct card_rule *rule, const struct ibv_flow_spec_tcp_udp *spec, uint8_t proto)
{
	rule_match_whole_byte(&rule->value.proto, &rule->mask.proto, proto);
	RULE_COPY_FIELD(rule, src_port, spec, src_port);
	RULE_COPY_FIELD(rule, dst_port, spec, dst_port);
	/* Fragments have none. */
	if (spec->mask.src_port || spec->mask.dst_port)
		rule_match_whole_byte(&rule->value.has_ports, &rule->mask.has_ports, 1);
	return 0;
}

static int rule_add_spec(struct card_rule *rule, const struct ibv_flow_spec *spec)
{
#define RULE_ADD_SPEC_OF_SIZE(member, call) (spec->hdr.size == sizeof(spec->member) ? call : EINVAL)
	switch (spec->hdr.type) {
	case IBV_FLOW_SPEC_ETH:
		return RULE_ADD_SPEC_OF_SIZE(eth, rule_add_eth(rule, &spec->eth));
	case IBV_FLOW_SPEC_IPV4:
		return RULE_ADD_SPEC_OF_SIZE(ipv4, rule_add_ipv4(rule, &spec->ipv4));
	case IBV_FLOW_SPEC_IPV4_EXT:
		return RULE_ADD_SPEC_OF_SIZE(ipv4_ext, rule_add_ipv4_ext(rule, &spec->ipv4_ext));
	case IBV_FLOW_SPEC_IPV6:
		return RULE_ADD_SPEC_OF_SIZE(ipv6, rule_add_ipv6(rule, &spec->ipv6));
	case IBV_FLOW_SPEC_TCP:
		return RULE_ADD_SPEC_OF_SIZE(tcp_udp, rule_add_ports(rule, &spec->tcp_udp, IPPROTO_TCP));
	case IBV_FLOW_SPEC_UDP:
		return RULE_ADD_SPEC_OF_SIZE(tcp_udp, rule_add_ports(rule, &spec->tcp_udp, IPPROTO_UDP));
	case IBV_FLOW_SPEC_ACTION_TAG:
		rule->flow_tag = spec->flow_tag.tag_id;
		return RULE_ADD_SPEC_OF_SIZE(flow_tag, 0);
	case IBV_FLOW_SPEC_ACTION_DROP:
		rule->drops = 1;
		return RULE_ADD_SPEC_OF_SIZE(drop, 0);
	default:
		return EOPNOTSUPP;
	}
#undef RULE_ADD_SPEC_OF_SIZE
}

static int rule_parse_ibv_flow_attr(struct card_rule *rule, const struct ibv_flow_attr *attr)
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

/* A slow card keeps the caller waiting, and nobody else. */
static int flow_ask_card(struct soft_context *context, struct card_request *request, struct card_reply *reply)
{
	int error;

	while ((error = soft_ask_card(context, request, reply, NULL)) == EAGAIN && reply->wait_ms != 0) {
		sleep_ms(reply->wait_ms);
		request->flow.has_waited = 1;
	}
	return error;
}

/* NULL, with errno. */
static struct ibv_flow *flow_create(struct soft_context *context, const struct card_rule *rule)
{
	struct card_request request = {.type = CARD_FLOW_CREATE, .flow.rule = *rule};
	struct card_reply reply = {0};
	struct soft_flow *flow;
	int error = flow_ask_card(context, &request, &reply);

	if (error) {
		errno = error;
		return NULL;
	}
	flow = soft_object_new(context, sizeof(*flow), offsetof(struct soft_flow, object), "rule");
	if (!flow) {
		soft_ask_card_about_object(context, CARD_FLOW_DESTROY, reply.object);
		errno = ENOMEM;
		return NULL;
	}
	flow->flow.context = &context->ibv.context;
	flow->flow.handle = reply.object;
	return &flow->flow;
}

struct ibv_flow *soft_create_flow(struct ibv_qp *ibv_qp, struct ibv_flow_attr *attr)
{
	struct soft_context *context = soft_context(ibv_qp->context);
	struct card_rule rule = {.qp_num = ibv_qp->qp_num};
	int error = soft_check_context_and_object(context, &soft_qp(ibv_qp)->object);

	if (!error)
		error = rule_parse_ibv_flow_attr(&rule, attr);
	if (!error)
		return flow_create(context, &rule);
	errno = error;
	return NULL;
}

int soft_destroy_flow(struct ibv_flow *ibv_flow)
{
	struct soft_flow *flow = (struct soft_flow *)ibv_flow;
	struct soft_context *context = soft_context(ibv_flow->context);
	struct card_request request = {.type = CARD_FLOW_DESTROY, .object = ibv_flow->handle};
	struct card_reply reply = {0};
	int error = soft_check_context_and_object(context, &flow->object);

	if (!error)
		error = flow_ask_card(context, &request, &reply);
	if (!error)
		soft_object_mark_dead(&flow->object);
	return error;
}

/* ---- what the library of mlx5 has for rules, with VMASOFT_MLX5=1, where the driver is preloaded ---- */

#define EXPORT __attribute__((visibility("default")))
#define MATCH_BYTES 64
#define MATCH_CVLAN 0x80

struct mlx5dv_flow_matcher {
	struct soft_object object;
	struct soft_context *context;
	uint16_t priority;
	uint8_t mask[MATCH_BYTES];
};

EXPORT bool mlx5dv_is_supported(struct ibv_device *device)
{
	const char *wanted = getenv("VMASOFT_MLX5");

	(void)device;
	return wanted && strcmp(wanted, "1") == 0;
}

EXPORT struct mlx5dv_flow_matcher *mlx5dv_create_flow_matcher(struct ibv_context *ibv_context,
                                                              struct mlx5dv_flow_matcher_attr *attr)
{
	struct soft_context *context = soft_context(ibv_context);
	struct mlx5dv_flow_matcher *matcher;
	int error = soft_check_context_and_object(context, NULL);

	if (!error && (attr->type != IBV_FLOW_ATTR_NORMAL || attr->flags || attr->comp_mask ||
	               attr->match_criteria_enable != 1 || attr->match_mask->match_sz != MATCH_BYTES))
		error = EINVAL;
	matcher = error ? NULL
	                : soft_object_new(context, sizeof(*matcher), offsetof(struct mlx5dv_flow_matcher, object),
	                                  "matcher");
	if (!matcher) {
		errno = error ? error : ENOMEM;
		return NULL;
	}
	matcher->context = context;
	matcher->priority = attr->priority;
	memcpy(matcher->mask, attr->match_mask->match_buf, MATCH_BYTES);
	return matcher;
}

EXPORT int mlx5dv_destroy_flow_matcher(struct mlx5dv_flow_matcher *matcher)
{
	int error = soft_check_context_and_object(matcher->context, &matcher->object);

	if (!error)
		soft_object_mark_dead(&matcher->object);
	return error;
}

/* Of the headers, as the device's manual has them, those that the card compares. */
static void card_match_read_headers(struct card_match *match, const uint8_t *at)
{
	memcpy(match->src_mac, at, 6);
	memcpy(&match->ether_type, at + 6, 2);
	memcpy(match->dst_mac, at + 8, 6);
	memcpy(&match->vlan_tag, at + 14, 2);
	match->proto = at[16];
	match->has_tag = at[18] & MATCH_CVLAN ? 1 : 0;
	memcpy(&match->src_port, at + 20, 2);
	memcpy(&match->dst_port, at + 22, 2);
	memcpy(&match->src_ip4, at + 44, 4);
	memcpy(&match->dst_ip4, at + 60, 4);
}

/* Bits that this card does not compare, or a value outside its mask: the device refuses, too. */
static bool card_match_is_supported(const uint8_t *value, const uint8_t *mask)
{
	static const struct {
		uint8_t from, to;
	} unknown[] = {{17, 18}, {19, 20}, {24, 44}, {48, 60}};

	for (int i = 0; i < MATCH_BYTES; i++)
		if (value[i] & ~mask[i])
			return false;
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
		for (int at = unknown[i].from; at < unknown[i].to; at++)
			if (mask[at])
				return false;
	return !(mask[18] & ~MATCH_CVLAN);
}

EXPORT struct ibv_flow *mlx5dv_create_flow(struct mlx5dv_flow_matcher *matcher,
                                           struct mlx5dv_flow_match_parameters *value, size_t n,
                                           struct mlx5dv_flow_action_attr actions[])
{
	struct card_rule rule = {.priority = matcher->priority, .misses = 1};
	uint8_t headers[MATCH_BYTES];
	int error = soft_check_context_and_object(matcher->context, &matcher->object);

	if (!error && (n != 1 || actions[0].type != MLX5DV_FLOW_ACTION_DEFAULT_MISS || value->match_sz != MATCH_BYTES))
		error = EOPNOTSUPP;
	if (!error) {
		memcpy(headers, value->match_buf, MATCH_BYTES);
		error = card_match_is_supported(headers, matcher->mask) ? 0 : EINVAL;
	}
	if (error) {
		errno = error;
		return NULL;
	}
	card_match_read_headers(&rule.value, headers);
	card_match_read_headers(&rule.mask, matcher->mask);
	return flow_create(matcher->context, &rule);
}
