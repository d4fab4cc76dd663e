/*
 * fake_prog - a program without a kernel, linked in place of xdp/prog.c: a map that remembers what lies in it, and
 * segments that the test makes up.
 */
#ifndef VMA_FAKE_PROG_H
#define VMA_FAKE_PROG_H

#include <errno.h>
#include <string.h>

#include "../owner/owner.h"
#include "../xdp/flow.h"
#include "fake_kept.h"

#define FAKE_ENTRIES 512

static struct {
	struct {
		bool used, is_minisock;
		struct vma_flow_key key;
		uint32_t slot; /* or number */
		uint32_t group, spread;
	} entry[FAKE_ENTRIES];
	unsigned most; /* entries; 0: no limit of its own */
	bool attached;
	struct xdp_group groups[XDP_GROUPS];
	bool has_no_memory; /* for what takes another's place */
	int (*see)(void *arg, void *segment, size_t bytes);
	void *arg;
	struct xdp_minisock_segment waiting[2048];
	unsigned first, last;
} prog;

/* Before each change of the map and of what the program knows: a test may have the owner die there. */
static void (*fake_prog_step_hook)(void);

static void fake_prog_call_step_hook(void)
{
	if (fake_prog_step_hook != NULL)
		fake_prog_step_hook();
}

static int fake_prog_find_entry(const struct vma_flow_key *key)
{
	for (int i = 0; i < FAKE_ENTRIES; i++)
		if (prog.entry[i].used && memcmp(&prog.entry[i].key, key, sizeof(*key)) == 0)
			return i;
	return -1;
}

static unsigned fake_prog_used_entries(void)
{
	unsigned used = 0;

	for (int i = 0; i < FAKE_ENTRIES; i++)
		used += prog.entry[i].used;
	return used;
}

static int fake_prog_put_entry(const struct vma_flow_key *key, uint32_t slot, bool is_minisock, bool in_place)
{
	int at = fake_prog_find_entry(key);

	fake_prog_call_step_hook();
	if ((at >= 0) != in_place)
		return in_place ? -ENOENT : -EEXIST;
	if (in_place && prog.has_no_memory)
		return -ENOMEM;
	if (at < 0 && prog.most != 0 && fake_prog_used_entries() >= prog.most)
		return -ENOSPC;
	for (int i = 0; at < 0; i++)
		if (!prog.entry[i].used)
			at = i;
	prog.entry[at].used = true;
	prog.entry[at].is_minisock = is_minisock;
	prog.entry[at].key = *key;
	prog.entry[at].slot = slot;
	prog.entry[at].group = prog.entry[at].spread = 0;
	return 0;
}

int xdp_prog_flow_add(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot, uint32_t flags)
{
	(void)of, (void)flags;
	return fake_prog_put_entry(key, slot, false, false);
}

int xdp_prog_flow_replace(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot, uint32_t flags)
{
	(void)of, (void)flags;
	return fake_prog_put_entry(key, slot, false, true);
}

int xdp_prog_flow_move(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot)
{
	(void)of;
	return fake_prog_put_entry(key, slot, false, true);
}

int xdp_prog_flow_begin_grace(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot, uint32_t group)
{
	(void)of, (void)group;
	return fake_prog_put_entry(key, slot, false, true);
}

struct xdp_group *xdp_prog_groups(const struct xdp_prog *of)
{
	(void)of;
	return prog.groups;
}

int xdp_prog_flow_set_listener_group(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot, uint32_t group)
{
	const int rc = fake_prog_put_entry(key, slot, false, true);

	(void)of;
	if (rc == 0)
		prog.entry[fake_prog_find_entry(key)].group = group;
	return rc;
}

int xdp_prog_flow_spread(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot, uint32_t group)
{
	const int rc = fake_prog_put_entry(key, slot, false, true);

	(void)of;
	if (rc == 0)
		prog.entry[fake_prog_find_entry(key)].spread = group;
	return rc;
}

void xdp_prog_count_slot_rental(struct xdp_prog *of, uint32_t slot)
{
	(void)of, (void)slot;
}

void xdp_prog_add_recent_connection(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot)
{
	(void)of, (void)key, (void)slot;
	fake_prog_call_step_hook();
}

int xdp_prog_minisock_set(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t number, bool in_place)
{
	(void)of;
	return fake_prog_put_entry(key, number, true, in_place);
}

int xdp_prog_flow_del(struct xdp_prog *of, const struct vma_flow_key *key)
{
	const int at = fake_prog_find_entry(key);

	(void)of;
	fake_prog_call_step_hook();
	if (at < 0)
		return -ENOENT;
	prog.entry[at].used = false;
	return 0;
}

struct xdp_claim_bucket *xdp_prog_claims(const struct xdp_prog *of, int *fd)
{
	(void)of;
	*fd = -1;
	return NULL;
}

void xdp_prog_enable_claims_if_mapped(struct xdp_prog *of)
{
	(void)of;
}

int xdp_prog_attach(struct xdp_prog *of, bool *generic)
{
	(void)of;
	prog.attached = true;
	*generic = false;
	return 0;
}

void xdp_prog_detach(struct xdp_prog *of)
{
	(void)of;
	prog.attached = false;
}

int xdp_prog_open_minisock_segment_ring(struct xdp_prog *of, int (*see)(void *arg, void *segment, size_t bytes),
                                        void *arg)
{
	(void)of;
	prog.see = see;
	prog.arg = arg;
	return 0;
}

int xdp_prog_consume_minisock_segments(struct xdp_prog *of)
{
	int rc = 0, n = 0;

	(void)of;
	for (; prog.first != prog.last && rc == 0; n++)
		rc = prog.see(prog.arg, &prog.waiting[prog.first++], sizeof(prog.waiting[0]));
	return rc < 0 ? rc : n;
}

#endif
