/*
 * priv_net - what net says, beside what the kernel's own sockets do; for tests/e2e/net.sh.
 *
 *   watch [OPTION...] DST...     a line for each path at the start and after each change: 'DST: TEXT'; until killed
 *     probe                      probes as a sender would: while resolving, and when a neighbour is to be confirmed
 *     resolve                    asks once for resolution, at the start
 *     arps=N delay=MS            confirms stale neighbours by ARP requests of its own
 *     retries=N                  begins a failed resolution again
 *     sleep                      processes nothing until SIGUSR1 (then 'awake'); with a small event buffer
 *   parity [OPTION...] DST...    connect() and sendto() of net and of kernel sockets, side by side; status 0: equal
 *   first DST PORT               one datagram through a kernel socket while resolving; waits until the path is ready
 *   links                        'NAME INDEX MTU MAC FLAGS KIND MASTER LOWER ADDRESS/PREFIX...'
 *
 * Options of a key: src=ADDRESS oif=INTERFACE mark=N tos=N port=N uid=N
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/net.h>

#define PATHS_MAX 64

static volatile sig_atomic_t awake;

static void handler_set_awake(int number)
{
	(void)number;
	awake = 1;
}

static void exit_if_net_call_failed(const char *what, int rc)
{
	if (rc >= 0)
		return;
	printf("%s: %s\n", what, strerror(-rc));
	exit(2);
}

/* ---- keys ---- */

static struct vma_net_key key = {.family = AF_INET, .proto = IPPROTO_UDP, .dport_be = 0};

static bool parse_route_key_option(struct vma_net *net, const char *option)
{
	struct vma_net_link link;
	unsigned number;

	if (strncmp(option, "src=", 4) == 0)
		return inet_pton(AF_INET, option + 4, key.src) == 1;
	if (strncmp(option, "oif=", 4) == 0) {
		exit_if_net_call_failed(option, vma_net_link_by_name(net, option + 4, &link));
		key.oif = link.ifindex;
		return true;
	}
	if (sscanf(option, "mark=%u", &number) == 1)
		key.mark = number;
	else if (sscanf(option, "tos=%u", &number) == 1)
		key.tos = (uint8_t)number;
	else if (sscanf(option, "uid=%u", &number) == 1)
		key.uid = number;
	else if (sscanf(option, "port=%u", &number) == 1)
		key.dport_be = htons((uint16_t)number);
	else
		return false;
	return true;
}

static void set_key_destination(const char *address)
{
	if (inet_pton(AF_INET, address, key.dst) != 1)
		exit_if_net_call_failed(address, -EINVAL);
}

/* ---- watch ---- */

static struct vma_net_path *paths[PATHS_MAX];
static const char *names[PATHS_MAX];
static uint32_t versions[PATHS_MAX];
static unsigned path_count;

static void print_changed_paths(struct vma_net *net, bool probe)
{
	for (unsigned i = 0; i < path_count; i++) {
		struct vma_net_template t;
		char text[256];

		if (!vma_net_path_changed(paths[i], versions[i]))
			continue;
		vma_net_path_read_template(paths[i], &t);
		versions[i] = t.version;
		vma_net_template_text(&t, text, sizeof(text));
		printf("%s: %s\n", names[i], text);
		fflush(stdout);
		if (probe && (t.state == VMA_NET_RESOLVING || (t.flags & VMA_NET_CONFIRM) != 0))
			vma_net_path_probe(net, paths[i]);
	}
}

