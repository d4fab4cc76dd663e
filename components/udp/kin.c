/* kin.c - a socket that processes have in common by fork: the memory that tells them of changes, and following them. */
#include <string.h>
#include <sys/mman.h>

#include "control.h"
#include "flows.h"
#include "kin.h"
#include "young.h"

/* ---- memory ---- */

static void lot_put(struct udp_kin_lot *lot)
{
	if (lot == NULL || atomic_fetch_sub(&lot->refs, 1) != 1)
		return;
	munmap(lot->at, lot->room * sizeof(lot->at[0]));
	vma_free(lot);
}

static struct udp_kin_lot *lot_create(uint32_t room)
{
	struct udp_kin_lot *lot = vma_alloc(sizeof(*lot));

	if (lot == NULL)
		return NULL;
	lot->at = mmap(NULL, room * sizeof(lot->at[0]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (lot->at == MAP_FAILED) {
		vma_free(lot);
		return NULL;
	}
	lot->room = room;
	atomic_init(&lot->refs, 1);
	return lot;
}

static bool has_none(const struct vma_file *file)
{
	return file->kind == VMA_FILE_UDP && !file->os_only && udp_kin(udp_sock((struct vma_file *)file)) == NULL;
}

static void kin_count_missing(struct vma_file *file, void *arg)
{
	*(uint32_t *)arg += has_none(file);
}

/* file.lock, since two threads may fork. */
static void kin_init_sock(struct udp_sock *sock, struct udp_kin_lot *lot)
{
	struct udp_kin *kin;

	if (udp_kin(sock) != NULL)
		return;
	kin = &lot->at[lot->used++];
	atomic_store(&kin->mc_ifindex, sock->mc_ifindex);
	atomic_store(&kin->os_options, sock->os_options);
	atomic_store(&kin->rcvtimeo_ns, atomic_load(&sock->rcvtimeo_ns));
	atomic_store(&kin->sndtimeo_ns, atomic_load(&sock->sndtimeo_ns));
	atomic_store(&kin->ttl, sock->ttl);
	atomic_store(&kin->shut_rd, atomic_load(&sock->shut_rd));
	atomic_store(&kin->shut_wr, atomic_load(&sock->shut_wr));
	atomic_store(&kin->corked, (atomic_load(&sock->unplain) & UDP_CORKED) != 0);
	atomic_fetch_add(&lot->refs, 1);
	sock->kin_lot = lot;
	atomic_store_explicit(&sock->kin, kin, memory_order_release);
	atomic_fetch_or(&sock->unplain, UDP_SHARED);
	atomic_fetch_or(&sock->rx_opts, UDP_RX_OPT_KIN);
}

static void kin_give_file(struct vma_file *file, void *arg)
{
	struct udp_kin_lot *lot = arg;

	if (!has_none(file) || lot->used == lot->room)
		return;
	pthread_mutex_lock(&file->lock);
	kin_init_sock(udp_sock(file), lot);
	pthread_mutex_unlock(&file->lock);
}

void udp_kin_make(void)
{
	struct udp_kin_lot *lot;
	uint32_t n = 0;

	vma_file_each(kin_count_missing, &n);
	lot = n != 0 ? lot_create(n) : NULL;
	if (lot != NULL)
		vma_file_each(kin_give_file, lot);
	lot_put(lot);
}

void udp_kin_destroy(struct udp_sock *sock)
{
	lot_put(sock->kin_lot);
}

/* ---- following ---- */

/* -1: the socket has ended. */
static int kin_shadow_of(const struct udp_sock *sock)
{
	const int lingering = atomic_load(&sock->lingering_fd);

	if ((atomic_load(&sock->file.slots) & VMA_FILE_ENDED) == 0)
		return atomic_load(&sock->file.fd);
	return lingering != 0 ? lingering : -1;
}

static void follow_shutdown(struct udp_sock *sock, const struct udp_kin *kin)
{
	if (atomic_load(&kin->shut_rd) && !atomic_exchange(&sock->shut_rd, true))
		vma_waitq_wake(&sock->file.waitq, true);
	if (!atomic_load(&kin->shut_wr) || atomic_load(&sock->shut_wr))
		return;
	atomic_store(&sock->shut_wr, true);
	udp_dst_reset(sock);
}

static void follow_cork(struct udp_sock *sock, const struct udp_kin *kin)
{
	if (atomic_load(&kin->corked))
		atomic_fetch_or(&sock->unplain, UDP_CORKED);
	else
		atomic_fetch_and(&sock->unplain, (uint8_t)~UDP_CORKED);
}

/* As after connect, errors of what is sent from now on are watched for with the next sends. */
static void follow_names(struct udp_sock *sock, int fd)
{
	const bool was_connected = atomic_load(&sock->connected);

	udp_follow(sock, fd);
	if (!was_connected && atomic_load(&sock->connected) && !sock->errors_watched)
		atomic_store_explicit(&sock->sends_left, UDP_FEW_SENDS, memory_order_relaxed);
}

void udp_kin_follow_locked(struct udp_sock *sock)
{
	const struct udp_kin *kin = udp_kin(sock);
	const uint32_t changes = atomic_load_explicit(&kin->changes, memory_order_acquire);
	const int fd = kin_shadow_of(sock);

	if (atomic_load(&kin->passed_on) && !sock->file.os_only) {
		udp_give_to_kernel(sock, VMA_SOCK_PASSED_ON);
	} else if (fd >= 0 && !sock->file.os_only) {
		udp_options_follow(sock, fd, kin);
		follow_shutdown(sock, kin);
		follow_cork(sock, kin);
		if (!udp_is_young(sock))
			follow_names(sock, fd);
	}
	/* Last: a child that is forked in between finds that it has to look. */
	atomic_store_explicit(&sock->kin_seen, changes, memory_order_release);
}

void udp_kin_follow(struct udp_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (udp_kin_moved(sock))
		udp_kin_follow_locked(sock);
	pthread_mutex_unlock(&sock->file.lock);
}

/* A group's or a broadcast's flow is followed like the others, but what it brings is for any socket on that port. */
bool udp_kin_accepts(struct udp_sock *sock, const struct udp_datagram *datagram)
{
	union vma_name name;
	const int fd = kin_shadow_of(sock);

	udp_ask_take_up(sock);
	if (fd < 0 || vma_shadow_name(fd, &name, NULL) != 0)
		return true;
	if (name.in.sin_port != datagram->dst_port_be)
		return false;
	if (vma_shadow_peer(fd, &name) != 0)
		return true;
	return name.any.sa_family == AF_INET && name.in.sin_addr.s_addr == datagram->src &&
	       name.in.sin_port == datagram->src_port_be;
}
