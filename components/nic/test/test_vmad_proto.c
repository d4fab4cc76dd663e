/*
 * vmad and its clients over a real socket, with a fake owner: who is let in, what a bad message costs, who is missed.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <vma/log.h>
#include <vma/test.h>

#include "../client/vmad_priv.h"
#include "../client/watch.h"
#include "../fork.h"
#include "../os.h"
#include "../route_type.h"
#include "../vmad/server.h"
#include "../vmad/watches.h"
#include "fake_card_nic.h"
#include "fake_owner.h"

/* ---- in place of ../owner/probe.c and the routes ---- */

int owner_open_raw_ip_socket(void);
int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq);
struct owner_tcp_segment;
int owner_send_raw_segment(int fd, unsigned ifindex, const struct vma_flow_key *key,
                           const struct owner_tcp_segment *segment);

static _Atomic bool probes_have_room;
static _Atomic unsigned probes;

int owner_open_raw_ip_socket(void)
{
	return os_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq)
{
	(void)fd, (void)ifindex, (void)key, (void)syn, (void)seq;
	if (!atomic_load(&probes_have_room))
		return -ENOBUFS;
	atomic_fetch_add(&probes, 1);
	return 0;
}

int owner_send_raw_segment(int fd, unsigned ifindex, const struct vma_flow_key *key,
                           const struct owner_tcp_segment *segment)
{
	(void)fd, (void)ifindex, (void)key, (void)segment;
	return -ENOBUFS;
}

int nic_route_type(int fd, const uint8_t address[4])
{
	(void)fd;
	return address[3] == 1 ? RTN_LOCAL : RTN_UNICAST;
}

struct fixture {
	struct vma_vmad_attr attr;
	struct vmad_server server;
	uid_t user;
	int stop[2];
	pthread_t thread;
	int result;
	bool ended;
};

static void *vmad_proto_server_thread(void *arg)
{
	struct fixture *fixture = arg;

	fixture->result = vmad_run_event_loop(&fixture->server);
	return NULL;
}

/* An interface number that no other run, and no other case, uses names the socket; forked children keep it. */
static unsigned number;

static unsigned test_ifindex(void)
{
	return number;
}

/* Clients may connect already. */
static void vmad_proto_listen_without_serving(struct fixture *fixture)
{
	assert_int_equal(pipe2(fixture->stop, O_CLOEXEC), 0);
	fixture->attr.interface = "test";
	fixture->attr.stop_fd = fixture->stop[0];
	fixture->server.attr = &fixture->attr;
	fixture->server.ifindex = test_ifindex();
	assert_int_equal(vmad_listen(fixture->server.ifindex, "test", &fixture->server.listen_fds), 0);
}

static void vmad_proto_start_server_thread(struct fixture *fixture)
{
	assert_int_equal(pthread_create(&fixture->thread, NULL, vmad_proto_server_thread, fixture), 0);
}

static void start_server(struct fixture *fixture)
{
	vmad_proto_listen_without_serving(fixture);
	vmad_proto_start_server_thread(fixture);
}

static int setup(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));

	number = 1000000000u + ((unsigned)getpid() << 8) + (number + 1) % 256;
	fake_owner_reset();
	fixture->user = getuid();
	fixture->attr.users = &fixture->user;
	fixture->attr.nusers = 1;
	*state = fixture;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *fixture = *state;

	if (!fixture->ended) {
		assert_int_equal(write(fixture->stop[1], "x", 1), 1);
		pthread_join(fixture->thread, NULL);
		assert_int_equal(fixture->result, 0);
	}
	close(fixture->stop[0]);
	close(fixture->stop[1]);
	free(fixture);
	return 0;
}

static int vmad_proto_join(struct vmad_client **client)
{
	const struct vmad_connect_attr how = {
	        .ifindex = test_ifindex(), .ifname = "test", .right_fd = -1, .timeout_ms = 3000};

	return vmad_client_connect(&how, client);
}

static struct vmad_client *connect_test_client(void)
{
	struct vmad_client *client = NULL;

	assert_int_equal(vmad_proto_join(&client), 0);
	return client;
}

static void close_all_fds_of_rental(const struct xdp_rental *rental)
{
	close(rental->umem_fd);
	close(rental->shared_fd);
	close(rental->claims_fd);
	for (uint32_t queue = 0; queue < rental->queues; queue++)
		close(rental->socket_fd[queue]);
}

static uint32_t rented(struct vmad_client *client)
{
	struct xdp_rental rental;

	assert_int_equal(vmad_client_rent(client, 64, 64, &rental), 0);
	close_all_fds_of_rental(&rental);
	return rental.slot;
}

/* A connection that knows no manners. */
static int connect_without_handshake(void)
{
	struct sockaddr_un address;
	const socklen_t len = vmad_address(test_ifindex(), &address);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (const struct sockaddr *)&address, len), 0);
	return fd;
}