static __attribute__((noreturn)) void net_watch(int argc, char **argv)
{
	const struct sigaction action = {.sa_handler = handler_set_awake};
	struct vma_net_attr attr = {0};
	struct vma_net *net;
	bool probe = false, resolve = false, sleeping = false;

	for (int i = 0; i < argc; i++) {
		sleeping |= strcmp(argv[i], "sleep") == 0;
		attr.sends_arps |= sscanf(argv[i], "arps=%u", &attr.uc_arps) == 1;
		sscanf(argv[i], "delay=%u", &attr.uc_arp_delay_msec);
		sscanf(argv[i], "retries=%u", &attr.failed_retries);
	}
	sigaction(SIGUSR1, &action, NULL);
	attr.event_bytes = sleeping ? 4096 : 0;
	exit_if_net_call_failed("create", vma_net_create(&attr, &net));
	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "probe") == 0)
			probe = true;
		else if (strcmp(argv[i], "resolve") == 0)
			resolve = true;
		else if (strcmp(argv[i], "sleep") != 0 && strchr("adr", argv[i][0]) == NULL &&
		         !parse_route_key_option(net, argv[i])) {
			set_key_destination(argv[i]);
			names[path_count] = argv[i];
			exit_if_net_call_failed("path", vma_net_path_get(net, &key, &paths[path_count]));
			if (resolve)
				exit_if_net_call_failed("resolve",
				                        vma_net_path_start_neigh_resolution(net, paths[path_count]));
			path_count++;
		}
	}
	print_changed_paths(net, probe);
	printf("watching\n");
	fflush(stdout);
	while (sleeping && awake == 0)
		pause();
	for (;;) {
		struct pollfd fd = {.fd = vma_net_fd(net), .events = POLLIN};

		if (poll(&fd, 1, -1) <= 0)
			continue;
		exit_if_net_call_failed("process", vma_net_process_events(net));
		print_changed_paths(net, probe);
		if (sleeping) {
			printf("awake after %u resyncs\n", (unsigned)vma_net_resyncs(net));
			fflush(stdout);
		}
	}
}

/* ---- parity ---- */

static int open_kernel_socket_for_key(bool connected_to, char *text, size_t bytes)
{
	struct sockaddr_in local = {.sin_family = AF_INET}, peer = {.sin_family = AF_INET, .sin_port = key.dport_be};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1, mtu = 0, rc;
	const int mark = (int)key.mark, tos = key.tos;
	char oif[IF_NAMESIZE] = "";
	socklen_t len = sizeof(local);

	memcpy(&local.sin_addr, key.src, 4);
	memcpy(&peer.sin_addr, key.dst, 4);
	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
	setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
	if (mark != 0 && setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) < 0)
		exit_if_net_call_failed("SO_MARK", -errno);
	if (key.oif != 0 && if_indextoname(key.oif, oif) != NULL &&
	    setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, oif, (socklen_t)strlen(oif)) < 0)
		exit_if_net_call_failed("SO_BINDTODEVICE", -errno);
	if (bind(fd, (struct sockaddr *)&local, sizeof(local)) < 0)
		exit_if_net_call_failed("bind", -errno);
	getsockname(fd, (struct sockaddr *)&local, &len);
	key.sport_be = local.sin_port;
	rc = connected_to ? connect(fd, (struct sockaddr *)&peer, sizeof(peer))
	                  : (int)sendto(fd, "x", 1, 0, (struct sockaddr *)&peer, sizeof(peer));
	if (rc < 0) {
		snprintf(text, bytes, "%s", strerrorname_np(errno));
	} else if (connected_to) {
		len = sizeof(local);
		getsockname(fd, (struct sockaddr *)&local, &len);
		len = sizeof(mtu);
		getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &len);
		snprintf(text, bytes, "src %s mtu %d", inet_ntoa(local.sin_addr), mtu);
	} else {
		snprintf(text, bytes, "sent");
	}
	return fd;
}

static void net_path_lookup_to_text(struct vma_net *net, bool connected, char *text, size_t bytes)
{
	struct vma_net_template t;
	struct vma_net_path *path;
	struct in_addr src;

	key.flags = connected ? VMA_NET_KEY_CONNECT : 0;
	exit_if_net_call_failed("path", vma_net_path_get(net, &key, &path));
	vma_net_path_read_template(path, &t);
	memcpy(&src, t.src, 4);
	if (t.state == VMA_NET_ERROR)
		snprintf(text, bytes, "%s", strerrorname_np(t.error));
	else if (connected)
		snprintf(text, bytes, "src %s mtu %u", inet_ntoa(src), t.mtu < 65535 ? t.mtu : 65535);
	else
		snprintf(text, bytes, "sent");
	vma_net_path_put(net, path);
}

