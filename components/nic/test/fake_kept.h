/* fake_kept - what an owner that nobody follows never asks of its program; beside a test's own one. */
#ifndef VMA_FAKE_KEPT_H
#define VMA_FAKE_KEPT_H

#include <errno.h>

#include "../xdp/owner.h"
#include "../xdp/xdp.h"

void xdp_prog_fds(const struct xdp_prog *of, int fds[XDP_PROG_FDS])
{
	(void)of;
	for (unsigned i = 0; i < XDP_PROG_FDS; i++)
		fds[i] = -1;
}

int xdp_prog_link_fd(const struct xdp_prog *of)
{
	(void)of;
	return -1;
}

size_t xdp_prog_variables_bytes(void)
{
	return 0;
}

int xdp_prog_adopt(unsigned ifindex, uint32_t queues, int fds[XDP_PROG_FDS], int *link_fd, bool generic,
                   struct xdp_prog **out)
{
	(void)ifindex, (void)queues, (void)fds, (void)link_fd, (void)generic, (void)out;
	return -ENOENT;
}

int xdp_prog_for_each_flow(struct xdp_prog *of, int (*see)(void *arg, const struct xdp_flow_map_entry *entry),
                           void *arg)
{
	(void)of, (void)see, (void)arg;
	return 0;
}

#endif
