/*
 * instr_udp - the calls of a UDP socket over a wire in memory, 64-byte frames, for callgrind to count instructions.
 *
 *   instr_udp DATAGRAMS [PHASE single]    single: VMA_THREAD_MODE=0
 *   valgrind --tool=callgrind --toggle-collect=phase_NAME build/components/udp/test/instr_udp 4096
 *
 * Each phase is a function of its own and counts what lies between enter and leave, with ring and wire below it; those
 * of instr_ring (bench/instructions.txt) are to be subtracted: what remains is the sockets' share.
 *
 *   phase_send           send on a connected socket, kicked at once
 *   phase_sendto         sendto a destination that the socket knows
 *   phase_send_later     send in a row: the kick is shared
 *   phase_deliver        progress only: poll, checks, dispatch, and the socket's queue
 *   phase_receive        recv of a datagram that is queued
 *   phase_receive_driven recv that drives the ring itself and finds one (deliver and receive together)
 *   phase_receive_waited recv that finds nothing at first, and in its first look of waiting finds one
 *   phase_receive_empty  recv that finds nothing, nonblocking
 *   phase_recv_burst     recv until nothing is there, of 16 datagrams that wait in the ring
 *   phase_udp_socketxtreme  the same 16 by one poll of SocketXtreme, and given back by one call
 *   phase_udp_socketxtreme_one  a datagram by a poll, and given back
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <vma/nic_wire.h>

#include "../dst.h"
#include "../recv.h"
#include "../xtreme.h"

enum { PAYLOAD = 64 - VMA_PKT_ETH_HLEN - VMA_PKT_IP4_HLEN - VMA_PKT_UDP_HLEN, WARM_UP = 1024, BURST = 16 };

struct message {
	struct msghdr msg;
	struct iovec iov; /* right behind it: the library's own */
};

static struct vma_engine *engine;
static struct vma_ring_ctx ring_ctx[2];
static struct vma_device device;
static struct vma_net_path path;
static struct udp_sock *sender, *receiver;
static struct udp_attachment *attachment;
static struct vma_flow flow;
static uint8_t payload[PAYLOAD];
static struct sockaddr_in to = {.sin_family = AF_INET};
static enum vma_thread_mode thread_mode = VMA_THREAD_SPIN;
static uint64_t sent, received;

static void udp_exit_if_failed(int rc, const char *what)
{
	if (rc < 0) {
		fprintf(stderr, "%s: %s\n", what, strerror(-rc));
		exit(1);
	}
}

/* ---- the phases ---- */

#define PHASE __attribute__((noinline))
PHASE ssize_t phase_send(struct message *message);
PHASE ssize_t phase_sendto(struct message *message);
PHASE ssize_t phase_send_later(struct message *message);
PHASE int phase_deliver(void);
PHASE ssize_t phase_receive(struct message *message);
PHASE ssize_t phase_receive_driven(struct message *message);
PHASE ssize_t phase_receive_waited(struct message *message);
PHASE ssize_t phase_receive_empty(struct message *message);
PHASE unsigned phase_recv_burst(struct message *message);
PHASE unsigned phase_udp_socketxtreme(unsigned n);
PHASE unsigned phase_udp_socketxtreme_one(unsigned n);

static inline ssize_t send_one_message(struct message *message)
{
	struct vma_thread *self = vma_enter();
	ssize_t len = udp_sendmsg(&sender->file, atomic_load(&sender->file.fd), &message->msg, 0);

	vma_leave(self);
	return len;
}

static inline ssize_t receive_one_message(struct message *message)
{
	struct vma_thread *self = vma_enter();
	ssize_t len = udp_recvmsg(&receiver->file, atomic_load(&receiver->file.fd), &message->msg, MSG_DONTWAIT);

	vma_leave(self);
	return len;
}

ssize_t phase_send(struct message *message)
{
	return send_one_message(message);
}

ssize_t phase_sendto(struct message *message)
{
	return send_one_message(message);
}

ssize_t phase_send_later(struct message *message)
{
	return send_one_message(message);
}

