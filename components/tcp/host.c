/*
 * host.c - for the surroundings that keep stacks: is a stack still used, and where to note a connection that has ended.
 */
#include <string.h>

#include "tcp_priv.h"
#include "lwip/port.h"

bool vma_tcp_is_empty(struct vma_tcp *tcp)
{
	bool acquired = vma_ring_acquire(tcp->ring), empty = tcp->all == NULL && tcp->listeners == NULL;

	if (acquired)
		vma_ring_release(tcp->ring);
	return empty;
}

/* Receive flag held. */
static bool stack_is_unused(void *arg)
{
	const struct vma_tcp *tcp = arg;

	return tcp->all == NULL && timewait_count(tcp) == 0;
}

void stack_tell_host_if_idle(struct vma_tcp *tcp)
{
	if (tcp->host.idle != NULL && stack_is_unused(tcp) && vma_ring_has_port_blocks(tcp->ring))
		tcp->host.idle(tcp->host.arg);
}

void vma_tcp_release_port_blocks_if_unused(struct vma_tcp *tcp)
{
	vma_ring_release_unused_port_blocks(tcp->ring, stack_is_unused, tcp);
}

bool vma_tcp_has_port(struct vma_tcp *tcp, const uint8_t *local, uint16_t port_be)
{
	bool acquired = vma_ring_acquire(tcp->ring), found = false;

	for (const struct vma_tcp_conn *conn = tcp->all; conn != NULL && !found; conn = conn->next_all)
		found = !conn->is_over && conn->key.local_port_be == port_be &&
		        (local == NULL || memcmp(conn->key.local, local, 4) == 0);
	found = found || timewait_has_port(tcp, local, port_be);
	if (acquired)
		vma_ring_release(tcp->ring);
	return found;
}

struct closed_list {
	struct vma_tcp_closed *out;
	unsigned count, most;
	const uint8_t *local;
	uint16_t port_be;
};

/* True: there is no room for another address. */
static bool closed_list_add(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt, void *arg)
{
	struct closed_list *list = arg;

	if (key->local_port_be != list->port_be || (list->local != NULL && memcmp(key->local, list->local, 4) != 0))
		return false;
	for (unsigned i = 0; i < list->count; i++)
		if (memcmp(list->out[i].key.local, key->local, 4) == 0)
			return false;
	list->out[list->count++] = (struct vma_tcp_closed){.key = *key, .snd_nxt = snd_nxt, .rcv_nxt = rcv_nxt};
	return list->count == list->most || list->local != NULL;
}

static bool conn_needs_time_wait(const struct vma_tcp_conn *conn)
{
	const enum tcp_state state = conn->pcb != NULL ? conn->pcb->state : CLOSED;

	return !conn->is_over && conn->closing && (state == FIN_WAIT_1 || state == FIN_WAIT_2 || state == CLOSING);
}

#define CLOSED_MOST 16384

unsigned vma_tcp_list_one_closed_conn_per_address(struct vma_tcp *tcp, const uint8_t *local, uint16_t port_be,
                                                  struct vma_tcp_closed *out, unsigned most)
{
	struct closed_list list = {.out = out, .most = most, .local = local, .port_be = port_be};
	const bool acquired = vma_ring_acquire(tcp->ring);
	uint32_t left = CLOSED_MOST;
	bool full = timewait_for_each_latest(tcp, CLOSED_MOST, closed_list_add, &list);

	for (const struct vma_tcp_conn *conn = tcp->all; conn != NULL && !full && left > 0;
	     conn = conn->next_all, left--)
		full = conn_needs_time_wait(conn) &&
		       closed_list_add(&conn->key, conn->pcb->snd_nxt, conn->pcb->rcv_nxt, &list);
	if (acquired)
		vma_ring_release(tcp->ring);
	return list.count;
}

/* Each may cost a conversation with the owner of the device: no exit takes long for it. */
#define LEAVE_MOST 4096

bool vma_tcp_has_orphans(struct vma_tcp *tcp)
{
	bool acquired = vma_ring_acquire(tcp->ring), parting = tcp->orphans != 0;

	if (acquired)
		vma_ring_release(tcp->ring);
	return parting;
}

/*
 * The peer has all of it, FIN included, and goes on as long as it likes: the owner of the device answers it
 * (minisocks.c), or, where there is none, the kernel, with RST, which ends what is closed already. Any other connection
 * has something that its peer waits for: it is left to the owner of the device, who resets the peer, or, where there is
 * none, or that owner knows no rule of it, reset here. One that is half-open or waits for accept is left without a
 * word if another process may accept it: as after a kill, the owner gives it to that one, or has done so already.
 */
static void conn_fail_at_exit_unless_daemon_takes_it(struct vma_tcp_conn *conn, bool has_owner)
{
	if (conn->is_over || conn->pcb == NULL || tcp_pending_outlives_process(conn))
		return;
	if (conn->closing && conn->pcb->state == FIN_WAIT_2)
		conn_fail_with_error(conn, 0, false);
	else if (!has_owner || !conn->steered)
		conn_fail_with_error(conn, 0, true);
}

void vma_tcp_end_all_connections_at_exit(struct vma_tcp *tcp)
{
	const bool has_owner = tcp_export_minisocks_to_nic_owner(tcp, LEAVE_MOST);
	uint32_t left = LEAVE_MOST;

	if (!vma_ring_acquire(tcp->ring))
		return;
	for (struct vma_tcp_conn *conn = tcp->all; conn != NULL && left > 0; conn = conn->next_all, left--)
		conn_fail_at_exit_unless_daemon_takes_it(conn, has_owner);
	timewait_end_some(tcp, LEAVE_MOST);
	vma_ring_release(tcp->ring); /* a run: resets leave */
	vma_ring_delete_stale_nic_rules(tcp->ring, LEAVE_MOST, UINT64_MAX, NULL);
}

/* Recovery is over by then. */
void *vma_tcp_conn_scratch_memory_for_host(struct vma_tcp_conn *conn)
{
	_Static_assert(sizeof(conn->recovery) >= VMA_TCP_HOST_SPACE, "recovery is as large as what is promised");
	return &conn->recovery;
}
