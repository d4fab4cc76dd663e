/*
 * conf - the VMA_* parameters, parsed once from the environment into plain fields.
 *
 * Threads: vma_conf_load in one thread at start; the result is then read-only and anyone may read it.
 * Progress: no locks. Memory: the caller's struct; texts point into a buffer of the struct itself.
 * Example: test/test_load.c.
 *
 * One list (VMA_CONF_PARAMS in conf_params.h) gives the struct, the parser, the range check, the banner and the
 * reference page. A component takes what it needs at its own creation, through its attr struct, and never reads this
 * one on the data path. A bad value gives one warning that names the parameter, the value and what is used instead.
 */
#ifndef VMA_CONF_H
#define VMA_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vma/conf_params.h>

#define VMA_CONF_TEXT_MAX 4096

/* Field types: INT -> int64_t, BOOL -> bool, ENUM -> int, TEXT -> const char * (never NULL). */
struct vma_conf {
#define VMA_CONF_FIELD_INT int64_t
#define VMA_CONF_FIELD_BOOL bool
#define VMA_CONF_FIELD_ENUM int
#define VMA_CONF_FIELD_TEXT const char *
#define X(type, field, ...) VMA_CONF_FIELD_##type field;
	VMA_CONF_PARAMS(X)
#undef X
};

/* Reads `environ`-like env (NULL-terminated "NAME=value"); never fails: what is bad is warned of and defaulted. */
void vma_conf_load(struct vma_conf *conf, char *const *env);

/* The start-up banner: every parameter that is not at its default (all of them at DETAILS), as in the seeds. */
void vma_conf_banner(const struct vma_conf *conf);

/* Markdown reference of the whole table, for docs/. */
int vma_conf_reference(char *out, size_t size);

#endif
