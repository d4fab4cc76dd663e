/*
 * log - one line per event on stderr or in a file, by level.
 *
 * Threads: any thread; a line is one write(2), so lines never mix.
 * Progress: no lock; the only system calls are the write itself and, where the details ask for it, gettid/clock_gettime.
 * Memory: none but a line buffer on the caller's stack.
 * Example: test/test_format.c.
 *
 * The library interposes write(), open() and their kin; this component reaches the kernel by syscall() only, so it
 * may be called from anywhere inside it. Levels and their numbers are the field's: VMA_TRACELEVEL takes either.
 */
#ifndef VMA_LOG_H
#define VMA_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(NAME, user number, label): ordered from quiet to talkative. DETAILS has no number of its own (seeds). */
enum vma_log_level {
	VMA_LOG_NONE = -1,
	VMA_LOG_PANIC = 0,
	VMA_LOG_ERROR,
	VMA_LOG_WARN,
	VMA_LOG_INFO,
	VMA_LOG_DETAILS,
	VMA_LOG_DEBUG, /* number 4 */
	VMA_LOG_FINE,  /* number 5, alias func; compiled into the debug library only */
	VMA_LOG_FINER, /* number 6, alias func_all; debug library only */
	VMA_LOG_ALL,
};

/* The highest level that exists in this build: calls above it are removed by the compiler. */
#ifdef VMA_DEBUG
#define VMA_LOG_COMPILED VMA_LOG_ALL
#else
#define VMA_LOG_COMPILED VMA_LOG_DEBUG
#endif

struct vma_log_attr {
	enum vma_log_level level;
	unsigned details; /* 0 plain, 1 +tid, 2 +pid, 3 +milliseconds since process start */
	bool colors;      /* only used when the output is a terminal */
	const char *file; /* NULL or "": stderr; one %d becomes the pid */
};

/* The level in force; read by the macros, written by vma_log_init and vma_log_set_level. */
extern _Atomic int vma_log_level_now;

/* 0, or -errno of the file that could not be opened (the log then goes to stderr and says so). May be called again. */
int vma_log_init(const struct vma_log_attr *attr);
void vma_log_fini(void);
void vma_log_set_level(enum vma_log_level level);

/* Name or number, any case, as VMA_TRACELEVEL; -EINVAL leaves *level alone. */
int vma_log_level_parse(const char *text, enum vma_log_level *level);
const char *vma_log_level_name(enum vma_log_level level); /* "INFO", "DEBUG", ... */

/* Writes the line whatever the level; the macros below test it first. */
void vma_log_write(enum vma_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

static inline bool vma_log_on(enum vma_log_level level)
{
	return level <= VMA_LOG_COMPILED &&
	       __builtin_expect((int)level <= atomic_load_explicit(&vma_log_level_now, memory_order_relaxed), 0);
}

#define vma_log_at(level, ...)                                                                                         \
	do {                                                                                                           \
		if (vma_log_on(level))                                                                                 \
			vma_log_write((level), __VA_ARGS__);                                                           \
	} while (0)

#define vma_log_panic(...) vma_log_at(VMA_LOG_PANIC, __VA_ARGS__)
#define vma_log_error(...) vma_log_at(VMA_LOG_ERROR, __VA_ARGS__)
#define vma_log_warn(...) vma_log_at(VMA_LOG_WARN, __VA_ARGS__)
#define vma_log_info(...) vma_log_at(VMA_LOG_INFO, __VA_ARGS__)
#define vma_log_details(...) vma_log_at(VMA_LOG_DETAILS, __VA_ARGS__)
#define vma_log_debug(...) vma_log_at(VMA_LOG_DEBUG, __VA_ARGS__)
#define vma_log_fine(...) vma_log_at(VMA_LOG_FINE, __VA_ARGS__)
#define vma_log_finer(...) vma_log_at(VMA_LOG_FINER, __VA_ARGS__)

/*
 * A distinct problem is said once: the text that comes out (not only the place in the code) is what counts, so
 * "eth0: no XDP" and "eth1: no XDP" are two problems. Returns true for the first time. A fixed table of hashes,
 * filled by compare-and-swap; when it is full, repeats of new texts are printed rather than lost.
 */
bool vma_log_once(enum vma_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

#endif
