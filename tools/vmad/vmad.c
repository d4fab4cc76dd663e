/*
 * vmad - owns an interface for the processes that use it through libvma: see docs/vmad.md.
 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <vma/conf_version.h>
#include <vma/log.h>
#include <vma/nic_owner.h>

#include "confine.h"

#define NAMES_MAX 64

enum {
	KEY_IDLE = 256,
	KEY_REPLACE,
	KEY_USER,
	KEY_GROUP,
	KEY_WINDOW,
	KEY_HUGE,
	KEY_SYSLOG,
	KEY_STATS,
	KEY_QUIET,
	KEY_KEEP,
	KEY_FORGET_STATE
};

struct options {
	struct vma_vmad_attr attr;
	bool foreground, syslog, quiet_start;
	uid_t users[NAMES_MAX];
	gid_t groups[NAMES_MAX];
};

/* argp looks for it by name. */
__attribute__((visibility("default"))) const char *argp_program_version = "vmad " VMA_VERSION;

static const struct argp_option option_table[] = {
        {"interface", 'i', "IFNAME", 0, "Interface to own (or as the only argument)", 0},
        {"foreground", 'f', NULL, 0, "Stay in the foreground", 0},
        {"allow-user", KEY_USER, "USER", 0, "Let processes of this user (name or number) be clients; may be repeated",
         0},
        {"allow-group", KEY_GROUP, "GROUP", 0, "The same for a group", 0},
        {"exit-when-idle", KEY_IDLE, NULL, 0, "End a second after the last client has gone", 0},
        {"replace", KEY_REPLACE, NULL, 0, "End the vmad that has the interface, and take its place", 0},
        {"window", KEY_WINDOW, "BYTES", 0, "Packet memory per device queue (default 16777216)", 0},
        {"huge-pages", KEY_HUGE, NULL, 0, "Take packet memory from huge pages", 0},
        {"stats-dir", KEY_STATS, "DIR", 0,
         "Where to remove the vmastat.PID of killed processes (default /tmp; \"\": nowhere)", 0},
        {"keep", KEY_KEEP, "SECONDS", 0,
         "So long clients keep their queue pairs when this vmad has been killed, or ended by SIGTERM (default 10)", 0},
        {"anew", KEY_FORGET_STATE, NULL, 0, "Take nothing over that another vmad has left", 0},
        {"log-level", 'l', "LEVEL", 0, "none, panic, error, warn, info (default), details, debug", 0},
        {"log-file", 'o', "FILE", 0, "Write lines to FILE instead of stderr", 0},
        {"syslog", KEY_SYSLOG, NULL, 0, "Lines go to the system log once the interface is owned", 0},
        {"quiet-start", KEY_QUIET, NULL, 0, "No lines until the interface is owned", 0},
        {0},
};

/* A number, or -1. */
static long parse_option_number(const char *text)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	return *text != '\0' && *end == '\0' && errno == 0 && n >= 0 ? n : -1;
}

static void allow_user_by_name(struct options *options, const char *text, struct argp_state *state)
{
	const struct passwd *user = getpwnam(text);

	if (options->attr.nusers == NAMES_MAX)
		argp_error(state, "more than %d users", NAMES_MAX);
	if (user == NULL && parse_option_number(text) < 0)
		argp_error(state, "no user \"%s\"", text);
	options->users[options->attr.nusers++] = user != NULL ? user->pw_uid : (uid_t)parse_option_number(text);
}

static void allow_group_by_name(struct options *options, const char *text, struct argp_state *state)
{
	const struct group *group = getgrnam(text);

	if (options->attr.ngroups == NAMES_MAX)
		argp_error(state, "more than %d groups", NAMES_MAX);
	if (group == NULL && parse_option_number(text) < 0)
		argp_error(state, "no group \"%s\"", text);
	options->groups[options->attr.ngroups++] = group != NULL ? group->gr_gid : (gid_t)parse_option_number(text);
}

static void options_parse_window_bytes(struct options *options, const char *text, struct argp_state *state)
{
	const long bytes = parse_option_number(text);

	if (bytes <= 0 || bytes > 1L << 30)
		argp_error(state, "--window=%s: a number of bytes up to 1073741824 is wanted", text);
	options->attr.window_bytes = (uint32_t)bytes;
}

static struct vma_log_attr log_attr = {.level = VMA_LOG_INFO, .details = 0};

/*
 * Until now lines were for whoever started us; his terminal or pipe must not be kept open for as long as other clients
 * need us. A line is one write, so as a datagram it is one entry of the system log.
 */
static void redirect_stderr_to_syslog(void)
{
	const struct sockaddr_un log = {.sun_family = AF_UNIX, .sun_path = _PATH_LOG};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (const struct sockaddr *)&log, sizeof(log)) < 0) {
		close(fd);
		fd = -1;
	}
	if (fd < 0)
		fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (fd >= 0 && fd != STDERR_FILENO) {
		dup2(fd, STDERR_FILENO);
		close(fd);
	}
}

/* The daemon's end of a pipe on which whoever started it waits to hear that the interface is owned; -1: nobody does. */
static int vmad_starter_pipe_fd = -1;

