/*
 * sock_callback - functions of the application that the library calls: in threads of the program, when they leave the
 * library.
 *
 *   sink (in the driver, flag held) ── vma_callback_post ──> list of sources ──> vma_leave of a thread: source->run
 *
 * A *source* is an object with something to tell the application: a socket with packets that its receive callback has
 * not seen. The sink queues the packet and posts the source. The thread that drives runs the source when it leaves
 * (vma_leave, depth 0): outside, with no lock and no drive flag. So the application's function may do what a signal
 * handler may do and more, and no other thread waits for it. A thread of the library's own never runs a source. That
 * thread, and a thread that drives inside a callback, has all threads of the program look when they next leave. It also
 * wakes the sleepers of the source's file.
 *
 * No source is forgotten. The producer queues, then sets `queued`, and pushes the source if it was not set. A runner
 * takes the source out, clears `queued`, then looks at what is queued. So either the runner sees what was queued, or
 * the producer finds `queued` cleared and pushes. The thread that pushes marks a thread (vma_thread.held), which runs
 * sources before it sleeps or returns. A verdict that makes a file readable wakes sleepers as any delivery does. If the
 * runner itself is among them, its wake-up descriptor ends the sleep that it was about to begin.
 *
 * Threads: any. A source is run by one thread at a time, which the source sees to (`running`).
 * Progress: post never waits. A thread runs at most VMA_CALLBACK_TURN packets' worth before it returns to its call.
 * Memory: the source is part of its file's object; posted, it holds a reference.
 * Example: test/test_callback.c.
 */
#ifndef VMA_SOCK_CALLBACK_H
#define VMA_SOCK_CALLBACK_H

#include <stdatomic.h>
#include <stdbool.h>

#include <vma/sock.h>

#define VMA_CALLBACK_TURN 64

struct vma_callback_source {
	struct vma_callback_source *next; /* of the list */
	_Atomic bool queued;
	_Atomic bool running;
	_Atomic bool again; /* somebody has come while it ran */
	struct vma_file *file;
	/*
	 * Outside, in a thread of the program, which is in vma_callback_source_is_running_here meanwhile: hands at most
	 * VMA_CALLBACK_TURN packets to the application. True: there are more. Not called by two threads at a time.
	 */
	bool (*run)(struct vma_callback_source *source);
};

/* There is something for run. Inside; also in sinks. */
void vma_callback_post(struct vma_callback_source *source);
/* The calling thread is in a callback of this source. */
bool vma_callback_source_is_running_here(const struct vma_callback_source *source);
/*
 * The calling thread runs no source between the two, at whatever depth; what is posted meanwhile is run when it leaves
 * after that. Within a callback they do nothing.
 */
void vma_callbacks_pause(struct vma_thread *self);
void vma_callbacks_resume(struct vma_thread *self);
/* The process ends: nothing is run any more. */
void vma_callbacks_end(void);
/* A thread that is new to the library: what was posted before it came is its, too. All signals are blocked. */
void vma_callbacks_mark_new_thread(struct vma_thread *self) __attribute__((cold));
/* vma_leave's: the thread has been marked. Outside. */
void vma_callbacks_run(struct vma_thread *self) __attribute__((cold));
void vma_callbacks_reset_in_forked_child(void);

#endif
