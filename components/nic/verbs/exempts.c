/* exempts - see exempts.h. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "verbs.h"

#define EXEMPTS_MAX 4096
#define VLAN_ID_BITS 0x0fff

struct verbs_exempt {
	struct verbs_exempt *next;
	struct vma_flow_key key;
	struct ibv_flow *rule;
	unsigned refs;
};

/* ---- the library of mlx5 ---- */

#define MLX5_SYMBOLS(X)                                                                                                \
	X(bool, mlx5dv_is_supported, (struct ibv_device * device))                                                     \
	X(struct mlx5dv_flow_matcher *, mlx5dv_create_flow_matcher,                                                    \
	  (struct ibv_context * context, struct mlx5dv_flow_matcher_attr * attr))                                      \
	X(int, mlx5dv_destroy_flow_matcher, (struct mlx5dv_flow_matcher * matcher))                                    \
	X(struct ibv_flow *, mlx5dv_create_flow,                                                                       \
	  (struct mlx5dv_flow_matcher * matcher, struct mlx5dv_flow_match_parameters * value, size_t n,                \
	   struct mlx5dv_flow_action_attr * actions))

static struct {
#define X(type, name, parameters) type(*name) parameters;
	MLX5_SYMBOLS(X)
#undef X
} mlx5;
static bool mlx5_found;

/* libibverbs has loaded it, if there is such a device. It is not loaded for this. */
static void mlx5_resolve_library_symbols(void)
{
	void *library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);

	mlx5_found = true;
#define X(type, name, parameters)                                                                                      \
	*(void **)&mlx5.name = verbs_lib_symbol(library, #name);                                                       \
	mlx5_found &= mlx5.name != NULL;
	MLX5_SYMBOLS(X)
#undef X
}

void verbs_exempts_init(struct verbs_exempts *exempts, struct ibv_device *device)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, mlx5_resolve_library_symbols);
	exempts->refused = !mlx5_found || !mlx5.mlx5dv_is_supported(device);
}

/* ---- rules ---- */

void verbs_exempt_fill_match_value_and_mask(const struct vma_flow_key *key, const uint8_t mac[6],
                                            struct mlx5_outer_headers *value, struct mlx5_outer_headers *mask)
{
	*value = (struct mlx5_outer_headers){.ether_type_be = htons(ETH_P_IP),
	                                     .ip_proto = IPPROTO_TCP,
	                                     .tcp_src_port_be = key->peer_port_be,
	                                     .tcp_dst_port_be = key->local_port_be};
	*mask = (struct mlx5_outer_headers){
	        .ether_type_be = 0xffff, .ip_proto = 0xff, .tcp_src_port_be = 0xffff, .tcp_dst_port_be = 0xffff};
	memcpy(value->dst_mac, mac, 6);
	memset(mask->dst_mac, 0xff, 6);
	memcpy(value->src_ip + 12, key->peer, 4);
	memset(mask->src_ip + 12, 0xff, 4);
	memcpy(value->dst_ip + 12, key->local, 4);
	memset(mask->dst_ip + 12, 0xff, 4);
	if (key->vlan != 0) {
		value->bits_be = mask->bits_be = htons(MLX5_MATCH_CVLAN);
		value->vlan_be = htons(key->vlan);
		mask->vlan_be = htons(VLAN_ID_BITS);
	}
}

/* A struct mlx5dv_flow_match_parameters with its headers. */
struct match {
	size_t size;
	struct mlx5_outer_headers headers;
};
_Static_assert(offsetof(struct match, size) == offsetof(struct mlx5dv_flow_match_parameters, match_sz) &&
                       offsetof(struct match, headers) == offsetof(struct mlx5dv_flow_match_parameters, match_buf),
               "as mlx5dv has it");

static struct mlx5dv_flow_matcher *exempt_flow_matcher_get_or_create(struct verbs_device *device, bool tagged,
                                                                     struct match *mask)
{
	struct mlx5dv_flow_matcher **matcher = &device->exempts.matchers[tagged];
	struct mlx5dv_flow_matcher_attr attr = {.type = IBV_FLOW_ATTR_NORMAL,
	                                        .priority = VERBS_PRIORITY_PEER,
	                                        .match_criteria_enable = MLX5_CRITERIA_OUTER,
	                                        .match_mask = (struct mlx5dv_flow_match_parameters *)mask};

