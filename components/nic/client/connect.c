/*
 * connect - finding the vmad of an interface, starting one where there is none, and the first words with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "vmad_priv.h"
#include "../xdp/xdp.h"

#define OVERFLOW_UID 65534
#define PAUSE_MS 5
#define PAUSE_DOUBLINGS 6
#define FULL_MS 500 /* a queue of clients that stays full for so long: vmad does not come to it, or is flooded */
#define STARTS_MAX 3
#define COMING_UP_MS 1500
#define FAILED_FIRST_MS 2000
#define FAILED_LAST_MS 16000
#define FAILED_PLACES 16

/* In a user namespace of its own every user who is not mapped there has this number, root outside of it among them. */
static bool uid_is_unmapped(uid_t uid)
{
	char map[64] = "";
	int fd;
	ssize_t n;

	if (uid != OVERFLOW_UID)
		return false;
	fd = os_open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
	n = fd >= 0 ? os_read(fd, map, sizeof(map) - 1) : 0;
	if (fd >= 0)
		os_close(fd);
	/* The first namespace maps all numbers to themselves. */
	return n > 0 && strstr(map, "4294967295") == NULL;
}

/* A vmad that this process starts has no other address. */
static bool vmad_needs_abstract_address(void)
{
	return geteuid() != 0 || access(VMAD_PARENT, W_OK) < 0;
}

/*
 * Anybody may take an abstract address first, and would be given our packets: only root or ourselves is believed. In a
 * program with raised privileges only root: this user may be the one who has started it.
 */
static bool vmad_is_trusted(int fd, const struct vmad_connect_attr *how)
{
	struct ucred server = {.uid = (uid_t)-1};
	socklen_t len = sizeof(server);

	if (os_getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &len) == 0 &&
	    (server.uid == 0 || (server.uid == geteuid() && getauxval(AT_SECURE) == 0)))
		return true;
	if (uid_is_unmapped(server.uid))
		vma_log_once(VMA_LOG_ERROR,
		             "%s: its vmad runs outside of this user namespace, from where nobody can tell that it is "
		             "root's: not used",
		             how->ifname);
	else
		vma_log_once(VMA_LOG_ERROR,
		             "%s: what answers in vmad's place is process %d of user %u, neither root nor this user%s: "
		             "not used%s",
		             how->ifname, (int)server.pid, server.uid,
		             server.uid == geteuid() ? " without raised privileges" : "",
		             vmad_needs_abstract_address() ? ", and no vmad can be started while it holds the name"
		                                           : "");
	return false;
}

/* 0, -EAGAIN: its queue is full; or nobody is there. */
static int connect_to_vmad_socket_path(int fd, unsigned ifindex)
{
	struct sockaddr_un address;
	const int len = vmad_socket_path_address(fd, ifindex, "vmad", &address);

	if (len < 0)
		return len;
	return os_connect(fd, (const struct sockaddr *)&address, (socklen_t)len) < 0 ? -errno : 0;
}

static int connect_to_vmad_abstract_socket(int fd, unsigned ifindex)
{
	struct sockaddr_un address;
	const socklen_t len = vmad_address(ifindex, &address);

	return os_connect(fd, (const struct sockaddr *)&address, len) < 0 ? -errno : 0;
}

/* ---- descriptors, of which a fork knows ---- */

static void lock_connecting(const struct vmad_connect_attr *how)
{
	if (how->connecting != NULL)
		pthread_mutex_lock(how->connecting->lock);
}

static void unlock_connecting(const struct vmad_connect_attr *how)
{
	if (how->connecting != NULL)
		pthread_mutex_unlock(how->connecting->lock);
}

void vmad_connecting_remove(struct vmad_connecting *connecting, struct vmad_client *client)
{
	struct vmad_client **place = &connecting->first;

	while (*place != client)
		place = &(*place)->next_connecting;
	*place = client->next_connecting;
}

void vmad_connecting_close_in_child(const struct vmad_connecting *connecting)
{
	for (const struct vmad_client *client = connecting->first; client != NULL; client = client->next_connecting)
		if (client->fd >= 0)
			os_close(client->fd);
}

