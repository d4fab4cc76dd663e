/*
 * options.c - setsockopt: the kernel's answer by the shadow, and a mirror of the options that matter to connections
 * that pass it by. The shadow is asked for the value that an option has afterwards: it clamps, rounds and doubles.
 *
 *   mirrored     to the connection (options of tcp), or read by stream's own files
 *   kernel only  while one is set, connect and listen are the kernel's; if a program would miss its effect, it makes a
 *                connection the kernel's, too (to_kernel.c)
 *   inherited    noted for accepted sockets, whose shadows get it when they are asked for options (settle)
 */
#include <asm/socket.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/inet_option.h>
#include <vma/inet_ring_option.h>
#include <vma/log.h>

#include "settings.h"
#include "stream_priv.h"
#include "xtreme.h"

/* Younger than the C library's header. */
#ifndef TCP_TX_DELAY
#define TCP_TX_DELAY 37
#endif

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

#define BUFFER_LEAST 2304 /* as the kernel's SOCK_MIN_RCVBUF */
#define MAXSEG_MIN 88     /* as the kernel's TCP_MIN_MSS */
_Static_assert(MAXSEG_MIN == VMA_CONF_MSS_LEAST, "conf tells that VMA_MSS is cut");

/* ---- what only the kernel serves ---- */

enum { /* how it is told whether it is set */
       BY_VALUE = VMA_INET_BY_VALUE,
       BY_ONE = VMA_INET_BY_ONE,
       BY_SIGN = VMA_INET_BY_SIGN,
       BY_LENGTH = VMA_INET_BY_LENGTH,
       BY_RATE = VMA_INET_BY_RATE,
       ALWAYS = VMA_INET_ALWAYS,
};
/* What it does to a connection: what is not missed (or has its effect on listeners, or while it connects) moves none.
 */
enum late { OPTION_KEEPS_OFFLOADED, OPTION_HANDS_OVER };
struct kernel_only_option {
	int level, name;
	uint8_t enabled_by, late;
	const char *text;
};