static void tell_starter_interface_owned(void)
{
	const int null_fd = log_attr.file != NULL ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
	const char owned = 1;

	for (int fd = STDIN_FILENO; null_fd >= 0 && fd <= STDERR_FILENO; fd++)
		dup2(null_fd, fd);
	if (null_fd > STDERR_FILENO)
		close(null_fd);
	if (write(vmad_starter_pipe_fd, &owned, 1) < 0)
		vma_log_debug("vmad: nobody waits for it any more");
	close(vmad_starter_pipe_fd);
}

static struct options options = {.attr = {.stats_dir = "/tmp", .keep_seconds = 10}};

static void vmad_report_started_and_redirect_stderr(void)
{
	vma_log_set_level(log_attr.level);
	if (vmad_starter_pipe_fd >= 0)
		tell_starter_interface_owned();
	if (options.syslog)
		redirect_stderr_to_syslog();
}

/*
 * In the daemon: 0 (-errno: there is none). The process that was started stays until the interface is owned, and its
 * exit status tells whether it is: a script that goes on is not ahead of the daemon.
 */
static int vmad_daemonize(void)
{
	int fds[2], status;
	char owned;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		close(fds[0]);
		vmad_starter_pipe_fd = fds[1];
		setsid();
		return chdir("/") < 0 ? -errno : 0;
	}
	close(fds[1]);
	if (read(fds[0], &owned, 1) == 1)
		_exit(0);
	_exit(waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static error_t vmad_parse_option(int key, char *text, struct argp_state *state)
{
	switch (key) {
	case 'i':
	case ARGP_KEY_ARG:
		if (options.attr.interface != NULL)
			argp_error(state, "one interface per vmad: %s or %s?", options.attr.interface, text);
		options.attr.interface = text;
		return 0;
	case 'f':
		options.foreground = true;
		return 0;
	case KEY_IDLE:
		options.attr.exit_when_idle = true;
		return 0;
	case KEY_REPLACE:
		options.attr.replace = true;
		return 0;
	case KEY_USER:
		allow_user_by_name(&options, text, state);
		return 0;
	case KEY_GROUP:
		allow_group_by_name(&options, text, state);
		return 0;
	case KEY_WINDOW:
		options_parse_window_bytes(&options, text, state);
		return 0;
	case KEY_SYSLOG:
		options.syslog = true;
		return 0;
	case KEY_QUIET:
		options.quiet_start = true;
		return 0;
	case KEY_STATS:
		options.attr.stats_dir = text;
		return 0;
	case KEY_KEEP:
		if (parse_option_number(text) < 0 || parse_option_number(text) > 3600)
			argp_error(state, "--keep=%s: a number of seconds up to 3600 is wanted", text);
		options.attr.keep_seconds = (unsigned)parse_option_number(text);
		return 0;
	case KEY_FORGET_STATE:
		options.attr.discard_state = true;
		return 0;
	case KEY_HUGE:
		options.attr.huge_pages = true;
		return 0;
	case 'l':
		if (vma_log_level_parse(text, &log_attr.level) < 0)
			argp_error(state, "no log level \"%s\"", text);
		return 0;
	case 'o':
		log_attr.file = text;
		return 0;
	case ARGP_KEY_END:
		if (options.attr.interface == NULL)
			argp_error(state, "which interface?");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp parser = {
        .options = option_table,
        .parser = vmad_parse_option,
        .args_doc = "[IFNAME]",
        .doc = "Owns a network interface for AF_XDP and rents queue pairs of it to processes that use libvma.",
};

/* SIGTERM, SIGINT and SIGHUP become readable on the fd that this returns. */
static int open_stop_fd(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

/* SIGTERM is what an upgrade sends: another vmad goes on. SIGINT and SIGHUP, and several at once, end it. */
static bool stops_for_good(int stop_fd)
{
	struct signalfd_siginfo what[4];
	const ssize_t n = read(stop_fd, what, sizeof(what));
	bool for_good = n < (ssize_t)sizeof(what[0]);

	for (ssize_t i = 0; i < n / (ssize_t)sizeof(what[0]); i++)
		for_good = for_good || what[i].ssi_signo != SIGTERM;
	return for_good;
}

/* Clients cost two fds each and one more per device queue; and the limit may be that of a program that started us. */
static void raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* Nothing else may get the numbers of closed standard descriptors: lines would go there, and 2 is given back later. */
static void reserve_standard_fds(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd < STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

int main(int argc, char **argv)
{
	int rc;

	reserve_standard_fds();
	argp_parse(&parser, argc, argv, 0, NULL, NULL);
	options.attr.users = options.users;
	options.attr.groups = options.groups;
	options.attr.owns = vmad_report_started_and_redirect_stderr;
	options.attr.stops_for_good = stops_for_good;
	vma_log_init(&log_attr);
	if (options.quiet_start)
		vma_log_set_level(VMA_LOG_PANIC);
	rc = options.foreground ? 0 : vmad_daemonize();
	if (rc < 0) {
		fprintf(stderr, "vmad: it cannot become a daemon: %s\n", strerror(-rc));
		return 1;
	}
	raise_fd_limit();
	rc = vmad_confine();
	if (rc < 0) {
		fprintf(stderr, "vmad: it cannot give up capabilities: %s\n", strerror(-rc));
		return 1;
	}
	options.attr.stop_fd = open_stop_fd();
	if (options.attr.stop_fd < 0) {
		perror("vmad: signalfd");
		return 1;
	}
	rc = vma_vmad_serve(&options.attr);
	vma_log_fini();
	return rc < 0;
}
