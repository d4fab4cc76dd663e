/*
 * fuzz_steer - the XDP program itself, run by the kernel (BPF_PROG_TEST_RUN) over packets and maps of the fuzzer's,
 * beside a model of it (steer_model.h): what becomes of each packet, and what the owner is told of it, must be the
 * same.
 *
 * Everything is drawn from a few addresses and ports, so that flows are met; the kernel has a listener and a connection
 * among them. Which slots have a socket is drawn, too: a packet that went to another slot than the model's shows by
 * that.
 *
 * Needs root: CAP_SYS_ADMIN for a network namespace of its own, CAP_NET_ADMIN, CAP_BPF. Without, exit status 77.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_xdp.h>

#include "steer_model.h"
#include <xdp/steer.skel.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SLOTS = 8, PACKETS = 8, PACKET_MAX = 200, STALE_NS = 300000000 };
#define OUR_MAC "\x02\x00\x00\x00\x00\x02"
#define LISTENED 5001

static struct xdp_steer *skel;
static struct xdp_claim_bucket *claims;
static struct xdp_group *groups;
static struct xdp_recent_connections *recents;
static struct ring_buffer *told;
static int xsk[SLOTS];
static struct steer_model model;
static unsigned model_reports_compared;
static bool reports_are_not_compared; /* what is told is not compared */

#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "broken: %s (errno %d)\n", #condition, errno);                                 \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

/* ---- the fixture, once ---- */

static uint32_t fuzz_local_address(uint8_t which)
{
	return htonl(which % 3 == 2 ? 0xefff0001 : 0x0a090002 + which % 3); /* 10.9.0.2, 10.9.0.3, 239.255.0.1 */
}

static uint32_t fuzz_peer_address(uint8_t which)
{
	return htonl(which & 1 ? 0x0a090004 : 0x0a090001);
}

static uint16_t fuzz_local_port(uint8_t which)
{
	static const uint16_t ports[] = {5000, LISTENED, 5100, 5000 + XDP_CLAIM_BUCKETS};

	return htons(ports[which & 3]);
}

static uint16_t fuzz_peer_port(uint8_t which)
{
	return htons((uint16_t)(4000 + (which & 1)));
}

static enum steer_model_kernel_socket kernels(const struct xdp_flow_key *key)
{
	if (key->local != fuzz_local_address(0) || key->local_port != htons(LISTENED))
		return MODEL_NO_SOCKET;
	return key->peer == fuzz_peer_address(0) && key->peer_port == fuzz_peer_port(0) ? MODEL_CONNECTION
	                                                                                : MODEL_LISTENER;
}

static void skip_fuzz_without_privileges(const char *what)
{
	fprintf(stderr,
	        "# SKIP fuzz_steer cannot run: %s: %s. It needs CAP_SYS_ADMIN (a network namespace of its own), "
	        "CAP_NET_ADMIN and CAP_BPF.\n",
	        what, strerror(errno));
	exit(77);
}

static struct sockaddr_in sockaddr_of(uint32_t address, uint16_t port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = address};
}

static void set_interface_address_and_up(int fd, const char *name, uint32_t address)
{
	struct ifreq request = {0};
	const struct sockaddr_in in = sockaddr_of(address, 0);

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	memcpy(&request.ifr_addr, &in, sizeof(in));
	MUST(ioctl(fd, SIOCSIFADDR, &request) == 0);
	request.ifr_flags = IFF_UP;
	MUST(ioctl(fd, SIOCSIFFLAGS, &request) == 0);
}

/* The kernel's listener, and a connection that it has accepted. */
static void make_kernel_listener_and_connection(void)
{
	struct sockaddr_in server = sockaddr_of(fuzz_local_address(0), htons(LISTENED)),
	                   client = sockaddr_of(fuzz_peer_address(0), fuzz_peer_port(0));
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);

	set_interface_address_and_up(fd, "lo", htonl(INADDR_LOOPBACK));
	set_interface_address_and_up(fd, "lo:1", fuzz_local_address(0));
	set_interface_address_and_up(fd, "lo:2", fuzz_peer_address(0));
	MUST(bind(listener, (struct sockaddr *)&server, sizeof(server)) == 0 && listen(listener, 8) == 0);
	MUST(bind(fd, (struct sockaddr *)&client, sizeof(client)) == 0);
	MUST(connect(fd, (struct sockaddr *)&server, sizeof(server)) == 0);
	MUST(accept(listener, NULL, NULL) >= 0);
}

static int compare_reported_segment_with_model(void *context, void *data, size_t size)
{
	(void)context;
	if (reports_are_not_compared)
		return 0;
	MUST(size >= sizeof(struct xdp_minisock_segment) && model_reports_compared < model.tells);
	MUST(memcmp(data, &model.told[model_reports_compared++ % MODEL_REPORTS_MAX],
	            sizeof(struct xdp_minisock_segment)) == 0);
	return 0;
}

