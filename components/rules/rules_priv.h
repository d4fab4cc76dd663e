/* rules_priv.h - what the files of rules share: the words of the language, and a program's wildcards. */
#ifndef VMA_RULES_PRIV_H
#define VMA_RULES_PRIV_H

#include <vma/rules.h>

/* Whether the text is this keyword, in any case. */
bool rules_is_keyword(const char *text, size_t len, const char *keyword);
/* -EINVAL: no role has this keyword. */
int rules_parse_role_keyword(const char *text, size_t len, enum vma_rules_role *role);

/* Whether the name matches the pattern: `*` stands for any bytes, `?` for one. */
bool rules_wildcard_match(const char *pattern, size_t len, const char *name);

#endif
