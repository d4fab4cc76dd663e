/*
 * conf_priv - a row of the table, and the text forms.
 *
 * Threads: the tables are constant. One thread loads a struct vma_conf; afterwards it is read-only.
 */
#ifndef VMA_CONF_PRIV_H
#define VMA_CONF_PRIV_H

#include <vma/conf.h>

#define CONF_SHOWN_MAX 96
#define CONF_NAME_MAX 64 /* bytes of a name with its zero; longer ones are no parameter */

/* A value with a word of its own, or a form of its own in the banner. */
struct conf_choice {
	int64_t value;
	const char *word;  /* accepted beside the number, any case; NULL: none */
	const char *shown; /* in the banner */
	const char *label; /* of the banner's line where it differs for this value; NULL: the parameter's */
};

struct conf_form {
	/* In the banner and the reference, if neither the user nor a profile sets it, and what holds is none of the
	 * values; NULL: the default. */
	const char *unset;
	const char *values; /* for the warning and the reference; NULL: min..max */
	const struct conf_choice *choices;
	size_t count;
	bool open;                             /* any number between min and max, and the choices; else only those */
	int64_t least, most;                   /* what a legal number is cut to; 0: no cut. The number 0 is not cut */
	bool words_only;                       /* the numbers are our own and not accepted */
	bool log_level;                        /* VMA_TRACELEVEL: log knows its names */
	bool names_a_file;                     /* ignored under AT_SECURE */
	bool (*understands)(const char *text); /* of a TEXT; NULL: anything goes */
};

enum conf_class { CONF_EFFECT, CONF_NO_MEANING, CONF_SUPERSEDED }; /* conf_params.h */
enum conf_type { CONF_INT, CONF_BOOL, CONF_ENUM, CONF_TEXT };

struct conf_param {
	enum conf_type type;
	enum conf_class class;
	const char *name, *label;
	size_t offset;         /* of the field in struct vma_conf */
	int64_t number[3];     /* default by VMA_SPEC: none, latency, multi_ring_latency */
	const char *string[3]; /* the same of a TEXT */
	int64_t min, max;
	const struct conf_form *form;
	const char *text;
};

extern const struct conf_param conf_params[];
extern const size_t conf_param_count;
#define CONF_SAME INT64_MIN

/* Other names of parameters: predecessors, and XLIO's where they are not the twin. */
struct conf_alias {
	const char *name, *means;
};
extern const struct conf_alias conf_aliases[];
extern const size_t conf_alias_count;
#define CONF_OLD_MEM_ALLOC_TYPE "VMA_HUGETBL" /* its values mean others */

/* The XLIO_ name of a VMA_ name. False: `name` is none, or too long. */
bool conf_make_twin_env_name(const char *name, char out[CONF_NAME_MAX]);
/* Whether these `len` bytes are a name of the table, an alias, or the twin of any of them. */
bool conf_has_param_or_alias_name(const char *name, size_t len);
/* The name of the table or alias that is fewest edits away from these `len` bytes; NULL: all are too far. */
const char *conf_find_similar_name(const char *name, size_t len);
/* What is said beside a value of this class: "no meaning here". NULL: nothing, it has its effect. */
const char *conf_class_note(enum conf_class class);

/* The default of a number under a profile (enum vma_conf_spec). */
static inline int64_t conf_default(const struct conf_param *param, int spec)
{
	return param->number[spec] != CONF_SAME ? param->number[spec] : param->number[VMA_SPEC_NONE];
}

static inline const char *conf_default_text(const struct conf_param *param, int spec)
{
	return param->string[spec] != NULL ? param->string[spec] : param->string[VMA_SPEC_NONE];
}

/* Fields by row. Numbers of every type pass as int64_t. */
int64_t conf_get_number(const struct vma_conf *conf, const struct conf_param *param);
const char *conf_get_text(const struct vma_conf *conf, const struct conf_param *param);

/* 0; -EINVAL not a value of this form; -ERANGE a number outside min and max. */
int conf_param_parse_value(const struct conf_param *param, const char *text, int64_t *value);
/* As the banner prints it; returns `out`. *label is the label that belongs to it. */
const char *conf_param_format_value(const struct conf_param *param, int64_t value, char out[CONF_SHOWN_MAX],
                                    const char **label);
/* What may be given, for people. */
const char *conf_param_allowed_values_text(const struct conf_param *param, char out[CONF_SHOWN_MAX]);

extern const struct conf_form conf_form_PLAIN, conf_form_SWITCH, conf_form_LEVEL, conf_form_SPEC, conf_form_FILE,
        conf_form_DIRECTORY, conf_form_WORD, conf_form_RING_LOGIC, conf_form_LIMIT, conf_form_MSS, conf_form_AIM,
        conf_form_EXCEPTION, conf_form_BY_KERNEL, conf_form_BY_MEMORY, conf_form_UDP_RULES, conf_form_PRIVILEGED,
        conf_form_AFFINITY, conf_form_THREAD_MODE, conf_form_BATCHING_MODE, conf_form_MEM_ALLOC_TYPE, conf_form_FLAG,
        conf_form_TCP_TIMESTAMPS, conf_form_TCP_CC, conf_form_NIC, conf_form_MTU, conf_form_EAGAINS,
        conf_form_MIGRATION, conf_form_OFF, conf_form_CTL_THREAD, conf_form_TCP_HANDLING, conf_form_AUTO,
        conf_form_TX_BUF_SIZE, conf_form_SKIP_POLL, conf_form_MULTILOCK, conf_form_POLL_BATCH, conf_form_RX_PREFETCH,
        conf_form_SEND_BUFFER, conf_form_RESOLUTION, conf_form_MODERATION, conf_form_MODERATION_COUNT,
        conf_form_MODERATION_PERIOD;

/* vma_conf_load with the process's state as an argument, for tests. */
void conf_load_all_params_from_env(struct vma_conf *conf, char *const *env, bool secure, bool quiet);

#endif
