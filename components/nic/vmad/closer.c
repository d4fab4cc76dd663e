/*
 * closer.c - see closer.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "../os.h"
#include "closer.h"

#define STACK_BYTES 65536
#define IDLE_MAX 4 /* threads that stay */
#define SETTLE_TRIES 50

/*
 * A job belongs to vmad's thread while it is not busy, and from then on to the thread that does it. That one gives it
 * back by a release store of `busy`, with which vmad's acquire load pairs, and touches it no more.
 */
struct job {
	struct job *next;
	_Atomic bool busy;
	pthread_t thread; /* that does it; under the lock */
	bool begun;       /* one does; the same */
	uint64_t since_ms;
	_Atomic unsigned at; /* the descriptor that is being closed; those behind it are open */
	unsigned nfds;
	int fds[VMAD_CLOSE_FDS];
};

struct vmad_fd_closer {
	pthread_mutex_t lock;
	pthread_cond_t job_added;
	struct job *first, **last; /* not begun */
	unsigned waiting, idle;    /* jobs, threads */
	unsigned users;            /* threads, and vmad's own */
	bool over;
	int fd;
	unsigned njobs;
	struct job job[];
};

static void closer_noop_signal_handler(int signal)
{
	(void)signal; /* what waits in the kernel returns */
}

int vmad_fd_closer_create(unsigned jobs, struct vmad_fd_closer **out)
{
	struct vmad_fd_closer *closer = calloc(1, sizeof(*closer) + jobs * sizeof(struct job));
	const struct sigaction action = {.sa_handler = closer_noop_signal_handler}; /* calls are not restarted */

	if (closer == NULL)
		return -ENOMEM;
	closer->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (closer->fd < 0) {
		free(closer);
		return -errno;
	}
	sigaction(SIGUSR1, &action, NULL);
	pthread_mutex_init(&closer->lock, NULL);
	pthread_cond_init(&closer->job_added, NULL);
	closer->last = &closer->first;
	closer->users = 1;
	closer->njobs = jobs;
	*out = closer;
	return 0;
}

/* With the lock, which it lets go. */
static void closer_unref_and_unlock(struct vmad_fd_closer *closer)
{
	const bool is_last = --closer->users == 0;

	pthread_mutex_unlock(&closer->lock);
	if (!is_last)
		return;
	close(closer->fd);
	pthread_mutex_destroy(&closer->lock);
	pthread_cond_destroy(&closer->job_added);
	free(closer);
}

void vmad_fd_closer_destroy(struct vmad_fd_closer *closer)
{
	if (closer == NULL)
		return;
	pthread_mutex_lock(&closer->lock);
	closer->over = true;
	pthread_cond_broadcast(&closer->job_added);
	closer_unref_and_unlock(closer);
}

int vmad_fd_closer_done_fd(const struct vmad_fd_closer *closer)
{
	return closer->fd;
}

void vmad_fd_closer_drain_done_fd(struct vmad_fd_closer *closer)
{
	uint64_t count;

	while (read(closer->fd, &count, sizeof(count)) > 0)
		;
}

/* A job, with the lock held before and after. NULL: this thread is to end. */
static struct job *closer_next_job(struct vmad_fd_closer *closer)
{
	struct job *job;

	closer->idle++;
	while (closer->first == NULL && !closer->over && closer->idle <= IDLE_MAX)
		pthread_cond_wait(&closer->job_added, &closer->lock);
	closer->idle--;
	job = closer->first;
	if (job == NULL)
		return NULL;
	closer->first = job->next;
	if (closer->first == NULL)
		closer->last = &closer->first;
	closer->waiting--;
	job->thread = pthread_self();
	job->begun = true;
	return job;
}

/* Takes the lock, and keeps it. */
static void closer_close_fds_of_job(struct vmad_fd_closer *closer, struct job *job)
{
	for (unsigned i = 0; i < job->nfds; i++) {
		atomic_store_explicit(&job->at, i, memory_order_relaxed);
		close(job->fds[i]); /* also after a signal it is gone */
	}
	/* From here on no signal is for this job. */
	pthread_mutex_lock(&closer->lock);
	job->begun = false;
	atomic_store_explicit(&job->busy, false, memory_order_release);
	eventfd_write(closer->fd, 1);
}

