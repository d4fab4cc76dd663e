/* rules_role.c - the five roles, by keyword. */
#include <errno.h>
#include <string.h>

#include "rules_priv.h"

enum { LOCAL = 1, REMOTE = 1, REMOTE_LOCAL = 2 }; /* how many names */

static const struct {
	const char *keyword;
	unsigned names;
} roles[VMA_RULES_ROLE_COUNT] = {
#define X(name, keyword, names) [VMA_RULES_##name] = {keyword, names},
        VMA_RULES_ROLES(X)
#undef X
};

static char lower_case(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* Not strncasecmp, which follows the program's locale. */
bool rules_is_keyword(const char *text, size_t len, const char *keyword)
{
	if (strlen(keyword) != len)
		return false;
	for (size_t i = 0; i < len; i++)
		if (lower_case(text[i]) != keyword[i])
			return false;
	return true;
}

int rules_parse_role_keyword(const char *text, size_t len, enum vma_rules_role *role)
{
	for (unsigned i = 0; i < VMA_RULES_ROLE_COUNT; i++) {
		if (rules_is_keyword(text, len, roles[i].keyword)) {
			*role = (enum vma_rules_role)i;
			return 0;
		}
	}
	return -EINVAL;
}

int vma_rules_role_parse(const char *keyword, enum vma_rules_role *role)
{
	return rules_parse_role_keyword(keyword, strlen(keyword), role);
}

const char *vma_rules_role_keyword(enum vma_rules_role role)
{
	return roles[role].keyword;
}

unsigned vma_rules_role_address_count(enum vma_rules_role role)
{
	return roles[role].names;
}
