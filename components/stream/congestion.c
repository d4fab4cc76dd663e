/*
 * congestion.c - TCP_CONGESTION: whose algorithm it is.
 *
 * The shadow is told the name and keeps it, as for other options. It cannot know an algorithm that is ours alone (the
 * environment's choice, or one that this kernel was built without). Then own_congestion is set, and the name is that of
 * the options. An algorithm of the kernel's alone keeps a socket that is not connected yet with the kernel.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

#include <vma/log.h>

#include "settings.h"
#include "stream_priv.h"

static void congestion_set(struct stream_sock *sock, int algorithm, bool own)
{
	sock->own_congestion = own;
	stream_set_tcp_option(sock, VMA_TCP_OPT_CONGESTION, algorithm);
	stream_set_congestion_is_kernel_only(sock, false);
}

/* The shadow has taken it. */
static void congestion_read_from_shadow(struct stream_sock *sock, int fd)
{
	char name[16];
	int ours;

	if (!get_congestion_name_of_kernel_socket(fd, name))
		return;
	ours = vma_tcp_cc_by_name(name);
	if (ours >= 0) {
		congestion_set(sock, ours, false);
		return;
	}
	vma_log_once(VMA_LOG_INFO, "TCP_CONGESTION %s is the kernel's only", name);
	sock->own_congestion = false;
	stream_set_congestion_is_kernel_only(sock, true);
}

/*
 * What was asked for by the name that it has, and not by another that the parameter knows as well; -ENOENT. "none" is
 * not for a program to choose, as no kernel has it: only for an environment that knows its network.
 */
static int find_cc_by_exact_name(const struct vma_conf *conf, const void *value, socklen_t len)
{
	bool may_none = conf->given[VMA_CONF_AT_tcp_cc_algo] && conf->tcp_cc_algo == VMA_TCP_CC_NONE;
	char name[16] = "";
	int algorithm;

	if (vma_memcpy_or_efault(name, value, len < sizeof(name) ? len : sizeof(name) - 1) != 0)
		return -EFAULT;
	algorithm = vma_tcp_cc_by_name(name);
	if (algorithm < 0 || strcmp(name, vma_tcp_cc_name(algorithm)) != 0)
		return -ENOENT;
	return algorithm != VMA_TCP_CC_NONE || may_none ? algorithm : -ENOENT;
}

static bool shadow_cc_is_unknown_to_library(int fd)
{
	char name[16];

	return get_congestion_name_of_kernel_socket(fd, name) && vma_tcp_cc_by_name(name) < 0;
}

int stream_congestion_set(struct stream_sock *sock, int fd, const void *value, socklen_t len)
{
	char before[16];
	const bool knows_before = get_congestion_name_of_kernel_socket(fd, before);
	int rc = vma_os.setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, value, len) == 0 ? 0 : -errno, algorithm;

	if (rc == 0 && shadow_cc_is_unknown_to_library(fd)) {
		rc = vma_engine_apply_offload_failure_policy(
		        ENOENT, "a TCP socket with a TCP_CONGESTION that is the kernel's only");
		if (rc < 0) {
			if (knows_before)
				vma_os.setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, before, (socklen_t)strlen(before));
			return rc;
		}
	}
	if (rc == 0) {
		congestion_read_from_shadow(sock, fd);
	} else if (rc == -ENOENT) {
		algorithm = find_cc_by_exact_name(&sock->engine->conf, value, len);
		if (algorithm < 0)
			return algorithm;
		congestion_set(sock, algorithm, true);
		rc = 0;
	}
	return rc;
}

const char *stream_congestion_name(const struct stream_sock *sock)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	if (conn != NULL)
		return vma_tcp_cc_name(vma_tcp_get_option(conn, VMA_TCP_OPT_CONGESTION));
	return sock->own_congestion ? vma_tcp_cc_name(sock->options.congestion) : NULL;
}
