/*
 * process - in which process we are: the one that made the table, its forked child, or a vfork child that borrows its
 *           memory.
 *
 * fork() tells us (pthread_atfork). A raw clone or _Fork does not. The kernel wipes a page in every copy of the memory.
 * By it the child sees what it is when it makes its first call on a descriptor of ours. A vfork child has the same
 * page, the same table and another number. It closes a descriptor in a table of descriptors of its own, while our table
 * is its parent's and must not change.
 */
#ifndef VMA_INTERPOSE_PROCESS_H
#define VMA_INTERPOSE_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Before the first file is made; any thread, any number of times. */
void process_start_library_once(void);

/* Around what copies the process: fork's three handlers, for copies that do not run them. */
bool library_is_started_in_process(void);
void process_before_fork(void);
void process_after_fork_in_parent(void);
void process_after_fork_in_child(void);

/* Points to a byte that is 1 in the process and 0 in an unnoticed copy of it. */
extern _Atomic(_Atomic char *) process_mark;
void process_after_copying_clone(void) __attribute__((cold));
static inline void process_check_for_raw_clone_child(void)
{
	_Atomic char *mark = atomic_load_explicit(&process_mark, memory_order_acquire);

	if (__builtin_expect(mark != NULL && atomic_load_explicit(mark, memory_order_relaxed) == 0, 0))
		process_after_copying_clone();
}

/* Whether this is a vfork child (a system call): the table is not to be changed. Looks, too. */
bool process_is_vfork_child(void);

#endif
