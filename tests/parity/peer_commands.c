/*
 * peer_commands - what a peer can be told. SLOT is one of 256 places for a socket.
 *
 *   open SLOT IP PORT              bound there; answers the port
 *   share SLOT IP PORT OPTION      the same with a socket option (its number) set to 1 before it is bound
 *   both SLOT PORT OPTION V6ONLY   one of AF_INET6 on ::, with the option, and IPV6_V6ONLY as said
 *   close SLOT
 *   connect SLOT IP PORT
 *   send SLOT IP PORT LEN SEED [COUNT [GAP_USEC]]    payload of fill(); SEED grows by one with each, modulo 64
 *   recv SLOT MS                   "got LEN SEED IP PORT TTL TOS", "nothing", or "error NUMBER"
 *   line SLOT IP PORT              sends a line of text
 *   count SLOT N SEED MS           N datagrams, each within MS of the last: "N of N, N in order"
 *   port SLOT
 *   echo SLOT                      from now on sends back what comes
 *   opt SLOT LEVEL NAME VALUE
 *   join SLOT GROUP IP [SOURCE]    membership on the interface with that address
 *   mcif SLOT IP                   groups are sent to from there
 *   listen SLOT IP PORT [BACKLOG]  a TCP listener; answers the port
 *   dial SLOT IP PORT [FROM_IP FROM_PORT]   a TCP connection; answers its own port
 *   accept SLOT NEW_SLOT MS        "IP PORT" of the new connection, or "nobody"
 *   write SLOT LEN SEED [COUNT [GAP_USEC]]  COUNT times LEN bytes of fill()
 *   read SLOT LEN SEED [COUNT [MS]]         "N bytes in order", and how it ended if it ended sooner
 *   shut SLOT HOW, reset SLOT, urgent SLOT BYTE, state SLOT
 *   agreed SLOT                    what the two ends of the connection have agreed on
 *   frame IF_IP MAC SOURCE_IP DEST_IP udp|syn|ack SOURCE_PORT DEST_PORT [OPTIONS]
 *                                  one frame from the interface that has IF_IP, IP options in hexadecimal; of a segment
 *                                  what came back: SYN-ACK, ACK, RST or nothing
 *   ping IP TIMES                  echo requests, each when the one before was answered
 *   later MS COMMAND               answers at once and does it then
 *   run SHELL COMMAND
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "payload.h"
#include "peer_commands.h"
#include "peer_frame.h"
#include "peer_ping.h"
#include "peer_stream.h"

#define SLOTS 256

static _Atomic int slots[SLOTS];         /* descriptor + 1; 0: free */
static _Atomic int postponed_commands_n; /* commands that have not been carried out yet */

struct message {
	char *answer;
	size_t size;
};

static void peer_commands_answer(struct message *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void peer_commands_answer(struct message *m, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(m->answer, m->size, format, args);
	va_end(args);
}

static void peer_commands_answer_rc(struct message *m, int rc)
{
	if (rc < 0)
		peer_commands_answer(m, "failed: %s", strerror(errno));
	else
		peer_commands_answer(m, "ok");
}

static struct sockaddr_in peer_commands_to_address(const char *ip, int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	inet_pton(AF_INET, ip, &address.sin_addr);
	return address;
}

static void peer_open_udp_socket_in_slot(struct message *m, int slot, const char *ip, int port, int option)
{
	struct sockaddr_in address = peer_commands_to_address(ip, port);
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &one, sizeof(one));
	setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &one, sizeof(one));
	if (option != 0)
		setsockopt(fd, SOL_SOCKET, option, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
		peer_commands_answer_rc(m, -1);
		return;
	}
	if (slots[slot] != 0)
		close(slots[slot] - 1);
	slots[slot] = fd + 1;
	peer_commands_answer(m, "%d", ntohs(address.sin_port));
}

