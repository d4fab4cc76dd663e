/*
 * members - a group's flow is several processes' at a time: the card gives each a copy, as the kernel would.
 *
 * But a kernel socket that receives the group gets nothing once some process has a rule. So each process looks for such
 * sockets (conflicts.c), and finds the other processes' shadows among them, too. A shadow whose socket has its packets
 * by a rule is known by a name: an abstract one that says flow and cookie, to which its process binds a socket before
 * it makes the rule. The name ends with the flow or the process. What it says is believed only of the user who has the
 * shadow, and of root.
 *
 * The kernel lists the names (sock_diag(7), "UNIX domain sockets"); nobody is asked, and nobody can be kept waiting.
 */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include <vma/log.h>

#include "../kernel_sock.h"
#include "../os.h"
#include "verbs.h"

#define PREFIX "vma/verbs/member/"

size_t verbs_member_name(const struct nic_verbs *nic, const struct vma_flow_key *key, uint64_t cookie,
                         char name[VERBS_MEMBER_NAME_BYTES])
{
	return (size_t)snprintf(name, VERBS_MEMBER_NAME_BYTES,
	                        PREFIX "%u/%u/%02x%02x%02x%02x/%04x/%02x%02x%02x%02x/%04x/%llx", nic->base.info.ifindex,
	                        key->vlan, key->local[0], key->local[1], key->local[2], key->local[3],
	                        key->local_port_be, key->peer[0], key->peer[1], key->peer[2], key->peer[3],
	                        key->peer_port_be, (unsigned long long)cookie);
}

/* ---- names of this process ---- */

static int member_bind_name(const struct nic_verbs *nic, const struct vma_flow_key *key, uint64_t cookie)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int fd = nic_fd_move_high(os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	size_t len;

	_Static_assert(sizeof(address.sun_path) > VERBS_MEMBER_NAME_BYTES, "a zero before it");
	if (fd < 0)
		return -errno;
	len = verbs_member_name(nic, key, cookie, address.sun_path + 1);
	/* Nobody has anything to say here, and no bytes are kept. */
	if (os_bind(fd, (const struct sockaddr *)&address,
	            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)) == 0 &&
	    os_shutdown(fd, SHUT_RD) == 0)
		return fd;
	nic_fd_close(fd);
	return -EADDRINUSE;
}

static void member_end(struct verbs_members *members, unsigned i)
{
	nic_fd_close(members->at[i].fd);
	members->at[i] = members->at[--members->n];
}

static bool members_have(const struct verbs_members *members, uint64_t cookie)
{
	for (unsigned i = 0; i < members->n; i++)
		if (members->at[i].cookie == cookie)
			return true;
	return false;
}

/* No event tells that a shadow was closed. Where there are many, each new one would cost a walk over all of them. */
static void members_end_of_closed_shadows(struct verbs_flow *flow)
{
	struct verbs_members *members = flow->members;

	if (flow->shadows.n <= 4 * VERBS_MEMBERS_MAX)
		nic_cookies_prune(&flow->shadows, &flow->rule.key, &flow->qp->nic->diag_fd);
	for (unsigned i = members->n; i-- > 0;)
		if (!nic_cookies_has(&flow->shadows, members->at[i].cookie))
			member_end(members, i);
}

/* 0 or -errno. */
static int member_add(struct verbs_flow *flow, uint64_t cookie)
{
	struct verbs_members *members = flow->members;
	int fd;

	if (members->n == VERBS_MEMBERS_MAX)
		return -ENOSPC;
	fd = member_bind_name(flow->qp->nic, &flow->rule.key, cookie);
	if (fd < 0)
		return fd;
	members->at[members->n++] = (struct verbs_member){.cookie = cookie, .fd = fd};
	return 0;
}

void verbs_members_name_all(struct verbs_flow *flow)
{
	int rc = 0;

	if (!verbs_flow_is_shared(&flow->rule) || flow->rule.flags & VMA_FLOW_PORT_EXCLUSIVE)
		return;
	if (flow->members == NULL)
		flow->members = calloc(1, sizeof(*flow->members));
	if (flow->members == NULL)
		return;
	if (flow->members->n == VERBS_MEMBERS_MAX)
		members_end_of_closed_shadows(flow);
	for (uint32_t i = 0; i < flow->shadows.n && rc == 0; i++)
		if (!members_have(flow->members, flow->shadows.list[i]))
			rc = member_add(flow, flow->shadows.list[i]);
	if (rc < 0) /* other processes leave the group to the kernel */
		vma_log_debug("%s: a member of a group has no name: error %d", flow->qp->nic->name, -rc);
}

void verbs_members_end(struct verbs_flow *flow)
{
	while (flow->members != NULL && flow->members->n > 0)
		member_end(flow->members, flow->members->n - 1);
	free(flow->members);
	flow->members = NULL;
}

