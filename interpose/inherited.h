/* inherited - sockets that come and go by exec: see inherited.c. */
#ifndef VMA_INTERPOSE_INHERITED_H
#define VMA_INTERPOSE_INHERITED_H

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic bool inherited_copies;
/* Outside. In a forked child: number fd is a copy, or goes along at exec from now on. errno stays. */
void inherited_mark_copied(int fd);
/* Outside, not in a vfork child. */
void inherited_prepare_sockets_for_exec(void);

#endif
