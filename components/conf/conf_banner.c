/* conf_banner - the parameters as the library prints them at start. */
#include <stdio.h>
#include <string.h>

#include "conf_priv.h"

#define SHOWN_MAX 512 /* of a text and what is said beside it; what is longer is cut */

#define RULE "---------------------------------------------------------------------------"

static bool conf_param_is_given(const struct vma_conf *conf, const struct conf_param *param)
{
	return conf->given[param - conf_params];
}

/* A value that a profile set holds as it stands. */
static bool conf_param_is_unset(const struct vma_conf *conf, const struct conf_param *param)
{
	return param->form->unset != NULL && !conf_param_is_given(conf, param) &&
	       conf_get_number(conf, param) == conf_default(param, VMA_SPEC_NONE);
}

static bool conf_param_is_default(const struct vma_conf *conf, const struct conf_param *param)
{
	if (param->form->unset != NULL)
		return conf_param_is_unset(conf, param);
	if (param->type == CONF_TEXT)
		return strcmp(conf_get_text(conf, param), param->string[VMA_SPEC_NONE]) == 0;
	/* A value that a profile set counts as changed: the field's banner shows it. */
	return conf_get_number(conf, param) == conf_default(param, VMA_SPEC_NONE);
}

static bool banner_always_shows_param(const struct conf_param *param)
{
	return param->offset == offsetof(struct vma_conf, tracelevel) ||
	       param->offset == offsetof(struct vma_conf, log_file);
}

static void show_param(const struct vma_conf *conf, const struct conf_param *param)
{
	enum vma_log_level level = banner_always_shows_param(param) || !conf_param_is_default(conf, param)
	                                   ? VMA_LOG_INFO
	                                   : VMA_LOG_DETAILS;
	const char *label = param->label, *note = conf_class_note(param->class), *shown;
	char out[CONF_SHOWN_MAX], noted[SHOWN_MAX];

	shown = param->type == CONF_TEXT ? conf_get_text(conf, param)
	                                 : conf_param_format_value(param, conf_get_number(conf, param), out, &label);
	if (conf_param_is_unset(conf, param))
		shown = param->form->unset;
	/* Of what has no effect no default is shown, as if it held. */
	if (note != NULL) {
		if (conf_param_is_default(conf, param))
			snprintf(noted, sizeof(noted), "%s", note);
		else
			snprintf(noted, sizeof(noted), "%s (%s)", shown, note);
		shown = noted;
	}
	vma_log_at(level, "%-30s %-26s [%s]", label, shown, param->name);
}

static void warn_that_high_log_level_is_slow(void)
{
	vma_log_warn("*************************************************************");
	vma_log_warn("* VMA is currently configured with high log level           *");
	vma_log_warn("* Application performance will decrease in this log level!  *");
	vma_log_warn("* This log level is recommended for debugging purposes only *");
	vma_log_warn("*************************************************************");
}

void vma_conf_log_all_params(const struct vma_conf *conf)
{
	vma_log_info(RULE);
	for (size_t i = 0; i < conf_param_count; i++)
		show_param(conf, &conf_params[i]);
	vma_log_info(RULE);
	if (conf->tracelevel >= VMA_LOG_DEBUG)
		warn_that_high_log_level_is_slow();
}
