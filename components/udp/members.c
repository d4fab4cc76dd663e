/*
 * members.c - which groups have a member on this host. The kernel must send what goes there: it hands copies to sockets
 * of this host, in this process or another.
 *
 *   /proc/self/net/igmp ── read at most every REFRESH_NS while a socket sends to groups ──┐
 *   sockets of this process join ── at once ──────────────────────────────────────────────┴─> set, immutable
 *
 * A member of another process is known REFRESH_NS after it has joined at the latest. A group that has been left stays
 * in the set until the next reading: the kernel then sends what need not have gone through it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "groups.h"
#include "members.h"

#define REFRESH_NS 50000000ULL    /* the internal thread is asked to read anew */
#define TOO_OLD_NS 100000000ULL   /* the sender reads itself, or lets the kernel send */
#define LONG_READING_NS 300000ULL /* too long for a sender */

struct members {
	struct vma_retired retired;
	uint32_t mask, n;
	uint64_t key[]; /* open addressing; 0: free */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* who replaces the set */
static struct members *_Atomic local_members_current_set;
static _Atomic uint64_t local_members_read_tsc; /* when the set was read; 0: never */
static _Atomic uint64_t local_members_asked_tsc;
static _Atomic bool local_members_read_is_slow;

/* ---- the set ---- */

static uint64_t mcast_member_key_of_group_and_ifindex(uint32_t group, uint32_t ifindex)
{
	return (uint64_t)group << 32 | ifindex;
}

static uint32_t mcast_members_set_slot_of_key(const struct members *set, uint64_t key)
{
	uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15ULL >> 32) & set->mask;

	while (set->key[i] != 0 && set->key[i] != key)
		i = (i + 1) & set->mask;
	return i;
}

static struct members *mcast_members_set_create(uint32_t n)
{
	uint32_t size = 16;
	struct members *set;

	while (size < 2 * (n + 1))
		size *= 2;
	set = vma_alloc(sizeof(*set) + size * sizeof(set->key[0]));
	if (set != NULL)
		set->mask = size - 1;
	return set;
}

static void mcast_members_set_add(struct members *set, uint64_t key)
{
	uint32_t i = mcast_members_set_slot_of_key(set, key);

	set->n += set->key[i] == 0;
	set->key[i] = key;
}

static struct members *mcast_members_set_copy_enlarged(const struct members *old, uint32_t more)
{
	struct members *set = mcast_members_set_create((old != NULL ? old->n : 0) + more);

	for (uint32_t i = 0; set != NULL && old != NULL && i <= old->mask; i++) {
		if (old->key[i] != 0)
			mcast_members_set_add(set, old->key[i]);
	}
	return set;
}

/* Grows it if need be. False: no memory. */
static bool mcast_members_set_add_growing_it(struct members **set, uint64_t key)
{
	struct members *larger;

	if (2 * ((*set)->n + 1) > (*set)->mask + 1) {
		larger = mcast_members_set_copy_enlarged(*set, (*set)->n + 1);
		if (larger == NULL)
			return false;
		vma_free(*set);
		*set = larger;
	}
	mcast_members_set_add(*set, key);
	return true;
}

static void local_members_set_free_retired(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct members, retired) == 0, "set_end");

/* With the lock. */
static void mcast_members_set_publish(struct members *set)
{
	struct members *old = atomic_exchange_explicit(&local_members_current_set, set, memory_order_acq_rel);

	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, local_members_set_free_retired);
}

/* ---- reading ---- */

/*
 * "2	eth0      :     2      V3" names an interface, lines that begin with white space its groups: the first number,
 * in hexadecimal, is the address as it lies in memory.
 */
static bool mcast_members_parse_proc_igmp_line(struct members **set, const char *line, uint32_t *ifindex)
{
	uint32_t group;

	if (line[0] >= '0' && line[0] <= '9') {
		*ifindex = (uint32_t)strtoul(line, NULL, 10);
		return true;
	}
	if (line[0] != '\t' && line[0] != ' ')
		return true; /* the heading */
	group = (uint32_t)strtoul(line, NULL, 16);
	return group == 0 || *ifindex == 0 ||
	       mcast_members_set_add_growing_it(set, mcast_member_key_of_group_and_ifindex(group, *ifindex));
}

struct proc_line_reader {
	struct members *set;
	uint32_t ifindex;
	char line[256];
	size_t len;
};

static bool proc_igmp_reader_parse_bytes(struct proc_line_reader *proc_line_reader, const char *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (bytes[i] != '\n') {
			if (proc_line_reader->len < sizeof(proc_line_reader->line) - 1)
				proc_line_reader->line[proc_line_reader->len++] = bytes[i];
			continue;
		}
		proc_line_reader->line[proc_line_reader->len] = '\0';
		proc_line_reader->len = 0;
		if (!mcast_members_parse_proc_igmp_line(&proc_line_reader->set, proc_line_reader->line,
		                                        &proc_line_reader->ifindex))
			return false;
	}
	return true;
}

