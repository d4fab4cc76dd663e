/* peer_ping - an echo request and its answer, as often as asked: each answer has come behind what was sent before it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer_ping.h"

#define ANSWER_MS 5000

static uint16_t checksum(const struct icmphdr *echo)
{
	const uint16_t *words = (const uint16_t *)(const void *)echo;
	uint32_t sum = 0;

	for (size_t i = 0; i < sizeof(*echo) / sizeof(*words); i++)
		sum += words[i];
	return (uint16_t) ~(sum + (sum >> 16));
}

/* Such a socket gets every answer that comes to this host. */
static bool is_answer_to_echo(int fd, const struct icmphdr *echo)
{
	uint8_t in[256];
	const ssize_t len = recv(fd, in, sizeof(in), 0);
	const unsigned head = (in[0] & 15U) * 4;
	struct icmphdr got;

	if (len < (ssize_t)(head + sizeof(got)))
		return false;
	memcpy(&got, in + head, sizeof(got));
	return got.type == ICMP_ECHOREPLY && got.un.echo.id == echo->un.echo.id &&
	       got.un.echo.sequence == echo->un.echo.sequence;
}

static bool peer_ping_once(int fd, int number)
{
	struct icmphdr echo = {.type = ICMP_ECHO};
	struct pollfd answered = {.fd = fd, .events = POLLIN};

	echo.un.echo.id = (uint16_t)getpid();
	echo.un.echo.sequence = (uint16_t)number;
	echo.checksum = checksum(&echo);
	if (send(fd, &echo, sizeof(echo), 0) != (ssize_t)sizeof(echo))
		return false;
	while (poll(&answered, 1, ANSWER_MS) > 0)
		if (is_answer_to_echo(fd, &echo))
			return true;
	return false;
}

void peer_ping_command(const char *args, char *answer, size_t size)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	int fd = -1, times = 0, number = 0;
	char ip[32];

	if (sscanf(args, "%31s %d", ip, &times) == 2 && inet_pton(AF_INET, ip, &to.sin_addr) == 1)
		fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
		snprintf(answer, size, "failed: ping whom?");
	} else {
		while (number < times && peer_ping_once(fd, number))
			number++;
		snprintf(answer, size, "%s", number == times ? "ok" : "failed: no answer");
	}
	if (fd >= 0)
		close(fd);
}
