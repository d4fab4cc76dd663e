/* conf - from the environment to the fields. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/auxv.h>

#include "conf_priv.h"

#define QUOTED_MAX 80 /* bytes of a bad value that a warning shows */
#define DETAILS_OF_DEBUG 2

/* One run over the table. */
struct load {
	struct vma_conf *conf;
	char *const *env;
	size_t text_used;
	bool secure, quiet;
};

static const char *env_find(const struct load *load, const char *name)
{
	size_t len = strlen(name);

	for (char *const *entry = load->env; entry != NULL && *entry != NULL; entry++)
		if ((*entry)[0] == name[0] && strncmp(*entry, name, len) == 0 && (*entry)[len] == '=')
			return *entry + len + 1;
	return NULL;
}

static void conf_set_number(const struct load *load, const struct conf_param *param, int64_t value)
{
	char *field = (char *)load->conf + param->offset;

	switch (param->type) {
	case CONF_INT:
		*(int64_t *)field = value;
		break;
	case CONF_BOOL:
		*(bool *)field = value != 0;
		break;
	case CONF_ENUM:
		*(int *)field = (int)value;
		break;
	case CONF_TEXT:
		break;
	}
}

static void conf_store_text_pointer(const struct load *load, const struct conf_param *param, const char *text)
{
	*(const char **)((char *)load->conf + param->offset) = text;
}

static void note_param_given(const struct load *load, const struct conf_param *param, bool given)
{
	load->conf->given[param - conf_params] = given;
}

/* What the parameter is when nobody sets it. The table is loaded in its order, so the profile must come first. */
_Static_assert(offsetof(struct vma_conf, spec) == 0, "the profile decides the defaults of all others");
_Static_assert(offsetof(struct vma_conf, tracelevel) < offsetof(struct vma_conf, log_details),
               "it decides the default");
_Static_assert(offsetof(struct vma_conf, select_poll_os_force) < offsetof(struct vma_conf, select_poll_os_ratio) &&
                       offsetof(struct vma_conf, select_poll_os_force) < offsetof(struct vma_conf, select_skip_os),
               "it decides both defaults");
_Static_assert(offsetof(struct vma_conf, timer_resolution_msec) < offsetof(struct vma_conf, tcp_timer_resolution_msec),
               "it is the least, if it is given");
static int64_t conf_param_default_given_other_params(const struct load *load, const struct conf_param *param)
{
	if (param->offset == offsetof(struct vma_conf, log_details) && load->conf->tracelevel >= VMA_LOG_DEBUG)
		return DETAILS_OF_DEBUG;
	if ((param->offset == offsetof(struct vma_conf, select_poll_os_ratio) ||
	     param->offset == offsetof(struct vma_conf, select_skip_os)) &&
	    load->conf->select_poll_os_force)
		return 1;
	return conf_default(param, load->conf->spec);
}

static void warn_bad_number(const struct conf_param *asked, const char *given, int rc, const struct conf_param *used,
                            int64_t value)
{
	char shown[CONF_SHOWN_MAX], values[CONF_SHOWN_MAX];
	const char *label;

	vma_log_once(VMA_LOG_WARN, "%s='%.*s'%s is %s (it takes %s); using %s", asked->name, QUOTED_MAX, given,
	             strlen(given) > QUOTED_MAX ? "..." : "", rc == -ERANGE ? "out of range" : "not understood",
	             conf_param_allowed_values_text(asked, values),
	             conf_param_format_value(used, value, shown, &label));
}

static int64_t conf_param_min(const struct load *load, const struct conf_param *asked)
{
	if (asked->offset == offsetof(struct vma_conf, tcp_timer_resolution_msec) &&
	    load->conf->given[VMA_CONF_AT_timer_resolution_msec])
		return load->conf->timer_resolution_msec;
	return asked->form->least;
}

/* A legal number that the code cannot follow. */
static int64_t conf_clamp_number(const struct load *load, const struct conf_param *asked, int64_t value)
{
	const struct conf_form *form = asked->form;
	const int64_t least = conf_param_min(load, asked);
	int64_t cut = value;

	if (form->most != 0 && value > form->most)
		cut = form->most;
	if (least != 0 && value != 0 && value < least)
		cut = least;
	if (cut != value && !load->quiet)
		vma_log_once(VMA_LOG_WARN, "%s=%" PRId64 " is cut: using %" PRId64, asked->name, value, cut);
	return cut;
}

