/* The card's loop: descriptors first, then the queues, and sleep if neither had anything. */
#include "card.h"
#include <sys/epoll.h>
#include <time.h>

enum {
	LOOP_MAX_FD = 1024,
	LOOP_EVENTS = 32,
};

static struct {
	card_fd_ready_fn ready;
	void *owner;
} watched[LOOP_MAX_FD];
static int loop_epoll = -1;

uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int loop_add_fd(int fd, card_fd_ready_fn ready, void *owner)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	if (loop_epoll < 0)
		loop_epoll = epoll_create1(EPOLL_CLOEXEC);
	if (fd >= LOOP_MAX_FD || loop_epoll < 0 || epoll_ctl(loop_epoll, EPOLL_CTL_ADD, fd, &event))
		return -1;
	watched[fd].ready = ready;
	watched[fd].owner = owner;
	return 0;
}

void loop_set_events(int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};

	epoll_ctl(loop_epoll, EPOLL_CTL_MOD, fd, &event);
}

void loop_remove_fd(int fd)
{
	watched[fd].ready = NULL;
	epoll_ctl(loop_epoll, EPOLL_CTL_DEL, fd, NULL);
}

/* Until the next completion that a fault holds back, or frame that its queue pair's pace does, rounded up; but not
 * longer than look_ms, -1: for ever. */
static int loop_timeout_ms(int look_ms)
{
	int64_t ns = cqs_next_delayed_completion_ns(), paced_ns = qps_next_paced_send_ns();

	if (ns < 0 || (paced_ns >= 0 && paced_ns < ns))
		ns = paced_ns;
	if (ns < 0 || (look_ms >= 0 && look_ms * INT64_C(1000000) < ns))
		return look_ms;
	return (int)(ns / 1000000) + 1;
}

void loop_run(void)
{
	struct epoll_event events[LOOP_EVENTS];
	bool is_busy = false;
	int timeout, n, look_ms = -1;

	while (!card.should_stop) {
		timeout = 0;
		if (!is_busy && card_prepare_sleep())
			timeout = loop_timeout_ms(look_ms);
		n = epoll_wait(loop_epoll, events, LOOP_EVENTS, timeout);
		card_end_sleep();
		is_busy = n > 0;
		for (int i = 0; i < n; i++) {
			int fd = events[i].data.fd;

			/* An earlier one of this batch may have removed it. */
			if (watched[fd].ready)
				watched[fd].ready(watched[fd].owner, events[i].events);
		}
		look_ms = card_free_closed_clients();
		cqs_deliver_delayed();
		is_busy |= port_deliver_looped_frames();
		is_busy |= qps_run();
	}
}
