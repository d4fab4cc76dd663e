/*
 * stamps - time stamps of received packets: the card's, in the time that VMA_HW_TS_CONVERSION asks for.
 *
 * Completion queues are made so that they have stamps, but no thread reads them until vma_nic_enable_hw_timestamps says
 * so. From then on the nic's thread reads both clocks now and then (verbs_timestamps_sample_if_due). The hot path
 * converts each stamp by the line through these samples.
 *
 * The line is one for the nic. Its writer is the holder of `lock`; readers are the receive halves. `line.seq` is odd
 * while the line is written. A reader that meets a change takes the line that it read before.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include <vma/log.h>

#include "../os.h"
#include "verbs.h"

#define READINGS 8         /* of which the closest is the sample */
#define FIRST_SAMPLE_MS 50 /* the second one: the first slope that is measured */
#define NEXT_SAMPLE_MS 1000
#define BACKWARD_NS_MAX 1000000u /* that a new line may take a stamp behind the one before; beyond, the clock was set */

static uint64_t realtime_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool verbs_read_device_clock_ticks(struct ibv_context *context, uint64_t *ticks)
{
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	struct verbs_context *extended = verbs_get_ctx_op(context, query_rt_values);

	if (extended == NULL || extended->query_rt_values(context, &values) != 0 ||
	    (values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK) == 0)
		return false;
	/* A count of ticks in the form of a time; some providers fill in the nanoseconds alone, with all of it. */
	*ticks = (uint64_t)values.raw_clock.tv_sec * 1000000000u + (uint64_t)values.raw_clock.tv_nsec;
	return true;
}

/* The moment between two looks at the system's clock that lie closest together. */
static bool read_device_and_system_clock(struct ibv_context *context, uint64_t *ticks, uint64_t *ns)
{
	uint64_t closest = UINT64_MAX;

	for (unsigned i = 0; i < READINGS; i++) {
		const uint64_t before = realtime_ns();
		uint64_t then, after;

		if (!verbs_read_device_clock_ticks(context, &then))
			return false;
		after = realtime_ns();
		if (after < before || after - before >= closest)
			continue;
		closest = after - before;
		*ticks = then;
		*ns = before + closest / 2;
	}
	return closest != UINT64_MAX;
}

static void publish_clock_conversion(struct nic_verbs *nic)
{
	struct verbs_clock_conversion *line = &nic->line;
	const uint32_t seq = atomic_load_explicit(&line->seq, memory_order_relaxed);

	/* Release stores: a reader that sees one of the new values sees the odd number, too, if it looks again. */
	atomic_store_explicit(&line->seq, seq + 1, memory_order_relaxed);
	atomic_store_explicit(&line->ticks, nic->clock.ticks, memory_order_release);
	atomic_store_explicit(&line->ns, nic->clock.ns, memory_order_release);
	atomic_store_explicit(&line->slope, nic->clock.slope, memory_order_release);
	atomic_store_explicit(&line->seq, seq + 2, memory_order_release);
}

/* False: it is being written. */
static bool read_clock_conversion(const struct nic_verbs *nic, struct verbs_clock *clock)
{
	const struct verbs_clock_conversion *line = &nic->line;
	const uint32_t seq = atomic_load_explicit(&line->seq, memory_order_acquire);

	clock->sampled = true;
	/* Acquire loads pair with the writer's stores; the second look is not made before the values were read. */
	clock->ticks = atomic_load_explicit(&line->ticks, memory_order_acquire);
	clock->ns = atomic_load_explicit(&line->ns, memory_order_acquire);
	clock->slope = atomic_load_explicit(&line->slope, memory_order_acquire);
	return (seq & 1) == 0 && seq != 0 && atomic_load_explicit(&line->seq, memory_order_relaxed) == seq;
}

/* ---- control path; lock held ---- */

static void sample_device_and_system_clock(struct nic_verbs *nic)
{
	uint64_t ticks, ns;

	if (!read_device_and_system_clock(nic->device->context, &ticks, &ns)) {
		vma_log_debug("%s: RDMA device %s does not tell its clock", nic->name, nic->device->place.device);
		return;
	}
	verbs_clock_add_sample(&nic->clock, ticks, ns);
	publish_clock_conversion(nic);
}

