/*
 * ring_threads - whether threads with rings of their own hinder each other: each thread has both ends of a link, sends
 * bursts into one end and takes them out of the other. The threads share the process's buffer memory and nothing else.
 *
 *   ring_threads --threads N                  each thread's link is a wire in memory
 *   ring_threads --threads N --link A,B ...   one for each thread: two interfaces of this namespace, joined; the
 *                                             thread's rings are on xdp. Needs CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF.
 *
 * Thread I runs on core I. Output as measure.h says: pps, packets of each thread per second of its processor time,
 * added up. So other programs of a busy machine take no share of the figure, and what the threads cost each other does.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vma/conf.h>
#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/ring.h>

#include "measure.h"

enum { THREADS_MAX = 16, BURST = 16, PAYLOAD = 22 };

static struct link {
	pthread_t thread;
	unsigned index;
	const char *near, *far; /* NULL: a wire */
	struct vma_nic *nic[2];
	struct vma_ring *ring[2];
	struct vma_flow flow;
	struct vma_pkt_udp headers;
	uint64_t delivered, warm; /* the thread's own; warm: at the time when counting began */
	double sec;               /* of its processor time, since then */
} __attribute__((aligned(128))) links[THREADS_MAX];

static unsigned threads = 1, links_n, msec = 500;
static struct vma_conf conf;
static struct vma_bufarena *arena;
static struct vma_bufpool *spill;
static pthread_barrier_t begin;

static void die_if_ring_call_failed(int rc, const char *what)
{
	errno = -rc;
	if (rc < 0)
		bench_die(what);
}

static bool ring_threads_count_packet(struct vma_flow *member, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct link *self = (struct link *)((char *)member - offsetof(struct link, flow));

	(void)info;
	self->delivered += packet->payload_len == PAYLOAD;
	vma_buf_put_chain(arena, packet);
	return true;
}

static void interface_mac(const char *ifname, uint8_t mac[6])
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/net/%.16s/address", ifname);
	file = fopen(path, "re");
	if (file == NULL || fscanf(file, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx", &mac[0], &mac[1], &mac[2], &mac[3],
	                           &mac[4], &mac[5]) != 6)
		bench_die(path);
	fclose(file);
}

static void link_open_nics(struct link *self)
{
	struct vma_wire_pair_attr wire = {.arena = {arena, arena}};
	const char *ifname[2] = {self->near, self->far};

	if (self->near == NULL) {
		die_if_ring_call_failed(vma_wire_create_pair(&wire, self->nic), "wire");
		return;
	}
	for (int end = 0; end < 2; end++) {
		struct vma_nic_attr attr = {.owner = VMA_NIC_OWNER_SELF, .arena = arena};
		char spec[32];

		vma_ring_conf_to_nic_attr(&conf, &attr);
		attr.owner = VMA_NIC_OWNER_SELF;
		snprintf(spec, sizeof(spec), "xdp:%.16s", ifname[end]);
		die_if_ring_call_failed(vma_nic_open(spec, &attr, &self->nic[end]), spec);
	}
}

static void link_open(struct link *self)
{
	const uint8_t net = (uint8_t)self->index;
	struct vma_pkt_udp_attr to = {.src_ip = {10, 9, net, 1},
	                              .dst_ip = {10, 9, net, 2},
	                              .src_port_be = htons(7000),
	                              .dst_port_be = htons(7000)};
	struct vma_ring_attr attr = {0};

	link_open_nics(self);
	if (self->near != NULL) {
		interface_mac(self->near, to.src_mac);
		interface_mac(self->far, to.dst_mac);
	}
	vma_ring_conf_to_ring_attr(&conf, &attr);
	attr.spill_pool = spill;
	attr.rx_wre = attr.tx_wre = 512;
	for (int end = 0; end < 2; end++) {
		attr.nic = self->nic[end];
		die_if_ring_call_failed(vma_ring_create(&attr, &self->ring[end]), "ring");
	}
	self->flow = (struct vma_flow){.sink = ring_threads_count_packet};
	self->flow.key.family = AF_INET;
	self->flow.key.proto = IPPROTO_UDP;
	self->flow.key.local_port_be = to.dst_port_be;
	memcpy(self->flow.key.local, to.dst_ip, sizeof(to.dst_ip));
	die_if_ring_call_failed(vma_ring_attach_flow(self->ring[1], &self->flow), "attach");
	vma_pkt_udp_init(&self->headers, &to);
}