int phase_deliver(void)
{
	struct vma_thread *self = vma_enter();
	int n = vma_ring_ctxs_progress(vma_ring_ctx_bit(&ring_ctx[1]));

	vma_leave(self);
	return n;
}

ssize_t phase_receive(struct message *message)
{
	return receive_one_message(message);
}

ssize_t phase_receive_driven(struct message *message)
{
	return receive_one_message(message);
}

/* From where a recv stands that has looked once and found nothing. */
ssize_t phase_receive_waited(struct message *message)
{
	struct vma_thread *self = vma_enter();
	ssize_t len = udp_recv_when_queue_is_empty(receiver, atomic_load(&receiver->file.fd), &message->msg, 0);

	vma_leave(self);
	return len;
}

ssize_t phase_receive_empty(struct message *message)
{
	return receive_one_message(message);
}

unsigned phase_recv_burst(struct message *message)
{
	unsigned n = 0;

	while (n < BURST && receive_one_message(message) == PAYLOAD)
		n++;
	return n;
}

static struct vma_completion_t completions[BURST];
static struct vma_packet_desc_t packets[BURST];

/* The poll, or the call that gives back what it has given. */
static inline __attribute__((always_inline)) unsigned xtreme_poll_or_free_packets(unsigned n)
{
	struct vma_thread *self = vma_enter();

	if (n == 0)
		n = (unsigned)vma_xtreme_poll(vma_ring_ctx_bit(&ring_ctx[1]), completions, BURST);
	else
		vma_xtreme_free_packets(packets, (int)n);
	vma_leave(self);
	return n;
}

unsigned phase_udp_socketxtreme(unsigned n)
{
	return xtreme_poll_or_free_packets(n);
}

unsigned phase_udp_socketxtreme_one(unsigned n)
{
	return xtreme_poll_or_free_packets(n);
}

static struct message message_of(void *data, size_t size, void *name)
{
	struct message message = {.iov = {.iov_base = data, .iov_len = size}};

	message.msg.msg_iovlen = 1;
	message.msg.msg_name = name;
	message.msg.msg_namelen = name != NULL ? sizeof(to) : 0;
	return message;
}

static void run_udp_send_and_receive_rounds(unsigned datagrams, bool quietly)
{
	uint8_t room[2048];
	struct message out = message_of(payload, sizeof(payload), NULL),
	               out_to = message_of(payload, sizeof(payload), &to);
	struct message in = message_of(room, sizeof(room), NULL);

	out.msg.msg_iov = &out.iov;
	out_to.msg.msg_iov = &out_to.iov;
	in.msg.msg_iov = &in.iov;
	for (unsigned i = 0; i < datagrams; i++) {
		vma_thread_self()->tx_last_tsc = 0; /* not in a row */
		sent += (quietly ? send_one_message(&out) : phase_send(&out)) == PAYLOAD;
		if (!quietly)
			phase_deliver();
		received += (quietly ? receive_one_message(&in) : phase_receive(&in)) == PAYLOAD;
		vma_thread_self()->tx_last_tsc = 0;
		sent += (quietly ? send_one_message(&out_to) : phase_sendto(&out_to)) == PAYLOAD;
		received += (quietly ? receive_one_message(&in) : phase_receive_driven(&in)) == PAYLOAD;
		if (!quietly)
			phase_receive_empty(&in);
	}
	for (unsigned i = 0; i < datagrams && !quietly; i++) {
		vma_thread_self()->tx_last_tsc = 0;
		sent += send_one_message(&out) == PAYLOAD;
		received += phase_receive_waited(&in) == PAYLOAD;
	}
	for (unsigned i = 0; i < datagrams && !quietly; i++) {
		vma_thread_self()->tx_last_tsc = vma_tsc(); /* as if the last one had been just now */
		vma_thread_self()->tx_burst = 100;
		sent += phase_send_later(&out) == PAYLOAD;
		if (i % 16 == 15) {
			vma_ring_flush_tx(ring_ctx[0].ring);
			while (receive_one_message(&in) == PAYLOAD)
				received++;
		}
	}
}

