/*
 * inet_option - options that only the kernel serves: whether one is set, and whether a call would set it.
 *
 * Threads: any, inside (the application's pointers may be bad).
 * Progress: is_set makes a system call.
 * Memory: the caller's.
 * Example: test/test_option.c.
 */
#ifndef VMA_INET_OPTION_H
#define VMA_INET_OPTION_H

#include <stdbool.h>
#include <sys/socket.h>

struct vma_engine;

enum vma_inet_enabled_by {                     /* how it is told whether an option is set */
	                   VMA_INET_BY_VALUE,  /* an int that is not 0 */
	                   VMA_INET_BY_ONE,    /* by 1, and then not 0 */
	                   VMA_INET_BY_SIGN,   /* an int that is not negative */
	                   VMA_INET_BY_LENGTH, /* a value of any bytes */
	                   VMA_INET_BY_RATE,   /* a number of 32 or 64 bits that is not the highest */
	                   VMA_INET_ALWAYS,
	                   VMA_INET_NEVER,
};

/* After the kernel has taken the call. */
bool vma_inet_option_is_set(int fd, int level, int name, enum vma_inet_enabled_by how);
/* Before the kernel is asked: not of the value that takes the option away, nor of one that cannot be read. */
bool vma_inet_option_enables(int level, enum vma_inet_enabled_by how, const void *value, socklen_t len);

/*
 * VMA_ALLOW_PRIVILEGED_SOCK_OPT=1, after the kernel has refused an option with EPERM: whether the option is one that
 * sockets serve themselves, its number in *value. An int that can be read; -EPERM otherwise.
 */
int vma_inet_read_allowed_privileged_option(const struct vma_engine *engine, int level, int name, const void *from,
                                            socklen_t len, int *value) __attribute__((cold));

#endif