/* clang-format off */
static const struct kernel_only_option kernel_only_option[] = {
	{SOL_SOCKET, SO_ATTACH_FILTER, ALWAYS, OPTION_HANDS_OVER, "SO_ATTACH_FILTER"},
	{SOL_SOCKET, SO_ATTACH_BPF, ALWAYS, OPTION_HANDS_OVER, "SO_ATTACH_BPF"},
	{SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, ALWAYS, OPTION_KEEPS_OFFLOADED, "SO_ATTACH_REUSEPORT_CBPF"},
	{SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, ALWAYS, OPTION_KEEPS_OFFLOADED, "SO_ATTACH_REUSEPORT_EBPF"},
	{SOL_SOCKET, SO_PEEK_OFF, BY_SIGN, OPTION_HANDS_OVER, "SO_PEEK_OFF"},
	{SOL_SOCKET, SO_DONTROUTE, BY_VALUE, OPTION_KEEPS_OFFLOADED, "SO_DONTROUTE"},
	{SOL_SOCKET, SO_TXTIME, ALWAYS, OPTION_KEEPS_OFFLOADED, "SO_TXTIME"},
	{SOL_SOCKET, SO_TIMESTAMP_OLD, BY_VALUE, OPTION_HANDS_OVER, "SO_TIMESTAMP"},
	{SOL_SOCKET, SO_TIMESTAMPNS_OLD, BY_VALUE, OPTION_HANDS_OVER, "SO_TIMESTAMPNS"},
	{SOL_SOCKET, SO_TIMESTAMPING_OLD, BY_VALUE, OPTION_HANDS_OVER, "SO_TIMESTAMPING"},
	{SOL_SOCKET, SO_TIMESTAMP_NEW, BY_VALUE, OPTION_HANDS_OVER, "SO_TIMESTAMP"},
	{SOL_SOCKET, SO_TIMESTAMPNS_NEW, BY_VALUE, OPTION_HANDS_OVER, "SO_TIMESTAMPNS"},
	{SOL_SOCKET, SO_TIMESTAMPING_NEW, BY_VALUE, OPTION_HANDS_OVER, "SO_TIMESTAMPING"},
	{SOL_SOCKET, SO_MAX_PACING_RATE, BY_RATE, OPTION_HANDS_OVER, "SO_MAX_PACING_RATE"},
	{IPPROTO_IP, IP_LOCAL_PORT_RANGE, BY_VALUE, OPTION_KEEPS_OFFLOADED, "IP_LOCAL_PORT_RANGE"},
	{IPPROTO_IP, IP_OPTIONS, BY_LENGTH, OPTION_HANDS_OVER, "IP_OPTIONS"},
	{IPPROTO_IP, IP_TRANSPARENT, BY_VALUE, OPTION_KEEPS_OFFLOADED, "IP_TRANSPARENT"},
	{IPPROTO_IP, IP_MINTTL, BY_VALUE, OPTION_HANDS_OVER, "IP_MINTTL"},
	{IPPROTO_IP, IP_RECVERR, BY_VALUE, OPTION_HANDS_OVER, "IP_RECVERR"},
	{IPPROTO_IP, IP_IPSEC_POLICY, ALWAYS, OPTION_HANDS_OVER, "IP_IPSEC_POLICY"},
	{IPPROTO_IP, IP_XFRM_POLICY, ALWAYS, OPTION_HANDS_OVER, "IP_XFRM_POLICY"},
	{IPPROTO_IPV6, IPV6_ADDRFORM, ALWAYS, OPTION_HANDS_OVER, "IPV6_ADDRFORM"},
	{IPPROTO_IPV6, IPV6_TRANSPARENT, BY_VALUE, OPTION_KEEPS_OFFLOADED, "IPV6_TRANSPARENT"},
	{IPPROTO_IPV6, IPV6_IPSEC_POLICY, ALWAYS, OPTION_HANDS_OVER, "IPV6_IPSEC_POLICY"},
	{IPPROTO_IPV6, IPV6_XFRM_POLICY, ALWAYS, OPTION_HANDS_OVER, "IPV6_XFRM_POLICY"},
	{IPPROTO_TCP, TCP_MD5SIG, ALWAYS, OPTION_HANDS_OVER, "TCP_MD5SIG"},
	{IPPROTO_TCP, TCP_MD5SIG_EXT, ALWAYS, OPTION_HANDS_OVER, "TCP_MD5SIG_EXT"},
	{IPPROTO_TCP, TCP_REPAIR, BY_ONE, OPTION_HANDS_OVER, "TCP_REPAIR"},
	{IPPROTO_TCP, TCP_FASTOPEN_CONNECT, BY_VALUE, OPTION_KEEPS_OFFLOADED, "TCP_FASTOPEN_CONNECT"},
	{IPPROTO_TCP, TCP_SAVE_SYN, BY_VALUE, OPTION_KEEPS_OFFLOADED, "TCP_SAVE_SYN"},
	{IPPROTO_TCP, TCP_TX_DELAY, BY_VALUE, OPTION_HANDS_OVER, "TCP_TX_DELAY"},
	{IPPROTO_TCP, TCP_ULP, ALWAYS, OPTION_KEEPS_OFFLOADED, "TCP_ULP"},
};
/* clang-format on */
enum {
	KERNEL_ONLY = sizeof(kernel_only_option) / sizeof(kernel_only_option[0]),
	BIT_CONGESTION = KERNEL_ONLY,
	BIT_ASYNC
};
_Static_assert(BIT_ASYNC < 64, "a bit each");

static int find_kernel_only_option_index(int level, int name)
{
	for (int i = 0; i < KERNEL_ONLY; i++) {
		if (kernel_only_option[i].level == level && kernel_only_option[i].name == name)
			return i;
	}
	return -1;
}

const char *stream_kernel_only_option_name(struct vma_file *file)
{
	uint64_t set;

	pthread_mutex_lock(&file->lock);
	set = stream_sock(file)->os_options;
	pthread_mutex_unlock(&file->lock);
	for (int i = 0; i < KERNEL_ONLY; i++) {
		if (set & 1ULL << i)
			return kernel_only_option[i].text;
	}
	return set & 1ULL << BIT_CONGESTION ? "TCP_CONGESTION" : set & 1ULL << BIT_ASYNC ? "O_ASYNC" : NULL;
}

