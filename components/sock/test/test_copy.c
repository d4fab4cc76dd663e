/* Copying from and to the application's memory: a bad pointer is an answer, a real fault is the application's. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/sock_thread.h>
#include <vma/test.h>

#include "../thread/thread.h"

#define PAGE 4096
#define TIMES 1000

static char *readable, *nothing; /* a page, and one behind it that may not be touched */
static char buffer[2 * PAGE];
static struct sigaction library[2]; /* of SIGSEGV and SIGBUS */

static int setup_readable_and_protected_pages(void **state)
{
	(void)state;
	signal(SIGSEGV, SIG_DFL); /* cmocka's */
	signal(SIGBUS, SIG_DFL);
	vma_signals_wrap_existing_handlers();
	sigaction(SIGSEGV, NULL, &library[0]);
	sigaction(SIGBUS, NULL, &library[1]);
	readable = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (readable == MAP_FAILED)
		return -1;
	nothing = readable + PAGE;
	memset(readable, 'r', PAGE);
	return mprotect(nothing, PAGE, PROT_NONE);
}

/* cmocka puts handlers of its own there before every test. */
static void setup_restore_library_fault_handlers(void **state)
{
	(void)state;
	sigaction(SIGSEGV, &library[0], NULL);
	sigaction(SIGBUS, &library[1], NULL);
}

static int copy_inside_library(void *to, const void *from, size_t size)
{
	struct vma_thread *self = vma_enter();
	int rc = vma_memcpy_or_efault(to, from, size);

	vma_leave(self);
	return rc;
}

static int copy_sockaddr_inside_library(const void *own, socklen_t own_len, void *addr, socklen_t *len)
{
	struct vma_thread *self = vma_enter();
	int rc = vma_copy_sockaddr_to_program(own, own_len, addr, len);

	vma_leave(self);
	return rc;
}

static void test_an_address_is_given_as_far_as_there_is_room(void **state)
{
	static const struct {
		socklen_t room;
		size_t given;
		int rc;
	} cases[] = {{16, 16, 0}, {100, 16, 0}, {5, 5, 0}, {0, 0, 0}, {(socklen_t)-1, 0, -EINVAL}};
	socklen_t len;

	setup_restore_library_fault_handlers(state);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		memset(buffer, 0, 32);
		len = cases[i].room;
		assert_int_equal(copy_sockaddr_inside_library(readable, 16, buffer, &len), cases[i].rc);
		assert_int_equal(len, cases[i].rc == 0 ? 16 : cases[i].room); /* its whole length */
		for (size_t k = 0; k < 32; k++)
			assert_int_equal(buffer[k], k < cases[i].given ? 'r' : 0);
	}
	len = 16;
	assert_int_equal(copy_sockaddr_inside_library(readable, 16, nothing, &len), -EFAULT);
	assert_int_equal(copy_sockaddr_inside_library(readable, 16, buffer, (socklen_t *)nothing), -EFAULT);
	len = 0;
	assert_int_equal(copy_sockaddr_inside_library(readable, 16, NULL, &len), 0); /* nothing is written there */
	assert_int_equal(len, 16);
}

static void test_good_pointers_are_copied(void **state)
{
	setup_restore_library_fault_handlers(state);
	for (size_t size = 0; size <= PAGE; size += 97) {
		memset(buffer, 0, sizeof(buffer));
		assert_int_equal(copy_inside_library(buffer, readable, size), 0);
		for (size_t i = 0; i < sizeof(buffer); i++)
			assert_int_equal(buffer[i], i < size ? 'r' : 0);
	}
}

static void test_bad_source_is_efault(void **state)
{
	setup_restore_library_fault_handlers(state);
	assert_int_equal(copy_inside_library(buffer, nothing, 1), -EFAULT);
	assert_int_equal(copy_inside_library(buffer, NULL, 8), -EFAULT);
	assert_int_equal(copy_inside_library(buffer, readable + PAGE - 8, 16), -EFAULT); /* the second half */
	assert_int_equal(copy_inside_library(buffer, nothing, PAGE), -EFAULT);
}

static void test_bad_destination_is_efault(void **state)
{
	static const char constant[64];

	setup_restore_library_fault_handlers(state);
	assert_int_equal(copy_inside_library(nothing, buffer, 1), -EFAULT);
	assert_int_equal(copy_inside_library(NULL, buffer, 8), -EFAULT);
	assert_int_equal(copy_inside_library(readable + PAGE - 8, buffer, 16), -EFAULT);
	assert_int_equal(mprotect(readable, PAGE, PROT_READ), 0);
	assert_int_equal(copy_inside_library(readable, constant, sizeof(constant)), -EFAULT);
	assert_int_equal(mprotect(readable, PAGE, PROT_READ | PROT_WRITE), 0);
	assert_int_equal(copy_inside_library(readable, readable + 1, 1), 0);
}