static bool connection_is_hung_up(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
	char byte;

	return poll(&poll_fd, 1, 3000) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

static bool await_counter_value(_Atomic unsigned *value, unsigned wanted)
{
	const struct timespec pause = {.tv_nsec = 2000000};

	for (int i = 0; i < 1500 && atomic_load(value) != wanted; i++)
		nanosleep(&pause, NULL);
	return atomic_load(value) == wanted;
}

static struct vmad_msg vmad_proto_make_message(uint16_t type)
{
	return (struct vmad_msg){.magic = VMAD_MAGIC, .version = VMAD_VERSION, .type = type, .seq = 1};
}

static const struct vma_flow_rule rule = {
        .key = {.family = AF_INET, .proto = 17, .local_port_be = 5, .local = {10, 0, 0, 1}}};

static void test_a_flow_moves_between_slots_of_one_client_only(void **state)
{
	struct vmad_client *client, *other;
	uint32_t from, to, others;
	bool generic = false;

	start_server(*state);
	client = connect_test_client();
	other = connect_test_client();
	from = rented(client);
	to = rented(client);
	others = rented(other);
	assert_int_equal(vmad_client_flow_add(client, from, &rule, -1, &generic), 0);
	assert_int_equal(vmad_client_flow_move(client, from, others, &rule.key), -ENOENT);
	assert_int_equal(vmad_client_flow_move(other, from, others, &rule.key), -ENOENT);
	assert_int_equal(vmad_client_flow_move(client, to, from, &rule.key), -ENOENT);
	assert_int_equal(vmad_client_flow_move(client, from, to, &rule.key), 0);
	assert_int_equal(vmad_client_flow_del(client, from, &rule.key), -ENOENT);
	assert_int_equal(vmad_client_flow_del(client, to, &rule.key), 0);
	vmad_client_close(other);
	vmad_client_close(client);
}

static void test_a_client_rents_and_returns(void **state)
{
	struct xdp_rental rental;
	struct vmad_client *client;
	bool generic = false;

	start_server(*state);
	client = connect_test_client();
	assert_int_equal(vmad_client_rent(client, 64, 64, &rental), 0);
	assert_int_equal(rental.queues, 2);
	assert_int_equal(rental.nframes, 512);
	assert_int_equal(fcntl(rental.socket_fd[1], F_GETFD), FD_CLOEXEC);
	close_all_fds_of_rental(&rental);
	assert_int_equal(vmad_client_flow_add(client, rental.slot, &rule, -1, &generic), 0);
	assert_true(generic);
	assert_int_equal(vmad_client_flow_add(client, rental.slot, &rule, -1, &generic), -EEXIST);
	assert_int_equal(vmad_client_flow_del(client, rental.slot, &rule.key), 0);
	assert_int_equal(vmad_client_flow_del(client, rental.slot, &rule.key), -ENOENT);
	assert_int_equal(vmad_client_return(client, rental.slot, false), 0);
	assert_true(atomic_load(&fake.rented) != 0);
	assert_int_equal(vmad_client_return(client, rental.slot, true), 0);
	assert_true(atomic_load(&fake.rented) == 0);
	vmad_client_close(client);
}

static void test_a_stranger_is_refused(void **state)
{
	struct fixture *fixture = *state;
	struct vmad_client *client;

	fixture->attr.nusers = 0;
	start_server(fixture);
	assert_int_equal(vmad_proto_join(&client), -EPERM);
}

static void test_state_has_each_client_and_its_queue_pairs(void **state)
{
	static struct vma_vmad_state seen;
	struct vmad_client *client, *other, *asks;
	uint32_t first, second, others;
	bool generic = false;

	start_server(*state);
	client = connect_test_client();
	other = connect_test_client();
	first = rented(client);
	others = rented(other);
	second = rented(client);
	assert_int_equal(vmad_client_flow_add(client, second, &rule, -1, &generic), 0);
	asks = connect_test_client();
	assert_int_equal(vmad_client_fetch_vmad_state(asks, &seen), 0);
	assert_int_equal(seen.interface.mtu, 1500);
	assert_int_equal(seen.interface.queue_pairs, 3);
	assert_int_equal(seen.clients, 2); /* without the one that asks */
	for (unsigned i = 0; i < seen.clients; i++) {
		assert_int_equal(seen.client[i].pid, getpid());
		assert_int_equal(seen.client[i].uid, getuid());
		assert_int_equal(seen.client[i].state, PEER_READY);
	}
	assert_true(seen.client[0].queue_pairs == (1ull << first | 1ull << second));
	assert_true(seen.client[1].queue_pairs == 1ull << others);
	assert_int_equal(seen.queue_pairs, 3);
	for (unsigned i = 0; i < seen.queue_pairs; i++)
		assert_int_equal(seen.queue_pair[i].flows, seen.queue_pair[i].number == second);
	assert_int_equal(vmad_client_fetch_vmad_state(client, &seen), 0); /* it rents, so it is there itself */
	assert_int_equal(seen.clients, 3);
	vmad_client_close(asks);
	vmad_client_close(other);
	vmad_client_close(client);
}

static void test_state_beyond_the_last_place_is_refused(void **state)
{
	static const uint32_t places[] = {VMAD_STATE_PLACES - 1, VMAD_STATE_PLACES, UINT32_MAX};
	struct vmad_client *client;

	start_server(*state);
	client = connect_test_client();
	for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		struct vmad_msg msg = {.type = VMAD_STATE, .state = {.place = places[i]}};
		int fds[VMAD_FDS_MAX];
		unsigned nfds = 0;

		assert_int_equal(vmad_client_request(client, &msg, NULL, 0, fds, &nfds, os_now_ms() + 3000), -ENOENT);
	}
	vmad_client_close(client);
}

