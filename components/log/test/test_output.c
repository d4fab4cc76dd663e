/* Where lines go, and what happens when they cannot. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <vma/test.h>

#include "sink.h"

static struct sink sink;
static char dir[64];

static int output_make_dir(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/vma_log_test.XXXXXX");
	return mkdtemp(dir) == NULL;
}

static int output_remove_dir(void **state)
{
	(void)state;
	return rmdir(dir);
}

/* Logs one line to DIR/name and tells whether DIR/wanted has it now; removes it. */
static bool log_line_lands_in_file(const char *name, const char *wanted)
{
	char path[128], found[128] = "";
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_int_equal(vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = path}), 0);
	vma_log_info("here");
	vma_log_fini();
	snprintf(path, sizeof(path), "%s/%s", dir, wanted);
	file = fopen(path, "r");
	if (file != NULL) {
		assert_non_null(fgets(found, sizeof(found), file));
		fclose(file);
	}
	unlink(path);
	return strcmp(found, "VMA INFO: here\n") == 0;
}

static void test_single_percent_d_becomes_the_pid(void **state)
{
	char wanted[64];

	(void)state;
	snprintf(wanted, sizeof(wanted), "log.%d.txt", getpid());
	assert_true(log_line_lands_in_file("log.%d.txt", wanted));
	snprintf(wanted, sizeof(wanted), "%d", getpid());
	assert_true(log_line_lands_in_file("%d", wanted));
	snprintf(wanted, sizeof(wanted), "100%%s%d", getpid());
	assert_true(log_line_lands_in_file("100%s%d", wanted));
}

static void test_other_percents_stay_as_they_are(void **state)
{
	(void)state;
	assert_true(log_line_lands_in_file("a%db%dc", "a%db%dc"));
	assert_true(log_line_lands_in_file("50%", "50%"));
	assert_true(log_line_lands_in_file("%s%n%x%%", "%s%n%x%%"));
	assert_true(log_line_lands_in_file("plain", "plain"));
}

static void test_file_is_appended_to(void **state)
{
	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 0);
	vma_log_info("one");
	vma_log_fini();
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = sink.path});
	vma_log_info("two");
	assert_string_equal(sink_read(&sink), "VMA INFO: one\nVMA INFO: two\n");
	sink_close(&sink);
}

static void test_file_that_cannot_be_opened_is_said_once_and_stderr_serves(void **state)
{
	struct vma_log_attr attr = {.level = VMA_LOG_INFO, .file = "/nonexistent/dir/log"};

	(void)state;
	sink_redirect_stderr_to_memfd(&sink);
	assert_int_equal(vma_log_init(&attr), -ENOENT);
	assert_int_equal(vma_log_init(&attr), -ENOENT);
	vma_log_info("still heard");
	sink_read(&sink);
	assert_int_equal(
	        count_word_in_text(sink.text, "VMA WARNING: cannot open VMA_LOG_FILE '/nonexistent/dir/log': No such"),
	        1);
	assert_int_equal(count_word_in_text(sink.text, "VMA INFO: still heard\n"), 1);
	sink_close(&sink);
}

static void test_file_that_fails_later_is_said_once_and_no_line_is_lost(void **state)
{
	(void)state;
	sink_redirect_stderr_to_memfd(&sink);
	assert_int_equal(vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = "/dev/full"}), 0);
	vma_log_info("one");
	vma_log_info("two");
	assert_string_equal(sink_read(&sink), "VMA WARNING: cannot write to VMA_LOG_FILE: No space left on device; "
	                                      "the log goes to stderr\nVMA INFO: one\nVMA INFO: two\n");
	sink_close(&sink);
}

