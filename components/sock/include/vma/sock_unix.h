/*
 * sock_unix - datagram sockets with abstract names, by which processes of one network namespace find each other.
 *
 * Any local process may bind an abstract name first, and any may send to it. So the kernel's word about the sender
 * comes with each message. A server looks at it before it takes a descriptor out of the message. The close of a
 * descriptor may wait for the file system that it belongs to. Functions return a descriptor, 0 or a negative errno.
 *
 * Threads: any.
 * Progress: no call waits, but for vma_unix_poll_until_deadline.
 * Memory: none.
 * Example: passed.c of stream; engine/taken.c.
 */
#ifndef VMA_SOCK_UNIX_H
#define VMA_SOCK_UNIX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

/* The server's: one of the library's own descriptors. -EADDRINUSE: the name is somebody else's. */
int vma_unix_bind_abstract(const char *text);
/* For one conversation with the server: connected, with a name of its own to be answered at. -ECONNREFUSED: none. */
int vma_unix_connect_abstract(const char *text);
/* For a conversation with several servers: not connected, with a name of its own. */
int vma_unix_open_autobound_dgram(void);
/* Until the socket is readable (POLLIN) or writable (POLLOUT), or this time has come. */
bool vma_unix_poll_until_deadline(int fd, short events, uint64_t deadline_ns);

/* As this process's namespaces have them. */
struct vma_unix_cred {
	pid_t pid;
	uid_t uid;
};
/* Who has sent the next message, which stays where it is. -EAGAIN: there is none. */
int vma_unix_peek_sender_cred(int fd, struct vma_unix_cred *sender);

/* Root, or this process's user: the processes that may take its descriptors anyway (pidfd_getfd, ptrace). */
bool vma_unix_sender_is_root_or_self(const struct vma_unix_cred *sender);

struct vma_unix_message {
	void *data;
	size_t size;
	int fd; /* -1: none; of several that arrive only the first is taken out */
	struct vma_unix_cred sender;
	struct sockaddr_un name;
	socklen_t name_len;
};
/* Of the server with this name: for a message to it. */
void vma_unix_set_abstract_dest(const char *text, struct vma_unix_message *message);
/* Takes the next message; the descriptor only if it is wanted. How many bytes, -EAGAIN, ... */
int vma_unix_recv_with_sender_and_fd(int fd, struct vma_unix_message *message, bool wants_fd);
/* To the name that the message has, or to the server if it has none. -EAGAIN, ... */
int vma_unix_send(int fd, const struct vma_unix_message *message);

#endif
