/*
 * view - what vma_stats prints of a process's counters. Each view is a function of a snapshot, so a test can give it
 * one.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_VIEW_H
#define VMA_STATS_TOOL_VIEW_H

#include <inttypes.h>
#include <stdio.h>

#include <vma/stats_read.h>

#include "options.h"

struct view_input {
	const struct options *options;
	const struct vma_stats_snapshot *now;   /* with deltas: what was counted in one interval */
	const struct vma_stats_snapshot *total; /* the same items, counted from the beginning */
	FILE *out;
};

static inline uint64_t view_read_counter(const _Atomic uint64_t *counter)
{
	return vma_stats_read_counter(counter);
}
/* As the field prints bytes: kilobytes, cut. */
static inline uint64_t view_read_bytes_as_kb(const _Atomic uint64_t *bytes)
{
	return vma_stats_read_counter(bytes) / 1024;
}
/* With deltas, per second. */
static inline uint64_t view_rate(const struct view_input *in, const _Atomic uint64_t *counter)
{
	return vma_stats_read_counter(counter) / (in->options->deltas ? in->options->interval : 1);
}
static inline double view_percent(uint64_t part, uint64_t rest)
{
	return part + rest != 0 ? 100.0 * (double)part / (double)(part + rest) : 0;
}
/* Whether the item is a socket that -s has. */
static inline bool view_is_selected_socket(const struct view_input *in, const struct vma_stats_item *item)
{
	return item->type == VMA_STATS_TYPE_SOCKET &&
	       fd_list_has(&in->options->fds, view_read_counter(&item->socket.fd));
}

#define VIEW_NAME_BYTES 24
/* "10.0.0.1:7000"; port 0: "10.0.0.1:*". */
void view_format_address_and_port(char text[VIEW_NAME_BYTES], uint64_t address, uint64_t port);
void view_format_ipv4_address(char text[VIEW_NAME_BYTES], uint64_t address);
/* Datagrams and bytes that wait to be received by a socket of in->now. */
void view_queued_packets_and_bytes(const struct view_input *in, const struct vma_stats_socket *socket,
                                   uint64_t *packets, uint64_t *bytes);
const char *view_tcp_state_name(uint64_t state);
#define VIEW_INTERFACE_BYTES 17
/* The socket's interface; "": it has none. What no name has becomes '?'. */
void view_interface_name(const struct vma_stats_socket *socket, char text[VIEW_INTERFACE_BYTES]);
/* Why a socket is not offloaded, by the number of the reason. */
const char *view_reason_to_text(uint64_t reason);
const char *view_reason_word(uint64_t reason); /* the same as one word: "RULE"; "?" */
/* Whether the kernel has the socket. False also if there is nothing yet that could be offloaded. */
bool view_is_by_kernel(const struct vma_stats_socket *socket);
const char *view_errno_name(uint64_t number); /* "ECONNRESET"; "?" */
/* The inode of the socket behind a descriptor; 0: it cannot be told. */
unsigned long view_socket_inode_of_fd(int pid, uint64_t fd);

void view_basic(const struct view_input *in);
void view_full(const struct view_input *in);
void view_groups(const struct view_input *in);
void view_print_netstat_header(FILE *out);
void view_netstat(const struct view_input *in);
void print_tcp_table_header(FILE *out);
void view_tcp(const struct view_input *in);
/* How many sockets were shown, and how many of them are not offloaded. */
void view_why(const struct view_input *in, unsigned *shown, unsigned *by_kernel);

#endif