static void *mmap_bpf_map(const struct bpf_map *map, size_t bytes)
{
	void *array = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);

	MUST(array != MAP_FAILED);
	return array;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	if (unshare(CLONE_NEWNET) != 0)
		skip_fuzz_without_privileges("unshare");
	skel = xdp_steer__open();
	MUST(skel != NULL);
	skel->rodata->queues = 1;
	MUST(bpf_map__set_max_entries(skel->maps.sockets, XDP_FLOW_SLOTS) == 0);
	if (xdp_steer__load(skel) != 0)
		skip_fuzz_without_privileges("bpf");
	make_kernel_listener_and_connection();
	for (uint32_t i = 0; i < SLOTS; i++) {
		xsk[i] = socket(AF_XDP, SOCK_RAW, 0);
		if (xsk[i] < 0)
			skip_fuzz_without_privileges("a socket of AF_XDP");
	}
	claims = mmap_bpf_map(skel->maps.claims, XDP_CLAIM_BUCKETS * sizeof(*claims));
	groups = mmap_bpf_map(skel->maps.groups, XDP_GROUPS * sizeof(*groups));
	recents = mmap_bpf_map(skel->maps.recents, XDP_RECENT_LINES * sizeof(*recents));
	told = ring_buffer__new(bpf_map__fd(skel->maps.segments), compare_reported_segment_with_model, NULL, NULL);
	MUST(told != NULL);
	return 0;
}

/* ---- an input ---- */

struct input {
	const uint8_t *at, *end;
};

