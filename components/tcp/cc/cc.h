/*
 * cc - congestion control: how many bytes may be in flight, and how fast they leave. It is a table of functions per
 *      algorithm; all units are bytes and nanoseconds.
 *
 *   NewReno  RFC 5681, 6582 (VMA_TCP_CC_LWIP)     Cubic  RFC 9438, with HyStart++ (RFC 9406)     none  no window
 *   BBR      draft-cardwell-iccrg-bbr-congestion-control-00
 *
 * There are two kinds. The first kind moves a window by what is acknowledged and lost (acked and reduce);
 * loss/recovery.c's proportional rate reduction is part of it. The second kind has a model of the path, from samples of
 * the delivery rate (sampled). It sets window and pacing rate itself, during recovery as well.
 *
 * Threads: the driver; a struct tcp_cc is touched by nothing else. Example: test/test_cc.c.
 */
#ifndef VMA_TCP_CC_CC_H
#define VMA_TCP_CC_CC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an acknowledgement says of the path. */
struct tcp_cc_sample {
	uint64_t delivered;                  /* bytes in all, its own included */
	uint64_t prior_delivered;            /* the same when what it is about was sent; valid with is_known */
	uint64_t bytes_per_sec;              /* 0: not known */
	uint64_t rtt_ns;                     /* 0: not known */
	uint32_t newly;                      /* bytes that it has found delivered, */
	uint32_t lost;                       /* and lost */
	uint32_t in_flight, prior_in_flight; /* after it, and before */
	bool is_valid, app_limited;
	enum { CC_OPEN, CC_RECOVERY, CC_LOSS } phase; /* recovery's; LOSS: after a timeout */
};

struct tcp_cc;
union tcp_cc_info;
struct tcp_cc_ops {
	const char *name; /* as TCP_CONGESTION knows it: "reno", "cubic", "none", "bbr" */
	void (*init)(struct tcp_cc *cc);
	/* cwnd may grow: the window was used. */
	void (*acked)(struct tcp_cc *cc, uint32_t acked, uint64_t rtt_ns, uint64_t now_ns);
	uint32_t (*reduce)(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns); /* the new ssthresh */
	void (*timeout)(struct tcp_cc *cc, uint64_t now_ns);
	void (*unused)(struct tcp_cc *cc, uint64_t span_ns); /* that long the application has left the window unused */
	void (*undo)(struct tcp_cc *cc);                     /* the last loss was none */
	/* Of a model. True: what is in flight now is less than the path could take, and no measure of it. */
	bool (*sampled)(struct tcp_cc *cc, const struct tcp_cc_sample *sample, uint64_t now_ns);
	/* Of a model: something is sent, and nothing is in flight. */
	void (*restarted)(struct tcp_cc *cc, bool app_limited, uint64_t now_ns);
	/* What it says of itself: bytes of it. */
	size_t (*info)(const struct tcp_cc *cc, union tcp_cc_info *info);
};
/* Cubic's memory of the last losses, as far as a spurious one is taken back (RFC 9438 4.9). */
struct tcp_cubic {
	uint32_t w_max;            /* cwnd before the last reduction, or lower: fast convergence */
	uint32_t epoch_start_cwnd; /* when this congestion avoidance began; epoch_ns 0: it has not */
	uint32_t w_est, w_est_acked;
	uint32_t cwnd_prior;
	uint32_t k_ms;
	uint64_t epoch_ns;
};
#define BBR_RATE_ROUNDS 10
struct tcp_bbr_state {
	/* the highest delivery rate of each of the last rounds (by round modulo their number), and of them all */
	uint64_t rate[BBR_RATE_ROUNDS], max_rate;
	uint64_t round, round_end; /* a round ends when what is sent after so many bytes were delivered is delivered */
	uint64_t rate_round;       /* of the last sample */
	uint64_t delivered;
	uint64_t min_rtt_ns, min_rtt_at_ns; /* UINT64_MAX: not known */
	uint64_t probe_rtt_done_ns;         /* 0: in_flight has not come down yet */
	uint64_t cycle_ns;                  /* when this phase of the cycle began */
	uint64_t full_rate;                 /* STARTUP: the rate that has to be exceeded */
	uint64_t epoch_ns, epoch_bytes;     /* what has been acknowledged since, faster than the rate of the path, */
	uint32_t extra_acked[2], extra_acked_rounds; /* and how much it was, of the last rounds, in two halves */
	uint32_t prior_cwnd;                         /* before recovery or PROBE_RTT */
	uint8_t mode, cycle, full_rounds, extra_acked_half, phase;
	bool full, round_start, conserving, idle_restart, probe_rtt_round_done;
};
struct tcp_cc {
	const struct tcp_cc_ops *ops;
	uint32_t mss, cwnd, ssthresh; /* ssthresh UINT32_MAX: not known yet */
	uint32_t acked;               /* bytes acknowledged that have not moved cwnd yet */
	uint64_t acked_ns;            /* of the last call of cc_on_ack */
	uint64_t pacing_rate;         /* bytes per second at which segments leave; 0: as fast as they can */
	uint32_t quantum;             /* bytes that may leave at once, with a pacing_rate */
	uint32_t initial;             /* segments of the initial window, as the route says; 0: as RFC 6928 does */
	union {
		struct {
			struct tcp_cubic cubic, cubic_undo;
			/* HyStart++ */
			uint64_t round_min_ns, last_round_min_ns;
			uint32_t round_samples, css_rounds;
			uint32_t round_left; /* bytes until the round ends */
			uint64_t css_baseline_ns;
			bool in_css;
		};
		struct tcp_bbr_state bbr;
	};
};

