/* kernel_conns - connections of TCP that the kernel has, of the port of a flow (nic.h). */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

#include <vma/nic.h>

#include "kernel_sock.h"
#include "os.h"

struct search {
	const struct vma_nic *nic;
	const struct vma_flow_key *key;
	void (*see)(const struct vma_flow_key *connection, void *arg);
	void *arg;
};

/* A listener's SYN begins a new one, also in the place of one in TIME_WAIT. */
static bool is_connection(const struct kernel_sock *socket)
{
	return socket->peer_port_be != 0 && socket->state != TCP_LISTEN && socket->state != TCP_CLOSE &&
	       socket->state != TCP_TIME_WAIT;
}

static void conn_search_report_matching_socket(const struct kernel_sock *socket, void *arg)
{
	const struct search *search = arg;
	struct vma_flow_key connection = *search->key;

	if (!is_connection(socket) || (connection.local_port_be != 0 && socket->port_be != connection.local_port_be) ||
	    memcmp(socket->local, connection.local, sizeof(connection.local)) != 0 ||
	    (socket->ifindex != 0 && socket->ifindex != search->nic->info.ifindex))
		return;
	connection.local_port_be = socket->port_be;
	connection.peer_port_be = socket->peer_port_be;
	memcpy(connection.peer, socket->peer, sizeof(connection.peer));
	search->see(&connection, search->arg);
}

int vma_nic_for_each_kernel_connection(const struct vma_nic *nic, const struct vma_flow_key *key,
                                       void (*see)(const struct vma_flow_key *connection, void *arg), void *arg)
{
	struct search search = {.nic = nic, .key = key, .see = see, .arg = arg};

	return kernel_sock_visit_sockets_of_port(NULL, IPPROTO_TCP, ntohs(key->local_port_be), false,
	                                         conn_search_report_matching_socket, &search);
}

struct question {
	const struct vma_flow_key *key;
	bool *has;
};

static void set_if_kernel_socket_is_connection(const struct kernel_sock *socket, void *arg)
{
	const struct question *question = arg;

	*question->has = is_connection(socket) && socket->peer_port_be == question->key->peer_port_be &&
	                 memcmp(socket->peer, question->key->peer, sizeof(socket->peer)) == 0;
}

int vma_nic_kernel_has_connections(const struct vma_nic *nic, const struct vma_flow_key *keys, unsigned n, bool *has)
{
	int fd = -1, rc = 0;

	for (unsigned i = 0; rc == 0 && i < n; i++) {
		struct question question = {.key = &keys[i], .has = &has[i]};

		has[i] = false;
		rc = kernel_sock_visit_sockets_of_connection(&fd, &keys[i], nic->info.ifindex,
		                                             set_if_kernel_socket_is_connection, &question);
		if (rc == -ENOENT)
			rc = 0;
	}
	if (fd >= 0)
		nic_fd_close(fd);
	return rc;
}
