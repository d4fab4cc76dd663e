/* log_level - names and numbers of levels. */
#include <errno.h>

#include "log_priv.h"

static const struct log_level_name_row {
	enum vma_log_level level;
	const char *number, *label, *alias;
} names[] = {
#define X(name, value, number, label, alias) {VMA_LOG_##name, number, label, alias},
        VMA_LOG_LEVELS(X)
#undef X
};

static char upper_char(char c)
{
	return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

/* strcasecmp follows the program's locale, where "info" and "INFO" may differ (Turkish). */
static bool equals_ignoring_ascii_case(const char *text, const char *word)
{
	while (*text != '\0' && upper_char(*text) == *word) {
		text++;
		word++;
	}
	return *text == '\0' && *word == '\0';
}

int vma_log_level_parse(const char *text, enum vma_log_level *level)
{
	if (text == NULL || *text == '\0')
		return -EINVAL;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct log_level_name_row *n = &names[i];
		if (equals_ignoring_ascii_case(text, n->label) || equals_ignoring_ascii_case(text, n->alias) ||
		    equals_ignoring_ascii_case(text, n->number)) {
			*level = n->level;
			return 0;
		}
	}
	return -EINVAL;
}

const char *vma_log_level_name(enum vma_log_level level)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].level == level)
			return names[i].label;
	return "?";
}
