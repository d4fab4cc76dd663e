/* The allowance of share.h. */
#include "share.h"

static void share_refill(struct vma_tcp *tcp)
{
	struct tcp_share *share = &tcp->share;
	uint64_t now_ms = tcp->now_ns / TCP_NS_PER_MS, passed = now_ms - share->filled_ms;

	share->filled_ms = now_ms;
	if (passed >= SHARE_AT_ONCE / SHARE_PER_MS)
		share->left = SHARE_AT_ONCE;
	else
		share->left += (uint32_t)passed * SHARE_PER_MS;
	if (share->left > SHARE_AT_ONCE)
		share->left = SHARE_AT_ONCE;
}

static void share_set_timer(struct vma_tcp *tcp)
{
	if (!wheel_is_set(&tcp->share.timer))
		wheel_set(&tcp->wheel, &tcp->share.timer, (tcp->now_ns / TCP_NS_PER_MS + 1) * TCP_NS_PER_MS);
}

static void wait_in_queue(struct vma_tcp_conn *conn)
{
	struct tcp_share *share = &conn->tcp->share;

	if (conn->in_share)
		return;
	conn->in_share = true;
	conn->next_share = NULL;
	if (share->first == NULL)
		share->first = conn;
	else
		share->last->next_share = conn;
	share->last = conn;
	share_set_timer(conn->tcp);
}

static struct vma_tcp_conn *share_take_first(struct tcp_share *share)
{
	struct vma_tcp_conn *conn = share->first;

	share->first = conn->next_share;
	conn->in_share = false;
	return conn;
}

bool share_take(struct vma_tcp_conn *conn)
{
	struct tcp_share *share = &conn->tcp->share;

	if (conn->share_granted != 0) {
		conn->share_granted--;
		return true;
	}
	share_refill(conn->tcp);
	if (share->first != NULL || share->left == 0) {
		wait_in_queue(conn);
		return false;
	}
	share->left--;
	return true;
}

/* One that is over takes nothing of the allowance; it may be waiting for its place to be freed. */
void tcp_share_grant(struct vma_tcp *tcp)
{
	struct tcp_share *share = &tcp->share;

	share_refill(tcp);
	while (share->first != NULL && share->left != 0) {
		struct vma_tcp_conn *conn = share_take_first(share);
		uint32_t grant = share->left < SHARE_GRANT ? share->left : SHARE_GRANT;

		if (!conn->is_over) {
			conn->share_granted = grant;
			share->left -= grant;
		}
		tcp_ready(conn);
	}
	if (share->first != NULL)
		share_set_timer(tcp);
}
