/*
 * bufpool - packet buffers: a 64-byte descriptor and a frame, related by arithmetic.
 *
 * There are two objects. An *arena* is one reservation of address space for frames and one for descriptors. Descriptor
 * i and frame i belong together. The memory behind frame i is a registered window (an AF_XDP UMEM mapped from its
 * memfd, a wire) or ordinary memory. A *pool* is a set of buffers of one arena that are free to be taken. It is fixed
 * (only what was added, for windows) or growing (ordinary memory, on demand, up to a bound).
 *
 * Threads: any thread calls get and put. Each thread keeps a small cache per pool and exchanges whole batches through a
 *          ck_ring. Any thread may create, map, add and retire at any time. An arena is destroyed when no thread uses
 *          it any more.
 * Progress: get, put and retire never wait. get returns fewer (or 0) if the pool is empty and cannot grow. A signal
 *           handler may call any of them, also if it interrupts one. The first use of a pool by a thread costs a
 *           registration. System calls happen only if a pool is dry (growth; reclaim, in mode 1).
 * Memory: reserved address space costs nothing until used; windows from a file are MADV_DONTFORK. After fork the child
 *         goes on with its copy of ordinary memory. The buffers in other threads' caches are lost to it, or reclaimed.
 * Example: test/test_pool.c.
 */
#ifndef VMA_BUFPOOL_H
#define VMA_BUFPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vma/stats.h>

#define VMA_BUF_INDEX_NONE UINT32_MAX
#define VMA_BUFPOOL_MAX 256 /* pools of one arena at a time */

enum vma_buf_flags {
	VMA_BUF_RX_MORE = 1 << 0,         /* set by the NIC: the packet goes on in the next buffer polled */
	VMA_BUF_RX_L3_CSUM_OK = 1 << 1,   /* the NIC checked the IP header checksum */
	VMA_BUF_RX_L4_CSUM_OK = 1 << 2,   /* the NIC checked the UDP/TCP checksum */
	VMA_BUF_RX_L4_CSUM_BAD = 1 << 3,  /* the NIC found it wrong */
	VMA_BUF_RX_HW_TIMESTAMP = 1 << 4, /* timestamp_ns is the NIC's, else by software, or 0 */
	VMA_BUF_RX_NIC_CLOCK = 1 << 5,    /* and in a time of the NIC's own, else CLOCK_REALTIME */
};

/* One cache line. Written by whoever holds the buffer; refs by every holder. */
struct vma_buf {
	struct vma_buf *next;  /* next buffer of the same packet, NULL ends it */
	_Atomic uint32_t refs; /* holders; 0: free, or with the NIC */
	uint16_t pool;         /* home: where the last put takes it (id in the arena) */
	uint16_t flags;        /* enum vma_buf_flags */
	uint32_t data_off;     /* first valid byte, counted from the start of the frame */
	uint32_t len;          /* valid bytes in this frame */
	uint32_t packet_len;   /* in the first buffer of a packet: bytes of all of them together */
	uint16_t l3_off;       /* from data_off; filled by ring after the header checks */
	uint16_t l4_off;       /* from data_off */
	uint16_t payload_off;  /* from data_off */
	uint16_t payload_len;  /* of the datagram or segment, without Ethernet padding */
	uint32_t flow_tag;     /* from the NIC, 0: none */
	uint64_t timestamp_ns; /* arrival, see flags; 0: not stamped */
	void *user;            /* for the holder: queue link, pbuf, ... */
} __attribute__((aligned(64)));
_Static_assert(sizeof(struct vma_buf) == 64, "one cache line");

struct vma_bufpool;

struct vma_bufarena {
	char *frames;         /* base of the frame reservation */
	struct vma_buf *bufs; /* base of the descriptor reservation */
	uint32_t frame_shift; /* frame size is 1 << frame_shift */
	uint32_t capacity;    /* frames reserved */
	struct vma_bufpool *_Atomic pools[VMA_BUFPOOL_MAX];
	struct vma_bufarena_priv *priv;
};

enum vma_mem_alloc_type { VMA_MEM_ANON = 0, VMA_MEM_CONTIG = 1, VMA_MEM_HUGE = 2 };

struct vma_bufarena_attr {
	uint32_t capacity;                  /* frames to reserve address space for; 0: enough for the defaults */
	uint32_t frame_size;                /* power of two, 2048 to 65536; 0: 2048 */
	enum vma_mem_alloc_type alloc_type; /* VMA_MEM_ALLOC_TYPE, for ordinary memory */
	struct vma_stats *stats;
};

int vma_bufarena_create(const struct vma_bufarena_attr *attr, struct vma_bufarena **out);
void vma_bufarena_destroy(struct vma_bufarena *arena); /* unmaps everything that is left */
size_t vma_bufarena_reserved_bytes(void);              /* addresses that all arenas of this process hold */

/*
 * Memory behind a range of `count` frames; *first gets the index of the range's first frame. Returns 0, -ENOMEM
 * (memory or reservation), -EINVAL. map_fd maps `fd` at `offset_bytes` shared, MADV_DONTFORK; map_stats_segment takes
 * ordinary memory by alloc_type: huge pages, else MADV_HUGEPAGE, else small pages (the seeds' warning, once).
 */
int vma_bufarena_map_fd(struct vma_bufarena *arena, int fd, uint64_t offset_bytes, uint32_t count, uint32_t *first);
int vma_bufarena_map_memory(struct vma_bufarena *arena, uint32_t count, uint32_t *first);
void vma_bufarena_unmap(struct vma_bufarena *arena, uint32_t first, uint32_t count);

