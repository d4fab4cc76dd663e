/*
 * members - the descriptors of one call of poll or select: looking at ours, asking the OS for the rest, waiting.
 *
 *   look at ours ──> drive their rings, look again ──> ask the OS ──> vma_wait: spin over all of it, then sleep
 *
 * The OS is asked for every descriptor. For the OS's own descriptors the question is the application's. For ours the
 * shadows are asked, which may have an error or a datagram that came through the kernel. If an offloaded member answers
 * something by itself (EPOLLOUT), its shadow is not asked for that. The shadow is always writable and would end every
 * sleep.
 *
 * No references are held while handlers may run. So a handler that jumps out of the wait leaves nothing behind. A
 * member is found again by its number, and is the same if its id is. Else it was closed meanwhile, and the OS is asked
 * for it. Only a thread that stands in a file's queue holds the file, and vma_wait sees to it that it leaves before a
 * handler runs.
 */
#include <errno.h>

#include "iomux_priv.h"

#include <vma/sock_engine.h>

#define SELECT_IN (EPOLLIN | EPOLLRDNORM | EPOLLRDBAND)
#define SELECT_OUT (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)
#define RINGS_AGAIN 64 /* looks after which it is asked again on which rings ours are */

uint32_t members_events_that_count(const struct members *members, uint32_t events)
{
	if (!members->select)
		return events | IOMUX_ALWAYS | POLLNVAL;
	return (events & SELECT_IN ? SELECT_IN | IOMUX_ALWAYS : 0) | (events & SELECT_OUT ? SELECT_OUT | EPOLLERR : 0) |
	       (events & EPOLLPRI);
}

/* What a thread remembers from call to call. */
static __thread struct {
	struct iomux_os_polled os_polled;
	uint64_t request_hash; /* which descriptors, for what: a hash */
	struct vma_spin spin;
} memory __attribute__((tls_model("initial-exec")));

/* ---- who is whose ---- */

static void members_add_offloaded_fd(struct members *members, uint32_t index, struct vma_file *file)
{
	struct pollfd *pfd = &members->fds[index];
	struct members_offloaded *ours = &members->ours[members->n_ours++];
	uint32_t now = iomux_file_poll(file);

	*ours = (struct members_offloaded){.file = file, .id = file->id, .index = index, .fd = pfd->fd};
	ours->events = pfd->events;
	ours->accept = members_events_that_count(members, (uint16_t)pfd->events);
	ours->got = now & ours->accept;
	members->count += ours->got != 0;
	members->rings |= iomux_file_rings(file);
	if (ours->accept & IOMUX_IN)
		members->accept_rings |= iomux_file_accept_rings(file);
	if (now & (EPOLLOUT | VMA_POLL_OWN_OUT))
		pfd->events &= (short)~IOMUX_OUT;
	ours->own_poll = file->kind != VMA_FILE_EPOLL && atomic_load_explicit(&file->own_poll, memory_order_relaxed);
	if (ours->own_poll)
		pfd->fd = -1;
	else
		members->n_shadows++;
	if (file->kind == VMA_FILE_EPOLL) {
		pfd->fd = epoll_set_of_file(file)->members_epfd;
		members->n_os += atomic_load_explicit(&epoll_set_of_file(file)->n_os, memory_order_relaxed) > 0;
	}
}

void members_split_offloaded_and_kernel_fds(struct members *members)
{
	for (nfds_t i = 0; i < members->n; i++) {
		int fd = members->fds[i].fd;
		struct vma_file *file = fd >= 0 ? vma_fd_lookup(fd) : NULL;

		members->fds[i].revents = 0;
		members->request_hash = (members->request_hash + (uint32_t)fd) * 0x9e3779b97f4a7c15ULL +
		                        (uint16_t)members->fds[i].events + 1;
		if (iomux_file_is_ours(file))
			members_add_offloaded_fd(members, (uint32_t)i, file);
		else
			members->n_os += fd >= 0;
	}
}

static bool poll_member_fd_is_still_same_file(const struct members_offloaded *ours)
{
	return vma_fd_lookup(ours->fd) == ours->file && ours->file->id == ours->id;
}

static void members_dequeue_waiter(struct members *members, struct members_offloaded *ours)
{
	if (!ours->queued)
		return;
	ours->queued = false;
	iomux_remove_from_wait_queue_unless_woken(&ours->file->waitq, members->self, members->signals);
	vma_file_put(ours->file);
}

