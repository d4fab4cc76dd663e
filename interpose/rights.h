/* rights - descriptors in control messages, SCM_RIGHTS: see rights.c. */
#ifndef VMA_INTERPOSE_RIGHTS_H
#define VMA_INTERPOSE_RIGHTS_H

#include <sys/socket.h>

#include "call.h"

/* Whether the table has ever had a descriptor: in a process without any, messages need no look. */
static inline bool process_has_had_own_fds(void)
{
	return __builtin_expect(vma_fd_highest() >= 0, 0);
}

/* Outside, before the kernel sends n messages: sockets of ours that they carry become the kernel's. */
void rights_hand_over_fds_passed_in_message(const struct msghdr *msg);
void rights_hand_over_fds_passed_in_messages(const struct mmsghdr *msgs, unsigned n);
/* Outside, after the kernel has refused a message that rights_hand_over_fds_passed_in_message has seen. errno stays. */
void rights_undo_passing_of_fds(const struct msghdr *msg);
/* Outside, after the kernel has filled in a message: its numbers are new. */
void rights_register_received_fds(const struct msghdr *msg);
/* The same for one number that is new, however it has come. errno stays. */
void rights_register_received_fd(int fd);

#endif
