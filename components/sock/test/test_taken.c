/* Sockets that another process takes (pidfd_getfd): who may ask for them, and what it costs who is asked. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vma/sock_unix.h>
#include <vma/test.h>

#include "../engine/engine.h"
#include "fake_file.h"
#include "small_engine.h"

static _Atomic unsigned handed_over;

static void fake_hand_over_mark_passed_on(struct vma_file *file)
{
	atomic_store(&fake_of(file)->reason, VMA_SOCK_PASSED_ON);
	atomic_fetch_add(&handed_over, 1);
}

static void fake_hand_over_do_nothing(struct vma_file *file)
{
	(void)file;
}

static struct vma_file_ops ops, ops_that_stay, ops_that_hold_up;

/* A file before a socket of the kernel's, as if it were offloaded. */
static int install_fake_offloaded_socket(const struct vma_file_ops *its_ops)
{
	struct fake_file *fake = fake_file_create();
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	fake->file.ops = its_ops;
	atomic_store(&fake->reason, VMA_SOCK_OFFLOADED);
	assert_int_equal(vma_fd_install(fd, &fake->file), 0);
	return fd;
}

static void taken_remove_and_close_fd(int fd)
{
	vma_fd_remove(fd);
	close(fd);
	fake_poll_until_retired_are_freed();
}

/* In another process: asks this one for its descriptor `number`, which `copy` is a copy of. */
static int ask_for_fd_from_other_process(int number, int copy, uid_t uid)
{
	const int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	const pid_t child = fork();
	int status = -1;

	if (child == 0) {
		if (uid != 0 && setuid(uid) != 0)
			_exit(99);
		_exit(-vma_engine_ask_process_to_hand_over_fd(self, number, copy) & 0xff);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	close(self);
	return WIFEXITED(status) ? -(int)(int8_t)WEXITSTATUS(status) : -1000;
}

static void test_who_shows_the_socket_gets_it_handed_over(void **state)
{
	const unsigned before = atomic_load(&handed_over);
	const int fd = install_fake_offloaded_socket(&ops), other = install_fake_offloaded_socket(&ops);

	(void)state;
	assert_int_equal(ask_for_fd_from_other_process(fd, fd, 0), 1);
	assert_int_equal(atomic_load(&handed_over), before + 1);
	assert_int_equal(ask_for_fd_from_other_process(fd, fd, 0), 1); /* already */
	taken_remove_and_close_fd(other);
	taken_remove_and_close_fd(fd);
}

static void test_a_socket_that_cannot_be_handed_over_stays(void **state)
{
	const int fd = install_fake_offloaded_socket(&ops_that_stay);

	(void)state;
	assert_int_equal(ask_for_fd_from_other_process(fd, fd, 0), -EOPNOTSUPP);
	taken_remove_and_close_fd(fd);
}

static void test_another_socket_and_other_descriptors_are_not_handed_over(void **state)
{
	const unsigned before = atomic_load(&handed_over);
	const int fd = install_fake_offloaded_socket(&ops), other = install_fake_offloaded_socket(&ops);
	const int kernels = socket(AF_INET, SOCK_DGRAM, 0);

	(void)state;
	assert_int_equal(ask_for_fd_from_other_process(fd, other, 0), 0);
	assert_int_equal(ask_for_fd_from_other_process(kernels, kernels, 0), 0);
	assert_int_equal(ask_for_fd_from_other_process(999999, fd, 0), 0);
	assert_int_equal(ask_for_fd_from_other_process(-1, fd, 0), 0);
	assert_int_equal(ask_for_fd_from_other_process(fd, STDIN_FILENO, 0), -ENOTSOCK);
	assert_int_equal(atomic_load(&handed_over), before);
	close(kernels);
	taken_remove_and_close_fd(other);
	taken_remove_and_close_fd(fd);
}

/* Other processes have such names, too: this one's ends with the inode of its pidfd, or with its pid. */
static const char *find_own_abstract_socket_name(void)
{
	const int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	FILE *sockets = fopen("/proc/net/unix", "r");
	char line[256], by_inode[64], by_pid[64];
	static char name[64];
	struct stat state;

	assert_int_equal(fstat(self, &state), 0);
	close(self);
	snprintf(by_inode, sizeof(by_inode), "vma/process/%llu", (unsigned long long)state.st_ino);
	snprintf(by_pid, sizeof(by_pid), "vma/process/pid/%d", (int)getpid());
	name[0] = '\0';
	while (fgets(line, sizeof(line), sockets) != NULL) {
		const char *at = strchr(line, '@');

		line[strcspn(line, "\n")] = '\0';
		if (at != NULL && (strcmp(at + 1, by_inode) == 0 || strcmp(at + 1, by_pid) == 0))
			snprintf(name, sizeof(name), "%s", at + 1);
	}
	fclose(sockets);
	return name;
}

/* As in engine/taken.c. */
enum { REFUSED = 4 };
struct question {
	uint64_t cookie;
	int32_t number;
};

static unsigned own_open_fd_count(void)
{
	DIR *all = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(all) != NULL)
		n++;
	closedir(all);
	return n;
}

