/* peer_stream - what a peer does with TCP sockets; the commands are in peer_commands.c. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "payload.h"
#include "peer_stream.h"

enum { CHUNK_MAX = 65536 };

static struct sockaddr_in peer_stream_to_address(const char *ip, int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	inet_pton(AF_INET, ip, &address.sin_addr);
	return address;
}

static int fail(char *text, size_t size)
{
	snprintf(text, size, "failed: %s", strerror(errno));
	return -1;
}

static int peer_stream_open_bound_socket(const char *ip, int port)
{
	struct sockaddr_in address = peer_stream_to_address(ip, port);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

static int answer_with_bound_port(int fd, char *text, size_t size)
{
	struct sockaddr_in address;
	socklen_t len = sizeof(address);

	if (fd < 0 || getsockname(fd, (struct sockaddr *)&address, &len) != 0)
		return fail(text, size);
	snprintf(text, size, "%d", ntohs(address.sin_port));
	return fd;
}

int stream_listen(const char *args, char *text, size_t size)
{
	char ip[32];
	int port = 0, backlog = 16, fd;

	if (sscanf(args, "%31s %d %d", ip, &port, &backlog) < 2)
		return fail(text, size);
	fd = peer_stream_open_bound_socket(ip, port);
	if (fd >= 0 && listen(fd, backlog) != 0) {
		close(fd);
		fd = -1;
	}
	return answer_with_bound_port(fd, text, size);
}

int peer_stream_dial(const char *args, char *text, size_t size)
{
	char ip[32], from[32];
	int port = 0, from_port = 0, fd, words = sscanf(args, "%31s %d %31s %d", ip, &port, from, &from_port);
	struct sockaddr_in address;

	if (words < 2)
		return fail(text, size);
	fd = words == 4 ? peer_stream_open_bound_socket(from, from_port)
	                : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	address = peer_stream_to_address(ip, port);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		close(fd);
		fd = -1;
	}
	return answer_with_bound_port(fd, text, size);
}

int peer_stream_accept(int listener, int wait_ms, char *text, size_t size)
{
	struct pollfd p = {.fd = listener, .events = POLLIN};
	struct sockaddr_in address;
	socklen_t len = sizeof(address);
	char ip[INET_ADDRSTRLEN];
	int fd;

	if (poll(&p, 1, wait_ms) <= 0) {
		snprintf(text, size, "nobody");
		return -1;
	}
	fd = accept4(listener, (struct sockaddr *)&address, &len, SOCK_CLOEXEC);
	if (fd < 0)
		return fail(text, size);
	snprintf(text, size, "%s %d", inet_ntop(AF_INET, &address.sin_addr, ip, sizeof(ip)), ntohs(address.sin_port));
	return fd;
}

static void peer_stream_write(int fd, const char *args, char *text, size_t size)
{
	static _Thread_local unsigned char bytes[CHUNK_MAX];
	int len = 0, seed = 0, count = 1, gap = 0;

	if (sscanf(args, "%d %d %d %d", &len, &seed, &count, &gap) < 2 || len > CHUNK_MAX) {
		snprintf(text, size, "failed: write what?");
		return;
	}
	for (int i = 0; i < count; i++) {
		fill(bytes, (size_t)len, (seed + i) % 64);
		for (ssize_t at = 0, n; at < len; at += n) {
			n = send(fd, bytes + at, (size_t)(len - at), MSG_NOSIGNAL);
			if (n < 0) {
				snprintf(text, size, "error %s after %zd", strerrorname_np(errno),
				         (ssize_t)i * len + at);
				return;
			}
		}
		if (gap > 0)
			usleep((useconds_t)gap);
	}
	snprintf(text, size, "ok");
}

/* Up to `count` pieces of len bytes, each of which is of one seed: "N bytes, in order", and how it ended. */
static void peer_stream_read(int fd, const char *args, char *text, size_t size)
{
	static _Thread_local unsigned char bytes[CHUNK_MAX];
	int len = 0, seed = 0, count = 1, wait_ms = 2000, got = 0;
	const char *end = "", *order = "in order";
	struct pollfd p = {.fd = fd, .events = POLLIN};
	long total = 0;

	if (sscanf(args, "%d %d %d %d", &len, &seed, &count, &wait_ms) < 2 || len > CHUNK_MAX || len < 1) {
		snprintf(text, size, "failed: read what?");
		return;
	}
	while (total < (long)len * count) {
		ssize_t n;

		if (poll(&p, 1, wait_ms) <= 0) {
			end = ", then nothing";
			break;
		}
		n = recv(fd, bytes + got, (size_t)(len - got), 0);
		if (n <= 0) {
			end = n == 0 ? ", then the end" : strerrorname_np(errno);
			break;
		}
		got += (int)n;
		total += n;
		if (got == len) {
			if (seed_of_payload(bytes, (size_t)len) != (seed + (int)((total - 1) / len)) % 64)
				order = "NOT in order";
			got = 0;
		}
	}
	snprintf(text, size, "%ld bytes %s%s%s", total, order, *end == ',' || *end == 0 ? "" : ", then ", end);
}

static void peer_stream_reset(int fd, char *text, size_t size)
{
	struct linger linger = {.l_onoff = 1, .l_linger = 0};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(fd);
	snprintf(text, size, "ok");
}

static void peer_stream_answer_state(int fd, char *text, size_t size)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);
	int waiting = -1, unsent = -1, error = 0;
	socklen_t error_len = sizeof(error);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) {
		fail(text, size);
		return;
	}
	ioctl(fd, FIONREAD, &waiting);
	ioctl(fd, TIOCOUTQ, &unsent);
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len);
	snprintf(text, size, "state %d, %d to read, %d out, %s", info.tcpi_state, waiting, unsent,
	         error == 0 ? "no error" : strerrorname_np(error));
}

static void peer_stream_answer_agreed_options(int fd, char *text, size_t size)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) {
		fail(text, size);
		return;
	}
	snprintf(text, size, "time stamps %d, SACK %d, scales %d, announced to it %s", info.tcpi_options & 1,
	         (info.tcpi_options & 2) != 0, (info.tcpi_options & 4) != 0,
	         info.tcpi_snd_wscale != 0 ? "some" : "none");
}

bool peer_stream_command(const char *verb, int fd, const char *args, char *text, size_t size)
{
	int value = 0;

	if (strcmp(verb, "write") == 0) {
		peer_stream_write(fd, args, text, size);
	} else if (strcmp(verb, "read") == 0) {
		peer_stream_read(fd, args, text, size);
	} else if (strcmp(verb, "shut") == 0) {
		sscanf(args, "%d", &value);
		snprintf(text, size, "%s", shutdown(fd, value) == 0 ? "ok" : strerrorname_np(errno));
	} else if (strcmp(verb, "urgent") == 0) {
		snprintf(text, size, "%s",
		         send(fd, *args != 0 ? args : "!", 1, MSG_OOB) == 1 ? "ok" : strerrorname_np(errno));
	} else if (strcmp(verb, "reset") == 0) {
		peer_stream_reset(fd, text, size);
	} else if (strcmp(verb, "state") == 0) {
		peer_stream_answer_state(fd, text, size);
	} else if (strcmp(verb, "agreed") == 0) {
		peer_stream_answer_agreed_options(fd, text, size);
	} else {
		return false;
	}
	return true;
}
