/*
 * extra_control - the Extra API's calls that decide of sockets, and that tell of one, for tests/e2e/extra_control.sh.
 *
 *   threads ADDRESS PORT           sockets of threads that are offloaded, and of threads that are not
 *   rules ADDRESS PORT             rules that are added between sockets
 *   headers ADDRESS PORT udp|tcp   connects, prints the headers of its next message in hex, and sends "marker"
 *
 * Ports up to PORT + 9 are used. The last line says what was seen.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>
#include <vma/vma_api.h>

static struct vma_api_t *api;
static const struct vma_own_api *own;
static struct sockaddr_in address;
static unsigned wrong;

static void fail(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

static void expect(bool is_so, const char *what)
{
	if (!is_so) {
		printf("not so: %s (%s)\n", what, strerror(errno));
		wrong++;
	}
}

/* Bound so many ports above PORT; a stream listens. */
static int open_socket_at_port(int type, unsigned above)
{
	const int fd = socket(AF_INET, type, 0);
	struct sockaddr_in name = address;

	name.sin_port = htons((uint16_t)(ntohs(address.sin_port) + above));
	if (bind(fd, (struct sockaddr *)&name, sizeof(name)) != 0 || (type == SOCK_STREAM && listen(fd, 5) != 0))
		fail("bind");
	return fd;
}

static bool is_offloaded(int fd)
{
	return own->get_socket_state(fd, NULL) == 1;
}

/* ---- thread_offload ---- */

static pthread_barrier_t barrier;

static void *thread_with_sockets_of_both_kinds(void *arg)
{
	int before, kernel_udp, kernel_tcp, after;

	before = open_socket_at_port(SOCK_DGRAM, 1);
	pthread_barrier_wait(&barrier); /* the main thread decides for this one */
	pthread_barrier_wait(&barrier);
	kernel_udp = open_socket_at_port(SOCK_DGRAM, 2);
	kernel_tcp = open_socket_at_port(SOCK_STREAM, 2);
	expect(is_offloaded(before), "a socket of before stays offloaded");
	expect(!is_offloaded(kernel_udp), "a datagram socket of a thread that is not offloaded is the kernel's");
	expect(!is_offloaded(kernel_tcp), "and so is a listener");
	expect(api->thread_offload(1, pthread_self()) == 0, "a thread turns its own on again");
	after = open_socket_at_port(SOCK_DGRAM, 3);
	expect(is_offloaded(after), "the next socket is offloaded");
	expect(!is_offloaded(kernel_udp), "the kernel's stays the kernel's");
	pthread_barrier_wait(&barrier);
	return arg;
}

static void run_threads(void)
{
	pthread_t thread;
	int fd;

	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&thread, NULL, thread_with_sockets_of_both_kinds, NULL);
	pthread_barrier_wait(&barrier);
	expect(api->thread_offload(0, thread) == 0, "another thread is turned off");
	fd = open_socket_at_port(SOCK_DGRAM, 4);
	expect(is_offloaded(fd), "this thread is not");
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	expect(api->thread_offload(0, pthread_self()) == 0, "this thread turns itself off");
	expect(!is_offloaded(open_socket_at_port(SOCK_STREAM, 5)), "its listener is the kernel's");
	expect(is_offloaded(fd), "what it had is not");
	pthread_join(thread, NULL);
}

/* ---- add_conf_rule ---- */

static void add_rule(const char *format, unsigned above)
{
	char line[100];

	snprintf(line, sizeof(line), format, (unsigned)ntohs(address.sin_port) + above);
	expect(api->add_conf_rule(line) == 0, line);
}

static void run_rules(void)
{
	const char *text = "";
	const int before = open_socket_at_port(SOCK_DGRAM, 1);
	int fd, listener;

	add_rule("use os udp_receiver *:%u", 1);
	add_rule("use os udp_receiver *:%u", 2);
	add_rule("use os tcp_server *:%u", 2);
	expect(is_offloaded(before), "a rule does not act on a socket of before");
	fd = open_socket_at_port(SOCK_DGRAM, 2);
	expect(own->get_socket_state(fd, &text) == 0, "the next socket on its port is the kernel's");
	expect(strstr(text, "(added rule 2)") != NULL, text);
	listener = open_socket_at_port(SOCK_STREAM, 2);
	expect(own->get_socket_state(listener, &text) == 0, "so is a listener of a rule");
	expect(strstr(text, "(added rule 3)") != NULL, text);
	expect(is_offloaded(open_socket_at_port(SOCK_STREAM, 1)), "a rule of datagrams is none of listeners");
	expect(is_offloaded(open_socket_at_port(SOCK_DGRAM, 3)), "another port has no rule");
	close(fd);
	add_rule("use vma udp_receiver *:%u", 2);
	expect(is_offloaded(open_socket_at_port(SOCK_DGRAM, 2)), "the rule that was added last goes first");
}

/* ---- get_socket_network_header ---- */

static void print_headers_of_next_message(bool tcp)
{
	const int fd = socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
	uint8_t headers[256];
	uint16_t len = 0, room;

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("connect");
	for (int i = 0; i < 8; i++) { /* the neighbour is known, and the socket sends by itself */
		if (send(fd, "before", 6, 0) != 6)
			fail("send");
		usleep(50000);
	}
	expect(api->get_socket_network_header(fd, NULL, &len) == 0, "the length");
	room = len;
	expect(api->get_socket_network_header(fd, headers, &room) == 0 && room == len, "the headers");
	room = len - 1;
	expect(api->get_socket_network_header(fd, headers, &room) == -1 && errno == ENOBUFS, "too little room");
	printf("headers ");
	for (unsigned i = 0; i < len; i++)
		printf("%02x", headers[i]);
	printf("\n");
	if (send(fd, "marker", 6, 0) != 6)
		fail("send");
	usleep(100000);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
		return 2;
	api = vma_get_api();
	own = vma_get_own_api();
	if (api == NULL || own == NULL)
		fail("vma_get_api");
	if (strcmp(argv[1], "threads") == 0)
		run_threads();
	else if (strcmp(argv[1], "rules") == 0)
		run_rules();
	else if (strcmp(argv[1], "headers") == 0 && argc > 4)
		print_headers_of_next_message(strcmp(argv[4], "tcp") == 0);
	else
		return 2;
	printf("wrong %u\n", wrong);
	return 0;
}