struct members *udp_mcast_members_read_proc_igmp(int fd)
{
	struct proc_line_reader proc_line_reader = {.set = mcast_members_set_create(16)};
	char bytes[4096];
	ssize_t n = 0;

	while (proc_line_reader.set != NULL && (n = syscall(SYS_read, fd, bytes, sizeof(bytes))) > 0) {
		if (!proc_igmp_reader_parse_bytes(&proc_line_reader, bytes, (size_t)n))
			break;
	}
	if (n == 0 && proc_line_reader.set != NULL)
		return proc_line_reader.set;
	vma_free(proc_line_reader.set);
	return NULL;
}

bool udp_mcast_members_set_has(const struct members *set, uint32_t group, uint32_t ifindex)
{
	uint64_t key = mcast_member_key_of_group_and_ifindex(group, ifindex);

	return set->key[mcast_members_set_slot_of_key(set, key)] == key;
}

/* With the lock. Without /proc there is no set, and the kernel sends to groups. */
static void mcast_members_reread_proc_igmp(void)
{
	uint64_t start = vma_tsc();
	int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/net/igmp", O_RDONLY | O_CLOEXEC);
	struct members *set = fd >= 0 ? udp_mcast_members_read_proc_igmp(fd) : NULL;

	if (fd >= 0)
		syscall(SYS_close, fd);
	mcast_members_set_publish(set);
	atomic_store_explicit(&local_members_read_is_slow, vma_tsc() - start > vma_tsc_of_nsec(LONG_READING_NS),
	                      memory_order_relaxed);
	/* The start: what joined while it was read may be missing. */
	atomic_store_explicit(&local_members_read_tsc, start, memory_order_release);
}

static void mcast_members_reread_proc_igmp_task(struct vma_internal_task *task)
{
	(void)task;
	pthread_mutex_lock(&lock);
	mcast_members_reread_proc_igmp();
	pthread_mutex_unlock(&lock);
}

static struct vma_internal_task task = {.run = mcast_members_reread_proc_igmp_task};

/*
 * The lock is held while /proc is read and the result is published. So a reading that does not show the membership yet
 * (the kernel had it before we are called) is published before this, which adds to it.
 */
void udp_mcast_members_add_own_join(uint32_t group, uint32_t ifindex)
{
	struct members *set, *old;

	pthread_mutex_lock(&lock);
	old = atomic_load_explicit(&local_members_current_set, memory_order_relaxed);
	if (old != NULL && !udp_mcast_members_set_has(old, group, ifindex)) {
		set = mcast_members_set_copy_enlarged(old, 1);
		if (set != NULL)
			mcast_members_set_add(set, mcast_member_key_of_group_and_ifindex(group, ifindex));
		mcast_members_set_publish(set);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- the sender's question ---- */

static bool mcast_members_current_set_has(uint32_t group, uint32_t ifindex)
{
	const struct members *set = atomic_load_explicit(&local_members_current_set, memory_order_acquire);

	return set == NULL || udp_mcast_members_set_has(set, group, ifindex);
}

/* The set is old or missing: who sends now and then reads it himself, unless that takes long or somebody else does. */
static bool __attribute__((cold, noinline)) mcast_group_has_members_after_reread(uint32_t group, uint32_t ifindex)
{
	if (atomic_load_explicit(&local_members_read_is_slow, memory_order_relaxed)) {
		vma_engine_post_task_to_internal_thread(&task);
		return true;
	}
	if (pthread_mutex_trylock(&lock) != 0)
		return true;
	mcast_members_reread_proc_igmp();
	pthread_mutex_unlock(&lock);
	return mcast_members_current_set_has(group, ifindex);
}

bool udp_group_has_local_members(uint32_t group, uint32_t ifindex)
{
	uint64_t read = atomic_load_explicit(&local_members_read_tsc, memory_order_acquire), now = vma_tsc();
	uint64_t asked;

	if (__builtin_expect(read == 0 || now - read > vma_tsc_of_nsec(TOO_OLD_NS), 0))
		return mcast_group_has_members_after_reread(group, ifindex);
	if (__builtin_expect(now - read > vma_tsc_of_nsec(REFRESH_NS), 0)) {
		asked = atomic_load_explicit(&local_members_asked_tsc, memory_order_relaxed);
		if (asked != read) {
			atomic_store_explicit(&local_members_asked_tsc, read, memory_order_relaxed);
			vma_engine_post_task_to_internal_thread(&task);
		}
	}
	return mcast_members_current_set_has(group, ifindex);
}

/* ---- fork ---- */

/* The set stays: it is the same host. A thread of the parent may have held the lock. */
__attribute__((cold)) void udp_mcast_members_reset_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	atomic_store(&local_members_read_tsc, 0);
	atomic_store(&local_members_asked_tsc, 0);
	task = (struct vma_internal_task){.run = mcast_members_reread_proc_igmp_task};
}
