/* options.c - options: their values, and their immediate effects. All other code looks at a value when it needs it. */
#include <errno.h>

#include "tcp_priv.h"
#include "lwip/port.h"

void vma_tcp_options_init(struct vma_tcp_options *options)
{
	*options = (struct vma_tcp_options){
#define X(name, field, value) .field = value,
	        VMA_TCP_OPTIONS(X)
#undef X
	};
}

/* As the kernel's setsockopt: what is out of range, and what is brought into it. */
static int check_and_clamp_tcp_option(enum vma_tcp_option option, int32_t *value)
{
	static const struct {
		int32_t min, max;
	} range[VMA_TCP_OPT_COUNT] = {[VMA_TCP_OPT_KEEPIDLE] = {1, 32767},
	                              [VMA_TCP_OPT_KEEPINTVL] = {1, 32767},
	                              [VMA_TCP_OPT_KEEPCNT] = {1, 127},
	                              [VMA_TCP_OPT_USER_TIMEOUT] = {0, INT32_MAX},
	                              [VMA_TCP_OPT_SYNCNT] = {1, 127},
	                              [VMA_TCP_OPT_SYNACK_RETRIES] = {0, 255},
	                              [VMA_TCP_OPT_RETRIES2] = {0, 255},
	                              [VMA_TCP_OPT_ORPHAN_RETRIES] = {0, 255},
	                              [VMA_TCP_OPT_SYNCOOKIES] = {0, 2},
	                              [VMA_TCP_OPT_TTL] = {1, 255},
	                              [VMA_TCP_OPT_TOS] = {0, 255},
	                              [VMA_TCP_OPT_PMTUDISC] = {0, 5},
	                              [VMA_TCP_OPT_CONGESTION] = {0, VMA_TCP_CC_BBR},
	                              [VMA_TCP_OPT_SNDBUF] = {0, INT32_MAX},
	                              [VMA_TCP_OPT_RCVBUF] = {0, INT32_MAX},
	                              [VMA_TCP_OPT_SNDBUF_INIT] = {0, INT32_MAX},
	                              [VMA_TCP_OPT_SNDBUF_MAX] = {0, INT32_MAX},
	                              [VMA_TCP_OPT_RCVBUF_INIT] = {0, INT32_MAX},
	                              [VMA_TCP_OPT_RCVBUF_MAX] = {0, INT32_MAX},
	                              [VMA_TCP_OPT_WINDOW_CLAMP] = {0, INT32_MAX}};

	switch (option) {
	case VMA_TCP_OPT_NODELAY:
	case VMA_TCP_OPT_CORK:
	case VMA_TCP_OPT_QUICKACK:
	case VMA_TCP_OPT_KEEPALIVE:
	case VMA_TCP_OPT_OOBINLINE:
		*value = *value != 0;
		return 0;
	case VMA_TCP_OPT_MAXSEG: /* 0: from the path */
		return *value != 0 && (*value < 88 || *value > 32767) ? -EINVAL : 0;
	case VMA_TCP_OPT_LINGER2:
		*value = *value < 0 ? -1 : *value > 120 ? 120 : *value == 0 ? 60 : *value;
		return 0;
	case VMA_TCP_OPT_DEFER_ACCEPT:
		*value = *value < 0 ? 0 : *value;
		return 0;
	case VMA_TCP_OPT_NOTSENT_LOWAT:
		return 0;
	default:
		return *value < range[option].min || *value > range[option].max ? -EINVAL : 0;
	}
}

int vma_tcp_set_option(struct vma_tcp_conn *conn, enum vma_tcp_option option, int32_t value)
{
	int rc;

	if ((unsigned)option >= VMA_TCP_OPT_COUNT)
		return -EINVAL;
	rc = check_and_clamp_tcp_option(option, &value);
	if (rc != 0)
		return rc;
	atomic_store_explicit(&conn->option[option], value, memory_order_relaxed);
	atomic_fetch_or_explicit(&conn->options_changed, UINT32_C(1) << option, memory_order_release);
	tcp_run_conn_work_now_or_queue(conn, TCP_WORK_OPTIONS);
	return 0;
}

int32_t vma_tcp_get_option(const struct vma_tcp_conn *conn, enum vma_tcp_option option)
{
	return (unsigned)option < VMA_TCP_OPT_COUNT ? tcp_option(conn, option) : -EINVAL;
}

uint64_t vma_tcp_rcvbuf_bytes(const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed);
}

/* ---- driver ---- */

_Static_assert(VMA_TCP_OPT_COUNT <= 32, "bits of options_changed");
#define BIT(name) (UINT32_C(1) << VMA_TCP_OPT_##name)

/* Another algorithm goes on with the window that there is. */
static void conn_change_cc_algorithm(struct vma_tcp_conn *conn)
{
	uint32_t cwnd = conn->cc.cwnd, ssthresh = conn->cc.ssthresh, initial = conn->cc.initial;
	struct vma_stats_socket *stats = atomic_load_explicit(&conn->stats, memory_order_acquire);

	if (stats != NULL)
		vma_stats_set(&stats->tcp_cc, (uint64_t)tcp_option(conn, VMA_TCP_OPT_CONGESTION) + 1);
	cc_init(&conn->cc, tcp_option(conn, VMA_TCP_OPT_CONGESTION), conn->cc.mss);
	cc_set_initial_window_segments(&conn->cc, initial);
	if (tcp_option(conn, VMA_TCP_OPT_CONGESTION) == VMA_TCP_CC_NONE || cwnd >= CC_CWND_MAX)
		return;
	conn->cc.cwnd = cwnd;
	conn->cc.ssthresh = ssthresh;
}

void tcp_apply_changed_options(struct vma_tcp_conn *conn)
{
	uint32_t changed = atomic_exchange_explicit(&conn->options_changed, 0, memory_order_acq_rel);

	/* TCP_NODELAY sends what waits also while TCP_CORK is set, as the kernel's; what is written later waits. */
	if (tcp_option(conn, VMA_TCP_OPT_NODELAY) &&
	    (changed & BIT(NODELAY) || (changed & BIT(CORK) && !tcp_option(conn, VMA_TCP_OPT_CORK))))
		conn->push_once = true;
	if (changed & BIT(QUICKACK))
		window_set_quickack(conn, tcp_option(conn, VMA_TCP_OPT_QUICKACK) != 0);
	if (changed & (BIT(SNDBUF) | BIT(RCVBUF) | BIT(WINDOW_CLAMP)))
		tcp_apply_sndbuf_rcvbuf_options(conn);
	if (changed & BIT(MAXSEG))
		tcp_conn_mss_update(conn);
	if (changed & BIT(CONGESTION))
		conn_change_cc_algorithm(conn);
	if (changed &
	    (BIT(KEEPALIVE) | BIT(KEEPIDLE) | BIT(KEEPINTVL) | BIT(KEEPCNT) | BIT(USER_TIMEOUT) | BIT(LINGER2)))
		timers_keepalive_update(conn);
}
