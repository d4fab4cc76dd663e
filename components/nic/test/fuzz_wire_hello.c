/*
 * fuzz_wire_hello - what a process that offers a wire may say, and the descriptors that may come with it, beside a
 * plain reading of the rules: the offer is taken if it is of our version and sizes, with sealed shared memory of the
 * right size and a connected socket; and no descriptor is lost, whatever came.
 *
 * The input: which descriptors, how many bytes, and the bytes; a first byte's bits make parts of them right.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../wire/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "broken: %s (errno %d)\n", #condition, errno);                                 \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

enum { SLOTS = 64, MTU = 1500, BYTES = 65536, MOST = 4 };
enum kind { SEALED, UNSEALED, OTHER_SIZE, HALF_SEALED, NULL_DEVICE, STREAM, DATAGRAM, PIPE, KINDS };

static int made_descriptors[KINDS];

static int make_sealed_memfd(size_t bytes, unsigned seals)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	MUST(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static void make_fds_of_each_kind(void)
{
	int pair[2];

	made_descriptors[SEALED] = wire_create_sealed_memfd(BYTES);
	made_descriptors[UNSEALED] = make_sealed_memfd(BYTES, 0);
	made_descriptors[OTHER_SIZE] = wire_create_sealed_memfd(BYTES + 4096);
	made_descriptors[HALF_SEALED] = make_sealed_memfd(BYTES, F_SEAL_SHRINK | F_SEAL_SEAL);
	made_descriptors[NULL_DEVICE] = open("/dev/null", O_RDWR | O_CLOEXEC);
	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	made_descriptors[STREAM] = pair[0];
	MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) == 0);
	made_descriptors[DATAGRAM] = pair[0];
	MUST(pipe2(pair, O_CLOEXEC) == 0);
	made_descriptors[PIPE] = pair[0];
}

/* The number that the next descriptor has: what is lost moves it. */
static int next_free_fd_number(void)
{
	int fd = dup(made_descriptors[NULL_DEVICE]);

	close(fd);
	return fd;
}

static void wire_hello_send_bytes(int fd, const void *bytes, size_t n, const enum kind *kinds, unsigned count)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(MOST * sizeof(int))];
	} control = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	int fds[MOST];

	for (unsigned i = 0; i < count; i++)
		fds[i] = made_descriptors[kinds[i]];
	if (count > 0) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
		control.header = (struct cmsghdr){
		        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(count * sizeof(int))};
		memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
	}
	MUST(sendmsg(fd, &msg, MSG_DONTWAIT) == (ssize_t)n);
}

static int expected_hello_result(const struct wire_hello *hello, size_t n, const enum kind *kinds, unsigned count)
{
	if (n < sizeof(*hello))
		return -EPROTO;
	if (hello->magic != WIRE_HELLO_MAGIC || hello->version != WIRE_HELLO_VERSION)
		return -EPROTO;
	if (hello->busy)
		return -EBUSY;
	if (hello->slots != SLOTS || hello->mtu != MTU || hello->nonce == 0 || count < 2)
		return -EPROTO;
	return kinds[0] == SEALED && kinds[1] == STREAM ? 0 : -EPROTO;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wire_hello sent = {0}, got = {0};
	enum kind kinds[MOST];
	unsigned count;
	int pair[2], fds[WIRE_HELLO_FDS], rc, number;
	size_t n;

	if (size < 4)
		return 0;
	if (made_descriptors[SEALED] == 0)
		make_fds_of_each_kind();
	number = next_free_fd_number();
	memcpy(&sent, data + 3, size - 3 < sizeof(sent) ? size - 3 : sizeof(sent));
	if (data[0] & 1)
		sent.magic = WIRE_HELLO_MAGIC, sent.version = WIRE_HELLO_VERSION;
	if (data[0] & 2)
		sent.busy = 0;
	if (data[0] & 4)
		sent.slots = SLOTS, sent.mtu = MTU;
	count = data[1] % (MOST + 1);
	for (unsigned i = 0; i < MOST; i++)
		kinds[i] = data[0] & 8 && i < 2 ? (i == 0 ? SEALED : STREAM) : (enum kind)((data[2] >> 2 * i) % KINDS);
	n = data[0] & 16 ? 1 + data[1] % sizeof(sent) : sizeof(sent);
	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	wire_hello_send_bytes(pair[0], &sent, n, kinds, count);
	if (data[0] & 32)
		close(pair[0]);
	rc = wire_hello_recv(pair[1], &got, fds);
	MUST(rc == (n == sizeof(sent) ? 0 : -EPROTO));
	if (rc == 0) {
		MUST(memcmp(&got, &sent, sizeof(got)) == 0);
		rc = wire_hello_check(&got, fds, SLOTS, MTU, BYTES);
	}
	MUST(rc == expected_hello_result(&sent, n, kinds, count));
	for (unsigned i = 0; i < WIRE_HELLO_FDS; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	close(pair[1]);
	if (!(data[0] & 32))
		close(pair[0]);
	MUST(next_free_fd_number() == number);
	return 0;
}
