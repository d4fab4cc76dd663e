/* banner - the lines that the library logs when it starts: version, command line, and the parameters. */
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <vma/conf_version.h>
#include <vma/log.h>

#include "engine.h"

#ifdef VMA_DEBUG
#define KIND "Debug"
#else
#define KIND "Release"
#endif
#define RULE "---------------------------------------------------------------------------"

/* The arguments lie one after the other, each with its zero. A long line is cut. */
static void read_own_command_line(char *out, size_t size)
{
	long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	long n = fd >= 0 ? syscall(SYS_read, fd, out, size - 1) : 0;

	if (fd >= 0)
		syscall(SYS_close, fd);
	n = n > 0 ? n : 0;
	while (n > 0 && out[n - 1] == '\0')
		n--;
	out[n] = '\0';
	for (long i = 0; i < n; i++)
		if (out[i] == '\0')
			out[i] = ' ';
}

static void log_machine(void)
{
	const time_t now = time(NULL);
	struct utsname machine;
	char when[64];
	struct tm tm;

	if (localtime_r(&now, &tm) != NULL && strftime(when, sizeof(when), "%a %b %e %H:%M:%S %Y", &tm) > 0)
		vma_log_details("Current Time: %s", when);
	vma_log_details("Pid: %5ld", (long)getpid());
	if (uname(&machine) == 0) {
		vma_log_details("Kernel: %s %s", machine.sysname, machine.release);
		vma_log_details("Architecture: %s", machine.machine);
		vma_log_details("Node: %s", machine.nodename);
	}
}

/*
 * A tree of processes says it once. A forked child knows by its memory; a program that was started, by the statistics
 * file of its parent, of which nothing but its owner is looked at. (Another shell in between is not seen.)
 */
static bool banner_was_printed_before_or_mark(const struct vma_conf *conf)
{
	static bool said;
	char path[PATH_MAX];
	struct stat st;
	bool before = said;

	said = true;
	if (before)
		return true;
	snprintf(path, sizeof(path), "%s/vmastat.%ld", conf->stats_shmem_dir, syscall(SYS_getppid));
	return conf->stats_shmem_dir[0] != '\0' && lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	       (st.st_uid == geteuid() || st.st_uid == 0);
}

/* From details on each process says it. */
void engine_log_startup_banner(const struct vma_conf *conf)
{
	char line[512];

	if (!vma_log_level_is_enabled(VMA_LOG_INFO) ||
	    (banner_was_printed_before_or_mark(conf) && !vma_log_level_is_enabled(VMA_LOG_DETAILS)))
		return;
	read_own_command_line(line, sizeof(line));
	vma_log_info(RULE);
	vma_log_info("VMA_VERSION: %s-0 %s built on %s", VMA_VERSION, KIND, __DATE__);
	vma_log_info("Cmd Line: %s", line);
	log_machine();
	vma_conf_log_all_params(conf);
}
