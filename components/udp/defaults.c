/* defaults.c - the system's defaults for new sockets, each value with the second in which it was asked for. */
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

#include <vma/sock_os.h>

#include "defaults.h"

struct default_option {
	int level, name, default_value;
	_Atomic uint64_t word; /* second, value: one word, so that both are of the same question */
};

static uint32_t default_option_cache_stamp_sec(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint32_t)now.tv_sec + 1; /* never what `word` begins with */
}

static int kernel_option_default_cached(struct default_option *default_option, int fd)
{
	const uint64_t word = atomic_load_explicit(&default_option->word, memory_order_relaxed);
	const uint32_t sec = default_option_cache_stamp_sec();
	int value = default_option->default_value;
	socklen_t len = sizeof(value);

	if (word >> 32 == sec)
		return (int)(uint32_t)word;
	if (vma_os.getsockopt(fd, default_option->level, default_option->name, &value, &len) != 0)
		return default_option->default_value;
	atomic_store_explicit(&default_option->word, (uint64_t)sec << 32 | (uint32_t)value, memory_order_relaxed);
	return value;
}

int udp_default_rcvbuf(int fd)
{
	static struct default_option default_option = {.level = SOL_SOCKET, .name = SO_RCVBUF, .default_value = 212992};

	return kernel_option_default_cached(&default_option, fd);
}

int udp_default_pmtu_discover(int fd)
{
	static struct default_option default_option = {
	        .level = IPPROTO_IP, .name = IP_MTU_DISCOVER, .default_value = IP_PMTUDISC_WANT};

	return kernel_option_default_cached(&default_option, fd);
}

bool udp_default_mc_all(int fd, int family)
{
	static struct default_option default_option = {
	        .level = IPPROTO_IP, .name = IP_MULTICAST_ALL, .default_value = 1};

	return family != AF_INET6 || kernel_option_default_cached(&default_option, fd) != 0;
}

int udp_default_ttl(int fd)
{
	static struct default_option default_option = {.level = IPPROTO_IP, .name = IP_TTL, .default_value = 64};

	return kernel_option_default_cached(&default_option, fd);
}
