/*
 * taken - the messages of a process to the owner of a socket. taken.c answers, and asks for sockets that it has taken.
 * inherited.c asks for sockets that have come through exec.
 */
#ifndef VMA_SOCK_ENGINE_TAKEN_H
#define VMA_SOCK_ENGINE_TAKEN_H

#include <stdint.h>

#define TAKEN_NAME "vma/process/" /* and the inode of the pidfd */

enum taken_reply { TAKEN_NOT_MINE, TAKEN_SHOW_SOCKET, TAKEN_HANDED_OVER, TAKEN_STAYS, TAKEN_REFUSED };

/* "Your descriptor `number`". */
struct taken_request {
	uint64_t cookie;
	int32_t number;
};

/* "Whichever of your descriptors is the file of mine of this number". Told from the other one by its size. */
struct inherited_request {
	uint64_t cookie, zero;
	int32_t number;
};

#endif
