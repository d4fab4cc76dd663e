/* Sockets that live for a question: on ports of the kernel's choice, one after the other, and what follows them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

static int sendto_40_byte_payload(int s, const char *ip, int port, int seed)
{
	struct sockaddr_in to = ipv4_sockaddr_of(ip, port);
	char bytes[40];

	fill(bytes, sizeof(bytes), seed);
	return (int)sendto(s, bytes, sizeof(bytes), 0, (struct sockaddr *)&to, sizeof(to));
}

static int send_payload_of_seed(int s, int seed)
{
	char bytes[40];

	fill(bytes, sizeof(bytes), seed);
	return (int)send(s, bytes, sizeof(bytes), 0);
}

/* The next socket begins as the kernel's. */
static void short_make_short_lived_sockets(int port)
{
	for (int i = 0; i < 20; i++) {
		int s = udp_socket();

		if (sendto_40_byte_payload(s, there, port, 100 + i) != 40)
			die_with_message("sendto");
		close(s);
	}
}

CASE(short_lives_get_their_answers, "a thousand sockets with a question each hear each the answer to its own")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), wrong = 0;

	for (int i = 0; i < 1000; i++) {
		int s = i % 2 == 0 ? udp_socket() : udp_socket_connected_to(there, port);
		char bytes[40];

		if (i % 2 == 0 ? sendto_40_byte_payload(s, there, port, i % 200) != 40
		               : send_payload_of_seed(s, i % 200) != 40)
			wrong++;
		if (i % 10 == 0) { /* the others are closed before their answer */
			peer_send(far(), 0, here, port_of(s), 40, i % 200);
			wrong += recv(s, bytes, sizeof(bytes), 0) != 40 || seed_of_payload(bytes, 40) != i % 200;
		}
		close(s);
	}
	say("%d wrong", wrong);
}

CASE(short_grows_up, "after many short lives one that goes on hears everything in order, and is offloaded")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s, mine;

	register_port_name(port, "far");
	short_make_short_lived_sockets(port);
	s = udp_socket();
	SAY_RESULT(sendto_40_byte_payload(s, there, port, 1));
	register_port_name_of_fd(s, "mine");
	mine = port_of(s);
	peer_send(far(), 0, here, mine, 40, 11);
	take(s, 2000, 0);
	SAY_RESULT(sendto_40_byte_payload(s, there, port, 2));
	peer_send(far(), 0, here, mine, 40, 12);
	peer_send(far(), 0, here, mine, 40, 13);
	wait_until_sent_packets_arrived(20);
	SAY_RESULT(sendto_40_byte_payload(s, there, port, 3));
	expect_offloaded(s);
	peer_send(far(), 0, here, mine, 40, 14);
	wait_until_sent_packets_arrived(20);
	take(s, 2000, 0);
	take(s, 2000, 0);
	take(s, 2000, 0);
	save_kernel_udp_counters();
	SAY_RESULT(sendto_40_byte_payload(s, there, port, 4));
	peer_send(far(), 0, here, mine, 40, 15);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(1, 1);
	receive_all_until_empty(s);
}

CASE(short_listens_on, "after many short lives one that asks once and then only listens is offloaded, too")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s;

	register_port_name(port, "far");
	short_make_short_lived_sockets(port);
	s = udp_socket_connected_to(there, port);
	SAY_RESULT(send_payload_of_seed(s, 1));
	for (int i = 0; i < 8; i++) {
		peer_send(far(), 0, here, port_of(s), 40, i);
		take(s, 2000, 0);
	}
	expect_offloaded(s);
}

static void say_results_of_sends_to_closed_port(int s)
{
	for (int i = 0; i < 3; i++) {
		SAY_RESULT(send_payload_of_seed(s, 1));
		wait_until_sent_packets_arrived(30);
		SAY_RESULT(send_payload_of_seed(s, 2));
		wait_until_sent_packets_arrived(30);
	}
	SAY_RESULT(send_payload_of_seed(s, 3));
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(recv(s, &(char){0}, 1, 0));
	SAY_RESULT(recv(s, &(char){0}, 1, MSG_DONTWAIT));
}

CASE(short_refused, "each second send on a socket to a closed port tells the first one's refusal")
{
	int s = udp_socket_connected_to(there, 7391);

	expect_offloaded(s);
	say_results_of_sends_to_closed_port(s);
}

CASE(short_refused_deferred, "so it is after many short lives")
{
	int s;

	short_make_short_lived_sockets(peer_ask_to_open_socket(far(), 0, there, 0));
	s = udp_socket_connected_to(there, 7391);
	say_results_of_sends_to_closed_port(s);
	expect_offloaded(s);
}

static void *thread_recv_payload_return_seed(void *arg)
{
	char bytes[64];
	long len = recv(*(int *)arg, bytes, sizeof(bytes), 0);

	return (void *)(long)(len == 40 ? seed_of_payload(bytes, 40) : -1);
}

