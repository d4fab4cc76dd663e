/*
 * rules.c - the process's transport rules: read when its first engine starts. Forked children have the same ones, also
 * where they have become another user, or have another root. Also here are the log's lines about the file, and about
 * sockets that a rule leaves to the kernel.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <vma/log.h>

#include "engine.h"

#define OTHER_FILE "/etc/libxlio.conf" /* if the default is not there */

enum { ERRORS_SHOWN = 10 };

static struct vma_rules *process_rules; /* NULL: none; see vma_engine_add_rule for changes */
static bool rules_are_read;

/* ---- reading ---- */

struct listener {
	const char *file;
	unsigned errors;
};

static void log_rules_message(void *arg, const struct vma_rules_message *message)
{
	struct listener *listener = arg;

	if (!message->is_error)
		vma_log_once(VMA_LOG_INFO, "%s:%u:%u: %s", listener->file, message->line, message->column,
		             message->text);
	else if (listener->errors++ < ERRORS_SHOWN)
		vma_log_once(VMA_LOG_WARN, "%s:%u:%u: %s; the statement is left out", listener->file, message->line,
		             message->column, message->text);
}

static void engine_parse_rules_text(const struct vma_conf *conf, const char *file, const char *text, size_t size)
{
	struct listener listener = {.file = file};
	const struct vma_rules_attr attr = {.file = file,
	                                    .program = program_invocation_short_name,
	                                    .id = conf->application_id,
	                                    .tell = log_rules_message,
	                                    .arg = &listener};
	const int rc = vma_rules_parse(&attr, text, size, &process_rules);

	if (rc < 0)
		vma_log_warn("%s: %s: none of its rules has an effect", file, strerrordesc_np(-rc));
	else if (listener.errors > ERRORS_SHOWN)
		vma_log_warn("%s: %u more statements are left out", file, listener.errors - ERRORS_SHOWN);
}

static const char *rules_read_error_text(int rc)
{
	switch (-rc) {
	case EINVAL:
		return "it is no regular file";
	case EFBIG:
		return "it has more than 1048576 bytes";
	default:
		return strerrordesc_np(-rc);
	}
}
_Static_assert(VMA_RULES_FILE_MAX == 1048576, "why_not_read");

/* 0: there is such a file. What stands between the program and its rules is warned of, for they say what must stay with
 * the kernel. */
static int read_rules_file(const struct vma_conf *conf, const char *file, bool must_be_there)
{
	char *text;
	size_t size;
	const int rc = vma_rules_read(file, &text, &size);

	if (rc == 0 && text != NULL)
		engine_parse_rules_text(conf, file, text, size);
	vma_rules_text_unmap(text);
	if (rc < 0 && (must_be_there || rc != -ENOENT))
		vma_log_warn("%s%s is not read: %s: none of its rules has an effect",
		             must_be_there ? "VMA_CONFIG_FILE: " : "", file, rules_read_error_text(rc));
	return rc;
}

static void read_rules(const struct vma_conf *conf)
{
	if (conf->given[VMA_CONF_AT_config_file]) {
		if (conf->config_file[0] != '\0')
			read_rules_file(conf, conf->config_file, true);
	} else if (read_rules_file(conf, conf->config_file, false) == -ENOENT) {
		read_rules_file(conf, OTHER_FILE, false);
	}
}

/* What was there before is never freed: readers may be looking, and rules are few. */
int vma_engine_add_rule(struct vma_engine *engine, const char *line)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct listener listener = {.file = "add_conf_rule"};
	const struct vma_rules_attr attr = {.file = process_rules != NULL ? process_rules->file : "add_conf_rule",
	                                    .program = program_invocation_short_name,
	                                    .id = engine->conf.application_id,
	                                    .tell = log_rules_message,
	                                    .arg = &listener};
	struct vma_rules *fresh;
	int rc;

	pthread_mutex_lock(&lock);
	rc = vma_rules_prepend(&attr, process_rules, line, &fresh);
	if (rc == 0) {
		process_rules = fresh;
		engine->rules = fresh;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

int engine_read_rules_once(struct vma_engine *engine)
{
	if (!rules_are_read)
		read_rules(&engine->conf);
	rules_are_read = true;
	engine->rules = process_rules;
	return 0;
}

/* ---- what is said of a rule ---- */

const char *engine_name_of_rule(uint32_t line)
{
	static _Thread_local char name[320];

	if (line & VMA_RULES_ADDED)
		snprintf(name, sizeof(name), "added rule %u", line & ~VMA_RULES_ADDED);
	else
		snprintf(name, sizeof(name), "%s:%u", engine_rules_file(), line);
	return name;
}

const char *engine_rules_file(void)
{
	return process_rules != NULL ? process_rules->file : "";
}

/* The first 4096 lines of a file, and those that share a bit with them. Added rules have the bits of the last lines. */
bool engine_rule_was_logged_or_mark_logged(unsigned kind, uint32_t line, bool tells_now)
{
	static _Atomic uint64_t told[ENGINE_RULES_KINDS][64] __attribute__((section(".bss.far")));
	const uint32_t at = line & VMA_RULES_ADDED ? ~line : line;
	_Atomic uint64_t *const of = &told[kind][at / 64 % 64];
	const uint64_t bit = UINT64_C(1) << at % 64;

	if (tells_now)
		return (atomic_fetch_or_explicit(of, bit, memory_order_relaxed) & bit) != 0;
	return (atomic_load_explicit(of, memory_order_relaxed) & bit) != 0;
}

void vma_sock_record_and_log_kernel_send_rule(struct vma_file *file, const struct vma_rule *rule)
{
	if (atomic_load_explicit(&file->rule_line, memory_order_relaxed) != rule->line)
		atomic_store_explicit(&file->rule_line, rule->line, memory_order_relaxed);
	if (vma_log_level_is_enabled(VMA_LOG_INFO) &&
	    !engine_rule_was_logged_or_mark_logged(ENGINE_RULES_SENDERS, rule->line, false) &&
	    !engine_rule_was_logged_or_mark_logged(ENGINE_RULES_SENDERS, rule->line, true))
		vma_log_info("%s: the kernel sends what UDP sockets send to names of a rule (%s)",
		             program_invocation_short_name, engine_name_of_rule(rule->line));
}
