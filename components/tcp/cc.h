/*
 * cc - congestion control: how many bytes may be in flight. A table of functions per algorithm; all units are bytes and
 *      nanoseconds.
 *
 *   NewReno  RFC 5681, 6582 (VMA_TCP_CC_LWIP)     Cubic  RFC 9438, with HyStart++ (RFC 9406)     none  no window
 *
 * Pure: driven by its calls. Example: test/test_cc.c.
 */
#ifndef VMA_TCP_CC_H
#define VMA_TCP_CC_H

#include <stdbool.h>
#include <stdint.h>

struct tcp_cc;
struct tcp_cc_ops {
	const char *name; /* as TCP_CONGESTION knows it: "reno", "cubic", "none" */
	void (*init)(struct tcp_cc *cc);
	/* cwnd may grow: the window was used. */
	void (*acked)(struct tcp_cc *cc, uint32_t acked, uint64_t rtt_ns, uint64_t now_ns);
	uint32_t (*reduce)(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns); /* the new ssthresh */
	void (*timeout)(struct tcp_cc *cc, uint64_t now_ns);
	void (*unused)(struct tcp_cc *cc, uint64_t span_ns); /* that long the application has left the window unused */
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
struct tcp_cc {
	const struct tcp_cc_ops *ops;
	uint32_t mss, cwnd, ssthresh; /* ssthresh UINT32_MAX: not known yet */
	uint32_t acked;               /* bytes acknowledged that have not moved cwnd yet */
	uint64_t acked_ns;            /* of the last call of cc_acked */
	struct tcp_cubic cubic, cubic_undo;
	/* HyStart++ */
	uint64_t round_min_ns, last_round_min_ns;
	uint32_t round_samples, css_rounds;
	uint32_t round_left; /* bytes until the round ends */
	uint64_t css_baseline_ns;
	bool in_css;
};

#define CC_INITIAL_SEGMENTS 10 /* RFC 6928 */
#define CC_CWND_MAX (1u << 30) /* the largest window that window scaling allows */
void cc_init(struct tcp_cc *cc, int algorithm /* enum vma_tcp_cc */, uint32_t mss);
void cc_set_mss(struct tcp_cc *cc, uint32_t mss);
/* New data has been acknowledged outside recovery. was_limited: the window, not the application, was what held back. */
void cc_acked(struct tcp_cc *cc, uint32_t acked, bool was_limited, uint64_t rtt_ns, uint64_t now_ns);
/* Recovery begins: sets ssthresh; cwnd is recovery's until cc_recovered (RFC 6937 proportional rate reduction). */
void cc_lost(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns);
void cc_recovered(struct tcp_cc *cc, uint64_t now_ns);
void cc_timeout(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns); /* cwnd: one segment */
void cc_undo(struct tcp_cc *cc, uint32_t cwnd, uint32_t ssthresh);
/* Nothing was sent for idle_ns: restart as the kernel (tcp_slow_start_after_idle, RFC 2861). */
void cc_idle(struct tcp_cc *cc, uint64_t idle_ns, uint64_t rto_ns);
extern const struct tcp_cc_ops cc_newreno, cc_cubic;
uint32_t cc_cube_root(uint64_t value); /* the largest whole number whose cube is not above it */
int cc_by_name(const char *name);      /* enum vma_tcp_cc; "lwip" and "newreno" are NewReno, too; -ENOENT */

#endif
