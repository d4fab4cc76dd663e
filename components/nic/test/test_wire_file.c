/* The two-process form: who is there, who takes over, and what a peer that writes nonsense can do. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "../wire/file.h"
#include "../wire/wire.h"
#include "fixture.h"

#define PORT 21000
#define PEER_PORT 22000

static char path[64], spec[80];

static int setup(void **state)
{
	static int n;

	(void)state;
	snprintf(path, sizeof(path), "/tmp/vma-wire-test.%d.%d", getpid(), n++);
	snprintf(spec, sizeof(spec), "wire:%s", path);
	return 0;
}

static int teardown_unlink_wire_file(void **state)
{
	(void)state;
	unlink(path);
	return 0;
}

/* One end alone: w.nic[end] with a queue pair that receives UDP to PORT. */
static void wire_file_open_end(struct fixture *w, int end)
{
	struct vma_nic_attr attr = {.arena = w->arena};

	assert_int_equal(vma_nic_open(spec, &attr, &w->nic[end]), 0);
	fixture_create_qp_with_posted_rx(w, end, 0, 256);
	fixture_add_flow(w, end, 0, IPPROTO_UDP, PORT, 0, 0);
}

static void wire_file_make_fixture(struct fixture *w)
{
	memset(w, 0, sizeof(*w));
	w->arena = fixture_arena();
	w->netns[0] = w->netns[1] = -1;
}

static void wire_file_close_fixture(struct fixture *w)
{
	for (int end = 0; end < 2; end++)
		if (w->nic[end] != NULL)
			fixture_nic_close(w, end);
	vma_bufpool_flush_thread(w->arena);
	vma_bufarena_destroy(w->arena);
}

/* The other process: answers each frame with its number plus one. Ends by kill. Frames carry no names, so the addresses
 * of the other end are made up: nobody checks a MAC on a wire. */
static _Noreturn void echo_process(void)
{
	struct fixture w;
	struct packet *packet = malloc(sizeof(*packet));

	wire_file_make_fixture(&w);
	wire_file_open_end(&w, 1);
	for (;;) {
		if (fixture_poll_one_packet(w.qp[1][0], packet))
			fixture_send(&w, 1, 0,
			             udp(PORT, PORT, packet->len, frame_number(packet->bytes, IPPROTO_UDP) + 1));
		else if (vma_nic_arm(w.qp[1][0]) == 0)
			wait_fd_readable(vma_nic_fd(w.qp[1][0]), -1);
	}
}

/* An end whose process forks: the child inherits every descriptor, and only lives. */
static _Noreturn void wire_end_forks_idle_child_process(int fd)
{
	struct fixture w;
	pid_t child;

	wire_file_make_fixture(&w);
	wire_file_open_end(&w, 1);
	child = fork();
	if (child != 0)
		(void)!write(fd, &child, sizeof(child));
	else
		alarm(30);
	for (;;)
		pause();
}

/*
 * Runs this program again as the other end: a fresh process, not a fork of one that has threads. A forker writes its
 * forked child's pid to `fd`.
 */
static pid_t start_process_as_other_end(const char *role, int fd)
{
	pid_t pid = fork();
	char number[16];

	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* when an assertion ends the test, this ends too */
		snprintf(number, sizeof(number), "%d", fd);
		execl("/proc/self/exe", "test_wire_file", role, spec, number, NULL);
		_exit(127);
	}
	return pid;
}

static pid_t start_echo_process_as_other_end(void)
{
	return start_process_as_other_end("echo", -1);
}

static void wire_file_kill_process(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* Until the other end answers: frames are lost while there is no link. */
static bool other_end_answers_frame(struct fixture *w, uint32_t number)
{
	struct packet *packet = malloc(sizeof(*packet));
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;
	bool yes = false;

	while (!yes && fixture_now_ns() < give_up) {
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 200, number));
		while (!yes && fixture_recv(w->qp[0][0], packet, 10000000))
			yes = frame_number(packet->bytes, IPPROTO_UDP) == number + 1;
	}
	free(packet);
	return yes;
}

static void test_two_processes_exchange_frames(void **state)
{
	struct fixture w;
	struct packet *packet = malloc(sizeof(*packet));
	pid_t pid = start_echo_process_as_other_end();

	(void)state;
	wire_file_make_fixture(&w);
	wire_file_open_end(&w, 0);
	assert_true(other_end_answers_frame(&w, 1000000));
	while (fixture_recv(w.qp[0][0], packet, 20000000))
		; /* answers to what was sent while waiting */
	for (uint32_t i = 0; i < 2000; i++) {
		fixture_send(&w, 0, 0, udp(PEER_PORT, PORT, 60 + i % 1400, i));
		assert_true(fixture_recv(w.qp[0][0], packet, FIXTURE_TIMEOUT_NS));
		assert_int_equal(packet->len, 60 + i % 1400);
		assert_int_equal(frame_number(packet->bytes, IPPROTO_UDP), i + 1);
	}
	wire_file_kill_process(pid);
	wire_file_close_fixture(&w);
	free(packet);
}

