/*
 * mlx5_wqe - what is written to an mlx5 card and read from it: the order of stores, segments of a WQE, CQEs.
 *
 * Order. The card reads memory on its own. Three steps are ordered:
 *   mlx5_to_device    WQEs before the doorbell record. The card fetches WQEs up to the record's index; before its store
 *                     is seen, all of them have to be. Memory that is cached: x86 keeps stores in order, so only the
 *                     compiler is held; arm64 needs a barrier of the outer domain, in which a device looks.
 *   mlx5_flush_mmio   the record before the register, and the register's store out of this core's buffer. The register
 *                     is mapped write-combining, which x86 orders with nothing but sfence. If the register were first,
 *                     the card might read the old record and stop short of the last WQEs. The second flush, behind the
 *                     register, sees to it that the store leaves now, and that the next one cannot be combined with it.
 *   mlx5_from_device  the owner bit before the rest of a CQE and the packet. The card writes the byte with the bit last.
 * A consumer index is stored with release: the CQEs were read before the card may write over them.
 *
 * Threads, memory: the caller's.
 */
#ifndef VMA_NIC_VERBS_MLX5_WQE_H
#define VMA_NIC_VERBS_MLX5_WQE_H

#include <endian.h>
#include <stddef.h>
#include <string.h>

#include "mlx5.h"

#if defined(__x86_64__)
#define MLX5_KNOWN_ORDER 1 /* and little-endian */
static inline void mlx5_to_device(void)
{
	__asm__ volatile("" ::: "memory");
}
static inline void mlx5_from_device(void)
{
	__asm__ volatile("" ::: "memory");
}
static inline void mlx5_flush_mmio(void)
{
	__asm__ volatile("sfence" ::: "memory");
}
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MLX5_KNOWN_ORDER 1
static inline void mlx5_to_device(void)
{
	__asm__ volatile("dmb oshst" ::: "memory");
}
static inline void mlx5_from_device(void)
{
	__asm__ volatile("dmb oshld" ::: "memory");
}
static inline void mlx5_flush_mmio(void)
{
	__asm__ volatile("dsb st" ::: "memory");
}
#else
#define MLX5_KNOWN_ORDER 0 /* mlx5_enable_direct_rings_if_supported refuses: none of these is called */
static inline void mlx5_to_device(void)
{
	__sync_synchronize();
}
static inline void mlx5_from_device(void)
{
	__sync_synchronize();
}
static inline void mlx5_flush_mmio(void)
{
	__sync_synchronize();
}
#endif

/* ---- completions ---- */

#define MLX5_CQE_BYTES 64
#define MLX5_CQE_SOLICITED 2u
#define MLX5_CQE_FORMAT (3u << 2)                           /* 0: a CQE of its own, without data */
#define MLX5_CQE_PACKET ((unsigned)MLX5_CQE_RESP_SEND << 4) /* the owner byte of a received packet, but for two bits */

static inline const struct mlx5_cqe64 *mlx5_cqe_at(const struct mlx5_cq *cq, uint32_t index)
{
	return (const struct mlx5_cqe64 *)(cq->cqes + ((size_t)(index & cq->mask) << cq->entry_shift));
}

/* The byte that the card writes last. */
static inline uint8_t mlx5_cqe_read_op_own(const struct mlx5_cqe64 *cqe)
{
	return __atomic_load_n(&cqe->op_own, __ATOMIC_RELAXED);
}

/* The owner bit that a completion of this index has. */
static inline uint8_t mlx5_cq_owner_bit_at(const struct mlx5_cq *cq, uint32_t index)
{
	return index >> cq->count_shift & MLX5_CQE_OWNER_MASK;
}

static inline bool mlx5_cqe_is_there(const struct mlx5_cq *cq, uint32_t index, uint8_t op_own)
{
	return op_own >> 4 != MLX5_CQE_INVALID && (op_own & MLX5_CQE_OWNER_MASK) == mlx5_cq_owner_bit_at(cq, index);
}

/* Up to this one they have been read. Release: see above; and mlx5_rx_is_empty looks at `index`. */
static inline void mlx5_cq_set_consumer_index(struct mlx5_cq *cq, uint32_t index)
{
	atomic_store_explicit(&cq->index, index, memory_order_release);
	atomic_store_explicit(cq->record, htobe32(index & 0xffffff), memory_order_release);
}

/* Two bytes at once: IPv4, with both checksums found right. */
#define MLX5_CHECKSUM_MASK htole16(MLX5_CQE_L3_OK | MLX5_CQE_L4_OK | 3 << 10)
#define MLX5_CHECKSUM_OK htole16(MLX5_CQE_L3_OK | MLX5_CQE_L4_OK | MLX5_CQE_L3_HDR_TYPE_IPV4 << 10)
_Static_assert(offsetof(struct mlx5_cqe64, l4_hdr_type_etc) == offsetof(struct mlx5_cqe64, hds_ip_ext) + 1,
               "neighbours");

static inline bool mlx5_cqe_checksums_ok(const struct mlx5_cqe64 *cqe, uint16_t mask)
{
	uint16_t both;

	memcpy(&both, &cqe->hds_ip_ext, sizeof(both));
	return (both & mask) == MLX5_CHECKSUM_OK;
}

