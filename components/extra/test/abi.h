/*
 * abi.h - the field's numbers, offsets and sizes (x86-64), checked against <mellanox/vma_extra.h> when this is compiled,
 * as C (test_abi.c) and as C++ (tests/build/extra_header.sh).
 */
#ifndef VMA_EXTRA_TEST_ABI_H
#define VMA_EXTRA_TEST_ABI_H

#include <mellanox/vma_extra.h>

#ifdef __cplusplus
#define ABI_IS(have, want) static_assert((long long)(have) == (long long)(want), #have)
#define ABI_ALIGN(type) alignof(type)
#else
#define ABI_IS(have, want) _Static_assert((long long)(have) == (long long)(want), #have)
#define ABI_ALIGN(type) _Alignof(type)
#endif
#define ABI_TYPE(type, size, align)                                                                                    \
	ABI_IS(sizeof(type), size);                                                                                    \
	ABI_IS(ABI_ALIGN(type), align)
#define ABI_FIELD(type, field, offset, size)                                                                           \
	ABI_IS(offsetof(type, field), offset);                                                                         \
	ABI_IS(sizeof(((type *)0)->field), size)
#define ABI_FLEXIBLE(type, field, offset) ABI_IS(offsetof(type, field), offset)

ABI_IS(MSG_VMA_ZCOPY_FORCE, 0x01000000);
ABI_IS(MSG_VMA_ZCOPY, 0x00040000);
ABI_IS(VMA_SND_FLAGS_DUMMY, 0x400);
ABI_IS(SO_VMA_GET_API, 2800);
ABI_IS(SO_VMA_USER_DATA, 2801);
ABI_IS(SO_VMA_RING_ALLOC_LOGIC, 2810);
ABI_IS(SO_VMA_RING_USER_MEMORY, 2811);
ABI_IS(SO_VMA_FLOW_TAG, 2820);
ABI_IS(SO_VMA_SHUTDOWN_RX, 2821);
ABI_IS(CMSG_VMA_IOCTL_USER_ALLOC, 2900);
ABI_IS(VMA_IOCTL_USER_ALLOC_FLAG_TX, 1);
ABI_IS(VMA_IOCTL_USER_ALLOC_FLAG_RX, 2);
ABI_IS(VMA_PACKET_DROP, 0);
ABI_IS(VMA_PACKET_RECV, 1);
ABI_IS(VMA_PACKET_HOLD, 2);
ABI_IS(sizeof(vma_recv_callback_retval_t), 4);
ABI_IS(VMA_SOCKETXTREME_PACKET, 1ULL << 32);
ABI_IS(VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED, 1ULL << 33);
ABI_IS(RING_LOGIC_PER_INTERFACE, 0);
ABI_IS(RING_LOGIC_PER_IP, 1);
ABI_IS(RING_LOGIC_PER_SOCKET, 10);
ABI_IS(RING_LOGIC_PER_USER_ID, 11);
ABI_IS(RING_LOGIC_PER_THREAD, 20);
ABI_IS(RING_LOGIC_PER_CORE, 30);
ABI_IS(RING_LOGIC_PER_CORE_ATTACH_THREADS, 31);
ABI_IS(RING_LOGIC_LAST, 32);
ABI_IS(VMA_RING_ALLOC_MASK_RING_PROFILE_KEY, 1);
ABI_IS(VMA_RING_ALLOC_MASK_RING_USER_ID, 2);
ABI_IS(VMA_RING_ALLOC_MASK_RING_INGRESS, 4);
ABI_IS(VMA_RING_ALLOC_MASK_RING_ENGRESS, 8);
ABI_IS(VMA_MODIFY_RING_CQ_MODERATION, 1);
ABI_IS(VMA_MODIFY_RING_CQ_ARM, 2);
ABI_IS(VMA_RING_PACKET, 0);
ABI_IS(VMA_RING_EXTERNAL_MEM, 1);
ABI_IS(VMA_HW_PP_EN, 1);
ABI_IS(VMA_HW_PP_BURST_EN, 8);
ABI_IS(DATA_VALID_DEV, 0);
ABI_IS(DATA_VALID_SQ, 1);
ABI_IS(DATA_VALID_RQ, 2);

