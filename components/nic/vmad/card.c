/* card - see card.h. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <vma/log.h>

#include "../kernel_sock.h"
#include "../os.h"
#include "../owner/minisocks.h"
#include "../xdp/flow.h"
#include "card.h"

#define FRAMES 8192
#define RX_PACKETS 256
#define TX_PACKETS 16 /* it sends nothing: the least that a queue pair has */
#define BURST 64
#define IDLE_MS 2000
#define RETRY_MS 10000

struct vmad_card {
	struct owner_minisocks minisocks;
	const char *interface;
	struct vma_bufarena *arena;
	struct vma_nic *nic; /* NULL: not open, as the next */
	struct vma_nic_qp *qp;
	uint64_t failed_ms; /* the last open, 0: it did not fail */
	uint64_t idle_ms;   /* since when there is no minisock; 0: there are some */
	int lost_fd;        /* readable: the device is lost */
	_Atomic bool lost;
	int diag_fd; /* -1: not asked yet */
	bool more;   /* something may have come that the queue pair's descriptor does not tell of */
	bool cut;    /* what is polled next belongs to a packet that has begun */
	unsigned n;  /* taken, and not handled */
	struct vma_buf *bufs[BURST];
};

static struct vmad_card *card_of_minisocks(struct owner_minisocks *minisocks)
{
	return (struct vmad_card *)((char *)minisocks - offsetof(struct vmad_card, minisocks));
}

/* ---- minisocks ---- */

/* Of a minisock that was there the rule is in the card. */
static int card_minisock_add_flow_rule(struct owner_minisocks *minisocks, const struct owner_minisock *minisock,
                                       bool in_place)
{
	const struct vma_flow_rule rule = {.key = minisock->key, .shadow_fd = -1};

	return in_place ? 0 : vma_nic_flow_add(card_of_minisocks(minisocks)->qp, &rule);
}

static void card_minisock_del_flow_rule(struct owner_minisocks *minisocks, const struct vma_flow_key *key)
{
	const int rc = vma_nic_flow_del(card_of_minisocks(minisocks)->qp, key);

	if (rc < 0)
		vma_log_debug("%s: a minisock's rule had ended: error %d", minisocks->name, -rc);
}

static const struct owner_minisocks_ops card_minisocks_ops = {.put = card_minisock_add_flow_rule,
                                                              .del = card_minisock_del_flow_rule};

int vmad_card_minisock_create(struct vmad_card *card, const struct vma_flow_minisock *what)
{
	const int state = owner_minisock_state_from_message(what->state);

	if (state < 0 || what->key.peer_port_be == 0)
		return -EINVAL;
	return owner_minisock_create(&card->minisocks, what, (enum owner_minisock_state)state,
	                             owner_minisock_end_for_key(&card->minisocks, &what->key), os_now_ns());
}

void vmad_card_end_minisock(struct vmad_card *card, const struct vma_flow_key *key)
{
	struct owner_minisock *minisock = card != NULL ? owner_minisock_find(&card->minisocks, key) : NULL;

	if (minisock != NULL)
		owner_minisock_end(&card->minisocks, minisock);
}

uint32_t vmad_card_minisock_count(const struct vmad_card *card)
{
	return card != NULL ? card->minisocks.count : 0;
}

void vmad_card_add_minisock_counts(const struct vmad_card *card, struct vma_vmad_interface *out)
{
	if (card == NULL)
		return;
	out->minisocks_deleted += owner_minisocks_count_in_state(&card->minisocks, MINISOCK_DELETED);
	out->minisocks_reset += owner_minisocks_count_in_state(&card->minisocks, MINISOCK_RESET);
	out->minisocks_fin_wait += owner_minisocks_count_in_state(&card->minisocks, MINISOCK_FIN_WAIT);
	out->minisocks_time_wait += owner_minisocks_count_in_state(&card->minisocks, MINISOCK_TIME_WAIT);
}

/* ---- the device ---- */

/* In a thread of the nic's. */
static void card_mark_lost_and_wake(struct vma_nic_qp *qp, enum vma_nic_event event, const struct vma_flow_key *key,
                                    void *arg)
{
	struct vmad_card *card = arg;
	const uint64_t one = 1;

	(void)qp, (void)event, (void)key;
	atomic_store(&card->lost, true);
	if (write(card->lost_fd, &one, sizeof(one)) < 0)
		vma_log_debug("vmad: eventfd: error %d", errno); /* full: it wakes anyway */
}

static void card_put_received_buffers(struct vmad_card *card)
{
	vma_buf_put_burst(card->arena, card->bufs, card->n);
	card->n = 0;
}

