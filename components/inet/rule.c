/* rule.c - the names of a socket, as the rules of libvma.conf are asked with them. */
#include <vma/inet.h>

static struct vma_rules_name sockaddr_to_rule_address_and_port(const struct sockaddr_in *name)
{
	return (struct vma_rules_name){.address = ntohl(name->sin_addr.s_addr), .port = ntohs(name->sin_port)};
}

const struct vma_rule *vma_inet_find_kernel_only_rule(const struct vma_rules *rules, enum vma_rules_role role,
                                                      const struct sockaddr_in *first, const struct sockaddr_in *second)
{
	const struct vma_rules_name one = sockaddr_to_rule_address_and_port(first),
	                            other = second != NULL ? sockaddr_to_rule_address_and_port(second)
	                                                   : (struct vma_rules_name){0};
	const struct vma_rule *rule = vma_rules_match(rules, role, &one, &other);

	return rule != NULL && rule->by_os ? rule : NULL;
}
