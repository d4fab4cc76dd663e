/*
 * extra - the VMA Extra API behind its functions. <mellanox/vma_extra.h> has the contracts. Functions here return 0, a
 * count or a negative errno in the place of errno.
 *
 * `file` is what stands under the descriptor, NULL: nothing of ours.
 *
 * Threads: any, inside.
 * Progress: recvfrom waits as a receive call does.
 * Memory: the program's, read and written by vma_memcpy_or_efault.
 * Example: test/test_abi.c; udp/test/test_extra.c.
 */
#ifndef VMA_EXTRA_COMPONENT_H
#define VMA_EXTRA_COMPONENT_H

#include <mellanox/vma_extra.h>

#include <vma/sock.h>

/* VMA_EXTRA_API_* of the functions that work. */
uint64_t vma_extra_mask(void);

int vma_extra_register_recv_callback(struct vma_file *file, vma_recv_callback_t function, void *context);
/* -EBADF: fd is the kernel's, and so is the call. *flags is written. */
ssize_t vma_extra_recvfrom_zcopy(struct vma_file *file, int fd, void *buf, size_t len, int *flags,
                                 struct sockaddr *from, socklen_t *fromlen);
int vma_extra_free_packets(const struct vma_file *file, int fd, const struct vma_packet_t *packets, size_t count);
/* VMA_SOCKETXTREME is on; else the functions of xtreme.c fail with -EOPNOTSUPP. */
bool vma_extra_is_socketxtreme_enabled(void);
int vma_extra_xtreme_poll(struct vma_file *file, struct vma_completion_t *completions, unsigned n, int flags);
int vma_extra_xtreme_free_packets(const struct vma_packet_desc_t *packets, int n);
int vma_extra_xtreme_ref(const struct vma_buff_t *buff);
int vma_extra_xtreme_free_buff(const struct vma_buff_t *buff);
int vma_extra_get_rings_num(struct vma_file *file);
int vma_extra_get_ring_fds(struct vma_file *file, int *fds, int max);
int vma_extra_get_tx_ring_fd(struct vma_file *file, const struct sockaddr *to, socklen_t len);
int vma_extra_add_ring_profile(const struct vma_ring_type_attr *profile, vma_ring_profile_key *key);
int vma_extra_modify_ring(const struct vma_modify_ring_attr *attr);
int vma_extra_get_network_header(struct vma_file *file, void *to, uint16_t *len);
int vma_extra_dump_socket_state_to_log(struct vma_file *file, int fd, int level);
int vma_extra_add_offload_rule_from_text(const char *line);
int vma_extra_set_thread_offload(int offload, pthread_t thread);

#endif