bool stream_has_kernel_only_option(const struct stream_sock *sock)
{
	return sock->os_options != 0;
}

static bool option_is_set_now(int fd, const struct kernel_only_option *option)
{
	return vma_inet_option_is_set(fd, option->level, option->name, option->enabled_by);
}

/* Of a listener: its flows go or come. Of a connection that has not moved nothing changes any more. */
static void stream_set_kernel_only_option_bit(struct stream_sock *sock, int bit, bool on)
{
	uint64_t before = sock->os_options;

	sock->os_options = on ? before | 1ULL << bit : before & ~(1ULL << bit);
	if (sock->os_options != before)
		stream_listener_update_flows(sock);
}

/* Of a connection the signals are ours to send; before, it is better made by the kernel. */
void stream_set_async(struct stream_sock *sock, bool on)
{
	if (stream_tcp_conn(sock) != NULL)
		atomic_store(&sock->async, on);
	else
		stream_set_kernel_only_option_bit(sock, BIT_ASYNC, on);
}

void stream_set_congestion_is_kernel_only(struct stream_sock *sock, bool on)
{
	stream_set_kernel_only_option_bit(sock, BIT_CONGESTION, on);
}

static bool option_enables(const struct kernel_only_option *option, const void *value, socklen_t len)
{
	return vma_inet_option_enables(option->level, option->enabled_by, value, len);
}

/* Before the kernel is asked: what VMA_EXCEPTION_HANDLING says of it. */
static int stream_check_option_exception_handling(const struct stream_sock *sock,
                                                  const struct kernel_only_option *option, const void *value,
                                                  socklen_t len)
{
	if (!option_enables(option, value, len))
		return 0;
	if (option->name == TCP_ULP && option->level == IPPROTO_TCP)
		return 0; /* the shadow refuses it: it is not connected */
	return vma_engine_apply_offload_failure_policy(
	        ENOPROTOOPT, stream_tcp_conn(sock) != NULL ? "a connected TCP socket with %s" : "a TCP socket with %s",
	        option->text);
}

/*
 * The connection becomes the kernel's, before the option is set: the option must not act on what is reinjected
 * meanwhile (reinject.c), and some options need a connection. A value that is refused then has cost the offload.
 */
static bool move_to_kernel_for_option(struct stream_sock *sock, int fd, const struct kernel_only_option *option,
                                      const void *value, socklen_t len)
{
	int rc;

	if (stream_tcp_conn(sock) == NULL || option->late == OPTION_KEEPS_OFFLOADED ||
	    !option_enables(option, value, len))
		return false;
	stream_so_cookie(sock, fd);
	rc = stream_hand_over_conn_to_kernel(sock, fd, VMA_SOCK_OPTION);
	if (rc < 0) {
		vma_log_once(VMA_LOG_WARN,
		             "%s has no effect on offloaded connections that cannot be handed over to the kernel: %s",
		             option->text, strerrordesc_np(-rc));
		return false;
	}
	vma_log_once(VMA_LOG_INFO, "connections with %s are handed over to the kernel, which alone serves it",
	             option->text);
	vma_log_debug("fd %d: handed over to the kernel for %s", fd, option->text);
	return true;
}

/* What the kernel takes of a socket that is not connected only, as its shadow never is. */
static bool option_comes_too_late(const struct stream_sock *sock, int level, int name, const void *value, socklen_t len)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	int number = 1;

	if (level != IPPROTO_TCP || conn == NULL || stream_kernel_view_of_state(conn) == TCP_CLOSE)
		return false;
	if (name == TCP_WINDOW_CLAMP && len >= sizeof(number) &&
	    vma_memcpy_or_efault(&number, value, sizeof(number)) == 0)
		return number == 0;
	return name == TCP_FASTOPEN || name == TCP_FASTOPEN_CONNECT;
}

/* ---- inheritance ---- */