static void test_state_is_told_to_clients_only(void **state)
{
	struct fixture *fixture = *state;
	struct vmad_msg msg = vmad_proto_make_message(VMAD_HELLO);
	int fd;

	fixture->attr.nusers = 0;
	start_server(fixture);
	fd = connect_without_handshake();
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	assert_int_equal(recv(fd, &msg, sizeof(msg), 0), sizeof(msg));
	assert_int_equal(msg.result, -EPERM);
	msg = vmad_proto_make_message(VMAD_STATE);
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	assert_true(connection_is_hung_up(fd));
	close(fd);
}

static void test_an_ordinary_socket_is_no_proof(void **state)
{
	struct fixture *fixture = *state;
	struct vmad_msg msg = vmad_proto_make_message(VMAD_HELLO);
	int fd, proof = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	fixture->attr.nusers = 0;
	start_server(fixture);
	fd = connect_without_handshake();
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, &proof, 1), 0);
	assert_int_equal(recv(fd, &msg, sizeof(msg), 0), sizeof(msg));
	assert_int_equal(msg.result, -EPERM);
	close(proof);
	close(fd);
}

static void test_hello_is_answered_when_the_interface_is_there(void **state)
{
	atomic_store(&fake.busy, 10);
	start_server(*state);
	vmad_client_close(connect_test_client());
	assert_int_equal(atomic_load(&fake.busy), 0);
}

/* At first as a vmad that is about to end: it takes nobody in any more, and has its name still. */
static void *refuse_5_connections_then_serve_thread(void *arg)
{
	const struct vmad_listen_socks *listen_fds = &((struct fixture *)arg)->server.listen_fds;
	struct pollfd listening = {.fd = listen_fds->path_fd >= 0 ? listen_fds->path_fd : listen_fds->name_fd,
	                           .events = POLLIN};
	struct vmad_msg msg;

	for (int i = 0; i < 5 && poll(&listening, 1, 3000) == 1; i++) {
		const int fd = accept(listening.fd, NULL, NULL);

		recv(fd, &msg, sizeof(msg), 0);
		close(fd);
	}
	return vmad_proto_server_thread(arg);
}

/* Each vmad that is started meanwhile ends at once, as the name is taken: /bin/true stands for them. */
static void test_a_vmad_that_takes_long_to_end_is_waited_for(void **state)
{
	struct fixture *fixture = *state;
	const struct vmad_connect_attr how = {
	        .ifindex = 1, .ifname = "lo", .vmad_path = "/bin/true", .right_fd = -1, .timeout_ms = 8000};
	const int host = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	struct vmad_client *client = NULL;

	if (geteuid() != 0 || unshare(CLONE_NEWNET) < 0) { /* starting a vmad needs capabilities */
		close(host);
		fixture->ended = true;
		vma_test_skip("starting a vmad needs its capabilities");
	}
	number = how.ifindex;
	vmad_proto_listen_without_serving(fixture);
	assert_int_equal(pthread_create(&fixture->thread, NULL, refuse_5_connections_then_serve_thread, fixture), 0);
	assert_int_equal(vmad_client_connect(&how, &client), 0);
	vmad_client_close(client);
	assert_int_equal(setns(host, CLONE_NEWNET), 0);
	close(host);
}

static void test_garbage_costs_its_sender_the_connection(void **state)
{
	static const char garbage[4096] = "x";
	static const size_t sizes[] = {1, 16, sizeof(struct vmad_msg), sizeof(struct vmad_msg) + 1, sizeof(garbage)};
	struct vmad_client *client;

	start_server(*state);
	client = connect_test_client();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int fd = connect_without_handshake();

		assert_int_equal(send(fd, garbage, sizes[i], 0), sizes[i]);
		assert_true(connection_is_hung_up(fd));
		close(fd);
	}
	rented(client);
	vmad_client_close(client);
}

static void test_fds_where_none_belong_end_the_connection(void **state)
{
	int fds[VMAD_FDS_MAX], fd;
	struct vmad_msg msg = vmad_proto_make_message(VMAD_HELLO);

	start_server(*state);
	for (unsigned i = 0; i < VMAD_FDS_MAX; i++)
		fds[i] = 0;
	fd = connect_without_handshake();
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, fds, VMAD_FDS_MAX), 0);
	assert_true(connection_is_hung_up(fd));
	close(fd);
}

static void test_a_request_before_hello_ends_the_connection(void **state)
{
	struct vmad_msg msg = vmad_proto_make_message(VMAD_RENT);
	int fd;

	start_server(*state);
	fd = connect_without_handshake();
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	assert_true(connection_is_hung_up(fd));
	close(fd);
	assert_int_equal(atomic_load(&fake.rents), 0);
}

static void test_an_unknown_request_is_answered(void **state)
{
	struct vmad_msg msg = vmad_proto_make_message(VMAD_HELLO);
	int fd;

	start_server(*state);
	fd = connect_without_handshake();
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	assert_int_equal(recv(fd, &msg, sizeof(msg), 0), sizeof(msg));
	assert_int_equal(msg.result, 0);
	msg = vmad_proto_make_message(999);
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	assert_int_equal(recv(fd, &msg, sizeof(msg), 0), sizeof(msg));
	assert_int_equal(msg.result, -EOPNOTSUPP);
	close(fd);
}