static struct vmad_client *client_new(const struct vmad_connect_attr *how)
{
	struct vmad_client *client = calloc(1, sizeof(*client));

	if (client == NULL)
		return NULL;
	client->fd = -1;
	client->over_fd = how->over_fd != NULL ? *how->over_fd : -1;
	lock_connecting(how);
	if (how->connecting != NULL) {
		client->next_connecting = how->connecting->first;
		how->connecting->first = client;
	}
	unlock_connecting(how);
	return client;
}

static void client_free_unconnected(const struct vmad_connect_attr *how, struct vmad_client *client)
{
	lock_connecting(how);
	if (how->connecting != NULL)
		vmad_connecting_remove(how->connecting, client);
	unlock_connecting(how);
	free(client);
}

static int client_open_socket(const struct vmad_connect_attr *how, struct vmad_client *client)
{
	int rc;

	lock_connecting(how);
	client->fd = nic_fd_move_high(os_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	rc = client->fd < 0 ? -errno : 0;
	unlock_connecting(how);
	return rc;
}

static void client_close_socket(const struct vmad_connect_attr *how, struct vmad_client *client)
{
	lock_connecting(how);
	nic_fd_close(client->fd);
	client->fd = -1;
	unlock_connecting(how);
}

/* ---- an attempt ---- */

/* One attempt, which does not wait: connected; or -ECONNREFUSED and the like, -EAGAIN: its queue is full. */
static int vmad_try_connect(const struct vmad_connect_attr *how, struct vmad_client *client)
{
	int rc = client_open_socket(how, client);
	bool by_name;

	if (rc < 0)
		return rc;
	rc = connect_to_vmad_socket_path(client->fd, how->ifindex);
	by_name = rc < 0 && rc != -EAGAIN;
	if (by_name)
		rc = connect_to_vmad_abstract_socket(client->fd, how->ifindex);
	if (rc == 0 && !vmad_is_trusted(client->fd, how))
		rc = -EPERM;
	/* Whoever has taken the name and does not serve there keeps no vmad from being started. */
	if (by_name && (rc == -EPERM || rc == -EAGAIN) && !vmad_needs_abstract_address())
		rc = -ECONNREFUSED;
	if (rc < 0)
		client_close_socket(how, client);
	return rc;
}

/* The warning that users of the field know and search for; the last line of it is ours. */
static void warn_no_offload_without_privileges(const char *ifname)
{
	vma_log_warn("******************************************************************************");
	vma_log_warn("* Interface %s will not be offloaded.", ifname);
	vma_log_warn("* Offloaded resources are restricted to root or user with CAP_NET_RAW privileges");
	vma_log_warn("* Start vmad %s as root, or give the program the capabilities named above", ifname);
	vma_log_warn("******************************************************************************");
}

bool vma_nic_lacks_capabilities(char missing[VMA_NIC_LACKS_MAX])
{
	static const struct {
		unsigned number;
		const char *name;
	} wanted[] = {{CAP_NET_RAW, " CAP_NET_RAW"},
	              {CAP_BPF, " CAP_BPF"},
	              {CAP_PERFMON, " CAP_PERFMON"},
	              {CAP_NET_ADMIN, " CAP_NET_ADMIN"}};
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};

	missing[0] = '\0';
	if (syscall(SYS_capget, &head, data) < 0)
		return false;
	if (data[0].effective & CAP_TO_MASK(CAP_SYS_ADMIN))
		data[1].effective |= CAP_TO_MASK(CAP_BPF) | CAP_TO_MASK(CAP_PERFMON); /* split off from it */
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		if (!(data[CAP_TO_INDEX(wanted[i].number)].effective & CAP_TO_MASK(wanted[i].number)))
			strcat(missing, wanted[i].name);
	return missing[0] != '\0';
}

