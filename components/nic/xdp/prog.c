/*
 * prog - the XDP program of one interface: loading, the bpf_link that attaches it, its flow map and socket map.
 *
 * It is attached by a bpf_link, not through netlink. When the owner's last fd goes, however the owner dies, the kernel
 * detaches the program and the interface carries plain traffic again. Nothing is pinned. One thread at a time (the
 * owner's lock).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <linux/if_link.h>

#include <vma/log.h>

#include "../os.h"
#include "claims.h"
#include "xdp.h"
#include <xdp/steer.skel.h>

_Static_assert(XDP_SLOTS_MAX == XDP_FLOW_SLOTS, "one and the same");
_Static_assert(XDP_FLOW_TCP_PORTS == VMA_FLOW_TCP_PORTS && XDP_FLOW_PORTS == VMA_FLOW_PORTS, "one and the same");

struct xdp_prog {
	unsigned ifindex;
	uint32_t queues;
	int prog_fd, flows_fd, sockets_fd, segments_fd, claims_fd;
	int variables_fd, groups_fd, recents_fd; /* of maps that are mapped: for who comes next */
	int link_fd;                             /* -1: not attached */
	int ioctl_fd;                            /* a socket to ask for the MAC by; -1: none */
	struct xdp_steer__bss *shared;           /* the program's variables */
	struct xdp_claim_bucket *claims;         /* NULL: clients take none by themselves */
	struct xdp_group *groups;                /* XDP_GROUPS */
	struct xdp_recent_connections *recents;  /* XDP_RECENT_LINES */
	struct ring_buffer *segments;            /* as this process reads them; NULL: it does not */
	bool generic;
	uint64_t front_version;  /* of the last flow at the front; never used again */
	_Atomic uint64_t *named; /* bits of local ports; NULL: nobody wants to know */
	uint32_t entries[65536]; /* of TCP in the map, by local port */
};

/* libbpf writes to stderr by default; a library must not. Its texts matter when the verifier refuses, so: debug. */
static int libbpf_log_callback(enum libbpf_print_level level, const char *fmt, va_list args)
{
	char text[512];

	(void)level;
	if (!vma_log_level_is_enabled(VMA_LOG_DEBUG))
		return 0;
	vsnprintf(text, sizeof(text), fmt, args);
	text[strcspn(text, "\n")] = '\0';
	vma_log_debug("xdp: %s", text);
	return 0;
}

/* With `frags` the program accepts packets of several buffers, without which a large MTU cannot go native. */
static int xdp_steer_skeleton_load(uint32_t queues, bool frags, struct xdp_steer **out)
{
	struct xdp_steer *skel = xdp_steer__open();
	int rc;

	if (skel == NULL)
		return -errno;
	if (frags)
		bpf_program__set_flags(skel->progs.vma_steer,
		                       bpf_program__flags(skel->progs.vma_steer) | BPF_F_XDP_HAS_FRAGS);
	skel->rodata->queues = queues;
	rc = bpf_map__set_max_entries(skel->maps.sockets, XDP_SLOTS_MAX * queues);
	if (rc == 0)
		rc = xdp_steer__load(skel);
	if (rc < 0) {
		xdp_steer__destroy(skel);
		return rc;
	}
	*out = skel;
	return 0;
}

/* Only where loads keep their order, see the program. */
static void prog_mmap_claims(struct xdp_prog *prog)
{
#ifdef __x86_64__
	if (prog->claims_fd >= 0)
		prog->claims = xdp_claims_map(prog->claims_fd);
#else
	(void)prog;
#endif
}

/* An array of the program's, mapped; NULL. */
static void *map_array(int fd, size_t bytes)
{
	void *array = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (array == MAP_FAILED)
		return NULL;
	madvise(array, bytes, MADV_DONTFORK);
	return array;
}

#define GROUPS_BYTES (XDP_GROUPS * sizeof(struct xdp_group))
#define RECENTS_BYTES (XDP_RECENT_LINES * sizeof(struct xdp_recent_connections))

