/* Rules: which queue pairs get a received frame. */
#include "card.h"
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

struct card_rules_entry {
	struct card_rule rule;
	struct card_client *client;
	uint32_t number; /* 0: free */
	uint64_t hits;
};

/* In the order in which they are looked at: default rules last, then by priority, then by age. */
static struct card_rules_entry rules[CARD_MAX_RULES];
static int n_rules;
static uint32_t card_rules_next_number;

static bool card_rule_goes_before(const struct card_rule *a, const struct card_rule *b)
{
	if (a->is_default != b->is_default)
		return b->is_default;
	return a->priority < b->priority;
}

/* What is outside a mask says nothing. */
static void card_rule_clear_unmasked(struct card_rule *rule)
{
	uint8_t *value = (uint8_t *)&rule->value;
	const uint8_t *mask = (const uint8_t *)&rule->mask;

	for (size_t i = 0; i < sizeof(rule->value); i++)
		value[i] &= mask[i];
}

static bool rule_is_same(const struct card_rule *a, const struct card_rule *b)
{
	return a->is_default == b->is_default && a->priority == b->priority && a->drops == b->drops &&
	       a->misses == b->misses && memcmp(&a->mask, &b->mask, sizeof(a->mask)) == 0 &&
	       memcmp(&a->value, &b->value, sizeof(a->value)) == 0;
}

int card_rules_add(struct card_client *client, const struct card_rule *asked, uint32_t *number)
{
	struct card_rule rule = *asked;
	int at;

	if (card.faults.rules_error)
		return card.faults.rules_error;
	if (!rule.misses && !qp_find(client, rule.qp_num))
		return EINVAL;
	if (n_rules == CARD_MAX_RULES)
		return ENOMEM;
	card_rule_clear_unmasked(&rule);
	for (at = n_rules; at > 0 && card_rule_goes_before(&rule, &rules[at - 1].rule); at--)
		rules[at] = rules[at - 1];
	rules[at] = (struct card_rules_entry){.rule = rule, .client = client, .number = ++card_rules_next_number};
	n_rules++;
	*number = card_rules_next_number;
	return 0;
}

static void card_rules_remove_at(int at)
{
	n_rules--;
	memmove(&rules[at], &rules[at + 1], (size_t)(n_rules - at) * sizeof(rules[0]));
}

int card_rules_remove(struct card_client *client, uint32_t number)
{
	for (int i = 0; i < n_rules; i++) {
		if (rules[i].number == number && rules[i].client == client) {
			card_rules_remove_at(i);
			return 0;
		}
	}
	return EINVAL;
}

bool card_rules_use_qp(uint32_t qp_num)
{
	for (int i = 0; i < n_rules; i++)
		if (!rules[i].rule.misses && rules[i].rule.qp_num == qp_num)
			return true;
	return false;
}

void card_rules_remove_of_client(struct card_client *client)
{
	for (int i = n_rules; i-- > 0;)
		if (rules[i].client == client)
			card_rules_remove_at(i);
}

static bool card_rule_matches(const struct card_rule *rule, const struct card_match *fields)
{
	const uint8_t *value = (const uint8_t *)&rule->value, *mask = (const uint8_t *)&rule->mask;
	const uint8_t *field = (const uint8_t *)fields;

	for (size_t i = 0; i < sizeof(rule->value); i++)
		if ((field[i] & mask[i]) != value[i])
			return false;
	return true;
}

/* The first rule that takes a frame decides. Rules that are the same, of other queue pairs, get a copy each. */
void card_rules_steer_frame(const uint8_t *frame, size_t len)
{
	struct card_match fields;
	struct card_rules_entry *first = NULL;

	frame_read_match_fields(frame, len, &fields);
	for (int i = 0; i < n_rules; i++) {
		struct card_rules_entry *rule = &rules[i];

		if (first && card_rule_goes_before(&first->rule, &rule->rule))
			break;
		if (first ? !rule_is_same(&first->rule, &rule->rule) : !card_rule_matches(&rule->rule, &fields))
			continue;
		if (!first)
			card.counts.rx_matched++;
		first = rule;
		rule->hits++;
		if (rule->rule.drops)
			card.counts.rx_dropped_by_rule++;
		else if (rule->rule.misses) {
			card.counts.rx_missed_by_rule++;
			port_write_frame_to_tap(frame, len);
			return;
		} else
			qp_deliver_frame(&card.qps[rule->rule.qp_num % CARD_MAX_QPS], frame, len, rule->rule.flow_tag);
	}
	if (!first)
		port_write_frame_to_tap(frame, len);
}

/* A rule's addresses and ports, of which 0 may also mean that it does not compare them. */
int card_rules_print(char *text, size_t size)
{
	int len = 0;

	for (int i = 0; i < n_rules && len < (int)size; i++) {
		const struct card_match *value = &rules[i].rule.value;
		char src[INET_ADDRSTRLEN], dst[INET_ADDRSTRLEN];

		inet_ntop(AF_INET, &value->src_ip4, src, sizeof(src));
		inet_ntop(AF_INET, &value->dst_ip4, dst, sizeof(dst));
		len += snprintf(text + len, size - (size_t)len,
		                "rule %u %s 0x%x priority %u proto %u %s:%u %s:%u hits %llu\n", rules[i].number,
		                rules[i].rule.misses ? "kernel" : "qp", rules[i].rule.qp_num, rules[i].rule.priority,
		                value->proto, src, ntohs(value->src_port), dst, ntohs(value->dst_port),
		                (unsigned long long)rules[i].hits);
	}
	return len;
}
