/*
 * check - see check.h. A line says "ok", or "note" if a thing is not as it could be. It says "missing" if nothing can
 * be offloaded and the thing may be the reason.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <vma/conf.h>
#include <vma/log.h>
#include <vma/sock_engine.h>

#include "check.h"

#define LINKS_MAX 256
#define WINDOW_BYTES (16u << 20) /* of a device queue, as vmad has it if nothing else is said */

extern char **environ;

/* A text that grows; what does not fit is cut. */
struct text {
	char bytes[16384];
	size_t len;
};

struct check {
	struct vma_conf conf;
	const char *library;
	char vmad[PATH_MAX];
	char lacks[VMA_NIC_LACKS_MAX];
	int log_fd;                   /* the log of the library's code, -1: it goes nowhere */
	off_t log_seen;               /* of that */
	unsigned admitted, startable; /* interfaces */
	struct text can, cannot;
};

static void text_append_format(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void text_append_format(struct text *text, const char *format, ...)
{
	const size_t room = sizeof(text->bytes) - text->len;
	va_list list;
	int n;

	va_start(list, format);
	n = vsnprintf(text->bytes + text->len, room, format, list);
	va_end(list);
	text->len += n > 0 && (size_t)n < room ? (size_t)n : n > 0 ? room - 1 : 0;
}

static bool check_found_way_to_offload(const struct check *check)
{
	return check->library != NULL && check->admitted + check->startable > 0;
}

static void print_check_result_line(const struct check *check, bool is_ok, const char *what, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
static void print_check_result_line(const struct check *check, bool is_ok, const char *what, const char *format, ...)
{
	va_list list;

	printf("%-8s %-13s ", is_ok ? "ok" : check_found_way_to_offload(check) ? "note" : "missing", what);
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
}

/* ---- what the library's code says in the log ---- */

static void log_open_memory(struct check *check)
{
	char path[64];
	struct vma_log_attr attr = {.level = VMA_LOG_INFO, .file = path};

	check->log_fd = memfd_create("vma-check", MFD_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", check->log_fd);
	if (check->log_fd < 0 || vma_log_init(&attr) < 0)
		vma_log_set_level(VMA_LOG_NONE);
}

/* Adds what was said of the interface since the last call: the part of each line behind its name. */
static bool check_take_logged_reasons(struct check *check, const char *ifname, struct text *out)
{
	char bytes[4096], about[32];
	const ssize_t n = check->log_fd >= 0 ? pread(check->log_fd, bytes, sizeof(bytes) - 1, check->log_seen) : 0;
	bool found = false;

	if (n <= 0)
		return false;
	check->log_seen += n;
	bytes[n] = '\0';
	snprintf(about, sizeof(about), ": %s: ", ifname);
	for (char *save, *line = strtok_r(bytes, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
		const char *said = strstr(line, about);

		if (said == NULL)
			continue;
		text_append_format(out, "%s%s", found ? "; " : "", said + strlen(about));
		found = true;
	}
	return found;
}

/* ---- interfaces ---- */

static bool has_ipv4(struct vma_net *net, const struct vma_net_link *link)
{
	struct vma_net_addr addrs[64];
	const int n = vma_net_addrs(net, link->ifindex, addrs, sizeof(addrs) / sizeof(addrs[0]));

	for (int i = 0; i < n && i < (int)(sizeof(addrs) / sizeof(addrs[0])); i++)
		if (addrs[i].family == AF_INET)
			return true;
	return n > (int)(sizeof(addrs) / sizeof(addrs[0]));
}

static void append_refused_interface(struct check *check, const char *ifname, const char *why)
{
	text_append_format(&check->cannot, "%s%s (%s)", check->cannot.len > 0 ? ", " : "", ifname, why);
}

static void check_try_vmad_of_interface(struct check *check, const struct vma_net_link *link)
{
	struct vma_nic_attr attr = {.owner = VMA_NIC_OWNER_VMAD};
	struct text said = {.len = 0};
	char spec[64];
	int rc = vma_ring_conf_to_device_spec(&check->conf, link->name, spec, sizeof(spec));

	if (rc == 0)
		rc = vma_nic_probe(spec, &attr);
	if (!check_take_logged_reasons(check, link->name, &said))
		text_append_format(&said, "%s", rc < 0 ? strerror(-rc) : "");
	if (rc < 0) {
		append_refused_interface(check, link->name, said.bytes);
		return;
	}
	*(rc == VMA_NIC_VMAD_ADMITS ? &check->admitted : &check->startable) += 1;
	text_append_format(&check->can, "%s%s (%s%s%s)", check->can.len > 0 ? ", " : "", link->name,
	                   rc == VMA_NIC_VMAD_ADMITS ? "its vmad takes this user"
	                   : check->vmad[0] != '\0'  ? "a program starts vmad"
	                                             : "a program owns it alone",
	                   said.len > 0 ? "; " : "", said.bytes);
}

static void check_interface(struct check *check, struct vma_net *net, const struct vma_net_link *link)
{
	const char *why;

	if (vma_device_check_link(&check->conf, link, &why) < 0)
		append_refused_interface(check, link->name, why);
	else if (!has_ipv4(net, link))
		append_refused_interface(check, link->name, "it has no IPv4 address");
	else
		check_try_vmad_of_interface(check, link);
}

static void check_all_interfaces(struct check *check)
{
	static struct vma_net_link links[LINKS_MAX];
	struct vma_net *net;
	int n, rc = vma_net_create(NULL, &net);

	if (rc < 0) {
		append_refused_interface(check, "all", strerror(-rc));
		return;
	}
	n = vma_net_links(net, links, LINKS_MAX);
	for (int i = 0; i < n && i < LINKS_MAX; i++)
		check_interface(check, net, &links[i]);
	if (n > LINKS_MAX)
		text_append_format(&check->cannot, ", and %d more, not looked at", n - LINKS_MAX);
	vma_net_destroy(net);
}

/* ---- the lines ---- */

/* Loading it is the proof that it can be loaded; it does nothing before there is a socket. */
static void check_print_library(struct check *check)
{
	const char *(*get_version)(void);
	void *loaded = check->library != NULL ? dlopen(check->library, RTLD_NOW | RTLD_LOCAL) : NULL;
	const char *error = check->library != NULL && loaded == NULL ? dlerror() : NULL;

	if (loaded == NULL) {
		check->library = NULL;
		print_check_result_line(check, false, "library", "%s",
		                        error != NULL ? error : "no libvma.so beside this command");
		return;
	}
	*(void **)&get_version = dlsym(loaded, "vma_get_version");
	print_check_result_line(check, get_version != NULL, "library", "%s, version %s", check->library,
	                        get_version != NULL ? get_version() : "unknown: it is no libvma.so of this kind");
}

static void check_print_kernel(const struct check *check)
{
	struct utsname machine = {.release = "?"};
	const char *what;
	const int rc = vma_nic_check_kernel_supports_xdp(&what);

	uname(&machine);
	if (rc == 0)
		print_check_result_line(check, true, "kernel", "%s, with AF_XDP and bpf()", machine.release);
	else if (rc == -EPERM || rc == -EACCES)
		print_check_result_line(check, false, "kernel", "%s; this process may not use %s", machine.release,
		                        what);
	else
		print_check_result_line(check, false, "kernel", "%s; without %s: %s", machine.release, what,
		                        strerror(-rc));
}

static void check_print_capabilities(const struct check *check)
{
	if (check->lacks[0] == '\0')
		print_check_result_line(check, true, "capabilities", "CAP_NET_RAW CAP_BPF CAP_PERFMON CAP_NET_ADMIN");
	else
		print_check_result_line(check, false, "capabilities", "without%s%s", check->lacks,
		                        check->startable == 0 && check->admitted > 0 ? " (a vmad has them)" : "");
}

static bool may_lock_memory(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};

	return syscall(SYS_capget, &head, data) == 0 && (data[0].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

/* The limit is that of a vmad which a program starts. */
static void check_print_memory_limit(const struct check *check)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (may_lock_memory())
		print_check_result_line(check, true, "memory", "CAP_IPC_LOCK: RLIMIT_MEMLOCK does not count");
	else if (limit.rlim_cur == RLIM_INFINITY)
		print_check_result_line(check, true, "memory", "RLIMIT_MEMLOCK is unlimited");
	else
		print_check_result_line(check, limit.rlim_cur >= WINDOW_BYTES || check->startable == 0, "memory",
		                        "RLIMIT_MEMLOCK is %" PRIuMAX
		                        " KB; a vmad of this user would take up to %u KB for each device "
		                        "queue",
		                        (uintmax_t)limit.rlim_cur >> 10, WINDOW_BYTES >> 10);
}

static void check_print_huge_pages(const struct check *check)
{
	const bool wanted = check->conf.mem_alloc_type == VMA_MEM_HUGE;
	FILE *file = fopen("/proc/meminfo", "re");
	unsigned long available = 0;
	char line[128];

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		if (sscanf(line, "HugePages_Free: %lu", &available) == 1)
			break;
	if (file != NULL)
		fclose(file);
	print_check_result_line(check, available > 0 || !wanted, "huge pages", "%lu free, %s", available,
	                        wanted ? "wanted by VMA_MEM_ALLOC_TYPE" : "none wanted (VMA_MEM_ALLOC_TYPE)");
}

static void check_print_vmad(const struct check *check)
{
	print_check_result_line(check, check->vmad[0] != '\0', "vmad", "%s",
	                        check->vmad[0] != '\0' ? check->vmad
	                                               : "there is no program vmad: a process owns an interface alone");
}

/* The first namespace maps all numbers to themselves. */
static void check_print_user_namespace(const struct check *check)
{
	char map[256] = "";
	FILE *file = fopen("/proc/self/uid_map", "re");
	size_t n = file != NULL ? fread(map, 1, sizeof(map) - 1, file) : 0;
	const bool first = n > 0 && strstr(map, "4294967295") != NULL;

	if (file != NULL)
		fclose(file);
	print_check_result_line(check, first, "user", "%u%s", (unsigned)geteuid(),
	                        first ? "" : ", in a user namespace of its own: capabilities do not reach outside");
}

static void check_print_interfaces(const struct check *check)
{
	print_check_result_line(check, check->can.len > 0, "interfaces", "%s",
	                        check->can.len > 0 ? check->can.bytes : "none can be offloaded");
	if (check->cannot.len > 0)
		printf("%-8s %-13s %s\n", "note", "others", check->cannot.bytes);
}

bool check_and_print_report(const char *library)
{
	static struct check check;

	check.library = library;
	log_open_memory(&check);
	vma_conf_load_without_warnings(&check.conf, environ);
	vma_engine_find_vmad(library, check.vmad, sizeof(check.vmad));
	vma_nic_lacks_capabilities(check.lacks);
	check_all_interfaces(&check);
	check_print_library(&check);
	check_print_kernel(&check);
	check_print_capabilities(&check);
	check_print_memory_limit(&check);
	check_print_huge_pages(&check);
	check_print_vmad(&check);
	check_print_user_namespace(&check);
	check_print_interfaces(&check);
	print_check_result_line(&check, check_found_way_to_offload(&check), "result",
	                        "programs of this user can%s be offloaded here",
	                        check_found_way_to_offload(&check) ? "" : "not");
	return check_found_way_to_offload(&check);
}
