/*
 * multicast.c - memberships and their source filters, as the kernel has them for the shadow.
 *
 * Many calls change them (IP_ADD_MEMBERSHIP, ..., MCAST_MSFILTER), and the interface is often the kernel's choice. So
 * nothing is computed after them. The kernel has done the call, and is asked for the result by MCAST_MSFILTER. That
 * answers for one group and interface, or that the socket has not joined there.
 */
#include <errno.h>
#include <string.h>

#include "groups.h"

/* ---- building ---- */

enum { SOURCES_AT_ONCE = 16 };

/* In the making: memberships whose sources lie one behind the other in `sources`. */
struct groups_draft {
	struct udp_membership *at;
	uint32_t n, capacity;
	uint32_t *sources;
	uint32_t n_sources, sources_capacity;
};

static void *array_realloc_to_double_capacity(void *old, size_t used, uint32_t *capacity, size_t size)
{
	uint32_t more = *capacity * 2 + 8;
	void *larger = vma_alloc(more * size);

	if (larger == NULL)
		return NULL;
	if (used != 0)
		memcpy(larger, old, used * size);
	vma_free(old);
	*capacity = more;
	return larger;
}

/* Its sources follow by groups_draft_add_source. */
static int groups_draft_add_membership(struct groups_draft *groups_draft, uint32_t group, uint32_t ifindex,
                                       bool exclude)
{
	if (groups_draft->n == groups_draft->capacity) {
		void *larger = array_realloc_to_double_capacity(groups_draft->at, groups_draft->n,
		                                                &groups_draft->capacity, sizeof(groups_draft->at[0]));

		if (larger == NULL)
			return -ENOMEM;
		groups_draft->at = larger;
	}
	groups_draft->at[groups_draft->n++] =
	        (struct udp_membership){.group = group, .ifindex = ifindex, .exclude = exclude};
	return 0;
}

static int groups_draft_add_source(struct groups_draft *groups_draft, uint32_t source)
{
	if (groups_draft->n_sources == groups_draft->sources_capacity) {
		void *larger = array_realloc_to_double_capacity(groups_draft->sources, groups_draft->n_sources,
		                                                &groups_draft->sources_capacity,
		                                                sizeof(groups_draft->sources[0]));

		if (larger == NULL)
			return -ENOMEM;
		groups_draft->sources = larger;
	}
	groups_draft->sources[groups_draft->n_sources++] = source;
	groups_draft->at[groups_draft->n - 1].n++;
	return 0;
}

static int groups_draft_copy_other_groups(struct groups_draft *groups_draft, const struct udp_groups *groups,
                                          uint32_t group)
{
	int rc = 0;

	for (uint32_t i = 0; groups != NULL && i < groups->n && rc == 0; i++) {
		const struct udp_membership *old = &groups->at[i];

		if (old->group == group)
			continue;
		rc = groups_draft_add_membership(groups_draft, old->group, old->ifindex, old->exclude);
		for (uint32_t s = 0; s < old->n && rc == 0; s++)
			rc = groups_draft_add_source(groups_draft, old->source[s]);
	}
	return rc;
}

static void groups_draft_free(struct groups_draft *groups_draft)
{
	vma_free(groups_draft->at);
	vma_free(groups_draft->sources);
}

static struct udp_groups *multicast_groups_from_draft(const struct groups_draft *groups_draft, bool all)
{
	size_t head = sizeof(struct udp_groups) + groups_draft->n * sizeof(struct udp_membership);
	struct udp_groups *groups = vma_alloc(head + groups_draft->n_sources * sizeof(uint32_t));
	const uint32_t *source;

	if (groups == NULL)
		return NULL;
	groups->all = all;
	groups->n = groups_draft->n;
	source = (const uint32_t *)((char *)groups + head);
	if (groups_draft->n_sources != 0)
		memcpy((char *)groups + head, groups_draft->sources, groups_draft->n_sources * sizeof(uint32_t));
	for (uint32_t i = 0; i < groups_draft->n; i++) {
		groups->at[i] = groups_draft->at[i];
		groups->at[i].source = source;
		source += groups->at[i].n;
	}
	return groups;
}

static void groups_free_retired(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct udp_groups, retired) == 0, "groups_end");

/* Each once, though it may have been joined on several interfaces. */
static void stats_set_multicast_groups(struct vma_stats_socket *stats, const struct udp_groups *groups)
{
	_Atomic uint64_t *to = &stats->group_0;
	unsigned n = 0;

	for (uint32_t i = 0; groups != NULL && i < groups->n && n < VMA_STATS_SOCKET_GROUPS; i++) {
		bool told = false;

		for (uint32_t j = 0; j < i; j++)
			told |= groups->at[j].group == groups->at[i].group;
		if (!told)
			vma_stats_set(&to[n++], ntohl(groups->at[i].group));
	}
	vma_stats_set(&stats->groups, n);
}

static void udp_replace_multicast_groups(struct udp_sock *sock, struct udp_groups *groups)
{
	struct udp_groups *old = atomic_exchange_explicit(&sock->groups, groups, memory_order_acq_rel);

	if (sock->stats != NULL)
		stats_set_multicast_groups(sock->stats, groups);

	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, groups_free_retired);
}

/* ---- the kernel's answer ---- */

