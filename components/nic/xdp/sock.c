/*
 * sock - AF_XDP sockets by plain system calls: creating, binding and mapping; nothing here is on the data path.
 *
 *   base socket of device queue 0   registers the packet memory, owns fill + completion ring, a token RX ring
 *   base socket of device queue q   shares that memory, owns a fill + completion ring of its own
 *   queue pair's socket             shares the base socket's buffer pool, owns its RX + TX ring only
 *
 * The kernel wants an RX or TX ring before it binds, so a base socket has a token RX ring. It is never in the socket
 * map and therefore receives nothing.
 */
#include <errno.h>
#include <linux/bpf.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "xdp.h"

/* Since Linux 6.11, and not in the headers of older ones. */
#define UMEM_TX_METADATA_LEN (1 << 2)
struct umem_reg {
	uint64_t addr, len;
	uint32_t chunk_size, headroom, flags, tx_metadata_len;
};

#define TOKEN_RX_SIZE 2
/* The kernel lets go of a device queue from a work item, a few milliseconds after the last user's exit. The item waits
 * for the lock of all network devices, so beside others that make and remove interfaces it was more than 500. */
#define BUSY_RETRIES 1000
#define BUSY_PAUSE_NS 2000000

/* It is not there, or nobody may. (Not: for the moment there are no descriptors, or there is no memory.) */
static bool error_means_no_xdp_support(int error)
{
	return error == EAFNOSUPPORT || error == EPROTONOSUPPORT || error == ENOSYS || error == EPERM ||
	       error == EACCES;
}

/* Of bpf() a question about a descriptor that nobody has: EBADF. */
int xdp_sock_check_kernel(const char **what)
{
	union bpf_attr attr = {.info = {.bpf_fd = UINT32_MAX}};
	int fd = os_socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	*what = "socket(AF_XDP)";
	if (fd < 0)
		return error_means_no_xdp_support(errno) ? -errno : 0;
	os_close(fd);
	*what = XDP_LACKS_MEMFD;
	fd = (int)syscall(SYS_memfd_create, "vma-look", MFD_CLOEXEC);
	if (fd < 0)
		return error_means_no_xdp_support(errno) ? -errno : 0;
	os_close(fd);
	*what = "bpf()";
	return syscall(SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &attr, sizeof(attr)) < 0 && error_means_no_xdp_support(errno)
	               ? -errno
	               : 0;
}

/* Bind looks at the flags first, and then for the interface, of which there is none with number 0. */
bool xdp_sock_supports_multi_buffer(void)
{
	const struct sockaddr_xdp addr = {.sxdp_family = AF_XDP, .sxdp_flags = XDP_USE_SG};
	const int fd = os_socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	bool takes;

	if (fd < 0)
		return false;
	takes = os_bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0 && errno == ENODEV;
	os_close(fd);
	return takes;
}

static int open_xdp_socket(void)
{
	int fd = nic_fd_move_high(os_socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));

	return fd < 0 ? -errno : fd;
}

static int xsk_ring_set_size(int fd, int option, uint32_t entries)
{
	return os_setsockopt(fd, SOL_XDP, option, &entries, sizeof(entries)) < 0 ? -errno : 0;
}

static int xsk_set_umem_ring_sizes(int fd)
{
	int rc = xsk_ring_set_size(fd, XDP_UMEM_FILL_RING, XDP_FILL_SIZE);

	return rc < 0 ? rc : xsk_ring_set_size(fd, XDP_UMEM_COMPLETION_RING, XDP_COMP_SIZE);
}

static int bind_xdp_queue(int fd, unsigned ifindex, uint32_t queue, uint16_t flags, int umem_fd)
{
	struct sockaddr_xdp addr = {
	        .sxdp_family = AF_XDP,
	        .sxdp_flags = flags,
	        .sxdp_ifindex = ifindex,
	        .sxdp_queue_id = queue,
	        .sxdp_shared_umem_fd = umem_fd < 0 ? 0 : (uint32_t)umem_fd,
	};
	const struct timespec pause = {.tv_nsec = BUSY_PAUSE_NS};

	for (int i = 0;; i++) {
		if (os_bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0)
			return 0;
		if (errno != EBUSY || i == BUSY_RETRIES)
			return -errno;
		nanosleep(&pause, NULL);
	}
}

