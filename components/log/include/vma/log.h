/*
 * log - one line per event on stderr or in a file, by level.
 *
 * The library interposes write(), open() and their relatives. This component reaches the kernel by syscall() only, so
 * any part of the library may call it. Levels and their numbers are the field's: VMA_TRACELEVEL takes either.
 *
 * Threads: any thread. A line is one write(2), so lines never mix. init, fini: one thread at a time.
 * Progress: no lock. A line costs the write, and two system calls that keep SIGPIPE and SIGXFSZ from the program.
 *           Details (gettid, getpid) and colours (is it a terminal?) cost calls of their own. A full output is waited
 *           for, 10 ms at most. Then the line is dropped and counted; the count is printed when there is room.
 * Memory: a line buffer of VMA_LOG_LINE_MAX bytes on the caller's stack. errno is kept.
 * Example: test/test_format.c.
 */
#ifndef VMA_LOG_H
#define VMA_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A longer line is cut and ends in " [...]". */
#define VMA_LOG_LINE_MAX 1024

/*
 * X(NAME, value, user number, label, alias): ordered from quiet to talkative. The user number is what VMA_TRACELEVEL
 * takes ("": none); it is not the value, because DETAILS came in between without a number of its own.
 */
#define VMA_LOG_LEVELS(X)                                                                                              \
	X(NONE, -1, "", "NONE", "")                                                                                    \
	X(PANIC, 0, "0", "PANIC", "")                                                                                  \
	X(ERROR, 1, "1", "ERROR", "")                                                                                  \
	X(WARN, 2, "2", "WARNING", "WARN")                                                                             \
	X(INFO, 3, "3", "INFO", "INFORMATION")                                                                         \
	X(DETAILS, 4, "", "DETAILS", "")                                                                               \
	X(DEBUG, 5, "4", "DEBUG", "")                                                                                  \
	X(FINE, 6, "5", "FINE", "FUNC")                                                                                \
	X(FINER, 7, "6", "FINER", "FUNC_ALL")                                                                          \
	X(ALL, 8, "", "ALL", "")

enum vma_log_level {
#define X(name, value, ...) VMA_LOG_##name = (value),
	VMA_LOG_LEVELS(X)
#undef X
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
	const char *file; /* NULL or "": stderr; a single %d becomes the pid; appended to */
};

/* The level in force; read by the macros, written by vma_log_init and vma_log_set_level. */
extern _Atomic int vma_log_level_now __attribute__((visibility("hidden")));

/*
 * 0, or -errno of the file that could not be opened (the log then goes to stderr and says so). May be called again,
 * also while other threads log: the file keeps its descriptor number. Until the first call: INFO, plain, stderr.
 * A file that fails later (disk full) also ends in stderr, and is said once.
 */
int vma_log_init(const struct vma_log_attr *attr);
/* Closes the file; what comes later goes to stderr. No other thread may be logging. */
void vma_log_fini(void);
int vma_log_fd(void); /* the file's descriptor, -1: the log has not had one */
void vma_log_set_level(enum vma_log_level level);
void vma_log_set_details(unsigned details); /* of struct vma_log_attr */

/* Name or number, any case, as VMA_TRACELEVEL; -EINVAL leaves *level alone. */
int vma_log_level_parse(const char *text, enum vma_log_level *level);
const char *vma_log_level_name(enum vma_log_level level); /* "INFO", "DEBUG", ... */

/*
 * Writes the line whatever the level; the macros below test it first. No newline at the end of fmt; control
 * characters in the text (it may quote what came from outside) are shown as '?', so that an event stays one line.
 */
void vma_log_write(enum vma_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

static inline bool vma_log_level_is_enabled(enum vma_log_level level)
{
	return level <= VMA_LOG_COMPILED &&
	       __builtin_expect((int)level <= atomic_load_explicit(&vma_log_level_now, memory_order_relaxed), 0);
}

#define vma_log_at(level, ...)                                                                                         \
	do {                                                                                                           \
		if (vma_log_level_is_enabled(level))                                                                   \
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
 * "eth0: no XDP" and "eth1: no XDP" are two problems. Returns true if the line was written: the first time, at a level
 * that is on. A fixed table of hashes, filled by compare-and-swap; when it is full, repeats of new texts are printed
 * rather than lost.
 */
bool vma_log_once(enum vma_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

#endif
