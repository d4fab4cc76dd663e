/* ring_conf.c - the VMA_* parameters, as the attrs of memory, NIC and ring understand them. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <vma/conf.h>
#include <vma/log.h>

#include "ring_priv.h"

#define WINDOW_FRAMES (1U << 18) /* address space for windows, beside the ordinary memory */

static uint32_t min_conf_value(int64_t value, int64_t limit)
{
	return (uint32_t)(value < limit ? value : limit);
}

void vma_ring_conf_to_memory_attrs(const struct vma_conf *conf, struct vma_bufarena_attr *arena,
                                   struct vma_bufpool_attr *spill)
{
	arena->capacity = (uint32_t)(conf->rx_bufs + conf->tx_bufs) + WINDOW_FRAMES;
	arena->alloc_type = (enum vma_mem_alloc_type)conf->mem_alloc_type;
	spill->max_bufs = (uint32_t)conf->rx_bufs;
	spill->batching_mode = conf->buffer_batching_mode;
}

void vma_ring_conf_to_nic_attr(const struct vma_conf *conf, struct vma_nic_attr *nic)
{
	static const enum vma_nic_thread_caches caches[] = {VMA_NIC_CACHES_NONE, VMA_NIC_CACHES_RECLAIMED,
	                                                    VMA_NIC_CACHES_KEPT};

	nic->caches = caches[conf->buffer_batching_mode];
	nic->huge_pages = conf->mem_alloc_type == VMA_MEM_HUGE;
	nic->stats_dir = conf->stats_shmem_dir;
	nic->hw_ts_conversion = (unsigned)conf->hw_ts_conversion;
	nic->mlx5_direct = conf->mlx5_direct;
	nic->tcp_address_flows = conf->tcp_2t_rules;
}

int vma_ring_conf_to_device_spec(const struct vma_conf *conf, const char *ifname, char *spec, size_t size)
{
	static const char *const backends[] = {
	        [VMA_CONF_NIC_AUTO] = "auto", [VMA_CONF_NIC_VERBS] = "verbs", [VMA_CONF_NIC_XDP] = "xdp"};
	int len;

	if (conf->nic == VMA_CONF_NIC_NONE)
		return -EOPNOTSUPP;
	len = snprintf(spec, size, "%s:%s", backends[conf->nic], ifname);
	return len >= 0 && (size_t)len < size ? 0 : -ENAMETOOLONG;
}

/* An adaptive moderation that nobody asks for would hold back what comes today at once. */
static bool adaptive_moderation_is_wanted(const struct vma_conf *conf)
{
	return conf->given[VMA_CONF_AT_cq_moderation_enable] || conf->given[VMA_CONF_AT_cq_aim_max_count] ||
	       conf->given[VMA_CONF_AT_cq_aim_max_period_usec] || conf->given[VMA_CONF_AT_cq_aim_interval_msec] ||
	       conf->given[VMA_CONF_AT_cq_aim_interrupts_rate_per_sec];
}

/* Of count and period each has its default if the other is set; if neither is, a packet after silence wakes at once. */
static void conf_to_cq_moderation_attr(const struct vma_conf *conf, struct vma_cq_attr *cq)
{
	const bool is_fixed =
	        conf->given[VMA_CONF_AT_cq_moderation_count] || conf->given[VMA_CONF_AT_cq_moderation_period_usec];

	cq->aim = (struct vma_cq_aim_params){
	        .max_count = (uint32_t)conf->cq_aim_max_count,
	        .max_period_usec = (uint32_t)conf->cq_aim_max_period_usec,
	        .interval_msec = adaptive_moderation_is_wanted(conf) ? (uint32_t)conf->cq_aim_interval_msec : 0,
	        .interrupts_per_sec = (uint32_t)conf->cq_aim_interrupts_rate_per_sec,
	};
	if (is_fixed)
		cq->aim.base = (struct vma_cq_moderation){(uint32_t)conf->cq_moderation_count,
		                                          (uint32_t)conf->cq_moderation_period_usec};
	cq->moderation_enable = conf->cq_moderation_enable && (is_fixed || cq->aim.interval_msec != 0);
}

void vma_ring_conf_to_ring_attr(const struct vma_conf *conf, struct vma_ring_attr *ring)
{
	ring->rx_wre = min_conf_value(conf->rx_wre, conf->rx_bufs);
	ring->tx_wre = min_conf_value(conf->tx_wre, conf->tx_bufs);
	ring->tx_wre_batching = (uint32_t)conf->tx_wre_batching;
	ring->tx_inline = (uint32_t)conf->tx_max_inline;
	ring->thread_mode = (enum vma_thread_mode)conf->thread_mode;
	if (ring->thread_mode == VMA_THREAD_SPIN && conf->multilock != 0)
		ring->thread_mode = VMA_THREAD_MUTEX;
	ring->rx_sw_csum = conf->rx_sw_csum;
	ring->cq.poll_batch_max = (uint32_t)conf->cq_poll_batch_max;
	ring->cq.keep_qp_full = conf->cq_keep_qp_full;
	ring->cq.compensation_level = (uint32_t)conf->qp_compensation_level;
	ring->cq.rx_wre_batching = (uint32_t)conf->rx_wre_batching;
	ring->cq.prefetch_bytes = (uint32_t)conf->rx_prefetch_bytes;
	conf_to_cq_moderation_attr(conf, &ring->cq);
}

static void conf_log_if_less_is_granted(const struct vma_conf *conf, enum vma_conf_at at, const char *name,
                                        const char *ifname, int64_t wanted, uint32_t granted)
{
	if (conf->given[at] && (int64_t)granted < wanted)
		vma_log_once(VMA_LOG_INFO, "%s=%" PRId64 ": %s grants %u", name, wanted, ifname, granted);
}

void vma_ring_conf_log_granted_depths(const struct vma_conf *conf, const char *ifname, const struct vma_nic_qp *qp)
{
	conf_log_if_less_is_granted(conf, VMA_CONF_AT_rx_wre, "VMA_RX_WRE", ifname, conf->rx_wre, qp->rx_depth);
	conf_log_if_less_is_granted(conf, VMA_CONF_AT_tx_wre, "VMA_TX_WRE", ifname, conf->tx_wre, qp->tx_depth);
}