static void *closer_thread_main(void *arg)
{
	struct vmad_fd_closer *closer = arg;
	struct job *job;

	pthread_mutex_lock(&closer->lock);
	while ((job = closer_next_job(closer)) != NULL) {
		pthread_mutex_unlock(&closer->lock);
		closer_close_fds_of_job(closer, job);
	}
	closer_unref_and_unlock(closer);
	return NULL;
}

/* Signals to the process are vmad's: a thread has none but its own. */
static int closer_start_thread(struct vmad_fd_closer *closer)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	sigdelset(&all, SIGUSR1);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&thread, &attr, closer_thread_main, closer);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return rc;
}

/* There is no thread, and none can be made. */
static void closer_run_job_inline(struct vmad_fd_closer *closer)
{
	struct job *job;

	pthread_mutex_lock(&closer->lock);
	job = closer_next_job(closer);
	pthread_mutex_unlock(&closer->lock);
	closer_close_fds_of_job(closer, job);
	pthread_mutex_unlock(&closer->lock);
}

void vmad_fd_closer_submit(struct vmad_fd_closer *closer, unsigned number, const int *fds, unsigned nfds)
{
	struct job *job = &closer->job[number];
	bool any = false, alone;

	for (unsigned i = 0; i < nfds; i++)
		any = any || fds[i] >= 0;
	if (!any)
		return;
	job->nfds = 0;
	for (unsigned i = 0; i < nfds && job->nfds < VMAD_CLOSE_FDS; i++)
		if (fds[i] >= 0)
			job->fds[job->nfds++] = fds[i];
	job->next = NULL;
	atomic_store_explicit(&job->at, 0, memory_order_relaxed);
	job->since_ms = os_now_ms();
	atomic_store_explicit(&job->busy, true, memory_order_relaxed);
	pthread_mutex_lock(&closer->lock);
	*closer->last = job;
	closer->last = &job->next;
	closer->waiting++;
	if (closer->waiting <= closer->idle) {
		pthread_cond_signal(&closer->job_added);
	} else {
		closer->users++;
		if (closer_start_thread(closer) != 0)
			closer->users--; /* the job waits for one of the others */
	}
	alone = closer->users == 1;
	pthread_mutex_unlock(&closer->lock);
	if (alone)
		closer_run_job_inline(closer);
}

bool vmad_fd_closer_job_is_running(const struct vmad_fd_closer *closer, unsigned job)
{
	return atomic_load_explicit(&closer->job[job].busy, memory_order_acquire);
}

bool vmad_fd_closer_job_is_late(const struct vmad_fd_closer *closer, unsigned job, uint64_t now)
{
	return vmad_fd_closer_job_is_running(closer, job) && now >= closer->job[job].since_ms + VMAD_CLOSE_LATE_MS;
}

bool vmad_fd_closer_signal_late_jobs(struct vmad_fd_closer *closer, uint64_t now)
{
	bool any = false;

	for (unsigned i = 0; i < closer->njobs; i++) {
		struct job *job = &closer->job[i];

		if (!vmad_fd_closer_job_is_late(closer, i, now))
			continue;
		any = true;
		pthread_mutex_lock(&closer->lock);
		if (job->begun)
			pthread_kill(job->thread, SIGUSR1);
		pthread_mutex_unlock(&closer->lock);
	}
	return any;
}

/*
 * A close takes the descriptor out of the table first, and waits then. An old `at` makes this wait once more. After a
 * second the number is another descriptor's, if there is one.
 */
static bool closer_all_fds_are_closed(const struct vmad_fd_closer *closer)
{
	const uint64_t now = os_now_ms();

	for (unsigned i = 0; i < closer->njobs; i++) {
		const struct job *job = &closer->job[i];
		const unsigned at = atomic_load_explicit(&job->at, memory_order_relaxed);

		if (!vmad_fd_closer_job_is_running(closer, i))
			continue;
		if (at + 1 < job->nfds ||
		    (fcntl(job->fds[at], F_GETFD) >= 0 && !vmad_fd_closer_job_is_late(closer, i, now)))
			return false;
	}
	return true;
}

bool vmad_fd_closer_wait_all_closed(struct vmad_fd_closer *closer)
{
	const struct timespec pause = {.tv_nsec = 200000};

	for (int i = 0; i < SETTLE_TRIES; i++) {
		if (closer_all_fds_are_closed(closer))
			return true;
		nanosleep(&pause, NULL);
	}
	return false;
}
