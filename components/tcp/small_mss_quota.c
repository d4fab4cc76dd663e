/* small_mss_quota.c - the quota of small_mss_quota.h. */
#include "small_mss_quota.h"

static void small_mss_quota_refill(struct vma_tcp *tcp)
{
	struct tcp_small_mss_quota *quota = &tcp->small_mss_quota;
	uint64_t now_ms = tcp->now_ns / TCP_NS_PER_MS, passed = now_ms - quota->filled_ms;

	quota->filled_ms = now_ms;
	if (passed >= SMALL_MSS_BURST / SMALL_MSS_PER_MS)
		quota->left = SMALL_MSS_BURST;
	else
		quota->left += (uint32_t)passed * SMALL_MSS_PER_MS;
	if (quota->left > SMALL_MSS_BURST)
		quota->left = SMALL_MSS_BURST;
}

static void small_mss_quota_set_timer(struct vma_tcp *tcp)
{
	if (!wheel_is_set(&tcp->small_mss_quota.timer))
		wheel_set(&tcp->wheel, &tcp->small_mss_quota.timer, (tcp->now_ns / TCP_NS_PER_MS + 1) * TCP_NS_PER_MS);
}

static void small_mss_quota_enqueue(struct vma_tcp_conn *conn)
{
	struct tcp_small_mss_quota *quota = &conn->tcp->small_mss_quota;

	if (conn->in_small_mss_queue)
		return;
	conn->in_small_mss_queue = true;
	conn->next_small_mss = NULL;
	if (quota->first == NULL)
		quota->first = conn;
	else
		quota->last->next_small_mss = conn;
	quota->last = conn;
	small_mss_quota_set_timer(conn->tcp);
}

static struct vma_tcp_conn *small_mss_quota_take_first(struct tcp_small_mss_quota *quota)
{
	struct vma_tcp_conn *conn = quota->first;

	quota->first = conn->next_small_mss;
	conn->in_small_mss_queue = false;
	return conn;
}

void small_mss_quota_dequeue_conn(struct vma_tcp_conn *conn)
{
	struct tcp_small_mss_quota *quota = &conn->tcp->small_mss_quota;
	struct vma_tcp_conn *before = NULL, *at = quota->first;

	for (; at != conn; at = at->next_small_mss)
		before = at;
	if (before == NULL)
		quota->first = conn->next_small_mss;
	else
		before->next_small_mss = conn->next_small_mss;
	if (quota->last == conn)
		quota->last = before;
	conn->in_small_mss_queue = false;
}

bool small_mss_quota_take(struct vma_tcp_conn *conn)
{
	struct tcp_small_mss_quota *quota = &conn->tcp->small_mss_quota;

	if (conn->small_mss_granted != 0) {
		conn->small_mss_granted--;
		return true;
	}
	small_mss_quota_refill(conn->tcp);
	if (quota->first != NULL || quota->left == 0) {
		small_mss_quota_enqueue(conn);
		return false;
	}
	quota->left--;
	return true;
}

/* One that is over takes nothing of the quota; it may be waiting for its place to be freed. */
void tcp_small_mss_quota_grant(struct vma_tcp *tcp)
{
	struct tcp_small_mss_quota *quota = &tcp->small_mss_quota;

	small_mss_quota_refill(tcp);
	while (quota->first != NULL && quota->left != 0) {
		struct vma_tcp_conn *conn = small_mss_quota_take_first(quota);
		uint32_t grant = quota->left < SMALL_MSS_GRANT ? quota->left : SMALL_MSS_GRANT;

		if (!conn->is_over) {
			conn->small_mss_granted = grant;
			quota->left -= grant;
		}
		conn_enqueue_ready(conn);
	}
	if (quota->first != NULL)
		small_mss_quota_set_timer(tcp);
}
