/* report - the sections of a bug report, one after the other. A section that is not to be had says so. */
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/openat2.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <vma/conf_version.h>

#include "processes.h"
#include "report.h"
#include "view.h"
#include "vmad_state.h"

#define ENVIRONMENT_BYTES (1 << 20) /* of it no more is read */
#define LOG_BYTES 16384             /* the end of the log */

static void begin_section(FILE *out, const char *name)
{
	fprintf(out, "\n==== %s ====\n", name);
}

/* What is not printable becomes '?': a terminal is not to be told anything by another process. */
static void print_text_with_unprintable_masked(FILE *out, const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		fputc((text[i] >= ' ' && text[i] <= '~') || text[i] == '\n' || text[i] == '\t' ? text[i] : '?', out);
}

/* One line, whatever is in it. */
static void print_line_unprintable_masked(FILE *out, const char *text)
{
	for (; *text != '\0'; text++)
		fputc(*text >= ' ' && *text <= '~' ? *text : '?', out);
	fputc('\n', out);
}

/* Of an interface; another namespace's owner may have named it. */
static const char *ifname_copy_printable(const char *name, char clean[IF_NAMESIZE])
{
	size_t n = 0;

	for (; n < IF_NAMESIZE - 1 && name[n] != '\0'; n++)
		clean[n] = name[n] > ' ' && name[n] <= '~' ? name[n] : '?';
	clean[n] = '\0';
	return clean;
}

/* ---- the process ---- */

bool environment_entry_may_be_shown(const char *entry)
{
	return strncmp(entry, "VMA_", 4) == 0 || strncmp(entry, "XLIO_", 5) == 0;
}

/* The environment that the program was started with: entries, each with its zero. NULL: it may not be read. */
static char *read_environ_of_process(pid_t pid, size_t *bytes)
{
	char path[64], *text = malloc(ENVIRONMENT_BYTES);
	FILE *from;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	from = fopen(path, "re");
	if (from == NULL || text == NULL) {
		if (from != NULL)
			fclose(from);
		free(text);
		return NULL;
	}
	*bytes = fread(text, 1, ENVIRONMENT_BYTES - 1, from);
	text[*bytes] = '\0';
	fclose(from);
	return text;
}

static void print_vma_environment_parameters(FILE *out, const char *environment, size_t bytes)
{
	begin_section(out, "parameters of its environment");
	if (environment == NULL) {
		fputs("not readable\n", out);
		return;
	}
	for (size_t at = 0; at < bytes; at += strlen(environment + at) + 1) {
		if (!environment_entry_may_be_shown(environment + at))
			continue;
		print_line_unprintable_masked(out, environment + at);
	}
}

static const char *find_environment_value(const char *environment, size_t bytes, const char *name)
{
	const size_t len = strlen(name);

	if (environment == NULL)
		return NULL;
	for (size_t at = 0; at < bytes; at += strlen(environment + at) + 1)
		if (strncmp(environment + at, name, len) == 0 && environment[at + len] == '=')
			return environment + at + len + 1;
	return NULL;
}

static void report_print_version_and_process(FILE *out, pid_t pid)
{
	char name[PROCESSES_NAME_BYTES], when[64];
	const time_t now = time(NULL);
	struct utsname kernel;
	struct tm tm;

	strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &tm));
	fprintf(out, "libvma %s, %s\n", VMA_VERSION, when);
	fprintf(out, "process %d: %s\n", (int)pid, processes_name(pid, name) ? name : "?");
	if (uname(&kernel) == 0)
		fprintf(out, "kernel %s %s %s\n", kernel.release, kernel.version, kernel.machine);
}

/* ---- its sockets ---- */

static void print_all_stats_views(FILE *out, const struct options *options, const struct vma_stats_view *view)
{
	static struct vma_stats_snapshot now;
	struct options as = *options;
	const struct view_input in = {.options = &as, .now = &now, .total = &now, .out = out};
	unsigned shown = 0, by_kernel = 0;

	vma_stats_view_read(view, &now);
	as.deltas = false;
	as.view = VIEW_EXTRA;
	begin_section(out, "view 2: sockets");
	view_basic(&in);
	as.view = VIEW_FULL;
	begin_section(out, "view 3: all counters");
	view_full(&in);
	begin_section(out, "view 4: groups");
	view_groups(&in);
	begin_section(out, "view 5: netstat");
	view_print_netstat_header(out);
	view_netstat(&in);
	begin_section(out, "view 6: why");
	view_why(&in, &shown, &by_kernel);
	begin_section(out, "TCP connections");
	print_tcp_table_header(out);
	view_tcp(&in);
}

/* ---- interfaces ---- */

static bool enter_netns_of_process(pid_t pid)
{
	struct stat here, there;
	char path[64];
	int fd;
	bool entered;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
	if (stat(path, &there) == 0 && stat("/proc/self/ns/net", &here) == 0 && here.st_ino == there.st_ino)
		return true;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	entered = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
	if (fd >= 0)
		close(fd);
	return entered;
}

