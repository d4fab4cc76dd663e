/* conf_table - the rows of VMA_CONF_PARAMS, and fields by row. */
#include "conf_priv.h"

#define SAME CONF_SAME
#define AS_IS NULL
#define ROW_NUMBER(type, class, field, name, label, def, latency, multi, min, max, form, text)                         \
	{type,                                                                                                         \
	 class,                                                                                                        \
	 name,                                                                                                         \
	 label,                                                                                                        \
	 offsetof(struct vma_conf, field),                                                                             \
	 {def, latency, multi},                                                                                        \
	 {NULL},                                                                                                       \
	 min,                                                                                                          \
	 max,                                                                                                          \
	 &conf_form_##form,                                                                                            \
	 text},
#define ROW_INT(...) ROW_NUMBER(CONF_INT, __VA_ARGS__)
#define ROW_BOOL(...) ROW_NUMBER(CONF_BOOL, __VA_ARGS__)
#define ROW_ENUM(...) ROW_NUMBER(CONF_ENUM, __VA_ARGS__)
#define ROW_TEXT(class, field, name, label, def, latency, multi, min, max, form, text)                                 \
	{                                                                                                              \
	        CONF_TEXT,                                                                                             \
	        class,                                                                                                 \
	        name,                                                                                                  \
	        label,                                                                                                 \
	        offsetof(struct vma_conf, field),                                                                      \
	        {0},                                                                                                   \
	        {def, latency, multi},                                                                                 \
	        min,                                                                                                   \
	        max,                                                                                                   \
	        &conf_form_##form,                                                                                     \
	        text},
#define X(type, ...) ROW_##type(CONF_EFFECT, __VA_ARGS__)
#define Y(class, type, ...) ROW_##type(CONF_##class, __VA_ARGS__)
const struct conf_param conf_params[] = {VMA_CONF_PARAMS(X, Y)};
#undef X
#undef Y
const size_t conf_param_count = sizeof(conf_params) / sizeof(conf_params[0]);

int64_t conf_get_number(const struct vma_conf *conf, const struct conf_param *param)
{
	const char *field = (const char *)conf + param->offset;

	switch (param->type) {
	case CONF_INT:
		return *(const int64_t *)field;
	case CONF_BOOL:
		return *(const bool *)field;
	case CONF_ENUM:
		return *(const int *)field;
	case CONF_TEXT:
		break;
	}
	return 0;
}

const char *conf_get_text(const struct vma_conf *conf, const struct conf_param *param)
{
	return *(const char *const *)((const char *)conf + param->offset);
}