static void peer_open_dual_stack_udp_socket(struct message *m, int slot, int port, int option, int v6only)
{
	struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, option, &one, sizeof(one)) != 0 ||
	    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof(v6only)) != 0 ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		peer_commands_answer_rc(m, -1);
		return;
	}
	if (slots[slot] != 0)
		close(slots[slot] - 1);
	slots[slot] = fd + 1;
	peer_commands_answer(m, "%d", port);
}

static void peer_commands_send_some(struct message *m, int fd, const char *args)
{
	static _Thread_local unsigned char buf[65536];
	int port, len, seed, count = 1, gap = 0, rc = 0;
	char ip[32];
	struct sockaddr_in to;

	if (sscanf(args, "%31s %d %d %d %d %d", ip, &port, &len, &seed, &count, &gap) < 4 || len > 65507) {
		peer_commands_answer(m, "failed: send what?");
		return;
	}
	to = peer_commands_to_address(ip, port);
	for (int i = 0; i < count && rc >= 0; i++) {
		fill(buf, (size_t)len, (seed + i) % 64);
		rc = (int)sendto(fd, buf, (size_t)len, 0, (struct sockaddr *)&to, sizeof(to));
		if (gap > 0)
			usleep((useconds_t)gap);
	}
	peer_commands_answer_rc(m, rc);
}

static void peer_commands_receive(struct message *m, int fd, int wait_ms)
{
	static unsigned char buf[65536];
	struct sockaddr_in from;
	char control[256], ip[INET_ADDRSTRLEN];
	struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf)};
	struct msghdr msg = {.msg_name = &from,
	                     .msg_namelen = sizeof(from),
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control,
	                     .msg_controllen = sizeof(control)};
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int ttl = -1, tos = -1;
	ssize_t len;

	if (poll(&p, 1, wait_ms) <= 0) {
		peer_commands_answer(m, "nothing");
		return;
	}
	len = recvmsg(fd, &msg, MSG_DONTWAIT);
	if (len < 0) {
		peer_commands_answer(m, "error %s", strerrorname_np(errno));
		return;
	}
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_type == IP_TTL)
			ttl = *(int *)CMSG_DATA(c);
		if (c->cmsg_type == IP_TOS)
			tos = *CMSG_DATA(c);
	}
	peer_commands_answer(m, "got %zd %d %s %d %d %d", len, seed_of_payload(buf, (size_t)len),
	                     inet_ntop(AF_INET, &from.sin_addr, ip, sizeof(ip)), ntohs(from.sin_port), ttl, tos);
}

static void peer_commands_count_datagrams(struct message *m, int fd, const char *args)
{
	static unsigned char buf[65536];
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int wanted = 0, seed = 0, wait_ms = 0, got = 0, ordered = 0;
	ssize_t len;

	sscanf(args, "%d %d %d", &wanted, &seed, &wait_ms);
	for (; got < wanted && poll(&p, 1, wait_ms) > 0; got++) {
		len = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
		ordered += len >= 0 && seed_of_payload(buf, (size_t)len) == (seed + got) % 64;
	}
	peer_commands_answer(m, "%d of %d, %d in order", got, wanted, ordered);
}

static void answer_with_port(struct message *m, int fd)
{
	struct sockaddr_in address;
	socklen_t len = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &len) == 0)
		peer_commands_answer(m, "%d", ntohs(address.sin_port));
	else
		peer_commands_answer_rc(m, -1);
}

static void *peer_commands_echo(void *arg)
{
	unsigned char buf[65536];
	struct sockaddr_in from;
	socklen_t from_len = sizeof(from);
	int fd = (int)(intptr_t)arg;
	ssize_t len;

	for (;;) {
		from_len = sizeof(from);
		len = recvfrom(fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &from_len);
		if (len < 0 && errno != ECONNREFUSED)
			return NULL;
		if (len >= 0)
			sendto(fd, buf, (size_t)len, 0, (struct sockaddr *)&from, from_len);
	}
}