/* Closed meanwhile. */
static void poll_member_turn_into_kernel_fd(struct members *members, unsigned at)
{
	struct members_offloaded *ours = &members->ours[at];

	members_dequeue_waiter(members, ours);
	members->fds[ours->index].fd = ours->fd;
	members->fds[ours->index].events = ours->events;
	members->n_os++;
	*ours = members->ours[--members->n_ours];
}

/* Handed over to the kernel meanwhile: the shadow is what the file is from now on. Whoever did that wakes this thread.
 */
static void poll_member_switch_to_kernel_poll(struct members *members, struct members_offloaded *ours)
{
	struct pollfd *pfd = &members->fds[ours->index];

	ours->own_poll = false;
	pfd->fd = ours->fd;
	pfd->events = ours->events;
	members->n_shadows++;
}

static void members_find_rings(struct members *members)
{
	members->rings = members->accept_rings = 0;
	for (unsigned i = 0; i < members->n_ours; i++) {
		if (!poll_member_fd_is_still_same_file(&members->ours[i]))
			continue;
		members->rings |= iomux_file_rings(members->ours[i].file);
		if (members->ours[i].accept & IOMUX_IN)
			members->accept_rings |= iomux_file_accept_rings(members->ours[i].file);
	}
}

/* ---- looking and asking ---- */

/*
 * select does not count what it was not asked for, but ppoll tells it at once, for ever: such a member is left out for
 * the rest of the call. (A hang-up that is only watched for urgent data.)
 */
static bool poll_member_counts_as_ready(struct members *members, struct pollfd *pfd)
{
	uint32_t told = (uint16_t)pfd->revents;

	if (told == 0)
		return false;
	if (members->select && (told & POLLNVAL))
		members->bad = true;
	pfd->revents = (short)(told & members_events_that_count(members, (uint16_t)pfd->events));
	if (pfd->revents == 0)
		pfd->fd = -1;
	return pfd->revents != 0;
}

/* Only what the OS has said. */
static void members_count_ready_by_kernel_revents(struct members *members)
{
	members->count = 0;
	for (nfds_t i = 0; i < members->n; i++)
		members->count += poll_member_counts_as_ready(members, &members->fds[i]);
	members->os_ready = members->count > 0;
	for (unsigned i = 0; i < members->n_ours; i++)
		members->ours[i].got = 0;
}

/* Adds ours to it. */
static int members_poll_offloaded_files(struct members *members)
{
	for (unsigned i = 0; i < members->n_ours; i++) {
		struct members_offloaded *ours = &members->ours[i];
		short told = members->fds[ours->index].revents;
		uint32_t now;

		members->count -= (told | ours->got) != 0;
		if (__builtin_expect(!poll_member_fd_is_still_same_file(ours), 0)) {
			members->count += told != 0;
			poll_member_turn_into_kernel_fd(members, i--);
			continue;
		}
		if (__builtin_expect(
		            ours->own_poll && !atomic_load_explicit(&ours->file->own_poll, memory_order_relaxed), 0))
			poll_member_switch_to_kernel_poll(members, ours);
		now = iomux_file_poll(ours->file);
		if (!(now & (EPOLLOUT | VMA_POLL_OWN_OUT))) /* the kernel's again: its shadow knows */
			members->fds[ours->index].events |= (short)(ours->events & IOMUX_OUT);
		ours->got = now & ours->accept;
		members->count += (told | ours->got) != 0;
	}
	return members->bad ? -EBADF : members->count;
}

static int members_poll_os(struct members *members)
{
	int rc = iomux_os_poll_nonblocking(members->fds, members->n);

	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < members->n_ours && rc > 0; i++)
		if (poll_member_fd_is_still_same_file(&members->ours[i]))
			iomux_pass_os_error(members->ours[i].file,
			                    (uint16_t)members->fds[members->ours[i].index].revents);
	members_count_ready_by_kernel_revents(members);
	return members_poll_offloaded_files(members);
}

/* Nothing that was asked for can have come unseen. */
static bool poll_result_needs_no_kernel_poll(const struct members *members)
{
	if (members->n_os + members->n_shadows == 0)
		return true;
	for (unsigned i = 0; i < members->n_ours; i++)
		if (members->ours[i].accept & ~members->ours[i].got & EPOLLIN)
			return false;
	return members->n_os == 0;
}

/* ---- waiting ---- */