static void test_a_third_end_is_refused(void **state)
{
	struct fixture w;
	struct vma_nic *third;

	(void)state;
	wire_file_make_fixture(&w);
	struct vma_nic_attr attr = {.arena = w.arena};
	wire_file_open_end(&w, 0);
	wire_file_open_end(&w, 1);
	assert_int_equal(vma_nic_open(spec, &attr, &third), -EBUSY);
	fixture_nic_close(&w, 1);
	wire_file_open_end(&w, 1); /* the place is free again */
	wire_file_close_fixture(&w);
}

static void test_a_new_process_takes_the_place_of_a_dead_one(void **state)
{
	struct fixture w;

	(void)state;
	wire_file_make_fixture(&w);
	for (int first = 0; first < 2; first++) { /* as joiner, then as listener */
		pid_t pid;
		if (first)
			wire_file_open_end(&w, 0);
		pid = start_echo_process_as_other_end();
		if (!first)
			while (access(path, F_OK) != 0)
				usleep(1000);
		if (!first)
			wire_file_open_end(&w, 0);
		for (uint32_t round = 0; round < 3; round++) {
			assert_true(other_end_answers_frame(&w, round * 10));
			wire_file_kill_process(pid);
			pid = start_echo_process_as_other_end();
		}
		assert_true(other_end_answers_frame(&w, 77));
		wire_file_kill_process(pid);
		fixture_nic_close(&w, 0);
		unlink(path);
	}
	wire_file_close_fixture(&w);
}

static void test_a_dead_peers_forked_child_does_not_keep_its_place(void **state)
{
	struct fixture w;
	int pipe_fd[2];
	pid_t pid, grandchild;

	(void)state;
	wire_file_make_fixture(&w);
	wire_file_open_end(&w, 0);
	assert_int_equal(pipe(pipe_fd), 0);
	pid = start_process_as_other_end("fork", pipe_fd[1]);
	close(pipe_fd[1]);
	assert_int_equal(read(pipe_fd[0], &grandchild, sizeof(grandchild)), sizeof(grandchild));
	wire_file_kill_process(pid);
	pid = start_echo_process_as_other_end();
	assert_true(other_end_answers_frame(&w, 1));
	kill(grandchild, SIGKILL);
	wire_file_kill_process(pid);
	close(pipe_fd[0]);
	wire_file_close_fixture(&w);
}

static void test_a_stopped_peer_stalls_nobody(void **state)
{
	struct fixture w;
	struct vma_wire_counts counts;
	pid_t pid = start_echo_process_as_other_end();

	(void)state;
	wire_file_make_fixture(&w);
	wire_file_open_end(&w, 0);
	assert_true(other_end_answers_frame(&w, 1));
	kill(pid, SIGSTOP);
	uint64_t start = fixture_now_ns();
	for (uint32_t i = 0; i < 5000; i++) /* ten times what the lane holds */
		fixture_send(&w, 0, 0, udp(PEER_PORT, PORT, 100, i));
	assert_true(fixture_now_ns() - start < FIXTURE_TIMEOUT_NS);
	vma_wire_read_counters(w.nic[0], &counts);
	assert_in_range(counts.queue_full, 4000, 5000);
	kill(pid, SIGCONT);
	assert_true(other_end_answers_frame(&w, 1000000));
	wire_file_kill_process(pid);
	wire_file_close_fixture(&w);
}

static void test_a_peer_that_shuts_the_bell_keeps_nobody_awake(void **state)
{
	struct fixture w;
	uint64_t start = fixture_now_ns();

	(void)state;
	wire_file_make_fixture(&w);
	wire_file_open_end(&w, 0);
	wire_file_open_end(&w, 1);
	shutdown(atomic_load(&wire_end_of_nic(w.nic[1])->doorbell_fd), SHUT_RDWR);
	do
		assert_true(fixture_now_ns() - start < FIXTURE_TIMEOUT_NS);
	while (vma_nic_arm(w.qp[0][0]) != 0 || wait_fd_readable(vma_nic_fd(w.qp[0][0]), 50));
	wire_file_close_fixture(&w);
}

