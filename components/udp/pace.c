/* pace.c - a socket's pace by software. */
#include "pace.h"

#define PACE_LATE_NS UINT64_C(1000000)
#define PACE_COST_MAX_NS UINT64_C(1000000000)

/* The time of the next frame stays: a change of the rate lets no burst go. */
void udp_pace_set_rate(struct udp_sock *sock, uint64_t bytes_per_sec)
{
	atomic_store_explicit(&sock->pace_rate, bytes_per_sec, memory_order_relaxed);
	if (bytes_per_sec != 0)
		atomic_fetch_or_explicit(&sock->unplain, UDP_PACED, memory_order_relaxed);
	else
		atomic_fetch_and_explicit(&sock->unplain, (uint8_t)~UDP_PACED, memory_order_relaxed);
}

/* Of a rate that has just become none: nothing. */
static uint64_t pace_frame_cost_ns(const struct udp_sock *sock, uint32_t len)
{
	const uint64_t rate = atomic_load_explicit(&sock->pace_rate, memory_order_relaxed);
	const uint64_t cost_ns = rate != 0 ? len * UINT64_C(1000000000) / rate : 0;

	return cost_ns < PACE_COST_MAX_NS ? cost_ns : PACE_COST_MAX_NS;
}

/*
 * Relaxed: the time orders nothing but itself. Two threads that send at once each move it by their own frame, or one of
 * them tries again, so both frames count.
 */
uint64_t udp_pace_reserve_time_for_frame(struct udp_sock *sock, uint32_t len, uint64_t *taken_ns)
{
	const uint64_t now_ns = vma_now_ns(), cost_ns = pace_frame_cost_ns(sock, len);
	uint64_t next_ns = atomic_load_explicit(&sock->pace_next_ns, memory_order_relaxed), start_ns;

	do {
		if (next_ns > now_ns)
			return next_ns;
		start_ns = next_ns + PACE_LATE_NS > now_ns ? next_ns : now_ns - PACE_LATE_NS;
	} while (!atomic_compare_exchange_weak_explicit(&sock->pace_next_ns, &next_ns, start_ns + cost_ns,
	                                                memory_order_relaxed, memory_order_relaxed));
	*taken_ns = cost_ns;
	return 0;
}

void udp_pace_undo_delay_of_unsent_frame(struct udp_sock *sock, uint64_t taken_ns)
{
	atomic_fetch_sub_explicit(&sock->pace_next_ns, taken_ns, memory_order_relaxed);
}

static bool pace_is_due(const struct udp_sock *sock)
{
	return !udp_is_paced(sock) || atomic_load_explicit(&sock->pace_next_ns, memory_order_relaxed) <= vma_now_ns();
}

/*
 * The flag is taken down before readiness is told. Whoever has found it up was told by a look at the time that came
 * before this, so it hears of this readiness; if a frame has been sent meanwhile, it finds that it is too early again.
 */
static void pace_task_wakes_writers_if_due(struct vma_internal_task *task)
{
	struct udp_sock *sock = (struct udp_sock *)((char *)task - offsetof(struct udp_sock, pace_task));

	if (!pace_is_due(sock)) {
		vma_engine_post_task_within_1ms(task);
		return;
	}
	atomic_store(&sock->pace_scheduled, false);
	vma_waitq_wake(&sock->file.waitq, true); /* those who wait for data do not mind */
	vma_file_wake_sleepers_and_watchers(&sock->file, EPOLLOUT);
	vma_file_put(&sock->file);
}

void udp_pace_schedule_readiness(struct udp_sock *sock)
{
	if (vma_engine_get_or_start() == NULL || !vma_file_mark_scheduled(&sock->file, &sock->pace_scheduled))
		return;
	sock->pace_task.run = pace_task_wakes_writers_if_due;
	vma_engine_post_task_within_1ms(&sock->pace_task);
}

bool udp_pace_may_send_or_schedule_wakeup(struct udp_sock *sock)
{
	if (pace_is_due(sock))
		return true;
	udp_pace_schedule_readiness(sock);
	return false;
}

/* The parent's thread runs that task, there. */
void udp_pace_drop_scheduled_task_after_fork(struct udp_sock *sock)
{
	if (atomic_exchange(&sock->pace_scheduled, false))
		vma_file_put(&sock->file);
	sock->pace_task = (struct vma_internal_task){0};
}
