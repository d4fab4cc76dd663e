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
		if (strncmp(*entry, name, len) == 0 && (*entry)[len] == '=')
			return *entry + len + 1;
	return NULL;
}

static void set_number(const struct load *load, const struct conf_param *param, int64_t value)
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

static void set_text(const struct load *load, const struct conf_param *param, const char *text)
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
static int64_t default_now(const struct load *load, const struct conf_param *param)
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
	             conf_form_values(asked, values), conf_form_show(used, value, shown, &label));
}

/* The default, or what `given` says in the terms of `asked`: the parameter itself, or a predecessor of it. */
static void load_number(const struct load *load, const struct conf_param *param, const struct conf_param *asked,
                        const char *given)
{
	int64_t fallback = default_now(load, param), value = fallback;
	int rc = given != NULL ? conf_form_parse(asked, given, &value) : 0;

	if (rc < 0 && !load->quiet)
		warn_bad_number(asked, given, rc, param, fallback);
	set_number(load, param, value);
	note_param_given(load, param, given != NULL && rc == 0);
}

/* `name`: under which it was given. */
static void load_text(struct load *load, const struct conf_param *param, const char *name, const char *given)
{
	size_t size = given != NULL ? strlen(given) + 1 : 0;
	const char *fallback = conf_default_text(param, load->conf->spec), *reason = NULL;

	set_text(load, param, fallback);
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
		set_text(load, param, text);
		note_param_given(load, param, true);
	} else if (!load->quiet) {
		vma_log_once(VMA_LOG_WARN, "%s='%.*s'%s is %s; using '%s'", name, QUOTED_MAX, given,
		             size > QUOTED_MAX + 1 ? "..." : "", reason, fallback);
	}
}

/* The predecessor of VMA_MEM_ALLOC_TYPE was a switch: 1 means 2, 0 the default. */
static void load_hugetbl(const struct load *load, const struct conf_param *param)
{
	static const struct conf_choice choices[] = {{.value = 0}, {.value = 1}};
	static const struct conf_form form = {.values = "0, 1", .choices = choices, .count = 2};
	static const struct conf_param hugetbl = {.type = CONF_BOOL, .name = CONF_OLD_MEM_ALLOC_TYPE, .form = &form};
	const char *given = env_find(load, hugetbl.name);
	int64_t on = -1;

	/* 0 and 1 stand for other numbers in param's terms, and what is neither is warned of in hugetbl's. */
	if (given == NULL || conf_form_parse(&hugetbl, given, &on) < 0) {
		load_number(load, param, &hugetbl, given);
	} else {
		set_number(load, param, on == 1 ? 2 : default_now(load, param));
		note_param_given(load, param, true);
	}
}

/* Another name of the parameter, which counts if its own is not set; NULL: it has none. */
static const char *other_name_of(const struct conf_param *param)
{
	if (param->offset == offsetof(struct vma_conf, progress_engine_wce_max))
		return CONF_OLD_PROGRESS_ENGINE_WCE_MAX;
	if (param->offset == offsetof(struct vma_conf, config_file))
		return CONF_XLIO_CONFIG_FILE;
	return param->offset == offsetof(struct vma_conf, application_id) ? CONF_XLIO_APPLICATION_ID : NULL;
}

static void load_param(struct load *load, const struct conf_param *param)
{
	const char *given = env_find(load, param->name), *other = other_name_of(param);
	struct conf_param asked = *param;

	if (given == NULL && other != NULL) {
		asked.name = other;
		given = env_find(load, other);
	}
	if (param->type == CONF_TEXT)
		load_text(load, param, asked.name, given);
	else if (given == NULL && param->offset == offsetof(struct vma_conf, mem_alloc_type))
		load_hugetbl(load, param);
	else
		load_number(load, param, &asked, given);
}

/* Who sets what nothing obeys should not have to find out by measuring, nor who misspells a name. */
static void say_unheard(const struct load *load)
{
	for (size_t i = 0; i < conf_unheard_count; i++) {
		if (env_find(load, conf_unheard[i]) != NULL)
			vma_log_once(VMA_LOG_INFO, "%s is set, and has no effect here", conf_unheard[i]);
	}
	for (char *const *entry = load->env; entry != NULL && *entry != NULL; entry++) {
		size_t len = strcspn(*entry, "=");

		if (strncmp(*entry, "VMA_", 4) == 0 && (*entry)[len] == '=' && !conf_knows(*entry, len))
			vma_log_once(VMA_LOG_WARN, "%.*s%s is set, and is no parameter: it has no effect",
			             (int)(len > QUOTED_MAX ? QUOTED_MAX : len), *entry, len > QUOTED_MAX ? "..." : "");
	}
}

void conf_load_as(struct vma_conf *conf, char *const *env, bool secure, bool quiet)
{
	struct load load = {.conf = conf, .env = env, .secure = secure, .quiet = quiet};

	memset(conf, 0, sizeof(*conf));
	for (size_t i = 0; i < conf_param_count; i++)
		load_param(&load, &conf_params[i]);
	if (!quiet)
		say_unheard(&load);
}

void vma_conf_load(struct vma_conf *conf, char *const *env)
{
	conf_load_as(conf, env, getauxval(AT_SECURE) != 0, false);
}

void vma_conf_peek(struct vma_conf *conf, char *const *env)
{
	conf_load_as(conf, env, getauxval(AT_SECURE) != 0, true);
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

int vma_conf_start(struct vma_conf *conf, char *const *env)
{
	struct vma_log_attr attr;
	int rc;

	vma_conf_peek(conf, env);
	vma_conf_log_attr(conf, &attr);
	rc = vma_log_init(&attr);
	vma_conf_load(conf, env);
	return rc;
}
