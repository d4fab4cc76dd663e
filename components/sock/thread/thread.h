/* thread - threads, signals and waits, as their files share them. */
#ifndef VMA_SOCK_THREAD_THREAD_H
#define VMA_SOCK_THREAD_THREAD_H

#include <vma/sock_thread.h>

/* False: it was not asleep. */
bool vma_thread_wake_once(struct vma_thread *thread);

/* A handler of the application is about to run in this thread, which sleeps or is about to: it must not leave anybody
 * waiting for it, should the handler never come back. Async-signal-safe. */
void vma_wait_suspend_for_signal_handler(struct vma_thread *self);
/* The handler has come back. */
void vma_wait_wake_after_signal_handler(struct vma_thread *self);
/* What a sleep that was left by a jump has left behind. */
void vma_wait_clean_up_abandoned(struct vma_thread *self);

/*
 * Handlers that are installed where nobody sees it (the program has opened the library by name, and calls the C
 * library's sigaction) are wrapped when a wait of the program notices them. Inside.
 */
extern bool signals_are_not_intercepted;
/* backtrace.c: what vma_signals_set_logging says. The first takes memory; the others run in handlers. */
void backtrace_load_unwinder(void);
void backtrace_log_signal(int sig, const siginfo_t *info);
/* Now and then while a thread spins; the time since the last look is asked for here. */
void signals_wrap_new_handlers_if_due(void);
/* A sleep of this thread was interrupted, and no wrapped handler has run: counts one that was not wrapped. */
void signals_wrap_new_and_count_interrupt(struct vma_thread *self);

/* In a forked child, whose only thread is here: nobody else installs a handler, sleeps or spins. */
void vma_signals_reinit_lock_in_forked_child(void);
void vma_wait_reset_in_fork_child(void);

/* core.c: the thread ends; in a forked child, self is its only thread, or NULL. */
void thread_core_release(struct vma_thread *self);
void thread_cores_unbind_in_forked_child(struct vma_thread *self);
void thread_offload_keep_own_in_forked_child(void);

#endif