	if (*matcher == NULL)
		*matcher = mlx5.mlx5dv_create_flow_matcher(device->context, &attr);
	/* cppcheck-suppress returnDanglingLifetime ; the library copies what it is given */
	return *matcher;
}

/* NULL, with errno. */
static struct ibv_flow *card_rule_create(struct verbs_device *device, const struct vma_flow_key *key,
                                         const uint8_t mac[6])
{
	struct mlx5dv_flow_action_attr action = {.type = MLX5DV_FLOW_ACTION_DEFAULT_MISS};
	struct match value = {.size = sizeof(value.headers)}, mask = {.size = sizeof(mask.headers)};
	struct mlx5dv_flow_matcher *matcher;

	verbs_exempt_fill_match_value_and_mask(key, mac, &value.headers, &mask.headers);
	matcher = exempt_flow_matcher_get_or_create(device, key->vlan != 0, &mask);
	if (matcher == NULL)
		return NULL;
	/* cppcheck-suppress returnDanglingLifetime ; as above */
	return mlx5.mlx5dv_create_flow(matcher, (struct mlx5dv_flow_match_parameters *)&value, 1, &action);
}

static struct verbs_exempt **verbs_exempt_find_link_by_key(struct verbs_exempts *exempts,
                                                           const struct vma_flow_key *key)
{
	struct verbs_exempt **place = &exempts->first;

	while (*place != NULL && memcmp(&(*place)->key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	return place;
}

static void verbs_exempt_unlink_and_destroy_rule(struct verbs_exempts *exempts, struct verbs_exempt **place)
{
	struct verbs_exempt *exempt = *place;

	*place = exempt->next;
	exempts->n--;
	ibv_destroy_flow(exempt->rule);
	free(exempt);
}

/* ---- calls; lock held ---- */

static int verbs_exempt_create_card_rule(struct nic_verbs *nic, const struct vma_flow_key *key)
{
	struct verbs_device *device = nic->device;
	struct verbs_exempt *exempt;
	int error;

	if (device->exempts.n == EXEMPTS_MAX)
		return -ENOSPC;
	exempt = calloc(1, sizeof(*exempt));
	if (exempt == NULL)
		return -ENOMEM;
	errno = 0;
	exempt->rule = card_rule_create(device, key, nic->mac);
	if (exempt->rule == NULL) {
		error = errno;
		free(exempt);
		if (error == ENOMEM || error == ENOSPC)
			return -ENOSPC;
		device->exempts.refused = true;
		vma_log_debug("%s: RDMA device %s leaves no connection to the kernel by itself: %s", nic->name,
		              device->place.device, strerror(error));
		return -EOPNOTSUPP;
	}
	exempt->key = *key;
	exempt->refs = 1;
	exempt->next = device->exempts.first;
	device->exempts.first = exempt;
	device->exempts.n++;
	return 0;
}

int verbs_exempt_rule_ref_or_create(struct nic_verbs *nic, const struct vma_flow_key *key)
{
	struct verbs_device *device = nic->device;
	struct verbs_exempt *exempt;

	if (device->broken)
		return -EAGAIN;
	if (device->exempts.refused)
		return -EOPNOTSUPP;
	exempt = *verbs_exempt_find_link_by_key(&device->exempts, key);
	if (exempt == NULL)
		return verbs_exempt_create_card_rule(nic, key);
	exempt->refs++;
	return 0;
}

/* One that a device of before had may end another user's in this one. The users do without it. */
void verbs_exempt_rule_unref(struct nic_verbs *nic, const struct vma_flow_key *key)
{
	struct verbs_exempt **place = verbs_exempt_find_link_by_key(&nic->device->exempts, key);

	if (*place != NULL && --(*place)->refs == 0)
		verbs_exempt_unlink_and_destroy_rule(&nic->device->exempts, place);
}

void verbs_exempt_rule_remove(struct nic_verbs *nic, const struct vma_flow_key *key)
{
	struct verbs_exempt **place = verbs_exempt_find_link_by_key(&nic->device->exempts, key);

	if (*place != NULL)
		verbs_exempt_unlink_and_destroy_rule(&nic->device->exempts, place);
}

void verbs_exempts_fini(struct verbs_exempts *exempts)
{
	while (exempts->first != NULL)
		verbs_exempt_unlink_and_destroy_rule(exempts, &exempts->first);
	for (int tagged = 0; tagged < 2; tagged++)
		if (exempts->matchers[tagged] != NULL)
			mlx5.mlx5dv_destroy_flow_matcher(exempts->matchers[tagged]);
}