/* What vmad needs and would inherit from us. One line names what is missing. */
static bool lacks_capabilities_to_start_vmad(const struct vmad_connect_attr *how)
{
	char missing[VMA_NIC_LACKS_MAX];

	if (!vma_nic_lacks_capabilities(missing))
		return false;
	if (vma_log_once(VMA_LOG_WARN, "%s: no vmad runs for this interface, and to start one this process lacks%s",
	                 how->ifname, missing) &&
	    strstr(missing, "CAP_NET_RAW") != NULL)
		warn_no_offload_without_privileges(how->ifname);
	return true;
}

int vma_nic_check_kernel_supports_xdp(const char **what)
{
	return xdp_sock_check_kernel(what);
}

/* A vmad that cannot own anything would be waited for in vain, and say so beside this process. */
static int check_kernel_supports_xdp(const struct vmad_connect_attr *how)
{
	const char *what;
	const int rc = xdp_sock_check_kernel(&what);

	if (rc < 0)
		vma_log_once(VMA_LOG_WARN, "%s: no vmad runs for this interface, and none could own it: %s: %s",
		             how->ifname, what, strerror(-rc));
	return rc;
}

static int log_vmad_start_failure(const struct vmad_connect_attr *how, int rc)
{
	vma_log_once(VMA_LOG_WARN, "%s: no vmad runs for this interface, and %s cannot be started: %s", how->ifname,
	             how->vmad_path, strerror(-rc));
	return rc;
}

/*
 * Starts in vain, by interface (two may share a place): they become rare, and only the first says why. Several threads
 * may count; a count that is lost makes a start earlier.
 */
static struct {
	_Atomic uint64_t due_ms, wait_ms; /* not before; 0: the last start was no failure */
} failed[FAILED_PLACES];

static void connect_backoff_grow(unsigned ifindex)
{
	const uint64_t before = failed[ifindex % FAILED_PLACES].wait_ms;
	const uint64_t wait = before == 0 ? FAILED_FIRST_MS : before < FAILED_LAST_MS ? before * 2 : before;

	failed[ifindex % FAILED_PLACES].wait_ms = wait;
	failed[ifindex % FAILED_PLACES].due_ms = os_now_ms() + wait;
}

static void connect_backoff_reset(unsigned ifindex)
{
	failed[ifindex % FAILED_PLACES].wait_ms = failed[ifindex % FAILED_PLACES].due_ms = 0;
}

/* Whether a vmad that this process starts could own the interface: 0 or -errno, which has its line. */
static int check_may_start_vmad(const struct vmad_connect_attr *how)
{
	unsigned ifindex;

	/* The interface has gone, or its name belongs to another one: a vmad would own that, and we look for this. */
	ifindex = if_nametoindex(how->ifname);
	if (ifindex == 0 && errno != ENODEV)
		return log_vmad_start_failure(how, -errno);
	if (ifindex != how->ifindex)
		return -ENODEV;
	/* A vmad of ours could not own the interface, and its name would keep out one that can. */
	return lacks_capabilities_to_start_vmad(how) ? -EPERM : check_kernel_supports_xdp(how);
}

/* `again`: in vain a moment ago. */
static int vmad_start_process(const struct vmad_connect_attr *how, bool again)
{
	char window[16];
	const char *argv[14] = {how->vmad_path, "--exit-when-idle", "--foreground", "--syslog"};
	unsigned n = 4;
	int rc = check_may_start_vmad(how);

	if (rc < 0)
		return rc;
	if (how->window_bytes != 0) {
		snprintf(window, sizeof(window), "%u", how->window_bytes);
		argv[n++] = "--window";
		argv[n++] = window;
	}
	if (how->huge_pages)
		argv[n++] = "--huge-pages";
	if (how->stats_dir != NULL) {
		argv[n++] = "--stats-dir";
		argv[n++] = how->stats_dir;
	}
	/* As quiet as the program that starts it; what it says is for the program's user. */
	if (!vma_log_level_is_enabled(VMA_LOG_INFO)) {
		argv[n++] = "--log-level";
		argv[n++] = vma_log_level_is_enabled(VMA_LOG_WARN)    ? "warn"
		            : vma_log_level_is_enabled(VMA_LOG_ERROR) ? "error"
		                                                      : "panic";
	}
	if (again || failed[how->ifindex % FAILED_PLACES].wait_ms != 0)
		argv[n++] = "--quiet-start";
	argv[n] = how->ifname;
	rc = vmad_start(how->vmad_path, (char *const *)argv);
	return rc < 0 ? log_vmad_start_failure(how, rc) : rc;
}

