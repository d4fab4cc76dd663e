/*
 * shadow - the descriptors of this process that show vmad its right to a flow: owner/entitled.c has the rules.
 *
 * A rule names its shadow by the cookie, and says under which number it was last seen (shadow_fd). The number may
 * belong to another file by now: the program has closed it, or moved it by dup2. So it is looked at. If it is not the
 * shadow, all descriptors of this process are looked at, once for all flows of a restore.
 *
 * For a connection any socket will do that is bound to its port. A socket that accept has made has no shadow of that
 * kind. The shadow of a connection that begins here is not bound yet. So a socket is bound beside it for the moment,
 * which the kernel allows if all sockets that have the port share it. If the shadow has the port for itself, the shadow
 * is proof.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../os.h"
#include "client.h"

/* ---- all sockets of this process ---- */

static uint64_t shadow_cookie_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	return os_getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 ? cookie : 0;
}

static void shadows_add(struct xdp_shadows *shadows, int fd)
{
	const uint64_t cookie = shadow_cookie_of(fd);

	if (cookie == 0)
		return;
	if (shadows->n == shadows->capacity) {
		const uint32_t capacity = shadows->capacity != 0 ? shadows->capacity * 2 : 64;
		struct xdp_shadow *list = realloc(shadows->list, capacity * sizeof(*list));

		if (list == NULL)
			return;
		shadows->list = list;
		shadows->capacity = capacity;
	}
	shadows->list[shadows->n++] = (struct xdp_shadow){.cookie = cookie, .fd = fd};
}

static int compare_shadow_cookies(const void *a, const void *b)
{
	const uint64_t x = ((const struct xdp_shadow *)a)->cookie, y = ((const struct xdp_shadow *)b)->cookie;

	return (x > y) - (x < y);
}

struct entry { /* of getdents64 */
	uint64_t inode;
	int64_t offset;
	uint16_t bytes;
	uint8_t type;
	char name[];
};

static void list_process_sockets(struct xdp_shadows *shadows)
{
	_Alignas(struct entry) char buffer[4096];
	int dir = os_open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long n;

	shadows->listed = true;
	while (dir >= 0 && (n = syscall(SYS_getdents64, dir, buffer, sizeof(buffer))) > 0) {
		for (long at = 0; at < n;) {
			const struct entry *entry = (const void *)(buffer + at);

			if (entry->name[0] != '.')
				shadows_add(shadows, atoi(entry->name));
			at += entry->bytes;
		}
	}
	if (dir >= 0)
		os_close(dir);
	if (shadows->n > 1)
		qsort(shadows->list, shadows->n, sizeof(struct xdp_shadow), compare_shadow_cookies);
}

static int shadows_find(struct xdp_shadows *shadows, uint64_t cookie, int guess)
{
	const struct xdp_shadow wanted = {.cookie = cookie};
	const struct xdp_shadow *known;

	if (cookie == 0)
		return -1;
	if (shadow_cookie_of(guess) == cookie)
		return guess;
	if (!shadows->listed)
		list_process_sockets(shadows);
	known = shadows->n == 0 ? NULL
	                        : bsearch(&wanted, shadows->list, shadows->n, sizeof(struct xdp_shadow),
	                                  compare_shadow_cookies);
	return known != NULL && shadow_cookie_of(known->fd) == cookie ? known->fd : -1;
}

void nic_xdp_shadows_fini(struct xdp_shadows *shadows)
{
	free(shadows->list);
	*shadows = (struct xdp_shadows){0};
}

/* ---- what a rule takes ---- */

static bool socket_is_bound_to_port(int fd, uint16_t port_be)
{
	union {
		struct sockaddr any;
		struct sockaddr_in ip4;
		struct sockaddr_in6 ip6;
	} name = {0};
	socklen_t len = sizeof(name);

	if (os_getsockname(fd, &name.any, &len) < 0)
		return false;
	return (name.any.sa_family == AF_INET ? name.ip4.sin_port : name.ip6.sin6_port) == port_be;
}

static int open_socket_bound_to_key(const struct vma_flow_key *key)
{
	struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = key->local_port_be};
	const int on = 1, fd = os_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(&local.sin_addr, key->local, sizeof(local.sin_addr));
	if (fd < 0)
		return -1;
	if (os_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
	    os_bind(fd, (const struct sockaddr *)&local, sizeof(local)) == 0)
		return fd;
	os_close(fd);
	return -1;
}

struct xdp_proof_fd nic_xdp_get_proof_socket(struct xdp_shadows *shadows, const struct vma_flow_rule *rule,
                                             bool is_covered)
{
	const struct vma_flow_key *key = &rule->key;
	struct xdp_proof_fd proof = {.fd = -1};

	if (key->proto != IPPROTO_TCP || key->peer_port_be == 0) {
		proof.fd = shadows_find(shadows, rule->shadow_cookie, rule->shadow_fd);
		return proof;
	}
	if (is_covered)
		return proof;
	if (rule->shadow_cookie != 0 && shadow_cookie_of(rule->shadow_fd) == rule->shadow_cookie &&
	    socket_is_bound_to_port(rule->shadow_fd, key->local_port_be)) {
		proof.fd = rule->shadow_fd;
		return proof;
	}
	proof.fd = open_socket_bound_to_key(key);
	proof.is_made = proof.fd >= 0;
	if (proof.fd < 0)
		proof.fd = shadows_find(shadows, rule->shadow_cookie, rule->shadow_fd);
	return proof;
}

void nic_xdp_put_proof_socket(const struct xdp_proof_fd *proof)
{
	if (proof->is_made)
		os_close(proof->fd);
}

/* Those that are still open. */
unsigned nic_xdp_find_shadow_fds_still_open(struct xdp_shadows *shadows, const struct nic_cookies *cookies, int guess,
                                            uint64_t *open, int *fds)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < cookies->n; i++) {
		fds[n] = shadows_find(shadows, cookies->list[i], guess);
		if (fds[n] >= 0)
			open[n++] = cookies->list[i];
	}
	return n;
}
