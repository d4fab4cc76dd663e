/*
 * extra_exit - threads that end in a receive callback, for tests/e2e/extra_exit.sh: by pthread_exit, and cancelled.
 *
 *   udp ADDRESS PORT COUNT FILE   when FILE is there, a thread receives so many datagrams that have come until then, and
 *                                 ends in the callback of the first one; the main thread is told of the others
 *   tcp ADDRESS PORT BYTES        accepts; threads end in the callbacks of its first pieces, the main thread gets the rest; waits
 *                                 to be killed
 *
 * After "ready" a peer may send. The last line says what was seen.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

enum { TEST_WAIT_LIMIT_MS = 60000, ENDING_THREADS = 6 };

static struct vma_api_t *api;
static struct sockaddr_in address;
static pthread_t main_thread;
static int fd;
static uint64_t total, bytes_seen;
static unsigned seen, ended;

/* How the n-th thread waits, and how it ends. */
enum way { BLOCKING_RECV, POLL, SPINNING_RECV, WAYS };
static enum way way;

static void fail(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

static void say_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static int open_and_bind_socket(int type)
{
	const int new_fd = socket(AF_INET, type, 0), reuse = type == SOCK_STREAM;

	setsockopt(new_fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
	if (new_fd < 0 || bind(new_fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("bind");
	return new_fd;
}

/* Of each thread but the main one: it does not come back from here. */
static vma_recv_callback_retval_t recv_callback_ending_its_thread(int callback_fd, size_t n, struct iovec iov[],
                                                                  struct vma_info_t *info, void *context)
{
	(void)callback_fd, (void)n, (void)context, (void)iov;
	seen++;
	bytes_seen += info->payload_sz;
	if (pthread_equal(pthread_self(), main_thread))
		return VMA_PACKET_DROP;
	ended++;
	if (way == POLL) {
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
		pthread_cancel(pthread_self());
		pthread_testcancel();
	}
	pthread_exit(NULL);
}

static void *receive_until_callback_ends_thread(void *path)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	const unsigned before = ended;
	char byte;

	while (path != NULL && access(path, F_OK) != 0)
		usleep(1000);
	while (ended == before) {
		if (way == POLL)
			poll(&pfd, 1, TEST_WAIT_LIMIT_MS);
		else
			recv(fd, &byte, 1, way == BLOCKING_RECV ? 0 : MSG_DONTWAIT);
	}
	return NULL;
}

static void run_thread_that_ends_in_callback(enum way new_way, const char *path)
{
	pthread_t thread;

	way = new_way;
	if (pthread_create(&thread, NULL, receive_until_callback_ends_thread, (void *)path) != 0)
		fail("pthread_create");
	pthread_join(thread, NULL);
}

static void run_udp(const char *path)
{
	char byte;

	fd = open_and_bind_socket(SOCK_DGRAM);
	if (api->register_recv_callback(fd, recv_callback_ending_its_thread, NULL) != 0)
		fail("register_recv_callback");
	say_ready();
	run_thread_that_ends_in_callback(BLOCKING_RECV, path);
	for (int ms = 0; seen < total && ms < 5000; ms++) {
		recv(fd, &byte, 1, MSG_DONTWAIT);
		usleep(1000);
	}
	close(fd);
	fd = open_and_bind_socket(SOCK_DGRAM); /* the socket has gone, although a call on it has never returned */
	printf("seen %u of %u threads\n", seen, ended);
}

static void run_tcp(void)
{
	const int listener = open_and_bind_socket(SOCK_STREAM);
	struct pollfd pfd = {.events = POLLIN};
	ssize_t rc = -1;
	char byte;

	if (listen(listener, 5) != 0)
		fail("listen");
	say_ready();
	fd = pfd.fd = accept(listener, NULL, NULL);
	if (fd < 0 || api->register_recv_callback(fd, recv_callback_ending_its_thread, NULL) != 0)
		fail("register_recv_callback");
	if (send(fd, "g", 1, 0) != 1)
		fail("send");
	for (unsigned i = 0; i < ENDING_THREADS; i++)
		run_thread_that_ends_in_callback((enum way)(i % WAYS), NULL);
	while (rc != 0 && poll(&pfd, 1, 10000) > 0)
		rc = recv(fd, &byte, 1, MSG_DONTWAIT);
	close(fd);
	printf("bytes %lu end %d threads %u\n", bytes_seen, rc == 0, ended);
	fflush(stdout);
	for (;;) /* the peer has the end of the stream before this process ends */
		pause();
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	main_thread = pthread_self();
	address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
		return 2;
	total = strtoull(argv[4], NULL, 10);
	api = vma_get_api();
	if (api == NULL)
		fail("vma_get_api");
	if (strcmp(argv[1], "udp") == 0 && argc > 5)
		run_udp(argv[5]);
	else if (strcmp(argv[1], "tcp") == 0)
		run_tcp();
	else
		return 2;
	return 0;
}
