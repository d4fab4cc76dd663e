/* internal_thread.h - holds up the engine's internal thread: meanwhile only the test's own threads drive rings. */
#ifndef VMA_SOCK_TEST_INTERNAL_THREAD_H
#define VMA_SOCK_TEST_INTERNAL_THREAD_H

#include <unistd.h>

#include <vma/sock_engine.h>
#include <vma/test.h>

static struct {
	struct vma_internal_task task;
	_Atomic bool asked, held;
} internal_thread_hold;

static void task_hold_internal_thread(struct vma_internal_task *task)
{
	(void)task;
	atomic_store(&internal_thread_hold.held, true);
	while (atomic_load(&internal_thread_hold.asked))
		usleep(100);
	atomic_store(&internal_thread_hold.held, false);
}

static inline bool internal_thread_becomes_held(bool held)
{
	for (int ms = 0; ms < 5000 && atomic_load(&internal_thread_hold.held) != held; ms++)
		usleep(1000);
	return atomic_load(&internal_thread_hold.held) == held;
}

/* Returns once the thread is held: it is in the middle of no ring. Tasks that are posted wait until it is released. */
static inline void hold_internal_thread(void)
{
	internal_thread_hold.task.run = task_hold_internal_thread;
	atomic_store(&internal_thread_hold.asked, true);
	vma_engine_post_task_to_internal_thread(&internal_thread_hold.task);
	assert_true(internal_thread_becomes_held(true));
}

/* Also if it is not held. */
static inline void release_internal_thread(void)
{
	atomic_store(&internal_thread_hold.asked, false);
	assert_true(internal_thread_becomes_held(false));
}

#endif
