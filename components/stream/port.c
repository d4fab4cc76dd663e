/*
 * port.c - the local port of a connection: chosen here, reserved in the kernel.
 *
 * A port of the kernel's own choice would be reserved for one connection only. A bound socket cannot share it with
 * another to a different peer, as connections of the kernel do. After 28,000 (with those in TIME_WAIT) there are no
 * more. So the port is chosen as RFC 6056 3.3.3 says (and the kernel does). It comes from a hash of both addresses and
 * the peer's port, and then the next one is tried. The stack knows whether the 4-tuple is free. The shadow is bound to
 * the port with SO_REUSEADDR set for just that moment. All sockets that are bound so share the port. Any other socket
 * of this host that has the port keeps it for itself. A socket that wants to listen on it is refused, as by a
 * connection of the kernel.
 *
 * Each ring goes through the ports by itself, and begins at a distance from the others. So the rings of a process have
 * blocks of their own (ring/ring_ports.c). A port in another ring's block makes a ring step over all of that block.
 *
 * A connection without a rule of its own (vma_tcp_request_port_block) must have its port alone, and the shadow is bound
 * without SO_REUSEADDR. SO_REUSEADDR is set, and stays set, when the connection has its rule, 50 to 100 ms later: then
 * connections to other peers share the port. (getsockopt tells what the application has set: getopt.c.)
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "settings.h"
#include "stream_priv.h"

#define PORT_RINGS 8
#define SCARCE_NS 1000000000ULL

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
	uint32_t low, count;
	uint64_t secret[2];
	uint8_t reserved[65536 / 8]; /* ip_local_reserved_ports: a bit each */
	/* What was tried last, by ring and hash: one after the other, and if those were in use (struct
	 * connect_port_search). */
	_Atomic uint32_t next[2][PORT_RINGS][64];
	_Atomic uint64_t scarce_until_ns[64];
} ports __attribute__((section(".data.far"))) = {.low = 32768, .count = 28232};

/* ---- the host's settings ---- */

/* "8080,9148-9150" */
static void parse_reserved_ports(char *text)
{
	char *rest, *item = strtok_r(text, ",\n", &rest);
	unsigned first, last;

	for (; item != NULL; item = strtok_r(NULL, ",\n", &rest)) {
		int n = sscanf(item, "%u-%u", &first, &last);

		if (n == 1)
			last = first;
		for (; n >= 1 && first <= last && last < 65536; first++)
			ports.reserved[first / 8] |= (uint8_t)(1U << first % 8);
	}
}

static void read_port_sysctls(void)
{
	char text[4096];
	unsigned low, high;

	if (sysctl_read("ip_local_port_range", text, sizeof(text)) && sscanf(text, "%u %u", &low, &high) == 2 &&
	    low > 0 && low <= high && high < 65536) {
		ports.low = low;
		ports.count = high - low + 1;
	}
	if (sysctl_read("ip_local_reserved_ports", text, sizeof(text)))
		parse_reserved_ports(text);
	if (syscall(SYS_getrandom, ports.secret, sizeof(ports.secret), GRND_NONBLOCK) != sizeof(ports.secret))
		ports.secret[0] = vma_now_ns() ^ (uint64_t)getpid() << 40;
}

/* ---- choosing ---- */

static uint32_t ephemeral_port_hash(const struct sockaddr_in *local, const struct sockaddr_in *peer)
{
	uint64_t h = ports.secret[0] ^ ((uint64_t)local->sin_addr.s_addr << 32 | peer->sin_addr.s_addr);

	h = (h ^ h >> 32) * 0x9e3779b97f4a7c15ULL;
	h = (h ^ ports.secret[1] ^ peer->sin_port ^ h >> 29) * 0xbf58476d1ce4e5b9ULL;
	return (uint32_t)(h ^ h >> 32);
}

static _Atomic uint32_t *ephemeral_port_next_counter(bool of_all, uint32_t ring, uint32_t hash)
{
	return &ports.next[of_all][ring % PORT_RINGS][hash % 64];
}

/* Where the ring begins: a block apart from the others' at least, if there are as many. */
static uint32_t ephemeral_port_ring_start(uint32_t ring)
{
	return ring % PORT_RINGS * (ports.count / PORT_RINGS);
}

