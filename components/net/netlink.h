/*
 * netlink.h - two kinds of rtnetlink sockets on libnl-3: for questions, and for events.
 *
 * Answers are read message by message here, not by libnl's callbacks. Those turn the kernel's errno into codes of their
 * own, several to one. A route's refusal must reach the application as it is.
 *
 * Threads: one at a time for each socket, the holder of net's lock. net_nl_fd, net_nl_alloc_request_message and
 * net_move_fd_to_high_number: any thread.
 */
#ifndef VMA_NET_NETLINK_H
#define VMA_NET_NETLINK_H

#include <stdbool.h>
#include <stdint.h>

struct nl_sock;
struct nl_msg;
struct nlmsghdr;

/* Takes one message; the length in its header is what was received. */
typedef void (*net_nl_sink)(struct nlmsghdr *message, void *arg);

/* The first descriptor number for what the library keeps for itself: out of the way of programs that count on small
 * ones. */
#define NET_FD_MIN 1000
/* Moves a fresh descriptor up (close-on-exec); where that is not allowed it stays. Negative values pass through. */
int net_move_fd_to_high_number(int fd);

int net_nl_open(struct nl_sock **out);
/* Also joins the groups of routing, addresses, links and neighbours, and does not block. */
int net_nl_open_events(uint32_t event_bytes, struct nl_sock **out);
void net_nl_close(struct nl_sock *sock);
int net_nl_fd(struct nl_sock *sock);

/* A request with `header` (an rtmsg, ifinfomsg, ...) in front; NULL: no memory. Free it with nlmsg_free. */
struct nl_msg *net_nl_alloc_request_message(int type, int flags, const void *header, int header_bytes);

/*
 * Sends, frees the request and hands every answer to sink (may be NULL). 0; the kernel's refusal as -errno; -EIO when
 * the kernel could not be asked; -EAGAIN when a dump was interrupted by a change (ask again).
 */
int net_nl_send_request_and_read_replies(struct nl_sock *sock, struct nl_msg *request, net_nl_sink sink, void *arg);
/* Hands over all events there are: their number, or -ENOBUFS when some were lost. */
int net_nl_read_pending_events(struct nl_sock *sock, net_nl_sink sink, void *arg);

#endif
