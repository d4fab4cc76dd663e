/* callback - sources of callbacks that wait, and threads of the program that run them when they leave. */
#include <errno.h>
#include <pthread.h>

#include <vma/sock_callback.h>

#include "thread.h"

#define SOURCES_MAX 16 /* run at one leave: what is left makes the thread look again soon */

/* Producers push here, without a lock; who takes takes all, so a pointer that comes back does no harm. */
static struct vma_callback_source *_Atomic posted;
/* Runners' own, in the order of posting. */
static pthread_mutex_t callbacks_taken_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vma_callback_source *sources_to_call;
static _Atomic bool ended;
/* In place of a source while a thread looks for one. */
static struct vma_callback_source none;
static struct vma_callback_source paused;

/* ---- producers ---- */

static void thread_mark_callbacks_held(struct vma_thread *thread)
{
	if (!vma_thread_has_deferred_work(thread, VMA_HELD_CALLBACKS))
		atomic_fetch_or(&thread->held, VMA_HELD_CALLBACKS);
}

/* This one is the library's, or has other callbacks to come back from. */
static void callbacks_wake_all_threads(struct vma_file *file)
{
	const unsigned count = vma_thread_table_size();

	for (unsigned i = 0; i < count; i++) {
		struct vma_thread *thread = vma_thread_at(i);

		if (thread != NULL && !thread->is_internal)
			thread_mark_callbacks_held(thread);
	}
	vma_file_wake_sleepers_and_watchers(file, VMA_FILE_READABLE);
}

static void callback_source_push(struct vma_callback_source *source)
{
	struct vma_callback_source *first = atomic_load_explicit(&posted, memory_order_relaxed);

	do
		source->next = first;
	while (!atomic_compare_exchange_weak(&posted, &first, source));
}

void vma_callback_post(struct vma_callback_source *source)
{
	struct vma_thread *self = vma_thread_cache;

	if (!vma_file_mark_scheduled(source->file, &source->queued)) {
		/* The thread that was marked then may be busy with another source. */
		if (self != NULL && !self->is_internal && self->in_callback == NULL)
			thread_mark_callbacks_held(self);
		return;
	}
	callback_source_push(source);
	if (self != NULL && !self->is_internal && self->in_callback == NULL)
		thread_mark_callbacks_held(self);
	else
		callbacks_wake_all_threads(source->file);
}

/* ---- runners ---- */

static struct vma_callback_source *callback_sources_reversed(struct vma_callback_source *source)
{
	struct vma_callback_source *before = NULL;

	while (source != NULL) {
		struct vma_callback_source *next = source->next;

		source->next = before;
		before = source;
		source = next;
	}
	return before;
}

/* Inside, so that no handler comes while the lock is held. The reference passes to the caller. NULL: there is none. */
static struct vma_callback_source *callback_source_take(void)
{
	struct vma_callback_source *source;

	pthread_mutex_lock(&callbacks_taken_lock);
	if (sources_to_call == NULL)
		sources_to_call = callback_sources_reversed(atomic_exchange(&posted, NULL));
	source = sources_to_call;
	if (source != NULL)
		sources_to_call = source->next;
	if (source != NULL && sources_to_call != NULL)
		callbacks_wake_all_threads(sources_to_call->file); /* the callback of this one may take long */
	pthread_mutex_unlock(&callbacks_taken_lock);
	return source;
}

/* The end of a run, also by pthread_exit: whoever came meanwhile and left has said so. */
static void callback_source_end_run(void *arg)
{
	struct vma_callback_source *source = arg;
	struct vma_thread *self = vma_enter();

	self->in_callback = &none;
	atomic_store(&source->running, false);
	if (atomic_exchange(&source->again, false))
		vma_callback_post(source);
	vma_file_put(source->file);
	vma_leave(self);
}

/*
 * The thread ends in the application's function, and cannot tell whether there is more: others look. It itself runs
 * nothing any more on its way out, as it would if in_callback were NULL.
 */
