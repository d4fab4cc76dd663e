/* thread - threads, signals and waits, as their files share them. */
#ifndef VMA_SOCK_THREAD_THREAD_H
#define VMA_SOCK_THREAD_THREAD_H

#include <vma/sock_thread.h>

/* False: it was not asleep. */
bool vma_thread_wake_once(struct vma_thread *thread);

/* A handler of the application is about to run in this thread, which sleeps or is about to: it must not leave anybody
 * waiting for it, should the handler never come back. Async-signal-safe. */
void vma_wait_interrupted(struct vma_thread *self);
/* The handler has come back. */
void vma_wait_resumed(struct vma_thread *self);
/* What a sleep that was left by a jump has left behind. */
void vma_wait_clean_up_abandoned(struct vma_thread *self);

/*
 * Handlers that are installed where nobody sees it (the program has opened the library by name, and calls the C
 * library's sigaction) are wrapped when a wait of the program notices them. Inside.
 */
extern bool signals_are_not_intercepted;
/* backtrace.c: what vma_signals_tell says. The first takes memory; the others run in handlers. */
void backtrace_init(void);
void backtrace_tell(int sig, const siginfo_t *info);
/* Now and then while a thread spins; the time since the last look is asked for here. */
void signals_scan(void);
/* A sleep of this thread was interrupted, and no wrapped handler has run: counts one that was not wrapped. */
void signals_check_unwrapped(struct vma_thread *self);

/* In a forked child, whose only thread is here: nobody else installs a handler, sleeps or spins. */
void vma_signals_forked_child(void);
void vma_wait_forked_child(void);

/* core.c: the thread ends; in a forked child, self is its only thread, or NULL. */
void thread_core_release(struct vma_thread *self);
void thread_cores_forked_child(struct vma_thread *self);
void thread_offload_forked_child(void);

#endif
