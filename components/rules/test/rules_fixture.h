/* rules_fixture.h - rules from a text, for tests of what obeys them. */
#ifndef VMA_RULES_TEST_RULES_FIXTURE_H
#define VMA_RULES_TEST_RULES_FIXTURE_H

#include <string.h>

#include <vma/rules.h>
#include <vma/test.h>

/* For vma_rules_destroy. */
static inline struct vma_rules *rules_fixture_parse(const char *text)
{
	const struct vma_rules_attr attr = {.file = "test.conf"};
	struct vma_rules *rules;

	assert_int_equal(vma_rules_parse(&attr, text, strlen(text), &rules), 0);
	return rules;
}

#endif
