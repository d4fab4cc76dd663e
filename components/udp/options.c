/*
 * options.c - setsockopt: the kernel's answer, and a mirror of the options that matter to datagrams that pass the
 * kernel by.
 *
 * The mirror is made by asking the kernel what the option is now. The kernel knows the widths that each option takes,
 * rounds, clamps and doubles, and some options change others. getsockopt needs little of ours: the shadow's answers
 * are right.
 *
 *   served here         mirrored, and obeyed by recv.c, send.c, dst.c, flows.c
 *   only by the kernel  kernel_options: while one of RECEIVES is set, the socket has no flows; while one of SENDS is,
 *                       it sends through the shadow
 *   all others          make no difference to us
 */
#include <asm/socket.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/net_tstamp.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <vma/inet_option.h>
#include <vma/inet_ring_option.h>
#include <vma/inet_xtreme.h>
#include <vma/log.h>

#include "control.h"
#include "defaults.h"
#include "dst.h"
#include "extra.h"
#include "flows.h"
#include "groups.h"
#include "fork_shared.h"

static bool getsockopt_bool(int fd, int level, int name)
{
	return vma_os_getsockopt_int_or(fd, level, name, 0) != 0;
}

/* ---- what only the kernel serves ---- */

enum side { RECEIVES = 1, SENDS = 2 };
enum { /* how it is told whether it is set */
       BY_VALUE = VMA_INET_BY_VALUE,
       BY_SIGN = VMA_INET_BY_SIGN,
       BY_LENGTH = VMA_INET_BY_LENGTH,
       ALWAYS = VMA_INET_ALWAYS,
       NEVER = VMA_INET_NEVER,
};

struct kernel_option {
	int level, name;
	uint8_t bit; /* of udp_sock.os_options; one that sets and one that clears share it */
	uint8_t sides, enabled_by;
	const char *text;
};

enum { BIT_FILTER, BIT_REUSEPORT_PROGRAM, BIT_TX_STAMPS, BIT_ASYNC, BITS_FIXED };

