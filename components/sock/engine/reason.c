/*
 * reason.c - whether a socket is offloaded, and why not: for the program that asks, and in the log.
 *
 * Both get the same sentence, with the program, the port and a remedy. The log has it once for each port that is
 * served. For sockets that connect, or have a port that the kernel chose, it has it once for each reason. If a socket
 * only talks to this host, that is no cause for complaint: it is logged at DETAILS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/net.h>
#include <vma/sock_engine.h>

#include "engine.h"

static const char *const reason_texts[] = {
#define X(name, text) [VMA_SOCK_##name] = text,
        VMA_SOCK_REASONS(X)
#undef X
};

/* What the administrator can do about it; NULL: the reason says it all. */
static const char *const remedies[] = {
        [VMA_SOCK_DISABLED] = "VMA_OFFLOADED_SOCKETS=1 switches it on",
        [VMA_SOCK_IPV6] = "its IPv4 peers are, if it is bound to :: without IPV6_V6ONLY, or to 0.0.0.0",
        [VMA_SOCK_PORT_SHARED] = "\"ss -anp\" names the others",
        [VMA_SOCK_HANDS_OVER] = "a server that answers in the process that accepts can be",
};

const char *vma_sock_reason_text(enum vma_sock_reason reason)
{
	return (size_t)reason < sizeof(reason_texts) / sizeof(reason_texts[0]) ? reason_texts[reason] : "unknown";
}

static const char *remedy_text_of_offload_reason(enum vma_sock_reason reason)
{
	return (size_t)reason < sizeof(remedies) / sizeof(remedies[0]) ? remedies[reason] : NULL;
}

enum vma_sock_reason vma_sock_reason_of_errno(int error)
{
	switch (-error) {
	case 0:
		return VMA_SOCK_OFFLOADED;
	case EADDRINUSE:
		return VMA_SOCK_PORT_SHARED;
	case ENOMEM:
	case ENOSPC:
	case EMFILE:
	case ENFILE:
		return VMA_SOCK_NO_MEMORY;
	default:
		return VMA_SOCK_NO_DEVICE;
	}
}

static enum vma_sock_reason offload_reason_of_file(struct vma_file *file)
{
	return file != NULL && file->ops->reason != NULL ? file->ops->reason(file) : VMA_SOCK_TYPE;
}

/* There is nothing yet, or for good, that somebody could wonder about. */
static bool offload_reason_needs_no_log(enum vma_sock_reason reason)
{
	return reason == VMA_SOCK_OFFLOADED || reason == VMA_SOCK_NEW || reason == VMA_SOCK_DEFERRED ||
	       reason == VMA_SOCK_INHERITED || reason == VMA_SOCK_TYPE;
}

/* ---- names, as the kernel has them ---- */

