/*
 * fake_card_nic - a card without a device, linked in place of nic.c: rules that are noted, frames that the test hands
 * in, and an event that it makes up. It is there only if `card_nic.exists`.
 */
#ifndef VMA_FAKE_CARD_NIC_H
#define VMA_FAKE_CARD_NIC_H

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <vma/nic.h>

#define FAKE_RULES 128
#define FAKE_BUFS 512

static struct {
	bool exists;
	unsigned opens, closes; /* of the nic */
	unsigned room;          /* for rules; 0: FAKE_RULES */
	unsigned rules, to_kernel;
	bool is_used[FAKE_RULES];
	struct vma_flow_key rule[FAKE_RULES];
	struct vma_nic nic;
	struct vma_nic_qp qp;
	struct vma_nic_qp_attr attr;
	int fd;
	unsigned posted_n, waiting_n;
	struct vma_buf *posted[FAKE_BUFS], *waiting[FAKE_BUFS];
} card_nic;

static int fake_card_find_rule(const struct vma_flow_key *key)
{
	for (int i = 0; i < FAKE_RULES; i++)
		if (card_nic.is_used[i] && memcmp(&card_nic.rule[i], key, sizeof(*key)) == 0)
			return i;
	return -1;
}

static unsigned fake_card_post_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	(void)qp;
	for (unsigned i = 0; i < n; i++)
		card_nic.posted[card_nic.posted_n++] = bufs[i];
	return n;
}

static unsigned fake_card_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	const unsigned got = n < card_nic.waiting_n ? n : card_nic.waiting_n;

	(void)qp;
	memcpy(bufs, card_nic.waiting, got * sizeof(*bufs));
	card_nic.waiting_n -= got;
	memmove(card_nic.waiting, card_nic.waiting + got, card_nic.waiting_n * sizeof(*bufs));
	return got;
}

static int fake_card_arm(struct vma_nic_qp *qp)
{
	(void)qp;
	return card_nic.waiting_n > 0;
}

static int fake_card_fd(const struct vma_nic_qp *qp)
{
	(void)qp;
	return card_nic.fd;
}

static int fake_card_count_packet_to_kernel(struct vma_nic_qp *qp, const struct vma_buf *packet)
{
	(void)qp, (void)packet;
	card_nic.to_kernel++;
	return 0;
}

static const struct vma_nic_ops fake_card_ops = {.name = "fake",
                                                 .post_rx = fake_card_post_rx,
                                                 .poll_rx = fake_card_poll_rx,
                                                 .arm = fake_card_arm,
                                                 .fd = fake_card_fd,
                                                 .to_kernel = fake_card_count_packet_to_kernel};

int vma_nic_open(const char *spec, const struct vma_nic_attr *attr, struct vma_nic **out)
{
	if (!card_nic.exists)
		return -ENODEV;
	if (strncmp(spec, "verbs:", 6) != 0 || !attr->unwatched)
		return -EINVAL;
	card_nic.opens++;
	card_nic.nic = (struct vma_nic){.ops = &fake_card_ops, .arena = attr->arena};
	*out = &card_nic.nic;
	return 0;
}

void vma_nic_close(struct vma_nic *nic)
{
	if (nic != NULL)
		card_nic.closes++;
}

int vma_nic_qp_create(struct vma_nic *nic, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out)
{
	const struct vma_bufpool_attr pool = {.arena = nic->arena, .name = "fake", .max_bufs = FAKE_BUFS};
	struct vma_bufpool *rx_pool;
	int rc = vma_bufpool_create(&pool, &rx_pool);

	if (rc < 0)
		return rc;
	memset(&card_nic.qp, 0, sizeof(card_nic.qp));
	card_nic.attr = *attr;
	card_nic.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	card_nic.qp.nic = nic;
	card_nic.qp.arena = nic->arena;
	card_nic.qp.rx_depth = attr->rx_wre;
	atomic_store(&card_nic.qp.ops, &fake_card_ops);
	atomic_store(&card_nic.qp.rx_pool, rx_pool);
	*out = &card_nic.qp;
	return 0;
}

void vma_nic_qp_destroy(struct vma_nic_qp *qp)
{
	if (qp == NULL)
		return;
	vma_buf_put_burst(qp->arena, card_nic.posted, card_nic.posted_n);
	vma_buf_put_burst(qp->arena, card_nic.waiting, card_nic.waiting_n);
	card_nic.posted_n = card_nic.waiting_n = 0;
	vma_bufpool_retire(atomic_load(&qp->rx_pool), NULL, NULL);
	close(card_nic.fd);
}

int vma_nic_flow_add(struct vma_nic_qp *qp, const struct vma_flow_rule *rule)
{
	const unsigned room = card_nic.room != 0 ? card_nic.room : FAKE_RULES;

	(void)qp;
	if (fake_card_find_rule(&rule->key) >= 0)
		return -EEXIST;
	for (unsigned i = 0; i < FAKE_RULES && card_nic.rules < room; i++) {
		if (card_nic.is_used[i])
			continue;
		card_nic.is_used[i] = true;
		card_nic.rule[i] = rule->key;
		card_nic.rules++;
		return 0;
	}
	return -ENOSPC;
}

int vma_nic_flow_del(struct vma_nic_qp *qp, const struct vma_flow_key *key)
{
	const int at = fake_card_find_rule(key);

	(void)qp;
	if (at < 0)
		return -ENOENT;
	card_nic.is_used[at] = false;
	card_nic.rules--;
	return 0;
}

#endif