/* clang-format off */
static const struct kernel_option kernel_options[] = {
	{SOL_SOCKET, SO_ATTACH_FILTER, BIT_FILTER, RECEIVES, ALWAYS, "SO_ATTACH_FILTER"},
	{SOL_SOCKET, SO_ATTACH_BPF, BIT_FILTER, RECEIVES, ALWAYS, "SO_ATTACH_BPF"},
	{SOL_SOCKET, SO_DETACH_FILTER, BIT_FILTER, RECEIVES, NEVER, "SO_DETACH_FILTER"},
	{SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, BIT_REUSEPORT_PROGRAM, RECEIVES, ALWAYS, "SO_ATTACH_REUSEPORT_CBPF"},
	{SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, BIT_REUSEPORT_PROGRAM, RECEIVES, ALWAYS, "SO_ATTACH_REUSEPORT_EBPF"},
	{SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, BIT_REUSEPORT_PROGRAM, RECEIVES, NEVER, "SO_DETACH_REUSEPORT_BPF"},
	{SOL_SOCKET, SO_PEEK_OFF, BITS_FIXED, RECEIVES, BY_SIGN, "SO_PEEK_OFF"},
#ifdef SO_RCVMARK
	{SOL_SOCKET, SO_RCVMARK, BITS_FIXED + 1, RECEIVES, BY_VALUE, "SO_RCVMARK"},
#endif
#ifdef SO_RCVPRIORITY
	{SOL_SOCKET, SO_RCVPRIORITY, BITS_FIXED + 2, RECEIVES, BY_VALUE, "SO_RCVPRIORITY"},
#endif
	{SOL_SOCKET, SO_DONTROUTE, BITS_FIXED + 3, SENDS, BY_VALUE, "SO_DONTROUTE"},
	{SOL_SOCKET, SO_NO_CHECK, BITS_FIXED + 4, SENDS, BY_VALUE, "SO_NO_CHECK"},
	{SOL_SOCKET, SO_ZEROCOPY, BITS_FIXED + 5, SENDS, BY_VALUE, "SO_ZEROCOPY"},
	{SOL_SOCKET, SO_TXTIME, BITS_FIXED + 6, SENDS, ALWAYS, "SO_TXTIME"},
	{IPPROTO_UDP, UDP_GRO, BITS_FIXED + 7, RECEIVES, BY_VALUE, "UDP_GRO"},
	{IPPROTO_UDP, UDP_ENCAP, BITS_FIXED + 8, RECEIVES | SENDS, BY_VALUE, "UDP_ENCAP"},
	{IPPROTO_UDP, UDP_CORK, BITS_FIXED + 9, SENDS, BY_VALUE, "UDP_CORK"},
	{IPPROTO_UDP, UDP_SEGMENT, BITS_FIXED + 10, SENDS, BY_VALUE, "UDP_SEGMENT"},
	{IPPROTO_IP, IP_OPTIONS, BITS_FIXED + 11, SENDS, BY_LENGTH, "IP_OPTIONS"},
	{IPPROTO_IP, IP_TRANSPARENT, BITS_FIXED + 12, RECEIVES | SENDS, BY_VALUE, "IP_TRANSPARENT"},
	{IPPROTO_IP, IP_RECVOPTS, BITS_FIXED + 13, RECEIVES, BY_VALUE, "IP_RECVOPTS"},
	{IPPROTO_IP, IP_RETOPTS, BITS_FIXED + 14, RECEIVES, BY_VALUE, "IP_RETOPTS"},
	{IPPROTO_IP, IP_PASSSEC, BITS_FIXED + 15, RECEIVES, BY_VALUE, "IP_PASSSEC"},
	{IPPROTO_IP, IP_CHECKSUM, BITS_FIXED + 16, RECEIVES, BY_VALUE, "IP_CHECKSUM"},
	{IPPROTO_IP, IP_RECVFRAGSIZE, BITS_FIXED + 17, RECEIVES, BY_VALUE, "IP_RECVFRAGSIZE"},
	{IPPROTO_IP, IP_UNICAST_IF, BITS_FIXED + 18, SENDS, BY_VALUE, "IP_UNICAST_IF"},
	{IPPROTO_IP, IP_IPSEC_POLICY, BITS_FIXED + 19, RECEIVES | SENDS, ALWAYS, "IP_IPSEC_POLICY"},
	{IPPROTO_IP, IP_XFRM_POLICY, BITS_FIXED + 20, RECEIVES | SENDS, ALWAYS, "IP_XFRM_POLICY"},
	{SOL_SOCKET, SO_VMA_SHUTDOWN_RX, BITS_FIXED + 21, RECEIVES, ALWAYS, "SO_VMA_SHUTDOWN_RX"},
	{IPPROTO_IPV6, IPV6_TRANSPARENT, BITS_FIXED + 12, RECEIVES | SENDS, BY_VALUE, "IPV6_TRANSPARENT"},
	{IPPROTO_IPV6, IPV6_IPSEC_POLICY, BITS_FIXED + 19, RECEIVES | SENDS, ALWAYS, "IPV6_IPSEC_POLICY"},
	{IPPROTO_IPV6, IPV6_XFRM_POLICY, BITS_FIXED + 20, RECEIVES | SENDS, ALWAYS, "IPV6_XFRM_POLICY"},
};
/* clang-format on */
enum { KERNEL_OPTIONS = sizeof(kernel_options) / sizeof(kernel_options[0]) };
#define BIT(n) (1ULL << (n))

static const struct kernel_option *find_kernel_only_option(int level, int name)
{
	for (unsigned i = 0; i < KERNEL_OPTIONS; i++) {
		if (kernel_options[i].level == level && kernel_options[i].name == name)
			return &kernel_options[i];
	}
	return NULL;
}

static uint64_t kernel_option_bits_of_rx_or_tx(enum side side)
{
	uint64_t bits = side == RECEIVES ? BIT(BIT_ASYNC) : BIT(BIT_TX_STAMPS);

	for (unsigned i = 0; i < KERNEL_OPTIONS; i++) {
		if (kernel_options[i].sides & side)
			bits |= BIT(kernel_options[i].bit);
	}
	return bits;
}

bool udp_receives_by_os(const struct udp_sock *sock)
{
	return sock->os_options != 0 && (sock->os_options & kernel_option_bits_of_rx_or_tx(RECEIVES)) != 0;
}

const char *udp_get_name_of_kernel_only_option(struct vma_file *file)
{
	struct udp_sock *sock = udp_sock(file);
	uint64_t set;

	pthread_mutex_lock(&file->lock);
	set = sock->os_options;
	pthread_mutex_unlock(&file->lock);
	for (unsigned i = 0; i < KERNEL_OPTIONS; i++) {
		if (kernel_options[i].sides & RECEIVES && kernel_options[i].enabled_by != NEVER &&
		    set & BIT(kernel_options[i].bit))
			return kernel_options[i].text;
	}
	return set & BIT(BIT_ASYNC) ? "O_ASYNC" : NULL;
}