union name {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

static bool getsockname_or_getpeername(long call, int fd, union name *name)
{
	socklen_t len = sizeof(*name);

	memset(name, 0, sizeof(*name));
	return syscall(call, fd, name, &len) == 0 &&
	       (name->any.sa_family == AF_INET || name->any.sa_family == AF_INET6);
}

static uint16_t sockaddr_port_in_host_order(const union name *name)
{
	return ntohs(name->any.sa_family == AF_INET ? name->in.sin_port : name->in6.sin6_port);
}

/* The IPv4 address that it is or maps; false: there is none. */
static bool sockaddr_get_ipv4_or_mapped(const union name *name, uint32_t *ip4)
{
	if (name->any.sa_family == AF_INET)
		*ip4 = name->in.sin_addr.s_addr;
	else if (IN6_IS_ADDR_V4MAPPED(&name->in6.sin6_addr))
		memcpy(ip4, name->in6.sin6_addr.s6_addr + 12, 4);
	else
		return false;
	return true;
}

static bool name_is_loopback(const union name *name)
{
	uint32_t ip4;

	return sockaddr_get_ipv4_or_mapped(name, &ip4) ? ntohl(ip4) >> 24 == 127
	                                               : IN6_IS_ADDR_LOOPBACK(&name->in6.sin6_addr);
}

static void address_text(const union name *name, char text[INET6_ADDRSTRLEN])
{
	const void *bytes = name->any.sa_family == AF_INET ? (const void *)&name->in.sin_addr : &name->in6.sin6_addr;

	inet_ntop(name->any.sa_family, bytes, text, INET6_ADDRSTRLEN);
}

/* The interface that has the address. */
static bool interface_of_local_address(const union name *name, struct vma_net_link *link)
{
	const struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_net_addr addrs[64];
	uint32_t ip4;
	int n;

	if (engine == NULL || !sockaddr_get_ipv4_or_mapped(name, &ip4) || ip4 == INADDR_ANY)
		return false;
	n = vma_net_addrs(engine->net, 0, addrs, 64);
	for (int i = 0; i < n && i < 64; i++) {
		if (addrs[i].family == AF_INET && memcmp(addrs[i].address, &ip4, 4) == 0)
			return vma_net_get_link(engine->net, addrs[i].ifindex, link) == 0;
	}
	return false;
}

/* ---- the sentence ---- */

struct reason_message {
	char socket[128]; /* "TCP port 80, bound to ::," */
	char detail[272]; /* " (eth0)", or nothing */
	bool is_local;    /* the socket talks to this host */
	uint16_t served;  /* port that somebody chose; 0: none */
};

enum { PORTS_OF_CLIENTS = 32768 }; /* up to 60999: the kernel's choice, where nobody has changed that */

static bool sock_protocol_is_tcp(const struct vma_file *file, int fd)
{
	int protocol = 0;
	socklen_t len = sizeof(protocol);

	if (file->kind == VMA_FILE_EXEC && syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0)
		return protocol == IPPROTO_TCP;
	return file->kind == VMA_FILE_TCP;
}

static void describe_socket(struct reason_message *out, struct vma_file *file, int fd)
{
	const char *kind = sock_protocol_is_tcp(file, fd) ? "TCP" : "UDP";
	union name local, peer;
	char text[INET6_ADDRSTRLEN];
	struct vma_net_link link;

	out->detail[0] = '\0';
	out->is_local = false;
	out->served = 0;
	if (!getsockname_or_getpeername(SYS_getsockname, fd, &local) || sockaddr_port_in_host_order(&local) == 0) {
		snprintf(out->socket, sizeof(out->socket), "a %s socket", kind);
		return;
	}
	out->is_local = name_is_loopback(&local);
	if (interface_of_local_address(&local, &link))
		snprintf(out->detail, sizeof(out->detail), " (%s)", link.name);
	if (getsockname_or_getpeername(SYS_getpeername, fd, &peer)) {
		out->is_local |= name_is_loopback(&peer);
		address_text(&peer, text);
		snprintf(out->socket, sizeof(out->socket), "%s from port %u to %s port %u", kind,
		         sockaddr_port_in_host_order(&local), text, sockaddr_port_in_host_order(&peer));
		return;
	}
	address_text(&local, text);
	out->served = sockaddr_port_in_host_order(&local) < PORTS_OF_CLIENTS ? sockaddr_port_in_host_order(&local) : 0;
	snprintf(out->socket, sizeof(out->socket), "%s port %u, bound to %s,", kind,
	         sockaddr_port_in_host_order(&local), text);
}

/* Servers that listen on 0.0.0.0 as well set it: there is nothing to be done about those. */
static bool sock_fd_is_ipv6_only(int fd)
{
	int value = 0;
	socklen_t len = sizeof(value);

	return syscall(SYS_getsockopt, fd, IPPROTO_IPV6, IPV6_V6ONLY, &value, &len) == 0 && value != 0;
}

static void describe_reason(struct reason_message *out, struct vma_file *file, int fd, enum vma_sock_reason reason)
{
	const char *detail;

	describe_socket(out, file, fd);
	if (reason == VMA_SOCK_OPTION) {
		detail = file->ops->reason_detail != NULL ? file->ops->reason_detail(file) : NULL;
		out->detail[0] = '\0';
		if (detail != NULL)
			snprintf(out->detail, sizeof(out->detail), " (%s)", detail);
	} else if (reason == VMA_SOCK_RULE) {
		snprintf(out->detail, sizeof(out->detail), " (%s)",
		         engine_name_of_rule(atomic_load_explicit(&file->rule_line, memory_order_relaxed)));
	} else if (reason == VMA_SOCK_IPV6) {
		snprintf(out->detail, sizeof(out->detail), "%s",
		         sock_fd_is_ipv6_only(fd) ? " (IPV6_V6ONLY is set)" : "");
	} else if (reason != VMA_SOCK_NO_DEVICE) {
		out->detail[0] = '\0';
	}
}

#define REASON_FORMAT "%s: %s is the kernel's: %s%s%s%s"
#define REASON_FORMAT_ARGS(reason_message, reason)                                                                     \
	program_invocation_short_name, (reason_message)->socket, vma_sock_reason_text(reason),                         \
	        (reason_message)->detail, remedy_text_of_offload_reason(reason) != NULL ? "; " : "",                   \
	        remedy_text_of_offload_reason(reason) != NULL ? remedy_text_of_offload_reason(reason) : ""

int vma_sock_get_offload_reason(int fd, const char **text)
{
	static _Thread_local char answer[512];
	enum vma_sock_reason reason;
	struct reason_message reason_message;
	struct vma_thread *self;
	struct vma_file *file;

	if (vma_fd_lookup(fd) == NULL && syscall(SYS_fcntl, fd, F_GETFD) < 0)
		return -EBADF;
	self = vma_enter();
	file = vma_fd_lookup(fd);
	reason = offload_reason_of_file(file);
	if (text != NULL && reason == VMA_SOCK_OFFLOADED && atomic_load(&file->rule_line) != 0) {
		snprintf(answer, sizeof(answer), "%s; the kernel sends what it sends to names of a rule (%s)",
		         vma_sock_reason_text(reason), engine_name_of_rule(atomic_load(&file->rule_line)));
		*text = answer;
	} else if (text != NULL && offload_reason_needs_no_log(reason)) {
		*text = vma_sock_reason_text(reason);
	} else if (text != NULL) {
		describe_reason(&reason_message, file, fd, reason);
		snprintf(answer, sizeof(answer), REASON_FORMAT, REASON_FORMAT_ARGS(&reason_message, reason));
		*text = answer;
	}
	vma_leave(self);
	return reason == VMA_SOCK_OFFLOADED;
}

/* ---- the log ---- */

/* Of sockets without a port that is served: each reason once for each protocol, without a question to the kernel. */
static bool reason_was_logged_or_mark_logged(const struct vma_file *file, enum vma_sock_reason reason, bool tells_now)
{
	static _Atomic uint64_t told[2];
	_Atomic uint64_t *of = &told[file->kind == VMA_FILE_TCP];
	const uint64_t bit = UINT64_C(1) << reason;

	if (reason == VMA_SOCK_RULE) /* each rule is a reason of its own */
		return engine_rule_was_logged_or_mark_logged(
		        file->kind == VMA_FILE_TCP ? ENGINE_RULES_TCP : ENGINE_RULES_UDP,
		        atomic_load_explicit(&file->rule_line, memory_order_relaxed), tells_now);
	if (tells_now)
		return (atomic_fetch_or_explicit(of, bit, memory_order_relaxed) & bit) != 0;
	return (atomic_load_explicit(of, memory_order_relaxed) & bit) != 0;
}
_Static_assert(sizeof(reason_texts) / sizeof(reason_texts[0]) <= 64, "a bit each");

static void log_why_socket_is_not_offloaded(struct vma_file *file, int fd, enum vma_sock_reason reason, bool serves)
{
	enum vma_log_level level = VMA_LOG_INFO;
	struct reason_message reason_message;

	if (!serves && reason_was_logged_or_mark_logged(file, reason, false))
		return;
	describe_reason(&reason_message, file, fd, reason);
	if (reason_message.is_local || reason == VMA_SOCK_LOCAL)
		level = VMA_LOG_DETAILS;
	else if (reason_message.served == 0 && reason_was_logged_or_mark_logged(file, reason, true))
		return;
	if (vma_log_level_is_enabled(level))
		vma_log_once(level, REASON_FORMAT, REASON_FORMAT_ARGS(&reason_message, reason));
}

void sock_log_why_not_offloaded_inside(int fd, bool serves)
{
	struct vma_file *file = vma_fd_lookup(fd);
	enum vma_sock_reason reason;

	if (file == NULL || (file->kind != VMA_FILE_UDP && file->kind != VMA_FILE_TCP && file->kind != VMA_FILE_EXEC))
		return;
	reason = offload_reason_of_file(file);
	if (!offload_reason_needs_no_log(reason) &&
	    (reason != VMA_SOCK_LOCAL || vma_log_level_is_enabled(VMA_LOG_DETAILS)))
		log_why_socket_is_not_offloaded(file, fd, reason, serves);
}

void vma_sock_log_why_not_offloaded(int fd, bool serves)
{
	const int saved = errno;
	struct vma_thread *self;

	if (!vma_log_level_is_enabled(VMA_LOG_INFO))
		return;
	self = vma_enter();
	sock_log_why_not_offloaded_inside(fd, serves);
	vma_leave(self);
	errno = saved;
}