/* It could not send raw packets itself, and vmad would do so for it. */
static void test_connections_of_a_card_are_watched_for_who_has_shown_cap_net_raw(void **state)
{
	struct fixture *fixture = *state;
	struct vmad_client *client;
	struct vma_flow_key key = {.family = AF_INET, .proto = IPPROTO_TCP, .local_port_be = 1, .peer_port_be = 2};
	const struct vma_flow_minisock minisock = {.key = key, .state = VMA_MINISOCK_FIN_WAIT};
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct vmad_connecting connecting = {.lock = &lock};

	start_server(fixture);
	assert_int_equal(vmad_watch_connect(test_ifindex(), "test", -1, &connecting, &client), -EPERM);
	assert_null(connecting.first);
	client = connect_test_client();
	assert_true(vmad_watch_add(client, &key)); /* not answered, and in vain */
	assert_int_equal(vmad_export_minisocks_of_verbs_card(client, &minisock, 1), -EOPNOTSUPP);
	rented(client);
	assert_null(fixture->server.watches);
	assert_null(fixture->server.card);
	vmad_client_close(client);
}

static void test_a_slot_belongs_to_who_rented_it(void **state)
{
	struct vmad_client *mine, *other;
	bool generic;
	uint32_t slot;

	start_server(*state);
	mine = connect_test_client();
	other = connect_test_client();
	slot = rented(mine);
	assert_int_equal(vmad_client_flow_add(other, slot, &rule, -1, &generic), -ENOENT);
	assert_int_equal(vmad_client_return(other, slot, true), -ENOENT);
	assert_int_equal(vmad_client_flow_add(other, 4000000000u, &rule, -1, &generic), -ENOENT);
	assert_int_equal(vmad_client_flow_add(mine, slot, &rule, -1, &generic), 0);
	vmad_client_close(mine);
	vmad_client_close(other);
}

static void test_a_slot_goes_over_to_another_connection_of_its_process(void **state)
{
	struct xdp_rental rental;
	struct vmad_client *first, *second;
	bool generic = false;
	pid_t child;
	int status;

	start_server(*state);
	first = connect_test_client();
	assert_int_equal(vmad_client_rent(first, 64, 64, &rental), 0);
	close_all_fds_of_rental(&rental);
	second = connect_test_client();
	assert_int_equal(vmad_client_resume_slot_by_ticket(second, rental.slot, rental.ticket ^ 1), -ENOENT);
	assert_int_equal(vmad_client_resume_slot_by_ticket(second, rental.slot, 0), -ENOENT);
	assert_int_equal(vmad_client_resume_slot_by_ticket(second, XDP_SLOTS_MAX, rental.ticket), -ENOENT);
	child = fork();
	if (child == 0) /* it knows the ticket, and is another process */
		_exit(vmad_client_resume_slot_by_ticket(connect_test_client(), rental.slot, rental.ticket) != -ENOENT);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(vmad_client_flow_add(first, rental.slot, &rule, -1, &generic), 0);
	assert_int_equal(vmad_client_resume_slot_by_ticket(second, rental.slot, rental.ticket), 0);
	assert_int_equal(vmad_client_tell_resumed(second, rental.slot), 0);
	assert_int_equal(vmad_client_flow_del(first, rental.slot, &rule.key), -ENOENT);
	vmad_client_close(first);
	assert_int_equal(vmad_client_flow_del(second, rental.slot, &rule.key), 0);
	assert_int_equal(atomic_load(&fake.leaving), 0);
	vmad_client_close(second);
}

/* A late answer would be taken for that of the next request. */
static void test_a_connection_without_an_answer_is_used_no_more(void **state)
{
	struct fixture *fixture = *state;
	struct vmad_client *client;

	start_server(fixture);
	client = connect_test_client();
	atomic_store(&client->broken, true);
	assert_int_equal(vmad_client_return(client, 0, true), -EPIPE);
	assert_true(vmad_client_broken(client));
	vmad_client_close(client);
}

static void test_who_does_not_read_is_dropped_and_delays_nobody(void **state)
{
	struct vmad_msg msg = vmad_proto_make_message(VMAD_HELLO);
	struct vmad_client *client;
	uint32_t slot;
	int fd, rc = 0;

	start_server(*state);
	client = connect_test_client();
	fd = connect_without_handshake();
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	msg = vmad_proto_make_message(999);
	/* Whenever vmad is behind with that one, another is served. */
	for (int i = 0; i < 10000 && (rc = vmad_send_message_with_fds(fd, &msg, NULL, 0)) != -EPIPE;
	     i += rc == -EAGAIN) {
		if (rc != -EAGAIN)
			continue;
		slot = rented(client);
		assert_int_equal(vmad_client_return(client, slot, true), 0);
	}
	assert_int_equal(rc, -EPIPE);
	slot = rented(client);
	assert_int_equal(vmad_client_return(client, slot, true), 0);
	close(fd);
	vmad_client_close(client);
}

static void test_silent_connections_keep_nobody_out(void **state)
{
	int fds[2 * VMAD_PEERS_MAX];

	start_server(*state);
	for (unsigned i = 0; i < 2 * VMAD_PEERS_MAX; i++)
		fds[i] = connect_without_handshake();
	vmad_client_close(connect_test_client());
	for (unsigned i = 0; i < 2 * VMAD_PEERS_MAX; i++)
		close(fds[i]);
}