static void test_nothing_is_copied_from_anywhere(void **state)
{
	setup_restore_library_fault_handlers(state);
	assert_int_equal(copy_inside_library(buffer, nothing, 0), 0);
	assert_int_equal(copy_inside_library(nothing, buffer, 0), 0);
	assert_int_equal(copy_inside_library(NULL, NULL, 0), 0);
}

/* No address of the machine: the fault has no address of its own, either. */
static void test_impossible_address_is_efault(void **state)
{
	setup_restore_library_fault_handlers(state);
	assert_int_equal(copy_inside_library(buffer, (void *)0xdead000000000000ULL, 8), -EFAULT);
}

static void test_file_that_ends_before_its_map_is_efault(void **state)
{
	int fd = memfd_create("short", MFD_CLOEXEC);
	char *map;

	setup_restore_library_fault_handlers(state);
	assert_int_equal(ftruncate(fd, PAGE), 0);
	map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_int_equal(copy_inside_library(buffer, map, PAGE), 0);
	assert_int_equal(copy_inside_library(buffer, map + PAGE, 8), -EFAULT); /* SIGBUS */
	assert_int_equal(copy_inside_library(map + PAGE, buffer, 8), -EFAULT);
	munmap(map, 2 * PAGE);
	close(fd);
}

/* ---- again and again, and what is left behind ---- */

static void copy_with_faults_often(void)
{
	for (int i = 0; i < TIMES; i++) {
		assert_int_equal(copy_inside_library(buffer, nothing, 8), -EFAULT);
		assert_int_equal(copy_inside_library(nothing, buffer, 8), -EFAULT);
		assert_int_equal(copy_inside_library(buffer, readable, 8), 0);
	}
}

static void test_thousand_faults_leave_the_mask_as_it_was(void **state)
{
	sigset_t before, after;

	setup_restore_library_fault_handlers(state);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &before), 0);
	copy_with_faults_often();
	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &after), 0);
	assert_memory_equal(&before, &after, 8);
	assert_int_equal(vma_thread_self()->inside, 0);
}

static void test_thousand_faults_leave_the_alternate_stack_free(void **state)
{
	static char alternate[1 << 20];
	const stack_t mine = {.ss_sp = alternate, .ss_size = sizeof(alternate)};
	const stack_t none = {.ss_flags = SS_DISABLE};
	stack_t now, was;

	setup_restore_library_fault_handlers(state);
	assert_int_equal(sigaltstack(&mine, &was), 0);
	copy_with_faults_often();
	assert_int_equal(sigaltstack(NULL, &now), 0);
	assert_ptr_equal(now.ss_sp, alternate);
	assert_int_equal(now.ss_flags & SS_ONSTACK, 0);
	assert_int_equal(sigaltstack((was.ss_flags & SS_DISABLE) ? &none : &was, NULL), 0);
}

static _Atomic int rc_on_stack;

static void copy_in_handler(int sig)
{
	int rc = 0;

	(void)sig;
	for (int i = 0; i < 100 && rc == 0; i++)
		rc = copy_inside_library(buffer, nothing, 8) == -EFAULT ? copy_inside_library(buffer, readable, 8) : -1;
	atomic_store(&rc_on_stack, rc == 0 ? 1 : -1);
}

static void test_handler_on_the_alternate_stack_may_copy(void **state)
{
	static char alternate[1 << 20];
	const stack_t mine = {.ss_sp = alternate, .ss_size = sizeof(alternate)};
	const stack_t none = {.ss_flags = SS_DISABLE};
	struct sigaction action = {.sa_handler = copy_in_handler, .sa_flags = SA_ONSTACK}, before;
	stack_t was;

	setup_restore_library_fault_handlers(state);
#ifdef VMA_TSAN
	vma_test_skip("ThreadSanitizer runs handlers with all signals blocked, faults included");
#endif
	assert_int_equal(sigaltstack(&mine, &was), 0);
	assert_int_equal(vma_sigaction(SIGUSR1, &action, &before), 0);
	assert_int_equal(raise(SIGUSR1), 0);
	assert_int_equal(atomic_load(&rc_on_stack), 1);
	assert_int_equal(vma_sigaction(SIGUSR1, &before, NULL), 0);
	assert_int_equal(sigaltstack((was.ss_flags & SS_DISABLE) ? &none : &was, NULL), 0);
}

