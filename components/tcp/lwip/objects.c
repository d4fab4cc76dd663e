/*
 * objects.c - the objects that lwIP allocates: a few kinds, each with a list of free ones that the stack keeps for the
 * next.
 */
#include <errno.h>
#include <stdlib.h>

#include <lwip/mem.h>
#include <lwip/memp.h>

#include "objects.h"
#include "port.h"
#include "../tcp_priv.h"

/* What a stack keeps of each kind: enough for a full window of 8 MB in segments of an Ethernet's size. */
#define KEEP_BYTES (512U << 10)
#if defined(__has_feature)
#define FEATURE_ADDRESS __has_feature(address_sanitizer)
#else
#define FEATURE_ADDRESS 0
#endif
/* AddressSanitizer knows what is free only when malloc knows. */
#if defined(__SANITIZE_ADDRESS__) || FEATURE_ADDRESS
#define KEEPS 0
#else
#define KEEPS 1
#endif

/* mem_malloc's blocks: lwIP asks for headers of segments only, at most 104 bytes with all that lies before them. */
struct header_block {
	uint64_t is_large;
	uint8_t bytes[120];
};

/* Of a segment's header in there, behind the pbuf and what would be IP's. */
#define HEADER_AT (sizeof(struct pbuf) + PBUF_IP_HLEN)
_Static_assert(HEADER_AT % 4 == 0 && HEADER_AT + TCP_HLEN + 40 <= sizeof(((struct header_block *)0)->bytes),
               "room for a header with all its options");

static const uint32_t memory_kind_size[MEMORY_KINDS] = {
        [MEMORY_PCB] = sizeof(struct tcp_pcb),
        [MEMORY_LISTENER] = sizeof(struct tcp_pcb_listen),
        [MEMORY_SEGMENT] = sizeof(struct tcp_seg),
        [MEMORY_PBUF] = sizeof(struct pbuf),
        [MEMORY_HEADER] = sizeof(struct header_block),
        [MEMORY_RX_DATA] = 64,
        [MEMORY_RX_HEADER] = 128,
};

struct free_object {
	struct free_object *next;
};
struct tcp_lwip_memory {
	struct {
		struct free_object *first;
		uint32_t count, limit;
	} free[MEMORY_KINDS];
	/* Segments that stay together with their two pbufs, of which one lies in a header's memory: the usual ones, of
	 * which each that is acknowledged makes room for the next. By seg->next. */
	struct tcp_seg *whole;
	uint32_t whole_count, whole_limit;
	uint32_t segments; /* that there are, kept or in use */
	uint64_t in_use;
};

/*
 * A peer with a small MSS has a segment's memory held for each of its few bytes, several times what they are. So more
 * segments than a stack may keep idle count like bytes in fifos (budget.h).
 */
#define SEGMENTS_FREE_OF_CHARGE (2 * KEEP_BYTES / sizeof(struct tcp_seg))
#define SEGMENT_BYTES (sizeof(struct tcp_seg) + sizeof(struct pbuf) + sizeof(struct header_block))

static struct header_block *header_block_of(const void *bytes)
{
	return (struct header_block *)((uintptr_t)bytes - offsetof(struct header_block, bytes));
}

static void *host_alloc(struct vma_tcp *tcp, size_t size)
{
	return tcp->host.alloc ? tcp->host.alloc(size) : calloc(1, size);
}

static void host_free(struct vma_tcp *tcp, void *memory)
{
	if (tcp->host.free)
		tcp->host.free(memory);
	else
		free(memory);
}

static void memory_set_free_segment_limit(struct tcp_lwip_memory *memory, bool on)
{
	memory->free[MEMORY_SEGMENT].limit = on ? KEEPS * KEEP_BYTES / memory_kind_size[MEMORY_SEGMENT] : 0;
	memory->whole_limit = on ? memory->free[MEMORY_HEADER].limit : 0;
}

/* One more or less. While there are as many as there may be, none is kept: the next is another stack's, perhaps. */
static void memory_add_to_shared_segment_count(struct vma_tcp *tcp, int64_t n)
{
	struct vma_tcp_memory *all = tcp->attr.memory;
	const int64_t now = atomic_fetch_add_explicit(&all->segments, n, memory_order_relaxed) + n;

	if (all->segments_max != 0)
		memory_set_free_segment_limit(tcp->memory, now < all->segments_max);
}

