/*
 * ooo - data of a connection that has come out of order: whether more of it is kept, and which data is given up for it.
 */
#ifndef VMA_TCP_RX_OOO_H
#define VMA_TCP_RX_OOO_H

#include "segment.h"
#include "../tcp_priv.h"

/*
 * All of it waits behind a hole already. lwIP looks through the queue for what is not to be at its end, too; *steps: at
 * how many pieces at least. (What a peer sends again comes from the front on, and all else belongs at the end.)
 */
bool ooo_already_holds_segment(const struct vma_tcp_conn *conn, const struct segment *s, unsigned *steps);
/* Whether there is room for s, which is not in order; it may be made by giving up what is farther. */
bool ooo_make_room_for_segment(struct vma_tcp_conn *conn, const struct segment *s, unsigned steps);

#endif