static void test_a_revoked_flow_is_told_to_its_client_only(void **state)
{
	struct vmad_client *client, *other;
	struct vma_flow_key key = {0};
	struct pollfd poll_fd;
	uint32_t slot, told = ~0u;
	bool generic;

	start_server(*state);
	client = connect_test_client();
	other = connect_test_client();
	slot = rented(client);
	rented(other);
	assert_int_equal(vmad_client_flow_add(client, slot, &rule, -1, &generic), 0);
	atomic_store(&fake.revoke, true);
	poll_fd = (struct pollfd){.fd = vmad_client_fd(client), .events = POLLIN};
	assert_int_equal(poll(&poll_fd, 1, 3000), 1);
	assert_int_equal(vmad_client_flow_del(client, slot, &rule.key),
	                 -ENOENT); /* the event comes before the answer */
	assert_int_equal(vmad_client_next_revoked_flow(client, &told, &key), 1);
	assert_int_equal(told, slot);
	assert_memory_equal(&key, &rule.key, sizeof(key));
	assert_int_equal(vmad_client_next_revoked_flow(client, &told, &key), 0);
	assert_int_equal(vmad_client_next_revoked_flow(other, &told, &key), 0);
	vmad_client_close(client);
	vmad_client_close(other);
}

static struct {
	pthread_mutex_t lock;
	struct nic_fork_entry entry;
	struct vmad_connecting connecting;
} forks;

static void close_connecting_in_child(struct nic_fork_entry *entry)
{
	(void)entry;
	vmad_connecting_close_in_child(&forks.connecting);
}

static void *connect_in_vain_thread(void *arg)
{
	const struct vmad_connect_attr how = {.ifindex = test_ifindex(),
	                                      .ifname = "test",
	                                      .right_fd = -1,
	                                      .timeout_ms = 500,
	                                      .connecting = &forks.connecting};
	struct vmad_client *client;

	(void)arg;
	return vmad_client_connect(&how, &client) < 0 ? arg : NULL;
}

/* Otherwise vmad would learn of a parent's end only when its child has ended, too. */
static void test_a_child_has_no_part_of_a_connection_that_is_being_made(void **state)
{
	struct fixture *fixture = *state;
	struct pollfd listening = {.events = POLLIN};
	struct vmad_msg msg;
	pthread_t thread;
	void *in_vain;
	pid_t child;
	int fd;

	nic_fork_lock_init(&forks.lock);
	forks.connecting.lock = &forks.lock;
	forks.entry = (struct nic_fork_entry){.lock = &forks.lock, .give_up = close_connecting_in_child};
	nic_fork_register(&forks.entry);
	vmad_proto_listen_without_serving(fixture);
	listening.fd = fixture->server.listen_fds.path_fd >= 0 ? fixture->server.listen_fds.path_fd
	                                                       : fixture->server.listen_fds.name_fd;
	assert_int_equal(pthread_create(&thread, NULL, connect_in_vain_thread, fixture), 0);
	assert_int_equal(poll(&listening, 1, 5000), 1);
	fd = accept(listening.fd, NULL, NULL);
	assert_int_equal(recv(fd, &msg, sizeof(msg), 0), sizeof(msg)); /* HELLO; no answer comes */
	child = fork();
	if (child == 0) {
		pause();
		_exit(0);
	}
	assert_int_equal(pthread_join(thread, &in_vain), 0);
	assert_ptr_equal(in_vain, fixture);
	assert_null(forks.connecting.first);
	assert_int_equal(recv(fd, &msg, sizeof(msg), MSG_DONTWAIT), 0); /* its end, though the child lives */
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(fd);
	nic_fork_unregister(&forks.entry);
	vmad_proto_start_server_thread(fixture); /* for teardown */
}

/* What a client is told if this socket, which is bound, takes nobody in. */
static int client_connect_result_at_full_backlog(int listener, const struct sockaddr *address, socklen_t len)
{
	const struct vmad_connect_attr how = {
	        .ifindex = test_ifindex(), .ifname = "test", .right_fd = -1, .timeout_ms = 60000};
	struct vmad_client *client;
	int waiting[8], rc;
	unsigned n = 0;

	assert_int_equal(listen(listener, 1), 0);
	do
		waiting[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	while (connect(waiting[n++], address, len) == 0 && n < 8);
	assert_int_equal(errno, EAGAIN);
	rc = vmad_client_connect(&how, &client);
	while (n > 0)
		close(waiting[--n]);
	close(listener);
	return rc;
}

/* Who holds the name, and takes nobody in, holds nobody up for long either; nor a client that can start a vmad. */
static void test_a_full_queue_is_given_up_soon(void **state)
{
	struct fixture *fixture = *state;
	struct sockaddr_un address;
	const socklen_t len = vmad_address(test_ifindex(), &address);
	const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const bool needs_name = geteuid() != 0 || access(VMAD_PARENT, W_OK) < 0;
	const uint64_t begun = os_now_ms();

	assert_int_equal(bind(listener, (const struct sockaddr *)&address, len), 0);
	assert_int_equal(client_connect_result_at_full_backlog(listener, (const struct sockaddr *)&address, len),
	                 needs_name ? -EAGAIN : -ECONNREFUSED);
	assert_true(os_now_ms() - begun < 30000);
	start_server(fixture); /* for teardown */
}

static void test_a_full_queue_in_the_folder_is_given_up_soon(void **state)
{
	struct fixture *fixture = *state;
	struct sockaddr_un address;
	const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const uint64_t begun = os_now_ms();
	const int rc = vmad_bind_in_own_folder(listener, test_ifindex(), "vmad", 0666);

	if (rc == 0) {
		const int len = vmad_socket_path_address(listener, test_ifindex(), "vmad", &address);

		assert_true(len > 0);
		assert_int_equal(client_connect_result_at_full_backlog(listener, (const struct sockaddr *)&address,
		                                                       (socklen_t)len),
		                 -EAGAIN);
		assert_true(os_now_ms() - begun < 30000);
	}
	if (rc < 0)
		close(listener);
	start_server(fixture); /* takes the dead socket's place */
	if (rc < 0)
		print_message("not here: no socket in %s\n", VMAD_FOLDER);
}

static int open_udp_socket_and_get_cookie(uint64_t *cookie)
{
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(*cookie);

	assert_true(fd >= 0);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_COOKIE, cookie, &len), 0);
	return fd;
}

