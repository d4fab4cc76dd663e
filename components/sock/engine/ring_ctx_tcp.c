/*
 * ring_ctx_tcp - a ring context's stack of TCP connections: made when the first socket asks for it, ended with the ring
 * context.
 *
 * The stack's callbacks run in the thread that drives, with the receive flag held: they note something for the internal
 * thread and return (tcp_housekeeping.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/tcp.h>

#include "../clock.h"
#include "internal.h"

enum { TIMESTAMPS_OFF, TIMESTAMPS_ON, TIMESTAMPS_AS_OS }; /* VMA_TCP_TIMESTAMP_OPTION */

static pthread_mutex_t tcp_stack_create_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t ring_ctx_tcp_now_ns(void *arg)
{
	(void)arg;
	return clock_ns();
}

/* The text of net.ipv4.NAME. False: it cannot be read. */
static bool read_sysctl(const char *name, char text[96])
{
	char path[64];
	int fd;
	long got;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/%s", name);
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	got = syscall(SYS_read, fd, text, 95);
	syscall(SYS_close, fd);
	text[got > 0 ? got : 0] = '\0';
	return got > 0;
}

/* The kernel's default of all that is asked for here is on. */
static bool sysctl_is_on(const char *name)
{
	char text[96];

	return !read_sysctl(name, text) || text[0] != '0';
}

/* A bound, at least 1; 0: not known. */
static uint32_t sysctl_read_limit(const char *name)
{
	char text[96];
	uint32_t value;

	if (!read_sysctl(name, text) || sscanf(text, "%" SCNu32, &value) != 1)
		return 0;
	return value != 0 ? value : 1;
}

