/*
 * stream - TCP behind a descriptor: connections and listeners of tcp, and a socket of the kernel, the shadow, that
 * reserves their ports.
 *
 *   connect ──┬─ the peer is reached through a device of ours: shadow bound, connection of the ring context's stack
 *             └─ else (this host, no device, an option that only the kernel serves): the shadow's own
 *   listen  ───── listeners on the rings of the local addresses, and the shadow listens, too
 *   accept  ───── from both queues
 *   recv, send ── fifos of the connection
 *
 * Threads: any. Readers of one socket take turns, and so do writers; control calls take the file's lock.
 * Progress: calls wait only as a blocking socket must.
 * Memory: from vma_alloc; queued bytes lie in the connection's fifos, bounded by SO_RCVBUF and SO_SNDBUF.
 * Example: test/test_connect.c; tests/parity/.
 */
#ifndef VMA_STREAM_H
#define VMA_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include <vma/sock.h>
#include <vma/tcp.h>

/* Whether it is one for stream: AF_INET or AF_INET6, SOCK_STREAM, TCP. */
bool vma_stream_handles_socket_type(int domain, int type, int protocol);
/*
 * Puts a TCP object behind fd, which the kernel has just made with socket(domain, type, protocol). 0 also when that
 * socket is the OS's for good (the reason can be asked for); -ENOMEM.
 */
int vma_stream_socket(int fd, int domain, int type, int protocol);
/*
 * After the call that closed a descriptor, outside: waits as SO_LINGER says if a socket of this thread has ended with
 * it. A load when there is none.
 */
void vma_stream_wait_for_lingering_sockets(void) __attribute__((cold));
extern __thread void *vma_stream_lingering_socket __attribute__((tls_model("initial-exec"), visibility("hidden")));
static inline void vma_stream_linger_after_close(void)
{
	if (__builtin_expect(vma_stream_lingering_socket != NULL, 0))
		vma_stream_wait_for_lingering_sockets();
}
/* Whether file is a connection that goes past the kernel: system calls on its descriptor would miss it. Inside. */
bool vma_stream_is_connection(struct vma_file *file);
/*
 * Sends up to `size` bytes of descriptor `in`, from `position` on (-1: a pipe's next), as sendmsg with these flags: how
 * many, 0 the end of `in`, -errno; -EAGAIN also when a pipe has none now. A pipe is not waited for. Inside.
 */
ssize_t vma_stream_sendfile(struct vma_file *file, int in, int64_t position, size_t size, int flags);
/* Inside. An error for the next call that asks, as one that the peer has sent. */
void vma_stream_set_pending_error(struct vma_file *file, int error);
/*
 * fork: a connection stays its parent's until one of the two needs more than that. It is handed over to the kernel,
 * whose socket both have, when the parent closes it, ends, or (what survives) becomes another program; when the child
 * first uses it: the child asks, and waits, for at most five seconds, and no longer than its parent lives. A child that
 * closes it, or ends, changes nothing. Without CAP_NET_ADMIN vmad makes the
 * hand-over; if that cannot be, the connection ends with its parent. What waits for accept at a fork
 * is anybody's, if the parent has not looked at the listener itself by then.
 */
void vma_stream_fork_prepare(void);        /* outside; before the engine's */
void vma_stream_reset_in_fork_child(void); /* after the engine's */
/* Inside. The file is about to be used: if it is a connection of the parent's, it is asked for. */
void vma_stream_take_from_fork_owner(struct vma_file *file) __attribute__((cold));
/* Outside. Descriptor fd is about to become something else (dup2): its connection may have to be handed over. */
void vma_stream_give_conn_to_kernel_before_dup2(int fd);
/* Outside. The process is about to become another program. */
void vma_stream_give_conns_to_kernel_before_exec(void);
void vma_stream_exec_failed(void); /* or not */
/*
 * Outside, after vma_stream_give_conns_to_kernel_before_exec. A connection waits for accept, in this process or in its
 * parent, and a program is about to have the listener. Only the library can give the connection to it. Of a listener
 * that a process accepts from itself, the connections are for that process. beside: the program runs in a new process,
 * not in this one.
 */
bool vma_stream_has_listener_with_conns_at_exec(bool beside) __attribute__((cold));
/*
 * A descriptor has come in a message (SCM_RIGHTS) that the table does not have. may: it is TCP, listens or is not
 * connected. If it is bound, and who sent it has this library, it gets a TCP object: a listener that several processes
 * serve (passed.c). Waits for the sender's answer, for half a second at most. Outside.
 */