static int vmad_hello_exchange(struct vmad_client *client, const struct vmad_connect_attr *how, uint64_t until_ms)
{
	struct vmad_msg msg = {.type = VMAD_HELLO};
	int fds[VMAD_FDS_MAX];
	unsigned nfds = 0;
	int rc = vmad_client_request(client, &msg, &how->right_fd, how->right_fd >= 0, fds, &nfds, until_ms);

	for (unsigned i = 0; rc != -EPIPE && i < nfds; i++)
		os_close(fds[i]);
	return rc;
}

static void vmad_log_connect_failure(const struct vmad_connect_attr *how, int rc)
{
	if (rc == -EPERM)
		vma_log_once(VMA_LOG_ERROR,
		             "%s: vmad does not accept this process: it needs CAP_NET_RAW, a right passed on by its "
		             "parent (who sets VMA_CHILDREN_ANY_USER=1 if the user has changed), or its user or group "
		             "named by vmad --allow-user, --allow-group",
		             how->ifname);
	else if (rc == -EACCES)
		vma_log_once(VMA_LOG_ERROR,
		             "%s: vmad may not own the interface: it needs CAP_NET_RAW, CAP_BPF, CAP_PERFMON and "
		             "CAP_NET_ADMIN",
		             how->ifname);
	else if (rc == -ECHILD)
		vma_log_once(VMA_LOG_WARN, "%s: no vmad runs for this interface: the one that was started has ended",
		             how->ifname);
	else if (rc == -EAGAIN)
		vma_log_once(VMA_LOG_WARN, "%s: vmad does not take this process in: its queue of new clients is full",
		             how->ifname);
	else if (rc == -ECONNREFUSED)
		vma_log_once(VMA_LOG_WARN, "%s: no vmad runs for this interface", how->ifname);
	else if (rc < 0)
		vma_log_once(VMA_LOG_WARN, "%s: vmad cannot own the interface: %s", how->ifname, strerror(-rc));
}

/*
 * Starts vmad, but not again while the last one may still be coming up. A vmad that is about to end keeps its name
 * until it has, which takes time on a busy host: those started meanwhile end at once. So a start counts as one in vain
 * only if no vmad has ended since, and the pauses between starts become longer.
 */
struct attempts {
	int starts;
	int ended;            /* vmads that ended while this process spoke to them */
	int error;            /* of a start; the log has it */
	uint64_t up_until_ms; /* the one started last has until then to answer; 0: none is coming up */
};

static bool start_or_await_vmad(const struct vmad_connect_attr *how, struct attempts *attempts)
{
	if (attempts->up_until_ms != 0)
		return os_now_ms() < attempts->up_until_ms;
	if (how->vmad_path == NULL || attempts->starts >= STARTS_MAX + attempts->ended)
		return false;
	if (attempts->starts == 0 && os_now_ms() < failed[how->ifindex % FAILED_PLACES].due_ms) {
		attempts->error = -ECHILD;
		return false;
	}
	attempts->error = vmad_start_process(how, attempts->starts > 0);
	if (attempts->error < 0)
		return false;
	attempts->starts++;
	attempts->up_until_ms = os_now_ms() + COMING_UP_MS;
	return true;
}

static int vmad_connect_and_hello_once(const struct vmad_connect_attr *how, struct vmad_client *client,
                                       struct attempts *attempts, uint64_t until_ms)
{
	int rc = vmad_try_connect(how, client);

