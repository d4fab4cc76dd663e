/*
 * fuzz_kernel_sock - answers of sock_diag that are none: cut, nested, of other types and families, in any number of
 * messages. Of each socket that is reported the port is the one that was asked for, and the walk ends when the answers
 * do.
 *
 * The input is a run of messages, each a byte that says how it is framed, a length, and bytes. They lie in a socket
 * that stands for the kernel's, each filled up to a multiple of four bytes, as the kernel's are (NLMSG_ALIGN); what a
 * message says of its own length is any.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../owner/owner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "broken: %s (errno %d)\n", #condition, errno);                                 \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

enum { PORT = 5001, SEEN_MAX = 100000 };
#define FRAMED 1u     /* a message of sock_diag with a right header */
#define RIGHT_PORT 2u /* and of the port that is asked for */
#define FOUR 4u       /* of IPv4 */
#define SIX 8u        /* of IPv6 */
#define MAPPED 16u    /* with an IPv4 address behind ::ffff: */
#define DONE 32u
#define FAILED 64u

struct seen {
	uint16_t port; /* asked for; 0: any */
	unsigned n;
};

static const struct vma_flow_rule rule = {
        .key = {.family = AF_INET, .proto = IPPROTO_TCP, .local = {10, 0, 0, 1}, .local_port_be = 0}};

static void fuzz_check_reported_socket(const struct kernel_sock *socket, void *arg)
{
	struct seen *seen = arg;
	struct vma_flow_rule wanted = rule;

	MUST(seen->n++ < SEEN_MAX);
	MUST(seen->port == 0 || ntohs(socket->port_be) == seen->port);
	MUST(!(socket->family == AF_INET6 && socket->v6only));
	wanted.key.local_port_be = socket->port_be;
	kernel_sock_conflicts(&wanted, socket, 1);
}

static void fuzz_fill_diag_message_header(uint8_t how, uint8_t *message, size_t n)
{
	struct nlmsghdr *head = (void *)message;
	struct inet_diag_msg *msg = NLMSG_DATA(head);

	if (n < sizeof(*head))
		return;
	head->nlmsg_len = (uint32_t)n;
	head->nlmsg_type = how & DONE ? NLMSG_DONE : how & FAILED ? NLMSG_ERROR : SOCK_DIAG_BY_FAMILY;
	if (n < NLMSG_LENGTH(sizeof(*msg)) || how & (DONE | FAILED))
		return;
	if (how & RIGHT_PORT)
		msg->id.idiag_sport = htons(PORT);
	if (how & (FOUR | SIX))
		msg->idiag_family = how & FOUR ? AF_INET : AF_INET6;
	if (how & MAPPED) {
		memset(msg->id.idiag_src, 0, 8);
		msg->id.idiag_src[2] = htonl(0xffff);
		memcpy(msg->id.idiag_dst, msg->id.idiag_src, sizeof(msg->id.idiag_dst));
	}
}

static void fuzz_answer_all_requests(int kernel, const uint8_t *data, size_t size)
{
	_Alignas(struct nlmsghdr) uint8_t message[2048];

	while (size >= 3) {
		size_t n = ((size_t)data[1] << 8 | data[2]) % sizeof(message);
		uint8_t how = data[0];

		data += 3;
		size -= 3;
		if (n > size)
			n = size;
		memcpy(message, data, n);
		data += n;
		size -= n;
		if (how & FRAMED)
			fuzz_fill_diag_message_header(how, message, n);
		while (n % NLMSG_ALIGNTO != 0)
			message[n++] = 0;
		if (send(kernel, message, n, MSG_DONTWAIT) < 0)
			return;
	}
}

static void fuzz_walk_fake_diag_answers(const uint8_t *data, size_t size, uint8_t how)
{
	const struct vma_flow_key key = {.family = AF_INET, .proto = IPPROTO_TCP};
	struct seen seen = {.port = (how & 3) == 1 ? PORT : 0}; /* of one connection it is not asked for alone */
	int pair[2], persistent, rc;

	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	fuzz_answer_all_requests(pair[0], data, size);
	persistent = pair[1];
	if (how & 2)
		rc = kernel_sock_visit_sockets_of_connection(&persistent, &key, 1, fuzz_check_reported_socket, &seen);
	else
		rc = kernel_sock_visit_sockets_of_port(&persistent, IPPROTO_TCP, seen.port, how & 4,
		                                       fuzz_check_reported_socket, &seen);
	(void)rc; /* an answer may be an error of any number */
	MUST(persistent == pair[1] || persistent == -1);
	if (persistent >= 0)
		close(persistent);
	close(pair[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1 || size > 20000)
		return 0;
	fuzz_walk_fake_diag_answers(data + 1, size - 1, data[0]);
	return 0;
}
