/*
 * fork_shared.c - a socket that processes have in common by fork: the memory that tells them of changes, and following
 * them.
 */
#include <string.h>
#include <sys/mman.h>

#include "control.h"
#include "flows.h"
#include "fork_shared.h"
#include "deferred.h"

/* ---- memory ---- */

static void fork_shared_batch_put(struct udp_fork_shared_batch *batch)
{
	if (batch == NULL || atomic_fetch_sub(&batch->refs, 1) != 1)
		return;
	munmap(batch->at, batch->capacity * sizeof(batch->at[0]));
	vma_free(batch);
}

static struct udp_fork_shared_batch *fork_shared_batch_create(uint32_t capacity)
{
	struct udp_fork_shared_batch *batch = vma_alloc(sizeof(*batch));

	if (batch == NULL)
		return NULL;
	batch->at =
	        mmap(NULL, capacity * sizeof(batch->at[0]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (batch->at == MAP_FAILED) {
		vma_free(batch);
		return NULL;
	}
	batch->capacity = capacity;
	atomic_init(&batch->refs, 1);
	return batch;
}

static bool udp_has_no_fork_shared(const struct vma_file *file)
{
	return file->kind == VMA_FILE_UDP && !file->os_only &&
	       udp_fork_shared(udp_sock((struct vma_file *)file)) == NULL;
}

static void fork_shared_count_missing(struct vma_file *file, void *arg)
{
	*(uint32_t *)arg += udp_has_no_fork_shared(file);
}

/* file.lock, since two threads may fork. */
static void fork_shared_init_sock(struct udp_sock *sock, struct udp_fork_shared_batch *batch)
{
	struct udp_fork_shared *fork_shared;

	if (udp_fork_shared(sock) != NULL)
		return;
	fork_shared = &batch->at[batch->used++];
	atomic_store(&fork_shared->mc_ifindex, sock->mc_ifindex);
	atomic_store(&fork_shared->os_options, sock->os_options);
	atomic_store(&fork_shared->rcvtimeo_ns, atomic_load(&sock->rcvtimeo_ns));
	atomic_store(&fork_shared->sndtimeo_ns, atomic_load(&sock->sndtimeo_ns));
	atomic_store(&fork_shared->ttl, sock->ttl);
	atomic_store(&fork_shared->shut_rd, atomic_load(&sock->shut_rd));
	atomic_store(&fork_shared->shut_wr, atomic_load(&sock->shut_wr));
	atomic_store(&fork_shared->corked, (atomic_load(&sock->unplain) & UDP_CORKED) != 0);
	atomic_fetch_add(&batch->refs, 1);
	sock->fork_shared_batch = batch;
	atomic_store_explicit(&sock->fork_shared, fork_shared, memory_order_release);
	atomic_fetch_or(&sock->unplain, UDP_SHARED);
	atomic_fetch_or(&sock->rx_opts, UDP_RX_OPT_FORK_SHARED);
}

static void fork_shared_memory_assign_to_socket(struct vma_file *file, void *arg)
{
	struct udp_fork_shared_batch *batch = arg;

	if (!udp_has_no_fork_shared(file) || batch->used == batch->capacity)
		return;
	pthread_mutex_lock(&file->lock);
	fork_shared_init_sock(udp_sock(file), batch);
	pthread_mutex_unlock(&file->lock);
}

void udp_share_all_sockets_state_before_fork(void)
{
	struct udp_fork_shared_batch *batch;
	uint32_t n = 0;

	vma_file_each(fork_shared_count_missing, &n);
	batch = n != 0 ? fork_shared_batch_create(n) : NULL;
	if (batch != NULL)
		vma_file_each(fork_shared_memory_assign_to_socket, batch);
	fork_shared_batch_put(batch);
}

void udp_fork_shared_destroy(struct udp_sock *sock)
{
	fork_shared_batch_put(sock->fork_shared_batch);
}

/* ---- following ---- */

static void udp_apply_shutdown_of_forked_process(struct udp_sock *sock, const struct udp_fork_shared *fork_shared)
{
	if (atomic_load(&fork_shared->shut_rd) && !atomic_exchange(&sock->shut_rd, true))
		vma_waitq_wake(&sock->file.waitq, true);
	if (!atomic_load(&fork_shared->shut_wr) || atomic_load(&sock->shut_wr))
		return;
	atomic_store(&sock->shut_wr, true);
	udp_dst_rebuild_after_change(sock);
}

static void udp_apply_cork_of_forked_process(struct udp_sock *sock, const struct udp_fork_shared *fork_shared)
{
	if (atomic_load(&fork_shared->corked))
		atomic_fetch_or(&sock->unplain, UDP_CORKED);
	else
		atomic_fetch_and(&sock->unplain, (uint8_t)~UDP_CORKED);
}

/* As after connect, errors of what is sent from now on are watched for with the next sends. */
static void udp_apply_addresses_of_forked_process(struct udp_sock *sock, int fd)
{
	const bool was_connected = atomic_load(&sock->connected);

	udp_follow_shared_changes(sock, fd);
	if (!was_connected && atomic_load(&sock->connected) && !sock->errors_watched)
		atomic_store_explicit(&sock->sends_remaining, UDP_FEW_SENDS, memory_order_relaxed);
}

void udp_apply_changes_of_forked_processes_locked(struct udp_sock *sock)
{
	const struct udp_fork_shared *fork_shared = udp_fork_shared(sock);
	const uint32_t changes = atomic_load_explicit(&fork_shared->changes, memory_order_acquire);
	const int fd = vma_inet_shadow_fd(&sock->file, -1, &sock->lingering_fd);

	if (atomic_load(&fork_shared->handed_over) && !sock->file.os_only) {
		udp_give_to_kernel(sock, VMA_SOCK_PASSED_ON);
	} else if (fd >= 0 && !sock->file.os_only) {
		udp_reread_all_options_from_kernel(sock, fd, fork_shared);
		udp_apply_shutdown_of_forked_process(sock, fork_shared);
		udp_apply_cork_of_forked_process(sock, fork_shared);
		if (!udp_offload_is_deferred(sock))
			udp_apply_addresses_of_forked_process(sock, fd);
	}
	/* Last: a child that is forked in between finds that it has to look. */
	atomic_store_explicit(&sock->fork_shared_seen, changes, memory_order_release);
}

void udp_apply_changes_of_forked_processes(struct udp_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes_locked(sock);
	pthread_mutex_unlock(&sock->file.lock);
}

/* A group's or a broadcast's flow is followed like the others, but what it brings is for any socket on that port. */
bool udp_datagram_matches_shared_socket_names(struct udp_sock *sock, const struct udp_datagram *datagram)
{
	union vma_name name;
	const int fd = vma_inet_shadow_fd(&sock->file, -1, &sock->lingering_fd);

	udp_schedule_offload_of_inherited(sock);
	if (fd < 0 || vma_shadow_getsockname(fd, &name, NULL) != 0)
		return true;
	if (name.in.sin_port != datagram->dst_port_be)
		return false;
	if (vma_shadow_getpeername(fd, &name) != 0)
		return true;
	return name.any.sa_family == AF_INET && name.in.sin_addr.s_addr == datagram->src &&
	       name.in.sin_port == datagram->src_port_be;
}