/* Without memory the shadows of accepted sockets do not have it; their connections do. */
static void listener_record_set_option(struct stream_sock *sock, int level, int name, const void *value, socklen_t len)
{
	struct stream_recorded_option **place = &sock->sets, *set;

	if (len > sizeof(set->value))
		return;
	while (*place != NULL && ((*place)->level != level || (*place)->name != name))
		place = &(*place)->next;
	if (*place == NULL)
		*place = vma_alloc(sizeof(**place));
	set = *place;
	if (set == NULL)
		return;
	set->level = level;
	set->name = name;
	set->len = vma_memcpy_or_efault(set->value, value, len) == 0 ? len : 0;
}

void stream_options_free(struct stream_sock *sock)
{
	struct stream_recorded_option *next;

	for (struct stream_recorded_option *set = sock->sets; set != NULL; set = next) {
		next = set->next;
		vma_free(set);
	}
	sock->sets = NULL;
}

static void copy_kernel_only_options_from_listener(struct stream_sock *child, const struct stream_sock *listener)
{
	struct stream_recorded_option **place = &child->sets;

	for (const struct stream_recorded_option *set = listener->sets; set != NULL; set = set->next) {
		struct stream_recorded_option *copy = vma_alloc(sizeof(*copy));

		if (copy == NULL)
			break;
		*copy = *set;
		copy->next = NULL;
		*place = copy;
		place = &copy->next;
	}
	child->sets_due = child->sets != NULL;
}

#define COPY(field) atomic_store(&child->field, atomic_load(&listener->field))
void stream_options_inherit(struct stream_sock *child, struct stream_sock *listener)
{
	child->options = listener->options;
	COPY(rcvtimeo_ns);
	COPY(sndtimeo_ns);
	COPY(rcvlowat);
	COPY(oob_inline);
	COPY(zerocopy);
	COPY(inq);
	child->linger_on = listener->linger_on;
	child->linger_sec = listener->linger_sec;
	child->bound_ifindex = listener->bound_ifindex;
	child->mark = listener->mark;
	child->own_congestion = listener->own_congestion;
	copy_kernel_only_options_from_listener(child, listener);
}
#undef COPY

void stream_options_apply_to_shadow(struct stream_sock *sock, int fd)
{
	if (!sock->sets_due)
		return;
	sock->sets_due = false;
	for (const struct stream_recorded_option *set = sock->sets; set != NULL; set = set->next)
		vma_os.setsockopt(fd, set->level, set->name, set->value, set->len);
}

/* ---- the connection's ---- */

enum source { SHADOW_VALUE, CALLER_VALUE }; /* where the value is taken from */
struct mirrored {
	int level, name;
	enum vma_tcp_option option;
	uint8_t source;
};
/* clang-format off */
static const struct mirrored mirrored[] = {
	{IPPROTO_TCP, TCP_NODELAY, VMA_TCP_OPT_NODELAY, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_CORK, VMA_TCP_OPT_CORK, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_QUICKACK, VMA_TCP_OPT_QUICKACK, CALLER_VALUE},
	{IPPROTO_TCP, TCP_MAXSEG, VMA_TCP_OPT_MAXSEG, CALLER_VALUE},
	{IPPROTO_TCP, TCP_KEEPIDLE, VMA_TCP_OPT_KEEPIDLE, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_KEEPINTVL, VMA_TCP_OPT_KEEPINTVL, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_KEEPCNT, VMA_TCP_OPT_KEEPCNT, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_USER_TIMEOUT, VMA_TCP_OPT_USER_TIMEOUT, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_SYNCNT, VMA_TCP_OPT_SYNCNT, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_LINGER2, VMA_TCP_OPT_LINGER2, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_DEFER_ACCEPT, VMA_TCP_OPT_DEFER_ACCEPT, SHADOW_VALUE},
	{IPPROTO_TCP, TCP_WINDOW_CLAMP, VMA_TCP_OPT_WINDOW_CLAMP, SHADOW_VALUE},
	{SOL_SOCKET, SO_KEEPALIVE, VMA_TCP_OPT_KEEPALIVE, SHADOW_VALUE},
	{SOL_SOCKET, SO_OOBINLINE, VMA_TCP_OPT_OOBINLINE, SHADOW_VALUE},
	{IPPROTO_IP, IP_TOS, VMA_TCP_OPT_TOS, SHADOW_VALUE},
	{IPPROTO_IP, IP_TTL, VMA_TCP_OPT_TTL, SHADOW_VALUE},
	{IPPROTO_IP, IP_MTU_DISCOVER, VMA_TCP_OPT_PMTUDISC, SHADOW_VALUE},
};
/* clang-format on */