/* The default, or what `given` says in the terms of `asked`: the parameter itself, or a predecessor of it. */
static void conf_load_number(const struct load *load, const struct conf_param *param, const struct conf_param *asked,
                             const char *given)
{
	int64_t fallback = conf_param_default_given_other_params(load, param), value = fallback;
	int rc = given != NULL ? conf_param_parse_value(asked, given, &value) : 0;

	if (rc < 0 && !load->quiet)
		warn_bad_number(asked, given, rc, param, fallback);
	conf_set_number(load, param, given != NULL && rc == 0 ? conf_clamp_number(load, asked, value) : value);
	note_param_given(load, param, given != NULL && rc == 0);
}

/* `name`: under which it was given. */
static void conf_load_text_param_or_default(struct load *load, const struct conf_param *param, const char *name,
                                            const char *given)
{
	size_t size = given != NULL ? strlen(given) + 1 : 0;
	const char *fallback = conf_default_text(param, load->conf->spec), *reason = NULL;

	conf_store_text_pointer(load, param, fallback);
	if (given == NULL)
		return;
	if (load->secure && param->form->names_a_file)
		reason = "ignored in a process with raised privileges";
	else if (size > sizeof(load->conf->texts) - load->text_used)
		reason = "too long";
	else if (param->form->understands != NULL && !param->form->understands(given))
		reason = "not understood";
	if (reason == NULL) {
		char *text = load->conf->texts + load->text_used;
		memcpy(text, given, size);
		load->text_used += size;
		conf_store_text_pointer(load, param, text);
		note_param_given(load, param, true);
	} else if (!load->quiet) {
		vma_log_once(VMA_LOG_WARN, "%s='%.*s'%s is %s; using '%s'", name, QUOTED_MAX, given,
		             size > QUOTED_MAX + 1 ? "..." : "", reason, fallback);
	}
}

/* VMA_HUGETBL, the predecessor of VMA_MEM_ALLOC_TYPE, was a switch: 1 means 2, 0 the default. */
static void conf_load_old_hugetbl_as_mem_alloc_type(const struct load *load, const struct conf_param *param,
                                                    const char *name, const char *given)
{
	static const struct conf_choice choices[] = {{.value = 0}, {.value = 1}};
	static const struct conf_form form = {.values = "0, 1", .choices = choices, .count = 2};
	const struct conf_param hugetbl = {.type = CONF_BOOL, .name = name, .form = &form};
	int64_t on = -1;

	/* 0 and 1 stand for other numbers in param's terms, and what is neither is warned of in hugetbl's. */
	if (conf_param_parse_value(&hugetbl, given, &on) < 0) {
		conf_load_number(load, param, &hugetbl, given);
	} else {
		conf_set_number(load, param, on == 1 ? 2 : conf_param_default_given_other_params(load, param));
		note_param_given(load, param, true);
	}
}

/* What the environment says of a parameter, and under which of its names. */
struct said {
	const char *value;        /* NULL: nothing */
	char name[CONF_NAME_MAX]; /* as it is written there */
	bool hugetbl;
};

static bool conf_find_env_value_by_name(const struct load *load, const char *name, struct said *said)
{
	said->value = env_find(load, name);
	if (said->value != NULL)
		strcpy(said->name, name);
	return said->value != NULL;
}

/* The parameter's own name comes before its aliases, and all of them before their twins (XLIO_). */
static bool conf_find_env_value(const struct load *load, const struct conf_param *param, struct said *said)
{
	char twin[CONF_NAME_MAX];

	*said = (struct said){.value = NULL};
	for (int twins = 0; twins < 2; twins++) {
		if (!twins ? conf_find_env_value_by_name(load, param->name, said)
		           : conf_make_twin_env_name(param->name, twin) &&
		                     conf_find_env_value_by_name(load, twin, said))
			return true;
		for (size_t i = 0; i < conf_alias_count; i++) {
			const struct conf_alias *alias = &conf_aliases[i];

			if (strcmp(alias->means, param->name) != 0)
				continue;
			said->hugetbl = strcmp(alias->name, CONF_OLD_MEM_ALLOC_TYPE) == 0;
			if (!twins ? conf_find_env_value_by_name(load, alias->name, said)
			           : conf_make_twin_env_name(alias->name, twin) &&
			                     conf_find_env_value_by_name(load, twin, said))
				return true;
			said->hugetbl = false;
		}
	}
	return false;
}