static void udp_set_kernel_only_options(struct udp_sock *sock, uint64_t options)
{
	if (sock->os_options == options)
		return;
	sock->os_options = options;
	udp_flows_update(sock);
	atomic_store(&sock->os_send, (sock->os_options & kernel_option_bits_of_rx_or_tx(SENDS)) != 0);
	udp_dst_rebuild_after_change(sock);
	vma_file_wake_sleepers_and_watchers(&sock->file,
	                                    EPOLLOUT); /* whether there is room is perhaps the shadow's to say now */
}

static void udp_set_kernel_only_option_bit(struct udp_sock *sock, unsigned bit, bool on)
{
	struct udp_fork_shared *fork_shared = udp_fork_shared(sock);

	if (fork_shared != NULL && on)
		atomic_fetch_or(&fork_shared->os_options, BIT(bit));
	else if (fork_shared != NULL)
		atomic_fetch_and(&fork_shared->os_options, ~BIT(bit));
	udp_set_kernel_only_options(sock, on ? sock->os_options | BIT(bit) : sock->os_options & ~BIT(bit));
}

void udp_set_o_async(struct udp_sock *sock, bool on)
{
	udp_set_kernel_only_option_bit(sock, BIT_ASYNC, on);
}

/* Before the kernel is asked: what VMA_EXCEPTION_HANDLING says of it. */
static int udp_check_kernel_only_option_is_allowed(const struct kernel_option *option, const void *value, socklen_t len)
{
	if (!vma_inet_option_enables(option->level, option->enabled_by, value, len))
		return 0;
	return vma_engine_apply_offload_failure_policy(ENOPROTOOPT, "a UDP socket with %s", option->text);
}

/* ---- SOL_SOCKET ---- */

static void set_rx_opt(struct udp_sock *sock, uint32_t rx_opt, bool on)
{
	if (on)
		atomic_fetch_or_explicit(&sock->rx_opts, rx_opt, memory_order_relaxed);
	else
		atomic_fetch_and_explicit(&sock->rx_opts, ~rx_opt, memory_order_relaxed);
}

/*
 * Each of the six names changes the others. Those that are off say 0, and so do those of the other generation.
 *
 * The kernel tells a stamp of the hardware if RAW_HARDWARE is set. Programs written for this library's predecessor set
 * RX_HARDWARE alone, to which the kernel never answers anything.
 */
static void mirror_timestamp_options(struct udp_sock *sock, int fd)
{
	const unsigned served = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
	const unsigned hardware = SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
	const uint32_t wanted = UDP_RX_OPT_STAMPS | UDP_RX_OPT_HW_STAMP;
	struct vma_engine *engine = vma_engine_get_or_start();
	const unsigned sent = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_TX_SCHED;
	unsigned flags = (unsigned)vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_TIMESTAMPING_OLD, 0);
	unsigned flags_new = (unsigned)vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_TIMESTAMPING_NEW, 0);
	bool fine_new = getsockopt_bool(fd, SOL_SOCKET, SO_TIMESTAMPNS_NEW);
	bool coarse_new = !fine_new && getsockopt_bool(fd, SOL_SOCKET, SO_TIMESTAMP_NEW); /* which tells of either */

	set_rx_opt(sock, UDP_RX_OPT_TIMESTAMP, coarse_new || getsockopt_bool(fd, SOL_SOCKET, SO_TIMESTAMP_OLD));
	set_rx_opt(sock, UDP_RX_OPT_TIMESTAMPNS, fine_new || getsockopt_bool(fd, SOL_SOCKET, SO_TIMESTAMPNS_OLD));
	set_rx_opt(sock, UDP_RX_OPT_TIMESTAMPING, ((flags | flags_new) & served) == served);
	set_rx_opt(sock, UDP_RX_OPT_STAMP_NEW, coarse_new || fine_new || flags_new != 0);
	set_rx_opt(sock, UDP_RX_OPT_HW_STAMP, ((flags | flags_new) & hardware) != 0);
	set_rx_opt(sock, UDP_RX_OPT_STAMP_PKTINFO, ((flags | flags_new) & SOF_TIMESTAMPING_OPT_PKTINFO) != 0);
	if (engine != NULL && atomic_load_explicit(&sock->rx_opts, memory_order_relaxed) & wanted)
		vma_devices_enable_hw_timestamps(engine);
	udp_set_kernel_only_option_bit(sock, BIT_TX_STAMPS, ((flags | flags_new) & sent) != 0);
}

