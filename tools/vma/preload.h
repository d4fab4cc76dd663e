/*
 * preload - the file of the library, the list of LD_PRELOAD, and the programs on which that list has no effect.
 *
 * Functions return 0 or a negative errno.
 */
#ifndef VMA_TOOLS_PRELOAD_H
#define VMA_TOOLS_PRELOAD_H

#include <stddef.h>

/* The library that belongs to this command: beside its own file, or where it was installed with it. -ENOENT. */
int preload_find_library(char *path, size_t size);

/*
 * LD_PRELOAD with `library` as its last entry; `list` is what was there, or NULL. Entries with a name of the library
 * (libvma.so, libvma-debug.so) are left out, since two of them in one process are one too many. The library is last,
 * because a sanitizer's runtime has to be first, and a library that wraps the same calls expects the system's behind
 * it. -EINVAL: the path has a character at which the list is split.
 */
int preload_list_add_library(const char *list, const char *library, char *out, size_t size);

/* The file that execvp would execute for `name`; -ENOENT. */
int preload_find_program(const char *name, char *path, size_t size);

/* Why the loader would not preload anything into this program, as a sentence without its subject; NULL: it would. */
const char *preload_refusal_reason(const char *program);

#endif