/* If a parameter without effect is set, its user should not have to find out by measuring. */
static void conf_warn_no_effect(const struct conf_param *param, const char *name)
{
	if (param->class == CONF_NO_MEANING || param->class == CONF_SUPERSEDED)
		vma_log_once(VMA_LOG_INFO, "%s is set, and has no effect here: %s", name, param->text);
}

static void conf_load_param(struct load *load, const struct conf_param *param)
{
	struct conf_param asked = *param;
	struct said said;

	conf_find_env_value(load, param, &said);
	if (said.value != NULL)
		asked.name = said.name;
	if (param->type == CONF_TEXT)
		conf_load_text_param_or_default(load, param, asked.name, said.value);
	else if (said.hugetbl)
		conf_load_old_hugetbl_as_mem_alloc_type(load, param, asked.name, said.value);
	else
		conf_load_number(load, param, &asked, said.value);
	if (!load->quiet && load->conf->given[param - conf_params])
		conf_warn_no_effect(param, asked.name);
}

static void conf_warn_of_unknown_env_var(const char *name, size_t len)
{
	const char *nearest = conf_find_similar_name(name, len), *more = len > QUOTED_MAX ? "..." : "";
	int shown = (int)(len > QUOTED_MAX ? QUOTED_MAX : len);

	if (nearest != NULL)
		vma_log_once(VMA_LOG_WARN, "%.*s%s is set, and is no parameter: it has no effect (the nearest is %s)",
		             shown, name, more, nearest);
	else
		vma_log_once(VMA_LOG_WARN, "%.*s%s is set, and is no parameter: it has no effect", shown, name, more);
}

static void conf_warn_of_unknown_env_vars(const struct load *load)
{
	for (char *const *entry = load->env; entry != NULL && *entry != NULL; entry++) {
		size_t len = strcspn(*entry, "=");

		if ((strncmp(*entry, "VMA_", 4) == 0 || strncmp(*entry, "XLIO_", 5) == 0) && (*entry)[len] == '=' &&
		    !conf_has_param_or_alias_name(*entry, len))
			conf_warn_of_unknown_env_var(*entry, len);
	}
}

void conf_load_all_params_from_env(struct vma_conf *conf, char *const *env, bool secure, bool quiet)
{
	struct load load = {.conf = conf, .env = env, .secure = secure, .quiet = quiet};

	memset(conf, 0, sizeof(*conf));
	for (size_t i = 0; i < conf_param_count; i++)
		conf_load_param(&load, &conf_params[i]);
	if (!quiet)
		conf_warn_of_unknown_env_vars(&load);
}

void vma_conf_load(struct vma_conf *conf, char *const *env)
{
	conf_load_all_params_from_env(conf, env, getauxval(AT_SECURE) != 0, false);
}

void vma_conf_load_without_warnings(struct vma_conf *conf, char *const *env)
{
	conf_load_all_params_from_env(conf, env, getauxval(AT_SECURE) != 0, true);
}

void vma_conf_log_attr(const struct vma_conf *conf, struct vma_log_attr *attr)
{
	*attr = (struct vma_log_attr){
	        .level = (enum vma_log_level)conf->tracelevel,
	        .details = (unsigned)conf->log_details,
	        .colors = conf->log_colors,
	        .file = conf->log_file,
	};
}

int vma_conf_load_and_init_log(struct vma_conf *conf, char *const *env)
{
	struct vma_log_attr attr;
	int rc;

	vma_conf_load_without_warnings(conf, env);
	vma_conf_log_attr(conf, &attr);
	rc = vma_log_init(&attr);
	vma_conf_load(conf, env);
	return rc;
}
