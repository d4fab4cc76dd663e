/* bad_args: flags, lengths and pointers that few programs pass, and which of several mistakes is told. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include "parity.h"

static char bytes[100000];

/* ---- preadv2 and pwritev2 ---- */

static void write_with(int s, int flags)
{
	struct iovec piece = {bytes, 10};

	say("write with %#x:", (unsigned)flags);
	RES(pwritev2(s, &piece, 1, -1, flags));
}

static void bad_args_read_with(int s, int flags)
{
	struct iovec piece = {bytes, 10};

	say("read with %#x:", (unsigned)flags);
	is_readable(s, 1000);
	RES(preadv2(s, &piece, 1, -1, flags));
	while (recv(s, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
}

static const int rwf[] = {
        0,    RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_NOWAIT, RWF_APPEND, 0x20, 0x3f, 0x2f, 0x30, RWF_NOWAIT | RWF_HIPRI,
        0x40, 0x80,      0x100,     0x200,    0x40000000, -1};
#define RWFS (sizeof(rwf) / sizeof(*rwf))

CASE(bad_args_flags_of_a_connection, "preadv2 and pwritev2: flags that say nothing to a connection are taken")
{
	struct iovec piece = {bytes, 10};
	int s = tcp_out();

	for (size_t i = 0; i < RWFS; i++)
		write_with(s, rwf[i]);
	for (size_t i = 0; i < RWFS; i++) {
		far_writes(1, 10, 1, 1);
		bad_args_read_with(s, rwf[i]);
	}
	RES(preadv2(s, &piece, 1, -1, RWF_HIPRI | RWF_NOWAIT));
	RES(preadv2(s, &piece, 1, 0, RWF_HIPRI));
	RES(pwritev2(s, &piece, 1, 5, RWF_HIPRI));
	RES(pwritev2(s, &piece, 1, -2, RWF_HIPRI));
	RES(pwritev2(s, &piece, 0, -1, 0x200));
	RES(preadv2(s, &piece, 0, -1, 0x200));
	piece.iov_base = bad_pointer();
	RES(pwritev2(s, &piece, 1, -1, 0x200));
	RES(pwritev2(s, &piece, 1, -1, RWF_HIPRI));
	piece.iov_len = (size_t)-1;
	RES(preadv2(s, &piece, 1, -1, 0x200));
	close(s);
}

CASE(bad_args_flags_of_datagrams, "preadv2 and pwritev2: flags that say nothing to a UDP socket are taken")
{
	int p = peer_open(far(), 0, there, 0), s = udp_to(there, p);

	expect_offloaded(s);
	for (size_t i = 0; i < RWFS; i++)
		write_with(s, rwf[i]);
	for (size_t i = 0; i < RWFS; i++) {
		peer_send(far(), 0, here, port_of(s), 10, 1);
		bad_args_read_with(s, rwf[i]);
	}
}

static volatile sig_atomic_t pipes;

static void bad_args_on_pipe(int sig)
{
	(void)sig;
	pipes++;
}

CASE(bad_args_flag_no_signal, "pwritev2 with RWF_NOSIGNAL: EPIPE without a signal")
{
	int s = tcp_out();

	signal(SIGPIPE, bad_args_on_pipe);
	OKAY(shutdown(s, SHUT_WR));
	write_with(s, 0x100);
	say("%d signals", (int)pipes);
	write_with(s, RWF_HIPRI);
	say("%d signals", (int)pipes);
}

/* ---- sendfile and splice ---- */

static void make_pipe_or_give_up(int ends[2])
{
	if (pipe(ends) != 0)
		give_up("pipe");
}

CASE(bad_args_sendfile_out_of_a_connection,
     "sendfile out of a connection: into a pipe what is there, into anything else EINVAL")
{
	int s = tcp_out(), ends[2], null = open("/dev/null", O_WRONLY);
	off_t at = 0;

	make_pipe_or_give_up(ends);
	far_writes(1, 30, 1, 1);
	let_arrive(50);
	RES(sendfile(ends[1], s, &at, 10));
	RES(sendfile(ends[1], s, bad_pointer(), 10));
	RES(sendfile(ends[0], s, NULL, 10));
	RES(sendfile(ends[1], s, NULL, (size_t)-1));
	RES(sendfile(ends[1], s, NULL, 0));
	RES(sendfile(null, s, NULL, 10));
	RES(sendfile(s, s, NULL, 10));
	RES(sendfile(-1, s, NULL, 10));
	RES(sendfile(ends[1], s, NULL, 10));
	RES(sendfile(ends[1], s, NULL, 100));
	RES(read(ends[0], bytes, sizeof(bytes)));
	fcntl(s, F_SETFL, O_NONBLOCK);
	RES(sendfile(ends[1], s, NULL, 10));
	fcntl(s, F_SETFL, 0);
	peer(far(), "later 100 write 1 20 2 1");
	RES(sendfile(ends[1], s, NULL, 10));
	far_shuts(1, SHUT_WR);
	let_arrive(30);
	RES(sendfile(ends[1], s, NULL, 100));
	RES(sendfile(ends[1], s, NULL, 100));
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	while (write(ends[1], bytes, 4096) > 0)
		;
	RES(sendfile(ends[1], s, NULL, 100));
	close(s);
}

CASE(bad_args_sendfile_out_of_datagrams, "sendfile out of a UDP socket into a pipe: one datagram")
{
	int s = udp_at(here, 0), ends[2], null = open("/dev/null", O_WRONLY);

	name_port(peer_open(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	make_pipe_or_give_up(ends);
	fcntl(s, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < 2; i++)
		peer_send(far(), 0, here, port_of(s), 30, 1);
	is_readable(s, 1000);
	let_arrive(30);
	RES(sendfile(null, s, NULL, 100));
	RES(sendfile(ends[1], s, NULL, 100));
	RES(sendfile(ends[1], s, NULL, 10));
	RES(sendfile(ends[1], s, NULL, 100));
	RES(read(ends[0], bytes, sizeof(bytes)));
}

CASE(bad_args_splice, "splice and sendfile refuse before they look what there is")
{
	int s = tcp_out(), u = udp_at(here, 0), ends[2], null = open("/dev/null", O_WRONLY);
	int dir = open("/", O_RDONLY), path = open("/etc/passwd", O_PATH), file = open("/etc/passwd", O_RDONLY);
	off_t at = 0;

	expect_offloaded(u);
	make_pipe_or_give_up(ends);
	fcntl(s, F_SETFL, O_NONBLOCK);
	fcntl(u, F_SETFL, O_NONBLOCK);
	RES(splice(s, NULL, ends[1], NULL, 10, 0x100));
	RES(splice(u, NULL, ends[1], NULL, 10, 0x100));
	RES(splice(s, NULL, ends[1], NULL, 0, 0x100));
	RES(splice(s, NULL, ends[0], NULL, 10, 0));
	RES(splice(u, NULL, ends[0], NULL, 10, 0));
	RES(splice(ends[1], NULL, s, NULL, 10, 0));
	RES(splice(ends[0], NULL, s, NULL, 10, 0x100));
	RES(splice(ends[0], NULL, s, NULL, 0, 0x100));
	RES(sendfile(s, null, NULL, 10));
	RES(sendfile(s, ends[1], NULL, 10));
	RES(sendfile(s, ends[0], NULL, 10));
	RES(sendfile(s, path, NULL, 10));
	RES(sendfile(s, dir, NULL, 10));
	RES(sendfile(s, dir, bad_pointer(), 10));
	RES(sendfile(s, file, &at, (size_t)-1));
	RES(sendfile(s, file, NULL, (size_t)-1));
	RES(sendfile(s, file, &at, 5));
	RES(sendfile(s, -1, bad_pointer(), 5));
	close(s);
}

/* ---- bad pieces among good ones ---- */

CASE(bad_args_piece_sent, "a piece that cannot be read: nothing of what is before it is sent")
{
	struct iovec pieces[] = {{bytes, 1000}, {bad_pointer(), 10}, {bytes, 10}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 3};
	int s = tcp_out(), p = peer_open(far(), 2, there, 0), u = udp_to(there, p);

	RES(writev(s, pieces, 3));
	RES(sendmsg(s, &msg, 0));
	RES(writev(u, pieces, 3));
	RES(sendmsg(u, &msg, 0));
	pieces[1].iov_len = 0;
	RES(writev(s, pieces, 3));
	let_arrive(50);
	far_state(1);
	pieces[2].iov_base = (void *)-4096;
	RES(writev(s, pieces, 3));
	RES(writev(u, pieces, 3));
	pieces[2].iov_base = (void *)((uintptr_t)1 << 62);
	RES(writev(s, pieces, 3));
	RES(writev(u, pieces, 3));
	/* Much of it: something is sent, at most all that is good. */
	pieces[0].iov_len = sizeof(bytes);
	pieces[1].iov_len = 10;
	pieces[2] = (struct iovec){bytes, 10};
	say("%s", writev(s, pieces, 3) > 0 ? "some" : "nothing");
	close(s);
}

CASE(bad_args_list_to_an_address,
     "a list of one piece that cannot be read, with an address, on a socket that is not connected")
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	struct msghdr msg = {
	        .msg_name = &address, .msg_namelen = sizeof(address), .msg_iov = bad_pointer(), .msg_iovlen = 1};
	int s = tcp_socket();

	RES(sendmsg(s, &msg, MSG_NOSIGNAL));
	close(s);
}

CASE(bad_args_piece_received, "a piece that cannot be written: what has come is still there")
{
	struct iovec pieces[] = {{bytes, 100}, {bad_pointer(), 10}, {bytes, 10}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 3};
	int s = tcp_out(), p = peer_open(far(), 2, there, 0), u = udp_to(there, p);

	expect_offloaded(u);
	far_writes(1, 1000, 1, 1);
	let_arrive(50);
	RES(readv(s, pieces, 3));
	RES(recvmsg(s, &msg, MSG_PEEK));
	RES(recvmsg(s, &msg, 0));
	say_read(s, 50, MSG_DONTWAIT);
	RES(readv(s, pieces, 3));
	RES(readv(s, pieces, 1));
	say_read(s, 2000, MSG_DONTWAIT);
	for (int i = 0; i < 2; i++)
		peer_send(far(), 2, here, port_of(u), 1000, 1);
	is_readable(u, 1000);
	let_arrive(30);
	RES(readv(u, pieces, 3));
	RES(recv(u, bytes, sizeof(bytes), MSG_DONTWAIT));
	RES(recv(u, bytes, sizeof(bytes), MSG_DONTWAIT));
	close(s);
}

/* ---- lengths that nobody's memory has ---- */

static const size_t lengths[] = {SSIZE_MAX, (size_t)-1, (size_t)1 << 47, (size_t)1 << 63};

static void send_lengths(int s)
{
	struct iovec pieces[] = {{bytes, 10}, {bytes, 0}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 2};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		pieces[1].iov_len = lengths[i];
		say("%zx:", lengths[i]);
		RES(write(s, bytes, lengths[i]));
		RES(writev(s, pieces, 2));
		RES(sendmsg(s, &msg, 0));
	}
	RES(send(s, (void *)-4096, 10, 0));
	RES(send(s, (void *)-4096, SSIZE_MAX, 0));
	RES(write(s, (void *)-4096, 10));
	RES(write(s, (void *)-4096, SSIZE_MAX));
}

static void receive_lengths(int s, void (*more)(int s))
{
	struct iovec pieces[] = {{bytes, 10}, {bytes, 0}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 2};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		pieces[1].iov_len = lengths[i];
		say("%zx:", lengths[i]);
		RES(read(s, bytes, lengths[i]));
		RES(readv(s, pieces, 2));
		RES(recvmsg(s, &msg, 0));
		more(s);
		RES(recv(s, bytes, lengths[i], 0));
		more(s);
		RES(readv(s, pieces + 1, 1));
		RES(recv(s, bytes, sizeof(bytes), 0));
	}
	RES(recv(s, (void *)-4096, SSIZE_MAX, 0));
	RES(read(s, (void *)-4096, SSIZE_MAX));
}

static void bytes_come(int s)
{
	far_writes(1, 30, 1, 1);
	is_readable(s, 1000);
}

static void datagram_comes(int s)
{
	peer_send(far(), 2, here, port_of(s), 30, 1);
	is_readable(s, 1000);
}

CASE(bad_args_lengths_of_a_connection, "lengths beyond the address space: EFAULT, or as much as a call takes")
{
	int s = tcp_out();

	fcntl(s, F_SETFL, O_NONBLOCK);
	receive_lengths(s, bytes_come);
	send_lengths(s);
	far_state(1);
	say("%s", send(s, bytes, SSIZE_MAX, 0) > 0 ? "some" : "nothing");
	close(s);
}

CASE(bad_args_lengths_of_datagrams,
     "lengths beyond the address space on a UDP socket: EFAULT, EMSGSIZE, or what has come")
{
	int p = peer_open(far(), 2, there, 0), s = udp_to(there, p);

	expect_offloaded(s);
	fcntl(s, F_SETFL, O_NONBLOCK);
	receive_lengths(s, datagram_comes);
	send_lengths(s);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		struct iovec piece = {bytes, lengths[i]};

		RES(send(s, bytes, lengths[i], 0));
		RES(writev(s, &piece, 1));
	}
}