static _Atomic int handled;

static void handler_count_during_copy(int sig)
{
	(void)sig;
	atomic_fetch_add(&handled, 1);
}

/* All signals wait at that time; a fault of the copy must not be one of them. */
static void test_fault_is_an_answer_while_a_signal_is_held_back(void **state)
{
	struct sigaction action = {.sa_handler = handler_count_during_copy}, before;
	struct vma_thread *self;

	setup_restore_library_fault_handlers(state);
	assert_int_equal(vma_sigaction(SIGUSR1, &action, &before), 0);
	self = vma_enter();
	assert_int_equal(raise(SIGUSR1), 0);
	assert_int_equal(vma_memcpy_or_efault(buffer, nothing, 8), -EFAULT);
	assert_int_equal(vma_memcpy_or_efault(buffer, readable, 8), 0);
	vma_leave(self);
	assert_int_equal(atomic_load(&handled), 1);
	assert_int_equal(vma_sigaction(SIGUSR1, &before, NULL), 0);
}

static void *thread_copy_with_faults_repeatedly(void *arg)
{
	char mine[64];

	for (int i = 0; i < TIMES; i++)
		if (copy_inside_library(mine, nothing, 8) != -EFAULT || copy_inside_library(mine, readable, 8) != 0)
			return arg;
	return NULL;
}

static void test_threads_fault_each_for_itself(void **state)
{
	pthread_t threads[4];
	void *failed;

	setup_restore_library_fault_handlers(state);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_copy_with_faults_repeatedly, buffer), 0);
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
}

/* ---- the application's own faults ---- */

static sigjmp_buf back;
static void *_Atomic fault_address;

static void fault_handler_record_and_longjmp(int sig, siginfo_t *info, void *context)
{
	(void)sig, (void)context;
	atomic_store(&fault_address, info->si_addr);
	siglongjmp(back, 1);
}

static void write_one_byte(volatile char *where)
{
	*where = 1;
}

static void test_real_fault_reaches_the_applications_handler(void **state)
{
	struct sigaction action = {.sa_sigaction = fault_handler_record_and_longjmp, .sa_flags = SA_SIGINFO}, before;
	volatile int times = 0;
	sigset_t mask, after;

	setup_restore_library_fault_handlers(state);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
	assert_int_equal(vma_sigaction(SIGSEGV, &action, &before), 0);
	assert_ptr_equal(before.sa_handler, SIG_DFL);
	while (times < 3) {
		times++;
		assert_int_equal(copy_inside_library(buffer, nothing, 8), -EFAULT);
		atomic_store(&fault_address, NULL);
		if (sigsetjmp(back, 1) == 0)
			write_one_byte(nothing + times);
		assert_ptr_equal(atomic_load(&fault_address), nothing + times);
	}
	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &after), 0);
	assert_memory_equal(&mask, &after, 8);
	assert_int_equal(vma_sigaction(SIGSEGV, &before, NULL), 0);
}

static void die_by_fault(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};

	vma_sigaction(SIGSEGV, &action, NULL);
	copy_inside_library(buffer, nothing, 8);
	write_one_byte(nothing);
}

static void test_real_fault_without_handler_kills_by_sigsegv(void **state)
{
	int status = 0;
	pid_t child = fork();

	setup_restore_library_fault_handlers(state);
	if (child == 0) {
		die_by_fault();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGSEGV);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_pointers_are_copied),
        cmocka_unit_test(test_an_address_is_given_as_far_as_there_is_room),
        cmocka_unit_test(test_bad_source_is_efault),
        cmocka_unit_test(test_bad_destination_is_efault),
        cmocka_unit_test(test_nothing_is_copied_from_anywhere),
        cmocka_unit_test(test_impossible_address_is_efault),
        cmocka_unit_test(test_file_that_ends_before_its_map_is_efault),
        cmocka_unit_test(test_thousand_faults_leave_the_mask_as_it_was),
        cmocka_unit_test(test_thousand_faults_leave_the_alternate_stack_free),
        cmocka_unit_test(test_handler_on_the_alternate_stack_may_copy),
        cmocka_unit_test(test_fault_is_an_answer_while_a_signal_is_held_back),
        cmocka_unit_test(test_threads_fault_each_for_itself),
        cmocka_unit_test(test_real_fault_reaches_the_applications_handler),
        cmocka_unit_test(test_real_fault_without_handler_kills_by_sigsegv),
};

VMA_TEST_MAIN_WITH(tests, setup_readable_and_protected_pages, NULL)
