/*
 * priv_claimer - a client of vmad that asks for flows of ports that are not its own, for tests/hostile/claims.sh.
 *
 *   priv_claimer INTERFACE ADDRESS UDP-PORT UDP-COOKIE TCP-PORT TCP-COOKIE LISTENER-PORT
 *   priv_claimer INTERFACE ADDRESS PORT PEER PEER-PORT    a block of ports with this one, and the flow of a connection
 *                                                         in it, which another process is going to make; kept
 *
 * The first two sockets are the kernel's, and another user's; the last port is a listener's of another client. Run as a
 * user who is admitted by name. A line for each answer.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../xdp/proto.h"

static int vmad;
static uint32_t slot;
static struct in_addr address;

static void claimer_exit_with_error(const char *what)
{
	perror(what);
	exit(2);
}

/* One message and its answer: how many descriptors came with that; what it says is in `msg`. */
static unsigned claimer_exchange_message(struct vmad_msg *msg, const int *shown, unsigned nshown)
{
	struct pollfd answer = {.fd = vmad, .events = POLLIN};
	const uint16_t type = msg->type;
	int fds[VMAD_FDS_MAX], rc;
	unsigned nfds = 0;
	size_t bytes;

	msg->magic = VMAD_MAGIC;
	msg->version = VMAD_VERSION;
	rc = vmad_send_message_with_fds(vmad, msg, shown, nshown);
	do
		rc = rc == 0 && poll(&answer, 1, 5000) == 1 ? vmad_receive_message(vmad, msg, &bytes, fds, &nfds)
		                                            : -EPIPE;
	while (rc == 1 && msg->type != type);
	if (rc != 1)
		claimer_exit_with_error("vmad has hung up");
	for (unsigned i = 0; i < nfds; i++)
		close(fds[i]);
	return nfds;
}

static void claimer_print_result(const char *what, int rc)
{
	printf("%s: %s\n", what, rc < 0 ? strerrordesc_np(-rc) : "ok");
	fflush(stdout);
}

static struct vma_flow_key claimer_wildcard_key_of_port(uint8_t proto, unsigned port)
{
	struct vma_flow_key key = {.family = AF_INET, .proto = proto, .local_port_be = htons((uint16_t)port)};

	memcpy(key.local, &address, sizeof(address));
	return key;
}

static struct vma_flow_key key_with_test_net_peer_port_443(struct vma_flow_key key)
{
	memcpy(key.peer, (uint8_t[]){198, 51, 100, 7}, 4);
	key.peer_port_be = htons(443);
	return key;
}

static int flow(struct vma_flow_key key, uint32_t flags, uint64_t cookie, int shown)
{
	struct vmad_msg msg = {.type = VMAD_FLOW_ADD,
	                       .flow = {.slot = slot, .flags = flags, .shadow_cookie = cookie, .key = key}};

	claimer_exchange_message(&msg, &shown, shown >= 0);
	return msg.result;
}

static uint64_t claimer_cookie_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		claimer_exit_with_error("SO_COOKIE");
	return cookie;
}

static int claimer_open_bound_socket(int type, unsigned port, unsigned *out)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	socklen_t len = sizeof(name);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0 ||
	    getsockname(fd, (struct sockaddr *)&name, &len) < 0)
		claimer_exit_with_error("bind");
	*out = ntohs(name.sin_port);
	return fd;
}

static void claimer_connect_to_vmad_and_rent_slot(const char *interface)
{
	struct vmad_msg hello = {.type = VMAD_HELLO}, rent = {.type = VMAD_RENT, .rent = {.rx_wre = 64, .tx_wre = 64}};
	struct sockaddr_un name;
	const socklen_t len = vmad_address(if_nametoindex(interface), &name);
	unsigned nfds;

	vmad = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (vmad < 0 || connect(vmad, (struct sockaddr *)&name, len) < 0)
		claimer_exit_with_error("connect");
	claimer_exchange_message(&hello, NULL, 0);
	claimer_print_result("is a client", hello.result);
	nfds = claimer_exchange_message(&rent, NULL, 0);
	slot = rent.rental.slot;
	claimer_print_result("has the table of ports that clients take by themselves",
	                     nfds != rent.rental.queues + 2 + rent.rental.has_alive ? 0 : -EPERM);
}

