/*
 * select - select and pselect: sets of bits in and out, of any size the application says.
 *
 * The kernel looks at no more bits than its descriptor table has room for: a program may pass getdtablesize() with
 * ordinary sets. This code does the same, which matters beyond FD_SETSIZE only.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock_os.h>

#include "iomux_priv.h"

#define BITS 64
#define WORDS_ON_STACK (FD_SETSIZE / BITS)
#define FDS_ON_STACK 64U

enum { READ, WRITE, EXCEPT, SETS };
static const short select_poll_events[SETS] = {EPOLLIN | EPOLLRDNORM | EPOLLRDBAND,
                                               EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND, EPOLLPRI};
/* What sets a bit: POLLIN_SET, POLLOUT_SET and POLLEX_SET of the kernel. */
static const short select_events_reported_in_set[SETS] = {EPOLLIN | EPOLLRDNORM | EPOLLRDBAND | EPOLLHUP | EPOLLERR,
                                                          EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND | EPOLLERR, EPOLLPRI};

struct sets {
	fd_set *app[SETS];
	uint64_t *in[SETS]; /* words of each, also where the application gave none */
	int n, words;
	void *memory;
};

/* ---- how many descriptors there are to look at ---- */

/* Room in the kernel's table; 0: it does not say. */
static int fd_table_kernel_size(void)
{
	char text[2048];
	const char *line;
	long fd, got;

	fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	got = syscall(SYS_read, fd, text, sizeof(text) - 1);
	syscall(SYS_close, fd);
	text[got > 0 ? got : 0] = '\0';
	line = strstr(text, "\nFDSize:");
	return line != NULL ? atoi(line + strlen("\nFDSize:")) : 0;
}

static int clamp_nfds(int n)
{
	int room = n > FD_SETSIZE ? fd_table_kernel_size() : 0;

	return room > 0 && n > room ? room : n;
}

/* ---- whether it is ours ---- */

static bool select_word_has_offloaded_fd(uint64_t word, int base, int n)
{
	for (; word != 0; word &= word - 1) {
		int fd = base + __builtin_ctzll(word);

		if (fd < n && iomux_file_is_ours(vma_fd_lookup(fd)))
			return true;
	}
	return false;
}

static bool select_set_has_offloaded_fd(const fd_set *set, int n)
{
	const uint64_t *from = (const uint64_t *)set;
	uint64_t word;

	for (int i = 0; set != NULL && i * BITS < n; i++)
		if (vma_memcpy_or_efault(&word, from + i, sizeof(word)) < 0)
			return false; /* the kernel's call says EFAULT */
		else if (select_word_has_offloaded_fd(word, i * BITS, n))
			return true;
	return false;
}

bool vma_iomux_must_handle_select(int n, const fd_set *r, const fd_set *w, const fd_set *e)
{
	int highest = vma_fd_highest();
	struct vma_thread *self;
	bool wants;

	if (n > 0 && iomux_conf_forces_os_poll())
		return true;
	if (n <= 0 || highest < 0)
		return false;
	self = vma_enter();
	n = clamp_nfds(n <= highest ? n : highest + 1);
	wants = select_set_has_offloaded_fd(r, n) || select_set_has_offloaded_fd(w, n) ||
	        select_set_has_offloaded_fd(e, n);
	vma_leave(self);
	return wants;
}

/* ---- bits to descriptors and back ---- */

static int select_copy_sets_in(struct sets *sets)
{
	for (int k = 0; k < SETS; k++)
		if (sets->app[k] == NULL)
			memset(sets->in[k], 0, (size_t)sets->words * sizeof(uint64_t));
		else if (vma_memcpy_or_efault(sets->in[k], sets->app[k], (size_t)sets->words * sizeof(uint64_t)) < 0)
			return -EFAULT;
	return 0;
}

static uint64_t select_union_word(const struct sets *sets, int i)
{
	uint64_t all = sets->in[READ][i] | sets->in[WRITE][i] | sets->in[EXCEPT][i];
	int last = sets->n - i * BITS;

	return last < BITS ? all & ((1ULL << last) - 1) : all;
}

static nfds_t select_count_fds(const struct sets *sets)
{
	nfds_t n = 0;

	for (int i = 0; i < sets->words; i++)
		n += (nfds_t)__builtin_popcountll(select_union_word(sets, i));
	return n;
}

static void select_fill_pollfds(const struct sets *sets, struct pollfd *fds)
{
	for (int i = 0; i < sets->words; i++)
		for (uint64_t word = select_union_word(sets, i); word != 0; word &= word - 1, fds++) {
			uint64_t bit = word & -word;

			*fds = (struct pollfd){.fd = i * BITS + __builtin_ctzll(word)};
			for (int k = 0; k < SETS; k++)
				fds->events |= sets->in[k][i] & bit ? select_poll_events[k] : 0;
		}
}