static uint8_t fuzz_take_u8(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

static uint32_t fuzz_take_be32(struct input *in)
{
	uint32_t value = fuzz_take_u8(in);

	for (int i = 0; i < 3; i++)
		value = value << 8 | fuzz_take_u8(in);
	return value;
}

/* ---- maps and model, filled with the same ---- */

static void clear_all_steer_maps(void)
{
	for (unsigned i = 0; i < model.flows; i++)
		bpf_map_delete_elem(bpf_map__fd(skel->maps.flows), &model.flow[i].key);
	for (unsigned i = 0; i < model.fragments; i++)
		bpf_map_delete_elem(bpf_map__fd(skel->maps.fragments), &model.fragment[i].key);
	for (unsigned i = 0; i < model.claims; i++)
		memset(&claims[xdp_claim_bucket_of((uint32_t)(model.claim[i].name >> 32),
		                                   (uint16_t)(model.claim[i].name >> 16))],
		       0, sizeof(*claims));
	for (unsigned i = 0; i < model.notes; i++)
		memset(&recents[xdp_recent_line_of_hash(xdp_flow_key_hash(&model.noted[i].key))], 0, sizeof(*recents));
	memset(&model, 0, sizeof(model));
	model_reports_compared = 0;
	skel->bss->front.version = 0;
	memset(&skel->bss->counts, 0, sizeof(skel->bss->counts));
}

static void fuzz_add_flow_to_map_and_model(struct input *in)
{
	static uint32_t minisocks;
	enum {
		UDP_EXACT,
		UDP_WILDCARD,
		TCP_EXACT,
		TCP_WILDCARD,
		TCP_BLOCK,
		EXACT_MINISOCK,
		WILDCARD_MINISOCK
	} kind = fuzz_take_u8(in) % 7;
	uint8_t where = fuzz_take_u8(in), slot = fuzz_take_u8(in) % SLOTS, how = fuzz_take_u8(in);
	struct steer_model_flow *flow = &model.flow[model.flows];

	flow->key = (struct xdp_flow_key){.local = fuzz_local_address(where & 3),
	                                  .local_port = fuzz_local_port(where >> 2),
	                                  .vlan = where & 16 ? 5 : 0,
	                                  .proto = kind <= UDP_WILDCARD ? IPPROTO_UDP : IPPROTO_TCP};
	flow->value = (struct xdp_flow_value){.slot = slot};
	if (kind == UDP_EXACT || kind == TCP_EXACT || kind == EXACT_MINISOCK) {
		flow->key.peer = fuzz_peer_address(where >> 5);
		flow->key.peer_port = fuzz_peer_port(where >> 6);
		skel->bss->counts.exact[kind != UDP_EXACT]++;
	} else if (kind == TCP_BLOCK) {
		flow->key.proto = XDP_FLOW_TCP_PORTS;
		flow->key.local_port &= htons((uint16_t) ~(XDP_FLOW_PORTS - 1));
		skel->bss->counts.blocks++;
	} else {
		skel->bss->counts.wildcard[kind != UDP_WILDCARD]++;
	}
	if (kind == EXACT_MINISOCK || kind == WILDCARD_MINISOCK)
		flow->value = (struct xdp_flow_value){.slot = ++minisocks, .flags = XDP_FLOW_MINISOCK};
	if (kind == TCP_EXACT && how & 1)
		flow->value.flags = XDP_FLOW_YIELDS;
	if (kind == TCP_WILDCARD)
		flow->value.flags = (how & 1 ? XDP_FLOW_LISTENER : 0) | (how & 2 ? XDP_FLOW_IN_GRACE : 0) |
		                    (how & 4 ? XDP_FLOW_GROUP : 0);
	if (bpf_map_update_elem(bpf_map__fd(skel->maps.flows), &flow->key, &flow->value, BPF_NOEXIST) != 0)
		return; /* twice the same: a count that is too high does no harm */
	model.flows++;
	if (kind == UDP_WILDCARD && model.front == NULL && how & 8) {
		model.front = flow;
		skel->bss->front.local = flow->key.local;
		skel->bss->front.local_port = flow->key.local_port;
		skel->bss->front.vlan = flow->key.vlan;
		skel->bss->front.slot = slot;
		skel->bss->front.version = 1;
	}
}

static void fuzz_add_claim_to_table_and_model(struct input *in)
{
	uint8_t where = fuzz_take_u8(in), who = fuzz_take_u8(in);
	uint32_t local = fuzz_local_address(where & 3);
	uint16_t port = fuzz_local_port(where >> 2);
	struct xdp_claim_bucket *bucket = &claims[xdp_claim_bucket_of(local, port)];
	uint64_t name = xdp_claim_pack_local_name(local, port, where & 16 ? 5 : 0);
	uint64_t peer = xdp_claim_pack_peer_and_slot(who & 8 ? fuzz_peer_address(who >> 4) : 0,
	                                             who & 8 ? fuzz_peer_port(who >> 5) : 0, who % SLOTS);

	for (int i = 0; i < XDP_CLAIM_WAYS; i++) {
		if (bucket->way[i].name != 0)
			continue;
		bucket->way[i] = (struct xdp_claim){.name = name, .peer_and_slot = peer};
		model.claim[model.claims].name = name;
		model.claim[model.claims++].peer_and_slot = peer;
		skel->bss->counts.claims = 1;
		return;
	}
}

static void fuzz_fill_steer_maps_and_model(struct input *in)
{
	uint8_t how = fuzz_take_u8(in), flows = fuzz_take_u8(in);

	clear_all_steer_maps();
	model.kernels = kernels;
	model.mac = how & 1 ? mac_bytes_to_u64((const uint8_t *)OUR_MAC) : 0;
	skel->bss->mac = model.mac;
	model.populated = fuzz_take_u8(in);
	for (uint32_t i = 0; i < SLOTS; i++) {
		if (model.populated >> i & 1)
			MUST(bpf_map_update_elem(bpf_map__fd(skel->maps.sockets), &i, &xsk[i], BPF_ANY) == 0);
		else
			bpf_map_delete_elem(bpf_map__fd(skel->maps.sockets), &i);
	}
	for (uint8_t i = 0; i < flows % 8; i++)
		fuzz_add_flow_to_map_and_model(in);
	for (uint8_t i = 0; i < (flows >> 3) % MODEL_CLAIMS; i++)
		fuzz_add_claim_to_table_and_model(in);
	model.group = (struct xdp_group){.eligible = fuzz_take_u8(in),
	                                 .default_slot = how & 2 ? XDP_NO_SLOT : fuzz_take_u8(in) % SLOTS};
	for (uint32_t i = 0, first = fuzz_take_u8(in); i < XDP_GROUP_BUCKETS; i++)
		model.group.slot[i] = (uint8_t)((first + i * (how >> 4)) % SLOTS);
	groups[0] = model.group;
	memcpy(model.rentals, skel->bss->rentals, sizeof(model.rentals));
}

/* ---- packets ---- */

static void fuzz_put_be16(uint8_t *at, uint32_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

/* Mostly a packet of the fixture's; each part of it may be any. */
static size_t fuzz_make_packet(struct input *in, uint8_t *p)
{
	static const uint32_t odd[] = {0, 0xffffffff, 0x7f000001, 0xe0000001, 0xf0000001, 0x00000001};
	uint8_t who = fuzz_take_u8(in), where = fuzz_take_u8(in), how = fuzz_take_u8(in), odds = fuzz_take_u8(in),
	        options = fuzz_take_u8(in);
	size_t l3 = where & 16 ? 18 : 14, l4, n;
	uint32_t peer = fuzz_peer_address(who), local = fuzz_local_address(where & 3), special;
	bool is_tcp = who & 4;

	memset(p, 0, PACKET_MAX);
	memcpy(p, how & 1 ? "\x02\x00\x00\x00\x00\x09" : how & 2 ? "\x01\x00\x5e\x00\x00\x01" : OUR_MAC, 6);
	if (where & 16) {
		fuzz_put_be16(p + 12, 0x8100);
		fuzz_put_be16(p + 14, how & 4 ? 0xe005 : 5);
	}
	fuzz_put_be16(p + l3 - 2, odds == 1 ? fuzz_take_be32(in) : 0x0800);
	options = how & 8 ? options % 11 : 0;
	l4 = l3 + 20 + options * 4u;
	p[l3] = (uint8_t)(0x45 + options);
	special = htonl(odd[odds % 6]);
	peer = odds & 8 ? special : odds & 16 && odds & 32 ? local : peer;
	p[l3 + 9] = is_tcp ? IPPROTO_TCP : IPPROTO_UDP;
	memcpy(p + l3 + 12, &peer, 4);
	memcpy(p + l3 + 16, &local, 4);
	for (size_t i = l3 + 20; i < l4; i++)
		p[i] = fuzz_take_u8(in);
	memcpy(p + l4, &(uint16_t){fuzz_peer_port(who >> 1)}, 2);
	memcpy(p + l4 + 2, &(uint16_t){fuzz_local_port(where >> 2)}, 2);
	n = l4 + 8;
	if (is_tcp) {
		uint32_t number = fuzz_take_be32(in);

		memcpy(p + l4 + 4, &number, 4);
		p[l4 + 12] = who & 8 ? 0x80 : who & 16 ? fuzz_take_u8(in) : 0x50;
		p[l4 + 13] = fuzz_take_u8(in);
		memcpy(p + l4 + 20, "\1\1\10\12abcdefgh", 12);
		n = l4 + 20 + (p[l4 + 12] >> 4 >= 8 ? 12 : 0) + (who >> 5) * 3u;
	}
	fuzz_put_be16(p + l3 + 2, (uint32_t)(how & 16 ? fuzz_take_u8(in) : n - l3));
	if (how & 32) {
		fuzz_put_be16(p + l3 + 6, (fuzz_take_u8(in) & 3) * 0x2000u | (odds & 64 ? 185 : 0));
		fuzz_put_be16(p + l3 + 4, fuzz_take_u8(in) & 3);
	}
	if (how & 64)
		p[fuzz_take_u8(in) % n] ^= fuzz_take_u8(in);
	if (how & 128)
		n = 14 + fuzz_take_u8(in) % (n - 13);
	return n;
}

static uint64_t steer_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* False: this process has stood still since then, so that what ages, and is taken as new, may have been old. */
static bool compare_with_steer_model(const uint8_t *packet, size_t n, uint64_t begun)
{
	LIBBPF_OPTS(bpf_test_run_opts, run, .data_in = packet, .data_size_in = (uint32_t)n, .repeat = 1);
	int wanted = steer_model_verdict_of_packet(&model, packet, n);

	MUST(bpf_prog_test_run_opts(bpf_program__fd(skel->progs.vma_steer), &run) == 0);
	reports_are_not_compared = steer_now_ns() - begun > STALE_NS;
	ring_buffer__consume(told);
	if (reports_are_not_compared)
		return false;
	if ((int)run.retval != wanted) {
		fprintf(stderr, "the program says %u, the model %d, of %zu bytes:", run.retval, wanted, n);
		for (size_t i = 0; i < n; i++)
			fprintf(stderr, " %02x", packet[i]);
		fprintf(stderr, "\n");
		abort();
	}
	MUST(model_reports_compared == model.tells);
	return true;
}

/* A minisock that is over is so in both. */
static void assert_bpf_flows_equal_model(void)
{
	struct xdp_flow_value value;

	for (unsigned i = 0; i < model.flows; i++) {
		MUST(bpf_map_lookup_elem(bpf_map__fd(skel->maps.flows), &model.flow[i].key, &value) == 0);
		MUST(memcmp(&value, &model.flow[i].value, sizeof(value)) == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};
	uint64_t begun = steer_now_ns();
	uint8_t packet[PACKET_MAX + 64];

	fuzz_fill_steer_maps_and_model(&in);
	for (int i = 0; i < PACKETS && in.at < in.end; i++) {
		size_t n = fuzz_make_packet(&in, packet);

		if (steer_now_ns() - begun > STALE_NS || !compare_with_steer_model(packet, n, begun))
			return 0;
		if (i == PACKETS / 2) {
			uint8_t slot = fuzz_take_u8(&in);

			if (slot & 128) /* rented anew */
				model.rentals[slot % SLOTS] = ++skel->bss->rentals[slot % SLOTS];
		}
	}
	assert_bpf_flows_equal_model();
	return 0;
}