/* A socket of a network namespace of this process's own, where it may have any port. */
static int socket_in_other_netns(unsigned port)
{
	struct vmad_msg msg = {0};
	int ends[2], fds[VMAD_FDS_MAX];
	unsigned nfds = 0;
	size_t bytes;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) < 0)
		claimer_exit_with_error("socketpair");
	pid = fork();
	if (pid == 0) {
		unsigned same;
		int fd = unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 ? claimer_open_bound_socket(SOCK_DGRAM, port, &same)
		                                                    : -1;

		_exit(fd >= 0 && vmad_send_message_with_fds(ends[1], &msg, &fd, 1) == 0 ? 0 : 1);
	}
	waitpid(pid, NULL, 0);
	if (vmad_receive_message(ends[0], &msg, &bytes, fds, &nfds) != 1 || nfds != 1)
		claimer_exit_with_error("a socket of another network namespace");
	return fds[0];
}

static void claimer_request_foreign_ports(unsigned udp_port, uint64_t udp_cookie, unsigned tcp_port,
                                          uint64_t tcp_cookie, unsigned listener_port)
{
	const struct vma_flow_key udp = claimer_wildcard_key_of_port(IPPROTO_UDP, udp_port),
	                          tcp = claimer_wildcard_key_of_port(IPPROTO_TCP, tcp_port);
	struct vmad_msg shadows = {.type = VMAD_FLOW_SHADOWS,
	                           .shadows = {.slot = slot, .count = 1, .key = udp, .cookie = {udp_cookie}}};
	unsigned own_port;
	const int own = claimer_open_bound_socket(SOCK_DGRAM, 0, &own_port),
	          elsewhere = socket_in_other_netns(udp_port);
	const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);

	claimer_print_result("UDP, by its cookie", flow(udp, 0, udp_cookie, -1));
	claimer_print_result("UDP, by its cookie, with a socket of another port", flow(udp, 0, udp_cookie, own));
	claimer_print_result("UDP, with a socket of another port", flow(udp, 0, claimer_cookie_of(own), own));
	claimer_print_result("UDP, with a socket of another network namespace",
	                     flow(udp, 0, claimer_cookie_of(elsewhere), elsewhere));
	claimer_print_result("UDP, with a file", flow(udp, 0, udp_cookie, file));
	claimer_print_result("UDP, without a socket", flow(udp, 0, 0, -1));
	claimer_print_result("UDP from one peer, without a socket",
	                     flow(key_with_test_net_peer_port_443(udp), 0, 0, -1));
	claimer_exchange_message(&shadows, NULL, 0);
	claimer_print_result("UDP, as one of its shadows", shadows.result);
	shadows = (struct vmad_msg){.type = VMAD_FLOW_SHADOWS, .shadows = {.slot = slot, .key = udp}};
	claimer_exchange_message(&shadows, NULL, 0);
	claimer_print_result("UDP, as a waiter without a shadow", shadows.result);
	claimer_print_result("a listener, by its cookie", flow(tcp, VMA_FLOW_LISTENER, tcp_cookie, -1));
	claimer_print_result("a connection to it", flow(key_with_test_net_peer_port_443(tcp), 0, 0, -1));
	claimer_print_result("a listener of another client",
	                     flow(claimer_wildcard_key_of_port(IPPROTO_TCP, listener_port), VMA_FLOW_LISTENER, 0, -1));
	claimer_print_result(
	        "a connection to it",
	        flow(key_with_test_net_peer_port_443(claimer_wildcard_key_of_port(IPPROTO_TCP, listener_port)), 0, 0,
	             -1));
	claimer_print_result("a block of ports for servers",
	                     flow(claimer_wildcard_key_of_port(VMA_FLOW_TCP_PORTS, 512), 0, 0, -1));
	claimer_print_result("all of an address",
	                     flow(claimer_wildcard_key_of_port(VMA_FLOW_TCP_ADDRESS, 0), 0, 0, -1));
	close(own);
	close(elsewhere);
	close(file);
}

