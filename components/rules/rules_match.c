/* rules_match.c - which rule holds for a socket's names, and whether a program's name matches a pattern. */
#include "rules_priv.h"

/*
 * After a mismatch only the last star has to try again, one byte further on: whatever earlier stars could take instead,
 * the last one can. So the work is at most the product of both lengths.
 */
bool rules_wildcard_match(const char *pattern, size_t len, const char *name)
{
	const char *const end = pattern + len, *star = NULL, *again = NULL;

	while (*name != '\0') {
		if (pattern < end && *pattern == '*') {
			star = ++pattern;
			again = name;
		} else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
			pattern++;
			name++;
		} else if (star != NULL) {
			pattern = star;
			name = ++again;
		} else {
			return false;
		}
	}
	while (pattern < end && *pattern == '*')
		pattern++;
	return pattern == end;
}

static bool rules_name_is_in_range(const struct vma_rules_range *range, const struct vma_rules_name *name)
{
	return (name->address & range->mask) == range->address && name->port >= range->first_port &&
	       name->port <= range->last_port;
}

const struct vma_rule *vma_rules_match(const struct vma_rules *rules, enum vma_rules_role role,
                                       const struct vma_rules_name *first, const struct vma_rules_name *second)
{
	const bool two = vma_rules_role_address_count(role) == 2;

	for (uint32_t i = 0; rules != NULL && i < rules->count; i++) {
		const struct vma_rule *rule = &rules->at[i];

		if (rule->role == role && rules_name_is_in_range(&rule->names[0], first) &&
		    (!two || rules_name_is_in_range(&rule->names[1], second)))
			return rule;
	}
	return NULL;
}
