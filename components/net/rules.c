/*
 * rules - whether a lookup may depend on ports: by a rule that names some, or if several next hops share the load.
 *
 * If it may not, UDP sockets with the same destination share a path, however many there are and however short each
 * lives. Events tell of changed rules. No event tells of a change of the hash over several next hops: it is looked at
 * whenever paths are asked for again. TCP connections keep their ports in the question: they hold a path for long, and
 * are not told when ports begin to matter. A UDP socket asks anew when the generation moves.
 */
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "message.h"
#include "net_priv.h"
#include "netlink.h"

static void rules_note_if_rule_matches_ports(struct nlmsghdr *message, void *arg)
{
	bool ports, *any = arg;

	if (message->nlmsg_type == RTM_NEWRULE && net_msg_parse_rule_selects_ports(message, &ports) == 0)
		*any |= ports;
}

static bool net_any_policy_rule_matches_ports(struct vma_net *net)
{
	bool any = false;

	return net_nl_send_request_and_read_replies(net->query, net_msg_build_rule_dump_request(),
	                                            rules_note_if_rule_matches_ports, &any) < 0 ||
	       any;
}

/* fib_multipath_hash_policy: 0 looks at addresses only. */
static bool multipath_hash_uses_ports(const struct vma_net *net)
{
	char policy = '?';

	return syscall(SYS_pread64, net->policy_fd, &policy, 1, 0) != 1 || policy != '0';
}

/* Kept: a descriptor of the moment would have the number that the program's next one should have. */
int net_open_multipath_hash_policy_file(void)
{
	return net_move_fd_to_high_number((int)syscall(
	        SYS_openat, AT_FDCWD, "/proc/sys/net/ipv4/fib_multipath_hash_policy", O_RDONLY | O_CLOEXEC));
}

void net_update_whether_routing_uses_ports(struct vma_net *net)
{
	const bool by_ports = multipath_hash_uses_ports(net) || net_any_policy_rule_matches_ports(net);

	if (atomic_exchange_explicit(&net->by_ports, by_ports, memory_order_relaxed) != by_ports)
		net_paths_mark_all_dirty(net);
}

struct vma_net_key net_route_key_without_unused_ports(const struct vma_net *net, const struct vma_net_key *key)
{
	struct vma_net_key out = *key;

	if (out.proto == IPPROTO_UDP && !atomic_load_explicit(&net->by_ports, memory_order_relaxed))
		out.sport_be = out.dport_be = 0;
	return out;
}