static int32_t *options_field_of(struct vma_tcp_options *options, enum vma_tcp_option option)
{
	switch (option) {
#define X(name, field, value)                                                                                          \
	case VMA_TCP_OPT_##name:                                                                                       \
		return &options->field;
		VMA_TCP_OPTIONS(X)
#undef X
	default:
		return NULL;
	}
}

void stream_set_tcp_option(struct stream_sock *sock, enum vma_tcp_option option, int32_t value)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	*options_field_of(&sock->options, option) = value;
	if (conn != NULL)
		vma_tcp_set_option(conn, option, value);
	else
		stream_listen_apply_options(sock);
}

/* True: it is one of these. */
static bool copy_option_to_tcp_if_mirrored(struct stream_sock *sock, int fd, int level, int name, const void *value,
                                           socklen_t len)
{
	for (size_t i = 0; i < sizeof(mirrored) / sizeof(mirrored[0]); i++) {
		const struct mirrored *m = &mirrored[i];
		int number = 0;

		if (m->level != level || m->name != name)
			continue;
		if (m->source == SHADOW_VALUE)
			number = vma_os_getsockopt_int_or(fd, level, name, 0);
		else if (len < sizeof(number) || vma_memcpy_or_efault(&number, value, sizeof(number)) != 0)
			return true;
		stream_set_tcp_option(sock, m->option, number);
		return true;
	}
	return false;
}

/* The kernel doubles what it is given, for its own overhead. VMA_RX_BYTES_MIN counts if it is set. */
static int kernel_rcvbuf_size(const struct stream_sock *sock, int fd)
{
	const struct vma_conf *conf = sock->engine != NULL ? &sock->engine->conf : NULL;
	int bytes = vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_RCVBUF, 0) / 2;

	if (conf != NULL && conf->given[VMA_CONF_AT_rx_bytes_min] && bytes < conf->rx_bytes_min)
		bytes = (int)conf->rx_bytes_min;
	return bytes;
}

static void copy_kernel_buffer_size_to_tcp(struct stream_sock *sock, int fd, int name)
{
	if (name == SO_SNDBUF || name == SO_SNDBUFFORCE)
		stream_set_tcp_option(sock, VMA_TCP_OPT_SNDBUF,
		                      vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_SNDBUF, 0) / 2);
	else
		stream_set_tcp_option(sock, VMA_TCP_OPT_RCVBUF, kernel_rcvbuf_size(sock, fd));
	stream_describe_for_stats(sock);
	stream_wake_waiters(sock, EPOLLOUT); /* there may be room now, as below */
}

/* ---- the socket's ---- */

static void copy_kernel_linger_to_sock(struct stream_sock *sock, int fd)
{
	struct linger linger = {0};
	socklen_t len = sizeof(linger);

	if (vma_os.getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) != 0)
		return;
	sock->linger_on = linger.l_onoff != 0;
	sock->linger_sec = (uint32_t)linger.l_linger;
}

