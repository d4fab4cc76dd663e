/*
 * ck_tsan - concurrencykit beside ThreadSanitizer, which does not see ck's fences. Include it before any header of
 * ck's.
 *
 * In a build with that sanitizer (VMA_TSAN is defined then) ck's own accesses are hidden from it. An attribute of the
 * function that calls ck's would not do, because it does not carry over to the functions that are called. Instead each
 * hand-off is named, at an address that both sides know: __tsan_release(addr) before the entry is published,
 * __tsan_acquire(addr) after it was taken. In any other build both are nothing.
 *
 * Threads: any.
 * Progress: nothing waits.
 * Memory: none.
 * Example: <vma/mpsc.h>.
 */
#ifndef VMA_CK_TSAN_H
#define VMA_CK_TSAN_H

#if defined(__SANITIZE_THREAD__)
#define VMA_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VMA_TSAN 1
#endif
#endif

#ifdef VMA_TSAN
#include <ck_cc.h>
#undef CK_CC_INLINE
#define CK_CC_INLINE __attribute__((no_sanitize_thread, unused)) inline
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#else
#define __tsan_acquire(addr) ((void)(addr))
#define __tsan_release(addr) ((void)(addr))
#endif

#endif