ABI_IS(VMA_EXTRA_API_REGISTER_RECV_CALLBACK, 1 << 0);
ABI_IS(VMA_EXTRA_API_RECVFROM_ZCOPY, 1 << 1);
ABI_IS(VMA_EXTRA_API_FREE_PACKETS, 1 << 2);
ABI_IS(VMA_EXTRA_API_ADD_CONF_RULE, 1 << 3);
ABI_IS(VMA_EXTRA_API_THREAD_OFFLOAD, 1 << 4);
ABI_IS(VMA_EXTRA_API_DUMP_FD_STATS, 1 << 5);
ABI_IS(VMA_EXTRA_API_SOCKETXTREME_POLL, 1 << 6);
ABI_IS(VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS, 1 << 7);
ABI_IS(VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF, 1 << 8);
ABI_IS(VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF, 1 << 9);
ABI_IS(VMA_EXTRA_API_GET_SOCKET_RINGS_NUM, 1 << 10);
ABI_IS(VMA_EXTRA_API_GET_SOCKET_RINGS_FDS, 1 << 11);
ABI_IS(VMA_EXTRA_API_GET_SOCKET_TX_RING_FD, 1 << 12);
ABI_IS(VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER, 1 << 13);
ABI_IS(VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS, 1 << 14);
ABI_IS(VMA_EXTRA_API_ADD_RING_PROFILE, 1 << 16);
ABI_IS(VMA_EXTRA_API_REGISTER_MEMORY_ON_RING, 1 << 17);
ABI_IS(VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING, 1 << 18);
ABI_IS(VMA_EXTRA_API_MODIFY_RING, 1 << 20);
ABI_IS(VMA_EXTRA_API_IOCTL, 1 << 21);

ABI_TYPE(struct vma_api_t, 168, 1);
ABI_FIELD(struct vma_api_t, register_recv_callback, 0, 8);
ABI_FIELD(struct vma_api_t, recvfrom_zcopy, 8, 8);
ABI_FIELD(struct vma_api_t, free_packets, 16, 8);
ABI_FIELD(struct vma_api_t, add_conf_rule, 24, 8);
ABI_FIELD(struct vma_api_t, thread_offload, 32, 8);
ABI_FIELD(struct vma_api_t, socketxtreme_poll, 40, 8);
ABI_FIELD(struct vma_api_t, get_socket_rings_num, 48, 8);
ABI_FIELD(struct vma_api_t, get_socket_rings_fds, 56, 8);
ABI_FIELD(struct vma_api_t, get_socket_tx_ring_fd, 64, 8);
ABI_FIELD(struct vma_api_t, socketxtreme_free_vma_packets, 72, 8);
ABI_FIELD(struct vma_api_t, socketxtreme_ref_vma_buff, 80, 8);
ABI_FIELD(struct vma_api_t, socketxtreme_free_vma_buff, 88, 8);
ABI_FIELD(struct vma_api_t, dump_fd_stats, 96, 8);
ABI_FIELD(struct vma_api_t, vma_add_ring_profile, 104, 8);
ABI_FIELD(struct vma_api_t, get_socket_network_header, 112, 8);
ABI_FIELD(struct vma_api_t, get_ring_direct_descriptors, 120, 8);
ABI_FIELD(struct vma_api_t, register_memory_on_ring, 128, 8);
ABI_FIELD(struct vma_api_t, deregister_memory_on_ring, 136, 8);
ABI_FIELD(struct vma_api_t, vma_modify_ring, 144, 8);
ABI_FIELD(struct vma_api_t, vma_extra_supported_mask, 152, 8);
ABI_FIELD(struct vma_api_t, ioctl, 160, 8);

