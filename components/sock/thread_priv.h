/* thread_priv - what the files of threads, signals and waits share. */
#ifndef SOCK_THREAD_PRIV_H
#define SOCK_THREAD_PRIV_H

#include <vma/sock_thread.h>

/* False: it was not asleep. */
bool vma_thread_wake_told(struct vma_thread *thread);

/* A handler of the application is about to run in this thread, which sleeps or is about to: it must not leave anybody
 * waiting for it, should the handler never come back. Async-signal-safe. */
void vma_wait_interrupted(struct vma_thread *self);
/* The handler has come back. */
void vma_wait_resumed(struct vma_thread *self);
/* What a sleep that was left by a jump has left behind. */
void vma_wait_tidy(struct vma_thread *self);

/* In a forked child, whose only thread is here: nobody else installs a handler, sleeps or spins. */
void vma_signals_forked_child(void);
void vma_wait_forked_child(void);

#endif
