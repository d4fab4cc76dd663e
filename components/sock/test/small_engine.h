/* small_engine.h - the engine of a test program: quiet, of little memory, without a statistics file
 * unless its folder is set. */
#ifndef VMA_SOCK_TEST_SMALL_ENGINE_H
#define VMA_SOCK_TEST_SMALL_ENGINE_H

#include <stdlib.h>

#include <vma/sock_engine.h>

/* Buffers for each direction, and of a ring's receive queue. NULL: it cannot start. */
static inline struct vma_engine *start_engine_with_few_buffers(const char *bufs, const char *rx_wre)
{
	setenv("VMA_STATS_SHMEM_DIR", "", 0);
	setenv("VMA_TRACELEVEL", "warn", 1);
	setenv("VMA_MEM_ALLOC_TYPE", "0", 1);
	setenv("VMA_RX_BUFS", bufs, 1);
	setenv("VMA_TX_BUFS", bufs, 1);
	setenv("VMA_RX_WRE", rx_wre, 1);
	/* The defaults, but asked for: waits spin however busy the host is (test_load.c has what it does otherwise). */
	setenv("VMA_RX_POLL", "100000", 1);
	setenv("VMA_SELECT_POLL", "100000", 1);
	return vma_engine_get_or_start();
}

#endif