static void set_rcvbuf(struct udp_sock *sock, int64_t bytes)
{
	const struct vma_engine *engine;

	if (bytes == atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed))
		return;
	engine = vma_engine_get_or_start();
	if (engine != NULL && bytes < engine->conf.rx_bytes_min)
		bytes = engine->conf.rx_bytes_min;
	atomic_store_explicit(&sock->rcvbuf, (uint32_t)bytes, memory_order_relaxed);
	udp_stats_describe(sock);
}

static void mirror_bound_device_option(struct udp_sock *sock, int fd)
{
	const uint32_t ifindex = (uint32_t)vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_BINDTOIFINDEX, 0);

	if (ifindex == sock->bound_ifindex)
		return;
	sock->bound_ifindex = ifindex;
	udp_flows_update(sock);
	udp_dst_rebuild_after_change(sock);
}

static void mirror_mark_option(struct udp_sock *sock, int fd)
{
	const uint32_t mark = (uint32_t)vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_MARK, 0);

	if (mark == sock->mark)
		return;
	sock->mark = mark;
	udp_flows_update(sock);
	udp_dst_rebuild_after_change(sock);
}

/* All ones of either width: no limit. */
static void mirror_pacing_rate_option(struct udp_sock *sock, int fd)
{
	uint64_t rate = UINT64_MAX;
	socklen_t len = sizeof(rate);

	if (vma_os.getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len) != 0)
		return;
	if (len == sizeof(uint32_t))
		rate = (uint32_t)rate == UINT32_MAX ? UINT64_MAX : (uint32_t)rate;
	udp_set_pacing_rate(sock, rate == UINT64_MAX ? 0 : rate);
}

/* The kernel does not tell a time that is negative from none. */
static void mirror_timeout_option(struct udp_sock *sock, int fd, int name, const void *value)
{
	const uint64_t ns = vma_sock_timeout_ns(fd, name, value);
	struct udp_fork_shared *fork_shared = udp_fork_shared(sock);

	atomic_store(name == SO_RCVTIMEO_OLD ? &sock->rcvtimeo_ns : &sock->sndtimeo_ns, ns);
	if (fork_shared != NULL)
		atomic_store(name == SO_RCVTIMEO_OLD ? &fork_shared->rcvtimeo_ns : &fork_shared->sndtimeo_ns, ns);
}

/* True: it is another one now. */
static bool update_bool_field(bool *field, bool value)
{
	const bool before = *field;

	*field = value;
	return before != value;
}

static void udp_mirror_socket_level_option(struct udp_sock *sock, int fd, int name, const void *value)
{
	switch (name) {
	case SO_RCVBUF:
	case SO_RCVBUFFORCE:
		set_rcvbuf(sock, vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_RCVBUF, 212992));
		break;
	case SO_RCVTIMEO_OLD:
	case SO_RCVTIMEO_NEW:
		mirror_timeout_option(sock, fd, SO_RCVTIMEO_OLD, value);
		break;
	case SO_SNDTIMEO_OLD:
	case SO_SNDTIMEO_NEW:
		mirror_timeout_option(sock, fd, SO_SNDTIMEO_OLD, value);
		break;
	case SO_TIMESTAMP_OLD:
	case SO_TIMESTAMPNS_OLD:
	case SO_TIMESTAMPING_OLD:
	case SO_TIMESTAMP_NEW:
	case SO_TIMESTAMPNS_NEW:
	case SO_TIMESTAMPING_NEW:
		mirror_timestamp_options(sock, fd);
		break;
	case SO_RXQ_OVFL:
		set_rx_opt(sock, UDP_RX_OPT_RXQ_OVFL, getsockopt_bool(fd, SOL_SOCKET, name));
		break;
	case SO_BINDTODEVICE:
	case SO_BINDTOIFINDEX:
		mirror_bound_device_option(sock, fd);
		break;
	case SO_REUSEADDR:
		sock->reuse_addr = getsockopt_bool(fd, SOL_SOCKET, name);
		break;
	case SO_REUSEPORT:
		if (update_bool_field(&sock->reuse_port, getsockopt_bool(fd, SOL_SOCKET, name)))
			udp_flows_update(sock);
		break;
	case SO_BROADCAST:
		if (update_bool_field(&sock->broadcast, getsockopt_bool(fd, SOL_SOCKET, name)))
			udp_dst_rebuild_after_change(sock);
		break;
	case SO_MARK:
		mirror_mark_option(sock, fd);
		break;
	case SO_MAX_PACING_RATE:
		mirror_pacing_rate_option(sock, fd);
		break;
	default:
		break;
	}
}

/* ---- IPPROTO_IP ---- */