/* A program that has closed its stderr gets the number for the next socket that it opens. */
static void test_network_socket_with_the_number_of_stderr_gets_no_line(void **state)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(to);
	int peer = socket(AF_INET, SOCK_DGRAM, 0), s = socket(AF_INET, SOCK_DGRAM, 0);
	int saved = dup(STDERR_FILENO);
	char bytes[64];

	(void)state;
	assert_int_equal(bind(peer, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_int_equal(getsockname(peer, (struct sockaddr *)&to, &len), 0);
	assert_int_equal(connect(s, (struct sockaddr *)&to, sizeof(to)), 0);
	dup2(s, STDERR_FILENO);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO});
	vma_log_info("not for the peer");
	send(s, "own", 3, 0);
	dup2(saved, STDERR_FILENO);
	assert_int_equal(recv(peer, bytes, sizeof(bytes), 0), 3);
	close(saved);
	close(peer);
	close(s);
}

static void test_unix_socket_as_stderr_gets_lines(void **state)
{
	int pair[2], saved = dup(STDERR_FILENO);
	char bytes[64] = "";

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	dup2(pair[1], STDERR_FILENO);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO});
	vma_log_info("for the journal");
	dup2(saved, STDERR_FILENO);
	assert_true(recv(pair[0], bytes, sizeof(bytes) - 1, MSG_DONTWAIT) > 0);
	assert_string_equal(bytes, "VMA INFO: for the journal\n");
	close(saved);
	close(pair[0]);
	close(pair[1]);
}

static void test_level_beyond_this_build_is_said(void **state)
{
	(void)state;
	sink_redirect_stderr_to_memfd(&sink);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_FINER});
	assert_int_equal(count_word_in_text(sink_read(&sink), "libvma-debug.so"), VMA_LOG_COMPILED < VMA_LOG_FINER);
	sink_close(&sink);
}

static unsigned count_open_fds(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 2048; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void test_starting_again_keeps_one_descriptor_and_fini_none(void **state)
{
	unsigned before;

	(void)state;
	sink_open_log_memfd(&sink);
	before = count_open_fds();
	for (int i = 0; i < 10; i++) {
		vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = sink.path});
		assert_int_equal(count_open_fds(), before + 1);
		vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO});
		assert_int_equal(count_open_fds(), before + 1);
	}
	vma_log_fini();
	assert_int_equal(count_open_fds(), before);
	sink_close(&sink);
}

static void test_descriptor_that_the_program_took_over_is_left_alone(void **state)
{
	struct stat ours, now;
	int taken = -1;

	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 0);
	for (int fd = 1000; fd < 2048 && taken < 0; fd++)
		taken = fcntl(fd, F_GETFD) >= 0 ? fd : -1;
	assert_true(taken >= 1000);
	assert_int_equal(dup2(STDIN_FILENO, taken), taken); /* as after closefrom(3) and many opens */
	assert_int_equal(fstat(taken, &ours), 0);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = sink.path});
	vma_log_fini();
	assert_int_equal(fstat(taken, &now), 0);
	assert_int_equal(ours.st_ino, now.st_ino);
	close(taken);
	sink_close(&sink);
}

static void test_reader_that_has_gone_does_not_end_the_program(void **state)
{
	int ends[2], saved = dup(STDERR_FILENO);
	sigset_t pending;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	close(ends[0]);
	dup2(ends[1], STDERR_FILENO);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO});
	vma_log_info("nobody hears");
	sigpending(&pending);
	dup2(saved, STDERR_FILENO);
	close(ends[1]);
	close(saved);
	assert_false(sigismember(&pending, SIGPIPE));
}

static void test_pending_signal_of_the_program_is_kept(void **state)
{
	int ends[2], saved = dup(STDERR_FILENO);
	const struct timespec at_once = {0};
	sigset_t pipe_signal, pending;

	(void)state;
	sigemptyset(&pipe_signal);
	sigaddset(&pipe_signal, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe_signal, NULL);
	pthread_kill(pthread_self(), SIGPIPE);
	assert_int_equal(pipe(ends), 0);
	close(ends[0]);
	dup2(ends[1], STDERR_FILENO);
	vma_log_info("nobody hears");
	dup2(saved, STDERR_FILENO);
	close(ends[1]);
	close(saved);
	sigpending(&pending);
	assert_true(sigismember(&pending, SIGPIPE));
	sigtimedwait(&pipe_signal, NULL, &at_once);
	pthread_sigmask(SIG_UNBLOCK, &pipe_signal, NULL);
}