int port_memory_create(struct vma_tcp *tcp)
{
	struct tcp_lwip_memory *memory = host_alloc(tcp, sizeof(*memory));

	if (!memory)
		return -ENOMEM;
	for (unsigned kind = 0; kind < MEMORY_KINDS; kind++)
		memory->free[kind].limit = KEEPS * KEEP_BYTES / memory_kind_size[kind];
	memory_set_free_segment_limit(memory, true);
	tcp->memory = memory;
	tcp->clock_offset_ms = port_clock_offset(tcp->attr.secret);
	return 0;
}

void port_memory_destroy(struct vma_tcp *tcp)
{
	struct tcp_lwip_memory *memory = tcp->memory;
	struct free_object *object;
	struct tcp_seg *seg;

	if (!memory)
		return;
	if (tcp->attr.memory)
		memory_add_to_shared_segment_count(tcp, -(int64_t)memory->segments);
	while ((seg = memory->whole)) {
		memory->whole = seg->next;
		host_free(tcp, seg->p->next);
		host_free(tcp, header_block_of(seg->p));
		host_free(tcp, seg);
	}
	for (unsigned kind = 0; kind < MEMORY_KINDS; kind++) {
		while ((object = memory->free[kind].first)) {
			memory->free[kind].first = object->next;
			host_free(tcp, object);
		}
	}
	host_free(tcp, memory);
	tcp->memory = NULL;
}

uint64_t port_memory_in_use(const struct vma_tcp *tcp)
{
	return tcp->memory->in_use;
}

void memory_move_count_to_stack(struct vma_tcp *from, struct vma_tcp *to, unsigned n)
{
	from->memory->in_use -= n;
	to->memory->in_use += n;
}

static int64_t segment_memory_charge(const struct tcp_lwip_memory *memory)
{
	return memory->segments > SEGMENTS_FREE_OF_CHARGE
	               ? (int64_t)(memory->segments - SEGMENTS_FREE_OF_CHARGE) * (int64_t)SEGMENT_BYTES
	               : 0;
}

static void *memory_count_object_in_use(struct vma_tcp *tcp, void *object)
{
	if (object)
		tcp->memory->in_use++;
	else
		TCP_COUNT(tcp, no_memory, 1);
	return object;
}

/* NULL: none is kept. Not counted yet. */
static inline void *memory_pop_free(struct tcp_lwip_memory *memory, enum memory_kind kind)
{
	struct free_object *object = memory->free[kind].first;

	if (__builtin_expect(object != NULL, 1)) {
		memory->free[kind].first = object->next;
		memory->free[kind].count--;
	}
	return object;
}

static void memory_push_free_object(struct tcp_lwip_memory *memory, enum memory_kind kind, void *object)
{
	struct free_object *free = object;

	free->next = memory->free[kind].first;
	memory->free[kind].first = free;
	memory->free[kind].count++;
}

/* Segments that are kept whole do not lie idle when the host has nothing: one becomes what it is made of. */
static bool memory_split_cached_segment_to_free_lists(struct tcp_lwip_memory *memory)
{
	struct tcp_seg *seg = memory->whole;

	if (!seg)
		return false;
	memory->whole = seg->next;
	memory->whole_count--;
	memory_push_free_object(memory, MEMORY_PBUF, seg->p->next);
	memory_push_free_object(memory, MEMORY_HEADER, header_block_of(seg->p));
	memory_push_free_object(memory, MEMORY_SEGMENT, seg);
	return true;
}

static void memory_charge(struct vma_tcp *tcp, int64_t bytes)
{
	if (tcp->attr.memory)
		atomic_fetch_add_explicit(&tcp->attr.memory->used, bytes, memory_order_relaxed);
}

bool memory_lacks_segments(const struct vma_tcp *tcp)
{
	const struct tcp_lwip_memory *own = tcp->memory;
	const struct vma_tcp_memory *all = tcp->attr.memory;

	return own->whole == NULL && own->free[MEMORY_SEGMENT].first == NULL &&
	       atomic_load_explicit(&all->segments, memory_order_relaxed) >= all->segments_max;
}

void memory_move_segment_counts_to_stack(struct vma_tcp *from, struct vma_tcp *to, unsigned n)
{
	const int64_t before = segment_memory_charge(from->memory) + segment_memory_charge(to->memory);

	from->memory->segments -= n;
	to->memory->segments += n;
	memory_charge(to, segment_memory_charge(from->memory) + segment_memory_charge(to->memory) - before);
}

