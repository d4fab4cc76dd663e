/* processes - found by their files, and told by what their statistics say. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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
	const int n = vma_stats_list_live_pids(directory, false, pids, PROCESSES_MAX);

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

pid_t processes_find_sole_pid_or_print_error(const char *directory)
{
	static pid_t pids[PROCESSES_MAX];
	const int n = vma_stats_list_live_pids(directory, false, pids, PROCESSES_MAX);

	if (n == 1)
		return pids[0];
	fputs(n <= 0 ? "vma_dump: no program on libvma.so runs here\n"
	             : "vma_dump: several programs run: -D lists them, -p chooses one, -i takes all of an interface\n",
	      stderr);
	return 0;
}

/* Namespaces have interfaces of the same names. */
static bool process_is_in_this_net_namespace(pid_t pid)
{
	struct stat here, there;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
	return stat(path, &there) == 0 && stat("/proc/self/ns/net", &here) == 0 && here.st_ino == there.st_ino &&
	       here.st_dev == there.st_dev;
}

/* "eth0#3" is eth0's ring 3. */
static bool ring_name_is_of_interface(const char *name, const char *interface)
{
	const size_t len = strlen(interface);

	return strncmp(name, interface, len) == 0 && name[len] == '#' && strchr(name + len + 1, '#') == NULL;
}

bool process_has_ring_on_interface(struct vma_stats_view *view, pid_t pid, const char *interface)
{
	enum vma_stats_type type;
	const void *block;
	const char *name;
	size_t cursor = 0;

	if (!process_is_in_this_net_namespace(pid))
		return false;
	while (vma_stats_view_next(view, &cursor, &type, &name, &block))
		if (type == VMA_STATS_TYPE_RING && ring_name_is_of_interface(name, interface))
			return true;
	return false;
}