static void sleep_after_multicast_join(struct vma_file *file)
{
	const struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_thread *self = vma_thread_self();
	struct timespec left;

	if (engine == NULL || engine->conf.wait_after_join_msec == 0)
		return;
	left.tv_sec = engine->conf.wait_after_join_msec / 1000;
	left.tv_nsec = engine->conf.wait_after_join_msec % 1000 * 1000000;
	vma_file_get(file);
	vma_leave(self);
	while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR)
		;
	vma_enter();
	vma_file_put(file);
}

static bool is_multicast_join_option(int name)
{
	return name == IP_ADD_MEMBERSHIP || name == IP_ADD_SOURCE_MEMBERSHIP || name == MCAST_JOIN_GROUP ||
	       name == MCAST_JOIN_SOURCE_GROUP;
}

/* Where the option's value has the group; -1: it is none of the memberships. */
static int group_offset_in_membership_option(int name)
{
	switch (name) {
	case IP_ADD_MEMBERSHIP:
	case IP_DROP_MEMBERSHIP:
	case IP_ADD_SOURCE_MEMBERSHIP:
	case IP_DROP_SOURCE_MEMBERSHIP:
	case IP_BLOCK_SOURCE:
	case IP_UNBLOCK_SOURCE:
	case IP_MSFILTER:
		return 0;
	case MCAST_JOIN_GROUP:
	case MCAST_LEAVE_GROUP:
		return offsetof(struct group_req, gr_group) + offsetof(struct sockaddr_in, sin_addr);
	case MCAST_JOIN_SOURCE_GROUP:
	case MCAST_LEAVE_SOURCE_GROUP:
	case MCAST_BLOCK_SOURCE:
	case MCAST_UNBLOCK_SOURCE:
		return offsetof(struct group_source_req, gsr_group) + offsetof(struct sockaddr_in, sin_addr);
	case MCAST_MSFILTER:
		return offsetof(struct group_filter, gf_group) + offsetof(struct sockaddr_in, sin_addr);
	default:
		return -1;
	}
}

/* Also after a refusal: some have joined before they fail. */
static void mirror_group_membership_option(struct udp_sock *sock, int fd, int name, const void *value, socklen_t len)
{
	int offset = group_offset_in_membership_option(name);
	uint32_t group;

	if (len < (socklen_t)offset + sizeof(group) ||
	    vma_memcpy_or_efault(&group, (const void *)((uintptr_t)value + (uintptr_t)offset), sizeof(group)) != 0 ||
	    !IN_MULTICAST(ntohl(group)))
		return;
	if (udp_reload_multicast_group_from_kernel(sock, fd, group) != 0)
		vma_log_once(VMA_LOG_ERROR, "no memory to note what a socket has joined");
	udp_flows_update(sock);
}

static uint32_t ifindex_of_local_address(uint32_t address)
{
	struct vma_net_addr addrs[64];
	struct vma_engine *engine = vma_engine_get_or_start();
	int n = engine != NULL && address != INADDR_ANY ? vma_net_addrs(engine->net, 0, addrs, 64) : 0;

	for (int i = 0; i < n && i < 64; i++) {
		if (addrs[i].family == AF_INET && memcmp(addrs[i].address, &address, 4) == 0)
			return addrs[i].ifindex;
	}
	return 0;
}

static void set_mc_interface(struct udp_sock *sock, uint32_t ifindex, struct in_addr source)
{
	if (sock->mc_ifindex == ifindex && sock->mc_source.s_addr == source.s_addr)
		return;
	sock->mc_ifindex = ifindex;
	sock->mc_source = source;
	udp_flows_update(sock);
	udp_dst_rebuild_after_change(sock);
}

/* The kernel has checked it; it tells the address only. The shorter forms begin alike. */
static void mirror_multicast_interface_option(struct udp_sock *sock, const void *value, socklen_t len)
{
	struct udp_fork_shared *fork_shared = udp_fork_shared(sock);
	struct ip_mreqn request = {0};
	uint32_t ifindex;

	if (len >= sizeof(struct ip_mreqn))
		len = sizeof(struct ip_mreqn);
	else if (len >= sizeof(struct ip_mreq))
		len = sizeof(struct ip_mreq);
	else
		len = sizeof(struct in_addr);
	if (vma_memcpy_or_efault(len == sizeof(struct in_addr) ? (void *)&request.imr_address : (void *)&request, value,
	                         len) != 0)
		return;
	ifindex = (uint32_t)request.imr_ifindex;
	if (ifindex == 0)
		ifindex = ifindex_of_local_address(request.imr_address.s_addr);
	if (fork_shared != NULL)
		atomic_store(&fork_shared->mc_ifindex, ifindex);
	set_mc_interface(sock, ifindex, request.imr_address);
}