bool vma_stream_fd_is_unconnected_tcp_socket(int fd);
void vma_stream_adopt_passed_fd(int fd);
/* vma_inherited_listener: the socket becomes a TCP object that accepts what comes by waiting_fd, too. Inside. */
bool vma_stream_inherit_by_exec(int fd, int waiting_fd);
/* Outside. ops->hand_over was called for a message, which was refused. */
void vma_stream_undo_scm_rights_send(int fd) __attribute__((cold));
/* Outside. listen() has succeeded: if the socket is the kernel's here, no process offloads what others made of it. */
void vma_stream_note_kernel_listens(int fd) __attribute__((cold));

/* ---- zero-copy receive: <vma/tcp.h> has what a piece is ---- */

/*
 * Is offered the first bytes of the stream: len bytes from vma_buf_data(buf) + off on, of the connection with that
 * number. 0: it has them, with a reference of its own, until vma_stream_return_held_zcopy_bytes; more is offered. 1: it
 * has no room. -errno. copy: in place of a recvmsg with msg, where bytes would be copied; NULL: that is as well.
 */
struct vma_stream_zcopy_taker {
	int (*take)(void *arg, uint64_t number, struct vma_buf *buf, uint32_t off, uint32_t len);
	ssize_t (*copy)(void *arg, struct vma_file *file, int fd, struct msghdr *msg, int flags);
	void *arg;
};
/*
 * Inside. recv, whose bytes the taker gets (*taken; without MSG_WAITALL), if they lie in frames: as many pieces as are
 * queued, and as it takes. Else they are copied to msg: if the first ones were copied before, with MSG_PEEK, MSG_OOB,
 * MSG_TRUNC or MSG_ERRQUEUE, if the taker has no room for one piece, and if the socket is the kernel's.
 */
ssize_t vma_stream_recv_zcopy_pieces(struct vma_file *file, int fd, struct msghdr *msg, int flags,
                                     const struct vma_stream_zcopy_taker *taker, bool *taken);
/* Inside. That of the socket's connection, which no other has; 0: it has none, or keeps no frames. */
uint64_t vma_stream_zcopy_number(struct vma_file *file);
/* Any thread, inside. Pieces of the connection with that number, perhaps a former one, are held no longer. */
void vma_stream_return_held_zcopy_bytes(struct vma_file *file, uint64_t number, uint64_t bytes, unsigned pieces);

/*
 * Inspects what comes for a socket, before anybody can read it. arrived: something waits; receive flag held, must not
 * wait. Somebody is to call vma_stream_inspect_received soon, without the flag. decide: inside; may step outside
 * (vma_leave, vma_enter) and make any call, as the socket and its connection are held. VMA_TCP_HOLD: it has taken a
 * reference, until vma_stream_return_held_zcopy_bytes. If its thread ends there: vma_stream_inspector_has_ended.
 */
struct vma_stream_inspector {
	void (*arrived)(struct vma_file *file);
	enum vma_tcp_inspect_verdict (*decide)(struct vma_file *file, struct vma_tcp_conn *conn,
	                                       const struct vma_tcp_rx_stream_piece *piece);
};
/*
 * Inside, no lock. From now on, also of connections that the socket makes later; constant. What had come before is not
 * inspected. NULL: no longer, and what waits is received. -EOPNOTSUPP (the socket is the kernel's), -ENOMEM.
 */
int vma_stream_set_inspector(struct vma_file *file, const struct vma_stream_inspector *inspector);
/* Inside, no lock, with a reference to the file. At most so many pieces; true: there are more. */
bool vma_stream_inspect_received(struct vma_file *file, unsigned most);
/*
 * Inside: the thread that inspects `conn` ends, and does not come back from `decide`. The piece at hand gets this
 * verdict, DROP or HOLD. Somebody is to inspect again.
 */
void vma_stream_inspector_has_ended(struct vma_file *file, struct vma_tcp_conn *conn,
                                    enum vma_tcp_inspect_verdict verdict) __attribute__((cold));

/*
 * At exit, outside: every connection is closed, and what is queued is delivered, for at most two seconds.
 */
void vma_stream_close_and_flush_at_exit(void);

#endif
