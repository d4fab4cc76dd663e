/*
 * fuzz_conf - any environment. The input is the environment's text, entries separated by zero bytes; an entry whose
 * first byte is below the number of parameters stands for that parameter's name, so that the values are what is tried.
 * Whatever comes, every field ends up as a value that could have been set.
 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "../conf_priv.h"

#define ENTRIES_MAX 64
#define ENTRY_MAX 6000 /* beyond VMA_CONF_TEXT_MAX */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct vma_conf conf;

static void conf_abort_unless(bool holds)
{
	if (!holds)
		abort();
}

static char *make_env_entry_from_fuzz_data(const uint8_t *data, size_t size)
{
	char *entry = malloc(ENTRY_MAX + 64);
	const char *name = size > 0 && data[0] < conf_param_count ? conf_params[data[0]].name : NULL;

	conf_abort_unless(entry != NULL);
	if (name != NULL)
		snprintf(entry, ENTRY_MAX + 64, "%s=%.*s", name, (int)(size - 1 < ENTRY_MAX ? size - 1 : ENTRY_MAX),
		         (const char *)data + 1);
	else
		snprintf(entry, ENTRY_MAX + 64, "%.*s", (int)(size < ENTRY_MAX ? size : ENTRY_MAX), (const char *)data);
	return entry;
}

static size_t make_env(const uint8_t *data, size_t size, char *env[ENTRIES_MAX + 1])
{
	size_t n = 0;

	while (size > 0 && n < ENTRIES_MAX) {
		const uint8_t *end = memchr(data, 0, size);
		size_t len = end != NULL ? (size_t)(end - data) : size;

		/* Index 0 cannot stand at an entry's start, where it ends the one before: VMA_SPEC comes by its name.
		 */
		env[n++] = make_env_entry_from_fuzz_data(data, len);
		data += end != NULL ? len + 1 : len;
		size -= end != NULL ? len + 1 : len;
	}
	env[n] = NULL;
	return n;
}

static void check_param(const struct conf_param *param)
{
	int64_t value = conf_get_number(&conf, param), parsed;
	char text[32];

	if (param->type == CONF_TEXT) {
		const char *found = conf_get_text(&conf, param);
		bool ours = found >= conf.texts && found + strlen(found) < conf.texts + sizeof(conf.texts);
		conf_abort_unless(ours || strcmp(found, conf_default_text(param, conf.spec)) == 0);
		return;
	}
	snprintf(text, sizeof(text), "%lld", (long long)value);
	if (param->form->log_level)
		conf_abort_unless(value >= VMA_LOG_NONE && value <= VMA_LOG_ALL);
	else if (param->form->words_only)
		conf_abort_unless(value >= 0 && (size_t)value < param->form->count);
	else
		conf_abort_unless(conf_param_parse_value(param, text, &parsed) == 0 && parsed == value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *env[ENTRIES_MAX + 1];
	size_t n = make_env(data, size, env);

	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_WARN, .file = "/dev/null"});
	conf_load_all_params_from_env(&conf, env, size % 2 != 0, false);
	for (size_t i = 0; i < conf_param_count; i++)
		check_param(&conf_params[i]);
	vma_log_set_level(VMA_LOG_DETAILS);
	vma_conf_log_all_params(&conf);
	for (size_t i = 0; i < n; i++)
		free(env[i]);
	return 0;
}
