/*
 * load - whether more threads are runnable on this host than it has cores.
 *
 * A spinner takes a core. As long as a core would be idle, that costs no other thread anything. If none would be, the
 * spinner keeps the core from other programs of the host. It may also keep it from the thread for whose packets it
 * waits, if that is on this host.
 *
 * /proc/loadavg says how many threads are runnable, the asking one among them, on all cores of the host. So a process
 * that may use only some of the cores compares with all of them, too: the number says nothing about its own.
 *
 * The number is that of an instant. Threads that hand work to each other in turn are runnable together for a moment,
 * though none waits for a core. So the load is high if LOAD_SAMPLES samples in a row were.
 *
 * Threads: any; one of them reads at a time, the others go by what was read last.
 * Progress: one system call at most, once in LOAD_NSEC.
 * Memory: the caller's; all zero is a good beginning. A forked child goes on with the descriptor.
 * Example: test/test_load.c.
 */
#ifndef VMA_SOCK_WAIT_LOAD_H
#define VMA_SOCK_WAIT_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOAD_NSEC 2000000
#define LOAD_SAMPLES 4

struct load {
	_Atomic uint64_t next_tsc; /* when it is to be read again; UINT64_MAX: it is being read, or cannot be */
	_Atomic bool high;
	uint32_t high_samples; /* by who reads: in a row, LOAD_SAMPLES at most */
	uint32_t cores;        /* by who reads: 0, not opened yet */
	int fd;
};
bool loadavg_is_high(struct load *load, uint64_t now_tsc);
/* The same of a descriptor and a number of cores that are given; fd remains the caller's. */
void loadavg_set_fd_and_cores(struct load *load, int fd, uint32_t cores);
/* In a forked child: a thread that was reading is not here. */
void loadavg_reset_in_fork_child(struct load *load);
/* How many are runnable, of /proc/loadavg's text; -1: it is none. */
int loadavg_parse_runnable(const char *text, size_t len);

#endif