static void *__attribute__((cold, noinline)) memory_get_from_host(struct vma_tcp *tcp, enum memory_kind kind)
{
	void *object = host_alloc(tcp, memory_kind_size[kind]);

	if (object && kind == MEMORY_SEGMENT && tcp->attr.memory)
		memory_add_to_shared_segment_count(tcp, 1);
	if (object && kind == MEMORY_SEGMENT && ++tcp->memory->segments > SEGMENTS_FREE_OF_CHARGE)
		memory_charge(tcp, (int64_t)SEGMENT_BYTES);
	if (!object && memory_split_cached_segment_to_free_lists(tcp->memory))
		object = memory_pop_free(tcp->memory, kind);
	return memory_count_object_in_use(tcp, object);
}

/* static: inlined where the kind is known. */
static inline void *port_lwip_object_alloc(struct vma_tcp *tcp, enum memory_kind kind)
{
	struct tcp_lwip_memory *memory = tcp->memory;
	void *object = memory_pop_free(memory, kind);

	if (__builtin_expect(object == NULL, 0))
		return memory_get_from_host(tcp, kind);
	memory->in_use++;
	return object;
}

void *lwip_object_alloc(struct vma_tcp *tcp, enum memory_kind kind)
{
	return port_lwip_object_alloc(tcp, kind);
}

static void __attribute__((cold, noinline))
memory_return_to_host(struct vma_tcp *tcp, enum memory_kind kind, void *memory)
{
	if (kind == MEMORY_SEGMENT && tcp->attr.memory)
		memory_add_to_shared_segment_count(tcp, -1);
	if (kind == MEMORY_SEGMENT && tcp->memory->segments-- > SEGMENTS_FREE_OF_CHARGE)
		memory_charge(tcp, -(int64_t)SEGMENT_BYTES);
	host_free(tcp, memory);
}

void lwip_object_free(struct vma_tcp *tcp, enum memory_kind kind, void *memory)
{
	struct tcp_lwip_memory *all = tcp->memory;

	all->in_use--;
	if (all->free[kind].count >= all->free[kind].limit)
		memory_return_to_host(tcp, kind, memory);
	else
		memory_push_free_object(all, kind, memory);
}

/* ---- segments ---- */

/* The header lies where pbuf_alloc and pbuf_add_header would put it. */
static inline struct tcp_seg *memory_init_segment_header(struct tcp_seg *seg, void *bytes, uint16_t len,
                                                         uint16_t options_len)
{
	uint16_t hdr_len = (uint16_t)(TCP_HLEN + options_len);
	struct pbuf *head = seg->p, *data = head->next;

	*data = (struct pbuf){.payload = bytes, .tot_len = len, .len = len, .type_internal = PBUF_ROM, .ref = 1};
	*head = (struct pbuf){.next = data,
	                      .payload = (uint8_t *)head + HEADER_AT,
	                      .tot_len = (u16_t)(hdr_len + len),
	                      .len = hdr_len,
	                      .type_internal = (u8_t)PBUF_RAM,
	                      .ref = 1};
	*seg = (struct tcp_seg){.p = head, .len = len, .tcphdr = head->payload};
	return seg;
}

/* Of one object of each kind, after the other. */
static struct tcp_seg *__attribute__((noinline))
memory_build_segment_of_parts(struct vma_tcp *tcp, void *bytes, uint16_t len, uint16_t options_len)
{
	struct tcp_seg *seg = port_lwip_object_alloc(tcp, MEMORY_SEGMENT);
	struct pbuf *data = seg ? port_lwip_object_alloc(tcp, MEMORY_PBUF) : NULL;
	struct header_block *block = data ? port_lwip_object_alloc(tcp, MEMORY_HEADER) : NULL;

	if (!block) {
		if (data)
			lwip_object_free(tcp, MEMORY_PBUF, data);
		if (seg)
			lwip_object_free(tcp, MEMORY_SEGMENT, seg);
		return NULL;
	}
	block->is_large = 0;
	seg->p = (struct pbuf *)block->bytes;
	seg->p->next = data;
	return memory_init_segment_header(seg, bytes, len, options_len);
}

static inline struct tcp_seg *memory_pop_whole_segment(struct tcp_lwip_memory *memory)
{
	struct tcp_seg *seg = memory->whole;

	if (__builtin_expect(!seg, 0))
		return NULL;
	memory->whole = seg->next;
	memory->whole_count--;
	memory->in_use += 3;
	return seg;
}

