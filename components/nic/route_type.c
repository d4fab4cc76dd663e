/* route_type - see route_type.h. */
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>

#include "os.h"
#include "route_type.h"

/* An answer that comes late is that of another question. */
static _Atomic uint32_t questions;

int nic_route_type(int fd, const uint8_t address[4])
{
	struct {
		struct nlmsghdr head;
		struct rtmsg route;
		struct rtattr attr;
		uint8_t address[4];
	} request = {
	        .head = {.nlmsg_len = sizeof(request),
	                 .nlmsg_type = RTM_GETROUTE,
	                 .nlmsg_flags = NLM_F_REQUEST,
	                 .nlmsg_seq = atomic_fetch_add_explicit(&questions, 1, memory_order_relaxed)},
	        .route = {.rtm_family = AF_INET, .rtm_dst_len = 32},
	        .attr = {.rta_len = RTA_LENGTH(4), .rta_type = RTA_DST},
	};
	_Alignas(struct nlmsghdr) char reply[4096];
	const struct nlmsghdr *head = (const void *)reply;
	ssize_t n;

	memcpy(request.address, address, 4);
	if (os_send(fd, &request, sizeof(request), 0) < 0)
		return -errno;
	do
		n = os_recv(fd, reply, sizeof(reply), 0);
	while ((n < 0 && errno == EINTR) || (n >= (ssize_t)sizeof(*head) && head->nlmsg_seq != request.head.nlmsg_seq));
	if (n < 0)
		return -errno;
	if (!NLMSG_OK(head, (unsigned)n) || head->nlmsg_type != RTM_NEWROUTE ||
	    head->nlmsg_len < NLMSG_LENGTH(sizeof(struct rtmsg)))
		return -ENETUNREACH;
	return ((const struct rtmsg *)NLMSG_DATA(head))->rtm_type;
}
