/* task - work for the internal thread: posted by any thread, run there in order. */
#include <vma/mpsc.h>
#include <vma/sock_engine.h>

#include "internal.h"

static ck_stack_t queue = CK_STACK_INITIALIZER;
static ck_stack_entry_t *tasks_to_run; /* taken from the queue by the internal thread */

_Static_assert(offsetof(struct vma_internal_task, next) == offsetof(ck_stack_entry_t, next),
               "a task starts with its link");

static void task_push(struct vma_internal_task *task)
{
	vma_mpsc_push(&queue, (ck_stack_entry_t *)task);
}

/*
 * `queued` says that the task is in the queue or about to be taken from it. It is cleared before run: who posts from
 * then on pushes anew, so what he changed before posting is seen by this run or by the next. The push comes before the
 * wake, see internal_thread_wake.
 */
void vma_engine_post_task_to_internal_thread(struct vma_internal_task *task)
{
	if (atomic_exchange(&task->queued, true))
		return;
	task_push(task);
	internal_thread_wake();
}

/* The push is published before the thread's time is asked for, and tasks_next_due_ns looks after it was said:
 * sleep_time.h. */
void vma_engine_post_task_within_1ms(struct vma_internal_task *task)
{
	if (atomic_exchange(&task->queued, true))
		return;
	task_push(task);
	internal_thread_wake_no_later_than(vma_now_ns() + MS);
}

uint64_t tasks_next_due_ns(void)
{
	return ck_pr_load_ptr(&queue.head) != NULL ? vma_now_ns() + MS : NO_DEADLINE;
}

void tasks_run(void)
{
	tasks_to_run = vma_mpsc_take_all(&queue);
	while (tasks_to_run != NULL) {
		struct vma_internal_task *task = (struct vma_internal_task *)tasks_to_run;

		tasks_to_run = ck_pr_load_ptr(&tasks_to_run->next);
		atomic_store(&task->queued, false);
		task->run(task);
	}
}

/* In a forked child: what the parent's thread was to do is not to be done here; but the tasks may be posted again. */
void tasks_discard_in_fork_child(void)
{
	ck_stack_entry_t *lists[] = {tasks_to_run, vma_mpsc_take_all(&queue)};

	tasks_to_run = NULL;
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		for (; lists[i] != NULL; lists[i] = ck_pr_load_ptr(&lists[i]->next))
			atomic_store(&((struct vma_internal_task *)lists[i])->queued, false);
}