static void test_file_size_limit_does_not_end_the_program(void **state)
{
	int status;
	pid_t child;

	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 0);
	child = fork();
	if (child == 0) {
		int null = open("/dev/null", O_WRONLY);
		dup2(null, STDERR_FILENO);
		setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 0, .rlim_max = 0});
		vma_log_info("too much");
		_exit(7);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
	sink_close(&sink);
}

/* A pipe as small as they come, as stderr; full but for less than a line. */
struct pipe_stderr {
	int ends[2], saved;
	size_t filled;
};

static void pipe_fill_and_redirect_stderr(struct pipe_stderr *p, int flags)
{
	char block[64] = "";

	assert_int_equal(pipe2(p->ends, 0), 0);
	fcntl(p->ends[1], F_SETPIPE_SZ, 4096);
	fcntl(p->ends[1], F_SETFL, O_NONBLOCK);
	for (p->filled = 0; write(p->ends[1], block, sizeof(block)) > 0;)
		p->filled += sizeof(block);
	fcntl(p->ends[1], F_SETFL, flags);
	p->saved = dup(STDERR_FILENO);
	dup2(p->ends[1], STDERR_FILENO);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO});
}

static void pipe_restore_stderr(struct pipe_stderr *p)
{
	dup2(p->saved, STDERR_FILENO);
	close(p->saved);
	close(p->ends[1]);
}

static void pipe_discard_filled_bytes(struct pipe_stderr *p)
{
	char block[4096];

	for (size_t left = p->filled; left > 0;) {
		ssize_t n = read(p->ends[0], block, left < sizeof(block) ? left : sizeof(block));
		assert_true(n > 0);
		left -= (size_t)n;
	}
}

static void test_full_output_does_not_hold_the_program_and_the_loss_is_counted(void **state)
{
	struct pipe_stderr p;
	char text[512];
	ssize_t n;

	(void)state;
	pipe_fill_and_redirect_stderr(&p, O_NONBLOCK);
	vma_log_info("lost one");
	vma_log_info("lost two");
	pipe_discard_filled_bytes(&p);
	vma_log_info("heard");
	pipe_restore_stderr(&p);
	n = read(p.ends[0], text, sizeof(text) - 1);
	close(p.ends[0]);
	assert_true(n > 0);
	text[n] = '\0';
	assert_string_equal(text,
	                    "\nVMA WARNING: 2 lines of the log were lost: its output was full\nVMA INFO: heard\n");
}

static _Atomic int alarms;

static void output_count_sigalrm(int signo)
{
	(void)signo;
	alarms++;
}

static void *log_one_line(void *arg)
{
	(void)arg;
	vma_log_info("whole in spite of signals");
	usleep(1); /* ThreadSanitizer keeps signals back until a call that it knows */
	return NULL;
}

static void test_interrupted_write_is_taken_up_again(void **state)
{
	const struct sigaction action = {.sa_handler = output_count_sigalrm}; /* no SA_RESTART */
	struct pipe_stderr p;
	char text[256];
	pthread_t thread;
	ssize_t n;

	(void)state;
	sigaction(SIGUSR1, &action, NULL);
	pipe_fill_and_redirect_stderr(&p, 0);
	alarms = 0;
	assert_int_equal(pthread_create(&thread, NULL, log_one_line, NULL), 0);
	for (int i = 0; i < 20; i++) {
		usleep(2000);
		pthread_kill(thread, SIGUSR1); /* it sleeps in write(2) all the while */
	}
	pipe_discard_filled_bytes(&p);
	pthread_join(thread, NULL);
	pipe_restore_stderr(&p);
	n = read(p.ends[0], text, sizeof(text) - 1);
	close(p.ends[0]);
	assert_true(alarms > 0);
	assert_true(n > 0);
	text[n] = '\0';
	assert_string_equal(text, "VMA INFO: whole in spite of signals\n");
}