static int close_failed_socket(int fd, int rc, const char *what, unsigned ifindex, uint32_t queue)
{
	vma_log_debug("xdp: ifindex %u queue %u: %s: error %d", ifindex, queue, what, -rc);
	nic_fd_close(fd);
	return rc;
}

/* Pins the pages. Without CAP_IPC_LOCK they count against RLIMIT_MEMLOCK: -ENOBUFS. */
static int register_umem(int fd, void *umem, size_t umem_bytes, bool metadata)
{
	struct umem_reg reg = {
	        .addr = (uintptr_t)umem,
	        .len = umem_bytes,
	        .chunk_size = 1u << XDP_FRAME_SHIFT,
	        .flags = metadata ? UMEM_TX_METADATA_LEN : 0,
	        .tx_metadata_len = metadata ? XDP_TX_METADATA_BYTES : 0,
	};

	return os_setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)) < 0 ? -errno : 0;
}

/* A driver that sends the frames itself may know nothing of metadata, and does not say so here. */
static bool xdp_socket_is_in_copy_mode(int fd)
{
	struct xdp_options options = {0};
	socklen_t len = sizeof(options);

	return os_getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &len) == 0 &&
	       (options.flags & XDP_OPTIONS_ZEROCOPY) == 0;
}

int xdp_sock_open_with_umem(void *umem, size_t umem_bytes, unsigned ifindex, uint32_t queue, uint16_t bind_flags,
                            bool *tx_csum)
{
	int fd = open_xdp_socket(), rc;

	if (fd < 0)
		return fd;
	rc = register_umem(fd, umem, umem_bytes, tx_csum != NULL);
	if (tx_csum != NULL)
		*tx_csum = rc == 0;
	if (rc == -EINVAL && tx_csum != NULL) /* a kernel that does not know the flag */
		rc = register_umem(fd, umem, umem_bytes, false);
	if (rc < 0)
		return close_failed_socket(fd, rc, "XDP_UMEM_REG", ifindex, queue);
	if ((rc = xsk_set_umem_ring_sizes(fd)) < 0 || (rc = xsk_ring_set_size(fd, XDP_RX_RING, TOKEN_RX_SIZE)) < 0)
		return close_failed_socket(fd, rc, "rings of the base socket", ifindex, queue);
	/* Neither XDP_COPY nor XDP_ZEROCOPY: the kernel takes zero-copy where the driver has it. */
	rc = bind_xdp_queue(fd, ifindex, queue, bind_flags | XDP_USE_NEED_WAKEUP, -1);
	if (rc < 0)
		return close_failed_socket(fd, rc, "bind of the base socket", ifindex, queue);
	if (tx_csum != NULL && *tx_csum)
		*tx_csum = xdp_socket_is_in_copy_mode(fd);
	return fd;
}

int xdp_sock_open_on_shared_umem(int umem_fd, unsigned ifindex, uint32_t queue, uint16_t bind_flags)
{
	int fd = open_xdp_socket(), rc;

	(void)bind_flags;
	if (fd < 0)
		return fd;
	if ((rc = xsk_set_umem_ring_sizes(fd)) < 0 || (rc = xsk_ring_set_size(fd, XDP_RX_RING, TOKEN_RX_SIZE)) < 0)
		return close_failed_socket(fd, rc, "rings of the base socket", ifindex, queue);
	/* With XDP_SHARED_UMEM the kernel refuses every other flag and takes over those of the first socket. */
	rc = bind_xdp_queue(fd, ifindex, queue, XDP_SHARED_UMEM, umem_fd);
	return rc < 0 ? close_failed_socket(fd, rc, "bind of the base socket", ifindex, queue) : fd;
}