static void test_only_a_socket_that_was_shown_is_believed(void **state)
{
	struct vma_flow_rule named = rule;
	struct vmad_client *client;
	uint64_t cookie, other;
	int shadow, stranger, tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint32_t slot;
	bool generic;

	start_server(*state);
	client = connect_test_client();
	slot = rented(client);
	shadow = open_udp_socket_and_get_cookie(&cookie);
	stranger = open_udp_socket_and_get_cookie(&other);
	named.shadow_cookie = cookie;
	assert_int_equal(vmad_client_flow_add(client, slot, &named, -1, &generic), 0);
	assert_int_equal(fake.proof.cookie, 0);
	assert_false(fake.proof.raw); /* admitted by name */
	vmad_client_flow_add(client, slot, &named, shadow, &generic);
	assert_true(fake.proof.cookie == cookie);
	assert_int_equal(fake.proof.family, AF_INET);
	vmad_client_flow_add(client, slot, &named, tcp, &generic); /* of another protocol */
	assert_int_equal(fake.proof.cookie, 0);
	vmad_client_flow_add(client, slot, &named, fake.fd, &generic); /* no socket */
	assert_int_equal(fake.proof.cookie, 0);
	assert_int_equal(vmad_client_send_flow_shadow_cookies(client, slot, &rule.key, &cookie, &stranger, 1), -EPERM);
	assert_int_equal(vmad_client_send_flow_shadow_cookies(client, slot, &rule.key, &cookie, &shadow, 1), 0);
	assert_int_equal(fake.shadows, 1);
	vmad_client_close(client);
	close(shadow);
	close(stranger);
	close(tcp);
}

static void test_all_shadows_of_a_flow_arrive_in_order(void **state)
{
	struct vmad_client *client, *other;
	uint64_t cookies[2 * VMAD_SHADOWS_MAX + 1];
	const unsigned n = sizeof(cookies) / sizeof(cookies[0]);
	int shadows[sizeof(cookies) / sizeof(cookies[0])];
	uint32_t slot;

	start_server(*state);
	client = connect_test_client();
	other = connect_test_client();
	slot = rented(client);
	for (unsigned i = 0; i < n; i++)
		shadows[i] = open_udp_socket_and_get_cookie(&cookies[i]);
	assert_int_equal(vmad_client_send_flow_shadow_cookies(client, slot, &rule.key, cookies, shadows, n), 0);
	assert_int_equal(fake.shadows, n);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(fake.shadow[i], cookies[i]);
	assert_int_equal(vmad_client_send_flow_shadow_cookies(other, slot, &rule.key, cookies, shadows, n), -ENOENT);
	assert_int_equal(fake.shadows, n);
	for (unsigned i = 0; i < n; i++)
		close(shadows[i]);
	vmad_client_close(client);
	vmad_client_close(other);
}

static void test_more_shadows_than_a_message_holds_are_refused(void **state)
{
	struct vmad_msg msg = vmad_proto_make_message(VMAD_HELLO);
	int fd;

	start_server(*state);
	fd = connect_without_handshake();
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	assert_int_equal(recv(fd, &msg, sizeof(msg), 0), sizeof(msg));
	msg = vmad_proto_make_message(VMAD_RENT);
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	assert_int_equal(recv(fd, &msg, sizeof(msg), 0), sizeof(msg));
	assert_int_equal(msg.result, 0);
	msg = vmad_proto_make_message(VMAD_FLOW_SHADOWS);
	msg.shadows.key = rule.key;
	msg.shadows.count = VMAD_SHADOWS_MAX + 1;
	assert_int_equal(vmad_send_message_with_fds(fd, &msg, NULL, 0), 0);
	assert_int_equal(recv(fd, &msg, sizeof(msg), 0), sizeof(msg));
	assert_int_equal(msg.result, -EINVAL);
	assert_int_equal(fake.shadows, 0);
	close(fd);
}

#define MINISOCKS 3001u /* many more messages than the socket holds */

