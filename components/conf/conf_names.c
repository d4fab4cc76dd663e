/*
 * conf_names - the names of a parameter, the parameter nearest to a misspelt name, and the remark beside the value of a
 * parameter without effect.
 *
 * Every name that begins with VMA_ has a twin that begins with XLIO_, also an alias.
 */
#include <string.h>

#include "conf_priv.h"

#define OURS "VMA_"
#define TWIN "XLIO_"

const struct conf_alias conf_aliases[] = {
        {"VMA_MAX_INLINE", "VMA_TX_MAX_INLINE"},
        {"VMA_CQ_DRAIN_WCE_MAX", "VMA_PROGRESS_ENGINE_WCE_MAX"},
        {"VMA_ALLOW_PRIVILEGED_SOCKET_OPT", "VMA_ALLOW_PRIVILEGED_SOCK_OPT"},
        {"VMA_INTERNAL_THREAD_CPUSSET", "VMA_INTERNAL_THREAD_CPUSET"},
        {CONF_OLD_MEM_ALLOC_TYPE, "VMA_MEM_ALLOC_TYPE"},
        {"VMA_POLL", "VMA_SOCKETXTREME"},
        {"XLIO_TX_BUFFER_SIZE", "VMA_TX_BUF_SIZE"},
};
const size_t conf_alias_count = sizeof(conf_aliases) / sizeof(conf_aliases[0]);

bool conf_make_twin_env_name(const char *name, char out[CONF_NAME_MAX])
{
	size_t len = strlen(name);

	if (strncmp(name, OURS, strlen(OURS)) != 0 || len + strlen(TWIN) - strlen(OURS) >= CONF_NAME_MAX)
		return false;
	memcpy(out, TWIN, strlen(TWIN));
	memcpy(out + strlen(TWIN), name + strlen(OURS), len - strlen(OURS) + 1);
	return true;
}

static bool env_name_matches(const char *text, size_t len, const char *name)
{
	return strncmp(text, name, len) == 0 && name[len] == '\0';
}

static bool env_name_matches_or_xlio_twin(const char *text, size_t len, const char *name)
{
	char twin[CONF_NAME_MAX];

	return env_name_matches(text, len, name) ||
	       (conf_make_twin_env_name(name, twin) && env_name_matches(text, len, twin));
}

bool conf_has_param_or_alias_name(const char *name, size_t len)
{
	for (size_t i = 0; i < conf_param_count; i++)
		if (env_name_matches_or_xlio_twin(name, len, conf_params[i].name))
			return true;
	for (size_t i = 0; i < conf_alias_count; i++)
		if (env_name_matches_or_xlio_twin(name, len, conf_aliases[i].name))
			return true;
	return false;
}

static size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Levenshtein's distance; a swap of two neighbours counts as one edit. Both are shorter than CONF_NAME_MAX. */
static size_t edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
	size_t rows[3][CONF_NAME_MAX];
	size_t *before = rows[0], *last = rows[1], *now = rows[2];

	for (size_t k = 0; k <= b_len; k++)
		last[k] = k;
	for (size_t i = 1; i <= a_len; i++) {
		size_t *free_row = before;

		now[0] = i;
		for (size_t k = 1; k <= b_len; k++) {
			now[k] = min_size(min_size(last[k], now[k - 1]) + 1, last[k - 1] + (a[i - 1] != b[k - 1]));
			if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
				now[k] = min_size(now[k], before[k - 2] + 1);
		}
		before = last;
		last = now;
		now = free_row;
	}
	return last[b_len];
}

/* What comes after the prefix that is common to all names. */
static const char *conf_name_without_prefix(const char *name, size_t *len)
{
	const char *prefixes[] = {OURS, TWIN};

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
		size_t n = strlen(prefixes[i]);

		if (*len >= n && strncmp(name, prefixes[i], n) == 0) {
			*len -= n;
			return name + n;
		}
	}
	return name;
}

const char *conf_find_similar_name(const char *name, size_t len)
{
	const char *wanted = conf_name_without_prefix(name, &len), *nearest = NULL;
	size_t best = len / 3 + 1; /* a third of the letters may be wrong; of fewer than three, none */

	if (len >= CONF_NAME_MAX)
		return NULL;
	for (size_t i = 0; i < conf_param_count + conf_alias_count; i++) {
		const char *full = i < conf_param_count ? conf_params[i].name : conf_aliases[i - conf_param_count].name;
		size_t full_len = strlen(full), distance;
		const char *there = conf_name_without_prefix(full, &full_len);

		distance = edit_distance(wanted, len, there, full_len);
		if (distance < best) {
			best = distance;
			nearest = full;
		}
	}
	return nearest;
}

const char *conf_class_note(enum conf_class class)
{
	switch (class) {
	case CONF_EFFECT:
		break;
	case CONF_NO_MEANING:
		return "no meaning here";
	case CONF_SUPERSEDED:
		return "superseded";
	}
	return NULL;
}
