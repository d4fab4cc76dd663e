/* peer - telling other processes what to do; see parity_peer.c for the commands. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

#define SLICE_MS 5

struct peer {
	const char *variable; /* names the control socket */
	int fd;
	char answer[512];
};
static struct peer peers[] = {{.variable = "PARITY_FAR", .fd = -1},
                              {.variable = "PARITY_NEAR", .fd = -1},
                              {.variable = "PARITY_TWIN", .fd = -1}};

/* A connection per case: the peer serves it in a child of its own, whose sockets end with it. */
static struct peer *peer_connect_if_needed(struct peer *p)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *path = getenv(p->variable);
	int fd;

	if (p->fd >= 0)
		return p;
	if (path == NULL)
		die_with_message("%s is not set", p->variable);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		die_with_message("no peer at %s", path);
	/* Out of the way of cases that look at descriptor numbers. */
	p->fd = dup3(fd, 900 + (int)(p - peers), O_CLOEXEC);
	if (p->fd < 0)
		die_with_message("dup3");
	close(fd);
	return p;
}

struct peer *far(void)
{
	return peer_connect_if_needed(&peers[0]);
}

struct peer *near(void)
{
	return peer_connect_if_needed(&peers[1]);
}

struct peer *twin(void)
{
	return peer_connect_if_needed(&peers[2]);
}

const char *peer(struct peer *p, const char *format, ...)
{
	char command[512];
	va_list args;
	ssize_t len;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	if (send(p->fd, command, strlen(command), MSG_NOSIGNAL) < 0)
		die_with_message("the peer does not listen to '%s'", command);
	do
		len = recv(p->fd, p->answer, sizeof(p->answer) - 1, 0);
	while (len < 0 && errno == EINTR);
	if (len <= 0)
		die_with_message("the peer does not answer to '%s'", command);
	p->answer[len] = '\0';
	if (strncmp(p->answer, "failed", 6) == 0)
		die_with_message("the peer: '%s' %s", command, p->answer);
	return p->answer;
}

/*
 * A link keeps the order, so what was sent before an echo request is there when its answer comes back; the second one
 * follows what was answered. A processor that is taken away holds back all of it: as much as it is late for this
 * thread, it may be for one that has a packet in hand.
 */
void wait_until_sent_packets_arrived(unsigned ms)
{
	const unsigned asked = (ms + SLICE_MS - 1) / SLICE_MS;
	unsigned slices = asked;

	peer(far(), "ping %s 2", here);
	peer(far(), "ping %s 2", here_second);
	for (unsigned i = 0; i < slices && i < 10 * asked; i++) {
		const uint64_t begun_ms = now_ms();
		uint64_t took_ms;

		pause_ms(SLICE_MS);
		took_ms = now_ms() - begun_ms;
		if (took_ms > 2 * SLICE_MS)
			slices += (unsigned)took_ms / SLICE_MS;
	}
}

/* Ports are told apart by their names, also those of different addresses: a new one is another's only by chance. */
int peer_ask_to_open_socket(struct peer *p, int slot, const char *ip, int port)
{
	int opened, tries = 0;

	do
		opened = atoi(peer(p, "open %d %s %d", slot, ip, port));
	while (port == 0 && port_has_name(opened) && ++tries < 16);
	return opened;
}

void peer_send(struct peer *p, int slot, const char *ip, int port, int len, int seed)
{
	peer(p, "send %d %s %d %d %d", slot, ip, port, len, seed);
}

void peer_ask_to_send_after_ms(struct peer *p, int ms, int slot, const char *ip, int port, int len, int seed)
{
	peer(p, "later %d send %d %s %d %d %d", ms, slot, ip, port, len, seed);
}

void say_peer_received(struct peer *p, int slot, int wait_ms)
{
	char answer[512], ip[32];
	int len, seed, port, ttl, tos;

	snprintf(answer, sizeof(answer), "%s", peer(p, "recv %d %d", slot, wait_ms));
	if (sscanf(answer, "got %d %d %31s %d %d %d", &len, &seed, ip, &port, &ttl, &tos) == 6) {
		struct sockaddr_in from = ipv4_sockaddr_of(ip, port);

		say("the peer got %d bytes, seed %d, from %s, ttl %d, tos %d", len, seed,
		    address_text(&from, sizeof(from)), ttl, tos);
	} else {
		say("the peer got %s", answer);
	}
}

void peer_run_shell_command(struct peer *p, const char *command)
{
	peer(p, "run %s", command);
}

void run_shell_command_here(const char *command)
{
	char line[512];
	int rc;

	snprintf(line, sizeof(line), "unset LD_PRELOAD; %s", command);
	rc = system(line);
	if (rc != 0)
		die_with_message("'%s' failed: %d", command, rc);
}
