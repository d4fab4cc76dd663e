/*
 * parity_peer - does with sockets what cases tell it, from another process or namespace.
 *
 *   parity_peer PATH     listens on a unix socket (SOCK_SEQPACKET; its path crosses network namespaces), one child for
 *                        each connection, which ends with it
 *
 * One command a packet, one answer each: see peer_commands.c.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "peer_commands.h"

static void parity_peer_serve(int fd)
{
	char command[512], answer[512];
	ssize_t len;

	while ((len = recv(fd, command, sizeof(command) - 1, 0)) > 0) {
		command[len] = '\0';
		peer_command(command, answer, sizeof(answer));
		if (send(fd, answer, strlen(answer), MSG_NOSIGNAL) < 0)
			break;
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener, fd;

	if (argc != 2 || strlen(argv[1]) >= sizeof(address.sun_path)) {
		fprintf(stderr, "usage: parity_peer PATH\n");
		return 2;
	}
	signal(SIGCHLD, SIG_IGN);
	strcpy(address.sun_path, argv[1]);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    listen(listener, 16) != 0) {
		perror(argv[1]);
		return 1;
	}
	puts("listening");
	fflush(stdout);
	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		if (fork() == 0) {
			close(listener);
			signal(SIGCHLD, SIG_DFL);
			parity_peer_serve(fd);
			_exit(0);
		}
		close(fd);
	}
	perror("accept");
	return 1;
}