static void copy_sol_socket_option_to_sock(struct stream_sock *sock, int fd, int name, const void *value)
{
	switch (name) {
	case SO_SNDBUF:
	case SO_SNDBUFFORCE:
	case SO_RCVBUF:
	case SO_RCVBUFFORCE:
		copy_kernel_buffer_size_to_tcp(sock, fd, name);
		break;
	case SO_RCVTIMEO_OLD:
	case SO_RCVTIMEO_NEW:
		atomic_store(&sock->rcvtimeo_ns, vma_sock_timeout_ns(fd, SO_RCVTIMEO_OLD, value));
		break;
	case SO_SNDTIMEO_OLD:
	case SO_SNDTIMEO_NEW:
		atomic_store(&sock->sndtimeo_ns, vma_sock_timeout_ns(fd, SO_SNDTIMEO_OLD, value));
		break;
	case SO_RCVLOWAT:
		atomic_store(&sock->rcvlowat, (uint32_t)vma_os_getsockopt_int_or(fd, SOL_SOCKET, name, 1));
		stream_wake_waiters(sock, EPOLLIN); /* what is there may be enough now */
		break;
	case SO_LINGER:
		copy_kernel_linger_to_sock(sock, fd);
		break;
	case SO_BINDTODEVICE:
	case SO_BINDTOIFINDEX:
		sock->bound_ifindex = (uint32_t)vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_BINDTOIFINDEX, 0);
		stream_listener_update_flows(sock);
		break;
	case SO_MARK:
		sock->mark = (uint32_t)vma_os_getsockopt_int_or(fd, SOL_SOCKET, name, 0);
		break;
	case SO_REUSEADDR:
		sock->reuse_addr = vma_os_getsockopt_int_or(fd, SOL_SOCKET, name, 0) != 0;
		break;
	case SO_REUSEPORT:
		sock->reuse_port = vma_os_getsockopt_int_or(fd, SOL_SOCKET, name, 0) != 0;
		break;
	case SO_ZEROCOPY:
		atomic_store(&sock->zerocopy, vma_os_getsockopt_int_or(fd, SOL_SOCKET, name, 0) != 0);
		break;
	default:
		break;
	}
}

static void copy_stream_option_to_sock(struct stream_sock *sock, int fd, int level, int name, const void *value,
                                       socklen_t len)
{
	int number = 0;

	if (copy_option_to_tcp_if_mirrored(sock, fd, level, name, value, len)) {
		if (level == SOL_SOCKET && name == SO_OOBINLINE)
			atomic_store(&sock->oob_inline, sock->options.oobinline != 0);
		return;
	}
	if (level == SOL_SOCKET)
		copy_sol_socket_option_to_sock(sock, fd, name, value);
	else if (level == IPPROTO_TCP && name == TCP_INQ)
		atomic_store(&sock->inq, vma_os_getsockopt_int_or(fd, level, name, 0) != 0);
	else if (level == IPPROTO_TCP && name == TCP_NOTSENT_LOWAT && len >= sizeof(number) &&
	         vma_memcpy_or_efault(&number, value, sizeof(number)) == 0) {
		stream_set_tcp_option(sock, VMA_TCP_OPT_NOTSENT_LOWAT,
		                      number == 0 ? kernel_default_tcp_options(fd)->notsent_lowat : number);
		stream_wake_waiters(sock, EPOLLOUT);
	}
}

/* What the kernel has refused for want of a privilege, and is the connection's alone: -EPERM: it is not. */
static int stream_set_privileged_option(struct stream_sock *sock, int level, int name, const void *value, socklen_t len)
{
	int number, rc = vma_inet_read_allowed_privileged_option(sock->engine, level, name, value, len, &number);

	if (rc < 0)
		return rc;
	if (name == SO_MARK)
		sock->mark = (uint32_t)number;
	else
		stream_set_tcp_option(sock, name == SO_SNDBUFFORCE ? VMA_TCP_OPT_SNDBUF : VMA_TCP_OPT_RCVBUF,
		                      number > BUFFER_LEAST ? number : BUFFER_LEAST);
	stream_describe_for_stats(sock);
	stream_wake_waiters(sock, EPOLLOUT); /* there may be room now */
	return 0;
}

/* ---- VMA_AVOID_SYS_CALLS_ON_TCP_FD ---- */

/*
 * Options of a connection that need nothing of the kernel. The shadow gets them when it is asked for another option, or
 * is to have the connection (stream_options_apply_to_shadow). The bounds are the kernel's (do_tcp_setsockopt).
 */
struct shadow_independent_option {
	int level, name;
	enum vma_tcp_option option;
	bool is_switch;
	int least, most;
};
static const struct shadow_independent_option shadow_independent_options[] = {
        {IPPROTO_TCP, TCP_NODELAY, VMA_TCP_OPT_NODELAY, true, 0, 0},
        {IPPROTO_TCP, TCP_CORK, VMA_TCP_OPT_CORK, true, 0, 0},
        {IPPROTO_TCP, TCP_KEEPIDLE, VMA_TCP_OPT_KEEPIDLE, false, 1, 32767},
        {IPPROTO_TCP, TCP_KEEPINTVL, VMA_TCP_OPT_KEEPINTVL, false, 1, 32767},
        {IPPROTO_TCP, TCP_KEEPCNT, VMA_TCP_OPT_KEEPCNT, false, 1, 127},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, VMA_TCP_OPT_USER_TIMEOUT, false, 0, INT32_MAX},
        {SOL_SOCKET, SO_KEEPALIVE, VMA_TCP_OPT_KEEPALIVE, true, 0, 0},
};

