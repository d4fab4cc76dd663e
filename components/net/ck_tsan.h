/*
 * ck_tsan.h - concurrencykit beside ThreadSanitizer, which does not see ck's fences: ck's own accesses are hidden from
 * it, and each hand-off is named at an address of its own.
 */
#ifndef VMA_NET_CK_TSAN_H
#define VMA_NET_CK_TSAN_H

#if defined(__SANITIZE_THREAD__)
#define NET_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NET_TSAN 1
#endif
#endif
#ifdef NET_TSAN
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
