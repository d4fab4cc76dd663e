/*
 * claims - a flow from any peer, and one of UDP whose port others may share, is one process's at a time.
 *
 * A card takes the same rule from two processes, and gives each packet to both. Two workers of a TCP service would both
 * answer a SYN. Two sockets of UDP that are connected to the same peer would both receive its datagrams. So a process
 * binds a datagram socket to an abstract name that says interface, addresses and ports. A process that finds the name
 * taken is refused, and sends a byte there. The holder's nic then gives its flow up, too: if two want it, it is the
 * kernel's, which knows how to share it.
 *
 * Both will ask again, now and then. So the holder keeps the name for a contest: it is refused its own flow as well,
 * until CONTEST_MS have passed since the last byte. If the other has gone by then, the holder may have its flow again.
 *
 * The name belongs to the network namespace, and ends with its process. Only root's processes and those of the holder's
 * user may make it give up.
 *
 * A connection of TCP needs no name if it was accepted: its listener had one. A port that was chosen here is the
 * shadow's of one process (../../stream/port.c). From a port that the program has chosen two processes may ask for the
 * same connection, by SO_REUSEADDR or SO_REUSEPORT. Then it has a name, and is the first one's, as with the kernel:
 * nothing is sent to the holder, and it listens to nobody. So has all TCP of an address: others do without it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "../os.h"
#include "verbs.h"

#define CONTEST_MS 3000   /* a socket asks again every second */
#define CONTESTS_MAX 1024 /* each keeps a descriptor */
#define BYTES_A_LOOK 16   /* any process of the host may send some, and the nic's lock is held */

static socklen_t claim_socket_address(const struct nic_verbs *nic, const struct vma_flow_key *key,
                                      struct sockaddr_un *name)
{
	int len;

	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	len = snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1,
	               "vma/verbs/%u/%u/%u/%02x%02x%02x%02x/%04x/%02x%02x%02x%02x/%04x", nic->base.info.ifindex,
	               key->proto, key->vlan, key->local[0], key->local[1], key->local[2], key->local[3],
	               key->local_port_be, key->peer[0], key->peer[1], key->peer[2], key->peer[3], key->peer_port_be);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

static bool claim_is_the_first_ones(const struct vma_flow_key *key)
{
	return key->proto == VMA_FLOW_TCP_ADDRESS || (key->proto == IPPROTO_TCP && key->peer_port_be != 0);
}