/* NULL: the kernel is asked. Other processes that have the socket look at the shadow. */
static const struct shadow_independent_option *find_shadow_independent_option(const struct stream_sock *sock, int level,
                                                                              int name)
{
	const struct vma_file *file = &sock->file;

	if (sock->engine == NULL || !sock->engine->conf.avoid_sys_calls_on_tcp_fd || file->from_parent ||
	    file->forks != atomic_load_explicit(&vma_fork_count, memory_order_relaxed) ||
	    stream_tcp_conn(sock) == NULL || stream_sock_phase(sock) != STREAM_CONNECTED)
		return NULL;
	for (size_t i = 0; i < sizeof(shadow_independent_options) / sizeof(shadow_independent_options[0]); i++) {
		if (shadow_independent_options[i].level == level && shadow_independent_options[i].name == name)
			return &shadow_independent_options[i];
	}
	return NULL;
}

static int set_option_without_shadow(struct stream_sock *sock, const struct shadow_independent_option *quiet,
                                     const void *value, socklen_t len)
{
	int number;

	if ((int)len < (int)sizeof(number))
		return -EINVAL;
	if (vma_memcpy_or_efault(&number, value, sizeof(number)) != 0)
		return -EFAULT;
	if (quiet->is_switch)
		number = number != 0;
	else if (number < quiet->least || number > quiet->most)
		return -EINVAL;
	listener_record_set_option(sock, quiet->level, quiet->name, &number, sizeof(number));
	sock->sets_due = true;
	stream_set_tcp_option(sock, quiet->option, number);
	return 0;
}

bool stream_get_option_without_shadow(struct stream_sock *sock, int level, int name, int *number)
{
	const struct shadow_independent_option *quiet = find_shadow_independent_option(sock, level, name);

	if (quiet != NULL)
		*number = *options_field_of(&sock->options, quiet->option);
	return quiet != NULL;
}

/* ---- setsockopt ---- */

int stream_setsockopt(struct vma_file *file, int fd, int level, int name, const void *value, socklen_t len)
{
	struct stream_sock *sock = stream_sock(file);
	int bit = find_kernel_only_option_index(level, name), rc = 0;
	const struct shadow_independent_option *quiet;
	bool moved = false;

	if (vma_inet_is_ring_option(level, name))
		return stream_set_ring_option(sock, name, value, len);
	if (vma_xtreme_is_option(level, name) && stream_xtreme_is_on(sock) && !file->os_only)
		return stream_xtreme_setsockopt(sock, name, value, len);
	if (bit >= 0)
		rc = stream_check_option_exception_handling(sock, &kernel_only_option[bit], value, len);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&file->lock);
	quiet = find_shadow_independent_option(sock, level, name);
	if (quiet != NULL) {
		rc = set_option_without_shadow(sock, quiet, value, len);
		pthread_mutex_unlock(&file->lock);
		return rc;
	}
	stream_options_apply_to_shadow(sock, fd);
	if (bit >= 0)
		moved = move_to_kernel_for_option(sock, fd, &kernel_only_option[bit], value, len);
	if (option_comes_too_late(sock, level, name, value, len))
		rc = -EINVAL;
	else if (level == IPPROTO_TCP && name == TCP_CONGESTION)
		rc = stream_congestion_set(sock, fd, value, len);
	else if (vma_os.setsockopt(fd, level, name, value, len) != 0)
		rc = -errno;
	if (rc == -EPERM && bit < 0 && stream_set_privileged_option(sock, level, name, value, len) == 0) {
		pthread_mutex_unlock(&file->lock);
		return 0;
	}
	if (rc == 0 && stream_tcp_conn(sock) == NULL && !moved)
		listener_record_set_option(sock, level, name, value, len);
	if (rc == 0 && bit >= 0)
		stream_set_kernel_only_option_bit(sock, bit, option_is_set_now(fd, &kernel_only_option[bit]));
	else if (rc == 0)
		copy_stream_option_to_sock(sock, fd, level, name, value, len);
	pthread_mutex_unlock(&file->lock);
	if (moved)
		stream_wake_waiters_after_hand_over(sock);
	return rc;
}

