/* sysctl.c - the host's defaults for TCP sockets. */
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock_os.h>

#include "settings.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vma_tcp_options options;
static _Atomic bool known;

/* By system calls: the C library's open is interposed, and this is inside. */
bool sysctl_read(const char *name, char *text, size_t size)
{
	char path[96];
	long fd, got;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/%s", name);
	fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	got = syscall(SYS_read, fd, text, size - 1);
	syscall(SYS_close, fd);
	text[got > 0 ? got : 0] = '\0';
	return got > 0;
}

static void read_default_sockopt(int fd, int name, int32_t *value)
{
	socklen_t len = sizeof(*value);
	int32_t got;

	if (vma_os.getsockopt(fd, IPPROTO_TCP, name, &got, &len) == 0 && len == sizeof(got))
		*value = got;
}

static void read_sysctl_number(const char *name, int32_t *value)
{
	char text[64];
	int got;

	if (sysctl_read(name, text, sizeof(text)) && sscanf(text, "%d", &got) == 1)
		*value = got;
}

static void read_sysctl_unsigned(const char *name, int32_t *value)
{
	char text[64];
	uint32_t got;

	if (sysctl_read(name, text, sizeof(text)) && sscanf(text, "%" SCNu32, &got) == 1)
		*value = (int32_t)got;
}

/* "minimum default maximum" */
static void read_sysctl_memory(const char *name, int32_t *initial, int32_t *max)
{
	char text[96];
	int got[3];

	if (!sysctl_read(name, text, sizeof(text)) || sscanf(text, "%d %d %d", &got[0], &got[1], &got[2]) != 3)
		return;
	*initial = got[1];
	*max = got[2] > got[1] ? got[2] : got[1];
}

bool get_congestion_name_of_kernel_socket(int fd, char name[16])
{
	socklen_t len = 15;

	memset(name, 0, 16);
	return vma_os.getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0;
}

/* What is the kernel's only is replaced by its usual default. */
static void read_default_congestion(int fd, int32_t *value)
{
	char name[16];
	int ours = get_congestion_name_of_kernel_socket(fd, name) ? vma_tcp_cc_by_name(name) : -1;

	*value = ours >= 0 ? ours : VMA_TCP_CC_CUBIC;
}

static void read_kernel_tcp_defaults(int fd)
{
	vma_tcp_options_init(&options);
	read_default_sockopt(fd, TCP_KEEPIDLE, &options.keepidle_sec);
	read_default_sockopt(fd, TCP_KEEPINTVL, &options.keepintvl_sec);
	read_default_sockopt(fd, TCP_KEEPCNT, &options.keepcnt);
	read_default_sockopt(fd, TCP_SYNCNT, &options.syncnt);
	read_default_sockopt(fd, TCP_LINGER2, &options.linger2_sec);
	read_default_congestion(fd, &options.congestion);
	read_sysctl_number("tcp_syncookies", &options.syncookies);
	read_sysctl_number("tcp_synack_retries", &options.synack_retries);
	read_sysctl_number("tcp_retries2", &options.retries2);
	read_sysctl_number("tcp_orphan_retries", &options.orphan_retries);
	if (options.orphan_retries == 0)
		options.orphan_retries = 8; /* as the kernel's tcp_orphan_retries() */
	read_sysctl_number("ip_default_ttl", &options.ttl);
	read_sysctl_unsigned("tcp_notsent_lowat", &options.notsent_lowat);
	read_sysctl_memory("tcp_wmem", &options.sndbuf_init, &options.sndbuf_max);
	read_sysctl_memory("tcp_rmem", &options.rcvbuf_init, &options.rcvbuf_max);
}

const struct vma_tcp_options *kernel_default_tcp_options(int fd)
{
	if (atomic_load_explicit(&known, memory_order_acquire))
		return &options;
	pthread_mutex_lock(&lock);
	if (!atomic_load(&known)) {
		read_kernel_tcp_defaults(fd);
		atomic_store_explicit(&known, true, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return &options;
}
