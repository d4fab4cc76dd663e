/*
 * stats_log - VMA_STATS_FILE: a socket's counters are written to a file when it is closed, or when the process ends. A
 * socket that has moved nothing is left out.
 *
 * The file is opened once, at start, so a later chdir or chroot of the program does not lose it. It is an ordinary file
 * or a device: a pipe without a reader would raise SIGPIPE. All lines of a socket are one write, so those of two
 * threads or processes do not mix.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/stats.h>

#include "engine.h"

enum { LINES_BYTES = 2048 };

static int open_stats_file(const char *path)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
	                  0644);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (fstat((int)fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISCHR(st.st_mode)))
		return vma_fd_move_high_and_guard((int)fd);
	syscall(SYS_close, fd);
	return -EINVAL;
}

int stats_log_start(struct vma_engine *engine)
{
	int fd;

	engine->priv->stats_log_fd = -1;
	if (engine->conf.stats_file[0] == '\0')
		return 0;
	fd = open_stats_file(engine->conf.stats_file);
	if (fd < 0)
		vma_log_warn("VMA_STATS_FILE='%s': %s", engine->conf.stats_file,
		             fd == -EINVAL ? "no ordinary file" : strerrordesc_np(-fd));
	engine->priv->stats_log_fd = fd;
	return 0;
}

/* The kernel would end a process whose file becomes longer than it may be (SIGXFSZ). */
static bool file_may_grow(int fd, size_t bytes)
{
	struct rlimit limit;
	struct stat st;

	return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
	       (fstat(fd, &st) == 0 && (rlim_t)st.st_size + bytes <= limit.rlim_cur);
}

static double percent_of_sum(uint64_t part, uint64_t rest)
{
	return part + rest != 0 ? 100.0 * (double)part / (double)(part + rest) : 0;
}

#define N(field) vma_stats_read_counter(&s->field)
#define HEAD "VMA: [fd=%" PRIu64 "] "

static int format_socket_stats_lines(char lines[LINES_BYTES], const struct vma_stats_socket *s)
{
	return snprintf(lines, LINES_BYTES,
	                HEAD "Tx Offload: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " [kilobytes/packets/errors]\n" //
	                HEAD "Tx OS info: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " [kilobytes/packets/errors]\n" //
	                HEAD "Rx Offload: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " [kilobytes/packets/errors]\n" //
	                HEAD "Rx OS info: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " [kilobytes/packets/errors]\n" //
	                HEAD "Rx byte: max %" PRIu64 " / dropped %" PRIu64 " (%.2f%%) / limit %" PRIu64 "\n"    //
	                HEAD "Rx pkt : max %" PRIu64 " / dropped %" PRIu64 " (%.2f%%)\n"                        //
	                HEAD "Rx poll: %" PRIu64 " / %" PRIu64 " (%.2f%%) [miss/hit]\n",                        //
	                N(fd), N(tx_bytes) / 1024, N(tx_packets), N(tx_errors),                                 //
	                N(fd), N(tx_os_bytes) / 1024, N(tx_os_packets), N(tx_os_errors),                        //
	                N(fd), N(rx_bytes) / 1024, N(rx_packets), N(rx_errors),                                 //
	                N(fd), N(rx_os_bytes) / 1024, N(rx_os_packets), N(rx_os_errors),                        //
	                N(fd), N(rx_queue_max_bytes), N(rx_dropped_bytes),
	                percent_of_sum(N(rx_dropped_bytes), N(rx_bytes)),
	                N(rx_limit_bytes),                                                                   //
	                N(fd), N(rx_queue_max), N(rx_dropped), percent_of_sum(N(rx_dropped), N(rx_packets)), //
	                N(fd), N(rx_poll_misses), N(rx_poll_hits), percent_of_sum(N(rx_poll_hits), N(rx_poll_misses)));
}

static void stats_log_write(const struct vma_engine *engine, const struct vma_stats_socket *s)
{
	const int fd = engine->priv->stats_log_fd;
	char lines[LINES_BYTES];
	int len;

	if (N(tx_packets) + N(tx_os_packets) + N(rx_packets) + N(rx_os_packets) == 0)
		return;
	len = format_socket_stats_lines(lines, s);
	if (len > 0 && len < LINES_BYTES && file_may_grow(fd, (size_t)len))
		syscall(SYS_write, fd, lines, len);
}

void stats_log_socket(const struct vma_engine *engine, const struct vma_stats_socket *block)
{
	struct vma_stats_socket counts;

	if (engine->priv->stats_log_fd < 0)
		return;
	vma_stats_copy_block(engine->stats, VMA_STATS_TYPE_SOCKET, block, &counts);
	stats_log_write(engine, &counts);
}

static void log_socket_at_exit(void *arg, const void *counts)
{
	stats_log_write(arg, counts);
}

void stats_log_all_open_sockets_at_exit(struct vma_engine *engine)
{
	if (engine->priv->stats_log_fd >= 0)
		vma_stats_for_each_block(engine->stats, VMA_STATS_TYPE_SOCKET, log_socket_at_exit, engine);
	engine->priv->stats_log_fd = -1; /* a socket that is closed after this has been told of */
}

/* The parent's sockets are told of by the parent. */
void stats_log_close_in_fork_child(struct vma_engine *engine)
{
	if (engine->priv->stats_log_fd >= 0)
		vma_fd_unguard_close(engine->priv->stats_log_fd);
	engine->priv->stats_log_fd = -1;
}
