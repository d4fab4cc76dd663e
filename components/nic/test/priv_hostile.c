/*
 * priv_hostile - a client of vmad that writes where it should not, for tests/hostile/.
 *
 *   priv_hostile INTERFACE ATTACK [SECONDS]
 *     frames      every byte of the packet memory, again and again: headers, and whatever else might lie there
 *     holes       cuts holes into the packet memory's file, again and again
 *     records     the shared record of frames: sizes that are not, all frames this client's; then it is killed
 *     dead        a forked client is killed, and this one writes that client's name into all frames, again and again
 *     locks       a number that no client has into every lock; then it is killed
 *     stay        the same, but it lives on
 *     greedy      as many places and queue pairs as vmad gives, and it says how many
 *
 * It says "in" when it is a client, and "done" at the end, if it lives to see it.
 */
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vma/nic.h>
#include <vma/nic_owner.h>

#include "../client/client.h"
#include "../xdp/proto.h"
#include "../xdp/shared.h"

static struct vma_bufarena *arena;
static struct xdp_qp *qp;
static uint64_t end_ms;

static uint64_t hostile_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void hostile_exit_on_error(const char *what, int rc)
{
	if (rc >= 0)
		return;
	printf("%s: %s\n", what, strerror(-rc));
	exit(2);
}

static void hostile_join_as_client(const char *interface)
{
	const struct vma_bufarena_attr arena_attr = {.capacity = 65536, .frame_size = 2048};
	const struct vma_nic_qp_attr qp_attr = {.rx_wre = 64, .tx_wre = 64};
	struct vma_nic_attr attr = {.owner = VMA_NIC_OWNER_VMAD};
	struct vma_nic_qp *out;
	struct vma_nic *nic;
	char spec[64];

	snprintf(spec, sizeof(spec), "xdp:%s", interface);
	hostile_exit_on_error("arena", vma_bufarena_create(&arena_attr, &arena));
	attr.arena = arena;
	hostile_exit_on_error("open", vma_nic_open(spec, &attr, &nic));
	hostile_exit_on_error("queue pair", vma_nic_qp_create(nic, &qp_attr, &out));
	qp = (struct xdp_qp *)out;
}

/* ---- attacks ---- */

static void hostile_overwrite_own_frames_until_end(void)
{
	char *at = arena->frames + ((size_t)qp->first << XDP_FRAME_SHIFT);
	const size_t bytes = (size_t)qp->nframes << XDP_FRAME_SHIFT;

	for (unsigned char byte = 0x41; hostile_now_ms() < end_ms; byte++)
		memset(at, byte, bytes);
}

static void hostile_punch_holes_in_umem(void)
{
	char *at = arena->frames + ((size_t)qp->first << XDP_FRAME_SHIFT);

	while (hostile_now_ms() < end_ms) {
		if (madvise(at, (size_t)qp->nframes << XDP_FRAME_SHIFT, MADV_REMOVE) < 0)
			hostile_exit_on_error("a hole", -errno);
		usleep(1000);
	}
}

static void hostile_corrupt_shared_and_kill_self(void)
{
	struct xdp_shared *shared = qp->shared;

	shared->nframes = shared->queues = UINT32_MAX;
	for (uint32_t f = 0; f < XDP_FRAMES_MAX; f++)
		atomic_store(&shared->holder[f], (uint16_t)(qp->slot + 1));
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++) {
		atomic_store(&shared->slot[slot].tx_first, UINT32_MAX - slot);
		atomic_store(&shared->slot[slot].tx_count, UINT32_MAX);
	}
	raise(SIGKILL);
}

