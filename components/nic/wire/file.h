/* file - the messages of two processes that link: one message, the memory, the bell. */
#ifndef VMA_NIC_WIRE_FILE_H
#define VMA_NIC_WIRE_FILE_H

#include <stddef.h>
#include <stdint.h>

#define WIRE_HELLO_MAGIC 0x77697265U /* "wire" */
#define WIRE_HELLO_VERSION 1
#define WIRE_HELLO_FDS 2 /* memfd, bell */

struct wire_hello {
	uint32_t magic, version;
	uint32_t busy; /* the place is taken; no fds */
	uint32_t slots, mtu, nonce;
};

/* 0 or -errno; never waits. */
int wire_hello_send(int fd, const struct wire_hello *hello, const int *fds, unsigned nfds);
/* Waits as long as the socket's timeout. fds that did not come are -1; the caller closes them in any case. */
int wire_hello_recv(int fd, struct wire_hello *hello, int fds[WIRE_HELLO_FDS]);
/* Does the offer suit us, and is the memory such that a peer cannot take it away? 0, -EBUSY, -EPROTO. */
int wire_hello_check(const struct wire_hello *hello, const int fds[WIRE_HELLO_FDS], uint32_t slots, uint32_t mtu,
                     size_t bytes);
/* A new sealed memfd, or -errno. */
int wire_create_sealed_memfd(size_t bytes);
/* A pidfd of the process at the other end of a unix socket; -1: cannot be had (another pid namespace). */
int wire_pidfd_open_of_unix_peer(int fd);

#endif
