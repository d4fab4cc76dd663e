/*
 * closer - threads that close descriptors that clients have passed to vmad, and connections to clients.
 *
 * Such a close can wait: for a peer of a socket with SO_LINGER, for the owner of a file system, for a terminal. If a
 * connection is closed, the messages in its queue are closed with it. So vmad's own thread closes none of them.
 *
 * Each job has a thread for as long as it takes, so jobs do not wait for each other. The number of jobs bounds that of
 * the threads. A thread that waits for longer than VMAD_CLOSE_LATE_MS gets signals, which end all such waits but that
 * for a file system.
 *
 * Threads: all calls by vmad's one.
 * Progress: no call waits for a close.
 * Memory: the closer's own; it goes when its last thread has ended.
 * Example: tests/hostile/lingering.sh.
 */
#ifndef VMA_NIC_VMAD_CLOSER_H
#define VMA_NIC_VMAD_CLOSER_H

#include <stdbool.h>
#include <stdint.h>

#define VMAD_CLOSE_LATE_MS 1000
#define VMAD_CLOSE_FDS 256

struct vmad_fd_closer;

/* -errno. A vmad whose thread cannot be made closes by itself. */
int vmad_fd_closer_create(unsigned jobs, struct vmad_fd_closer **out);
void vmad_fd_closer_destroy(struct vmad_fd_closer *closer); /* what is not closed yet will be; NULL: nothing happens */
int vmad_fd_closer_done_fd(const struct vmad_fd_closer *closer);  /* readable: jobs have ended */
void vmad_fd_closer_drain_done_fd(struct vmad_fd_closer *closer); /* that */
/* Up to VMAD_CLOSE_FDS descriptors, by a job that is not busy; those below zero are none. */
void vmad_fd_closer_submit(struct vmad_fd_closer *closer, unsigned job, const int *fds, unsigned nfds);
bool vmad_fd_closer_job_is_running(const struct vmad_fd_closer *closer, unsigned job);
bool vmad_fd_closer_job_is_late(const struct vmad_fd_closer *closer, unsigned job,
                                uint64_t now_ms); /* busy for so long */
/* Signals to those that wait for too long. True: there are some, and it is to be called again soon. */
bool vmad_fd_closer_signal_late_jobs(struct vmad_fd_closer *closer, uint64_t now_ms);
/*
 * Before a fork: a child's end would close what is still to be closed, too, and wait. True: no descriptor of a job is
 * open any more. False: some are after a few milliseconds.
 */
bool vmad_fd_closer_wait_all_closed(struct vmad_fd_closer *closer);

#endif