static void link_send_burst(struct link *self)
{
	struct vma_nic_seg segs[BURST];
	unsigned built, sent;

	for (built = 0; built < BURST; built++) {
		struct vma_buf *buf = vma_ring_tx_buf(self->ring[0]);

		if (buf == NULL)
			break;
		segs[built] = (struct vma_nic_seg){.buf = buf, .off = buf->data_off};
		segs[built].len =
		        vma_pkt_udp_write(&self->headers, vma_buf_data(arena, buf), PAYLOAD, VMA_PKT_CSUM_NONE);
	}
	sent = built == 0 ? 0 : vma_ring_send(self->ring[0], segs, built, 0);
	while (sent < built)
		vma_buf_put(arena, segs[sent++].buf);
}

static double thread_cpu_sec(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* A quarter of the time to warm up, then `msec` that count. The clocks are read once in 64 bursts. */
static void *link_run(void *arg)
{
	struct link *self = arg;
	uint64_t now, counted_from, end;
	double first = 0;

	bench_pin((int)self->index);
	link_open(self);
	pthread_barrier_wait(&begin);
	now = bench_now_ns();
	counted_from = now + (uint64_t)msec * 250000;
	end = counted_from + (uint64_t)msec * 1000000;
	for (; now < end; now = bench_now_ns()) {
		for (int i = 0; i < 64; i++) {
			link_send_burst(self);
			vma_ring_progress(self->ring[1]);
			vma_ring_progress(self->ring[0]);
		}
		if (first == 0 && now >= counted_from) {
			first = thread_cpu_sec();
			self->warm = self->delivered;
		}
	}
	self->sec = first == 0 ? 0 : thread_cpu_sec() - first;
	return NULL;
}

static void link_close(struct link *self)
{
	vma_ring_detach_flow(self->ring[1], &self->flow);
	for (int end = 0; end < 2; end++)
		vma_ring_destroy(self->ring[end]);
	for (int end = 0; end < 2; end++)
		vma_nic_close(self->nic[end]);
}

static void add_link_of_option(char *text)
{
	char *comma = strchr(text, ',');

	if (comma == NULL || links_n == THREADS_MAX) {
		fprintf(stderr, "ring_threads: --link %s: two interfaces and a comma between them are wanted\n", text);
		exit(2);
	}
	*comma = '\0';
	links[links_n].near = text;
	links[links_n++].far = comma + 1;
}

static void ring_threads_parse_options(int argc, char **argv)
{
	static const struct option options[] = {{"threads", required_argument, NULL, 't'},
	                                        {"msec", required_argument, NULL, 'm'},
	                                        {"link", required_argument, NULL, 'l'},
	                                        {0}};

	for (int letter; (letter = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (letter == 't')
			threads = bench_parse_number_or_exit("threads", optarg, 1, THREADS_MAX);
		else if (letter == 'm')
			msec = bench_parse_number_or_exit("msec", optarg, 1, 60000);
		else if (letter == 'l')
			add_link_of_option(optarg);
		else
			exit(2);
	}
	if (optind != argc || (links_n != 0 && links_n < threads)) {
		fputs("usage: ring_threads --threads N [--msec N] [--link NEAR,FAR, one for each thread]\n", stderr);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct vma_bufarena_attr memory = {0};
	struct vma_bufpool_attr pool = {.name = "spill"};
	double pps = 0;

	ring_threads_parse_options(argc, argv);
	vma_conf_load_and_init_log(&conf, environ);
	vma_ring_conf_to_memory_attrs(&conf, &memory, &pool);
	memory.capacity = 16384 * threads; /* all of it is touched while the threads warm up */
	die_if_ring_call_failed(vma_bufarena_create(&memory, &arena), "vma_bufarena_create");
	pool.arena = arena;
	die_if_ring_call_failed(vma_bufpool_create(&pool, &spill), "vma_bufpool_create");
	pthread_barrier_init(&begin, NULL, threads);
	for (unsigned i = 0; i < threads; i++) {
		links[i].index = i;
		if (pthread_create(&links[i].thread, NULL, link_run, &links[i]) != 0)
			bench_die("thread");
	}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(links[i].thread, NULL);
	for (unsigned i = 0; i < threads; i++) {
		pps += links[i].sec > 0 ? (double)(links[i].delivered - links[i].warm) / links[i].sec : 0;
		link_close(&links[i]);
	}
	vma_bufarena_destroy(arena);
	bench_print("pps", pps);
	return pps > 0 ? 0 : 1;
}
