/*
 * inet_xtreme - SocketXtreme (<mellanox/vma_extra.h>): completions that a thread polls, and the buffers that they give.
 *
 *   sink ──┬─ its thread polls this ring ── vma_xtreme_poll_add_packet_completion, vma_xtreme_poll_add_datagram_train ──────> completion
 *          └─ else: queued as always, vma_xtreme_queue_source_events ──> the ring's list ── complete() ──> completion
 *
 *   vma_buff_t of the application ── range, alignment, own count ──> place of the table: frame, account, next one
 *
 * A *source* is a socket on a ring, which may have something to tell. The list of a ring bit has each source once. The
 * poll works off the list, then drives the ring, then works off what the drive has brought.
 *
 * A *place* is a struct vma_buff_t that the application sees, and the library's own fields beside it. The application
 * may write to its part: the library does not read that. Its pointer is compared with the table's addresses, and the
 * count in the place says whether it is the application's now. The count's word also has a number of uses. If a thread
 * reads a place and then changes the very word that it has seen, all that it read belongs together.
 *
 * An *account* is what a socket has given out. It outlives the socket until all is back.
 *
 * Threads: any, inside. One thread polls a ring bit at a time; another one drives the ring and finds nothing of its
 * own. Progress: no call waits for another thread.
 * Memory: places are never freed, only used again; there are at most a million. In a forked child the places are the
 *         parent's: freeing one is -EINVAL.
 * Example: test/test_xtreme.c.
 */
#ifndef VMA_INET_XTREME_H
#define VMA_INET_XTREME_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <mellanox/vma_extra.h>

#include <vma/inet_held.h>
#include <vma/sock.h>

struct vma_xtreme_account;
struct vma_xtreme_ring;

/* What a socket has of this mode. */
struct vma_xtreme {
	struct vma_file *file;
	struct vma_xtreme_account *_Atomic account; /* NULL: it has closed */
	_Atomic uint64_t user_data;                 /* SO_VMA_USER_DATA */
	_Atomic bool has_user_data;                 /* else it is the descriptor */
	_Atomic uint32_t flow_tag;                  /* SO_VMA_FLOW_TAG; 0: none */
};
/* A part of what a connection has given out has come back. Any thread, inside; the socket may be closed. */
typedef void (*vma_xtreme_bytes_returned_fn)(struct vma_file *file, uint64_t connection, uint32_t bytes);
/*
 * NULL: no memory. returned not NULL: the file is held until all is back, or until vma_xtreme_close has found that
 * nothing is out.
 */
struct vma_xtreme *vma_xtreme_create(struct vma_file *file, vma_xtreme_bytes_returned_fn returned);
/* The last descriptor has gone: nothing is given any more. Once. */
void vma_xtreme_close(struct vma_xtreme *xtreme);
/* Nobody sees the socket any more. Closes, if that was not done. */
void vma_xtreme_destroy(struct vma_xtreme *xtreme);
/* In a forked child: what is out is the parent's. */
void vma_xtreme_reset_account_in_fork_child(struct vma_xtreme *xtreme);
/* Of its completions. */
static inline uint64_t vma_xtreme_user_data(const struct vma_xtreme *xtreme)
{
	if (__builtin_expect(atomic_load_explicit(&xtreme->has_user_data, memory_order_acquire), 0))
		return atomic_load_explicit(&xtreme->user_data, memory_order_relaxed);
	return (uint64_t)atomic_load_explicit(&xtreme->file->fd, memory_order_relaxed);
}
/* Bytes that are out. */
uint64_t vma_xtreme_held_bytes(const struct vma_xtreme *xtreme);
/*
 * xtreme_option.c: SO_VMA_USER_DATA and SO_VMA_FLOW_TAG, of SOL_SOCKET. 0; -EINVAL (a length that is not the option's,
 * or a tag out of range); -EFAULT; -ENOPROTOOPT: another option.
 */
int vma_xtreme_setsockopt(struct vma_xtreme *xtreme, int name, const void *value, socklen_t len);
int vma_xtreme_getsockopt(const struct vma_xtreme *xtreme, int name, void *value, socklen_t *len);
static inline bool vma_xtreme_is_option(int level, int name)
{
	return level == SOL_SOCKET &&
	       (name == SO_VMA_USER_DATA || name == SO_VMA_FLOW_TAG || name == SO_VMA_SHUTDOWN_RX);
}

/* ---- sources ---- */

struct vma_xtreme_source;
struct vma_xtreme_poll;
/* bit: the number of the ring's bit. NULL: no memory. */
struct vma_xtreme_source *vma_xtreme_source_create(struct vma_file *file, unsigned bit);
/* It tells of nothing any more; the pointer is not used again, but for by those who are inside now. Before the file's
 * last reference is put. */