static void test_mtu_is_part_of_the_name(void **state)
{
	struct fixture w;
	struct vma_nic *nic;
	char big[100];

	(void)state;
	wire_file_make_fixture(&w);
	struct vma_nic_attr attr = {.arena = w.arena};
	wire_file_open_end(&w, 0);
	snprintf(big, sizeof(big), "%s,mtu=9000", spec);
	assert_int_equal(vma_nic_open(big, &attr, &nic), -EPROTO); /* the other end has 1500 */
	fixture_nic_close(&w, 0);
	assert_int_equal(vma_nic_open(big, &attr, &nic), 0);
	assert_int_equal(vma_nic_info(nic)->mtu, 9000);
	vma_nic_close(nic);
	snprintf(big, sizeof(big), "%s,mtu=12", spec);
	assert_int_equal(vma_nic_open(big, &attr, &nic), -EINVAL);
	snprintf(big, sizeof(big), "%s,speed=12", spec);
	assert_int_equal(vma_nic_open(big, &attr, &nic), -EINVAL);
	assert_int_equal(vma_nic_open("wire:/nonexistent/file", &attr, &nic), -ENOENT);
	wire_file_close_fixture(&w);
}

/* ---- a listener that is not one of us ---- */

static int listen_on_unix_path(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, path, strlen(path) + 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 1), 0);
	return fd;
}

struct wire_hello_offer {
	int listen_fd;
	struct wire_hello hello;
	int memfd;
	bool silent, late;
};

static void *wire_hello_accept_and_send_thread(void *arg)
{
	struct wire_hello_offer *wire_hello_offer = arg;
	int fd = accept(wire_hello_offer->listen_fd, NULL, NULL), bell[2];

	socketpair(AF_UNIX, SOCK_STREAM, 0, bell);
	if (wire_hello_offer->late)
		usleep(50000);
	if (wire_hello_offer->silent)
		usleep(1500000);
	else
		wire_hello_send(fd, &wire_hello_offer->hello, (int[]){wire_hello_offer->memfd, bell[0]},
		                wire_hello_offer->memfd >= 0 ? 2 : 0);
	usleep(1000);
	close(bell[0]);
	close(bell[1]);
	close(fd);
	return NULL;
}

static int open_wire_with_offer(struct wire_hello_offer wire_hello_offer)
{
	struct vma_bufarena *arena = fixture_arena();
	struct vma_nic_attr attr = {.arena = arena};
	struct vma_nic *nic = NULL;
	sigset_t all, before;
	pthread_t thread;

	wire_hello_offer.listen_fd = listen_on_unix_path();
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the listener's thread is not to be disturbed */
	pthread_create(&thread, NULL, wire_hello_accept_and_send_thread, &wire_hello_offer);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	int rc = vma_nic_open(spec, &attr, &nic);
	pthread_join(thread, NULL);
	vma_nic_close(nic);
	close(wire_hello_offer.listen_fd);
	if (wire_hello_offer.memfd >= 0)
		close(wire_hello_offer.memfd);
	unlink(path);
	vma_bufarena_destroy(arena);
	return rc;
}

static void test_a_bad_offer_is_refused(void **state)
{
	struct wire_layout layout;
	struct wire_hello good = {
	        .magic = WIRE_HELLO_MAGIC, .version = WIRE_HELLO_VERSION, .slots = 512, .mtu = 1500, .nonce = 9};
	struct wire_hello bad;
	int plain;

	(void)state;
	wire_layout_init(&layout, 512, 1500);
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){
	                         .hello = good, .memfd = wire_create_sealed_memfd(layout.bytes)}),
	                 0);
	bad = good;
	bad.magic++;
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){
	                         .hello = bad, .memfd = wire_create_sealed_memfd(layout.bytes)}),
	                 -EPROTO);
	bad = good;
	bad.slots = 1U << 31;
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){
	                         .hello = bad, .memfd = wire_create_sealed_memfd(layout.bytes)}),
	                 -EPROTO);
	bad = good;
	bad.nonce = 0;
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){
	                         .hello = bad, .memfd = wire_create_sealed_memfd(layout.bytes)}),
	                 -EPROTO);
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){.hello = good, .memfd = -1}), -EPROTO);
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){
	                         .hello = good, .memfd = wire_create_sealed_memfd(layout.bytes - 4096)}),
	                 -EPROTO);
	plain = memfd_create("not sealed", MFD_CLOEXEC);
	assert_int_equal(ftruncate(plain, (off_t)layout.bytes), 0);
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){.hello = good, .memfd = plain}), -EPROTO);
	plain = open("/dev/zero", O_RDWR);
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){.hello = good, .memfd = plain}), -EPROTO);
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){.silent = true, .memfd = -1}), -ETIMEDOUT);
}

static _Atomic int alarms;

static void count_alarm(int signo)
{
	(void)signo;
	alarms++;
}