static void print_interface(FILE *out, int fd, const char *name, unsigned number)
{
	struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
	LIBBPF_OPTS(bpf_xdp_query_opts, xdp);
	struct ifreq req = {0};
	char clean[IF_NAMESIZE];

	strncpy(req.ifr_name, name, IF_NAMESIZE - 1);
	fprintf(out, "%s: number %u", ifname_copy_printable(name, clean), number);
	if (ioctl(fd, SIOCGIFMTU, &req) == 0)
		fprintf(out, ", MTU %d", req.ifr_mtu);
	req.ifr_data = (void *)&driver;
	if (ioctl(fd, SIOCETHTOOL, &req) == 0)
		fprintf(out, ", driver %.*s", (int)sizeof(driver.driver), driver.driver);
	if (bpf_xdp_query((int)number, 0, &xdp) == 0)
		fprintf(out, ", XDP program %u%s", xdp.prog_id,
		        xdp.prog_id == 0                      ? " (none)"
		        : xdp.attach_mode == XDP_ATTACHED_SKB ? " (generic)"
		                                              : " (driver)");
	fputc('\n', out);
}

static void print_interfaces(FILE *out, pid_t pid)
{
	const bool entered = enter_netns_of_process(pid);
	const int fd = entered ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
	struct if_nameindex *all = fd >= 0 ? if_nameindex() : NULL;

	begin_section(out, "interfaces");
	if (all == NULL)
		fputs(entered ? "not readable\n" : "the process is in another network namespace: only root can look\n",
		      out);
	for (const struct if_nameindex *one = all; one != NULL && one->if_index != 0; one++)
		print_interface(out, fd, one->if_name, one->if_index);
	for (const struct if_nameindex *one = all; one != NULL && one->if_index != 0; one++) {
		char title[64], clean[IF_NAMESIZE];
		int rc;

		snprintf(title, sizeof(title), "vmad of %s", ifname_copy_printable(one->if_name, clean));
		begin_section(out, title);
		rc = vmad_state_show(one->if_name, out);
		if (rc < 0)
			fprintf(out, "%s\n", vmad_state_error_text(rc));
	}
	if (all != NULL)
		if_freenameindex(all);
	if (fd >= 0)
		close(fd);
}

/* ---- the log ---- */

/* The log's path as the process writes it: one %d is its pid. */
static bool report_log_path(pid_t pid, const char *value, char *path, size_t bytes)
{
	const char *mark = strstr(value, "%d");
	int n;

	if (mark != NULL && strstr(mark + 2, "%d") == NULL)
		n = snprintf(path, bytes, "%.*s%d%s", (int)(mark - value), value, (int)pid, mark + 2);
	else
		n = snprintf(path, bytes, "%s", value);
	return n >= 0 && (size_t)n < bytes;
}

/* As the process would: below its root, or below its working folder. -1: it is not there. */
static int open_file_below_process_root_or_cwd(pid_t pid, const char *path)
{
	const struct open_how how = {.flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
	                             .resolve = RESOLVE_NO_MAGICLINKS |
	                                        (path[0] == '/' ? RESOLVE_IN_ROOT : RESOLVE_BENEATH)};
	char folder[64];
	int base, fd;

	snprintf(folder, sizeof(folder), "/proc/%d/%s", (int)pid, path[0] == '/' ? "root" : "cwd");
	base = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (base < 0)
		return -1;
	fd = (int)syscall(SYS_openat2, base, path, &how, sizeof(how));
	close(base);
	return fd;
}

/*
 * The environment names the file, and another user may have written the environment: only a regular file of the
 * process's own user is opened, and only one that the process itself reaches. Else this program could be made to show
 * what only root may read. -1: it is none.
 */
static int open_log_file_owned_by_process_user(pid_t pid, const char *path)
{
	struct stat process, file;
	char folder[64];
	const int fd = open_file_below_process_root_or_cwd(pid, path);

	snprintf(folder, sizeof(folder), "/proc/%d", (int)pid);
	if (fd >= 0 && (stat(folder, &process) < 0 || fstat(fd, &file) < 0 || !S_ISREG(file.st_mode) ||
	                file.st_uid != process.st_uid || file.st_nlink != 1)) {
		close(fd);
		return -1;
	}
	return fd;
}

static void print_tail_of_process_log_file(FILE *out, pid_t pid, const char *value)
{
	static char text[LOG_BYTES];
	char path[PATH_MAX];
	int fd = -1;
	ssize_t n = 0;
	off_t end;

	begin_section(out, "the end of VMA_LOG_FILE");
	if (value == NULL || *value == '\0') {
		fputs("it is not set\n", out);
		return;
	}
	if (report_log_path(pid, value, path, sizeof(path)))
		fd = open_log_file_owned_by_process_user(pid, path);
	if (fd < 0) {
		fputs("not readable, or no file of the process's user\n", out);
		return;
	}
	end = lseek(fd, 0, SEEK_END);
	n = pread(fd, text, sizeof(text), end > (off_t)sizeof(text) ? end - (off_t)sizeof(text) : 0);
	close(fd);
	print_text_with_unprintable_masked(out, text, n > 0 ? (size_t)n : 0);
	fputc('\n', out);
}

void report_write(const struct options *options, const struct vma_stats_view *view, pid_t pid, FILE *out)
{
	size_t bytes = 0;
	char *environment = read_environ_of_process(pid, &bytes);
	const char *log = find_environment_value(environment, bytes, "VMA_LOG_FILE");

	report_print_version_and_process(out, pid);
	print_vma_environment_parameters(out, environment, bytes);
	print_all_stats_views(out, options, view);
	print_tail_of_process_log_file(out, pid,
	                               log != NULL ? log : find_environment_value(environment, bytes, "XLIO_LOG_FILE"));
	print_interfaces(out, pid); /* last: it changes the network namespace */
	free(environment);
}
