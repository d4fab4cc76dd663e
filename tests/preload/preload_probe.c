/* preload_probe - one case of how a program and the preloaded library get along; see fixture.h. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

static const struct fixture_case *const all[] = {cases_children, cases_descriptors, cases_handlers, cases_start,
                                                 cases_stdio};

static _Noreturn void preload_probe_udp_echo_server(const struct sockaddr_in *addr)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	char data[2048];

	expect(bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0, "the peer has its address");
	puts("listening");
	fflush(stdout);
	for (;;) {
		struct sockaddr_in from;
		socklen_t len = sizeof(from);
		ssize_t got = recvfrom(fd, data, sizeof(data), 0, (struct sockaddr *)&from, &len);

		if (got >= 0)
			sendto(fd, data, (size_t)got, 0, (struct sockaddr *)&from, len);
	}
}

int main(int argc, char **argv)
{
	struct fixture fixture;

	if (argc != 4) {
		fprintf(stderr, "usage: %s CASE|echo ADDRESS PORT\n", argv[0]);
		return 2;
	}
	fixture.peer = fixture_address(argv[2], argv[3]);
	if (strcmp(argv[1], "echo") == 0)
		preload_probe_udp_echo_server(&fixture.peer);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		for (const struct fixture_case *one = all[i]; one->name != NULL; one++)
			if (strcmp(argv[1], one->name) == 0) {
				one->run(&fixture);
				return 0;
			}
	fprintf(stderr, "no case %s\n", argv[1]);
	return 2;
}
