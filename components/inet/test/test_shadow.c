/* The kernel's socket: calls on it, and which number it has. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <vma/inet.h>
#include <vma/sock_os.h>
#include <vma/test.h>

#include "fixture.h"

static int open_bound_udp_shadow(struct sockaddr_in *name)
{
	socklen_t len = sizeof(*name);
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	*name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(vma_os.bind(fd, (struct sockaddr *)name, len), 0);
	assert_int_equal(vma_os.getsockname(fd, (struct sockaddr *)name, &len), 0);
	return fd;
}

static void test_message_goes_and_comes(void **state)
{
	struct sockaddr_in name;
	int fd = open_bound_udp_shadow(&name), waiting = 0;
	char bytes[8];
	struct {
		struct msghdr msg;
		struct iovec iov;
	} own = {.iov = {"abc", 3}};

	(void)state;
	own.msg = (struct msghdr){.msg_name = &name, .msg_namelen = sizeof(name), .msg_iov = &own.iov, .msg_iovlen = 1};
	assert_int_equal(vma_inet_os_send(fd, &own.msg, 0), 3);
	assert_int_equal(vma_inet_os_ioctl(fd, FIONREAD, &waiting), 0);
	assert_int_equal(waiting, 3);
	own.iov = (struct iovec){bytes, sizeof(bytes)};
	own.msg.msg_name = NULL;
	assert_int_equal(vma_inet_os_recv(fd, &own.msg, MSG_DONTWAIT), 3);
	assert_memory_equal(bytes, "abc", 3);
	assert_int_equal(vma_inet_os_recv(fd, &own.msg, MSG_DONTWAIT), -EAGAIN);
	assert_int_equal(vma_inet_os_ioctl(fd, FIONREAD, NULL), -EFAULT);
	vma_os.close(fd);
}

/* The application's list is the kernel's to read, with an address as well. */
static void test_bad_list_with_an_address_is_efault(void **state)
{
	struct sockaddr_in name;
	int fd = open_bound_udp_shadow(&name);
	struct msghdr msg = {
	        .msg_name = &name, .msg_namelen = sizeof(name), .msg_iov = (struct iovec *)8, .msg_iovlen = 1};

	(void)state;
	assert_int_equal(vma_inet_os_send(fd, &msg, 0), -EFAULT);
	vma_os.close(fd);
}

static void test_options_are_asked_of_the_kernel(void **state)
{
	int fd = vma_os.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), copy = vma_os.dup(fd), ends[2];
	const int on = 1;

	(void)state;
	assert_int_equal(vma_os_getsockopt_int_or(fd, SOL_SOCKET, SO_TYPE, -1), SOCK_STREAM);
	assert_int_equal(vma_os.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
	assert_int_equal(vma_os_getsockopt_int_or(copy, SOL_SOCKET, SO_REUSEADDR, -1), 1);
	assert_int_not_equal(vma_sock_cookie(fd), 0);
	assert_int_equal(vma_sock_cookie(fd), vma_sock_cookie(copy));
	assert_int_equal(vma_os.pipe(ends), 0);
	assert_int_equal(vma_os_getsockopt_int_or(ends[0], SOL_SOCKET, SO_TYPE, -1), -1);
	assert_int_equal(vma_sock_cookie(ends[0]), 0);
	vma_os.close(ends[0]);
	vma_os.close(ends[1]);
	vma_os.close(copy);
	vma_os.close(fd);
}

/* ---- its number ---- */

static const struct vma_file_ops ops = {.name = "test"};

static struct vma_file *install_udp_file_at_fd(int fd)
{
	struct vma_file *file = vma_alloc(sizeof(*file));

	assert_non_null(file);
	vma_file_init(file, VMA_FILE_UDP, &ops);
	assert_int_equal(vma_fd_install(fd, file), 0);
	return file;
}

static void test_number_is_the_applications_while_it_leads_to_the_file(void **state)
{
	struct sockaddr_in name;
	int fd = open_bound_udp_shadow(&name), other = open_bound_udp_shadow(&name);
	struct vma_file *file = install_udp_file_at_fd(fd);
	_Atomic int lingering = 0;

	(void)state;
	vma_file_get(file);
	assert_int_equal(vma_inet_shadow_fd(file, fd, &lingering), fd);
	assert_int_equal(vma_inet_shadow_fd(file, other, &lingering), fd); /* which leads elsewhere */
	vma_fd_remove(fd);
	assert_true(vma_file_is_closed(file));
	assert_int_equal(vma_inet_shadow_fd(file, fd, &lingering), -1);
	lingering = 1234;
	assert_int_equal(vma_inet_shadow_fd(file, fd, &lingering), 1234);
	vma_file_put(file);
	vma_os.close(fd);
	vma_os.close(other);
}

static void test_shadow_is_kept_only_if_it_still_is_one(void **state)
{
	struct sockaddr_in name;
	int fd = open_bound_udp_shadow(&name), other = open_bound_udp_shadow(&name), kept;
	const uint64_t cookie = vma_sock_cookie(fd);

	(void)state;
	kept = vma_inet_dup_shadow_fd(fd, cookie);
	assert_true(kept >= 0 && kept != fd);
	assert_int_equal(vma_sock_cookie(kept), cookie);
	vma_fd_unguard_close(kept);
	assert_int_equal(vma_inet_dup_shadow_fd(fd, 0), -ESTALE);
	assert_int_equal(vma_inet_dup_shadow_fd(other, cookie), -ESTALE);
	vma_os.close(fd);
	vma_os.close(other);
	assert_int_equal(vma_inet_dup_shadow_fd(fd, cookie), -EBADF);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(test_message_goes_and_comes, setup_vma_enter, teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_bad_list_with_an_address_is_efault, setup_vma_enter,
	                                        teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_options_are_asked_of_the_kernel, setup_vma_enter,
	                                        teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_number_is_the_applications_while_it_leads_to_the_file,
	                                        setup_vma_enter, teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_shadow_is_kept_only_if_it_still_is_one, setup_vma_enter,
	                                        teardown_vma_leave),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests_name("inet", tests, NULL, NULL);
}