static void test_fifo_without_reader_does_not_hang_the_start(void **state)
{
	char path[128];

	(void)state;
	snprintf(path, sizeof(path), "%s/fifo", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	sink_redirect_stderr_to_memfd(&sink);
	assert_int_equal(vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = path}), -ENXIO);
	sink_close(&sink);
	unlink(path);
}

static void test_link_of_another_user_is_not_followed(void **state)
{
	char path[128];

	(void)state;
	snprintf(path, sizeof(path), "%s/link", dir);
	assert_int_equal(symlink("here", path), 0);
	assert_true(log_line_lands_in_file("link", "here"));
	if (geteuid() == 0) { /* else there is no other user */
		assert_int_equal(lchown(path, 65534, 65534), 0);
		sink_redirect_stderr_to_memfd(&sink);
		assert_int_equal(vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = path}), -ELOOP);
		sink_close(&sink);
	}
	unlink(path);
}

static void test_distinct_texts_are_said_once_each(void **state)
{
	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 0);
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 2; i++)
			assert_int_equal(vma_log_once(VMA_LOG_WARN, "eth%d: no XDP", i), round == 0);
	assert_string_equal(sink_read(&sink), "VMA WARNING: eth0: no XDP\nVMA WARNING: eth1: no XDP\n");
	sink_close(&sink);
}

static void test_level_that_is_off_does_not_use_up_the_first_time(void **state)
{
	(void)state;
	sink_redirect_log(&sink, VMA_LOG_ERROR, 0);
	assert_false(vma_log_once(VMA_LOG_WARN, "quiet for now"));
	vma_log_set_level(VMA_LOG_WARN);
	assert_true(vma_log_once(VMA_LOG_WARN, "quiet for now"));
	assert_false(vma_log_once(VMA_LOG_WARN, "quiet for now"));
	sink_close(&sink);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_percent_d_becomes_the_pid),
        cmocka_unit_test(test_other_percents_stay_as_they_are),
        cmocka_unit_test(test_file_is_appended_to),
        cmocka_unit_test(test_file_that_cannot_be_opened_is_said_once_and_stderr_serves),
        cmocka_unit_test(test_file_that_fails_later_is_said_once_and_no_line_is_lost),
        cmocka_unit_test(test_network_socket_with_the_number_of_stderr_gets_no_line),
        cmocka_unit_test(test_unix_socket_as_stderr_gets_lines),
        cmocka_unit_test(test_level_beyond_this_build_is_said),
        cmocka_unit_test(test_starting_again_keeps_one_descriptor_and_fini_none),
        cmocka_unit_test(test_descriptor_that_the_program_took_over_is_left_alone),
        cmocka_unit_test(test_reader_that_has_gone_does_not_end_the_program),
        cmocka_unit_test(test_pending_signal_of_the_program_is_kept),
        cmocka_unit_test(test_file_size_limit_does_not_end_the_program),
        cmocka_unit_test(test_full_output_does_not_hold_the_program_and_the_loss_is_counted),
        cmocka_unit_test(test_interrupted_write_is_taken_up_again),
        cmocka_unit_test(test_fifo_without_reader_does_not_hang_the_start),
        cmocka_unit_test(test_link_of_another_user_is_not_followed),
        cmocka_unit_test(test_distinct_texts_are_said_once_each),
        cmocka_unit_test(test_level_that_is_off_does_not_use_up_the_first_time),
};

VMA_TEST_MAIN_WITH(tests, output_make_dir, output_remove_dir)
