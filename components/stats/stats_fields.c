/* stats_fields - the lists of stats.h at run time: names, texts, places, sizes. */
#include "stats_priv.h"

#define FIELD(type, field, name, text, kind) {name, text, offsetof(struct type, field), VMA_STATS_##kind},
#define X(name, text) FIELD(vma_stats_ring, rx.name, #name, text, COUNT)
static const struct vma_stats_field ring_rx_tx[] = {VMA_STATS_RING_RX(X)
#undef X
#define X(name, text) FIELD(vma_stats_ring, tx.name, #name, text, COUNT)
                                                            VMA_STATS_RING_TX(X)
#undef X
};
#define COUNTED(name, text) FIELD(vma_stats_cq, name, #name, text, COUNT)
#define MAXIMUM(name, text) FIELD(vma_stats_cq, name, #name, text, MAX)
#define PRESENT(name, text) FIELD(vma_stats_cq, name, #name, text, NOW)
static const struct vma_stats_field cq[] = {VMA_STATS_CQ(COUNTED) VMA_STATS_CQ_MAX(MAXIMUM) VMA_STATS_CQ_NOW(PRESENT)};
#undef COUNTED
#undef MAXIMUM
#undef PRESENT
#define COUNTED(name, text) FIELD(vma_stats_bufpool, name, #name, text, COUNT)
#define PRESENT(name, text) FIELD(vma_stats_bufpool, name, #name, text, NOW)
static const struct vma_stats_field bufpool[] = {VMA_STATS_BUFPOOL_NOW(PRESENT) VMA_STATS_BUFPOOL(COUNTED)};
#undef COUNTED
#undef PRESENT
#define COUNTED(name, text) FIELD(vma_stats_nic, name, #name, text, COUNT)
#define PRESENT(name, text) FIELD(vma_stats_nic, name, #name, text, NOW)
static const struct vma_stats_field nic[] = {VMA_STATS_NIC_RX(COUNTED) VMA_STATS_NIC_TX(COUNTED)
                                                     VMA_STATS_NIC_CTL(COUNTED) VMA_STATS_NIC_NOW(PRESENT)};
#undef COUNTED
#undef PRESENT
#define COUNTED(name, text) FIELD(vma_stats_socket, name, #name, text, COUNT)
#define MAXIMUM(name, text) FIELD(vma_stats_socket, name, #name, text, MAX)
#define PRESENT(name, text) FIELD(vma_stats_socket, name, #name, text, NOW)
static const struct vma_stats_field sockets[] = {
        VMA_STATS_SOCKET_NOW(PRESENT) VMA_STATS_SOCKET_RX(COUNTED) VMA_STATS_SOCKET_RX_MAX(MAXIMUM)
                VMA_STATS_SOCKET_QUEUE(COUNTED) VMA_STATS_SOCKET_TCP(COUNTED) VMA_STATS_SOCKET_TCP_NOW(PRESENT)
                        VMA_STATS_SOCKET_TX(COUNTED)};
#undef COUNTED
#undef MAXIMUM
#undef PRESENT
#define COUNTED(name, text) FIELD(vma_stats_process, name, #name, text, COUNT)
static const struct vma_stats_field process[] = {VMA_STATS_PROCESS(COUNTED)};
#undef COUNTED
#define COUNTED(name, text) FIELD(vma_stats_iomux, name, #name, text, COUNT)
#define PRESENT(name, text) FIELD(vma_stats_iomux, name, #name, text, NOW)
static const struct vma_stats_field iomux[] = {VMA_STATS_IOMUX(COUNTED) VMA_STATS_IOMUX_NOW(PRESENT)};
#undef COUNTED
#undef PRESENT

#define TABLE(list) list, sizeof(list) / sizeof((list)[0])
static const struct stats_type_info {
	const struct vma_stats_field *fields;
	size_t count;
} types[VMA_STATS_TYPE_COUNT] = {
        [VMA_STATS_TYPE_RING] = {TABLE(ring_rx_tx)}, [VMA_STATS_TYPE_CQ] = {TABLE(cq)},
        [VMA_STATS_TYPE_BUFPOOL] = {TABLE(bufpool)}, [VMA_STATS_TYPE_NIC] = {TABLE(nic)},
        [VMA_STATS_TYPE_SOCKET] = {TABLE(sockets)},  [VMA_STATS_TYPE_PROCESS] = {TABLE(process)},
        [VMA_STATS_TYPE_IOMUX] = {TABLE(iomux)},
};

static const char *const stats_type_names[VMA_STATS_TYPE_COUNT] = {
#define X(name, type, text) [VMA_STATS_TYPE_##name] = text,
        VMA_STATS_TYPES(X)
#undef X
};

static const size_t stats_type_sizes[VMA_STATS_TYPE_COUNT] = {
#define X(name, type, text) [VMA_STATS_TYPE_##name] = sizeof(struct type),
        VMA_STATS_TYPES(X)
#undef X
};

static bool stats_type_is_known(enum vma_stats_type type)
{
	return (unsigned)type > VMA_STATS_TYPE_FREE && (unsigned)type < VMA_STATS_TYPE_COUNT;
}

const struct vma_stats_field *vma_stats_fields_of_type(enum vma_stats_type type, size_t *count)
{
	*count = stats_type_is_known(type) ? types[type].count : 0;
	return stats_type_is_known(type) ? types[type].fields : NULL;
}

const char *vma_stats_type_name(enum vma_stats_type type)
{
	return stats_type_is_known(type) ? stats_type_names[type] : NULL;
}

size_t stats_type_block_size(enum vma_stats_type type)
{
	return stats_type_is_known(type) ? stats_type_sizes[type] : 0;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t len) /* FNV-1a, 64 bits */
{
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
	return hash;
}

/* Two builds whose lists differ in any name, order or place differ here: nobody has to count versions by hand. */
static uint64_t stats_hash_of_field_layout(void)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (unsigned type = 0; type < VMA_STATS_TYPE_COUNT; type++)
		for (size_t i = 0; i < types[type].count; i++) {
			const struct vma_stats_field *field = &types[type].fields[i];
			uint64_t place = (uint64_t)type << 32 | field->offset;
			for (const char *c = field->name; *c != '\0'; c++)
				hash = hash_bytes(hash, c, 1);
			hash = hash_bytes(hash, &place, sizeof(place));
		}
	return hash;
}

void stats_header_fill(struct stats_header *header)
{
	header->fields_hash = stats_hash_of_field_layout();
	header->file_bytes = sizeof(struct stats_segment);
	header->version = STATS_VERSION;
	header->header_bytes = sizeof(struct stats_header);
	header->entry_bytes = sizeof(struct stats_entry);
	header->block_bytes = sizeof(union stats_any_block);
	header->block_count = STATS_BLOCKS;
	for (unsigned type = 0; type < VMA_STATS_TYPE_COUNT; type++)
		header->type_bytes[type] = (uint32_t)stats_type_sizes[type];
}
