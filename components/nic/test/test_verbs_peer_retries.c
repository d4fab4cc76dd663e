/*
 * What a nic tells vmad of its connections (verbs/peers.c), with a vmad that the test plays: how often one is asked
 * that does not read, or lets nobody in.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include <vma/test.h>

#include "../client/watch.h"
#include "../verbs/verbs.h"

/* ---- in place of client/watch.c ---- */

static struct vmad_client *const vmad = (struct vmad_client *)&vmad;
static int begin_result;
static bool vmad_has_room;
static unsigned begins, adds, forgets;

int vmad_watch_create_right_fd(unsigned ifindex, const char *ifname)
{
	(void)ifindex, (void)ifname;
	return -1;
}

int vmad_watch_connect(unsigned ifindex, const char *ifname, int right_fd, struct vmad_connecting *connecting,
                       struct vmad_client **out)
{
	(void)ifindex, (void)ifname, (void)right_fd, (void)connecting;
	begins++;
	*out = begin_result == 0 ? vmad : NULL;
	return begin_result;
}

void vmad_connecting_remove(struct vmad_connecting *connecting, struct vmad_client *client)
{
	(void)connecting, (void)client;
}

void vmad_connecting_close_in_child(const struct vmad_connecting *connecting)
{
	(void)connecting;
}

void vmad_watch_disconnect(struct vmad_client *client)
{
	assert_ptr_equal(client, vmad);
}

int vmad_watch_fd(const struct vmad_client *client)
{
	assert_ptr_equal(client, vmad);
	return -1; /* never readable */
}

bool vmad_watch_add(struct vmad_client *client, const struct vma_flow_key *key)
{
	(void)client, (void)key;
	adds += vmad_has_room;
	return vmad_has_room;
}

bool vmad_watch_del(struct vmad_client *client, const struct vma_flow_key *key)
{
	(void)client, (void)key;
	return vmad_has_room;
}

int vmad_export_minisocks_of_verbs_card(struct vmad_client *client, const struct vma_flow_minisock *minisocks,
                                        unsigned n)
{
	(void)client, (void)minisocks, (void)n;
	return -ENOENT;
}

bool vmad_watch_forget_all(struct vmad_client *client)
{
	(void)client;
	forgets += vmad_has_room;
	return vmad_has_room;
}

/* ---- the fixture: a nic with two connections ---- */

static struct nic_verbs nic;
static struct verbs_qp qp;
static struct verbs_flow flows[2], *bucket;

static int setup(void **state)
{
	(void)state;
	nic = (struct nic_verbs){.wake_fd = -1, .flow_buckets = &bucket, .flow_buckets_n = 1};
	pthread_mutex_init(&nic.lock, NULL);
	qp.nic = &nic;
	bucket = NULL;
	for (int i = 0; i < 2; i++)
		flows[i] = (struct verbs_flow){.qp = &qp,
		                               .rule.key = {.family = AF_INET,
		                                            .proto = IPPROTO_TCP,
		                                            .local_port_be = htons(80),
		                                            .peer_port_be = htons((uint16_t)(9000 + i))}};
	begin_result = 0;
	vmad_has_room = true;
	begins = adds = forgets = 0;
	verbs_peers_get_vmad_permission(&nic, false);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vmad_has_room = true;
	verbs_peers_disconnect_from_vmad(&nic);
	pthread_mutex_destroy(&nic.lock);
	return 0;
}

static void add_verbs_flow_to_peers(struct verbs_flow *flow)
{
	flow->next = bucket;
	bucket = flow;
	verbs_peers_report_connection_to_vmad(&nic, flow);
}

/* ---- cases ---- */

static int peers_follow_after_room_timeout(void)
{
	nic.peers.room_until_ms = 0;
	return verbs_peers_sync_with_vmad(&nic);
}

static void test_a_vmad_that_does_not_read_is_asked_less_and_less_often(void **state)
{
	static const int pauses_ms[] = {5, 10, 20, 40, 80, 160, 250, 250};

	(void)state;
	vmad_has_room = false;
	add_verbs_flow_to_peers(&flows[0]);
	for (size_t i = 0; i < sizeof(pauses_ms) / sizeof(pauses_ms[0]); i++)
		assert_int_equal(peers_follow_after_room_timeout(), pauses_ms[i]);
	/* Woken by other work of the thread: the pause goes on, and is no longer for it. */
	for (int woken = 0; woken < 10; woken++)
		assert_in_range(verbs_peers_sync_with_vmad(&nic), 1, 250);
	assert_int_equal(nic.peers.room_ms, 250);
	assert_int_equal(begins, 1);
	vmad_has_room = true;
	assert_int_equal(peers_follow_after_room_timeout(), -1);
	assert_int_equal(adds, 1);
	vmad_has_room = false;
	add_verbs_flow_to_peers(&flows[1]);
	assert_int_equal(peers_follow_after_room_timeout(), 5); /* it has read since */
	assert_int_equal(peers_follow_after_room_timeout(), 10);
	vmad_has_room = true;
	assert_int_equal(peers_follow_after_room_timeout(), -1);
	assert_int_equal(adds, 2);
}

static void test_an_end_that_vmad_has_not_read_is_repeated_less_and_less_often(void **state)
{
	(void)state;
	add_verbs_flow_to_peers(&flows[0]);
	add_verbs_flow_to_peers(&flows[1]);
	assert_int_equal(peers_follow_after_room_timeout(), -1);
	assert_int_equal(adds, 2);
	vmad_has_room = false;
	bucket = flows[1].next; /* what was added last ends */
	verbs_peers_report_conn_end_to_vmad(&nic, &flows[1]);
	assert_int_equal(peers_follow_after_room_timeout(), 5);
	assert_int_equal(peers_follow_after_room_timeout(), 10);
	vmad_has_room = true;
	assert_int_equal(peers_follow_after_room_timeout(), -1);
	assert_int_equal(forgets, 1);
	assert_int_equal(adds, 3); /* the other one anew */
}

static int peers_follow_pause_after_begin_result(int result)
{
	nic.peers.look_ms = 0;
	begin_result = result;
	return verbs_peers_sync_with_vmad(&nic);
}

static void test_a_vmad_that_is_busy_or_not_there_is_looked_for_each_second_and_one_that_refuses_seldom(void **state)
{
	(void)state;
	add_verbs_flow_to_peers(&flows[0]);
	assert_in_range(peers_follow_pause_after_begin_result(-ECONNREFUSED), 1, 1000);
	assert_in_range(peers_follow_pause_after_begin_result(-EAGAIN), 1, 1000);
	assert_in_range(peers_follow_pause_after_begin_result(-EPERM), 1001, 10000);
	assert_int_equal(begins, 3);
	assert_in_range(verbs_peers_sync_with_vmad(&nic), 1, 10000);
	assert_int_equal(begins, 3);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_a_vmad_that_does_not_read_is_asked_less_and_less_often),
        CASE(test_an_end_that_vmad_has_not_read_is_repeated_less_and_less_often),
        CASE(test_a_vmad_that_is_busy_or_not_there_is_looked_for_each_second_and_one_that_refuses_seldom),
};
VMA_TEST_MAIN(tests)
