/*
 * plan - how much memory a queue pair gets, how fast it sends, and which sends ask for a completion. Arithmetic only.
 *
 * Threads: none of its own. Memory: the caller's.
 * Example: test/test_verbs_plan.c.
 */
#ifndef VMA_NIC_VERBS_PLAN_H
#define VMA_NIC_VERBS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/* ---- memory ---- */

#define VERBS_DEPTH_DEFAULT 512
#define VERBS_DEPTH_MIN 16
#define VERBS_SPARE 64 /* frames that threads' caches may keep */

struct verbs_queue_sizes_wanted {
	uint32_t frames_left;    /* that the nic may still register */
	uint32_t rx_wre, tx_wre; /* requested, packets; 0: the default */
	uint32_t wr_max;         /* of the device: packets in one queue */
	uint32_t rx_bufs;        /* buffers that one received packet may need */
};
struct verbs_queue_sizes {
	uint32_t rx_depth, tx_depth;   /* buffers; rx_depth is a multiple of rx_bufs */
	uint32_t rx_quota;             /* buffers that the user may hold before the queue gets short */
	uint32_t rx_frames, tx_frames; /* of the pools: half as much again, for what the user holds */
};

static inline uint32_t verbs_pool_frames_for_depth(uint32_t depth)
{
	return depth + depth / 2 + VERBS_SPARE;
}

static inline uint32_t verbs_depth_for_frames(uint32_t wanted, uint32_t frames)
{
	const uint32_t most = frames > VERBS_SPARE ? (uint32_t)((uint64_t)(frames - VERBS_SPARE) * 2 / 3) : 0;
	return wanted < most ? wanted : most;
}

/*
 * A queue pair gets half of what is left at most, so that later ones have some, too; and its send queue half of that at
 * most. False: there is too little for any.
 */
static inline bool verbs_compute_queue_sizes(const struct verbs_queue_sizes_wanted *in, struct verbs_queue_sizes *out)
{
	const uint32_t share = in->frames_left / 2;
	const uint32_t rx_wre = in->rx_wre != 0 ? in->rx_wre : VERBS_DEPTH_DEFAULT;

	out->tx_depth = verbs_depth_for_frames(in->tx_wre != 0 ? in->tx_wre : VERBS_DEPTH_DEFAULT, share / 2);
	if (out->tx_depth > in->wr_max)
		out->tx_depth = in->wr_max;
	out->tx_frames = verbs_pool_frames_for_depth(out->tx_depth);
	out->rx_depth =
	        verbs_depth_for_frames(rx_wre * in->rx_bufs, share > out->tx_frames ? share - out->tx_frames : 0);
	if (out->rx_depth / in->rx_bufs > in->wr_max)
		out->rx_depth = in->wr_max * in->rx_bufs;
	if (out->rx_depth < 2 * in->rx_bufs)
		out->rx_depth = 2 * in->rx_bufs;
	out->rx_depth -= out->rx_depth % in->rx_bufs;
	out->rx_frames = verbs_pool_frames_for_depth(out->rx_depth);
	out->rx_quota = out->rx_depth / (in->rx_bufs < 2 ? 2 : in->rx_bufs);
	return out->tx_depth >= VERBS_DEPTH_MIN && out->rx_depth >= VERBS_DEPTH_MIN &&
	       out->tx_frames + out->rx_frames <= in->frames_left;
}

/* ---- pace ---- */

/* Bytes per second as kbit/s of a device, the nearest that it can; 0: no limit, also for what is above all it can. */
static inline uint32_t verbs_pace_kbps(uint64_t bytes_per_sec, uint32_t min, uint32_t max)
{
	const uint64_t kbps = bytes_per_sec / 125 + (bytes_per_sec % 125 != 0);

	if (bytes_per_sec == 0 || kbps > max)
		return 0;
	return kbps < min ? min : (uint32_t)kbps;
}

/* ---- completions ---- */

/*
 * A completion tells of all packets before it. So one is asked for every `every` packets, and before the packets that
 * none has been asked for take a quarter of the queue: a full queue always has one on its way, and so has an empty
 * pool, which has more buffers than the queue has places. 0: each kick asks for one.
 */
struct verbs_signal_interval {
	uint32_t every, segs_most;
	int32_t left; /* packets of one segment up to the one that asks, with it */
	int32_t extra; /* places that are left beside those of `every` packets; without `every`, all places that are left */
};

/* One was asked for. */
static inline void verbs_signal_interval_restart(struct verbs_signal_interval *signals)
{
	const int32_t most = (int32_t)signals->segs_most, every = (int32_t)signals->every;

	signals->left = every == 0 ? 1 : every < most ? every : most;
	signals->extra = most - every;
}

static inline struct verbs_signal_interval verbs_signal_interval_init(uint32_t every, uint32_t tx_depth)
{
	struct verbs_signal_interval signals = {.every = every < tx_depth ? every : tx_depth,
	                                        .segs_most = tx_depth / 4 != 0 ? tx_depth / 4 : 1};

	verbs_signal_interval_restart(&signals);
	return signals;
}

/* The next packet asks for one. */
static inline void verbs_signal_request_on_next_send(struct verbs_signal_interval *signals)
{
	signals->left = 1;
	signals->extra = 0;
}

/* Of a packet of one segment that is all of a kick. */
static inline bool verbs_single_send_needs_signal(struct verbs_signal_interval *signals)
{
	if (__builtin_expect(--signals->left != 0, 1))
		return false;
	verbs_signal_interval_restart(signals);
	return true;
}

/* Of a packet of so many segments, in the order of sending. */
static inline bool verbs_send_needs_signal(struct verbs_signal_interval *signals, uint32_t segs, bool is_last_of_kick)
{
	int32_t packets;

	if (signals->every == 0) {
		signals->extra -= (int32_t)segs;
		if (!is_last_of_kick && signals->extra > 0)
			return false;
	} else {
		packets = signals->left - (signals->extra < 0 ? signals->extra : 0) - 1;
		signals->extra -= (int32_t)segs - 1;
		signals->left = packets + (signals->extra < 0 ? signals->extra : 0);
		if (signals->left > 0)
			return false;
	}
	verbs_signal_interval_restart(signals);
	return true;
}

#endif