static void send_in_a_burst(struct message *out)
{
	for (unsigned i = 0; i < BURST; i++) {
		vma_thread_self()->tx_last_tsc = 0;
		sent += send_one_message(out) == PAYLOAD;
	}
}

static unsigned instr_udp_take_train(struct vma_flow *member, struct vma_buf *const *packets, unsigned n,
                                     const struct vma_rx_info *info)
{
	return udp_xtreme_take_train(member->owner, packets, n, info);
}
static const struct vma_flow_ops train_ops = {.take_train = instr_udp_take_train};

static void run_udp_bursts_by_recv_and_by_xtreme(unsigned datagrams)
{
	uint8_t room[2048];
	struct message out = message_of(payload, sizeof(payload), NULL), in = message_of(room, sizeof(room), NULL);
	unsigned n;

	out.msg.msg_iov = &out.iov;
	in.msg.msg_iov = &in.iov;
	for (unsigned i = 0; i < datagrams; i += BURST) {
		send_in_a_burst(&out);
		received += phase_recv_burst(&in);
	}
	flow.ops = &train_ops; /* as a socket of this mode has it from its start */
	udp_exit_if_failed(udp_xtreme_enable_on_sock(receiver), "SocketXtreme");
	udp_exit_if_failed(udp_xtreme_create_event_source(receiver, attachment), "its source");
	for (unsigned i = 0; i < datagrams; i += BURST) {
		send_in_a_burst(&out);
		n = phase_udp_socketxtreme(0);
		for (unsigned k = 0; k < n; k++)
			packets[k] = completions[k].packet;
		received += phase_udp_socketxtreme(n);
	}
	for (unsigned i = 0; i < datagrams; i++) {
		vma_thread_self()->tx_last_tsc = 0;
		sent += send_one_message(&out) == PAYLOAD;
		n = phase_udp_socketxtreme_one(0);
		packets[0] = completions[0].packet;
		received += phase_udp_socketxtreme_one(n);
	}
}

/* ---- the fixture ---- */

static bool instr_udp_deliver(struct vma_flow *member, struct vma_buf *packet, const struct vma_rx_info *info)
{
	return udp_deliver(member->owner, packet, info);
}

static struct udp_sock *udp_make_socket(void)
{
	static const struct vma_file_ops ops = {.name = "udp", .complete = udp_xtreme_complete_queued_datagrams};
	struct udp_sock *sock = vma_alloc(sizeof(*sock));
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM, 0);

	vma_file_init(&sock->file, VMA_FILE_UDP, &ops);
	udp_dst_init(sock);
	atomic_store(&sock->rcvbuf, 212992);
	atomic_store(&sock->rcvtimeo_ns, UINT64_MAX);
	udp_exit_if_failed(vma_os.bind(fd, (struct sockaddr *)&addr, sizeof(addr)), "bind");
	udp_exit_if_failed(vma_os.getsockname(fd, (struct sockaddr *)&addr, &len), "getsockname");
	sock->local = addr;
	udp_exit_if_failed(vma_fd_install(fd, &sock->file), "install");
	return sock;
}

static struct udp_dst *make_dst(void)
{
	const struct vma_pkt_udp_attr attr = {.src_ip = {10, 0, 0, 1},
	                                      .dst_ip = {10, 0, 0, 2},
	                                      .src_port_be = htons(1000),
	                                      .dst_port_be = htons(2000)};
	struct udp_dst *dst = vma_alloc(sizeof(*dst));
	struct vma_pkt_udp pkt;

	vma_pkt_udp_init(&pkt, &attr);
	*dst = (struct udp_dst){.to = to,
	                        .path = &path,
	                        .ring_ctx = &ring_ctx[0],
	                        .headers_len = (uint8_t)pkt.len,
	                        .ip_off = (uint8_t)pkt.ip_off,
	                        .ip_sum = pkt.ip_sum,
	                        .df = true,
	                        .nic_sums_from = UINT32_MAX,
	                        .max_payload = 1472,
	                        .engine = engine};
	dst->udp_sum = vma_csum_fold((uint64_t)pkt.udp_sum + attr.src_port_be + attr.dst_port_be);
	memcpy(dst->bytes, pkt.bytes, sizeof(dst->bytes));
	return dst;
}

