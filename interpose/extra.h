/* extra - the question of vma_get_api(), which comes as a socket option of no socket. */
#ifndef VMA_INTERPOSE_EXTRA_H
#define VMA_INTERPOSE_EXTRA_H

#include <sys/socket.h>

/* getsockopt(-1, ...): 0: it was the question, or that of vma_get_own_api(), and is answered. -EFAULT; -ENOENT: another. */
int extra_get_api(int level, int name, void *value, const socklen_t *len);

/* Exported (control.c): <vma/vma_api.h>. */
const char *vma_get_version(void);
int vma_get_socket_state(int fd, const char **text);

#endif