uint32_t stream_ephemeral_port_count(void)
{
	pthread_once(&once, read_port_sysctls);
	return ports.count;
}

uint16_t stream_port_candidate(const struct sockaddr_in *local, const struct sockaddr_in *peer, uint32_t ring,
                               bool of_all)
{
	uint32_t offset, at, port;

	pthread_once(&once, read_port_sysctls);
	offset = ephemeral_port_hash(local, peer);
	at = atomic_fetch_add_explicit(ephemeral_port_next_counter(of_all, ring, offset), 1, memory_order_relaxed);
	port = ports.low + (offset + ephemeral_port_ring_start(ring) + at) % ports.count;
	for (uint32_t i = 0; i < ports.count && ports.reserved[port / 8] >> port % 8 & 1; i++)
		port = port + 1 < ports.low + ports.count ? port + 1 : ports.low;
	return htons((uint16_t)port);
}

void stream_port_skip_block(const struct sockaddr_in *local, const struct sockaddr_in *peer, uint32_t ring)
{
	const uint32_t left = VMA_FLOW_PORTS - ntohs(local->sin_port) % VMA_FLOW_PORTS - 1;

	atomic_fetch_add_explicit(ephemeral_port_next_counter(false, ring, ephemeral_port_hash(local, peer)), left,
	                          memory_order_relaxed);
}

static _Atomic uint64_t *ephemeral_port_scarce_until(const struct sockaddr_in *local, const struct sockaddr_in *peer)
{
	return &ports.scarce_until_ns[ephemeral_port_hash(local, peer) % 64];
}

bool stream_port_is_scarce(const struct sockaddr_in *local, const struct sockaddr_in *peer)
{
	return vma_now_ns() < atomic_load_explicit(ephemeral_port_scarce_until(local, peer), memory_order_relaxed);
}

void stream_port_set_scarce(const struct sockaddr_in *local, const struct sockaddr_in *peer)
{
	if (!stream_port_is_scarce(local, peer))
		atomic_store_explicit(ephemeral_port_scarce_until(local, peer), vma_now_ns() + SCARCE_NS,
		                      memory_order_relaxed);
}

/* ---- reserving ---- */

int stream_port_reserve(struct stream_sock *sock, int fd, const struct sockaddr_in *local, bool alone)
{
	const int on = 1, off = 0;
	int rc;

	if (alone) {
		rc = vma_shadow_bind(fd, sock->file.family, local);
		if (rc != 0)
			return rc;
		sock->reserved = *local;
		atomic_store(&sock->has_port_alone, true);
		return 0;
	}

	if (!sock->reuse_addr)
		vma_os.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	rc = vma_shadow_bind(fd, sock->file.family, local);
	if (!sock->reuse_addr)
		vma_os.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &off, sizeof(off));
	if (rc == 0)
		sock->reserved = *local;
	return rc;
}

int stream_port_reserve_in_kernel(const struct sockaddr_in *local)
{
	const int on = 1;
	int fd = vma_os.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP), rc;

	if (fd < 0)
		return -errno;
	if (vma_os.bind(fd, (const struct sockaddr *)local, sizeof(*local)) == 0 &&
	    vma_os.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0)
		return fd;
	rc = -errno;
	syscall(SYS_close, fd);
	return rc;
}

/* Task of the internal thread. */
static void port_share_reservation_task(struct vma_internal_task *task)
{
	const int on = 1;
	struct stream_sock *sock = (struct stream_sock *)((char *)task - offsetof(struct stream_sock, share_task));
	int fd;

	pthread_mutex_lock(&sock->file.lock);
	fd = atomic_load(&sock->lingering_fd);
	if (fd == 0)
		fd = atomic_load(&sock->file.fd);
	if (stream_fd_is_own_shadow(sock, fd))
		vma_os.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	atomic_store(&sock->has_port_alone, false);
	pthread_mutex_unlock(&sock->file.lock);
	vma_file_put(&sock->file);
}

void stream_port_schedule_sharing(struct stream_sock *sock)
{
	if (!vma_file_mark_scheduled(&sock->file, &sock->share_scheduled))
		return;
	sock->share_task.run = port_share_reservation_task;
	vma_engine_post_task_to_internal_thread(&sock->share_task);
}