/* No minisock has a rule. */
static void card_close(struct vmad_card *card)
{
	if (card->n > 0)
		card_put_received_buffers(card);
	vma_nic_qp_destroy(card->qp);
	vma_nic_close(card->nic);
	if (card->arena != NULL) {
		vma_bufpool_flush_thread(card->arena);
		vma_bufarena_destroy(card->arena);
	}
	card->qp = NULL;
	card->nic = NULL;
	card->arena = NULL;
	card->more = card->cut = false;
}

static void card_post_buffers(struct vmad_card *card, unsigned n)
{
	struct vma_buf *bufs[BURST];

	while (n > 0) {
		const unsigned wanted = n < BURST ? n : BURST;
		const unsigned got = vma_bufpool_get(atomic_load(&card->qp->rx_pool), bufs, wanted);
		const unsigned posted = vma_nic_post_rx(card->qp, bufs, got);

		if (posted < got)
			vma_buf_put_burst(card->arena, bufs + posted, got - posted);
		if (posted < wanted)
			return;
		n -= posted;
	}
}

static int card_open_queue_pair(struct vmad_card *card)
{
	const struct vma_bufarena_attr arena = {.capacity = FRAMES};
	const struct vma_nic_qp_attr attr = {.rx_wre = RX_PACKETS,
	                                     .tx_wre = TX_PACKETS,
	                                     .name = "vmad",
	                                     .event = card_mark_lost_and_wake,
	                                     .event_arg = card};
	char spec[sizeof("verbs:") + IF_NAMESIZE];
	struct vma_nic_attr nic = {.owner = VMA_NIC_OWNER_SELF, .caches = VMA_NIC_CACHES_NONE, .unwatched = true};
	int rc = vma_bufarena_create(&arena, &card->arena);

	snprintf(spec, sizeof(spec), "verbs:%.*s", IF_NAMESIZE - 1, card->interface);
	nic.arena = card->arena;
	if (rc == 0)
		rc = vma_nic_open(spec, &nic, &card->nic);
	if (rc == 0)
		rc = vma_nic_qp_create(card->nic, &attr, &card->qp);
	return rc;
}

int vmad_card_open(struct vmad_card *card)
{
	const uint64_t now_ms = os_now_ms();
	uint64_t count;
	int rc;

	if (card->qp != NULL)
		return atomic_load(&card->lost) ? -ENODEV : 0;
	if (card->failed_ms != 0 && now_ms - card->failed_ms < RETRY_MS)
		return -EAGAIN;
	while (read(card->lost_fd, &count, sizeof(count)) > 0)
		;
	atomic_store(&card->lost, false);
	rc = card_open_queue_pair(card);
	card->failed_ms = rc < 0 ? now_ms : 0;
	if (rc < 0) {
		vma_log_once(VMA_LOG_WARN,
		             "vmad: %s: no queue pair of its card: connections end with their processes: %s",
		             card->interface, strerrordesc_np(-rc));
		card_close(card);
		return rc;
	}
	card_post_buffers(card, card->qp->rx_depth);
	card->idle_ms = now_ms;
	card->more = vma_nic_arm(card->qp) > 0;
	return 0;
}

struct vmad_card *vmad_card_create(unsigned ifindex, const char *interface)
{
	struct vmad_card *card = calloc(1, sizeof(*card));

	if (card == NULL)
		return NULL;
	card->interface = interface;
	card->diag_fd = -1;
	card->lost_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (card->lost_fd < 0) {
		free(card);
		return NULL;
	}
	owner_minisocks_init(&card->minisocks, &card_minisocks_ops, ifindex, interface);
	return card;
}

void vmad_card_destroy(struct vmad_card *card)
{
	if (card == NULL)
		return;
	owner_minisocks_end_all(&card->minisocks);
	owner_minisocks_fini(&card->minisocks);
	card_close(card);
	if (card->diag_fd >= 0)
		nic_fd_close(card->diag_fd);
	close(card->lost_fd);
	free(card);
}

/* ---- what comes ---- */

unsigned vmad_card_fds(const struct vmad_card *card, int fds[VMAD_CARD_FDS])
{
	if (card == NULL || card->qp == NULL)
		return 0;
	fds[0] = vma_nic_fd(card->qp);
	fds[1] = card->lost_fd;
	return 2;
}

bool vmad_card_receive(struct vmad_card *card)
{
	if (card == NULL || card->qp == NULL || atomic_load(&card->lost))
		return false;
	if (card->n == 0)
		card->n = vma_nic_poll_rx(card->qp, card->bufs, BURST);
	return card->n > 0 || card->more;
}

