/* conf_cpus - processors as taskset has them: a hexadecimal mask, or a list with ranges. */
#include <errno.h>
#include <string.h>

#include "conf_priv.h"

static int hex_digit_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Digits from the last to the first: each is four processors. */
static int conf_parse_hex_cpu_mask(const char *digits, cpu_set_t *cpus)
{
	const size_t len = strlen(digits);

	for (size_t i = 0; i < len; i++) {
		int digit = hex_digit_value(digits[len - 1 - i]);

		if (digit < 0)
			return -EINVAL;
		for (size_t bit = 0; bit < 4; bit++) {
			if ((digit & 1 << bit) == 0)
				continue;
			if (i * 4 + bit >= CPU_SETSIZE)
				return -EINVAL;
			CPU_SET(i * 4 + bit, cpus);
		}
	}
	return 0;
}

/* At *text; moves it behind the number. -1: there is none, or no such processor. */
static int conf_parse_cpu_number(const char **text)
{
	int cpu = -1;

	for (; **text >= '0' && **text <= '9'; ++*text) {
		cpu = (cpu < 0 ? 0 : cpu) * 10 + (**text - '0');
		if (cpu >= CPU_SETSIZE)
			return -1;
	}
	return cpu;
}

static int conf_parse_cpu_ranges(const char *text, cpu_set_t *cpus)
{
	for (;;) {
		int first = conf_parse_cpu_number(&text), last = first;

		if (*text == '-') {
			text++;
			last = conf_parse_cpu_number(&text);
		}
		if (first < 0 || last < first || (*text != ',' && *text != '\0'))
			return -EINVAL;
		for (int cpu = first; cpu <= last; cpu++)
			CPU_SET((size_t)cpu, cpus);
		if (*text++ == '\0')
			return 0;
	}
}

int vma_conf_parse_cpus(const char *text, cpu_set_t *cpus)
{
	int rc;

	CPU_ZERO(cpus);
	if (strcmp(text, "-1") == 0)
		return 0;
	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
		rc = conf_parse_hex_cpu_mask(text + 2, cpus);
	else
		rc = conf_parse_cpu_ranges(text, cpus);
	if (rc == 0 && CPU_COUNT(cpus) == 0)
		rc = -EINVAL;
	return rc < 0 ? rc : CPU_COUNT(cpus);
}