void verbs_members_close_in_child(const struct verbs_flow *flow)
{
	for (unsigned i = 0; flow->members != NULL && i < flow->members->n; i++)
		os_close(flow->members->at[i].fd);
}

/* ---- names of others ---- */

struct name_request {
	struct nlmsghdr head;
	struct unix_diag_req diag;
};

bool verbs_member_candidates_add(struct verbs_member_candidates *candidates, const struct nic_verbs *nic,
                                 const struct vma_flow_key *key, const struct kernel_sock *socket)
{
	struct verbs_member_candidate *at = candidates->at;

	if (candidates->n == candidates->capacity) {
		const unsigned capacity = candidates->capacity != 0 ? 2 * candidates->capacity : 16;

		at = realloc(at, capacity * sizeof(*at));
		if (at == NULL)
			return false;
		candidates->at = at;
		candidates->capacity = capacity;
	}
	at += candidates->n++;
	*at = (struct verbs_member_candidate){.key = *key, .socket = *socket};
	verbs_member_name(nic, key, socket->cookie, at->name);
	return true;
}

void verbs_member_candidates_fini(struct verbs_member_candidates *candidates)
{
	free(candidates->at);
	*candidates = (struct verbs_member_candidates){.n = 0};
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const struct verbs_member_candidate *)a)->name,
	              ((const struct verbs_member_candidate *)b)->name);
}

static void candidates_mark_named(struct verbs_member_candidates *candidates, const char *name, size_t bytes,
                                  uint32_t uid)
{
	struct verbs_member_candidate seen = {.is_named = true}, *candidate;

	if (bytes >= sizeof(seen.name))
		return;
	memcpy(seen.name, name, bytes);
	candidate = bsearch(&seen, candidates->at, candidates->n, sizeof(seen), compare_names);
	if (candidate != NULL && (uid == 0 || uid == candidate->socket.uid))
		candidate->is_named = true;
}

static void candidates_check_unix_socket(struct verbs_member_candidates *candidates, const struct nlmsghdr *head)
{
	const struct unix_diag_msg *msg = NLMSG_DATA(head);
	int left = (int)head->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*msg));
	const char *name = NULL;
	size_t name_bytes = 0;
	bool has_uid = false;
	uint32_t uid = 0;

	if (left < 0)
		return;
	for (const struct rtattr *attr = (const struct rtattr *)(msg + 1); RTA_OK(attr, left);
	     attr = RTA_NEXT(attr, left)) {
		if (attr->rta_type == UNIX_DIAG_NAME) {
			name = RTA_DATA(attr);
			name_bytes = RTA_PAYLOAD(attr);
		} else if (attr->rta_type == UNIX_DIAG_UID && RTA_PAYLOAD(attr) >= sizeof(uid)) {
			memcpy(&uid, RTA_DATA(attr), sizeof(uid));
			has_uid = true;
		}
	}
	if (has_uid && name_bytes > sizeof(PREFIX) && memcmp(name, "\0" PREFIX, sizeof(PREFIX)) == 0)
		candidates_mark_named(candidates, name + 1, name_bytes - 1, uid);
}

/* 1: more to come; 0: the end; -errno. */
static int candidates_receive_names(struct verbs_member_candidates *candidates, int fd)
{
	_Alignas(struct nlmsghdr) char buffer[16384];
	ssize_t n;
	int left;

	do
		n = os_recv(fd, buffer, sizeof(buffer), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	left = (int)n;
	for (const struct nlmsghdr *head = (const void *)buffer; left > 0 && NLMSG_OK(head, (uint32_t)left);
	     head = NLMSG_NEXT(head, left)) {
		if (head->nlmsg_type == NLMSG_DONE)
			return 0;
		if (head->nlmsg_type == NLMSG_ERROR)
			return -EPROTO;
		if (head->nlmsg_type == SOCK_DIAG_BY_FAMILY)
			candidates_check_unix_socket(candidates, head);
	}
	return 1;
}

void verbs_members_find_named(struct verbs_member_candidates *candidates)
{
	const struct name_request request = {
	        .head = {.nlmsg_len = sizeof(request),
	                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
	                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
	                 .nlmsg_seq = 1},
	        .diag = {.sdiag_family = AF_UNIX, .udiag_states = ~0U, .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID},
	};
	int fd, rc = 1;

	if (candidates->n == 0)
		return;
	qsort(candidates->at, candidates->n, sizeof(*candidates->at), compare_names);
	fd = kernel_sock_open_diag();
	if (fd < 0)
		return;
	if (os_send(fd, &request, sizeof(request), 0) < 0)
		rc = -errno;
	while (rc > 0)
		rc = candidates_receive_names(candidates, fd);
	if (rc < 0)
		vma_log_debug("the kernel's Unix sockets cannot be listed: error %d", -rc);
	nic_fd_close(fd);
}
