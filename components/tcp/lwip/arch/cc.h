/*
 * cc - what lwIP asks about the compiler and the machine.
 *
 * LWIP_TLS marks lwIP's own state, which the adaptation makes thread-local. It is of the initial-exec model, because
 * each access lies on the data path. It is a few hundred bytes (test_lwip_port.c counts them), so that a library that
 * dlopen loads may have them.
 */
#ifndef VMA_LWIP_CC_H
#define VMA_LWIP_CC_H

#include <stdint.h>
#include <stdlib.h>

#define LWIP_TLS __thread __attribute__((tls_model("initial-exec"), visibility("hidden")))

#define LWIP_DONT_PROVIDE_BYTEORDER_FUNCTIONS
#define lwip_htons(x) __builtin_bswap16(x)
#define lwip_htonl(x) __builtin_bswap32(x)

/* lwIP's assertions hold in every build but the plain one. */
#ifdef VMA_DEBUG
#define LWIP_PLATFORM_ASSERT(message) port_assertion_failed(message, __FILE__, __LINE__)
void port_assertion_failed(const char *message, const char *file, int line) __attribute__((noreturn, cold));
#else
#define LWIP_NOASSERT
#define LWIP_PLATFORM_ASSERT(message) ((void)0)
#endif
#define LWIP_PLATFORM_DIAG(arguments) ((void)0)

#endif