static void claimer_request_own_ports(void)
{
	const struct in_addr here = address;
	unsigned udp_port, tcp_port, beside_port;
	const int udp = claimer_open_bound_socket(SOCK_DGRAM, 0, &udp_port),
	          tcp = claimer_open_bound_socket(SOCK_STREAM, 0, &tcp_port);
	const int beside = claimer_open_bound_socket(SOCK_STREAM, 0, &beside_port);
	struct vmad_msg shadows = {.type = VMAD_FLOW_SHADOWS, .shadows = {.slot = slot, .count = 1}};

	address.s_addr = htonl(0xc6336463); /* 198.51.100.99 */
	claimer_print_result("its own UDP socket at an address of another host",
	                     flow(claimer_wildcard_key_of_port(IPPROTO_UDP, udp_port), 0, claimer_cookie_of(udp), udp));
	address = here;
	claimer_print_result("its own UDP socket, unshown",
	                     flow(claimer_wildcard_key_of_port(IPPROTO_UDP, udp_port), 0, claimer_cookie_of(udp), -1));
	claimer_print_result("its own UDP socket",
	                     flow(claimer_wildcard_key_of_port(IPPROTO_UDP, udp_port), 0, claimer_cookie_of(udp), udp));
	shadows.shadows.key = claimer_wildcard_key_of_port(IPPROTO_UDP, udp_port);
	shadows.shadows.cookie[0] = claimer_cookie_of(udp);
	claimer_exchange_message(&shadows, &udp, 1);
	claimer_print_result("its own shadow", shadows.result);
	if (listen(tcp, 8) < 0)
		claimer_exit_with_error("listen");
	claimer_print_result("its own listener", flow(claimer_wildcard_key_of_port(IPPROTO_TCP, tcp_port),
	                                              VMA_FLOW_LISTENER, claimer_cookie_of(tcp), tcp));
	claimer_print_result(
	        "a connection to it",
	        flow(key_with_test_net_peer_port_443(claimer_wildcard_key_of_port(IPPROTO_TCP, tcp_port)), 0, 0, -1));
	claimer_print_result(
	        "a connection from a port of its own, unshown",
	        flow(key_with_test_net_peer_port_443(claimer_wildcard_key_of_port(IPPROTO_TCP, beside_port)), 0, 0,
	             -1));
	claimer_print_result(
	        "a connection from a port of its own",
	        flow(key_with_test_net_peer_port_443(claimer_wildcard_key_of_port(IPPROTO_TCP, beside_port)), 0,
	             claimer_cookie_of(beside), beside));
	claimer_print_result("a block of ports",
	                     flow(claimer_wildcard_key_of_port(VMA_FLOW_TCP_PORTS, 61440), 0, 0, -1));
	claimer_print_result(
	        "a connection in it",
	        flow(key_with_test_net_peer_port_443(claimer_wildcard_key_of_port(IPPROTO_TCP, 61441)), 0, 0, -1));
}

static void claimer_request_guessed_connection(unsigned port, const char *peer, unsigned peer_port)
{
	struct vma_flow_key key = claimer_wildcard_key_of_port(IPPROTO_TCP, port);

	if (inet_pton(AF_INET, peer, key.peer) != 1)
		claimer_exit_with_error(peer);
	key.peer_port_be = htons((uint16_t)peer_port);
	claimer_print_result("a block of ports",
	                     flow(claimer_wildcard_key_of_port(VMA_FLOW_TCP_PORTS, port / 256 * 256), 0, 0, -1));
	claimer_print_result("a connection in it", flow(key, 0, 0, -1));
	pause();
}

int main(int argc, char **argv)
{
	if (argc == 6 && inet_pton(AF_INET, argv[2], &address) == 1) {
		claimer_connect_to_vmad_and_rent_slot(argv[1]);
		claimer_request_guessed_connection((unsigned)atoi(argv[3]), argv[4], (unsigned)atoi(argv[5]));
	}
	if (argc != 8 || inet_pton(AF_INET, argv[2], &address) != 1)
		return 1;
	claimer_connect_to_vmad_and_rent_slot(argv[1]);
	claimer_request_foreign_ports((unsigned)atoi(argv[3]), strtoull(argv[4], NULL, 0), (unsigned)atoi(argv[5]),
	                              strtoull(argv[6], NULL, 0), (unsigned)atoi(argv[7]));
	claimer_request_own_ports();
	return 0;
}