static void open_ring_ctxs(void)
{
	struct vma_wire_pair_attr wire = {0};
	struct vma_ring_attr attr = {
	        .rx_wre = 512, .tx_wre = 512, .thread_mode = thread_mode, .rx_sw_csum = true, .name = "instr"};
	struct vma_nic *nic[2];

	setenv("VMA_STATS_SHMEM_DIR", "", 1);
	setenv("VMA_MEM_ALLOC_TYPE", "0", 1);
	setenv("VMA_RX_BUFS", "8192", 1);
	setenv("VMA_TX_BUFS", "8192", 1);
	engine = vma_engine_get_or_start();
	udp_exit_if_failed(engine != NULL ? 0 : -1, "engine");
	wire.arena[0] = wire.arena[1] = engine->arena;
	udp_exit_if_failed(vma_wire_create_pair(&wire, nic), "wire");
	for (uint32_t i = 0; i < 2; i++) {
		attr.nic = nic[i];
		attr.spill_pool = engine->spill;
		udp_exit_if_failed(vma_ring_create(&attr, &ring_ctx[i].ring), "ring");
		ring_ctx[i].device = &device;
		ring_ctx[i].id = 40 + i;
	}
	atomic_store(&vma_ring_ctxs[41], &ring_ctx[1]);
}

static void instr_udp_open_sockets(void)
{
	struct udp_attachments *all = vma_alloc(sizeof(*all) + sizeof(all->at[0]));

	to.sin_port = htons(2000);
	to.sin_addr.s_addr = htonl(0x0a000002);
	sender = udp_make_socket();
	receiver = udp_make_socket();
	atomic_store(&sender->dst, make_dst());
	atomic_store(&sender->dst_more[udp_dst_cache_slot_of_key(udp_peer_key(to.sin_addr.s_addr, to.sin_port))],
	             make_dst());
	attachment = vma_alloc(sizeof(*attachment));
	attachment->ring_ctx = &ring_ctx[1];
	attachment->sock = receiver;
	udp_exit_if_failed(udp_queue_init(&attachment->queue), "queue");
	all->n = 1;
	all->rings = vma_ring_ctx_bit(&ring_ctx[1]);
	all->at[0] = attachment;
	flow.key = (struct vma_flow_key){.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = to.sin_port};
	memcpy(flow.key.local, &to.sin_addr, 4);
	flow.sink = instr_udp_deliver;
	flow.owner = attachment;
	udp_exit_if_failed(vma_ring_attach_flow(ring_ctx[1].ring, &flow), "attach");
	atomic_store(&receiver->attachments, all);
}

int main(int argc, char **argv)
{
	unsigned datagrams = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) / 16 * 16 : 4096;

	if (argc > 3)
		thread_mode = VMA_THREAD_SINGLE;

	open_ring_ctxs();
	instr_udp_open_sockets();
	/*
	 * From now on next to no time passes for the library: how much does is chance. So sends in a row are near each
	 * other, and the OS is asked after so many looks, but never because of the time.
	 */
	atomic_store(&vma_tsc_per_1024_usec, UINT64_C(1) << 44);
	run_udp_send_and_receive_rounds(WARM_UP, true);
	sent = received = 0;
	run_udp_send_and_receive_rounds(datagrams, false);
	run_udp_bursts_by_recv_and_by_xtreme(datagrams);
	if (datagrams == 0 || sent != 7 * (uint64_t)datagrams || received != sent) {
		fprintf(stderr, "%lu of %u were sent, %lu received\n", (unsigned long)sent, 7 * datagrams,
		        (unsigned long)received);
		return 1;
	}
	printf("received %lu\n", (unsigned long)received);
	return 0;
}