void stream_options_init(struct stream_sock *sock, int fd)
{
	const struct vma_conf *conf = &sock->engine->conf;

	sock->options = *kernel_default_tcp_options(fd);
	sock->own_congestion = conf->given[VMA_CONF_AT_tcp_cc_algo];
	if (sock->own_congestion)
		sock->options.congestion = conf->tcp_cc_algo;
	if (conf->mss != 0)
		sock->options.maxseg = conf->mss > MAXSEG_MIN ? (int32_t)conf->mss : MAXSEG_MIN;
	if (conf->given[VMA_CONF_AT_tcp_send_buffer_size])
		sock->options.sndbuf_init = sock->options.sndbuf_max = (int32_t)conf->tcp_send_buffer_size;
}

/* VMA_TCP_NODELAY: as if the program had set it. So the shadow says so, and the kernel goes on so after a hand-over. */
void stream_options_of_new_socket(struct stream_sock *sock, int fd)
{
	static const int on = 1;

	stream_options_init(sock, fd);
	sock->options.nodelay = sock->engine->conf.tcp_nodelay;
	if (sock->options.nodelay)
		vma_os.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* ---- a shadow that another process has set ---- */

/* Beside those that are mirrored. */
static const int of_socket[] = {SO_SNDBUF, SO_RCVBUF,   SO_SNDTIMEO_OLD,  SO_RCVTIMEO_OLD, SO_RCVLOWAT, SO_LINGER,
                                SO_MARK,   SO_ZEROCOPY, SO_BINDTOIFINDEX, SO_REUSEADDR,    SO_REUSEPORT};

/* As if it had been set here, if it is not as a new socket has it. */
static void inherit_option_from_shadow(struct stream_sock *sock, int fd, int fresh, int level, int name)
{
	uint8_t value[32] = {0}, usual[32] = {0};
	socklen_t len = sizeof(value), usual_len = sizeof(usual);
	int number;

	if (vma_os.getsockopt(fd, level, name, value, &len) != 0 ||
	    vma_os.getsockopt(fresh, level, name, usual, &usual_len) != 0 ||
	    (len == usual_len && memcmp(value, usual, len) == 0))
		return;
	if (level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_RCVBUF)) {
		memcpy(&number, value, sizeof(number));
		number /= 2; /* the kernel doubles it again */
		memcpy(value, &number, sizeof(number));
	}
	listener_record_set_option(sock, level, name, value, len);
	copy_stream_option_to_sock(sock, fd, level, name, value, len);
}

void stream_options_read_from_shadow(struct stream_sock *sock, int fd)
{
	const int fresh = vma_os.socket(sock->file.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char algorithm[16];

	if (fresh < 0)
		return;
	for (size_t i = 0; i < sizeof(of_socket) / sizeof(of_socket[0]); i++)
		inherit_option_from_shadow(sock, fd, fresh, SOL_SOCKET, of_socket[i]);
	for (size_t i = 0; i < sizeof(mirrored) / sizeof(mirrored[0]); i++)
		inherit_option_from_shadow(sock, fd, fresh, mirrored[i].level, mirrored[i].name);
	inherit_option_from_shadow(sock, fd, fresh, IPPROTO_TCP, TCP_INQ);
	inherit_option_from_shadow(sock, fd, fresh, IPPROTO_TCP, TCP_NOTSENT_LOWAT);
	syscall(SYS_close, fresh);
	for (int bit = 0; bit < KERNEL_ONLY; bit++)
		if (kernel_only_option[bit].enabled_by != ALWAYS && option_is_set_now(fd, &kernel_only_option[bit]))
			sock->os_options |= 1ULL << bit;
	if (!sock->own_congestion && get_congestion_name_of_kernel_socket(fd, algorithm))
		stream_congestion_set(sock, fd, algorithm, (socklen_t)strlen(algorithm));
}