ABI_TYPE(struct vma_cmsg_ioctl_user_alloc_t, 17, 1);
ABI_FIELD(struct vma_cmsg_ioctl_user_alloc_t, flags, 0, 1);
ABI_FIELD(struct vma_cmsg_ioctl_user_alloc_t, memalloc, 1, 8);
ABI_FIELD(struct vma_cmsg_ioctl_user_alloc_t, memfree, 9, 8);
ABI_TYPE(struct vma_buff_t, 24, 8);
ABI_FIELD(struct vma_buff_t, next, 0, 8);
ABI_FIELD(struct vma_buff_t, payload, 8, 8);
ABI_FIELD(struct vma_buff_t, len, 16, 2);
ABI_TYPE(struct vma_packet_desc_t, 40, 8);
ABI_FIELD(struct vma_packet_desc_t, num_bufs, 0, 8);
ABI_FIELD(struct vma_packet_desc_t, total_len, 8, 2);
ABI_FIELD(struct vma_packet_desc_t, buff_lst, 16, 8);
ABI_FIELD(struct vma_packet_desc_t, hw_timestamp, 24, 16);
ABI_TYPE(struct vma_completion_t, 80, 8);
ABI_FIELD(struct vma_completion_t, packet, 0, 40);
ABI_FIELD(struct vma_completion_t, events, 40, 8);
ABI_FIELD(struct vma_completion_t, user_data, 48, 8);
ABI_FIELD(struct vma_completion_t, src, 56, 16);
ABI_FIELD(struct vma_completion_t, listen_fd, 72, 4);
ABI_TYPE(struct vma_packet_t, 16, 1);
ABI_FIELD(struct vma_packet_t, packet_id, 0, 8);
ABI_FIELD(struct vma_packet_t, sz_iov, 8, 8);
ABI_FLEXIBLE(struct vma_packet_t, iov, 16);
ABI_TYPE(struct vma_packets_t, 8, 1);
ABI_FIELD(struct vma_packets_t, n_packet_num, 0, 8);
ABI_FLEXIBLE(struct vma_packets_t, pkts, 8);
ABI_TYPE(struct vma_info_t, 80, 1);
ABI_FIELD(struct vma_info_t, struct_sz, 0, 8);
ABI_FIELD(struct vma_info_t, packet_id, 8, 8);
ABI_FIELD(struct vma_info_t, src, 16, 8);
ABI_FIELD(struct vma_info_t, dst, 24, 8);
ABI_FIELD(struct vma_info_t, payload_sz, 32, 8);
ABI_FIELD(struct vma_info_t, socket_ready_queue_pkt_count, 40, 4);
ABI_FIELD(struct vma_info_t, socket_ready_queue_byte_count, 44, 4);
ABI_FIELD(struct vma_info_t, hw_timestamp, 48, 16);
ABI_FIELD(struct vma_info_t, sw_timestamp, 64, 16);
ABI_TYPE(struct vma_rate_limit_t, 12, 4);
ABI_FIELD(struct vma_rate_limit_t, rate, 0, 4);
ABI_FIELD(struct vma_rate_limit_t, max_burst_sz, 4, 4);
ABI_FIELD(struct vma_rate_limit_t, typical_pkt_sz, 8, 2);
ABI_TYPE(struct vma_ring_alloc_logic_attr, 20, 4);
ABI_FIELD(struct vma_ring_alloc_logic_attr, comp_mask, 0, 4);
ABI_FIELD(struct vma_ring_alloc_logic_attr, ring_alloc_logic, 4, 4);
ABI_FIELD(struct vma_ring_alloc_logic_attr, ring_profile_key, 8, 4);
ABI_FIELD(struct vma_ring_alloc_logic_attr, user_id, 12, 4);
ABI_TYPE(struct vma_cq_moderation_attr, 8, 4);
ABI_FIELD(struct vma_cq_moderation_attr, cq_moderation_count, 0, 4);
ABI_FIELD(struct vma_cq_moderation_attr, cq_moderation_period_usec, 4, 4);
#ifndef __cplusplus /* where an empty structure has a byte */
ABI_TYPE(struct vma_cq_arm_attr, 0, 1);
#endif
ABI_TYPE(struct vma_modify_ring_attr, 16, 4);
ABI_FIELD(struct vma_modify_ring_attr, comp_bit_mask, 0, 4);
ABI_FIELD(struct vma_modify_ring_attr, ring_fd, 4, 4);
ABI_FIELD(struct vma_modify_ring_attr, cq_moderation, 8, 8);
ABI_FLEXIBLE(struct vma_modify_ring_attr, cq_arm, 8);
ABI_TYPE(struct vma_packet_queue_ring_attr, 4, 4);
ABI_TYPE(struct vma_external_mem_attr, 4, 4);
ABI_TYPE(struct vma_ring_type_attr, 12, 4);
ABI_FIELD(struct vma_ring_type_attr, comp_mask, 0, 4);
ABI_FIELD(struct vma_ring_type_attr, ring_type, 4, 4);
ABI_FIELD(struct vma_ring_type_attr, ring_pktq, 8, 4);
ABI_FIELD(struct vma_ring_type_attr, ring_ext, 8, 4);
ABI_IS(sizeof(vma_ring_profile_key), 4);
ABI_TYPE(struct dev_data, 12, 4);
ABI_FIELD(struct dev_data, vendor_id, 0, 4);
ABI_FIELD(struct dev_data, vendor_part_id, 4, 4);
ABI_FIELD(struct dev_data, device_cap, 8, 4);
ABI_TYPE(struct hw_cq_data, 48, 8);
ABI_FIELD(struct hw_cq_data, buf, 0, 8);
ABI_FIELD(struct hw_cq_data, dbrec, 8, 8);
ABI_FIELD(struct hw_cq_data, cq_size, 16, 4);
ABI_FIELD(struct hw_cq_data, cqe_size, 20, 4);
ABI_FIELD(struct hw_cq_data, cqn, 24, 4);
ABI_FIELD(struct hw_cq_data, uar, 32, 8);
ABI_FIELD(struct hw_cq_data, cons_idx, 40, 8);
ABI_TYPE(struct hw_wq_data, 72, 8);
ABI_FIELD(struct hw_wq_data, buf, 0, 8);
ABI_FIELD(struct hw_wq_data, wqe_cnt, 8, 4);
ABI_FIELD(struct hw_wq_data, stride, 12, 4);
ABI_FIELD(struct hw_wq_data, dbrec, 16, 8);
ABI_FIELD(struct hw_wq_data, cq_data, 24, 48);
ABI_TYPE(struct hw_rq_data, 88, 8);
ABI_FIELD(struct hw_rq_data, wq_data, 0, 72);
ABI_FIELD(struct hw_rq_data, head, 72, 8);
ABI_FIELD(struct hw_rq_data, tail, 80, 8);
ABI_TYPE(struct hw_sq_data, 96, 8);
ABI_FIELD(struct hw_sq_data, wq_data, 0, 72);
ABI_FIELD(struct hw_sq_data, sq_num, 72, 4);
ABI_FIELD(struct hw_sq_data, bf, 80, 16);
ABI_TYPE(struct vma_mlx_hw_device_data, 200, 8);
ABI_FIELD(struct vma_mlx_hw_device_data, valid_mask, 0, 4);
ABI_FIELD(struct vma_mlx_hw_device_data, dev_data, 4, 12);
ABI_FIELD(struct vma_mlx_hw_device_data, sq_data, 16, 96);
ABI_FIELD(struct vma_mlx_hw_device_data, rq_data, 112, 88);

#endif
