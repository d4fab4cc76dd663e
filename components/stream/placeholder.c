/*
 * placeholder.c - the port of a closed listener, whose connections are in TIME_WAIT: bind is refused as by the kernel,
 * also when this process has ended. For that the kernel gets a connection in TIME_WAIT of its own.
 *
 *   a socket of the kernel with the listener's SO_REUSEADDR and SO_REUSEPORT, bound to the loopback interface
 *     ── connected to our connection's peer (TCP_REPAIR): no packet leaves
 *     ── shutdown: its FIN stays on the loopback interface, and no socket takes it
 *     ── the peer's FIN, reinjected by reinject.c ──> TIME_WAIT, without an owner, for a minute
 *
 * Since it is bound to the loopback interface, it gets no segment that comes by another one. A look-up of the XDP
 * program does not find it. The kernel's check in bind for conflicts counts it like any other.
 *
 * One placeholder is enough for each local address and port, and none is made for RECENT_NS after another. They are
 * made when a listener is closed and when the process ends or execs, since before that the listener's shadow is in
 * bind's way. So a connection costs nothing, and the kernel's counters move by three segments for a listener, at its
 * end. A listener that was closed is remembered until then: its connections may outlive it. The kernel's minute begins
 * when the placeholder is made, so it ends somewhat late.
 *
 * There is no placeholder in two cases: without CAP_NET_ADMIN, CAP_NET_RAW and a vmad that repairs sockets, and if the
 * process is killed.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/nic_repair.h>

#include "reinject.h"

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

#define RECENT_NS UINT64_C(5000000000)
enum {
	LISTENERS_MAX = 64,
	RECENT_MAX = 64,
	ADDRESSES_MAX = 16,
	MSS = 536,
	WINDOW = 65535,
	SLEEPS_MAX = 50,
	SLEEP_NS = 1000000
};

struct listener {
	struct sockaddr_in name; /* port 0: none */
	bool reuse_addr, reuse_port;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct listener closed_listeners[LISTENERS_MAX];
static unsigned closed_listeners_next;
static struct {
	struct listener what; /* name: of the placeholder */
	uint64_t made_ns;
} recent[RECENT_MAX];
static unsigned recent_listeners_next;

__attribute__((cold)) void stream_timewait_sockets_lock_init_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
}

/* ---- one socket of the kernel's ---- */

/*
 * Bound if the port is free, so that SO_REUSEADDR of the first socket on a port is as it should be; if the listener
 * still has it, the repair binds it nevertheless.
 */
static int kernel_timewait_socket_open_and_bind(const struct listener *what)
{
	const int reuse_addr = what->reuse_addr, reuse_port = what->reuse_port, loopback = VMA_NIC_LOOPBACK;
	const int fd = vma_os.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);

	if (fd < 0)
		return -errno;
	vma_os.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse_addr, sizeof(reuse_addr));
	vma_os.setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &reuse_port, sizeof(reuse_port));
	if (vma_os.setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &loopback, sizeof(loopback)) == 0 &&
	    (vma_os.bind(fd, (const struct sockaddr *)&what->name, sizeof(what->name)) == 0 || errno == EADDRINUSE))
		return fd;
	syscall(SYS_close, fd);
	return -EADDRNOTAVAIL;
}

static int kernel_timewait_socket_set_tcp_repair_state(int fd, const struct vma_tcp_closed *closed, struct vma_nic *by)
{
	static const struct vma_repair_bytes none;
	struct vma_repair what = {.local_port_be = closed->key.local_port_be,
	                          .peer_port_be = closed->key.peer_port_be,
	                          .vlan = closed->key.vlan,
	                          .mss = MSS,
	                          .snd_una = closed->snd_nxt,
	                          .rcv_nxt = closed->rcv_nxt,
	                          .snd_wl1 = closed->rcv_nxt,
	                          .snd_wnd = WINDOW,
	                          .snd_wnd_max = WINDOW,
	                          .rcv_wup = closed->rcv_nxt,
	                          .rcv_wnd = WINDOW};
	int incomplete = 0, rc;

	memcpy(what.local, closed->key.local, sizeof(what.local));
	memcpy(what.peer, closed->key.peer, sizeof(what.peer));
	rc = by != NULL ? vma_nic_repair_socket(by, fd, &what, &none, &incomplete)
	                : vma_repair_restore_connection(fd, &what, &none, &incomplete);
	return rc < 0 ? rc : incomplete;
}