static void hostile_name_dead_slot_as_holder(const char *interface)
{
	int ends[2];
	uint32_t slot = 0;
	pid_t pid;

	if (pipe(ends) != 0)
		exit(2);
	pid = fork();
	if (pid == 0) {
		hostile_join_as_client(interface);
		if (write(ends[1], &qp->slot, sizeof(qp->slot)) != sizeof(qp->slot))
			_exit(2);
		pause();
	}
	if (read(ends[0], &slot, sizeof(slot)) != sizeof(slot))
		exit(2);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	while (hostile_now_ms() < end_ms)
		for (uint32_t f = 0; f < XDP_FRAMES_MAX; f++)
			atomic_store_explicit(&qp->shared->holder[f], (uint16_t)(slot + 1), memory_order_relaxed);
}

static void hostile_leave_ring_locks_held(void)
{
	for (uint32_t queue = 0; queue < qp->queues; queue++) {
		atomic_store(&qp->shared->queue[queue].fill.lock, 4711);
		atomic_store(&qp->shared->queue[queue].comp.lock, XDP_HOLDER_OWNER);
	}
}

/* One message, and its answer; what comes with that is closed. */
static int hostile_exchange_message(int fd, struct vmad_msg msg)
{
	struct pollfd answer = {.fd = fd, .events = POLLIN};
	int fds[VMAD_FDS_MAX], rc;
	unsigned nfds = 0;
	size_t bytes;

	msg.magic = VMAD_MAGIC;
	msg.version = VMAD_VERSION;
	rc = vmad_send_message_with_fds(fd, &msg, NULL, 0);
	if (rc == 0)
		rc = poll(&answer, 1, 5000) == 1 ? vmad_receive_message(fd, &msg, &bytes, fds, &nfds) : -ETIMEDOUT;
	for (unsigned i = 0; i < nfds; i++)
		close(fds[i]);
	return rc < 0 ? rc : rc == 0 ? -EPIPE : msg.result;
}

static void hostile_take_all_places_and_slots(const char *interface)
{
	struct vmad_msg hello = {.type = VMAD_HELLO}, rent = {.type = VMAD_RENT, .rent = {.rx_wre = 64, .tx_wre = 64}};
	struct sockaddr_un address;
	const socklen_t len = vmad_address(if_nametoindex(interface), &address);
	int places = 0, queue_pairs = 0;

	for (int i = 0; i < 200; i++) {
		const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

		if (connect(fd, (struct sockaddr *)&address, len) < 0 || hostile_exchange_message(fd, hello) < 0) {
			close(fd);
			continue;
		}
		places++;
		queue_pairs += hostile_exchange_message(fd, rent) == 0;
	}
	printf("places %d\nqueue pairs %d\n", places, queue_pairs);
	fflush(stdout);
	while (hostile_now_ms() < end_ms)
		usleep(10000);
}

int main(int argc, char **argv)
{
	const char *attack = argc > 2 ? argv[2] : "";

	if (argc < 3)
		return 2;
	if (strcmp(attack, "greedy") != 0)
		hostile_join_as_client(argv[1]);
	puts("in");
	fflush(stdout);
	end_ms = hostile_now_ms() + (argc > 3 ? (uint64_t)atoi(argv[3]) * 1000 : 3000);
	if (strcmp(attack, "frames") == 0) {
		hostile_overwrite_own_frames_until_end();
	} else if (strcmp(attack, "holes") == 0) {
		hostile_punch_holes_in_umem();
	} else if (strcmp(attack, "records") == 0) {
		hostile_corrupt_shared_and_kill_self();
	} else if (strcmp(attack, "dead") == 0) {
		hostile_name_dead_slot_as_holder(argv[1]);
	} else if (strcmp(attack, "locks") == 0) {
		hostile_leave_ring_locks_held();
		raise(SIGKILL);
	} else if (strcmp(attack, "stay") == 0) {
		hostile_leave_ring_locks_held();
		while (hostile_now_ms() < end_ms)
			usleep(10000);
	} else if (strcmp(attack, "greedy") == 0) {
		hostile_take_all_places_and_slots(argv[1]);
	} else {
		return 2;
	}
	puts("done");
	return 0;
}
