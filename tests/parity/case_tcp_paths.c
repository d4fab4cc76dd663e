/* tcp_paths: what happens between here and the peer: refusals by routers, silence, smaller MTUs, both sides at once. */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

static char bytes[1 << 20];

static int tcp_paths_try_connect(int fd, const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);

	return connect(fd, (struct sockaddr *)&address, sizeof(address));
}

/* 10.88.0.0/16 lies behind the far namespace. */
static void add_route_through_far_peer(void)
{
	peer_run_shell_command(far(), "echo 1 >/proc/sys/net/ipv4/ip_forward");
	run_shell_command_here("ip route replace 10.88.0.0/16 via $PARITY_THERE dev $PARITY_IF_FIRST");
	pause_ms(30);
}

static void remove_route_through_far_peer(void)
{
	run_shell_command_here("ip route del 10.88.0.0/16");
	peer_run_shell_command(far(), "echo 0 >/proc/sys/net/ipv4/ip_forward");
}

/* On a link as short as this the first refusal comes while the kernel is still sending, and only the second SYN's is
 * heard; so when it comes is not compared. */
CASE(tcp_path_unreachable, "a router says that there is no way: connect ends with that")
{
	static const char *const routes[] = {"unreachable", "prohibit"};
	char command[128];

	add_route_through_far_peer();
	for (int i = 0; i < 2; i++) {
		int s = tcp_socket();

		snprintf(command, sizeof(command), "ip route add %s 10.88.1.0/24", routes[i]);
		peer_run_shell_command(far(), command);
		SAY_RESULT(tcp_paths_try_connect(s, "10.88.1.1", 80));
		close(s);
		s = tcp_socket();
		SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
		SAY_RESULT(tcp_paths_try_connect(s, "10.88.1.1", 80));
		wait_and_print_poll_events("told", s, POLLHUP, 3000);
		say_so_error(s);
		close(s);
		peer_run_shell_command(far(), "ip route del 10.88.1.0/24");
	}
	remove_route_through_far_peer();
}

CASE(tcp_path_lost, "nothing comes back: SYNs are repeated as often as TCP_SYNCNT says, then ETIMEDOUT")
{
	int s = tcp_socket();
	uint64_t since;

	add_route_through_far_peer();
	peer_run_shell_command(far(), "ip route add blackhole 10.88.2.0/24");
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_SYNCNT, 1));
	since = now_ms();
	SAY_RESULT(tcp_paths_try_connect(s, "10.88.2.1", 80));
	say_took_about("given up", since, 3000);
	close(s);
	peer_run_shell_command(far(), "ip route del 10.88.2.0/24");
	remove_route_through_far_peer();
}

/* A host behind far, by a link that lets less through than both ends think. It ends by itself. */
#define NARROW_HOST                                                                                                    \
	"unshare -n sleep 10 >/dev/null 2>&1 </dev/null & p=$!; sleep 0.2; "                                           \
	"ip link add pm0 mtu 1000 type veth peer name pm1 mtu 1500 netns $p && ip addr add 10.88.3.1/24 dev pm0 && "   \
	"ip link set pm0 up && nsenter -t $p -n sh -c 'ip link set lo up; ip addr add 10.88.3.2/24 dev pm1; "          \
	"ip link set pm1 up; ip route add default via 10.88.3.1' && "                                                  \
	"(nsenter -t $p -n timeout 10 socat TCP-LISTEN:7700,reuseaddr EXEC:sha256sum >/dev/null 2>&1 </dev/null &) "   \
	"&& "                                                                                                          \
	"sleep 0.4"

CASE(tcp_path_mtu, "a router wants smaller segments: they become so, and all bytes arrive")
{
	int s = tcp_socket(), value = 0;
	socklen_t len = sizeof(value);
	char answer[80] = "";

	add_route_through_far_peer();
	peer_run_shell_command(far(), NARROW_HOST);
	SAY_RESULT(tcp_paths_try_connect(s, "10.88.3.2", 7700));
	expect_offloaded(s);
	for (int i = 0; i < 10; i++)
		fill(bytes + i * 20000, 20000, i);
	SAY_RESULT(write(s, bytes, 200000));
	SAY_RESULT(shutdown(s, SHUT_WR));
	recv(s, answer, 64, MSG_WAITALL);
	say("the peer: %s", answer);
	SAY_RESULT(getsockopt(s, IPPROTO_IP, IP_MTU, &value, &len));
	say("mtu %d", value);
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &value, &len));
	say("segments %d", value);
	close(s);
	peer_run_shell_command(far(), "ip link del pm0");
	remove_route_through_far_peer();
}

CASE(tcp_simultaneous_open, "both sides connect to each other: one connection, and both have made it")
{
	int s = tcp_socket_bound_to(here, 7801);

	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	peer_run_shell_command(far(), "ip route add blackhole 10.9.0.1/32"); /* it does not refuse */
	SAY_RESULT(tcp_paths_try_connect(s, there, 7802));
	pause_ms(100);
	peer_run_shell_command(far(), "ip route del blackhole 10.9.0.1/32");
	say("the peer connects: %s", atoi(peer(far(), "dial 1 %s 7801 %s 7802", here, there)) == 7802 ? "ok" : "not");
	wait_and_print_poll_events("so do we", s, POLLOUT, 2000);
	say_so_error(s);
	expect_offloaded(s);
	send_pattern_and_print_result(s, 1000, 1, 0);
	say_far_peer_reads(1, 1000, 1, 1);
	far_peer_writes(1, 2000, 2, 1);
	wait_and_print_poll_events("something to read", s, POLLIN, 1000);
	wait_until_sent_packets_arrived(20);
	recv_and_print_result(s, 2000, 0);
	close(s);
	say_far_peer_reads(1, 1, 0, 1);
}
