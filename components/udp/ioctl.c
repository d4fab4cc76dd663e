/* ioctl.c - ioctl and fcntl: the kernel's, but where what is queued here has a better answer. */
#include <errno.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <time.h>

#include <vma/inet_flags.h>

#include "control.h"
#include "fork_shared.h"

/*
 * The bytes of the next datagram that recv gives, which is the shadow's where that is to be asked first. 0 is also the
 * answer when nothing is there.
 */
static int udp_ioctl_next_len(struct udp_sock *sock, int fd, void *arg)
{
	int len, os_len = 0, rc;

	vma_ring_ctxs_catch_up(udp_socket_rings_mask(&sock->file));
	len = udp_next_datagram_len(sock);
	if (len < 0)
		return vma_inet_os_ioctl(fd, FIONREAD, arg);
	if (atomic_load_explicit(&sock->os_attention, memory_order_relaxed)) {
		rc = vma_inet_os_ioctl(fd, FIONREAD, &os_len);
		if (rc < 0)
			return rc;
		len = os_len > 0 ? os_len : len;
	}
	return vma_memcpy_or_efault(arg, &len, sizeof(len));
}

/* ---- O_NONBLOCK and O_ASYNC ---- */

static int udp_check_o_async_supported(struct vma_file *file)
{
	(void)file;
	return vma_engine_apply_offload_failure_policy(EINVAL, "a UDP socket with O_ASYNC");
}

static void udp_file_lock_and_apply_changes_of_forked(struct vma_file *file)
{
	udp_lock_and_apply_changes_of_forked(udp_sock(file));
}

static void udp_set_o_nonblock(struct vma_file *file, bool on)
{
	struct udp_sock *sock = udp_sock(file);

	atomic_store(&sock->nonblocking, on);
	vma_inet_stats_set_nonblocking(sock->stats, on);
}

static void udp_file_set_o_async(struct vma_file *file, bool on)
{
	udp_set_o_async(udp_sock(file), on);
}

static void udp_file_tell_forked_processes_of_change(struct vma_file *file)
{
	udp_tell_forked_processes_of_change(udp_sock(file));
}

static const struct vma_inet_flags_ops udp_flags_ops = {
        .check_async = udp_check_o_async_supported,
        .lock = udp_file_lock_and_apply_changes_of_forked,
        .set_nonblocking = udp_set_o_nonblock,
        .set_async = udp_file_set_o_async,
        .changed = udp_file_tell_forked_processes_of_change,
};

/* ---- time stamps ---- */

static bool sock_has_received_datagram(const struct udp_sock *sock)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);

	for (uint32_t i = 0; all != NULL && i < all->n; i++) {
		if (atomic_load_explicit(&all->at[i]->queue.popped, memory_order_relaxed) != 0)
			return true;
	}
	return false;
}

static uint64_t wall_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/*
 * When the last datagram came that recv gave. From the first question on they are stamped, as by the kernel, which
 * answers that first one with the present time if anything has been received.
 */
static int udp_ioctl_last_stamp(struct udp_sock *sock, int fd, unsigned long request, void *arg)
{
	uint64_t ns = atomic_load_explicit(&sock->last_stamp_ns, memory_order_relaxed);
	struct timespec fine;
	struct timeval coarse;

	_Static_assert(sizeof(struct timespec) == 16 && sizeof(struct timeval) == 16, "old and new names are one");
	atomic_fetch_or_explicit(&sock->rx_opts, UDP_RX_OPT_LAST_STAMP, memory_order_relaxed);
	if (ns == 0 && !sock_has_received_datagram(sock))
		return vma_inet_os_ioctl(fd, request, arg);
	if (ns == 0) {
		ns = wall_clock_ns();
		atomic_store_explicit(&sock->last_stamp_ns, ns, memory_order_relaxed);
	}
	fine = (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	coarse = (struct timeval){.tv_sec = fine.tv_sec, .tv_usec = fine.tv_nsec / 1000};
	if (request == SIOCGSTAMPNS_OLD || request == SIOCGSTAMPNS_NEW)
		return vma_memcpy_or_efault(arg, &fine, sizeof(fine));
	return vma_memcpy_or_efault(arg, &coarse, sizeof(coarse));
}

/*
 * Where the card stamps what comes for us, it does so for all packets, and nobody has to switch it on. So if the kernel
 * refuses, for want of a driver that can or of a privilege, a program that wants stamps of received packets is told
 * that it has them.
 */
static int udp_ioctl_hw_timestamping(int fd, unsigned long request, struct ifreq *arg)
{
	struct hwtstamp_config wanted, given = {.tx_type = HWTSTAMP_TX_OFF, .rx_filter = HWTSTAMP_FILTER_ALL};
	const int rc = vma_inet_os_ioctl(fd, request, arg);
	struct vma_engine *engine = vma_engine_get_or_start();
	struct ifreq req;
	void *config;

	if ((rc != -EOPNOTSUPP && rc != -EPERM) || engine == NULL ||
	    vma_memcpy_or_efault(&req, arg, sizeof(req)) != 0 ||
	    vma_memcpy_or_efault(&wanted, config = req.ifr_data, sizeof(wanted)) != 0)
		return rc;
	if (request == SIOCSHWTSTAMP &&
	    (wanted.flags != 0 || wanted.tx_type != HWTSTAMP_TX_OFF || wanted.rx_filter == HWTSTAMP_FILTER_NONE))
		return rc;
	req.ifr_name[IFNAMSIZ - 1] = '\0';
	if (vma_os.ioctl(fd, SIOCGIFINDEX, &req) < 0)
		return rc;
	if (!vma_device_has_hw_timestamps(engine, (uint32_t)req.ifr_ifindex))
		return rc;
	return vma_memcpy_or_efault(config, &given, sizeof(given));
}

int udp_ioctl(struct vma_file *file, int fd, unsigned long request, void *arg)
{
	struct udp_sock *sock = udp_sock(file);

	switch (request) {
	case FIONREAD:
		return udp_ioctl_next_len(sock, fd, arg);
	case FIONBIO:
	case FIOASYNC:
		return vma_inet_ioctl_flag(&udp_flags_ops, file, fd, request, arg);
	case SIOCGSTAMP_OLD:
	case SIOCGSTAMP_NEW:
	case SIOCGSTAMPNS_OLD:
	case SIOCGSTAMPNS_NEW:
		return udp_ioctl_last_stamp(sock, fd, request, arg);
	case SIOCSHWTSTAMP:
	case SIOCGHWTSTAMP:
		return udp_ioctl_hw_timestamping(fd, request, arg);
	default:
		return vma_inet_os_ioctl(fd, request, arg);
	}
}

int udp_fcntl(struct vma_file *file, int fd, int cmd, void *arg)
{
	return vma_inet_fcntl(&udp_flags_ops, file, fd, cmd, arg);
}