static void test_signals_do_not_disturb_an_open_that_waits(void **state)
{
	struct sigaction action = {.sa_handler = count_alarm, .sa_flags = SA_RESTART}, before;
	struct itimerval often = {{0, 1000}, {0, 1000}}, off = {0};
	struct wire_hello hello = {
	        .magic = WIRE_HELLO_MAGIC, .version = WIRE_HELLO_VERSION, .slots = 512, .mtu = 1500, .nonce = 9};
	struct wire_layout layout;

	(void)state;
	wire_layout_init(&layout, 512, 1500);
	sigaction(SIGALRM, &action, &before);
	setitimer(ITIMER_REAL, &often, NULL);
	assert_int_equal(open_wire_with_offer((struct wire_hello_offer){
	                         .hello = hello, .memfd = wire_create_sealed_memfd(layout.bytes), .late = true}),
	                 0);
	setitimer(ITIMER_REAL, &off, NULL);
	sigaction(SIGALRM, &before, NULL);
	assert_true(alarms > 0);
}

/* ---- nonsense in the memory ---- */

static void test_nonsense_from_the_peer_is_counted_and_dropped(void **state)
{
	struct fixture w;
	struct vma_wire_counts counts;
	struct packet *packet = malloc(sizeof(*packet));

	(void)state;
	wire_file_make_fixture(&w);
	wire_file_open_end(&w, 0);
	wire_file_open_end(&w, 1);
	struct wire_end *end = wire_end_of_nic(w.nic[0]), *peer = wire_end_of_nic(w.nic[1]);
	struct wire_producer *tx = &wire_qp_of_nic_qp(w.qp[1][0])->tx;
	uint32_t lengths[] = {0, 13, 1519, 65536, 0x80000000U, UINT32_MAX};
	for (uint32_t i = 0; i < 6; i++) { /* the peer writes lengths that cannot be */
		struct wire_slot *slot = wire_producer_next_slot(tx);
		tx->nonce = atomic_load(&peer->nonce);
		wire_producer_push(tx, slot, lengths[i]);
		wire_producer_publish(tx);
		assert_false(fixture_poll_one_packet(w.qp[0][0], packet));
	}
	vma_wire_read_counters(w.nic[0], &counts);
	assert_int_equal(counts.bad_peer, 6);
	/* An index ahead of what was sent, when the lane is full. */
	struct wire_side_page *page = wire_side_page(peer->memory, peer->side);
	struct frame_spec frame = udp(PEER_PORT, PORT, 100, 1);
	uint64_t nonsense[] = {5000, UINT32_MAX, 1U << 31, 513};
	for (uint32_t i = 0; i < 512; i++) {
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(&w, 0, 0, &frame);
		assert_int_equal(vma_nic_tx(w.qp[0][0], &seg, 1), 1);
		vma_nic_kick(w.qp[0][0]);
		fixture_reap_and_free_tx_bufs(w.qp[0][0]);
	}
	for (uint32_t i = 0; i < 4; i++) {
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(&w, 0, 0, &frame);
		atomic_store(&page->consumed[0].value,
		             wire_index_with_nonce(atomic_load(&end->nonce), (uint32_t)nonsense[i]));
		assert_int_equal(vma_nic_tx(w.qp[0][0], &seg, 1), 0);
		vma_buf_put(w.arena, seg.buf);
	}
	vma_wire_read_counters(w.nic[0], &counts);
	assert_int_equal(counts.bad_peer, 10);
	free(packet);
	wire_file_close_fixture(&w);
}

static const struct CMUnitTest tests[] = {
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown_unlink_wire_file)
        CASE(test_two_processes_exchange_frames),
        CASE(test_a_third_end_is_refused),
        CASE(test_a_new_process_takes_the_place_of_a_dead_one),
        CASE(test_a_dead_peers_forked_child_does_not_keep_its_place),
        CASE(test_a_stopped_peer_stalls_nobody),
        CASE(test_a_peer_that_shuts_the_bell_keeps_nobody_awake),
        CASE(test_mtu_is_part_of_the_name),
        CASE(test_a_bad_offer_is_refused),
        CASE(test_signals_do_not_disturb_an_open_that_waits),
        CASE(test_nonsense_from_the_peer_is_counted_and_dropped),
};

int main(int argc, char **argv)
{

	if (argc == 4) {
		snprintf(spec, sizeof(spec), "%s", argv[2]);
		if (strcmp(argv[1], "echo") == 0)
			echo_process();
		wire_end_forks_idle_child_process(atoi(argv[3]));
	}
	vma_test_set_filter_from_env();
	return cmocka_run_group_tests_name(__FILE__, tests, NULL, NULL);
}