static void peer_commands_join_multicast_group(struct message *m, int fd, const char *args)
{
	struct ip_mreq_source with_source = {0};
	struct ip_mreqn any = {0};
	char group[32], ip[32], source[32];
	int words = sscanf(args, "%31s %31s %31s", group, ip, source);

	if (words == 3) {
		inet_pton(AF_INET, group, &with_source.imr_multiaddr);
		inet_pton(AF_INET, ip, &with_source.imr_interface);
		inet_pton(AF_INET, source, &with_source.imr_sourceaddr);
		peer_commands_answer_rc(
		        m, setsockopt(fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &with_source, sizeof(with_source)));
	} else {
		inet_pton(AF_INET, group, &any.imr_multiaddr);
		inet_pton(AF_INET, ip, &any.imr_address);
		peer_commands_answer_rc(m, words == 2 ? setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &any, sizeof(any))
		                                      : -1);
	}
}

static void store_fd_in_slot(int slot, int fd)
{
	if (fd < 0)
		return;
	if (slots[slot] != 0)
		close(slots[slot] - 1);
	slots[slot] = fd + 1;
}

static void accept_into_slot(struct message *m, int listener, const char *args)
{
	int slot = -1, wait_ms = 0;

	if (sscanf(args, "%d %d", &slot, &wait_ms) != 2 || slot < 0 || slot >= SLOTS)
		peer_commands_answer(m, "failed: accept where?");
	else
		store_fd_in_slot(slot, peer_stream_accept(listener, wait_ms, m->answer, m->size));
}

static void run_command_on_slot(const char *verb, const char *args, int slot, struct message *m)
{
	char ip[32] = "0.0.0.0";
	int fd = slots[slot] - 1, a = 0, b = 0, c = 0;
	struct sockaddr_in address;
	pthread_t thread;

	if (peer_stream_command(verb, fd, args, m->answer, m->size)) {
		if (strcmp(verb, "reset") == 0)
			slots[slot] = 0;
	} else if (strcmp(verb, "accept") == 0) {
		accept_into_slot(m, fd, args);
	} else if (strcmp(verb, "close") == 0) {
		slots[slot] = 0;
		peer_commands_answer_rc(m, close(fd));
	} else if (strcmp(verb, "send") == 0) {
		peer_commands_send_some(m, fd, args);
	} else if (strcmp(verb, "recv") == 0) {
		sscanf(args, "%d", &a);
		peer_commands_receive(m, fd, a);
	} else if (strcmp(verb, "count") == 0) {
		peer_commands_count_datagrams(m, fd, args);
	} else if (strcmp(verb, "port") == 0) {
		answer_with_port(m, fd);
	} else if (strcmp(verb, "echo") == 0) {
		peer_commands_answer_rc(m, -pthread_create(&thread, NULL, peer_commands_echo, (void *)(intptr_t)fd));
	} else if (strcmp(verb, "opt") == 0) {
		sscanf(args, "%d %d %d", &a, &b, &c);
		peer_commands_answer_rc(m, setsockopt(fd, a, b, &c, sizeof(c)));
	} else if (strcmp(verb, "join") == 0) {
		peer_commands_join_multicast_group(m, fd, args);
	} else if (strcmp(verb, "line") == 0) {
		sscanf(args, "%31s %d", ip, &a);
		address = peer_commands_to_address(ip, a);
		peer_commands_answer_rc(m,
		                        (int)sendto(fd, "line\n", 5, 0, (struct sockaddr *)&address, sizeof(address)));
	} else if (strcmp(verb, "mcif") == 0 || strcmp(verb, "connect") == 0) {
		sscanf(args, "%31s %d", ip, &a);
		address = peer_commands_to_address(ip, a);
		peer_commands_answer_rc(m, verb[0] == 'm'
		                                   ? setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address.sin_addr, 4)
		                                   : connect(fd, (struct sockaddr *)&address, sizeof(address)));
	} else {
		peer_commands_answer(m, "failed: %s is no command", verb);
	}
}

