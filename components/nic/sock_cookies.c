/*
 * sock_cookies - the set of a flow's shadows.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sock_cookies.h"
#include "kernel_sock.h"

#define CAPACITY_MIN 4
#define PRUNE_FROM 64 /* a smaller set is not worth a walk over the kernel's sockets */

bool nic_cookies_has(const struct nic_cookies *set, uint64_t cookie)
{
	for (uint32_t i = 0; i < set->n; i++)
		if (set->list[i] == cookie)
			return true;
	return false;
}

struct cookie_prune_walk {
	struct nic_cookies *set;
	uint32_t present; /* the first ones of the list */
};

static void cookie_prune_keep_cookie_of_live_socket(const struct kernel_sock *socket, void *arg)
{
	struct cookie_prune_walk *walk = arg;
	uint64_t *list = walk->set->list;

	for (uint32_t i = walk->present; i < walk->set->n; i++) {
		if (list[i] != socket->cookie)
			continue;
		list[i] = list[walk->present];
		list[walk->present++] = socket->cookie;
		return;
	}
}

void nic_cookies_prune(struct nic_cookies *set, const struct vma_flow_key *key, int *kept_fd)
{
	struct cookie_prune_walk walk = {.set = set};

	if (set->n > 0 && kernel_sock_visit_sockets_of_port(kept_fd, key->proto, ntohs(key->local_port_be), false,
	                                                    cookie_prune_keep_cookie_of_live_socket, &walk) == 0)
		set->n = walk.present;
}

static int cookies_grow(struct nic_cookies *set)
{
	const uint32_t capacity = set->capacity != 0 ? set->capacity * 2 : CAPACITY_MIN;
	uint64_t *list = realloc(set->list, capacity * sizeof(*list));

	if (list == NULL)
		return -ENOMEM;
	set->list = list;
	set->capacity = capacity;
	return 0;
}

/* At least half of it is free afterwards, or the next few members would each cost a walk. */
static int cookies_reserve(struct nic_cookies *set, const struct vma_flow_key *key)
{
	if (set->n >= PRUNE_FROM)
		nic_cookies_prune(set, key, NULL);
	if (set->n == NIC_COOKIES_MAX)
		return -ENOSPC;
	if (set->capacity == NIC_COOKIES_MAX || (set->capacity > 0 && set->n <= set->capacity / 2))
		return 0;
	return cookies_grow(set);
}

int nic_cookies_add(struct nic_cookies *set, const struct vma_flow_key *key, uint64_t cookie)
{
	int rc;

	if (cookie == 0 || nic_cookies_has(set, cookie))
		return 0;
	rc = set->n < set->capacity ? 0 : cookies_reserve(set, key);
	if (rc == 0)
		set->list[set->n++] = cookie;
	return rc;
}

void nic_cookies_fini(struct nic_cookies *set)
{
	free(set->list);
	*set = (struct nic_cookies){0};
}