static int compare_route_answers_with_kernel(int argc, char **argv)
{
	struct vma_net *net;
	int different = 0;

	exit_if_net_call_failed("create", vma_net_create(NULL, &net));
	key.dport_be = htons(9000);
	for (int i = 0; i < argc; i++) {
		if (parse_route_key_option(net, argv[i]))
			continue;
		set_key_destination(argv[i]);
		for (int connected = 0; connected < 2; connected++) {
			char mine[64], kernels[64];
			int fd = open_kernel_socket_for_key(connected != 0, kernels, sizeof(kernels));

			net_path_lookup_to_text(net, connected != 0, mine, sizeof(mine));
			close(fd);
			printf("%s %s: net: %s; kernel: %s\n", argv[i], connected ? "connect" : "sendto", mine,
			       kernels);
			different += strcmp(mine, kernels) != 0;
		}
	}
	vma_net_destroy(net);
	return different != 0;
}

/* ---- first, links ---- */

static int print_path_state_around_first_send(char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct vma_net_path *path;
	struct vma_net_template t;
	struct vma_net *net;

	exit_if_net_call_failed("create", vma_net_create(NULL, &net));
	set_key_destination(argv[0]);
	memcpy(&to.sin_addr, key.dst, 4);
	exit_if_net_call_failed("path", vma_net_path_get(net, &key, &path));
	vma_net_path_read_template(path, &t);
	printf("before: %s\n", t.state == VMA_NET_RESOLVING ? "resolving" : "else");
	if (sendto(fd, "first\n", 6, 0, (struct sockaddr *)&to, sizeof(to)) != 6)
		exit_if_net_call_failed("sendto", -errno);
	for (int i = 0; i < 50 && t.state != VMA_NET_READY; i++) {
		struct pollfd event = {.fd = vma_net_fd(net), .events = POLLIN};

		poll(&event, 1, 100);
		exit_if_net_call_failed("process", vma_net_process_events(net));
		vma_net_path_read_template(path, &t);
	}
	printf("after: %s\n", t.state == VMA_NET_READY ? "ready" : "else");
	vma_net_path_put(net, path);
	vma_net_destroy(net);
	close(fd);
	return t.state != VMA_NET_READY;
}

static int show_links(void)
{
	struct vma_net_link links[64];
	struct vma_net *net;
	int n;

	exit_if_net_call_failed("create", vma_net_create(NULL, &net));
	n = vma_net_links(net, links, 64);
	for (int i = 0; i < n && i < 64; i++) {
		const struct vma_net_link *l = &links[i];
		struct vma_net_addr addrs[16];
		const int m = vma_net_addrs(net, l->ifindex, addrs, 16);

		printf("%s %u %u %02x:%02x:%02x:%02x:%02x:%02x %s kind=%s master=%u lower=%u", l->name, l->ifindex,
		       l->mtu, l->mac[0], l->mac[1], l->mac[2], l->mac[3], l->mac[4], l->mac[5],
		       (l->flags & IFF_UP) != 0 ? ((l->flags & IFF_RUNNING) != 0 ? "running" : "up") : "down", l->kind,
		       l->master, l->lower);
		for (int j = 0; j < m && j < 16; j++) {
			char text[INET_ADDRSTRLEN];

			inet_ntop(AF_INET, addrs[j].address, text, sizeof(text));
			printf(" %s/%u%s", text, addrs[j].prefix_len, addrs[j].secondary ? "+" : "");
		}
		printf("\n");
	}
	vma_net_destroy(net);
	return 0;
}

int main(int argc, char **argv)
{
	const struct vma_log_attr log = {.level = VMA_LOG_INFO};

	vma_log_init(&log);
	key.uid = (uint32_t)geteuid();
	if (argc >= 3 && strcmp(argv[1], "watch") == 0)
		net_watch(argc - 2, argv + 2);
	if (argc >= 3 && strcmp(argv[1], "parity") == 0)
		return compare_route_answers_with_kernel(argc - 2, argv + 2);
	if (argc == 4 && strcmp(argv[1], "first") == 0)
		return print_path_state_around_first_send(argv + 2);
	if (argc == 2 && strcmp(argv[1], "links") == 0)
		return show_links();
	fprintf(stderr, "usage: priv_net watch|parity|first|links ...\n");
	return 1;
}