static bool kernel_socket_is_tcp_closed(int fd)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	return vma_os.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 || info.tcpi_state == TCP_CLOSE;
}

/* Connected, until it has left for TIME_WAIT. The segment may come some time after it was reinjected. */
static int kernel_timewait_socket_close_into_timewait(int fd, const struct sockaddr_in *name,
                                                      const struct vma_tcp_closed *closed, struct vma_nic *by)
{
	const struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = closed->key.peer_port_be};
	const struct vma_tcp_export what = {.snd_una = closed->snd_nxt + 1, .snd_wnd = WINDOW}; /* our FIN, too */
	const struct sockaddr apart = {.sa_family = AF_UNSPEC};
	const struct timespec nap = {.tv_nsec = SLEEP_NS};
	struct reinject reinject;
	int rc;

	reinject_init_from_tcp_export(&reinject, name, &peer, NULL, &what, by);
	memcpy(&reinject.peer.sin_addr, closed->key.peer, 4);
	reinject.to_loopback = true;
	vma_os.shutdown(fd, SHUT_WR);
	rc = reinject_fin_to_kernel(&reinject, closed->rcv_nxt);
	reinject_end(&reinject);
	for (int i = 0; rc == 0 && i < SLEEPS_MAX && !kernel_socket_is_tcp_closed(fd); i++)
		syscall(SYS_nanosleep, &nap, NULL);
	if (rc < 0 || !kernel_socket_is_tcp_closed(fd))
		syscall(SYS_connect, fd, &apart, sizeof(apart)); /* else its FIN would be repeated for minutes */
	return rc;
}

static int kernel_timewait_socket_repair_and_close(int fd, const struct sockaddr_in *name,
                                                   const struct vma_tcp_closed *closed, struct vma_nic *by)
{
	int rc = by != NULL ? vma_nic_repair_lock_and_open_channel(by) : 0;

	if (rc < 0)
		return rc;
	rc = kernel_timewait_socket_set_tcp_repair_state(fd, closed, by);
	if (rc == 0)
		rc = kernel_timewait_socket_close_into_timewait(fd, name, closed, by);
	if (by != NULL)
		vma_nic_repair_send_end_and_unlock(by);
	return rc;
}

static bool is_same_listener(const struct listener *a, const struct listener *b)
{
	return a->name.sin_addr.s_addr == b->name.sin_addr.s_addr && a->name.sin_port == b->name.sin_port &&
	       a->reuse_addr == b->reuse_addr && a->reuse_port == b->reuse_port;
}

static bool kernel_timewait_socket_was_made_recently(const struct listener *what)
{
	const uint64_t now_ns = vma_now_ns();
	bool found = false;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < RECENT_MAX && !found; i++)
		found = recent[i].made_ns != 0 && now_ns - recent[i].made_ns < RECENT_NS &&
		        is_same_listener(&recent[i].what, what);
	pthread_mutex_unlock(&lock);
	return found;
}

static void recent_listener_add(const struct listener *what)
{
	pthread_mutex_lock(&lock);
	recent[recent_listeners_next].what = *what;
	recent[recent_listeners_next].made_ns = vma_now_ns();
	recent_listeners_next = (recent_listeners_next + 1) % RECENT_MAX;
	pthread_mutex_unlock(&lock);
}

/* -EADDRNOTAVAIL: the kernel has one with that peer; -EPIPE: vmad does not answer. */
static int kernel_timewait_socket_create(const struct listener *listener, const struct vma_tcp_closed *closed,
                                         struct vma_nic *nic)
{
	struct listener what = *listener;
	int fd, rc;

	memcpy(&what.name.sin_addr, closed->key.local, 4);
	if (kernel_timewait_socket_was_made_recently(&what))
		return 0;
	fd = kernel_timewait_socket_open_and_bind(&what);
	rc = fd < 0 ? fd : kernel_timewait_socket_repair_and_close(fd, &what.name, closed, NULL);
	if (rc == -EPERM)
		rc = kernel_timewait_socket_repair_and_close(fd, &what.name, closed, nic);
	if (fd >= 0)
		syscall(SYS_close, fd);
	if (rc == 0)
		recent_listener_add(&what);
	else
		vma_log_debug("no placeholder for connections in TIME_WAIT from port %d: %s", ntohs(what.name.sin_port),
		              strerrordesc_np(-rc));
	return rc;
}

/* ---- all of a listener ---- */