static int members_has_ready_offloaded_file(struct vma_wait *wait)
{
	struct members *members = wait->arg;
	int rc;

	members->polls++;
	rc = members_poll_offloaded_files(members);
	return rc < 0 ? rc : rc > 0;
}

/* What the OS has found ready, or not open, may be so in the next call, too. */
static void members_cache_os_result(const struct members *members)
{
	iomux_note_os_polled_now(&memory.os_polled);
	memory.request_hash = members->os_ready || members->bad ? 0 : members->request_hash;
}

static int members_wait_poll_os(struct vma_wait *wait)
{
	struct members *members = wait->arg;
	int rc;

	if (members->n_os + members->n_shadows == 0)
		return 0;
	/* Of shadows alone there is nothing new every few looks, unless a sleep has just ended. */
	if (members->n_os == 0 && !wait->slept && memory.request_hash == members->request_hash &&
	    !iomux_os_poll_is_long_ago(&memory.os_polled))
		return 0;
	rc = members_poll_os(members);
	members_cache_os_result(members);
	return rc < 0 ? rc : rc > 0;
}

static uint64_t members_get_rings_to_watch(struct vma_wait *wait)
{
	struct members *members = wait->arg;

	if (members->polls % RINGS_AGAIN == 0)
		members_find_rings(members);
	return members->rings;
}

static uint64_t members_get_rings_of_listeners(struct vma_wait *wait)
{
	return ((struct members *)wait->arg)->accept_rings;
}

/*
 * A datagram wakes one of those in the queue. Who does not ask for data (but for errors, say) is no use there, and the
 * wake-up would be lost to those who do: all that he asks for he hears from the shadow, on which he sleeps as well.
 * A file that answers all by itself wakes everybody.
 */
static bool member_can_use_wakeup(const struct members_offloaded *ours)
{
	return ours->accept & IOMUX_IN || atomic_load_explicit(&ours->file->own_poll, memory_order_relaxed);
}

/*
 * Who waits for room that the shadow knows nothing of stands there, too. A wake-up by a datagram that was spent on this
 * thread is passed on, each time before it sleeps.
 */
static bool member_waits_for_room_in_user_space_socket(const struct members_offloaded *ours, struct vma_thread *self)
{
	const uint32_t now = ours->accept & IOMUX_OUT ? iomux_file_poll(ours->file) : 0;

	if (!(now & VMA_POLL_OWN_OUT))
		return false;
	if (now & IOMUX_IN && ours->queued && !vma_waitq_remove(&ours->file->waitq, self))
		vma_waitq_wake(&ours->file->waitq, false);
	return true;
}

static void poll_member_join_waitq(struct members_offloaded *ours, struct vma_thread *self)
{
	if (!poll_member_fd_is_still_same_file(ours) ||
	    (!member_can_use_wakeup(ours) && !member_waits_for_room_in_user_space_socket(ours, self)))
		return;
	if (!ours->queued)
		vma_file_get(ours->file);
	ours->queued = true;
	vma_waitq_add(&ours->file->waitq, self);
}

static void members_join_or_leave_file_waitqs(struct vma_wait *wait, bool on)
{
	struct members *members = wait->arg;

	members->polls = 0; /* a ring that came since is watched, too */
	for (unsigned i = 0; i < members->n_ours; i++)
		if (on)
			poll_member_join_waitq(&members->ours[i], wait->self);
		else
			members_dequeue_waiter(members, &members->ours[i]);
}

/* One of several sleepers of a file was woken, and takes nothing from it: the next may. */
static void members_pass_wakeup_on(struct members *members)
{
	for (unsigned i = 0; i < members->n_ours; i++)
		if (poll_member_fd_is_still_same_file(&members->ours[i]) &&
		    iomux_file_poll(members->ours[i].file) & IOMUX_IN)
			vma_waitq_wake(&members->ours[i].file->waitq, false);
}

static void members_free_at_abandoned_wait(struct vma_wait *wait)
{
	struct members *members = wait->arg;

	members_pass_wakeup_on(members);
	vma_free(members->memory[0]);
	vma_free(members->memory[1]);
}

static const struct vma_wait_ops wait_ops = {.ready = members_has_ready_offloaded_file,
                                             .poll_os = members_wait_poll_os,
                                             .rings = members_get_rings_to_watch,
                                             .accept_rings = members_get_rings_of_listeners,
                                             .set_queued = members_join_or_leave_file_waitqs,
                                             .abandon = members_free_at_abandoned_wait};