int xdp_sock_open_for_slot(int base_fd, unsigned ifindex, uint32_t queue, uint32_t rx_size, uint32_t tx_size)
{
	int fd = open_xdp_socket(), rc;

	if (fd < 0)
		return fd;
	if ((rc = xsk_ring_set_size(fd, XDP_RX_RING, rx_size)) < 0 ||
	    (rc = xsk_ring_set_size(fd, XDP_TX_RING, tx_size)) < 0)
		return close_failed_socket(fd, rc, "RX and TX ring", ifindex, queue);
	rc = bind_xdp_queue(fd, ifindex, queue, XDP_SHARED_UMEM, base_fd);
	return rc < 0 ? close_failed_socket(fd, rc, "bind of a queue pair's socket", ifindex, queue) : fd;
}

static int xsk_get_mmap_offsets(int fd, struct xdp_mmap_offsets *offsets)
{
	socklen_t len = sizeof(*offsets);

	if (os_getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, offsets, &len) < 0)
		return -errno;
	return len == sizeof(*offsets) ? 0 : -EPROTO; /* shorter: a kernel before 5.4, without need-wakeup */
}

static int map_ring(int fd, off_t page_offset, const struct xdp_ring_offset *at, uint32_t entries, size_t entry_bytes,
                    struct xdp_ring *ring)
{
	const size_t bytes = at->desc + entries * entry_bytes;
	char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page_offset);

	if (map == MAP_FAILED)
		return -errno;
	madvise(map, bytes, MADV_DONTFORK); /* a child after fork must not be able to touch its parent's queues */
	*ring = (struct xdp_ring){
	        .producer = (_Atomic uint32_t *)(map + at->producer),
	        .consumer = (_Atomic uint32_t *)(map + at->consumer),
	        .flags = (_Atomic uint32_t *)(map + at->flags),
	        .addrs = (uint64_t *)(map + at->desc),
	        .size = entries,
	        .mask = entries - 1,
	        .map = map,
	        .map_bytes = bytes,
	};
	ring->cached_producer = atomic_load_explicit(ring->producer, memory_order_acquire);
	ring->cached_consumer = atomic_load_explicit(ring->consumer, memory_order_acquire);
	return 0;
}

int xdp_sock_map_umem_rings(int fd, struct xdp_ring *fill, struct xdp_ring *comp)
{
	struct xdp_mmap_offsets offsets;
	int rc = xsk_get_mmap_offsets(fd, &offsets);

	if (rc < 0)
		return rc;
	rc = map_ring(fd, (off_t)XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, XDP_FILL_SIZE, sizeof(uint64_t), fill);
	if (rc < 0)
		return rc;
	rc = map_ring(fd, (off_t)XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, XDP_COMP_SIZE, sizeof(uint64_t), comp);
	if (rc < 0)
		xdp_ring_unmap(fill);
	return rc;
}

int xdp_sock_map_queue_rings(int fd, uint32_t rx_size, uint32_t tx_size, struct xdp_ring *rx, struct xdp_ring *tx)
{
	struct xdp_mmap_offsets offsets;
	int rc = xsk_get_mmap_offsets(fd, &offsets);

	if (rc < 0)
		return rc;
	rc = map_ring(fd, (off_t)XDP_PGOFF_RX_RING, &offsets.rx, rx_size, sizeof(struct xdp_desc), rx);
	if (rc < 0)
		return rc;
	rc = map_ring(fd, (off_t)XDP_PGOFF_TX_RING, &offsets.tx, tx_size, sizeof(struct xdp_desc), tx);
	if (rc < 0)
		xdp_ring_unmap(rx);
	return rc;
}

void xdp_ring_unmap(struct xdp_ring *ring)
{
	if (ring->map != NULL)
		munmap(ring->map, ring->map_bytes);
	*ring = (struct xdp_ring){0};
}
