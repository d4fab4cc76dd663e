/*
 * mem - control objects: jemalloc with an arena of our own, beside whatever malloc the application has.
 *
 * The application's malloc may be interrupted by a handler that calls us; ours is only called inside, where handlers do
 * not run. A sanitizer's build uses libc's, or the sanitizer would see nothing.
 */
#include <stdlib.h>
#include <string.h>

#include <vma/sock_thread.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#define LINE 64

#ifdef SANITIZED
void *vma_alloc_bytes(size_t size)
{
	return aligned_alloc(LINE, (size + LINE - 1) / LINE * LINE);
}

void *vma_alloc(size_t size)
{
	void *memory = vma_alloc_bytes(size);

	return memory == NULL ? NULL : memset(memory, 0, size);
}

void vma_free(void *memory)
{
	free(memory);
}
#else
void *vma_je_mallocx(size_t size, int flags);
void vma_je_dallocx(void *memory, int flags);
/* Read by jemalloc at its start: few arenas, and what is unused goes back to the kernel soon. */
extern const char *vma_je_malloc_conf;
const char *vma_je_malloc_conf = "narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0,tcache_max:4096";

#define LOG2_LINE 6
#define ZERO 0x40 /* MALLOCX_ZERO */

void *vma_alloc(size_t size)
{
	return vma_je_mallocx(size == 0 ? 1 : size, LOG2_LINE | ZERO);
}

void *vma_alloc_bytes(size_t size)
{
	return vma_je_mallocx(size == 0 ? 1 : size, LOG2_LINE);
}

void vma_free(void *memory)
{
	if (memory != NULL)
		vma_je_dallocx(memory, 0);
}
#endif