/* ---- WQEs ---- */

#define MLX5_SEG_BYTES 16       /* a WQE's length is a number of these */
#define MLX5_INLINE_HEADER 18   /* what a card may want to have in the WQE: Ethernet with a tag */
#define MLX5_TSO_HEADER_MAX 128 /* of verbs_queue_open */
#define MLX5_ETH_BYTES sizeof(struct mlx5_wqe_eth_seg)
#define MLX5_ETH_HEADER_AT offsetof(struct mlx5_wqe_eth_seg, inline_hdr_start)
_Static_assert(sizeof(struct mlx5_wqe_ctrl_seg) == MLX5_SEG_BYTES && sizeof(struct mlx5_wqe_data_seg) == MLX5_SEG_BYTES,
               "segments");
_Static_assert(MLX5_ETH_BYTES == 2 * MLX5_SEG_BYTES && MLX5_ETH_HEADER_AT + MLX5_INLINE_HEADER == MLX5_ETH_BYTES,
               "the least header ends with the segment");

/* Segments of an Ethernet segment with so long a header. */
static inline unsigned mlx5_eth_segs(uint32_t header)
{
	return (unsigned)((MLX5_ETH_HEADER_AT + header + MLX5_SEG_BYTES - 1) / MLX5_SEG_BYTES);
}

/* Of so many bytes that lie in the WQE behind it; 0: none. */
static inline unsigned mlx5_inline_segs(uint32_t bytes)
{
	return bytes == 0 ? 0 : (unsigned)((sizeof(uint32_t) + bytes + MLX5_SEG_BYTES - 1) / MLX5_SEG_BYTES);
}

static inline unsigned mlx5_wqe_blocks_of_segs(unsigned segs)
{
	return (segs * MLX5_SEG_BYTES + MLX5_SEND_WQE_BB - 1) / MLX5_SEND_WQE_BB;
}

static inline void mlx5_write_ctrl_seg(const struct verbs_mlx5 *mlx5, void *at, uint8_t opcode, unsigned segs,
                                       bool signal)
{
	struct mlx5_wqe_ctrl_seg *ctrl = at;

	ctrl->opmod_idx_opcode = htobe32((mlx5->sq_index & 0xffff) << 8 | opcode);
	ctrl->qpn_ds = htobe32(mlx5->sq_number | segs);
	ctrl->signature = 0;
	ctrl->dci_stream_channel_id = 0;
	ctrl->fm_ce_se = signal ? MLX5_WQE_CTRL_CQ_UPDATE : 0;
	ctrl->imm = 0;
}

/* All but the header's bytes. */
static inline void mlx5_put_eth(void *at, bool checksum, uint16_t mss, uint16_t header)
{
	struct mlx5_wqe_eth_seg *eth = at;

	eth->rsvd0 = 0;
	eth->cs_flags = checksum ? MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM : 0;
	eth->rsvd1 = 0;
	eth->mss = htobe16(mss);
	eth->rsvd2 = 0;
	eth->inline_hdr_sz = htobe16(header);
}

static inline void mlx5_write_data_seg(void *at, uint64_t addr, uint32_t len, uint32_t lkey)
{
	struct mlx5_wqe_data_seg *data = at;

	data->byte_count = htobe32(len);
	data->lkey = htobe32(lkey);
	data->addr = htobe64(addr);
}

/*
 * A WQE of one block: a packet of one segment, longer than the header. The same as mlx5_write_ctrl_seg, _eth and _data,
 * in words of 64 bits. `head` is the second half of the first one.
 */
#define MLX5_PLAIN_SEGS 4
static inline void mlx5_write_single_segment_wqe(void *at, uint32_t index, uint32_t head, uint64_t addr, uint32_t len,
                                                 uint32_t lkey, bool checksum, bool signal)
{
	const char *frame = (const char *)(uintptr_t)addr;
	uint64_t *word = at;
	uint16_t first;

	_Static_assert(offsetof(struct mlx5_wqe_ctrl_seg, fm_ce_se) == 11 &&
	                       offsetof(struct mlx5_wqe_eth_seg, cs_flags) == 4 &&
	                       offsetof(struct mlx5_wqe_eth_seg, inline_hdr_sz) == 12 && MLX5_ETH_HEADER_AT == 14,
	               "where the shifts put them");
	memcpy(&first, frame, sizeof(first));
	word[0] = (uint64_t)head << 32 | htobe32((index & 0xffff) << 8 | MLX5_OPCODE_SEND);
	word[1] = signal ? (uint64_t)MLX5_WQE_CTRL_CQ_UPDATE << 24 : 0;
	word[2] = checksum ? (uint64_t)(MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM) << 32 : 0;
	word[3] = (uint64_t)first << 48 | (uint64_t)htobe16(MLX5_INLINE_HEADER) << 32;
	memcpy(&word[4], frame + sizeof(first), MLX5_INLINE_HEADER - sizeof(first));
	word[6] = (uint64_t)htobe32(lkey) << 32 | htobe32(len - MLX5_INLINE_HEADER);
	word[7] = htobe64(addr + MLX5_INLINE_HEADER);
}

#endif
