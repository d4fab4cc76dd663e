/*
 * fuzz_vmad - mutated messages to vmad's handler, over a fake owner.
 *
 * The input is a run of messages of two clients: a byte that says who sends, how long the message claims to be, whether
 * it comes with descriptors and whether its head is made right (or hardly any input would come past the first check),
 * and the message. Held after each: a peer has only slots that the owner rented out, nobody has another's, a dropped
 * peer has none, only who is let in gets anything, and the owner hears of no socket that was not shown.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../vmad/server.h"
#include "fake_card_nic.h"
#include "fake_owner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FROM_SECOND 1u
#define WITH_FD 2u
#define GOOD_HEAD 4u
#define SHORT 8u
#define HANG_UP 16u
#define SOCKETS(how) ((how) >> 5) /* so many descriptors of one socket besides */

#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "broken: %s\n", #condition);                                                   \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

static const uid_t allowed = 4242;
static const struct vma_vmad_attr attr = {.interface = "fuzz", .users = &allowed, .nusers = 1};

static int shown_socket_fd;
static uint64_t shown_socket_cookie;

static void vmad_make_shown_socket_with_cookie(void)
{
	socklen_t len = sizeof(shown_socket_cookie);

	shown_socket_fd = socket(AF_INET, SOCK_DGRAM, 0);
	MUST(getsockopt(shown_socket_fd, SOL_SOCKET, SO_COOKIE, &shown_socket_cookie, &len) == 0);
}

static void assert_server_is_consistent(const struct vmad_server *server)
{
	MUST((server->peer[0].slots & server->peer[1].slots) == 0);
	MUST((server->peer[0].slots | server->peer[1].slots) == fake.rented);
	MUST(server->peer[1].slots == 0); /* its user is not allowed, and it has nothing to show */
}

static void fuzz_vmad_handle_client_message(struct vmad_server *server, uint8_t how, const struct vmad_msg *msg)
{
	struct vmad_peer *peer = &server->peer[how & FROM_SECOND];
	const size_t bytes = how & SHORT ? sizeof(*msg) - 1 : sizeof(*msg);
	struct vmad_reply answer = {0};
	int fds[16], rc;
	unsigned nfds = 0;

	fake.proof = (struct xdp_proof_socket){0};
	if (peer->state == PEER_NONE)
		return;
	for (unsigned i = 0; i < SOCKETS(how); i++)
		fds[nfds++] = shown_socket_fd;
	if (how & WITH_FD)
		fds[nfds++] = fake.fd;
	rc = vmad_handle_message(server, peer, msg, bytes, fds, nfds, &answer);
	MUST(fake.proof.cookie == 0 || (fake.proof.cookie == shown_socket_cookie && nfds == 1));
	MUST(!fake.proof.raw);
	for (; fake.shadows > 0; fake.shadows--)
		MUST(fake.shadow[fake.shadows - 1] == shown_socket_cookie);
	MUST(rc <= 1 && (!(how & SHORT) || rc < 0));
	if (rc == 1) {
		MUST(vmad_msg_ok(&answer.msg, sizeof(answer.msg)));
		MUST(answer.msg.seq == msg->seq && answer.msg.type == msg->type && answer.msg.result <= 0);
		if (answer.msg.type == VMAD_STATE && answer.msg.result == 0)
			MUST(answer.msg.state.place >= msg->state.place && answer.msg.state.place < VMAD_STATE_PLACES);
		MUST(answer.nfds == (answer.msg.type == VMAD_RENT && answer.msg.result == 0 ? 4u : 0u));
	}
	if (rc < 0 || how & HANG_UP) {
		vmad_reclaim_slots_of_peer(server, peer, true);
		peer->state = PEER_NONE;
	}
	assert_server_is_consistent(server);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vmad_server server;

	if (fake.fd == 0) {
		fake_owner_reset();
		vmad_make_shown_socket_with_cookie();
	}
	for (unsigned i = 0; i < FAKE_FLOWS; i++)
		fake.flow[i].used = false;
	fake.rented = fake.leaving = 0;
	memset(&server, 0, sizeof(server));
	server.attr = &attr;
	server.ifindex = 1;
	server.owner = &fake;
	server.peer[0] = (struct vmad_peer){.state = PEER_NEW, .fd = -1, .pidfd = -1, .uid = allowed};
	server.peer[1] = (struct vmad_peer){.state = PEER_NEW, .fd = -1, .pidfd = -1, .uid = 1};
	while (size > 0) {
		struct vmad_msg msg = {0};
		const uint8_t how = data[0];
		const size_t bytes = size - 1 < sizeof(msg) ? size - 1 : sizeof(msg);

		memcpy(&msg, data + 1, bytes);
		if (how & GOOD_HEAD) {
			msg.magic = VMAD_MAGIC;
			msg.version = VMAD_VERSION;
			msg.type = (uint16_t)(msg.type % (VMAD_WATCH + 2));
		}
		fuzz_vmad_handle_client_message(&server, how, &msg);
		data += 1 + bytes;
		size -= 1 + bytes;
	}
	for (int i = 0; i < 2; i++)
		vmad_reclaim_slots_of_peer(&server, &server.peer[i], true);
	MUST(fake.rented == 0);
	MUST(server.card == NULL); /* none of them could send raw packets */
	return 0;
}