void verbs_nic_init_timestamps_from_device(struct nic_verbs *nic)
{
	const struct verbs_limits *limits = &nic->device->limits;
	const bool has_counter = limits->clock_mask != 0 && limits->clock_khz != 0;

	nic->stamps = verbs_timestamp_kind_for(nic->conversion, has_counter, limits->has_clock, limits->has_wall);
	nic->clock = has_counter ? verbs_clock_init(limits->clock_mask, limits->clock_khz) : (struct verbs_clock){0};
	nic->sampled_ns = 0;
	if (nic->stamped)
		verbs_timestamps_sample_if_due(nic);
}

int verbs_timestamps_sample_if_due(struct nic_verbs *nic)
{
	uint64_t now, due;
	bool is_second;

	if (!nic->stamped || nic->stamps != VERBS_STAMPS_SYSTEM || nic->device->broken)
		return -1;
	now = os_now_ns();
	is_second = nic->samples == 1;
	due = nic->sampled_ns + (is_second ? FIRST_SAMPLE_MS : NEXT_SAMPLE_MS) * UINT64_C(1000000);
	if (nic->sampled_ns != 0 && now < due)
		return (int)((due - now) / 1000000) + 1;
	nic->samples = nic->sampled_ns == 0 ? 1 : nic->samples + (nic->samples < 2);
	nic->sampled_ns = now;
	sample_device_and_system_clock(nic);
	return nic->samples == 1 ? FIRST_SAMPLE_MS : NEXT_SAMPLE_MS;
}

/* Of a queue pair that was just bound, or exists when stamps are asked for. A lost one gets them when it is bound. */
void verbs_timestamps_start_on_qp(struct verbs_qp *qp)
{
	const struct nic_verbs *nic = qp->nic;
	const bool can = qp->queue.rx_cq_ex != NULL || qp->queue.mlx5 != NULL;
	const bool stamps = nic->stamped && can && qp->queue.rx_stamps == nic->stamps;

	atomic_store_explicit(&qp->rx_stamps, stamps ? nic->stamps : VERBS_STAMPS_NONE, memory_order_relaxed);
	verbs_data_select_paths(qp);
}

int verbs_enable_timestamps(struct vma_nic *base)
{
	struct nic_verbs *nic = (struct nic_verbs *)base;
	int rc = 0;

	if (!verbs_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	if (nic->stamps == VERBS_STAMPS_NONE)
		rc = -EOPNOTSUPP;
	if (rc == 0 && !nic->stamped) {
		nic->stamped = true;
		verbs_timestamps_sample_if_due(nic);
		for (struct verbs_qp *qp = nic->qps; qp != NULL; qp = qp->next)
			verbs_timestamps_start_on_qp(qp);
	}
	pthread_mutex_unlock(&nic->lock);
	if (rc == 0)
		verbs_thread_wake(nic);
	return rc;
}

/* ---- hot path of those that want stamps; receive half ---- */

/* A line that is new may lie a little below the one before: the stamps of one queue go forward all the same. */
static uint64_t timestamp_make_monotonic(struct verbs_qp *qp, uint64_t ns)
{
	if (ns < qp->rx_stamp_last && qp->rx_stamp_last - ns < BACKWARD_NS_MAX)
		return qp->rx_stamp_last;
	qp->rx_stamp_last = ns;
	return ns;
}

uint64_t verbs_rx_ticks_to_timestamp_ns(struct verbs_qp *qp, enum verbs_timestamp_kind stamps, uint64_t ticks)
{
	struct verbs_clock clock = qp->rx_clock;

	switch (stamps) {
	case VERBS_STAMPS_RAW:
		return verbs_clock_ticks_to_ns(&clock, ticks);
	case VERBS_STAMPS_SYSTEM:
		if (read_clock_conversion(qp->nic, &clock))
			qp->rx_last = clock;
		else
			clock = qp->rx_last;
		if (!clock.sampled)
			return 0;
		return timestamp_make_monotonic(qp, verbs_clock_ticks_to_ns(&clock, ticks));
	default:
		return 0;
	}
}

uint64_t verbs_read_completion_timestamp_ns(struct verbs_qp *qp, enum verbs_timestamp_kind stamps)
{
	struct ibv_cq_ex *ex = qp->queue.rx_cq_ex;

	if (stamps == VERBS_STAMPS_WALL)
		return ibv_wc_read_completion_wallclock_ns(ex);
	return stamps == VERBS_STAMPS_NONE ? 0
	                                   : verbs_rx_ticks_to_timestamp_ns(qp, stamps, ibv_wc_read_completion_ts(ex));
}