/* A word of answers from the fds that follow; how many bits are set. */
static int select_collect_result_word(uint64_t requested, const uint64_t in[SETS], const struct pollfd *fds,
                                      uint64_t out[SETS])
{
	int bits = 0;

	for (; requested != 0; requested &= requested - 1, fds++)
		for (int k = 0; k < SETS; k++)
			if (in[k] & requested & -requested && fds->revents & select_events_reported_in_set[k]) {
				out[k] |= requested & -requested;
				bits++;
			}
	return bits;
}

static int select_store_sets(struct sets *sets, const struct pollfd *fds)
{
	int bits = 0;

	for (int i = 0; i < sets->words; i++) {
		uint64_t requested = select_union_word(sets, i), out[SETS] = {0};
		const uint64_t in[SETS] = {sets->in[READ][i], sets->in[WRITE][i], sets->in[EXCEPT][i]};

		bits += select_collect_result_word(requested, in, fds, out);
		fds += __builtin_popcountll(requested);
		for (int k = 0; k < SETS; k++)
			sets->in[k][i] = out[k];
	}
	for (int k = 0; k < SETS; k++)
		if (sets->app[k] != NULL &&
		    vma_memcpy_or_efault(sets->app[k], sets->in[k], (size_t)sets->words * sizeof(uint64_t)) < 0)
			return -EFAULT;
	return bits;
}

/* ---- the call ---- */

static int select_wait_for_pollfds(struct sets *sets, struct members *members, struct iomux_timeout *timeout,
                                   struct vma_thread *self)
{
	int rc;

	select_fill_pollfds(sets, members->fds);
	members_split_offloaded_and_kernel_fds(members);
	rc = members_wait_for_ready_and_count_stats(members, timeout, self);
	for (unsigned i = 0; rc >= 0 && i < members->n_ours; i++)
		members->fds[members->ours[i].index].revents |= (short)members->ours[i].got;
	return rc >= 0 ? select_store_sets(sets, members->fds) : rc;
}

static int select_with_pollfds(struct sets *sets, struct iomux_timeout *timeout, struct vma_thread *self)
{
	struct pollfd fds[FDS_ON_STACK];
	struct members_offloaded ours[FDS_ON_STACK];
	struct members members = {
	        .fds = fds, .ours = ours, .n = select_count_fds(sets), .select = true, .memory = {sets->memory}};
	int rc;

	if (members.n > FDS_ON_STACK) {
		members.memory[1] = members.ours = vma_alloc(members.n * (sizeof(*ours) + sizeof(*fds)));
		if (members.ours == NULL)
			return -ENOMEM;
		members.fds = (struct pollfd *)(members.ours + members.n);
	}
	rc = select_wait_for_pollfds(sets, &members, timeout, self);
	vma_free(members.memory[1]);
	return rc;
}

static void select_set_size(struct sets *sets, int n)
{
	sets->n = n;
	sets->words = (n + BITS - 1) / BITS;
}

/* Of a descriptor that is not open the kernel says EBADF, unless it lies beyond its table. */
static int select_with_sets(struct sets *sets, struct iomux_timeout *timeout, struct vma_thread *self)
{
	int rc = select_copy_sets_in(sets), room;

	if (rc < 0)
		return rc;
	rc = select_with_pollfds(sets, timeout, self);
	if (rc != -EBADF)
		return rc;
	room = fd_table_kernel_size();
	if (room == 0 || room >= sets->n)
		return rc;
	select_set_size(sets, room);
	return select_with_pollfds(sets, timeout, self);
}

static int select_run(struct sets *sets, struct iomux_timeout *timeout, struct vma_thread *self)
{
	uint64_t words[SETS][WORDS_ON_STACK], *more;
	int rc;

	for (int k = 0; k < SETS; k++)
		sets->in[k] = words[k];
	if (sets->words <= WORDS_ON_STACK)
		return select_with_sets(sets, timeout, self);
	sets->memory = more = vma_alloc((size_t)sets->words * SETS * sizeof(uint64_t));
	if (more == NULL)
		return -ENOMEM;
	for (int k = 0; k < SETS; k++)
		sets->in[k] = more + (size_t)k * (size_t)sets->words;
	rc = select_with_sets(sets, timeout, self);
	vma_free(more);
	return rc;
}

int vma_iomux_select(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask,
                     struct timespec *left)
{
	struct vma_thread *self = vma_thread_self();
	struct sets sets = {.app = {r, w, e}};
	struct iomux_timeout time;
	struct iomux_sigmask before;
	int rc = iomux_timeout_from_timespec(&time, timeout);

	if (rc < 0)
		return rc;
	rc = iomux_sigmask_set(&before, mask, self);
	if (rc < 0)
		return rc;
	select_set_size(&sets, n >= 0 ? clamp_nfds(n) : 0);
	rc = n >= 0 ? select_run(&sets, &time, self) : -EINVAL;
	vma_thread_set_tx_batch(self, rc);
	iomux_sigmask_restore(&before, self);
	if (left != NULL)
		iomux_timeout_left(&time, left);
	return rc;
}