#define CC_INITIAL_SEGMENTS 10 /* RFC 6928 */
#define CC_CWND_MAX (1u << 30) /* the largest window that window scaling allows */
void cc_init(struct tcp_cc *cc, int algorithm /* enum vma_tcp_cc */, uint32_t mss);
void cc_set_mss(struct tcp_cc *cc, uint32_t mss);
/* The initial window, also of a restart, has so many segments (0: as RFC 6928 2): from now on, or where the window has
 * moved, from the next restart on. */
void cc_set_initial_window_segments(struct tcp_cc *cc, uint32_t segments);
/* New data has been acknowledged outside recovery. was_limited: the window, not the application, was what held back. */
void cc_on_ack(struct tcp_cc *cc, uint32_t acked, bool was_limited, uint64_t rtt_ns, uint64_t now_ns);
/* Recovery begins: sets ssthresh; cwnd is recovery's until cc_on_recovery_end (RFC 6937 proportional rate reduction).
 * */
void cc_on_loss(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns);
void cc_on_recovery_end(struct tcp_cc *cc, uint64_t now_ns);
void cc_on_rto(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns); /* cwnd: one segment */
void cc_undo_reduction(struct tcp_cc *cc, uint32_t cwnd, uint32_t ssthresh);
/* Nothing was sent for idle_ns: restart as the kernel (tcp_slow_start_after_idle, RFC 2861). */
void cc_decay_after_idle(struct tcp_cc *cc, uint64_t idle_ns, uint64_t rto_ns);
/* With a model: instead of cc_on_ack, at the end of each acknowledgement; see sampled and restarted above. */
static inline bool cc_is_model_based(const struct tcp_cc *cc)
{
	return cc->ops->sampled != 0;
}
bool cc_on_rate_sample(struct tcp_cc *cc, const struct tcp_cc_sample *sample, uint64_t now_ns);
void cc_on_restart_from_idle(struct tcp_cc *cc, bool app_limited, uint64_t now_ns);
uint32_t cc_initial_window(const struct tcp_cc *cc);
extern const struct tcp_cc_ops cc_newreno, cc_cubic, cc_bbr;
uint32_t cc_cube_root(uint64_t value); /* the largest whole number whose cube is not above it */

#endif