static void mirror_multicast_all_option(struct udp_sock *sock, int fd)
{
	const bool all = vma_os_getsockopt_int_or(fd, IPPROTO_IP, IP_MULTICAST_ALL, 1) != 0;

	if (all != sock->mc_all && udp_set_ip_multicast_all(sock, all) == 0)
		udp_flows_update(sock);
}

static bool update_byte_field(uint8_t *field, int value)
{
	const uint8_t before = *field;

	*field = (uint8_t)value;
	return before != (uint8_t)value;
}

static bool update_pmtu_discover_field(struct udp_sock *sock, int value)
{
	const int before = sock->pmtu_discover;

	sock->pmtu_discover = value;
	return before != value;
}

/* Of IPv4 groups, too, an AF_INET6 socket's option is the one of IPv6 (the kernel's sk_mc_loop). */
static bool get_multicast_loop_from_kernel(const struct udp_sock *sock, int fd)
{
	if (sock->file.family == AF_INET6)
		return vma_os_getsockopt_int_or(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1) != 0;
	return vma_os_getsockopt_int_or(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1) != 0;
}

/* What each datagram's header gets. */
static void mirror_ip_header_option(struct udp_sock *sock, int fd, int name)
{
	const int value = vma_os_getsockopt_int_or(fd, IPPROTO_IP, name, 0);
	struct udp_fork_shared *fork_shared = udp_fork_shared(sock);
	bool changed;

	switch (name) {
	case IP_TTL:
		changed = update_byte_field(&sock->ttl, value);
		if (fork_shared != NULL)
			atomic_store(&fork_shared->ttl, (uint8_t)value);
		break;
	case IP_TOS:
		changed = update_byte_field(&sock->tos, value);
		break;
	case IP_MULTICAST_TTL:
		changed = update_byte_field(&sock->mc_ttl, value);
		break;
	case IP_MULTICAST_LOOP:
		changed = update_bool_field(&sock->mc_loop, get_multicast_loop_from_kernel(sock, fd));
		break;
	default:
		changed = update_pmtu_discover_field(sock, value);
		break;
	}
	if (changed)
		udp_dst_rebuild_after_change(sock);
}

static void mirror_ip_option(struct udp_sock *sock, int fd, int name, const void *value, socklen_t len)
{
	switch (name) {
	case IP_PKTINFO:
		set_rx_opt(sock, UDP_RX_OPT_PKTINFO, getsockopt_bool(fd, IPPROTO_IP, name));
		break;
	case IP_RECVTTL:
		set_rx_opt(sock, UDP_RX_OPT_RECVTTL, getsockopt_bool(fd, IPPROTO_IP, name));
		break;
	case IP_RECVTOS:
		set_rx_opt(sock, UDP_RX_OPT_RECVTOS, getsockopt_bool(fd, IPPROTO_IP, name));
		break;
	case IP_RECVORIGDSTADDR:
		set_rx_opt(sock, UDP_RX_OPT_ORIGDST, getsockopt_bool(fd, IPPROTO_IP, name));
		break;
	case IP_RECVERR:
		if (!sock->errors_watched && getsockopt_bool(fd, IPPROTO_IP, name))
			sock->errors_watched = vma_engine_watch_errors(fd, &sock->file) == 0;
		break;
	case IP_TTL:
	case IP_TOS:
	case IP_MULTICAST_TTL:
	case IP_MULTICAST_LOOP:
	case IP_MTU_DISCOVER:
		mirror_ip_header_option(sock, fd, name);
		break;
	case IP_MULTICAST_IF:
		mirror_multicast_interface_option(sock, value, len);
		break;
	case IP_MULTICAST_ALL:
		mirror_multicast_all_option(sock, fd);
		break;
	default:
		break;
	}
}

/* ---- IPPROTO_IPV6 ---- */

/* The others are about what is IPv6, which is the kernel's. */
static void mirror_ipv6_option(struct udp_sock *sock, int fd, int name)
{
	if (name == IPV6_RECVPKTINFO)
		set_rx_opt(sock, UDP_RX_OPT_PKTINFO6, getsockopt_bool(fd, IPPROTO_IPV6, name));
	if (name == IPV6_ADDRFORM)
		udp_follow_shared_changes(sock, fd);
	if (name == IPV6_ADDRFORM || name == IPV6_MULTICAST_LOOP)
		mirror_ip_header_option(sock, fd, IP_MULTICAST_LOOP);
}

/* ---- setsockopt ---- */