static struct vma_flow_minisock make_test_minisock(unsigned i)
{
	struct vma_flow_minisock minisock = {.key = rule.key, .state = 1 + i % 3, .snd_nxt = i, .rcv_nxt = ~i};

	minisock.key.proto = 6; /* TCP */
	minisock.key.peer_port_be = (uint16_t)(i + 1);
	minisock.key.peer[0] = 10;
	return minisock;
}

static void test_what_a_process_leaves_arrives_whole_before_it_goes_on(void **state)
{
	struct vma_flow_minisock *minisocks = calloc(MINISOCKS, sizeof(*minisocks));
	struct vmad_client *client, *other;
	uint32_t slot;

	start_server(*state);
	client = connect_test_client();
	other = connect_test_client();
	slot = rented(client);
	for (unsigned i = 0; i < MINISOCKS; i++)
		minisocks[i] = make_test_minisock(i);
	assert_int_equal(vmad_client_minisock_export(client, slot, minisocks, MINISOCKS), 0);
	assert_int_equal(fake.minisocks, MINISOCKS);
	for (unsigned i = MINISOCKS - FAKE_FLOWS; i < MINISOCKS; i++)
		assert_memory_equal(&fake.minisock[i % FAKE_FLOWS], &minisocks[i], sizeof(*minisocks));
	assert_int_equal(vmad_client_minisock_export(other, slot, minisocks, 1), -ENOENT);
	assert_int_equal(fake.minisocks, MINISOCKS);
	vmad_client_close(client);
	vmad_client_close(other);
	free(minisocks);
}