	if (rc < 0)
		return rc;
	rc = vmad_hello_exchange(client, how, until_ms);
	if (rc == 0)
		return 0;
	client_close_socket(how, client);
	if (rc != -EPIPE)
		return rc;
	/* It ended while we spoke to it: it was idle, was killed, or another one was quicker. */
	attempts->up_until_ms = 0;
	attempts->ended++;
	atomic_store(&client->broken, false); /* that was its connection */
	return -ECONNREFUSED;
}

static void pause_between_vmad_attempts(const struct attempts *attempts)
{
	const int doublings = attempts->ended < PAUSE_DOUBLINGS ? attempts->ended : PAUSE_DOUBLINGS;
	const struct timespec pause = {.tv_nsec = (long)(PAUSE_MS << doublings) * 1000000};

	nanosleep(&pause, NULL);
}

/* Tries until a vmad has taken this process in, or there is no hope: 0 or the last attempt's -errno. */
static int vmad_connect_retrying_until_timeout(const struct vmad_connect_attr *how, struct vmad_client *client,
                                               struct attempts *attempts)
{
	const uint64_t until_ms = os_now_ms() + how->timeout_ms;
	uint64_t full_until_ms = 0;
	int rc;

	for (;;) {
		rc = vmad_connect_and_hello_once(how, client, attempts, until_ms);
		if (rc == 0)
			return 0;
		if (client->over_fd >= 0 && os_poll_one_fd(client->over_fd, POLLIN, 0) > 0)
			return -ECANCELED;
		if ((rc != -ECONNREFUSED && rc != -EAGAIN) || os_now_ms() >= until_ms)
			return rc;
		if (rc != -EAGAIN)
			full_until_ms = 0;
		else if (full_until_ms == 0)
			full_until_ms = os_now_ms() + FULL_MS;
		else if (os_now_ms() >= full_until_ms)
			return rc;
		if (rc == -ECONNREFUSED && !start_or_await_vmad(how, attempts))
			return rc;
		pause_between_vmad_attempts(attempts);
	}
}

int vmad_client_connect(const struct vmad_connect_attr *how, struct vmad_client **out)
{
	struct vmad_client *client = client_new(how);
	struct attempts attempts = {0};
	int rc;

	if (client == NULL)
		return -ENOMEM;
	rc = vmad_connect_retrying_until_timeout(how, client, &attempts);
	if (rc == 0) {
		connect_backoff_reset(how->ifindex);
		client->over_fd = -1;
		*out = client;
		return 0;
	}
	client_free_unconnected(how, client);
	if (rc == -ECANCELED)
		return rc;
	if (rc != -EPERM && attempts.starts > 0) {
		connect_backoff_grow(how->ifindex);
		rc = rc == -ECONNREFUSED ? -ECHILD : rc;
	}
	if (attempts.error < 0)
		rc = attempts.error;
	else
		vmad_log_connect_failure(how, rc);
	return rc == -EACCES ? -EPERM : rc;
}

int vmad_client_connect_once(const struct vmad_connect_attr *how, struct vmad_client **out)
{
	struct vmad_client *client = client_new(how);
	struct attempts none = {0};
	int rc;

	if (client == NULL)
		return -ENOMEM;
	rc = vmad_connect_and_hello_once(how, client, &none, os_now_ms() + how->timeout_ms);
	if (rc == 0)
		*out = client;
	else
		client_free_unconnected(how, client);
	return rc;
}

int vmad_client_probe(const struct vmad_connect_attr *how)
{
	struct vmad_connect_attr looks = *how;
	struct vmad_client *client;
	struct attempts none = {0};
	int rc;

	looks.vmad_path = NULL;
	looks.connecting = NULL;
	client = client_new(&looks);
	if (client == NULL)
		return -ENOMEM;
	rc = vmad_connect_retrying_until_timeout(&looks, client, &none);
	if (rc == 0) {
		vmad_client_close(client);
		return 0;
	}
	free(client);
	if (rc != -ECONNREFUSED) {
		vmad_log_connect_failure(how, rc);
		return rc == -EACCES ? -EPERM : rc;
	}
	rc = check_may_start_vmad(how);
	return rc < 0 ? rc : -ECONNREFUSED;
}
