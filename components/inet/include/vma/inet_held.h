/*
 * inet_held - packets that the application holds. They are frames that a socket has given out without copying, and gets
 * back by number.
 *
 *   queue ── fragments (frame, offset, length) ──> vma_held_packet_add ── id ──> application
 *   free_packets(id) ──> vma_held_packet_free: the frames' references are put, the holder's account goes down,
 *                        returned()
 *
 * A *holder* is a socket's account of the packets that it has given out. A held packet is a place in a table of the
 * process. Its identifier names the place and how often it was used. So it is looked up and never followed, and an old
 * one finds nothing. Each held packet keeps a reference to its file: the account lives until the last packet is back,
 * also if the socket is closed.
 *
 * Threads: any, inside.
 * Progress: no call waits for another thread.
 * Memory: places are never freed, only used again; there are at most 4 million. In a forked child the packets are the
 *         parent's: freeing one is -ENOENT.
 * Example: test/test_held.c.
 */
#ifndef VMA_INET_HELD_H
#define VMA_INET_HELD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include <mellanox/vma_extra.h>

#include <vma/bufpool.h>
#include <vma/sock.h>

/* A piece of a packet: len bytes from vma_buf_data(buf) + off on. */
struct vma_fragment {
	struct vma_buf *buf;
	uint32_t off, len;
};

struct vma_held_packets_owner {
	struct vma_file *file;  /* whose it is part of */
	_Atomic uint64_t bytes; /* held now, each packet counting as much as vma_held_packet_add was told */
	_Atomic uint64_t packets;
	/*
	 * A packet of `bytes` has come back, added for that connection. Any thread, inside; the socket may be closed.
	 * NULL: nobody wants to know.
	 */
	void (*returned)(struct vma_held_packets_owner *holder, uint64_t connection, uint32_t bytes);
};

/*
 * Holds a packet of n fragments, at least one; one reference of each fragment's buffer passes to the table. `bytes` is
 * what it counts for; it is refused if the holder would have more than `limit`, but for a packet alone. fd: the number
 * by which the application knows the socket. connection: for `returned`. 0, or the references stay the caller's:
 * -ENOBUFS (limit), -ENOMEM.
 */
int vma_held_packet_add(struct vma_held_packets_owner *holder, int fd, const struct vma_fragment *fragments, unsigned n,
                        uint32_t bytes, uint64_t limit, uint64_t connection, uint64_t *id);
/*
 * The packet is not held any more, and its references are the caller's, who has the buffers. False: it was freed
 * meanwhile. `returned` is not called.
 */
bool vma_held_packet_undo_add(struct vma_held_packets_owner *holder, uint64_t id);
/*
 * The application gives a packet back on number fd, which `file` (NULL: nothing of ours) has now. 0; -ENOENT: the
 * packet is not held, or neither the file's nor that of a closed socket that had the number.
 */
int vma_held_packet_free(const struct vma_file *file, int fd, uint64_t id);

/* What register_recv_callback has set. */
struct vma_recv_callback {
	vma_recv_callback_t function; /* NULL: none */
	void *context;
};

/* ---- lend.c: a receive that may give packets without copying (ops->recv_lent) ---- */

/*
 * A call of recvfrom_zcopy. msg is what recvmsg would get: the application's buffer as one piece (right behind msg, so
 * it is the library's own), and a name that is the library's. A socket either fills packets in
 * (vma_recv_zcopy_add_packet) and returns their bytes, or copies as recvmsg does, with `packets` still 0.
 */
struct vma_recv_zcopy_call {
	struct msghdr msg;
	struct iovec piece;
	size_t used;    /* bytes of the buffer that descriptions take */
	size_t packets; /* described */
	bool forced;    /* MSG_VMA_ZCOPY_FORCE: no copy */
	int fd;         /* the number that the application used: vma_held_packet_add's */
};
void vma_recv_zcopy_call_init(struct vma_recv_zcopy_call *lend, int fd, void *buf, size_t len, bool forced);
/* Whether one more packet of n fragments can be described. */
bool vma_recv_zcopy_buffer_has_room(const struct vma_recv_zcopy_call *lend, size_t n);
/* Whether the memory is there for the description of a first packet of one fragment: it is written to. */
bool vma_recv_zcopy_buffer_is_writable(const struct vma_recv_zcopy_call *lend);
/* Describes a held packet to the application: 0, -EFAULT (nothing is described; the packet is still held). */
int vma_recv_zcopy_add_packet(struct vma_recv_zcopy_call *lend, const struct vma_bufarena *arena, uint64_t id,
                              const struct vma_fragment *fragments, size_t n);
/*
 * In the flags of internal receive functions that end up in a socket's queue: msg is a struct vma_recv_zcopy_call's.
 * Programs cannot set it: ops->recvmsg masks it.
 */
#define VMA_LEND_FLAG MSG_VMA_ZCOPY
static inline struct vma_recv_zcopy_call *vma_recv_zcopy_call_of_msghdr(struct msghdr *msg)
{
	return (struct vma_recv_zcopy_call *)((char *)msg - offsetof(struct vma_recv_zcopy_call, msg));
}
/*
 * The kernel's socket, for such a call: recvmsg with MSG_DONTWAIT on fd. Forced: -EIO where it would give something,
 * which stays there. _waits: as vma_inet_os_recv, outside meanwhile.
 */
ssize_t vma_zcopy_call_recv_from_os_nonblocking(int fd, struct msghdr *msg, int flags);
ssize_t vma_zcopy_call_recv_from_os_blocking(int fd, struct msghdr *msg, int flags);

#endif