struct kernel_question {
	bool listens, has;
};

static void note_kernel_sock_listens_or_exists(const struct kernel_sock *socket, void *arg)
{
	struct kernel_question *question = arg;

	if (socket->state == TCP_LISTEN)
		question->listens = true;
	else
		question->has = true;
}

/* A SYN begins a connection of the kernel's, or is the answer to one of the kernel's. */
static bool syn_is_of_kernel(struct vmad_card *card, const struct vma_flow_key *key, uint8_t tcp_flags)
{
	struct kernel_question question = {.listens = false};
	const int rc = kernel_sock_visit_sockets_of_connection(&card->diag_fd, key, card->minisocks.ifindex,
	                                                       note_kernel_sock_listens_or_exists, &question);

	return rc == 0 && (question.has || (question.listens && !(tcp_flags & TH_ACK)));
}

static struct vma_flow_key segment_flow_key(const struct xdp_minisock_segment *segment)
{
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = IPPROTO_TCP,
	                           .vlan = segment->key.vlan,
	                           .local_port_be = segment->key.local_port,
	                           .peer_port_be = segment->key.peer_port};

	memcpy(key.local, &segment->key.local, 4);
	memcpy(key.peer, &segment->key.peer, 4);
	return key;
}

/* Without a minisock: it has ended meanwhile, and whoever has the connection has had a copy, or its peer says it again.
 * */
static void card_handle_packet(struct vmad_card *card, const struct vma_buf *packet, uint64_t now)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(card->arena, packet);
	struct xdp_minisock_segment segment;
	struct owner_minisock *minisock;
	struct vma_flow_key key;

	if (!vmad_card_parse_segment(frame, packet->len, !(packet->flags & VMA_BUF_RX_MORE), &segment))
		return;
	key = segment_flow_key(&segment);
	minisock = owner_minisock_find(&card->minisocks, &key);
	if (minisock == NULL)
		return;
	if (segment.tcp_flags & TH_SYN && syn_is_of_kernel(card, &key, segment.tcp_flags)) {
		owner_minisock_end(&card->minisocks, minisock);
		vma_nic_pass_packet_to_kernel(card->qp, packet);
		return;
	}
	/* Somebody here has begun a connection, perhaps a process that has not found vmad yet, and has a copy; or a
	 * probe has met a listener, and the kernel resets what comes again. */
	if (segment.tcp_flags & TH_SYN && segment.tcp_flags & TH_ACK) {
		owner_minisock_end(&card->minisocks, minisock);
		return;
	}
	segment.number = minisock->number;
	owner_minisocks_handle_segment(&card->minisocks, &segment, now);
}

void vmad_card_handle_received_packets(struct vmad_card *card)
{
	uint64_t now;
	unsigned n;

	if (card == NULL || card->qp == NULL)
		return;
	now = os_now_ns();
	n = card->n;
	card->minisocks.reads = BURST + 1;
	for (unsigned i = 0; i < n; i++) {
		if (!card->cut)
			card_handle_packet(card, card->bufs[i], now);
		card->cut = card->bufs[i]->flags & VMA_BUF_RX_MORE;
	}
	if (n > 0) {
		card_put_received_buffers(card);
		card_post_buffers(card, n);
	}
	card->more = !atomic_load(&card->lost) && vma_nic_arm(card->qp) > 0;
}

/* ---- time ---- */

static void card_give_up_if_lost(struct vmad_card *card)
{
	if (card->qp == NULL || !atomic_load(&card->lost))
		return;
	vma_log_warn("vmad: %s: its card is lost: the kernel resets %u connections of ended processes", card->interface,
	             card->minisocks.count);
	owner_minisocks_end_all(&card->minisocks);
	card_close(card);
}

int vmad_card_tick(struct vmad_card *card)
{
	uint64_t now, due;

	if (card == NULL)
		return -1;
	card_give_up_if_lost(card);
	if (card->qp == NULL)
		return -1;
	now = os_now_ns();
	owner_minisocks_expire(&card->minisocks, now);
	if (card->minisocks.count > 0)
		card->idle_ms = 0;
	else if (card->idle_ms == 0)
		card->idle_ms = now / 1000000;
	else if (now / 1000000 - card->idle_ms >= IDLE_MS)
		card_close(card);
	if (card->qp == NULL)
		return -1;
	due = card->minisocks.count > 0 ? owner_minisocks_due_ns(&card->minisocks)
	                                : (card->idle_ms + IDLE_MS) * UINT64_C(1000000);
	return due <= now ? 0 : (int)((due - now) / 1000000 + 1);
}
