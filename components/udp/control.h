/* control.h - the control path's calls: bind.c, options.c, ioctl.c. As struct vma_file_ops has them. */
#ifndef VMA_UDP_CONTROL_H
#define VMA_UDP_CONTROL_H

#include "udp_priv.h"

int udp_bind(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len);
int udp_connect(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len);
int udp_shutdown(struct vma_file *file, int fd, int how);

int udp_setsockopt(struct vma_file *file, int fd, int level, int name, const void *value, socklen_t len);
int udp_getsockopt(struct vma_file *file, int fd, int level, int name, void *value, socklen_t *len);
/* file.lock. Other processes have changed options, or file flags: all are mirrored anew. */
void udp_reread_all_options_from_kernel(struct udp_sock *sock, int fd, const struct udp_fork_shared *fork_shared);
/* What a new socket has by the system's settings and by ours. */
void udp_options_init(struct udp_sock *sock, int fd);
/* The option for which the kernel receives; NULL: none. Takes file.lock. */
const char *udp_get_name_of_kernel_only_option(struct vma_file *file);
/* file.lock. SIGIO on arrival (O_ASYNC, FIOASYNC): the kernel's alone. */
void udp_set_o_async(struct udp_sock *sock, bool on);

int udp_ioctl(struct vma_file *file, int fd, unsigned long request, void *arg);
int udp_fcntl(struct vma_file *file, int fd, int cmd, void *arg);

#endif