/* auto: as the interface says that it cuts what the kernel sends (ethtool -K IF tso). */
static bool stack_is_to_use_tso(const struct vma_conf *conf, const struct vma_nic_info *info)
{
	struct ethtool_value value = {.cmd = ETHTOOL_GTSO};
	struct ifreq request = {.ifr_data = (void *)&value};
	bool is_on = true;
	int fd;

	if (conf->tso != VMA_CONF_AUTO || !(info->caps & VMA_NIC_CAP_TSO))
		return conf->tso != VMA_CONF_OFF;
	fd = (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return true;
	if (if_indextoname(info->ifindex, request.ifr_name) != NULL &&
	    syscall(SYS_ioctl, fd, SIOCETHTOOL, &request) == 0)
		is_on = value.data != 0;
	syscall(SYS_close, fd);
	return is_on;
}

static bool stack_is_to_use_timestamps(const struct vma_conf *conf)
{
	return conf->tcp_timestamp_option == TIMESTAMPS_ON ||
	       (conf->tcp_timestamp_option == TIMESTAMPS_AS_OS && sysctl_is_on("tcp_timestamps"));
}

/*
 * All ring contexts' together. net.ipv4.tcp_mem is the host's, in pages, and cannot be read in every network namespace;
 * then it is what the kernel makes of the memory that there is.
 */
static struct vma_tcp_memory memory;

/* Of the buffers for what is received, zero-copy receive of TCP has a quarter at most: others receive, too. */
#define ZCOPY_PART 4

static void init_memory_limits(const struct vma_conf *conf)
{
	const int64_t page = sysconf(_SC_PAGESIZE);
	int64_t pressure = sysconf(_SC_PHYS_PAGES) / 16, limit = pressure / 2 * 3;
	char text[96];

	if (read_sysctl("tcp_mem", text))
		sscanf(text, "%*s %" SCNd64 " %" SCNd64, &pressure, &limit);
	memory.segments_max = conf->given[VMA_CONF_AT_tx_segs_tcp] ? conf->tx_segs_tcp : 0;
	memory.pressure = pressure * page;
	memory.limit = limit * page;
	memory.frames_max = conf->rx_bufs / ZCOPY_PART;
}

struct vma_tcp_memory *vma_tcp_memory_of_process(void)
{
	return &memory;
}

/* A packet of the interface fits into a piece at least. */
static uint32_t tx_buf_bytes(const struct vma_conf *conf, const struct vma_device *device)
{
	const uint32_t mtu = vma_nic_info(device->nic)->mtu;

	if (conf->tx_buf_size == 0)
		return 0;
	return conf->tx_buf_size > mtu ? (uint32_t)conf->tx_buf_size : mtu;
}

static int ring_ctx_tcp_create(struct vma_ring_ctx *ring_ctx, struct vma_tcp **out)
{
	struct vma_engine *engine = ring_ctx->device->engine;
	struct vma_tcp_attr attr = {
	        .ring = ring_ctx->ring,
	        .arena = engine->arena,
	        .host = {.now_ns = ring_ctx_tcp_now_ns,
	                 .alloc = vma_alloc,
	                 .alloc_bytes = vma_alloc_bytes,
	                 .free = vma_free,
	                 .due = tcp_housekeeping_wake_for_earlier_timer,
	                 .retire = tcp_housekeeping_queue_ended_conn_to_free,
	                 .prune = tcp_housekeeping_schedule_rule_deletion,
	                 .idle = tcp_housekeeping_on_stack_idle,
	                 .control = engine->conf.tcp_ctl_thread != 0 ? tcp_housekeeping_schedule_control_conns : NULL,
	                 .arg = ring_ctx},
	        .no_tso = !stack_is_to_use_tso(&engine->conf, vma_nic_info(ring_ctx->device->nic)),
	        .no_timestamps = !stack_is_to_use_timestamps(&engine->conf),
	        .no_sack = !sysctl_is_on("tcp_sack"),
	        .no_window_scaling = !sysctl_is_on("tcp_window_scaling"),
	        .no_idle_restart = !sysctl_is_on("tcp_slow_start_after_idle"),
	        .no_rcvbuf_growth = !sysctl_is_on("tcp_moderate_rcvbuf"),
	        .orphans_max = sysctl_read_limit("tcp_max_orphans"),
	        .time_wait_max = sysctl_read_limit("tcp_max_tw_buckets"),
	        .timer_resolution_ns = engine->conf.given[VMA_CONF_AT_tcp_timer_resolution_msec]
	                                       ? (uint64_t)engine->conf.tcp_timer_resolution_msec * MS
	                                       : 0,
	        .min_snd_mss = sysctl_read_limit("tcp_min_snd_mss"),
	        .gro_streams_max = (uint32_t)engine->conf.gro_streams_max,
	        .quickack = engine->conf.tcp_quickack,
	        .quickack_threshold = (uint32_t)engine->conf.tcp_quickack_threshold,
	        .max_syn_rate = (uint32_t)engine->conf.tcp_max_syn_rate,
	        .mtu_max = (uint32_t)engine->conf.mtu,
	        .tx_buf_bytes = tx_buf_bytes(&engine->conf, ring_ctx->device),
	        .memory = &memory,
	        .name = vma_nic_info(ring_ctx->device->nic)->name,
	};

	if (memory.limit == 0)
		init_memory_limits(&engine->conf);

	/* Without it sequence numbers could be guessed. */
	if (syscall(SYS_getrandom, attr.secret, sizeof(attr.secret), 0) != (long)sizeof(attr.secret))
		return -errno;
	return vma_tcp_create(&attr, out);
}

int vma_ring_ctx_get_or_create_tcp_stack(struct vma_ring_ctx *ring_ctx, struct vma_tcp **out)
{
	struct vma_tcp *tcp = atomic_load_explicit(&ring_ctx->tcp, memory_order_acquire);
	int rc = 0;

	if (tcp == NULL) {
		pthread_mutex_lock(&tcp_stack_create_lock);
		tcp = atomic_load_explicit(&ring_ctx->tcp, memory_order_relaxed);
		if (tcp == NULL)
			rc = ring_ctx_tcp_create(ring_ctx, &tcp);
		if (rc == 0)
			atomic_store_explicit(&ring_ctx->tcp, tcp, memory_order_release);
		pthread_mutex_unlock(&tcp_stack_create_lock);
		if (rc == 0)
			tcp_housekeeping_begin(); /* it is looked after in another way from now on */
	}
	if (rc < 0) {
		vma_log_once(VMA_LOG_WARN, "%s: no TCP: %s", vma_nic_info(ring_ctx->device->nic)->name,
		             strerrordesc_np(-rc));
		return rc;
	}
	*out = tcp;
	return 0;
}

void ring_ctx_tcp_end(struct vma_ring_ctx *ring_ctx)
{
	vma_tcp_destroy(atomic_load_explicit(&ring_ctx->tcp, memory_order_acquire));
}

void ring_ctx_tcp_reset_in_fork_child(void)
{
	pthread_mutex_init(&tcp_stack_create_lock, NULL);
	atomic_store(&memory.used, 0); /* the parent's connections are its own */
	atomic_store(&memory.frames, 0);
}
