/* Every call of a test is made by a thread that the engine knows, as the socket calls make it. */
#ifndef VMA_INET_TEST_FIXTURE_H
#define VMA_INET_TEST_FIXTURE_H

#include <vma/sock_thread.h>

static inline int setup_vma_enter(void **state)
{
	(void)state;
	vma_enter();
	return 0;
}

static inline int teardown_vma_leave(void **state)
{
	(void)state;
	vma_leave(vma_thread_self());
	return 0;
}

#endif