/* What is still in the socket when the process ends counts: nobody has waited for an answer. */
static void test_last_words_are_heard_when_the_process_has_ended(void **state)
{
	int status;
	pid_t pid;

	start_server(*state);
	pid = fork();
	if (pid == 0) {
		struct vmad_client *client = connect_test_client();
		const uint32_t slot = rented(client);
		struct vmad_msg msg = vmad_proto_make_message(VMAD_MINISOCK_EXPORT);

		msg.minisocks.slot = slot;
		msg.minisocks.count = 4;
		msg.minisocks.more = 1;
		for (int i = 0; i < 100; i++)
			if (vmad_send_message_with_fds(vmad_client_fd(client), &msg, NULL, 0) < 0)
				_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	for (int i = 0; i < 2000 && fake.finals == 0; i++)
		usleep(1000);
	assert_int_equal(fake.finals, 1);
	assert_int_equal(fake.minisocks, 400);
}

static void test_what_was_taken_back_before_a_new_grant_is_not_reported(void **state)
{
	struct vmad_client *client;
	struct vma_flow_key key;
	struct pollfd poll_fd;
	uint32_t slot, told;
	bool generic;

	start_server(*state);
	client = connect_test_client();
	slot = rented(client);
	assert_int_equal(vmad_client_flow_add(client, slot, &rule, -1, &generic), 0);
	atomic_store(&fake.revoke, true);
	poll_fd = (struct pollfd){.fd = vmad_client_fd(client), .events = POLLIN};
	assert_int_equal(poll(&poll_fd, 1, 3000), 1);
	assert_int_equal(vmad_client_flow_add(client, slot, &rule, -1, &generic), 0);
	assert_int_equal(vmad_client_next_revoked_flow(client, &told, &key), 0);
	vmad_client_close(client);
}

static int fd_from_forked_client = -1; /* the grandchild lives until this is closed */

/* In a child: become a client, tell the parent, wait to be killed. */
static pid_t fork_client_that_rents_and_waits(bool leave_grandchild)
{
	int told[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe2(told, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		struct pollfd reader = {.fd = told[1]};
		struct vmad_client *client;
		struct xdp_rental rental;

		close(told[0]);
		if (vmad_proto_join(&client) != 0 || vmad_client_rent(client, 64, 64, &rental) != 0)
			_exit(1);
		if (leave_grandchild && fork() == 0) {
			poll(&reader, 1, -1); /* has the connection, too */
			_exit(0);
		}
		if (write(told[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	close(told[1]);
	assert_int_equal(read(told[0], &byte, 1), 1);
	fd_from_forked_client = told[0];
	return pid;
}

static void test_a_killed_client_is_missed(void **state)
{
	pid_t pid;

	start_server(*state);
	pid = fork_client_that_rents_and_waits(false);
	assert_int_equal(atomic_load(&fake.rents), 1);
	assert_int_equal(atomic_load(&fake.finals), 0);
	kill(pid, SIGKILL);
	assert_true(await_counter_value(&fake.finals, 1));
	waitpid(pid, NULL, 0);
	close(fd_from_forked_client);
}

static void test_a_killed_parent_is_missed_although_its_child_has_the_socket(void **state)
{
	pid_t pid;

	start_server(*state);
	pid = fork_client_that_rents_and_waits(true);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_true(await_counter_value(&fake.finals, 1));
	close(fd_from_forked_client);
}

static void test_frames_of_a_client_that_hung_up_wait_for_its_process(void **state)
{
	const struct timespec pause = {.tv_nsec = 50000000};
	struct vmad_client *client;

	start_server(*state);
	client = connect_test_client();
	rented(client);
	vmad_client_close(client); /* without returning the slot: this process may still touch its frames */
	for (int i = 0; i < 100 && atomic_load(&fake.leaving) == 0; i++)
		nanosleep(&pause, NULL);
	assert_true(atomic_load(&fake.leaving) != 0);
	nanosleep(&pause, NULL);
	assert_int_equal(atomic_load(&fake.finals), 0);
	rented(client = connect_test_client());
	vmad_client_close(client);
}

/* A second after its last client: it waits ten for its first one. */
static void assert_server_ends_soon(struct fixture *fixture)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 6;
	assert_int_equal(pthread_timedjoin_np(fixture->thread, NULL, &until), 0);
	fixture->ended = true;
	assert_int_equal(fixture->result, 0);
}

static void test_it_ends_when_idle(void **state)
{
	struct fixture *fixture = *state;
	struct vmad_client *client;

	fixture->attr.exit_when_idle = true;
	start_server(fixture);
	client = connect_test_client();
	assert_int_equal(vmad_client_return(client, rented(client), true), 0);
	vmad_client_close(client);
	assert_server_ends_soon(fixture);
}

/* The kernel takes no probe for longer than an idle one waits. */
static void test_an_idle_one_stays_until_its_probes_are_sent(void **state)
{
	const struct vmad_watched watched = {
	        .local = {10, 0, 0, 1}, .peer = {10, 0, 0, 2}, .local_port_be = 80, .peer_port_be = 9000};
	struct fixture *fixture = *state;

	fixture->attr.exit_when_idle = true;
	atomic_store(&probes_have_room, false);
	atomic_store(&probes, 0);
	vmad_proto_listen_without_serving(fixture);
	fixture->server.watches = vmad_watches_create(fixture->server.ifindex, "test");
	assert_non_null(fixture->server.watches);
	vmad_watches_add(fixture->server.watches, VMAD_PEERS_MAX - 1, 0, &watched);
	vmad_watches_probe_all_of_client(fixture->server.watches, VMAD_PEERS_MAX - 1);
	vmad_proto_start_server_thread(fixture);
	vmad_client_close(connect_test_client());
	usleep(2000000);
	fixture->ended = pthread_tryjoin_np(fixture->thread, NULL) == 0;
	assert_false(fixture->ended);
	atomic_store(&probes_have_room, true);
	assert_server_ends_soon(fixture);
	assert_int_equal(atomic_load(&probes), 3);
}

static void test_a_client_that_has_gone_within_one_turn_was_a_client(void **state)
{
	struct fixture *fixture = *state;
	const struct vmad_msg hello = vmad_proto_make_message(VMAD_HELLO);
	int fd;

	fixture->attr.exit_when_idle = true;
	vmad_proto_listen_without_serving(fixture);
	fd = connect_without_handshake();
	assert_int_equal(vmad_send_message_with_fds(fd, &hello, NULL, 0), 0);
	close(fd);
	vmad_proto_start_server_thread(fixture);
	assert_server_ends_soon(fixture);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const struct CMUnitTest tests[] = {
        CASE(test_a_client_rents_and_returns),
        CASE(test_a_flow_moves_between_slots_of_one_client_only),
        CASE(test_a_stranger_is_refused),
        CASE(test_state_has_each_client_and_its_queue_pairs),
        CASE(test_state_beyond_the_last_place_is_refused),
        CASE(test_state_is_told_to_clients_only),
        CASE(test_an_ordinary_socket_is_no_proof),
        CASE(test_hello_is_answered_when_the_interface_is_there),
        CASE(test_a_vmad_that_takes_long_to_end_is_waited_for),
        CASE(test_garbage_costs_its_sender_the_connection),
        CASE(test_fds_where_none_belong_end_the_connection),
        CASE(test_a_request_before_hello_ends_the_connection),
        CASE(test_an_unknown_request_is_answered),
        CASE(test_connections_of_a_card_are_watched_for_who_has_shown_cap_net_raw),
        CASE(test_a_slot_belongs_to_who_rented_it),
        CASE(test_a_slot_goes_over_to_another_connection_of_its_process),
        CASE(test_a_connection_without_an_answer_is_used_no_more),
        CASE(test_who_does_not_read_is_dropped_and_delays_nobody),
        CASE(test_silent_connections_keep_nobody_out),
        CASE(test_a_revoked_flow_is_told_to_its_client_only),
        CASE(test_a_child_has_no_part_of_a_connection_that_is_being_made),
        CASE(test_a_full_queue_is_given_up_soon),
        CASE(test_a_full_queue_in_the_folder_is_given_up_soon),
        CASE(test_only_a_socket_that_was_shown_is_believed),
        CASE(test_all_shadows_of_a_flow_arrive_in_order),
        CASE(test_what_a_process_leaves_arrives_whole_before_it_goes_on),
        CASE(test_last_words_are_heard_when_the_process_has_ended),
        CASE(test_more_shadows_than_a_message_holds_are_refused),
        CASE(test_what_was_taken_back_before_a_new_grant_is_not_reported),
        CASE(test_a_killed_client_is_missed),
        CASE(test_a_killed_parent_is_missed_although_its_child_has_the_socket),
        CASE(test_frames_of_a_client_that_hung_up_wait_for_its_process),
        CASE(test_it_ends_when_idle),
        CASE(test_an_idle_one_stays_until_its_probes_are_sent),
        CASE(test_a_client_that_has_gone_within_one_turn_was_a_client),
};

VMA_TEST_MAIN(tests)
