/* case_stdio - streams and dprintf on sockets of the library. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

#define REUSES 1000

/* fclose closes inside the C library. */
static void reused_after_fclose(const struct fixture *fixture)
{
	int holder = fixture_socket(fixture); /* the interface stays in use: taking it anew takes time */

	for (int i = 0; i < REUSES; i++) {
		int fd = fixture_socket(fixture);
		FILE *stream = fdopen(fd, i % 2 != 0 ? "w" : "r+");
		char byte;

		EXPECT(stream != NULL);
		if (i % 3 == 0)
			EXPECT(fprintf(stream, "stream %d", i) > 0);
		EXPECT(fclose(stream) == 0);
		EXPECT(open("/dev/null", O_RDONLY) == fd);
		EXPECT(fixture_get_socket_offload_state(fd) == 0);
		EXPECT(read(fd, &byte, 1) == 0);
		EXPECT(close(fd) == 0);
	}
	EXPECT(fixture_echo(holder));
	EXPECT(fixture_echo(fixture_socket(fixture)));
}

static void check_freopen_of_socket_stream(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture);
	FILE *stream = fdopen(fd, "w");

	EXPECT(stream != NULL);
	stream = freopen("/dev/null", "r", stream);
	EXPECT(stream != NULL);
	EXPECT(fixture_get_socket_offload_state(fileno(stream)) == 0);
	EXPECT(fgetc(stream) == EOF);
	EXPECT(fclose(stream) == 0);
	EXPECT(fixture_echo(fixture_socket(fixture)));
}

/* A stream that is written: datagrams leave by the shadow, answers come offloaded. */
static void check_socket_stream_written(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture);
	FILE *stream = fdopen(dup(fd), "w");
	char back[64];

	EXPECT(stream != NULL);
	EXPECT(fprintf(stream, "number %d", 7) == 8 && fflush(stream) == 0);
	EXPECT(recv(fd, back, sizeof(back), 0) == 8 && memcmp(back, "number 7", 8) == 0);
	EXPECT(fixture_get_socket_offload_state(fd) == 1);
	EXPECT(fclose(stream) == 0);
	for (int i = 0; i < REUSES; i++)
		EXPECT(dprintf(fd, "datagram %d", i % 10) == 10 && recv(fd, back, sizeof(back), 0) == 10);
	EXPECT(fixture_echo(fd));
}

/* A stream that is read makes the socket the kernel's. */
static void read_by_stream(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture);
	FILE *stream = fdopen(fd, "r+");
	char line[64];

	EXPECT(stream != NULL);
	EXPECT(fixture_get_socket_offload_state(fd) == 0);
	for (int i = 0; i < 100; i++) {
		int len = snprintf(line, sizeof(line), "line %d\n", i);

		EXPECT(send(fd, line, (size_t)len, 0) == len);
		EXPECT(fgets(line, sizeof(line), stream) != NULL);
		EXPECT(strncmp(line, "line ", 5) == 0);
	}
	EXPECT(fixture_echo(fd));
	EXPECT(fclose(stream) == 0);
	EXPECT(fixture_echo(fixture_socket(fixture)));
}

static void check_splice_and_sendfile_on_socket(const struct fixture *fixture)
{
	char name[] = "/tmp/vma-probe-XXXXXX", back[64];
	int fd = fixture_socket(fixture), pair[2], file;
	off_t from = 2;

	EXPECT(pipe(pair) == 0);
	EXPECT(send(fd, "spliced", 7, 0) == 7);
	EXPECT(splice(fd, NULL, pair[1], NULL, 4096, 0) == 7);
	EXPECT(read(pair[0], back, sizeof(back)) == 7 && memcmp(back, "spliced", 7) == 0);
	EXPECT(write(pair[1], "pipe", 4) == 4);
	EXPECT(splice(pair[0], NULL, fd, NULL, 4096, 0) == 4);
	EXPECT(recv(fd, back, sizeof(back), 0) == 4 && memcmp(back, "pipe", 4) == 0);
	file = mkstemp(name);
	EXPECT(file >= 0 && unlink(name) == 0);
	EXPECT(write(file, "contents", 8) == 8);
	EXPECT(fixture_get_socket_offload_state(fd) == 1);
	EXPECT(sendfile(fd, file, &from, 4) == 4 && from == 6);
	EXPECT(recv(fd, back, sizeof(back), 0) == 4 && memcmp(back, "nten", 4) == 0);
}

static _Atomic int splicer_tid;
static int splicer_fds[2]; /* from, to */

static void *splice_thread(void *unused)
{
	(void)unused;
	splicer_tid = gettid();
	splice(splicer_fds[0], NULL, splicer_fds[1], NULL, 4096, 0);
	return NULL;
}

static bool thread_sleeps(int tid)
{
	char path[64], state = 0;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	stat = fopen(path, "r");
	if (stat != NULL && fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	if (stat != NULL)
		fclose(stat);
	return state == 'S';
}

static off_t bytes_of(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? st.st_size : 0;
}

/* VMA_STATS_FILE gets a socket's line when its memory is given back: after the close, and not at the exit. */
static void cancelled_splice_gives_its_socket_back(const struct fixture *fixture)
{
	const struct timeval for_ever = {0, 0};
	const char *path = getenv("VMA_STATS_FILE");
	const int fd = fixture_socket(fixture);
	void *how = NULL;
	pthread_t thread;
	int pair[2], ms;

	EXPECT(path != NULL && bytes_of(path) == 0);
	EXPECT(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof(for_ever)) == 0);
	EXPECT(pipe(pair) == 0);
	splicer_fds[0] = fd;
	splicer_fds[1] = pair[1];
	EXPECT(pthread_create(&thread, NULL, splice_thread, NULL) == 0);
	for (ms = 0; ms < 10000 && (splicer_tid == 0 || !thread_sleeps(splicer_tid)); ms++)
		usleep(1000);
	EXPECT(ms < 10000 && splicer_tid != 0);
	EXPECT(pthread_cancel(thread) == 0);
	EXPECT(pthread_join(thread, &how) == 0 && how == PTHREAD_CANCELED);
	EXPECT(fixture_echo(fd));
	EXPECT(close(fd) == 0);
	/* A socket without traffic leaves no line. Its end has the library look whose turn to be freed has come. */
	for (ms = 0; ms < 10000 && bytes_of(path) == 0; ms++) {
		EXPECT(close(socket(AF_INET, SOCK_DGRAM, 0)) == 0);
		usleep(1000);
	}
	EXPECT(ms < 10000);
}

const struct fixture_case cases_stdio[] = {
        {"reused_after_fclose", reused_after_fclose},
        {"reopened", check_freopen_of_socket_stream},
        {"written", check_socket_stream_written},
        {"read_by_stream", read_by_stream},
        {"spliced", check_splice_and_sendfile_on_socket},
        {"splice_cancelled", cancelled_splice_gives_its_socket_back},
        {NULL, NULL},
};