/* Of what the descriptors name. */
static int prog_mmap_all_maps(struct xdp_prog *prog)
{
	struct timespec now;

	if (prog->prog_fd < 0 || prog->flows_fd < 0 || prog->sockets_fd < 0 || prog->segments_fd < 0 ||
	    prog->variables_fd < 0 || prog->groups_fd < 0 || prog->recents_fd < 0)
		return errno != 0 ? -errno : -EBADF;
	prog->ioctl_fd = nic_fd_move_high(os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	prog->shared = map_array(prog->variables_fd, sizeof(*prog->shared));
	prog_mmap_claims(prog);
	prog->groups = map_array(prog->groups_fd, GROUPS_BYTES);
	prog->recents = map_array(prog->recents_fd, RECENTS_BYTES);
	/* Never a version that an earlier process has used: fewer flows come than nanoseconds go by. */
	clock_gettime(CLOCK_BOOTTIME, &now);
	prog->front_version = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	return prog->shared != NULL && prog->groups != NULL && prog->recents != NULL ? 0 : -ENOMEM;
}

/* libbpf's descriptors have low numbers, and its object much memory: what lives on is copies of nine things. */
static int prog_dup_skeleton_fds_and_map(struct xdp_prog *prog, struct xdp_steer *skel)
{
	prog->prog_fd = nic_fd_dup(bpf_program__fd(skel->progs.vma_steer));
	prog->flows_fd = nic_fd_dup(bpf_map__fd(skel->maps.flows));
	prog->sockets_fd = nic_fd_dup(bpf_map__fd(skel->maps.sockets));
	prog->segments_fd = nic_fd_dup(bpf_map__fd(skel->maps.segments));
	prog->claims_fd = nic_fd_dup(bpf_map__fd(skel->maps.claims));
	prog->variables_fd = nic_fd_dup(bpf_map__fd(skel->maps.bss));
	prog->groups_fd = nic_fd_dup(bpf_map__fd(skel->maps.groups));
	prog->recents_fd = nic_fd_dup(bpf_map__fd(skel->maps.recents));
	return prog_mmap_all_maps(prog);
}

static struct xdp_prog *xdp_prog_alloc(unsigned ifindex, uint32_t queues)
{
	struct xdp_prog *prog = calloc(1, sizeof(*prog));

	if (prog == NULL)
		return NULL;
	prog->ifindex = ifindex;
	prog->queues = queues;
	prog->prog_fd = prog->flows_fd = prog->sockets_fd = prog->segments_fd = prog->claims_fd = -1;
	prog->variables_fd = prog->groups_fd = prog->recents_fd = -1;
	prog->link_fd = prog->ioctl_fd = -1;
	return prog;
}

int xdp_prog_load(unsigned ifindex, uint32_t queues, struct xdp_prog **out)
{
	libbpf_print_fn_t print_before;
	struct xdp_steer *skel = NULL;
	struct xdp_prog *prog;
	int rc;

	if (queues == 0 || queues > XDP_QUEUES_MAX)
		return -EINVAL;
	prog = xdp_prog_alloc(ifindex, queues);
	if (prog == NULL)
		return -ENOMEM;
	print_before = libbpf_set_print(libbpf_log_callback);
	rc = xdp_steer_skeleton_load(queues, true, &skel);
	if (rc == -EINVAL) /* a kernel before 5.18 */
		rc = xdp_steer_skeleton_load(queues, false, &skel);
	if (rc == 0)
		rc = prog_dup_skeleton_fds_and_map(prog, skel);
	xdp_steer__destroy(skel);
	libbpf_set_print(print_before);
	if (rc < 0) {
		vma_log_debug("xdp: ifindex %u: the program cannot be loaded: error %d", ifindex, -rc);
		xdp_prog_destroy(prog);
		return rc;
	}
	*out = prog;
	return 0;
}

/* ---- from one vmad to the next ---- */

void xdp_prog_fds(const struct xdp_prog *prog, int fds[XDP_PROG_FDS])
{
	const int all[XDP_PROG_FDS] = {prog->prog_fd,      prog->flows_fd,  prog->sockets_fd, prog->segments_fd,
	                               prog->variables_fd, prog->groups_fd, prog->recents_fd, prog->claims_fd};

	memcpy(fds, all, sizeof(all));
}

int xdp_prog_link_fd(const struct xdp_prog *prog)
{
	return prog->link_fd;
}

size_t xdp_prog_variables_bytes(void)
{
	return sizeof(struct xdp_steer__bss);
}

int xdp_prog_adopt(unsigned ifindex, uint32_t queues, int fds[XDP_PROG_FDS], int *link_fd, bool generic,
                   struct xdp_prog **out)
{
	struct xdp_prog *prog = queues == 0 || queues > XDP_QUEUES_MAX ? NULL : xdp_prog_alloc(ifindex, queues);
	int *const places[XDP_PROG_FDS] = {&prog->prog_fd,      &prog->flows_fd,  &prog->sockets_fd, &prog->segments_fd,
	                                   &prog->variables_fd, &prog->groups_fd, &prog->recents_fd, &prog->claims_fd};
	int rc;

	if (prog == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < XDP_PROG_FDS; i++) {
		*places[i] = nic_fd_move_high(fds[i]);
		fds[i] = -1;
	}
	prog->link_fd = nic_fd_move_high(*link_fd);
	prog->generic = generic;
	*link_fd = -1;
	errno = 0;
	rc = prog_mmap_all_maps(prog);
	if (rc < 0) {
		xdp_prog_destroy(prog);
		return rc;
	}
	*out = prog;
	return 0;
}

void xdp_prog_destroy(struct xdp_prog *prog)
{
	if (prog == NULL)
		return;
	xdp_prog_detach(prog);
	ring_buffer__free(prog->segments);
	if (prog->segments_fd >= 0)
		nic_fd_close(prog->segments_fd);
	if (prog->shared != NULL)
		munmap(prog->shared, sizeof(*prog->shared));
	xdp_claims_unmap(prog->claims);
	if (prog->groups != NULL)
		munmap(prog->groups, GROUPS_BYTES);
	if (prog->recents != NULL)
		munmap(prog->recents, RECENTS_BYTES);
	if (prog->claims_fd >= 0)
		nic_fd_close(prog->claims_fd);
	if (prog->sockets_fd >= 0)
		nic_fd_close(prog->sockets_fd);
	if (prog->flows_fd >= 0)
		nic_fd_close(prog->flows_fd);
	if (prog->prog_fd >= 0)
		nic_fd_close(prog->prog_fd);
	if (prog->ioctl_fd >= 0)
		nic_fd_close(prog->ioctl_fd);
	if (prog->variables_fd >= 0)
		nic_fd_close(prog->variables_fd);
	if (prog->groups_fd >= 0)
		nic_fd_close(prog->groups_fd);
	if (prog->recents_fd >= 0)
		nic_fd_close(prog->recents_fd);
	free(prog);
}

static int prog_create_xdp_link(const struct xdp_prog *prog, uint32_t mode)
{
	LIBBPF_OPTS(bpf_link_create_opts, opts, .flags = mode);

	return bpf_link_create(prog->prog_fd, (int)prog->ifindex, BPF_XDP, &opts);
}

/*
 * Twice a second, in a thread that the program does not know: nothing may be opened for it, as if_indextoname would,
 * since that had the number which the program expects next.
 */
void xdp_prog_refresh_mac(struct xdp_prog *prog)
{
	struct ifreq req = {.ifr_ifindex = (int)prog->ifindex};

	if (prog->ioctl_fd >= 0 && os_ioctl(prog->ioctl_fd, SIOCGIFNAME, &req) == 0 &&
	    os_ioctl(prog->ioctl_fd, SIOCGIFHWADDR, &req) == 0)
		__atomic_store_n(&prog->shared->mac, mac_bytes_to_u64((const uint8_t *)req.ifr_hwaddr.sa_data),
		                 __ATOMIC_RELEASE);
}

int xdp_prog_attach(struct xdp_prog *prog, bool *generic)
{
	char name[IF_NAMESIZE] = "?";
	int fd, native_error;

	if (prog->link_fd < 0) {
		xdp_prog_refresh_mac(prog);
		prog->generic = false;
		fd = prog_create_xdp_link(prog, XDP_FLAGS_DRV_MODE);
		native_error = fd;
		/* Busy or forbidden is so in either mode; anything else is the driver's refusal. */
		if (fd < 0 && fd != -EBUSY && fd != -EEXIST && fd != -EPERM && fd != -ENODEV) {
			fd = prog_create_xdp_link(prog, XDP_FLAGS_SKB_MODE);
			prog->generic = true;
		}
		if (fd < 0)
			return fd == -EEXIST ? -EBUSY : fd;
		prog->link_fd = nic_fd_move_high(fd);
		if (prog->generic)
			vma_log_once(
			        VMA_LOG_WARN,
			        "%s: the driver refuses XDP in native mode (error %d), using the slower generic mode",
			        if_indextoname(prog->ifindex, name) != NULL ? name : "?", -native_error);
	}
	if (generic != NULL)
		*generic = prog->generic;
	return 0;
}

void xdp_prog_detach(struct xdp_prog *prog)
{
	if (prog->link_fd < 0)
		return;
	/* Explicitly, because a copy of the fd (a child between fork and exec) would keep the link alive. */
	bpf_link_detach(prog->link_fd);
	nic_fd_close(prog->link_fd);
	prog->link_fd = -1;
}

void xdp_prog_close_in_child(struct xdp_prog *prog)
{
	/* Above all the link: a copy of it would keep the program attached when the parent is killed. */
	if (prog->link_fd >= 0)
		os_close(prog->link_fd);
	if (prog->ioctl_fd >= 0)
		os_close(prog->ioctl_fd);
	os_close(prog->prog_fd);
	os_close(prog->flows_fd);
	os_close(prog->sockets_fd);
	os_close(prog->segments_fd);
	os_close(prog->claims_fd);
	os_close(prog->variables_fd);
	os_close(prog->groups_fd);
	os_close(prog->recents_fd);
}

bool xdp_prog_attached(const struct xdp_prog *prog)
{
	return prog->link_fd >= 0;
}

int xdp_prog_set_socket(struct xdp_prog *prog, uint32_t slot, uint32_t queue, int xsk_fd)
{
	const uint32_t index = slot * prog->queues + queue;

	if (slot >= XDP_SLOTS_MAX || queue >= prog->queues)
		return -EINVAL;
	return bpf_map_update_elem(prog->sockets_fd, &index, &xsk_fd, BPF_ANY);
}

void xdp_prog_clear_socket(struct xdp_prog *prog, uint32_t slot, uint32_t queue)
{
	const uint32_t index = slot * prog->queues + queue;

	if (slot < XDP_SLOTS_MAX && queue < prog->queues)
		bpf_map_delete_elem(prog->sockets_fd, &index); /* -ENOENT: was not there, or its socket is closed */
}

static struct xdp_flow_key vma_flow_key_to_xdp_flow_key(const struct vma_flow_key *key)
{
	struct xdp_flow_key out = {
	        .peer_port = key->peer_port_be,
	        .local_port = key->local_port_be,
	        .vlan = key->vlan,
	        .proto = key->proto,
	};

	memcpy(&out.local, key->local, sizeof(out.local));
	if (key->peer_port_be != 0)
		memcpy(&out.peer, key->peer, sizeof(out.peer));
	return out;
}

/* The program reads the counters while this thread writes them. Off by one for a moment is harmless: a new flow's first
 * packets go to the kernel as they did before, or one lookup finds nothing. */
static void prog_adjust_flow_count(struct xdp_flow_counts *counts, const struct vma_flow_key *key, int change)
{
	uint32_t *count = key->peer_port_be != 0 ? counts->exact : counts->wildcard;

	if (key->proto == VMA_FLOW_TCP_PORTS)
		count = &counts->blocks;
	else
		count += key->proto == IPPROTO_TCP;
	__atomic_store_n(count, *count + (uint32_t)change, __ATOMIC_RELEASE);
}

struct xdp_claim_bucket *xdp_prog_claims(const struct xdp_prog *prog, int *fd)
{
	*fd = prog->claims != NULL ? prog->claims_fd : -1;
	return prog->claims;
}

void xdp_prog_enable_claims_if_mapped(struct xdp_prog *prog)
{
	__atomic_store_n(&prog->shared->counts.claims, prog->claims != NULL, __ATOMIC_RELEASE);
}

void xdp_prog_set_port_bitmap(struct xdp_prog *prog, _Atomic uint64_t *named)
{
	prog->named = named;
}

/*
 * Before an entry comes, and after one has gone. Sequentially consistent, as is the look of a client that has bound a
 * kernel socket to the port: who had an entry made first has its bit seen, and who comes later finds the port taken.
 */
static void prog_mark_port_in_use(struct xdp_prog *prog, const struct vma_flow_key *key, int change)
{
	const uint16_t port = ntohs(key->local_port_be);
	const uint64_t bit = UINT64_C(1) << port % 64;

	if (key->proto != IPPROTO_TCP || prog->named == NULL)
		return;
	prog->entries[port] += (uint32_t)change;
	if (prog->entries[port] == 0)
		atomic_fetch_and(&prog->named[port / 64], ~bit);
	else if (change > 0)
		atomic_fetch_or(&prog->named[port / 64], bit);
}

/* Takes the place at the front for a UDP 3-tuple if it is free. */
static void fast_path_flow_set(struct xdp_prog *prog, const struct xdp_flow_key *key, uint32_t slot)
{
#ifdef __x86_64__
	volatile struct xdp_single_flow_fast_path *front = &prog->shared->front;

	if (key->proto != IPPROTO_UDP || key->peer_port != 0 || front->version != 0)
		return;
	front->local = key->local;
	front->local_port = key->local_port;
	front->vlan = key->vlan;
	front->slot = slot;
	__atomic_store_n(&front->version, ++prog->front_version, __ATOMIC_RELEASE);
#else
	(void)prog, (void)key, (void)slot;
#endif
}

/* A packet that the program is just steering may still go there: it came before the end of the flow. */
static void fast_path_flow_clear(struct xdp_prog *prog, const struct xdp_flow_key *key)
{
	volatile struct xdp_single_flow_fast_path *front = &prog->shared->front;

	if (key->proto == IPPROTO_UDP && key->peer_port == 0 && front->local == key->local &&
	    front->local_port == key->local_port && front->vlan == key->vlan)
		__atomic_store_n(&front->version, 0, __ATOMIC_SEQ_CST);
}

/* Mode: BPF_NOEXIST, or BPF_EXIST in place of what is there, which no packet ever misses. */
static int prog_put_flow(struct xdp_prog *prog, const struct vma_flow_key *key, const struct xdp_flow_value *value,
                         uint64_t mode)
{
	const struct xdp_flow_key map_key = vma_flow_key_to_xdp_flow_key(key);
	int rc;

	if (mode == BPF_NOEXIST)
		prog_mark_port_in_use(prog, key, 1);
	rc = bpf_map_update_elem(prog->flows_fd, &map_key, value, mode);
	if (mode == BPF_NOEXIST && rc == 0)
		prog_adjust_flow_count(&prog->shared->counts, key, 1);
	else if (mode == BPF_NOEXIST)
		prog_mark_port_in_use(prog, key, -1);
	if (rc == 0 && value->flags == 0)
		fast_path_flow_set(prog, &map_key, value->slot);
	return rc == -E2BIG ? -ENOSPC : rc;
}

static int prog_put_flow_of_slot(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t flags,
                                 uint64_t mode)
{
	const struct xdp_flow_value value = {
	        .slot = slot,
	        .flags = (flags & VMA_FLOW_LISTENER ? XDP_FLOW_LISTENER : 0) |
	                 (flags & XDP_PROG_YIELDS ? XDP_FLOW_YIELDS : 0),
	};

	return slot >= XDP_SLOTS_MAX ? -EINVAL : prog_put_flow(prog, key, &value, mode);
}

int xdp_prog_flow_add(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t flags)
{
	return prog_put_flow_of_slot(prog, key, slot, flags, BPF_NOEXIST);
}

int xdp_prog_flow_replace(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t flags)
{
	return prog_put_flow_of_slot(prog, key, slot, flags, BPF_EXIST);
}

/*
 * First the map, as what is at the front is in the map, too. The front is emptied and filled anew, so that a reader of
 * the old entry finds the version changed; while it is empty, the map is asked.
 */
int xdp_prog_flow_move(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot)
{
	const struct xdp_flow_key map_key = vma_flow_key_to_xdp_flow_key(key);
	struct xdp_flow_value value;
	int rc;

	if (slot >= XDP_SLOTS_MAX)
		return -EINVAL;
	rc = bpf_map_lookup_elem(prog->flows_fd, &map_key, &value);
	if (rc < 0)
		return rc;
	value.slot = slot;
	rc = prog_put_flow(prog, key, &value, BPF_EXIST);
	if (rc < 0)
		return rc;
	fast_path_flow_clear(prog, &map_key);
	fast_path_flow_set(prog, &map_key, slot);
	return 0;
}

int xdp_prog_minisock_set(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t number, bool in_place)
{
	const struct xdp_flow_value value = {.slot = number, .flags = XDP_FLOW_MINISOCK};

	return prog_put_flow(prog, key, &value, in_place ? BPF_EXIST : BPF_NOEXIST);
}

int xdp_prog_flow_set_listener_group(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot,
                                     uint32_t group)
{
	const struct xdp_flow_value value = {
	        .slot = slot, .flags = XDP_FLOW_LISTENER | (group != 0 ? XDP_FLOW_GROUP : 0), .group = group};

	return slot >= XDP_SLOTS_MAX || group >= XDP_GROUPS ? -EINVAL : prog_put_flow(prog, key, &value, BPF_EXIST);
}

/* In place of one slot's, or of another spread; the front knows one slot only. */
int xdp_prog_flow_spread(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t group)
{
	const struct xdp_flow_key map_key = vma_flow_key_to_xdp_flow_key(key);
	const struct xdp_flow_value value = {.slot = slot, .flags = XDP_FLOW_SPREAD, .group = group};
	int rc;

	if (slot >= XDP_SLOTS_MAX || group == 0 || group >= XDP_GROUPS || prog->groups == NULL)
		return -EINVAL;
	rc = prog_put_flow(prog, key, &value, BPF_EXIST);
	if (rc == 0)
		fast_path_flow_clear(prog, &map_key);
	return rc;
}

struct xdp_group *xdp_prog_groups(const struct xdp_prog *prog)
{
	return prog->groups;
}

void xdp_prog_count_slot_rental(struct xdp_prog *prog, uint32_t slot)
{
	__atomic_store_n(&prog->shared->rentals[slot], prog->shared->rentals[slot] + 1, __ATOMIC_RELEASE);
}

void xdp_prog_add_recent_connection(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot)
{
	const struct xdp_flow_key map_key = vma_flow_key_to_xdp_flow_key(key);
	const uint64_t hash = xdp_flow_key_hash(&map_key);

	struct xdp_recent_connections *line = &prog->recents[xdp_recent_line_of_hash(hash)];
	const uint32_t now = xdp_recent_time_units(os_now_ns());

	__atomic_store_n(&line->at[xdp_recent_find_or_oldest(line, hash, now)],
	                 xdp_recent_connection_pack(hash, prog->shared->rentals[slot], slot, now), __ATOMIC_RELEASE);
}

int xdp_prog_flow_begin_grace(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t group)
{
	const struct xdp_flow_value value = {
	        .slot = slot,
	        .flags = XDP_FLOW_LISTENER | XDP_FLOW_IN_GRACE | (group != 0 ? XDP_FLOW_GROUP : 0),
	        .group = group,
	};

	return prog_put_flow(prog, key, &value, BPF_EXIST);
}

int xdp_prog_flow_del(struct xdp_prog *prog, const struct vma_flow_key *key)
{
	const struct xdp_flow_key map_key = vma_flow_key_to_xdp_flow_key(key);
	int rc = bpf_map_delete_elem(prog->flows_fd, &map_key);

	if (rc == 0) {
		prog_adjust_flow_count(&prog->shared->counts, key, -1);
		prog_mark_port_in_use(prog, key, -1);
		fast_path_flow_clear(prog, &map_key);
	}
	return rc;
}

/* ---- what met a minisock ---- */

int xdp_prog_open_minisock_segment_ring(struct xdp_prog *prog, int (*see)(void *arg, void *segment, size_t bytes),
                                        void *arg)
{
	prog->segments = ring_buffer__new(prog->segments_fd, see, arg, NULL);
	return prog->segments != NULL ? 0 : -errno;
}

int xdp_prog_minisock_segments_fd(const struct xdp_prog *prog)
{
	return prog->segments != NULL ? ring_buffer__epoll_fd(prog->segments) : -1;
}

int xdp_prog_consume_minisock_segments(struct xdp_prog *prog)
{
	return prog->segments != NULL ? ring_buffer__consume(prog->segments) : 0;
}

/* ---- what lies in the map ---- */

static void xdp_flow_key_to_vma_flow_key(const struct xdp_flow_key *from, struct vma_flow_key *key)
{
	*key = (struct vma_flow_key){.family = AF_INET,
	                             .proto = from->proto,
	                             .vlan = from->vlan,
	                             .local_port_be = from->local_port,
	                             .peer_port_be = from->peer_port};
	memcpy(key->local, &from->local, sizeof(from->local));
	memcpy(key->peer, &from->peer, sizeof(from->peer));
}

/* What the vmad before, killed between two steps, may have left wrong: stores of whole words, while packets come. */
static void prog_set_flow_counts(struct xdp_prog *prog, const struct xdp_flow_counts *found)
{
	struct xdp_flow_counts *counts = &prog->shared->counts;

	for (unsigned tcp = 0; tcp < 2; tcp++) {
		__atomic_store_n(&counts->exact[tcp], found->exact[tcp], __ATOMIC_RELEASE);
		__atomic_store_n(&counts->wildcard[tcp], found->wildcard[tcp], __ATOMIC_RELEASE);
	}
	__atomic_store_n(&counts->blocks, found->blocks, __ATOMIC_RELEASE);
	for (uint32_t port = 0; port < 65536 && prog->named != NULL; port++)
		if (prog->entries[port] == 0)
			atomic_fetch_and(&prog->named[port / 64], ~(UINT64_C(1) << port % 64));
}

/* Nobody else changes which keys there are, so the walk ends; the bound is for a kernel that says otherwise. */
int xdp_prog_for_each_flow(struct xdp_prog *prog, int (*see)(void *arg, const struct xdp_flow_map_entry *entry),
                           void *arg)
{
	struct xdp_flow_counts counts = {0};
	struct xdp_flow_key at, next;
	int rc = 0;

	for (uint32_t n = 0; rc == 0 && n <= XDP_PROG_ENTRIES; n++) {
		struct xdp_flow_value value;
		struct xdp_flow_map_entry entry = {0};

		if (bpf_map_get_next_key(prog->flows_fd, n == 0 ? NULL : &at, &next) < 0)
			break;
		at = next;
		if (bpf_map_lookup_elem(prog->flows_fd, &at, &value) < 0)
			continue;
		xdp_flow_key_to_vma_flow_key(&at, &entry.key);
		entry.slot = value.slot;
		entry.is_listener = (value.flags & XDP_FLOW_LISTENER) != 0;
		entry.is_minisock = (value.flags & XDP_FLOW_MINISOCK) != 0;
		entry.in_grace = (value.flags & XDP_FLOW_IN_GRACE) != 0;
		entry.group = value.flags & XDP_FLOW_GROUP ? value.group : 0;
		entry.spread = value.flags & XDP_FLOW_SPREAD ? value.group : 0;
		prog_adjust_flow_count(&counts, &entry.key, 1);
		prog_mark_port_in_use(prog, &entry.key, 1);
		rc = see(arg, &entry);
	}
	if (rc == 0)
		prog_set_flow_counts(prog, &counts);
	return rc;
}