CASE(short_waits_in_another_thread, "after many short lives a thread that waits already gets what another one asks for")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s;
	pthread_t thread;
	void *seed;

	short_make_short_lived_sockets(port);
	s = udp_socket_connected_to(there, port);
	pthread_create(&thread, NULL, thread_recv_payload_return_seed, &s);
	pause_ms(30);
	for (int i = 0; i < 6; i++)
		SAY_RESULT(send_payload_of_seed(s, i));
	peer_send(far(), 0, here, port_of(s), 40, 77);
	pthread_join(thread, &seed);
	say("seed %ld", (long)seed);
	for (int i = 0; i < 6; i++) {
		pthread_create(&thread, NULL, thread_recv_payload_return_seed, &s);
		pause_ms(10);
		SAY_RESULT(send_payload_of_seed(s, i));
		peer_send(far(), 0, here, port_of(s), 40, i);
		pthread_join(thread, &seed);
		say("seed %ld", (long)seed);
	}
	expect_offloaded(s);
}

static void short_disconnect_udp(int s)
{
	const struct sockaddr none = {.sa_family = AF_UNSPEC};

	SAY_RESULT(connect(s, &none, sizeof(none)));
}

CASE(short_port_given_away, "a chosen port is another's as soon as the association is dissolved or the socket closed")
{
	int far_port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, far_port),
	    other = udp_socket_connected_to(there, far_port), port = port_of(s), other_port = port_of(other);

	register_port_name(far_port, "far");
	expect_offloaded(s);
	peer_send(far(), 0, here, port, 40, 1);
	SAY_RESULT(wait_until_readable(s, 2000));
	short_disconnect_udp(s);
	peer_ask_to_open_socket(near(), 0, here, port);
	peer_send(far(), 0, here, port, 40, 2);
	say_peer_received(near(), 0, 2000);
	say("ours:");
	receive_all_until_empty(s);
	SAY_RESULT(sendto_40_byte_payload(s, there, far_port, 3));
	peer_send(far(), 0, here, port_of(s), 40, 4);
	SAY_RESULT(wait_until_readable(s, 2000));
	receive_all_until_empty(s);
	peer_send(far(), 0, here, other_port, 40, 5);
	SAY_RESULT(wait_until_readable(other, 2000));
	SAY_RESULT(close(other));
	peer_ask_to_open_socket(near(), 0, here, other_port);
	peer_send(far(), 0, here, other_port, 40, 6);
	say_peer_received(near(), 0, 2000);
}

CASE(short_port_shared, "a chosen port that is made reusable afterwards is the last one's who binds it")
{
	int far_port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket(), late = udp_socket(), port, status;
	struct sockaddr_in address;
	pid_t child;

	register_port_name(far_port, "far");
	SAY_RESULT(sendto_40_byte_payload(s, there, far_port, 1));
	port = port_of(s);
	expect_offloaded(s);
	address = ipv4_sockaddr_of("0.0.0.0", port);
	SAY_RESULT(bind(late, (struct sockaddr *)&address, sizeof(address)));
	set_int(s, SOL_SOCKET, SO_REUSEADDR, 1);
	SAY_RESULT(bind(late, (struct sockaddr *)&address, sizeof(address)));
	set_int(late, SOL_SOCKET, SO_REUSEADDR, 1);
	SAY_RESULT(bind(late, (struct sockaddr *)&address, sizeof(address)));
	peer_send(far(), 0, here, port, 40, 2);
	SAY_RESULT(wait_until_readable(late, 2000));
	say("the first:");
	receive_all_until_empty(s);
	say("the last:");
	receive_all_until_empty(late);
	SAY_RESULT(close(late));
	child = fork();
	if (child == 0) {
		peer_send(far(), 0, here, port, 40, 3);
		take(s, 2000, 0);
		_exit(0);
	}
	waitpid(child, &status, 0);
	say("child: %d", status);
	peer_send(far(), 0, here, port, 40, 4);
	take(s, 2000, 0);
}

static void open_udp_sockets_and_say_first_send(int *s, int n, int port)
{
	for (int i = 0; i < n; i++) {
		s[i] = udp_socket();
		SAY_RESULT(sendto_40_byte_payload(s[i], there, port, i));
	}
}

CASE(short_of_ports, "when no port is left a send says so, until one is closed")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s[6], again;

	run_shell_command_here("sysctl -qw net.ipv4.ip_local_port_range='50400 50403'");
	open_udp_sockets_and_say_first_send(s, 6, port);
	SAY_RESULT(sendto_40_byte_payload(s[5], there, port, 7));
	SAY_RESULT(connect(s[4], (struct sockaddr *)&(struct sockaddr_in){0}, sizeof(struct sockaddr_in)));
	SAY_RESULT(close(s[0]));
	SAY_RESULT(sendto_40_byte_payload(s[5], there, port, 8));
	peer_send(far(), 0, here, port_of(s[5]), 40, 9);
	SAY_RESULT(wait_until_readable(s[5], 2000));
	say("bytes: %d", (int)recv(s[5], &(char[64]){0}, 64, MSG_DONTWAIT));
	for (int i = 1; i < 6; i++)
		close(s[i]);
	for (int i = 0; i < 40; i++) {
		again = udp_socket();
		if (sendto_40_byte_payload(again, there, port, i) != 40)
			say("no port");
		close(again);
	}
	run_shell_command_here("sysctl -qw net.ipv4.ip_local_port_range='32768 60999'");
}