static int groups_draft_add_from_filter(struct groups_draft *groups_draft, const struct group_filter *filter,
                                        uint32_t group, uint32_t ifindex)
{
	int rc = groups_draft_add_membership(groups_draft, group, ifindex, filter->gf_fmode == MCAST_EXCLUDE);

	for (uint32_t i = 0; i < filter->gf_numsrc && rc == 0; i++)
		rc = groups_draft_add_source(groups_draft,
		                             ((const struct sockaddr_in *)&filter->gf_slist[i])->sin_addr.s_addr);
	return rc;
}

/* Not joined there: nothing is added. */
static int groups_draft_add_from_kernel(struct groups_draft *groups_draft, int fd, uint32_t group, uint32_t ifindex)
{
	const struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = group};
	uint32_t capacity = SOURCES_AT_ONCE;

	for (;;) {
		struct group_filter *filter = vma_alloc(GROUP_FILTER_SIZE(capacity));
		socklen_t len = GROUP_FILTER_SIZE(capacity);
		uint32_t n;
		int rc = 0;

		if (filter == NULL)
			return -ENOMEM;
		filter->gf_interface = ifindex;
		filter->gf_numsrc = capacity;
		memcpy(&filter->gf_group, &name, sizeof(name));
		if (vma_os.getsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, filter, &len) != 0) {
			vma_free(filter);
			return 0;
		}
		n = filter->gf_numsrc; /* all that there are, also when there was room for less */
		if (n <= capacity)
			rc = groups_draft_add_from_filter(groups_draft, filter, group, ifindex);
		vma_free(filter);
		if (n <= capacity)
			return rc;
		capacity = n;
	}
}

static struct vma_net_link *alloc_list_of_net_links(struct vma_net *net, uint32_t *n)
{
	uint32_t capacity = 16;

	for (;;) {
		struct vma_net_link *links = vma_alloc(capacity * sizeof(*links));
		int there = links != NULL ? vma_net_links(net, links, capacity) : -ENOMEM;

		if (there >= 0 && (uint32_t)there <= capacity) {
			*n = (uint32_t)there;
			return links;
		}
		vma_free(links);
		if (there < 0)
			return NULL;
		capacity = (uint32_t)there + 4;
	}
}

static int multicast_draft_add_group_on_all_links(struct groups_draft *groups_draft, int fd, uint32_t group)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_net_link *links;
	uint32_t n;
	int rc = 0;

	if (engine == NULL)
		return 0;
	links = alloc_list_of_net_links(engine->net, &n);
	if (links == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = groups_draft_add_from_kernel(groups_draft, fd, group, links[i].ifindex);
	vma_free(links);
	return rc;
}

static void register_local_members_of_multicast_group(const struct udp_groups *groups, uint32_t group)
{
	for (uint32_t i = 0; i < groups->n; i++) {
		if (groups->at[i].group == group)
			udp_mcast_members_add_own_join(group, groups->at[i].ifindex);
	}
}

int udp_reload_multicast_group_from_kernel(struct udp_sock *sock, int fd, uint32_t group)
{
	const struct udp_groups *old = atomic_load_explicit(&sock->groups, memory_order_relaxed);
	struct udp_groups *groups;
	struct groups_draft groups_draft = {0};
	int rc = groups_draft_copy_other_groups(&groups_draft, old, group);

	if (rc == 0)
		rc = multicast_draft_add_group_on_all_links(&groups_draft, fd, group);
	groups = rc == 0 ? multicast_groups_from_draft(&groups_draft, sock->mc_all) : NULL;
	groups_draft_free(&groups_draft);
	if (groups == NULL)
		return -ENOMEM;
	udp_replace_multicast_groups(sock, groups);
	register_local_members_of_multicast_group(groups, group);
	return 0;
}

int udp_set_ip_multicast_all(struct udp_sock *sock, bool all)
{
	struct groups_draft groups_draft = {0};
	/* 0.0.0.0 is no group, so nothing is left out. */
	int rc = groups_draft_copy_other_groups(&groups_draft,
	                                        atomic_load_explicit(&sock->groups, memory_order_relaxed), INADDR_ANY);
	struct udp_groups *groups = rc == 0 ? multicast_groups_from_draft(&groups_draft, all) : NULL;

	groups_draft_free(&groups_draft);
	if (groups == NULL)
		return -ENOMEM;
	sock->mc_all = all;
	udp_replace_multicast_groups(sock, groups);
	return 0;
}

void udp_drop_all_multicast_groups(struct udp_sock *sock)
{
	udp_replace_multicast_groups(sock, NULL);
}

/* ---- the sink's question ---- */

static bool membership_accepts_source(const struct udp_membership *membership, uint32_t src)
{
	for (uint32_t i = 0; i < membership->n; i++) {
		if (membership->source[i] == src)
			return !membership->exclude;
	}
	return membership->exclude;
}

/* As the kernel's ip_mc_sf_allow. */
bool udp_multicast_filter_accepts_source(const struct udp_sock *sock, uint32_t group, uint32_t src, uint32_t ifindex)
{
	const struct udp_groups *groups = atomic_load_explicit(&sock->groups, memory_order_acquire);

	if (groups == NULL)
		return true;
	for (uint32_t i = 0; i < groups->n; i++) {
		if (groups->at[i].group == group && groups->at[i].ifindex == ifindex)
			return membership_accepts_source(&groups->at[i], src);
	}
	return groups->all;
}
