/* fixture - sockets to a peer that echoes, and what the library says about them. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "fixture.h"

void expect(bool so, const char *sentence)
{
	if (so)
		return;
	fprintf(stderr, "not so: %s (errno %d, %s)\n", sentence, errno, strerror(errno));
	_exit(1);
}

struct sockaddr_in fixture_address(const char *text, const char *port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	expect(inet_pton(AF_INET, text, &addr.sin_addr) == 1, "the address is one");
	return addr;
}

int fixture_get_socket_offload_state(int fd)
{
	int (*state)(int fd, const char **text);
	const char *text = "";

	*(void **)&state = dlsym(RTLD_DEFAULT, "vma_get_socket_state"); /* not kept: threads ask, too */
	return state != NULL ? state(fd, &text) : -2;
}

int fixture_socket(const struct fixture *fixture)
{
	struct timeval timeout = {.tv_sec = 2};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	expect(fd >= 0, "a socket is made");
	expect(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0, "its timeout is set");
	expect(connect(fd, (const struct sockaddr *)&fixture->peer, sizeof(fixture->peer)) == 0, "it is connected");
	expect(fixture_get_socket_offload_state(fd) == 1 || getenv("PROBE_KERNEL") != NULL, "the socket is offloaded");
	return fd;
}

bool fixture_echo(int fd)
{
	static _Atomic unsigned number;
	char text[32], back[32];
	int len = snprintf(text, sizeof(text), "%d-%u", (int)getpid(), ++number);
	ssize_t got;

	if (send(fd, text, (size_t)len, 0) != len)
		return false;
	do {
		got = recv(fd, back, sizeof(back), 0);
		if (got == len && memcmp(text, back, (size_t)len) == 0)
			return true;
	} while (got >= 0); /* late answers to others */
	return false;
}