/* What the kernel has refused for want of a privilege, and is the library's alone: -EPERM: it is not. */
static int udp_set_option_kernel_refused_as_privileged(struct udp_sock *sock, int level, int name, const void *value,
                                                       socklen_t len)
{
	int number, rc = vma_inet_read_allowed_privileged_option(sock->engine, level, name, value, len, &number);

	if (rc < 0)
		return rc;
	if (name == SO_RCVBUFFORCE) {
		set_rcvbuf(sock, number > 0 ? number : 0);
	} else if (name == SO_MARK && (uint32_t)number != sock->mark) {
		sock->mark = (uint32_t)number;
		udp_flows_update(sock);
		udp_dst_rebuild_after_change(sock);
	}
	return 0; /* what is sent waits in no buffer of the socket's */
}

/* With these others may have the port, too: before the kernel lets them, the flows are asked for like anybody's. */
static void mark_port_shared_by_reuse_option(struct udp_sock *sock, int level, int name)
{
	if (level != SOL_SOCKET || sock->port_shared || !sock->port_chosen)
		return;
	if (name != SO_REUSEADDR && name != SO_REUSEPORT && name != SO_BINDTODEVICE && name != SO_BINDTOIFINDEX)
		return;
	sock->port_shared = true;
	udp_flows_update(sock);
}

/* The kernel knows none of them. SO_VMA_SHUTDOWN_RX: what comes from now on is the kernel's. */
static int udp_set_socketxtreme_option(struct udp_sock *sock, const struct kernel_option *option, int name,
                                       const void *value, socklen_t len)
{
	if (name != SO_VMA_SHUTDOWN_RX)
		return vma_xtreme_setsockopt(sock->xtreme, name, value, len);
	udp_lock_and_apply_changes_of_forked(sock);
	udp_set_kernel_only_option_bit(sock, option->bit, true);
	udp_tell_forked_of_change_and_unlock(sock);
	return 0;
}

static int set_ring_option(struct udp_sock *sock, int name, const void *value, socklen_t len)
{
	int rc;

	pthread_mutex_lock(&sock->file.lock);
	rc = vma_inet_set_ring_option(&sock->file, name, value, len,
	                              udp_ring_ctxs(&sock->file, NULL, 0) != 0 ||
	                                      atomic_load(&sock->ring_ctxs) != NULL);
	pthread_mutex_unlock(&sock->file.lock);
	return rc;
}

int udp_getsockopt(struct vma_file *file, int fd, int level, int name, void *value, socklen_t *len)
{
	const struct udp_sock *sock = udp_sock(file);

	if (vma_inet_is_ring_option(level, name))
		return vma_inet_get_ring_option(file, name, value, len);
	if (sock->xtreme != NULL && vma_xtreme_is_option(level, name))
		return vma_xtreme_getsockopt(sock->xtreme, name, value, len);
	return vma_os.getsockopt(fd, level, name, value, len) != 0 ? -errno : 0;
}

int udp_setsockopt(struct vma_file *file, int fd, int level, int name, const void *value, socklen_t len)
{
	const struct kernel_option *option = find_kernel_only_option(level, name);
	struct udp_sock *sock = udp_sock(file);
	bool membership = level == IPPROTO_IP && group_offset_in_membership_option(name) >= 0;
	int rc;

	if (vma_inet_is_ring_option(level, name))
		return set_ring_option(sock, name, value, len);
	if (sock->xtreme != NULL && vma_xtreme_is_option(level, name))
		return udp_set_socketxtreme_option(sock, option, name, value, len);
	rc = option != NULL ? udp_check_kernel_only_option_is_allowed(option, value, len) : 0;
	if (rc < 0)
		return rc;
	udp_lock_and_apply_changes_of_forked(sock);
	mark_port_shared_by_reuse_option(sock, level, name);
	if (vma_os.setsockopt(fd, level, name, value, len) != 0)
		rc = -errno;
	if (rc == -EPERM && !membership && option == NULL &&
	    udp_set_option_kernel_refused_as_privileged(sock, level, name, value, len) == 0)
		rc = 0;
	else if (membership)
		mirror_group_membership_option(sock, fd, name, value, len);
	else if (rc == 0 && option != NULL)
		udp_set_kernel_only_option_bit(sock, option->bit,
		                               vma_inet_option_is_set(fd, level, name, option->enabled_by));
	else if (rc == 0 && level == SOL_SOCKET)
		udp_mirror_socket_level_option(sock, fd, name, value);
	else if (rc == 0 && level == IPPROTO_IP)
		mirror_ip_option(sock, fd, name, value, len);
	else if (rc == 0 && level == IPPROTO_IPV6)
		mirror_ipv6_option(sock, fd, name);
	udp_tell_forked_of_change_and_unlock(sock);
	if (rc == 0 && membership && is_multicast_join_option(name))
		sleep_after_multicast_join(file);
	return rc;
}

