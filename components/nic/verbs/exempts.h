/*
 * exempts - connections of TCP that the card itself leaves to the kernel, although a wider rule of ours takes them.
 *
 * Plain verbs have no such rule. mlx5 has: an action "default miss", by mlx5dv_create_flow. Its match is a buffer in
 * the device's own form.
 *
 * Threads: the nic's lock is held. Memory: the caller's; one allocation for each exemption.
 * Example: test/test_verbs_exempts.c, test/test_verbs_exempt_rules.c. Source: mlx5dv_create_flow(3).
 */
#ifndef VMA_NIC_VERBS_EXEMPTS_H
#define VMA_NIC_VERBS_EXEMPTS_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>

#include <infiniband/mlx5dv.h>

/* The headers of a packet that such a rule compares (fte_match_set_lyr_2_4 of the device's manual), big endian. */
struct mlx5_outer_headers {
	uint8_t src_mac[6];
	uint16_t ether_type_be; /* behind the tag */
	uint8_t dst_mac[6];
	uint16_t vlan_be; /* priority, CFI, id */
	uint8_t ip_proto;
	uint8_t ip_tos;
	uint16_t bits_be; /* MLX5_MATCH_CVLAN, ..., version of IP, flags of TCP */
	uint16_t tcp_src_port_be, tcp_dst_port_be;
	uint8_t ttl[4];
	uint16_t udp_src_port_be, udp_dst_port_be;
	uint8_t src_ip[16], dst_ip[16]; /* of IPv4 the last four */
};
_Static_assert(sizeof(struct mlx5_outer_headers) == 64, "as the device has it");
#define MLX5_MATCH_CVLAN (1 << 15)
#define MLX5_CRITERIA_OUTER (1 << 0)

/* key: a connection of TCP over IPv4; mac: the port's. */
void verbs_exempt_fill_match_value_and_mask(const struct vma_flow_key *key, const uint8_t mac[6],
                                            struct mlx5_outer_headers *value, struct mlx5_outer_headers *mask);

struct verbs_exempt;
/* Of one opening of a device. All 0 at first. */
struct verbs_exempts {
	struct verbs_exempt *first;
	struct mlx5dv_flow_matcher *matchers[2]; /* of untagged packets, of tagged ones; NULL: none needed yet */
	uint32_t n;
	bool refused; /* the device has no such rules */
};

#endif