int verbs_claim_flow_address(const struct nic_verbs *nic, const struct vma_flow_key *key)
{
	const bool is_for_good = claim_is_the_first_ones(key);
	struct epoll_event event = {.events = EPOLLIN};
	struct sockaddr_un name;
	const socklen_t len = claim_socket_address(nic, key, &name);
	int fd = nic_fd_move_high(os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), on = 1, rc = 0;

	if (fd < 0)
		return -errno;
	event.data.fd = fd;
	if (os_setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		rc = -errno;
	else if (os_bind(fd, (const struct sockaddr *)&name, len) < 0)
		rc = -errno;
	else if (!is_for_good && os_epoll_ctl(nic->claims_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		rc = -errno;
	if (rc == -EADDRINUSE && !is_for_good && os_connect(fd, (const struct sockaddr *)&name, len) == 0)
		os_send(fd, "", 1,
		        MSG_DONTWAIT | MSG_NOSIGNAL); /* if it does not get there, the holder has just ended */
	if (rc == 0)
		return fd;
	nic_fd_close(fd);
	return rc;
}

/* The credentials of a byte that has come; false: none has, or it is nobody's business. */
static bool claim_requested_by_peer(int fd)
{
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
	const struct cmsghdr *cmsg;
	struct ucred who;

	if (os_recvmsg(fd, &msg, MSG_DONTWAIT) < 0)
		return false;
	cmsg = CMSG_FIRSTHDR(&msg);
	if (cmsg == NULL || cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_CREDENTIALS)
		return false;
	memcpy(&who, CMSG_DATA(cmsg), sizeof(who));
	return who.uid == 0 || who.uid == getuid();
}

/* The next claim that another process wants; -1: there is none, or the thread is to look again. */
int verbs_next_contested_claim(const struct nic_verbs *nic)
{
	struct epoll_event event;

	for (unsigned i = 0; i < BYTES_A_LOOK && os_epoll_wait(nic->claims_fd, &event, 1, 0) == 1; i++)
		if (claim_requested_by_peer(event.data.fd))
			return event.data.fd;
	return -1;
}

/* ---- contests ---- */

struct verbs_flow_contest {
	struct verbs_flow_contest *next;
	struct vma_flow_key key;
	int fd;
	uint64_t until_ms;
	uint64_t own_ms; /* when this process wanted it last */
};

/* The claim goes on; its descriptor is the contest's. */
static void contest_unlink_and_free(struct nic_verbs *nic, struct verbs_flow_contest **place)
{
	struct verbs_flow_contest *contest = *place;

	*place = contest->next;
	nic->contests_n--;
	free(contest);
}

/* Without room or memory the name is free at once: the two may take turns. */
bool verbs_flow_contest_begin(struct nic_verbs *nic, const struct vma_flow_key *key, int fd)
{
	struct verbs_flow_contest *contest = nic->contests_n < CONTESTS_MAX ? malloc(sizeof(*contest)) : NULL;

	if (contest == NULL) {
		nic_fd_close(fd);
		return false;
	}
	*contest = (struct verbs_flow_contest){.next = nic->contests,
	                                       .key = *key,
	                                       .fd = fd,
	                                       .until_ms = os_now_ms() + CONTEST_MS,
	                                       .own_ms = os_now_ms()};
	nic->contests = contest;
	nic->contests_n++;
	return true;
}

/* Another process has asked again. If this one does not any more, there is nothing to contest. */
void verbs_flow_contest_extend_or_drop_claim(struct nic_verbs *nic, int fd)
{
	struct verbs_flow_contest **place = &nic->contests;
	const uint64_t now_ms = os_now_ms();

	while (*place != NULL && (*place)->fd != fd)
		place = &(*place)->next;
	if (*place == NULL)
		return;
	(*place)->until_ms = now_ms + CONTEST_MS;
	if (now_ms - (*place)->own_ms < CONTEST_MS)
		return;
	nic_fd_close(fd);
	contest_unlink_and_free(nic, place);
}

/* The claim of a contest that is over; -EADDRINUSE: it is not; -ENOENT: there is none. */
int verbs_flow_contest_take_back_claim(struct nic_verbs *nic, const struct vma_flow_key *key)
{
	struct verbs_flow_contest **place = &nic->contests;
	int fd;

	while (*place != NULL && memcmp(&(*place)->key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	if (*place == NULL)
		return -ENOENT;
	(*place)->own_ms = os_now_ms();
	if ((*place)->own_ms < (*place)->until_ms)
		return -EADDRINUSE;
	fd = (*place)->fd;
	contest_unlink_and_free(nic, place);
	return fd;
}

/* Nobody has asked for these again, the holder neither. */
int verbs_flow_contests_expire(struct nic_verbs *nic)
{
	const uint64_t now_ms = os_now_ms();
	struct verbs_flow_contest **place = &nic->contests;
	uint64_t next_ms = UINT64_MAX;

	while (*place != NULL) {
		/* As long again, so that the holder comes first. */
		const uint64_t until_ms = (*place)->until_ms + CONTEST_MS;

		if (until_ms <= now_ms) {
			nic_fd_close((*place)->fd);
			contest_unlink_and_free(nic, place);
			continue;
		}
		next_ms = until_ms < next_ms ? until_ms : next_ms;
		place = &(*place)->next;
	}
	return next_ms != UINT64_MAX ? (int)(next_ms - now_ms) : -1;
}

void verbs_flow_contests_close_fds_in_child(const struct nic_verbs *nic)
{
	for (const struct verbs_flow_contest *contest = nic->contests; contest != NULL; contest = contest->next)
		os_close(contest->fd);
}

void verbs_flow_contests_fini(struct nic_verbs *nic)
{
	while (nic->contests != NULL) {
		nic_fd_close(nic->contests->fd);
		contest_unlink_and_free(nic, &nic->contests);
	}
}
