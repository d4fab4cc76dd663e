/*
 * fuzz_rules - any file. Every rule that comes out says something that could have been written, and is found again by
 * the first names that it stands for, unless an earlier one of its role stands for them, too.
 */
#include <stdlib.h>
#include <string.h>

#include "../rules_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct heard {
	uint32_t errors, line;
};

static void rules_abort_unless(bool holds)
{
	if (!holds)
		abort();
}

static void check_rules_message(void *arg, const struct vma_rules_message *message)
{
	struct heard *heard = arg;

	rules_abort_unless(message->line >= heard->line && message->column >= 1);
	rules_abort_unless(message->text[0] != '\0' && strlen(message->text) < 256);
	heard->line = message->line;
	heard->errors += message->is_error;
}

static void check_range(const struct vma_rules_range *range)
{
	const uint32_t host = ~range->mask;

	rules_abort_unless((range->address & host) == 0 && (host & (host + 1)) == 0);
	rules_abort_unless(range->first_port <= range->last_port && range->last_port <= 65536);
}

static void check_rule(const struct vma_rules *rules, const struct vma_rule *rule)
{
	struct vma_rules_name names[2];
	const struct vma_rule *found;

	rules_abort_unless(rule->role < VMA_RULES_ROLE_COUNT);
	for (unsigned i = 0; i < 2; i++) {
		check_range(&rule->names[i]);
		if (rule->names[i].first_port == 65536)
			return;
		names[i] = (struct vma_rules_name){rule->names[i].address, (uint16_t)rule->names[i].first_port};
	}
	found = vma_rules_match(rules, (enum vma_rules_role)rule->role, &names[0], &names[1]);
	rules_abort_unless(found != NULL && found <= rule && found->role == rule->role);
	rules_abort_unless(!rule->by_os || vma_rules_may_leave_to_os(rules, (enum vma_rules_role)rule->role));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct heard heard = {0};
	const struct vma_rules_attr attr = {
	        .file = "fuzz.conf", .program = "program", .id = "B1", .tell = check_rules_message, .arg = &heard};
	struct vma_rules *rules;
	const int rc = vma_rules_parse(&attr, (const char *)data, size, &rules);

	rules_abort_unless(rc >= 0 && (uint32_t)rc == heard.errors && rules != NULL);
	for (uint32_t i = 0; i < rules->count && i < 64; i++)
		check_rule(rules, &rules->at[i]);
	vma_rules_destroy(rules);
	return 0;
}