/* ---- what other processes have set ---- */

static void udp_apply_ttl_of_forked(struct udp_sock *sock, const struct udp_fork_shared *fork_shared)
{
	if (update_byte_field(&sock->ttl, atomic_load(&fork_shared->ttl)))
		udp_dst_rebuild_after_change(sock);
}

static void udp_apply_mcast_interface_of_forked(struct udp_sock *sock, int fd,
                                                const struct udp_fork_shared *fork_shared)
{
	struct in_addr source = sock->mc_source;
	socklen_t len = sizeof(source);

	vma_os.getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &source, &len);
	set_mc_interface(sock, atomic_load(&fork_shared->mc_ifindex), source);
}

/* Those that are known here; what others have joined comes by the kernel. */
static void udp_reread_memberships_from_kernel(struct udp_sock *sock, int fd)
{
	const struct udp_groups *groups = atomic_load_explicit(&sock->groups, memory_order_relaxed);

	for (uint32_t i = 0; groups != NULL && i < groups->n; i++)
		udp_reload_multicast_group_from_kernel(sock, fd, groups->at[i].group);
	if (groups != NULL)
		udp_flows_update(sock);
}

/* Most of these change nothing, and then cost nothing but the question. */
void udp_reread_all_options_from_kernel(struct udp_sock *sock, int fd, const struct udp_fork_shared *fork_shared)
{
	static const int socket_names[] = {SO_RCVBUF,    SO_TIMESTAMP_OLD, SO_RXQ_OVFL, SO_BINDTOIFINDEX,  SO_REUSEADDR,
	                                   SO_REUSEPORT, SO_BROADCAST,     SO_MARK,     SO_MAX_PACING_RATE};
	static const int ip_names[] = {IP_PKTINFO,      IP_RECVTTL,      IP_RECVTOS,       IP_RECVORIGDSTADDR,
	                               IP_RECVERR,      IP_TOS,          IP_MULTICAST_TTL, IP_MULTICAST_LOOP,
	                               IP_MTU_DISCOVER, IP_MULTICAST_ALL};
	const int flags = vma_os.fcntl(fd, F_GETFL, NULL);

	if (flags >= 0) {
		atomic_store(&sock->nonblocking, (flags & O_NONBLOCK) != 0);
		vma_inet_stats_set_nonblocking(sock->stats, (flags & O_NONBLOCK) != 0);
	}
	atomic_store(&sock->rcvtimeo_ns, atomic_load(&fork_shared->rcvtimeo_ns));
	atomic_store(&sock->sndtimeo_ns, atomic_load(&fork_shared->sndtimeo_ns));
	for (unsigned i = 0; i < sizeof(socket_names) / sizeof(socket_names[0]); i++)
		udp_mirror_socket_level_option(sock, fd, socket_names[i], NULL);
	for (unsigned i = 0; i < sizeof(ip_names) / sizeof(ip_names[0]); i++)
		mirror_ip_option(sock, fd, ip_names[i], NULL, 0);
	if (sock->file.family == AF_INET6)
		mirror_ipv6_option(sock, fd, IPV6_RECVPKTINFO);
	udp_apply_ttl_of_forked(sock, fork_shared);
	udp_apply_mcast_interface_of_forked(sock, fd, fork_shared);
	udp_reread_memberships_from_kernel(sock, fd);
	udp_set_kernel_only_options(sock, atomic_load(&fork_shared->os_options));
}

/* ---- new sockets ---- */

void udp_options_init(struct udp_sock *sock, int fd)
{
	const struct vma_engine *engine = vma_engine_get_or_start();
	const bool is_ipv6 = sock->file.family == AF_INET6;
	const int off = 0;

	set_rcvbuf(sock, udp_default_rcvbuf(fd));
	sock->pmtu_discover = udp_default_pmtu_discover(fd);
	if (engine != NULL && !engine->conf.tx_mc_loopback &&
	    vma_os.setsockopt(fd, is_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP,
	                      is_ipv6 ? IPV6_MULTICAST_LOOP : IP_MULTICAST_LOOP, &off, sizeof(off)) == 0)
		sock->mc_loop = false;
	if (!udp_default_mc_all(fd, sock->file.family))
		udp_set_ip_multicast_all(sock, false);
}