static int members_sleep_or_spin(struct members *members, struct iomux_timeout *timeout,
                                 const struct iomux_policy *policy, struct vma_thread *self)
{
	struct vma_wait wait = {.ops = &wait_ops,
	                        .arg = members,
	                        .self = self,
	                        .spin = &memory.spin,
	                        .spin_loops = -1,
	                        .spin_nsec = policy->spin_nsec,
	                        .os_ratio = policy->os_ratio,
	                        .yield = policy->yield,
	                        .without_rings = policy->os_force,
	                        .fds = members->fds,
	                        .nfds = (unsigned)members->n,
	                        .mixed = true};
	int rc;

	iomux_timeout_start(timeout);
	wait.deadline_ns = timeout->deadline;
	members->self = self;
	members->signals = self->signals;
	rc = vma_wait(&wait);
	members->call.slept = wait.slept;
	members_pass_wakeup_on(members);
	if (rc < 0)
		return rc;
	return rc > 0 ? members->count : 0;
}

/* ---- the order of business ---- */

static bool members_os_poll_is_due(struct members *members, const struct iomux_policy *policy, int found)
{
	const struct iomux_os_polled *os_polled = &memory.os_polled;

	if (members->n_os + members->n_shadows == 0)
		return false;
	if (memory.request_hash != members->request_hash || iomux_os_poll_is_long_ago(os_polled))
		return true;
	return members->n_os > 0 && (found == 0 || os_polled->skipped >= policy->skip_os);
}

static int poll_os_if_due(struct members *members, const struct iomux_policy *policy, int found)
{
	if (members_os_poll_is_due(members, policy, found)) {
		found = members_poll_os(members);
		members_cache_os_result(members);
		return found;
	}
	memory.os_polled.skipped += found > 0;
	return found;
}

static int members_drive_rings_and_wait_for_ready(struct members *members, struct iomux_timeout *timeout,
                                                  struct vma_thread *self)
{
	struct iomux_policy policy;
	int found = members->count, driven = VMA_RING_CTXS_FULL;

	vma_ring_ctxs_count_accept(members->accept_rings);
	if (found > 0 && poll_result_needs_no_kernel_poll(members))
		return found;
	self->overdue_rings = members->rings;
	for (unsigned steps = 0; members->rings != 0 && iomux_may_poll_rings_again(steps, driven, found > 0); steps++) {
		driven = timeout->nsec != 0 ? vma_ring_ctxs_progress(members->rings)
		                            : vma_ring_ctxs_catch_up(members->rings);
		found = members_poll_offloaded_files(members);
		if (found < 0 || (found > 0 && poll_result_needs_no_kernel_poll(members)))
			return found;
	}
	iomux_policy_get(&policy);
	/* A handler that waits to run comes second to what is ready. */
	if (found == 0 && vma_thread_has_deferred_work(self, VMA_HELD_SIGNALS))
		found = members_poll_os(members);
	if (found < 0)
		return found;
	if (found > 0 || timeout->nsec == 0)
		found = poll_os_if_due(members, &policy, found);
	else
		found = members_sleep_or_spin(members, timeout, &policy, self);
	return found == 0 ? iomux_run_held_signals_return_eintr(self) : found;
}

/* Descriptors, each once: select tells bits of them. */
static void members_count_ready_fds_in_stats(const struct members *members, struct vma_stats_iomux *stats)
{
	unsigned ours = 0;

	for (unsigned i = 0; i < members->n_ours; i++)
		ours += (members->fds[members->ours[i].index].revents | members->ours[i].got) != 0;
	vma_stats_add(&stats->ready, ours);
	if ((unsigned)members->count > ours)
		vma_stats_add(&stats->os_ready, (unsigned)members->count - ours);
}

int members_wait_for_ready_and_count_stats(struct members *members, struct iomux_timeout *timeout,
                                           struct vma_thread *self)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	struct vma_stats_iomux *stats;
	int rc;

	iomux_call_begin_timing(&members->call);
	rc = members_drive_rings_and_wait_for_ready(members, timeout, self);
	if (engine == NULL)
		return rc;
	stats = members->select ? engine->select_stats : engine->poll_stats;
	if (rc > 0)
		members_count_ready_fds_in_stats(members, stats);
	iomux_count_call_result(&members->call, stats, rc);
	return rc;
}
