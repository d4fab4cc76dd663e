/*
 * fork_server - a server of sockperf's ping-pong that forks its workers, one for each port.
 *
 *   fork_server own|inherited IP PORT WORKERS
 *
 * own: a worker makes its socket after the fork. inherited: the parent makes all sockets before, the workers get them
 * by the fork, and everybody closes what is not his. Ends at SIGTERM, with its workers.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS_MAX 64
/* The header of a message: a sequence number of 8 bytes, then 2 bytes of flags in network order. */
#define FLAGS_LOW_BYTE 9
#define FROM_CLIENT 1

static int fork_server_open_at(const char *ip, int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0 || inet_pton(AF_INET, ip, &address.sin_addr) != 1 ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		perror(ip);
		exit(1);
	}
	return fd;
}

static void worker_answer_sockperf_pings_forever(int fd)
{
	static unsigned char buf[65536];
	struct sockaddr_in from;

	for (;;) {
		socklen_t from_len = sizeof(from);
		ssize_t len = recvfrom(fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &from_len);

		if (len <= FLAGS_LOW_BYTE)
			continue;
		buf[FLAGS_LOW_BYTE] &= (unsigned char)~FROM_CLIENT;
		sendto(fd, buf, (size_t)len, 0, (struct sockaddr *)&from, from_len);
	}
}

int main(int argc, char **argv)
{
	int workers = argc == 5 ? atoi(argv[4]) : 0, port = argc == 5 ? atoi(argv[3]) : 0, fds[WORKERS_MAX];
	int inherited;

	if (workers < 1 || workers > WORKERS_MAX) {
		fprintf(stderr, "usage: fork_server own|inherited IP PORT WORKERS\n");
		return 2;
	}
	inherited = strcmp(argv[1], "inherited") == 0;
	for (int i = 0; i < workers && inherited; i++)
		fds[i] = fork_server_open_at(argv[2], port + i);
	for (int i = 0; i < workers; i++) {
		if (fork() != 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int other = 0; other < workers && inherited; other++)
			if (other != i)
				close(fds[other]);
		worker_answer_sockperf_pings_forever(inherited ? fds[i] : fork_server_open_at(argv[2], port + i));
	}
	for (int i = 0; i < workers && inherited; i++)
		close(fds[i]);
	puts("listening");
	fflush(stdout);
	while (wait(NULL) > 0)
		;
	return 1;
}