struct tcp_seg *memory_get_segment_of_bytes(struct vma_tcp *tcp, void *bytes, uint16_t len, uint16_t options_len)
{
	struct tcp_seg *seg = memory_pop_whole_segment(tcp->memory);

	if (__builtin_expect(!seg, 0))
		return memory_build_segment_of_parts(tcp, bytes, len, options_len);
	return memory_init_segment_header(seg, bytes, len, options_len);
}

struct tcp_seg *memory_get_whole_segment(struct vma_tcp *tcp)
{
	return memory_pop_whole_segment(tcp->memory);
}

void memory_segment_fill(struct tcp_seg *seg, void *bytes, uint16_t len, uint16_t options_len)
{
	memory_init_segment_header(seg, bytes, len, options_len);
}

static bool pbuf_is_header_data_pair(const struct pbuf *p)
{
	const struct pbuf *data = p->next;

	return p->type_internal == (u8_t)PBUF_RAM && p->ref == 1 && data && data->type_internal == PBUF_ROM &&
	       data->ref == 1 && !data->next;
}

unsigned memory_segment_free(struct vma_tcp *tcp, struct tcp_seg *seg)
{
	struct tcp_lwip_memory *memory = tcp->memory;
	struct header_block *block;
	unsigned pbufs;

	if (!pbuf_is_header_data_pair(seg->p)) {
		pbufs = pbuf_clen(seg->p);
		tcp_seg_free(seg);
		return pbufs;
	}
	block = header_block_of(seg->p);
	if (__builtin_expect(!block->is_large && memory->whole_count < memory->whole_limit, 1)) {
		seg->next = memory->whole;
		memory->whole = seg;
		memory->whole_count++;
		memory->in_use -= 3;
		return MEMORY_SEGMENT_PBUFS;
	}
	lwip_object_free(tcp, MEMORY_PBUF, seg->p->next);
	if (block->is_large)
		mem_free(block->bytes);
	else
		lwip_object_free(tcp, MEMORY_HEADER, block);
	lwip_object_free(tcp, MEMORY_SEGMENT, seg);
	return MEMORY_SEGMENT_PBUFS;
}

/* ---- lwIP's names for it ---- */

static enum memory_kind memory_kind_of(memp_t type)
{
	switch (type) {
	case MEMP_TCP_PCB:
		return MEMORY_PCB;
	case MEMP_TCP_PCB_LISTEN:
		return MEMORY_LISTENER;
	case MEMP_TCP_SEG:
		return MEMORY_SEGMENT;
	case MEMP_PBUF:
		return MEMORY_PBUF;
	default:
		return MEMORY_KINDS; /* pools that nothing here uses */
	}
}

void *memp_malloc(memp_t type)
{
	enum memory_kind kind = memory_kind_of(type);

	return kind == MEMORY_KINDS ? NULL : lwip_object_alloc(lwip_at.tcp, kind);
}

void memp_free(memp_t type, void *object)
{
	if (!object)
		return;
	/* The one place where a pcb ends, whatever the reason. */
	if (type == MEMP_TCP_PCB && lwip_at.conn && lwip_at.conn->pcb == object)
		lwip_at.conn->pcb = NULL;
	lwip_object_free(lwip_at.tcp, memory_kind_of(type), object);
}

void *mem_malloc(mem_size_t size)
{
	struct vma_tcp *tcp = lwip_at.tcp;
	struct header_block *block;

	if (size <= sizeof(block->bytes)) {
		block = lwip_object_alloc(tcp, MEMORY_HEADER);
		if (block)
			block->is_large = 0;
	} else {
		block = memory_count_object_in_use(tcp, host_alloc(tcp, offsetof(struct header_block, bytes) + size));
		if (block)
			block->is_large = 1;
	}
	return block ? block->bytes : NULL;
}

void mem_free(void *memory)
{
	struct header_block *block;

	if (!memory)
		return;
	block = header_block_of(memory);
	if (!block->is_large) {
		lwip_object_free(lwip_at.tcp, MEMORY_HEADER, block);
		return;
	}
	lwip_at.tcp->memory->in_use--;
	host_free(lwip_at.tcp, block);
}

void *mem_trim(void *memory, mem_size_t size)
{
	(void)size;
	return memory;
}