static bool address_list_contains(const uint8_t made[][4], unsigned n, const uint8_t *local)
{
	for (unsigned i = 0; i < n; i++)
		if (memcmp(made[i], local, 4) == 0)
			return true;
	return false;
}

/* False: vmad does not answer, and is not to be waited for again. */
static bool kernel_timewait_sockets_create_for_listener(const struct listener *listener)
{
	const bool any = listener->name.sin_addr.s_addr == INADDR_ANY;
	const uint8_t *local = any ? NULL : (const uint8_t *)&listener->name.sin_addr;
	uint8_t made[ADDRESSES_MAX][4];
	struct vma_tcp_closed closed[ADDRESSES_MAX];
	unsigned n_made = 0;

	for (unsigned bit = 0; bit < 64; bit++) {
		struct vma_ring_ctx *ring_ctx = atomic_load_explicit(&vma_ring_ctxs[bit], memory_order_acquire);

		for (; ring_ctx != NULL; ring_ctx = atomic_load_explicit(&ring_ctx->next, memory_order_acquire)) {
			struct vma_tcp *tcp = atomic_load_explicit(&ring_ctx->tcp, memory_order_acquire);
			unsigned n = 0;

			if (tcp != NULL)
				n = vma_tcp_list_one_closed_conn_per_address(tcp, local, listener->name.sin_port,
				                                             closed, ADDRESSES_MAX);
			for (unsigned i = 0; i < n && n_made < ADDRESSES_MAX; i++) {
				if (address_list_contains(made, n_made, closed[i].key.local))
					continue;
				memcpy(made[n_made++], closed[i].key.local, 4);
				if (kernel_timewait_socket_create(listener, &closed[i], ring_ctx->device->nic) ==
				    -EPIPE)
					return false;
			}
		}
	}
	return true;
}

static struct listener listener_get_name_and_reuse_options(const struct stream_sock *sock)
{
	return (struct listener){.name = sock->local, .reuse_addr = sock->reuse_addr, .reuse_port = sock->reuse_port};
}

static bool listener_has_ipv4_port(const struct listener *listener)
{
	return listener->name.sin_family == AF_INET && listener->name.sin_port != 0;
}

static void closed_listener_add(const struct listener *listener)
{
	unsigned at = 0;

	pthread_mutex_lock(&lock);
	while (at < LISTENERS_MAX && memcmp(&closed_listeners[at].name, &listener->name, sizeof(listener->name)) != 0)
		at++;
	if (at == LISTENERS_MAX)
		at = closed_listeners_next++ % LISTENERS_MAX;
	closed_listeners[at] = *listener;
	pthread_mutex_unlock(&lock);
}

void stream_create_timewait_sockets_of_listener(struct stream_sock *listener)
{
	const struct listener what = listener_get_name_and_reuse_options(listener);

	/* A forked child that closes what it inherited has none, and is not to start one for it. */
	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) == NULL || !listener_has_ipv4_port(&what))
		return;
	kernel_timewait_sockets_create_for_listener(&what);
	closed_listener_add(&what);
}

/* ---- all listeners ---- */

struct end {
	bool continues;
	struct timespec until;
};

static void kernel_timewait_sockets_create_for_file_at_exit(struct vma_file *file, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	struct listener what;
	struct end *end = arg;

	if (!end->continues || file->kind != VMA_FILE_TCP || file->os_only ||
	    pthread_mutex_timedlock(&file->lock, &end->until) != 0)
		return;
	what = listener_get_name_and_reuse_options(sock);
	if (stream_sock_phase(sock) == STREAM_LISTENING && listener_has_ipv4_port(&what))
		end->continues = kernel_timewait_sockets_create_for_listener(&what);
	pthread_mutex_unlock(&file->lock);
}

void stream_create_kernel_timewait_sockets_at_exit(void)
{
	struct listener closed[LISTENERS_MAX];
	struct end end = {.continues = true, .until = exit_lock_deadline_of_realtime()};

	vma_file_each(kernel_timewait_sockets_create_for_file_at_exit, &end);
	pthread_mutex_lock(&lock);
	memcpy(closed, closed_listeners, sizeof(closed));
	pthread_mutex_unlock(&lock);
	for (unsigned i = 0; i < LISTENERS_MAX && end.continues; i++)
		if (listener_has_ipv4_port(&closed[i]))
			end.continues = kernel_timewait_sockets_create_for_listener(&closed[i]);
}
