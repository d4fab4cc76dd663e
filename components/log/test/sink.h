/* sink - the log in a memory file, or stderr in one, for tests that read what came out. */
#ifndef VMA_LOG_TEST_SINK_H
#define VMA_LOG_TEST_SINK_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vma/log.h>

struct sink {
	int fd;           /* memory file */
	int saved_stderr; /* -1: not diverted */
	char path[32];
	char text[65536];
};

static inline void sink_open_log_memfd(struct sink *sink)
{
	sink->fd = memfd_create("log", 0);
	sink->saved_stderr = -1;
	snprintf(sink->path, sizeof(sink->path), "/proc/self/fd/%d", sink->fd);
}

/* The log as VMA_LOG_FILE would have it. */
static inline void sink_redirect_log(struct sink *sink, enum vma_log_level level, unsigned details)
{
	sink_open_log_memfd(sink);
	vma_log_init(&(struct vma_log_attr){.level = level, .details = details, .file = sink->path});
}

static inline void sink_redirect_stderr_to_memfd(struct sink *sink)
{
	sink_open_log_memfd(sink);
	fcntl(sink->fd, F_SETFL, O_APPEND);
	sink->saved_stderr = dup(STDERR_FILENO);
	dup2(sink->fd, STDERR_FILENO);
}

/* Everything that came so far. */
static inline const char *sink_read(struct sink *sink)
{
	ssize_t n = pread(sink->fd, sink->text, sizeof(sink->text) - 1, 0);

	sink->text[n > 0 ? n : 0] = '\0';
	return sink->text;
}

static inline void sink_close(struct sink *sink)
{
	vma_log_fini();
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO});
	if (sink->saved_stderr >= 0) {
		dup2(sink->saved_stderr, STDERR_FILENO);
		close(sink->saved_stderr);
	}
	close(sink->fd);
}

static inline unsigned count_word_in_text(const char *text, const char *word)
{
	unsigned n = 0;

	for (const char *p = strstr(text, word); p != NULL; p = strstr(p + 1, word))
		n++;
	return n;
}

#endif