static inline uint32_t vma_buf_index(const struct vma_bufarena *arena, const struct vma_buf *buf)
{
	return (uint32_t)(buf - arena->bufs);
}
static inline struct vma_buf *vma_buf_at(const struct vma_bufarena *arena, uint32_t index)
{
	return &arena->bufs[index];
}
static inline char *vma_buf_frame(const struct vma_bufarena *arena, const struct vma_buf *buf)
{
	return arena->frames + ((size_t)(buf - arena->bufs) << arena->frame_shift);
}
static inline char *vma_buf_data(const struct vma_bufarena *arena, const struct vma_buf *buf)
{
	return vma_buf_frame(arena, buf) + buf->data_off;
}

struct vma_bufpool_attr {
	struct vma_bufarena *arena;
	const char *name;
	uint32_t max_bufs; /* 0: fixed; else grows in ordinary memory up to this many (VMA_RX_BUFS, VMA_TX_BUFS) */
	uint32_t batch;    /* buffers per exchanged batch, 1 to 64; 0: 32 */
	int batching_mode; /* VMA_BUFFER_BATCHING_MODE: 0 no caches, 1 caches that are reclaimed, 2 caches kept */
	struct vma_stats *stats;
	/* A place that names pools one after the other, and that threads read without a lock. They may still use the
	 * address of a pool that has ended. So no pool has this address later but one with the same `named_by`, until
	 * vma_bufpool_release_places. A get from an ended pool gives nothing. NULL: the address may be any pool's. */
	const void *named_by;
};

int vma_bufpool_create(const struct vma_bufpool_attr *attr, struct vma_bufpool **out);
void vma_bufpool_release_places(struct vma_bufarena *arena, const void *named_by); /* nothing reads it any more */

/* Gives frames [first, first + count) to a fixed pool. */
int vma_bufpool_add_frames(struct vma_bufpool *pool, uint32_t first, uint32_t count);

/*
 * Ends the pool: get returns 0 from now on; when the last buffer that is out has come back (perhaps at once, perhaps
 * in another thread's put) `drained(arg)` is called, if not NULL, and the pool is freed. The frames' memory stays
 * mapped until then: unmapping is what `drained` is for. In debug builds, buffers still out are named in the log.
 */
void vma_bufpool_retire(struct vma_bufpool *pool, void (*drained)(void *arg), void *arg);

uint16_t vma_bufpool_id(const struct vma_bufpool *pool);
uint32_t vma_bufpool_frame_size(const struct vma_bufpool *pool);
struct vma_bufarena *vma_bufpool_arena(const struct vma_bufpool *pool);

/*
 * Hot path. get: up to n buffers, each with refs = 1, next = NULL, flags = 0, data_off = 0, len = 0; returns how many.
 * put drops one reference of each; the last holder's put returns the buffer to its home pool.
 * put_chain does so for every buffer of a packet.
 */
unsigned vma_bufpool_get(struct vma_bufpool *pool, struct vma_buf **bufs, unsigned n);
/*
 * The same of what is at hand in this thread's cache or between the threads: no growth, no look into other threads'
 * caches (which costs a system call), and finding nothing does not count as exhausted. For who can do with less.
 */
unsigned vma_bufpool_get_without_growth(struct vma_bufpool *pool, struct vma_buf **bufs, unsigned n);
void vma_buf_put_burst(struct vma_bufarena *arena, struct vma_buf **bufs, unsigned n);
void vma_buf_put(struct vma_bufarena *arena, struct vma_buf *buf);
void vma_buf_put_chain(struct vma_bufarena *arena, struct vma_buf *first);

#ifdef VMA_DEBUG
void vma_buf_fault_ref_of_free(struct vma_buf *buf) __attribute__((noreturn)); /* names it and aborts */
#endif
static inline void vma_buf_ref(struct vma_buf *buf)
{
	uint32_t before = atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
#ifdef VMA_DEBUG
	if (before == 0)
		vma_buf_fault_ref_of_free(buf);
#endif
	(void)before;
}

/*
 * The NIC's side. A buffer posted to a NIC leaves the pool (to_nic: refs goes 1 -> 0 and the debug build notes who has
 * it); a buffer that a NIC delivers enters `pool`'s population (from_nic: refs = 1, home = pool), wherever it came
 * from: the frames of an AF_XDP device queue travel between the processes that share it.
 */
void vma_bufpool_uncount_bufs_given_to_nic(struct vma_bufpool *pool, struct vma_buf **bufs, unsigned n);
void vma_bufpool_init_bufs_taken_from_nic(struct vma_bufpool *pool, struct vma_buf **bufs, unsigned n);

/*
 * The same for a NIC whose buffers no other process has: one that was lent comes back to the pool that it was lent
 * from. So it stays in the population: the pool goes on counting it, and retirement waits for it as for one that is
 * held. lend: refs goes 1 -> 0. regain: refs = 1; all else is what the NIC has made of it.
 */
#ifdef VMA_DEBUG
void vma_bufpool_debug_note_lent(struct vma_bufarena *arena, struct vma_buf *buf, bool is_lent); /* or aborts */
#endif
static inline void vma_buf_debug_mark_lent(struct vma_bufarena *arena, struct vma_buf *buf)
{
#ifdef VMA_DEBUG
	vma_bufpool_debug_note_lent(arena, buf, true);
#endif
	(void)arena;
	atomic_store_explicit(&buf->refs, 0, memory_order_relaxed);
}
static inline void vma_buf_debug_mark_returned(struct vma_bufarena *arena, struct vma_buf *buf)
{
#ifdef VMA_DEBUG
	vma_bufpool_debug_note_lent(arena, buf, false);
#endif
	(void)arena;
	atomic_store_explicit(&buf->refs, 1, memory_order_relaxed);
}

/* Gives this thread's caches back to the shared rings (also done when the thread ends). */
void vma_bufpool_flush_thread(struct vma_bufarena *arena);

#endif