static void callback_source_on_thread_end(void *arg)
{
	struct vma_callback_source *source = arg;

	atomic_store(&source->again, true);
	callback_source_end_run(source);
}

/*
 * Another thread may run it at the moment. This one says that there is more (A), then tries again (B); that one gives
 * `running` back (C), then looks whether somebody has said so (D). Sequentially consistent: B succeeds, or D sees A.
 */
static bool callback_source_try_acquire(struct vma_callback_source *source)
{
	if (!atomic_exchange(&source->running, true))
		return true;
	atomic_store(&source->again, true);
	return !atomic_exchange(&source->running, true);
}

static void callback_source_run(struct vma_thread *self, struct vma_callback_source *source)
{
	bool more;

	self->in_callback = source;
	pthread_cleanup_push(callback_source_on_thread_end, source);
	more = source->run(source);
	pthread_cleanup_pop(0);
	if (more)
		atomic_store(&source->again, true);
	callback_source_end_run(source);
}

static bool callback_run_next_source(struct vma_thread *self)
{
	struct vma_callback_source *source;

	vma_enter();
	source = callback_source_take();
	if (source != NULL) {
		atomic_exchange(&source->queued, false);
		if (!callback_source_try_acquire(source)) {
			vma_file_put(source->file);
			vma_leave(self);
			return true;
		}
	}
	vma_leave(self);
	if (source == NULL)
		return false;
	callback_source_run(self, source);
	return true;
}

/* Inside, or with all signals blocked. */
static bool callback_sources_are_posted(void)
{
	bool wait;

	pthread_mutex_lock(&callbacks_taken_lock);
	wait = sources_to_call != NULL || atomic_load(&posted) != NULL;
	pthread_mutex_unlock(&callbacks_taken_lock);
	return wait;
}

/* The thread is in the table, so what is posted from now on marks it as it marks others. */
void vma_callbacks_mark_new_thread(struct vma_thread *self)
{
	if (callback_sources_are_posted())
		thread_mark_callbacks_held(self);
}

/*
 * As around a handler of the application, this thread must not leave anybody waiting for it meanwhile; and a sleep that
 * it was about to begin ends at once, for what it had looked at before may have changed.
 */
void vma_callbacks_run(struct vma_thread *self)
{
	const int saved = errno;
	int cancel_state;

	if (self->in_callback != NULL) /* it looks again when it comes back */
		return;
	atomic_fetch_and(&self->held, (uint8_t)~VMA_HELD_CALLBACKS);
	if (atomic_load_explicit(&ended, memory_order_relaxed) || self->is_internal)
		return;
	/* A call that leaves to sleep has not told yet what is to be undone if its thread is cancelled. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
	vma_wait_suspend_for_signal_handler(self);
	self->in_callback = &none;
	for (unsigned n = 0; n < SOURCES_MAX && callback_run_next_source(self); n++)
		self->in_callback = &none;
	vma_enter();
	vma_callbacks_mark_new_thread(self);
	vma_leave(self);
	self->in_callback = NULL;
	vma_wait_wake_after_signal_handler(self);
	pthread_setcancelstate(cancel_state, NULL);
	errno = saved;
}

void vma_callbacks_pause(struct vma_thread *self)
{
	if (self->in_callback == NULL)
		self->in_callback = &paused;
}

void vma_callbacks_resume(struct vma_thread *self)
{
	if (self->in_callback == &paused)
		self->in_callback = NULL;
}

bool vma_callback_source_is_running_here(const struct vma_callback_source *source)
{
	return vma_thread_cache != NULL && vma_thread_cache->in_callback == source;
}

void vma_callbacks_end(void)
{
	atomic_store(&ended, true);
}

/* What was posted is the parent's; files take their references back by themselves. */
__attribute__((cold)) void vma_callbacks_reset_in_forked_child(void)
{
	pthread_mutex_init(&callbacks_taken_lock, NULL);
	atomic_store(&posted, NULL);
	sources_to_call = NULL;
}
