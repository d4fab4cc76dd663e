/*
 * conf - the VMA_* parameters, parsed once from the environment into plain fields.
 *
 * One list (VMA_CONF_PARAMS in conf_params.h) gives the struct, the parser, the range check, the banner and the
 * reference page. A component takes what it needs at its own creation, through its attr struct. It never reads struct
 * vma_conf on the data path. A bad value gives one warning that names the parameter, the value and its replacement.
 *
 * Threads: one thread calls vma_conf_load at start. Then the result is read-only, and any thread may read it.
 * Progress: no locks.
 * Memory: the caller's struct. Texts point into a buffer of the struct itself, so it is not to be copied.
 * Example: test/test_load.c.
 */
#ifndef VMA_CONF_H
#define VMA_CONF_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vma/conf_params.h>
#include <vma/log.h>

#define VMA_CONF_TEXT_MAX 4096 /* of all texts together; what does not fit is warned of and defaulted */

/* Legal values beyond these are cut to them, with a warning. */
#define VMA_CONF_CQ_POLL_BATCH_MOST 64
#define VMA_CONF_RX_PREFETCH_MOST 2048
#define VMA_CONF_RESOLUTION_MOST 1000 /* ms; what waits so long for a timer seems to hang */
#define VMA_CONF_MSS_LEAST 88
#define VMA_CONF_SEND_BUFFER_LEAST 4608

enum vma_conf_spec { VMA_SPEC_NONE, VMA_SPEC_LATENCY, VMA_SPEC_MULTI_RING_LATENCY };
enum vma_conf_exception {
	VMA_EXCEPTION_EXIT = -2,
	VMA_EXCEPTION_DEBUG = -1,
	VMA_EXCEPTION_DEBUG_TO_OS = 0,
	VMA_EXCEPTION_ERROR_TO_OS = 1,
	VMA_EXCEPTION_RETURN = 2,
	VMA_EXCEPTION_ABORT = 3,
};
enum vma_conf_skip_poll { VMA_SKIP_POLL_NEVER, VMA_SKIP_POLL_ALWAYS, VMA_SKIP_POLL_IN_EPOLL };
enum vma_conf_auto { VMA_CONF_OFF, VMA_CONF_ON, VMA_CONF_AUTO };
enum vma_conf_nic { VMA_CONF_NIC_AUTO, VMA_CONF_NIC_VERBS, VMA_CONF_NIC_XDP, VMA_CONF_NIC_NONE };

/* A name for each parameter: VMA_CONF_AT_<field>. */
enum vma_conf_at {
#define X(type, field, ...) VMA_CONF_AT_##field,
#define Y(class, type, field, ...) VMA_CONF_AT_##field,
	VMA_CONF_PARAMS(X, Y)
#undef X
#undef Y
	        VMA_CONF_COUNT
};

/* Field types: INT -> int64_t, BOOL -> bool, ENUM -> int, TEXT -> const char * (never NULL). */
struct vma_conf {
#define VMA_CONF_FIELD_INT int64_t
#define VMA_CONF_FIELD_BOOL bool
#define VMA_CONF_FIELD_ENUM int
#define VMA_CONF_FIELD_TEXT const char *
#define X(type, field, ...) VMA_CONF_FIELD_##type field;
#define Y(class, type, field, ...) VMA_CONF_FIELD_##type field;
	VMA_CONF_PARAMS(X, Y)
#undef X
#undef Y
	bool given[VMA_CONF_COUNT]; /* by enum vma_conf_at: set by the environment, to something that is understood */
	char texts[VMA_CONF_TEXT_MAX]; /* what the TEXT fields point to, where it is not the default */
};

/*
 * Reads `environ`-like env (NULL-terminated "NAME=value"; NULL: empty); never fails: what is bad is warned of and
 * defaulted. XLIO_NAME means VMA_NAME, if that is not set itself. In a process with raised privileges (AT_SECURE)
 * parameters that name files are ignored, with a warning. The warnings go to the log as it is;
 * vma_conf_load_and_init_log sets it up first.
 */
void vma_conf_load(struct vma_conf *conf, char *const *env);

/* The same without a word, for a question that comes before the start. */
void vma_conf_load_without_warnings(struct vma_conf *conf, char *const *env);

/* The log parameters of conf, for vma_log_init; attr->file points into conf. */
void vma_conf_log_attr(const struct vma_conf *conf, struct vma_log_attr *attr);

/* What a program does first: the log as env says, then vma_conf_load, whose warnings then go there. Returns
 * vma_log_init's 0 or -errno; conf is loaded in any case. */
int vma_conf_load_and_init_log(struct vma_conf *conf, char *const *env);

/*
 * The start-up banner, as in the field: the log level and the log file, and every parameter that is not at its default
 * (all of them at DETAILS). A level of debug or above adds the warning that it costs performance.
 */
void vma_conf_log_all_params(const struct vma_conf *conf);

/*
 * What VMA_INTERNAL_THREAD_AFFINITY means: the number of processors in *cpus, 0 for "-1" (no request); -EINVAL what is
 * not understood, and a processor beyond CPU_SETSIZE.
 */
int vma_conf_parse_cpus(const char *text, cpu_set_t *cpus);

/* Markdown reference of the whole table, docs/parameters.md. Its length, or -ENOSPC. */
int vma_conf_write_reference_page(char *out, size_t size);

#endif
