/* tcp_ports: whose a port is: TIME_WAIT, several listeners, full queues. */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

static int tcp_socket_bound_and_connected(int from, int port, long *rc)
{
	struct sockaddr_in address = ipv4_sockaddr_of(there, port);
	int s = tcp_socket_bound_to(here, from);

	*rc = connect(s, (struct sockaddr *)&address, sizeof(address));
	return s;
}

CASE(tcp_time_wait_connect, "from a port whose connection is in TIME_WAIT: with time stamps it is used again")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), other = atoi(peer(far(), "listen 2 %s 0", there)), s,
	    mine;
	long rc;

	s = tcp_socket_bound_and_connected(0, port, &rc);
	mine = port_of(s);
	result("connect", rc);
	peer(far(), "accept 0 1 2000");
	close(s);
	peer(far(), "close 1");
	wait_until_sent_packets_arrived(20);
	s = tcp_socket_bound_and_connected(mine, port, &rc);
	result("to the same peer", rc);
	close(s);
	s = tcp_socket_bound_and_connected(mine, other, &rc);
	result("to another", rc);
	expect_offloaded(s);
	peer(far(), "accept 2 1 2000");
	send_pattern_and_print_result(s, 10, 1, 0);
	say_far_peer_reads(1, 10, 1, 1);
	close(s);
	peer(far(), "close 1");
	pause_ms(1500); /* tcp_tw_reuse is for loopback only, by default */
	s = tcp_socket_bound_and_connected(mine, port, &rc);
	result("later", rc);
	close(s);
}

CASE(tcp_time_wait_accept, "a peer connects from the port whose connection is in TIME_WAIT here: it is let in")
{
	int l = tcp_listener(here, 0, 16), s, port;

	port = atoi(peer(far(), "dial 1 %s %d", here, port_of(l)));
	s = accept(l, NULL, NULL);
	close(s);
	say_far_peer_reads(1, 1, 0, 1);
	peer(far(), "close 1");
	wait_until_sent_packets_arrived(20);
	say("dials again: %s",
	    atoi(peer(far(), "dial 2 %s %d %s %d", here, port_of(l), there, port)) == port ? "from there" : "not");
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	expect_offloaded(s);
	peer(far(), "write 2 10 1");
	recv_and_print_result(s, 10, MSG_WAITALL);
	close(s);
	close(l);
}

static int reuse_port_listener(int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(here, port);
	int l = tcp_socket();

	SAY_RESULT(set_int(l, SOL_SOCKET, SO_REUSEPORT, 1));
	SAY_RESULT(bind(l, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(listen(l, 32));
	SAY_RESULT(fcntl(l, F_SETFL, O_NONBLOCK));
	return l;
}

CASE(tcp_reuse_port, "two listeners with SO_REUSEPORT share what comes; one is closed, and the other gets all")
{
	int l[2], accepted = 0, fd;

	l[0] = reuse_port_listener(0);
	l[1] = reuse_port_listener(port_of(l[0]));
	expect_offloaded(l[0]);
	expect_offloaded(l[1]);
	for (int i = 0; i < 16; i++)
		peer(far(), "dial %d %s %d", 10 + i, here, port_of(l[0]));
	wait_until_sent_packets_arrived(50);
	for (int i = 0; i < 2; i++) {
		for (; (fd = accept(l[i], NULL, NULL)) >= 0; accepted++)
			close(fd);
	}
	say("%d accepted", accepted);
	close(l[0]);
	for (int i = 0; i < 8; i++)
		peer(far(), "dial %d %s %d", 30 + i, here, port_of(l[1]));
	wait_until_sent_packets_arrived(50);
	for (accepted = 0; (fd = accept(l[1], NULL, NULL)) >= 0; accepted++)
		close(fd);
	say("%d accepted by the other alone", accepted);
	close(l[1]);
}

CASE(tcp_backlog_full, "a full queue lets nobody in: who comes then is let in when there is room")
{
	int l = tcp_listener(here, 0, 1), s;

	peer(far(), "dial 1 %s %d", here, port_of(l));
	peer(far(), "dial 2 %s %d", here, port_of(l));
	peer(far(), "later 0 dial 3 %s %d", here, port_of(l));
	pause_ms(300);
	for (int i = 0; i < 2; i++) {
		s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
		close(s);
	}
	wait_and_print_poll_events("the third", l, POLLIN, 100);
	wait_and_print_poll_events("and its next attempt", l, POLLIN, 3000);
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	peer(far(), "write 3 10 5");
	recv_and_print_result(s, 10, MSG_WAITALL);
	close(s);
	close(l);
}

CASE(tcp_bind_taken, "ports that are taken: by a listener, by a connection, by a socket of this or another process")
{
	int l = tcp_listener(here, 0, 5), s = tcp_socket(), in, port;
	struct sockaddr_in address = ipv4_sockaddr_of(here, port_of(l));

	SAY_RESULT(bind(s, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_REUSEADDR, 1));
	SAY_RESULT(bind(s, (struct sockaddr *)&address, sizeof(address)));
	close(s);
	peer(far(), "dial 1 %s %d", here, port_of(l));
	in = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	port = port_of(l);
	close(l);
	address = ipv4_sockaddr_of(here, port);
	s = tcp_socket();
	SAY_RESULT(bind(s, (struct sockaddr *)&address, sizeof(address)));
	say("another process: %s", atoi(peer(near(), "listen 0 %s %d", here, port)) == port ? "listens" : "not");
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_REUSEADDR, 1));
	SAY_RESULT(bind(s, (struct sockaddr *)&address, sizeof(address)));
	peer(near(), "close 0");
	send_pattern_and_print_result(in, 10, 1, 0);
	say_far_peer_reads(1, 10, 1, 1);
	close(in);
	close(s);
}