static uint64_t so_cookie_of_fd(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len);
	return cookie;
}

/* Nobody but root and the own user is heard, even if it shows the socket. */
static void test_another_user_is_refused(void **state)
{
	const unsigned before = atomic_load(&handed_over);
	const int fd = install_fake_offloaded_socket(&ops);
	struct question question = {.cookie = so_cookie_of_fd(fd), .number = fd};
	const char *name = find_own_abstract_socket_name();
	int status = -1;
	pid_t child;

	(void)state;
	if (getuid() != 0) {
		taken_remove_and_close_fd(fd);
		vma_test_skip("it takes root to become another user");
		return;
	}
	child = fork();
	if (child == 0) {
		struct vma_unix_message message = {.data = &question, .size = sizeof(question), .fd = fd};
		uint8_t answer = 0;
		struct vma_unix_message answered = {.data = &answer, .size = sizeof(answer)};
		int to;

		if (setgid(65534) != 0 || setuid(65534) != 0)
			_exit(99);
		to = vma_unix_connect_abstract(name);
		if (to < 0 || vma_unix_send(to, &message) != 0 ||
		    !vma_unix_poll_until_deadline(to, POLLIN, vma_now_ns() + 20000000000ULL) ||
		    vma_unix_recv_with_sender_and_fd(to, &answered, false) != sizeof(answer))
			_exit(98);
		_exit(answer == REFUSED ? 0 : 97);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(atomic_load(&handed_over), before);
	taken_remove_and_close_fd(fd);
}

static void test_a_descriptor_that_is_not_wanted_is_not_received(void **state)
{
	char data[4], got[8];
	const struct vma_unix_message given = {.data = data, .size = sizeof(data), .fd = STDERR_FILENO};
	struct vma_unix_message taken = {.data = got, .size = sizeof(got)};
	int server = vma_unix_bind_abstract("vma/test/unwanted"),
	    client = vma_unix_connect_abstract("vma/test/unwanted");
	struct vma_unix_cred sender;
	unsigned before;

	(void)state;
	memset(data, 0, sizeof(data));
	assert_true(server >= 0 && client >= 0);
	assert_int_equal(vma_unix_bind_abstract("vma/test/unwanted"), -EADDRINUSE);
	before = own_open_fd_count();
	assert_int_equal(vma_unix_peek_sender_cred(server, &sender), -EAGAIN);
	assert_int_equal(vma_unix_send(client, &given), 0);
	assert_int_equal(vma_unix_peek_sender_cred(server, &sender), 0);
	assert_int_equal(sender.pid, getpid());
	assert_int_equal(sender.uid, getuid());
	assert_int_equal(own_open_fd_count(), before);
	assert_int_equal(vma_unix_recv_with_sender_and_fd(server, &taken, false), sizeof(data));
	assert_int_equal(taken.fd, -1);
	assert_int_equal(own_open_fd_count(), before);
	assert_int_equal(vma_unix_send(client, &given), 0);
	assert_int_equal(vma_unix_recv_with_sender_and_fd(server, &taken, true), sizeof(data));
	assert_true(taken.fd >= 0);
	assert_int_equal(own_open_fd_count(), before + 1);
	close(taken.fd);
	close(client);
	vma_fd_unguard_close(server);
}

static _Atomic bool is_held, may_go;
static unsigned handed_over_by_then;

/* The first one is held up, so that others come meanwhile. */
static void hand_over_waiting_until_allowed(struct vma_file *file)
{
	const struct timespec nap = {.tv_nsec = 100000};

	atomic_store(&is_held, true);
	while (!atomic_load(&may_go))
		nanosleep(&nap, NULL);
	fake_hand_over_mark_passed_on(file);
}

static void task_record_handed_over_count(struct vma_internal_task *task)
{
	(void)task;
	handed_over_by_then = atomic_load(&handed_over);
}

static _Atomic bool has_turned;

static void task_set_has_turned(struct vma_internal_task *task)
{
	(void)task;
	atomic_store(&has_turned, true);
}

/* So many messages are answered, then the thread does what else there is, and the rest later. */
static void test_questions_are_bounded(void **state)
{
	enum { QUESTIONS_SERVED_AT_ONCE = 8 };
	static struct vma_internal_task other_work = {.run = task_record_handed_over_count},
	                                turn = {.run = task_set_has_turned};
	const struct timespec nap = {.tv_nsec = 5000000};
	const unsigned before = atomic_load(&handed_over);
	const int fd = install_fake_offloaded_socket(&ops_that_hold_up),
	          to = vma_unix_connect_abstract(find_own_abstract_socket_name());
	struct question question = {.cookie = so_cookie_of_fd(fd), .number = fd};
	const struct vma_unix_message asked = {.data = &question, .size = sizeof(question), .fd = fd};
	unsigned sent = 1;

	(void)state;
	vma_engine_post_task_to_internal_thread(&turn); /* once it has run, the messages of tests before do not count */
	while (!atomic_load(&has_turned))
		nanosleep(&nap, NULL);
	assert_int_equal(vma_unix_send(to, &asked), 0);
	while (!atomic_load(&is_held))
		nanosleep(&nap, NULL);
	while (vma_unix_send(to, &asked) == 0)
		sent++;
	assert_true(sent > QUESTIONS_SERVED_AT_ONCE);
	vma_engine_post_task_to_internal_thread(&other_work);
	atomic_store(&may_go, true);
	for (int i = 0; i < 4000 && atomic_load(&handed_over) < before + sent; i++)
		nanosleep(&nap, NULL);
	assert_int_equal(atomic_load(&handed_over), before + sent);
	assert_in_range(handed_over_by_then - before, 1,
	                QUESTIONS_SERVED_AT_ONCE); /* what came before may have had a part of it */
	close(to);
	taken_remove_and_close_fd(fd);
}

static void test_what_proc_says_of_a_pidfd(void **state)
{
	static const char here[] = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t77\nPid:\t1234\nNSpid:\t1234\n";
	static const char inner[] = "pos:\t0\nPid:\t1234\nNSpid:\t1234\t56\t7\n";
	static const char outer[] = "pos:\t0\nPid:\t0\nNSpid:\t0\n";
	static const char dead[] = "pos:\t0\nPid:\t-1\n";

	(void)state;
	assert_int_equal(parse_pid_of_fdinfo(here), 1234);
	assert_int_equal(parse_innermost_pid_of_fdinfo(here), 1234);
	assert_int_equal(parse_pid_of_fdinfo(inner), 1234);
	assert_int_equal(parse_innermost_pid_of_fdinfo(inner), 7);
	assert_int_equal(parse_pid_of_fdinfo(outer), 0);
	assert_int_equal(parse_innermost_pid_of_fdinfo(outer), 0);
	assert_int_equal(parse_pid_of_fdinfo(dead), -1);
	assert_int_equal(parse_innermost_pid_of_fdinfo(dead), 0);
	assert_int_equal(parse_pid_of_fdinfo(""), 0);
}

static int setup_engine_for_pidfd_getfd(void **state)
{
	struct vma_engine *engine;

	(void)state;
	ops = ops_that_stay = ops_that_hold_up = fake_ops;
	ops.hand_over = fake_hand_over_mark_passed_on;
	ops_that_stay.hand_over = fake_hand_over_do_nothing;
	ops_that_hold_up.hand_over = hand_over_waiting_until_allowed;
	engine = start_engine_with_few_buffers("1024", "128");
	if (engine == NULL)
		return -1;
	taken_open_hand_over_server();
	return 0;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_who_shows_the_socket_gets_it_handed_over),
	        cmocka_unit_test(test_a_socket_that_cannot_be_handed_over_stays),
	        cmocka_unit_test(test_another_socket_and_other_descriptors_are_not_handed_over),
	        cmocka_unit_test(test_another_user_is_refused),
	        cmocka_unit_test(test_a_descriptor_that_is_not_wanted_is_not_received),
	        cmocka_unit_test(test_questions_are_bounded),
	        cmocka_unit_test(test_what_proc_says_of_a_pidfd),
	};

	return cmocka_run_group_tests_name("taken", tests, setup_engine_for_pidfd_getfd, NULL);
}
