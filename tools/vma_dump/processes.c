/* processes - found by their files, and told by what their statistics say. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "processes.h"

bool processes_path(const char *directory, pid_t pid, char path[PATH_MAX])
{
	return snprintf(path, PATH_MAX, "%s/vmastat.%d", directory, (int)pid) < PATH_MAX;
}

void processes_name(pid_t pid, char name[PROCESSES_NAME_BYTES])
{
	char path[64];
	ssize_t n = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, name, PROCESSES_NAME_BYTES - 1);
		close(fd);
	}
	if (n <= 0)
		n = snprintf(name, PROCESSES_NAME_BYTES, "?\n");
	name[n - 1] = '\0'; /* the end of the line */
	for (char *c = name; *c != '\0'; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
}

void processes_print(const char *directory)
{
	static pid_t pids[PROCESSES_MAX];
	const int n = vma_stats_list(directory, false, pids, PROCESSES_MAX);

	for (int i = 0; i < n; i++) {
		char path[PATH_MAX], name[PROCESSES_NAME_BYTES];
		struct vma_stats_view *view;

		if (!processes_path(directory, pids[i], path) || vma_stats_view_open(path, &view) < 0)
			continue; /* another user's, or it has just gone */
		vma_stats_view_close(view);
		processes_name(pids[i], name);
		printf("%d %s\n", (int)pids[i], name);
	}
}

pid_t processes_only(const char *directory)
{
	static pid_t pids[PROCESSES_MAX];
	const int n = vma_stats_list(directory, false, pids, PROCESSES_MAX);

	if (n == 1)
		return pids[0];
	fputs(n <= 0 ? "vma_dump: no program on libvma.so runs here\n"
	             : "vma_dump: several programs run: -D lists them, -p chooses one\n",
	      stderr);
	return 0;
}