struct delayed {
	int ms;
	char command[480];
};

static void *run_postponed_command(void *arg)
{
	struct delayed *delayed = arg;
	char unheard[512];

	usleep((useconds_t)delayed->ms * 1000);
	peer_command(delayed->command, unheard, sizeof(unheard));
	if (strncmp(unheard, "failed", 6) == 0)
		fprintf(stderr, "later: '%s' %s\n", delayed->command, unheard);
	free(delayed);
	atomic_fetch_sub(&postponed_commands_n, 1);
	return NULL;
}

static void postpone_command(struct message *m, const char *args)
{
	struct delayed *delayed = calloc(1, sizeof(*delayed));
	pthread_t thread;
	int used = 0;

	if (delayed == NULL || sscanf(args, "%d %n", &delayed->ms, &used) < 1 ||
	    strlen(args + used) >= sizeof(delayed->command)) {
		peer_commands_answer(m, "failed: do what later?");
		free(delayed);
		return;
	}
	strcpy(delayed->command, args + used);
	atomic_fetch_add(&postponed_commands_n, 1);
	if (pthread_create(&thread, NULL, run_postponed_command, delayed) == 0) {
		pthread_detach(thread);
		peer_commands_answer(m, "ok");
		return;
	}
	atomic_fetch_sub(&postponed_commands_n, 1);
	free(delayed);
	peer_commands_answer(m, "failed: no thread");
}

/* Who was dialed may see the connection before the thread that dials has put it there. */
static bool peer_slot_is_empty_after_wait(int slot)
{
	for (int ms = 0; ms < 5000 && slots[slot] == 0 && atomic_load(&postponed_commands_n) > 0; ms++)
		usleep(1000);
	return slots[slot] == 0;
}

void peer_command(const char *command, char *text, size_t size)
{
	struct message m = {.answer = text, .size = size};
	char verb[16] = "", ip[32];
	int used = 0, slot, port, option = 0, v6only, rc;
	const char *args;

	sscanf(command, "%15s %n", verb, &used);
	args = command + used;
	if (strcmp(verb, "later") == 0) {
		postpone_command(&m, args);
	} else if (strcmp(verb, "run") == 0) {
		rc = system(args);
		if (rc == 0)
			peer_commands_answer(&m, "ok");
		else
			peer_commands_answer(&m, "failed: status %d", rc);
	} else if (strcmp(verb, "frame") == 0) {
		peer_frame_send_by_command(args, text, size);
	} else if (strcmp(verb, "ping") == 0) {
		peer_ping_command(args, text, size);
	} else if (sscanf(args, "%d %n", &slot, &used) < 1 || slot < 0 || slot >= SLOTS) {
		peer_commands_answer(&m, "failed: which slot?");
	} else if (strcmp(verb, "open") == 0 || strcmp(verb, "share") == 0) {
		if (sscanf(args + used, "%31s %d %d", ip, &port, &option) >= 2)
			peer_open_udp_socket_in_slot(&m, slot, ip, port, option);
		else
			peer_commands_answer(&m, "failed: where?");
	} else if (strcmp(verb, "both") == 0) {
		if (sscanf(args + used, "%d %d %d", &port, &option, &v6only) == 3)
			peer_open_dual_stack_udp_socket(&m, slot, port, option, v6only);
		else
			peer_commands_answer(&m, "failed: where?");
	} else if (strcmp(verb, "listen") == 0) {
		store_fd_in_slot(slot, stream_listen(args + used, text, size));
	} else if (strcmp(verb, "dial") == 0) {
		store_fd_in_slot(slot, peer_stream_dial(args + used, text, size));
	} else if (peer_slot_is_empty_after_wait(slot)) {
		peer_commands_answer(&m, "failed: slot %d is empty", slot);
	} else {
		run_command_on_slot(verb, args + used, slot, &m);
	}
}