void vma_xtreme_source_end(struct vma_xtreme_source *source);
/* When nobody who is inside can see it any more. */
void vma_xtreme_source_put(struct vma_xtreme_source *source);
/* There is something to tell: events are EPOLL* bits, which the file's complete() gets. Any thread; also in sinks. */
void vma_xtreme_queue_source_events(struct vma_xtreme_source *source, uint32_t events);
/* Those that no complete() has got yet. */
uint32_t vma_xtreme_source_queued_events(const struct vma_xtreme_source *source);
/*
 * The same, without a lock and not in a sink. If the calling thread is in a poll of the source's ring, and nothing of
 * the source is queued, the file's complete() runs at once. The caller keeps the file alive.
 */
void vma_xtreme_complete_or_post(struct vma_xtreme_source *source, uint32_t events);

/*
 * For a sink: the poll of the calling thread, if it is one of the source's ring, and nothing of the source is queued, so
 * that what has just come may be its next completion. Else NULL.
 */
struct vma_xtreme_poll *vma_xtreme_poll_that_may_take(const struct vma_xtreme_source *source);

/* ---- a poll ---- */

struct vma_xtreme_poll {
	struct vma_completion_t *at, *end; /* the next one, and where the memory that was looked at ends */
	struct vma_completion_t *first;
	unsigned n;
	bool bad;         /* the application's array is not there */
	bool has_skipped; /* a ring's list, which another thread had in hand */
	const struct vma_bufarena *arena;
	struct vma_xtreme_ring *ring;
};
/* Fills at most n completions from the rings of these bits: how many; -EFAULT: nothing was taken. */
int vma_xtreme_poll(uint64_t rings, struct vma_completion_t *completions, unsigned n);
/* *has_skipped is false before. True: another thread had the list of some ring in hand, and may have just looked at it
 * for the last time: what has come since then is there still. */
int vma_xtreme_poll_and_note_skips(uint64_t rings, struct vma_completion_t *completions, unsigned n, bool *has_skipped);
/* The poll of the calling thread, while it drives a ring; NULL: it is in none. */
static inline struct vma_xtreme_poll *vma_xtreme_poll_of_this_thread(void)
{
	const struct vma_thread *self = vma_thread_cache;

	return self != NULL ? self->xtreme : NULL;
}
struct vma_completion_t *vma_xtreme_check_array_is_writable(struct vma_xtreme_poll *poll);
/* The place of the next completion; NULL: there is no room. It counts when poll->at has moved. */
static inline struct vma_completion_t *vma_xtreme_next_completion(struct vma_xtreme_poll *poll)
{
	return __builtin_expect(poll->at != poll->end, 1) ? poll->at : vma_xtreme_check_array_is_writable(poll);
}

struct vma_xtreme_packet {
	const struct vma_fragment *fragments; /* n, at least one */
	unsigned n;
	uint32_t len, cost; /* bytes; what it counts for */
	uint64_t limit;     /* that the account may have; never refused if it is alone */
	uint64_t stamp_ns;  /* by the hardware; 0: none */
	uint64_t connection;
	uint32_t src;
	uint16_t src_port_be;
	uint32_t events; /* besides VMA_SOCKETXTREME_PACKET */
};
/* NO_ROOM: in the application's array; REFUSED: the account is full, or there is no memory. */
enum vma_xtreme_given { VMA_XTREME_GIVEN, VMA_XTREME_NO_ROOM, VMA_XTREME_REFUSED };
/* GIVEN: a reference of each fragment's buffer has passed to the table. */
enum vma_xtreme_given vma_xtreme_poll_add_packet_completion(struct vma_xtreme_poll *poll, struct vma_xtreme *xtreme,
                                                            const struct vma_xtreme_packet *packet);
/* The same of a datagram of one buffer, by what the ring has written into its description; it counts for 64 at least.
 * */
enum vma_xtreme_given vma_xtreme_poll_add_datagram(struct vma_xtreme_poll *poll, struct vma_xtreme *xtreme,
                                                   struct vma_buf *buf, uint64_t limit, uint32_t src,
                                                   uint16_t src_port_be);
/*
 * The same of datagrams in a row from one sender: how many were given, the first ones. All of them are charged at once;
 * 0 also where there is room for some.
 */
unsigned vma_xtreme_poll_add_datagram_train(struct vma_xtreme_poll *poll, struct vma_xtreme *xtreme,
                                            struct vma_buf *const *bufs, unsigned n, uint64_t limit,
                                            const struct sockaddr_in *src);
/* A completion without a packet. False: no room. */
bool vma_xtreme_poll_add_event_completion(struct vma_xtreme_poll *poll, const struct vma_xtreme *xtreme,
                                          uint64_t events, const struct sockaddr_in *src, int listen_fd);

/* ---- what the application gives back ---- */

/* 0; -EINVAL: a pointer that is no buffer of the table; -ENOENT: it is not the application's; -EFAULT. */
int vma_xtreme_free_packets(const struct vma_packet_desc_t *packets, int n);
/* The count of references after it; errors as above. -EOVERFLOW: it has as many as can be counted. */
int vma_xtreme_ref(const struct vma_buff_t *buff);
int vma_xtreme_free_buff(const struct vma_buff_t *buff);

/* In the child: the parent's places and sources are forgotten. */
void vma_xtreme_drop_tables_in_fork_child(void);

#endif