/* ---- TIME_WAIT, and who may bind then ---- */

static int listener_with_reuse_option(const char *ip, int port, int reuse)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);
	int l = tcp_socket();

	if (reuse != 0)
		set_int(l, SOL_SOCKET, reuse, 1);
	if (bind(l, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(l, 4) != 0)
		die_with_message("a listener");
	return l;
}

/* Accepts one connection of the far peer's and closes it first. */
static void accept_from_far_and_close_before_it(int l)
{
	int s;

	peer(far(), "dial 1 %s %d", here, port_of(l));
	s = accept(l, NULL, NULL);
	expect_offloaded(s);
	close(s);
	say_far_peer_reads(1, 1, 0, 1);
	peer(far(), "close 1");
	wait_until_sent_packets_arrived(20);
}

static void say_bind_and_listen_result(const char *ip, const char *name, int port, int reuse, const char *how)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);
	int s = tcp_socket();
	long rc;

	if (reuse != 0)
		set_int(s, SOL_SOCKET, reuse, 1);
	rc = bind(s, (struct sockaddr *)&address, sizeof(address));
	if (rc == 0)
		rc = listen(s, 4);
	say("  %s, %s: %s", name, how, rc == 0 ? "ok" : error_name(errno));
	close(s);
}

static void say_bind_results_by_reuse_option(int port)
{
	static const struct {
		int option;
		const char *text;
	} hows[] = {{0, "no option"}, {SO_REUSEADDR, "SO_REUSEADDR"}, {SO_REUSEPORT, "SO_REUSEPORT"}};

	for (size_t i = 0; i < sizeof(hows) / sizeof(*hows); i++) {
		say_bind_and_listen_result(here, "the same address", port, hows[i].option, hows[i].text);
		say_bind_and_listen_result("0.0.0.0", "any address", port, hows[i].option, hows[i].text);
		say_bind_and_listen_result(here_second, "another address", port, hows[i].option, hows[i].text);
	}
}

static const int reuses[] = {0, SO_REUSEADDR, SO_REUSEPORT};
static const char *const reuse_names[] = {"no option", "SO_REUSEADDR", "SO_REUSEPORT"};

CASE(tcp_time_wait_bind, "a listener is closed whose connection is in TIME_WAIT: who may bind the port then")
{
	for (int i = 0; i < 6; i++) {
		int l = listener_with_reuse_option(i < 3 ? here : "0.0.0.0", 0, reuses[i % 3]), port = port_of(l);

		accept_from_far_and_close_before_it(l);
		close(l);
		say("the listener had %s", reuse_names[i % 3]);
		say_bind_results_by_reuse_option(port);
	}
}

static void serve_and_end(int reuse, bool listener_first, int to)
{
	int l = listener_with_reuse_option(here, 0, reuse), port = port_of(l), s;

	if (write(to, &port, sizeof(port)) != sizeof(port) || dup2(to, STDOUT_FILENO) < 0)
		_exit(1);
	if (!listener_first) {
		accept_from_far_and_close_before_it(l);
		exit(0);
	}
	peer(far(), "dial 1 %s %d", here, port);
	s = accept(l, NULL, NULL);
	expect_offloaded(s);
	close(l);
	close(s);
	say_far_peer_reads(1, 1, 0, 1);
	peer(far(), "close 1");
	wait_until_sent_packets_arrived(20);
	exit(0);
}

/* Whether the kernel has a connection of a port's that waits. */
static bool kernel_has_time_wait_conn(int port)
{
	static const char *const lists[] = {"/proc/net/tcp", "/proc/net/tcp6"};
	char line[512];
	unsigned local, state;
	bool found = false;

	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
		FILE *f = fopen(lists[i], "re");

		while (f != NULL && fgets(line, sizeof(line), f) != NULL)
			if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &local, &state) == 2 &&
			    (int)local == port)
				found = found || state == TCP_TIME_WAIT || state == TCP_FIN_WAIT2;
		if (f != NULL)
			fclose(f);
	}
	return found;
}

/*
 * A kernel that is short of memory, or has too many orphans, closes such a connection at once: there is nothing to ask
 * about then, and the process is started again.
 */
static int port_of_conn_left_by_killed_server(int reuse, bool listener_first, int *status)
{
	char said[256];
	int ends[2], port = 0;

	for (int times = 0; times < 3; times++) {
		size_t have = 0;
		ssize_t n;
		pid_t pid;

		if (pipe(ends) != 0)
			die_with_message("pipe");
		pid = fork();
		if (pid == 0)
			serve_and_end(reuse, listener_first, ends[1]);
		close(ends[1]);
		if (read(ends[0], &port, sizeof(port)) != sizeof(port))
			die_with_message("the child");
		while ((n = read(ends[0], said + have, sizeof(said) - 1 - have)) > 0)
			have += (size_t)n;
		said[have] = 0;
		close(ends[0]);
		if (waitpid(pid, status, 0) != pid)
			die_with_message("the child's end");
		if (getenv("PARITY_PRELOAD") != NULL || kernel_has_time_wait_conn(port))
			break;
		fprintf(stderr, "nothing is left of the connection of port %d\n", port);
	}
	said[strcspn(said, "\n")] = 0;
	say("%s", said);
	return port;
}

CASE(tcp_time_wait_of_the_dead, "a process has ended whose connection is in TIME_WAIT: who may bind the port then")
{
	for (int i = 0; i < 6; i++) {
		int status = 0, port = port_of_conn_left_by_killed_server(reuses[i % 3], i >= 3, &status);

		say("its listener had %s%s, status %x", reuse_names[i % 3], i >= 3 ? ", and was closed first" : "",
		    (unsigned)status);
		say_bind_results_by_reuse_option(port);
	}
}
