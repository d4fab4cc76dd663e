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

static void say_writes_with_flags(int s, int flags)
{
	struct iovec piece = {bytes, 10};

	say("write with %#x:", (unsigned)flags);
	SAY_RESULT(pwritev2(s, &piece, 1, -1, flags));
}

static void say_preadv2_with_flags(int s, int flags)
{
	struct iovec piece = {bytes, 10};

	say("read with %#x:", (unsigned)flags);
	wait_until_readable(s, 1000);
	SAY_RESULT(preadv2(s, &piece, 1, -1, flags));
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
	int s = tcp_connected_to_far_peer();

	for (size_t i = 0; i < RWFS; i++)
		say_writes_with_flags(s, rwf[i]);
	for (size_t i = 0; i < RWFS; i++) {
		far_peer_writes(1, 10, 1, 1);
		say_preadv2_with_flags(s, rwf[i]);
	}
	SAY_RESULT(preadv2(s, &piece, 1, -1, RWF_HIPRI | RWF_NOWAIT));
	SAY_RESULT(preadv2(s, &piece, 1, 0, RWF_HIPRI));
	SAY_RESULT(pwritev2(s, &piece, 1, 5, RWF_HIPRI));
	SAY_RESULT(pwritev2(s, &piece, 1, -2, RWF_HIPRI));
	SAY_RESULT(pwritev2(s, &piece, 0, -1, 0x200));
	SAY_RESULT(preadv2(s, &piece, 0, -1, 0x200));
	piece.iov_base = bad_pointer();
	SAY_RESULT(pwritev2(s, &piece, 1, -1, 0x200));
	SAY_RESULT(pwritev2(s, &piece, 1, -1, RWF_HIPRI));
	piece.iov_len = (size_t)-1;
	SAY_RESULT(preadv2(s, &piece, 1, -1, 0x200));
	close(s);
}

CASE(bad_args_flags_of_datagrams, "preadv2 and pwritev2: flags that say nothing to a UDP socket are taken")
{
	int p = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, p);

	expect_offloaded(s);
	for (size_t i = 0; i < RWFS; i++)
		say_writes_with_flags(s, rwf[i]);
	for (size_t i = 0; i < RWFS; i++) {
		peer_send(far(), 0, here, port_of(s), 10, 1);
		say_preadv2_with_flags(s, rwf[i]);
	}
}

static volatile sig_atomic_t pipes;

static void on_sigpipe_count(int sig)
{
	(void)sig;
	pipes++;
}

CASE(bad_args_flag_no_signal, "pwritev2 with RWF_NOSIGNAL: EPIPE without a signal")
{
	int s = tcp_connected_to_far_peer();

	signal(SIGPIPE, on_sigpipe_count);
	SAY_OK_OR_ERROR(shutdown(s, SHUT_WR));
	say_writes_with_flags(s, 0x100);
	say("%d signals", (int)pipes);
	say_writes_with_flags(s, RWF_HIPRI);
	say("%d signals", (int)pipes);
}

/* ---- sendfile and splice ---- */

static void make_pipe_or_give_up(int ends[2])
{
	if (pipe(ends) != 0)
		die_with_message("pipe");
}

CASE(bad_args_sendfile_out_of_a_connection,
     "sendfile out of a connection: into a pipe what is there, into anything else EINVAL")
{
	int s = tcp_connected_to_far_peer(), ends[2], null = open("/dev/null", O_WRONLY);
	off_t at = 0;

	make_pipe_or_give_up(ends);
	far_peer_writes(1, 30, 1, 1);
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(sendfile(ends[1], s, &at, 10));
	SAY_RESULT(sendfile(ends[1], s, bad_pointer(), 10));
	SAY_RESULT(sendfile(ends[0], s, NULL, 10));
	SAY_RESULT(sendfile(ends[1], s, NULL, (size_t)-1));
	SAY_RESULT(sendfile(ends[1], s, NULL, 0));
	SAY_RESULT(sendfile(null, s, NULL, 10));
	SAY_RESULT(sendfile(s, s, NULL, 10));
	SAY_RESULT(sendfile(-1, s, NULL, 10));
	SAY_RESULT(sendfile(ends[1], s, NULL, 10));
	SAY_RESULT(sendfile(ends[1], s, NULL, 100));
	SAY_RESULT(read(ends[0], bytes, sizeof(bytes)));
	fcntl(s, F_SETFL, O_NONBLOCK);
	SAY_RESULT(sendfile(ends[1], s, NULL, 10));
	fcntl(s, F_SETFL, 0);
	peer(far(), "later 100 write 1 20 2 1");
	SAY_RESULT(sendfile(ends[1], s, NULL, 10));
	far_peer_shuts_down(1, SHUT_WR);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(sendfile(ends[1], s, NULL, 100));
	SAY_RESULT(sendfile(ends[1], s, NULL, 100));
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	while (write(ends[1], bytes, 4096) > 0)
		;
	SAY_RESULT(sendfile(ends[1], s, NULL, 100));
	close(s);
}

CASE(bad_args_sendfile_out_of_datagrams, "sendfile out of a UDP socket into a pipe: one datagram")
{
	int s = udp_socket_bound_to(here, 0), ends[2], null = open("/dev/null", O_WRONLY);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	make_pipe_or_give_up(ends);
	fcntl(s, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < 2; i++)
		peer_send(far(), 0, here, port_of(s), 30, 1);
	wait_until_readable(s, 1000);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(sendfile(null, s, NULL, 100));
	SAY_RESULT(sendfile(ends[1], s, NULL, 100));
	SAY_RESULT(sendfile(ends[1], s, NULL, 10));
	SAY_RESULT(sendfile(ends[1], s, NULL, 100));
	SAY_RESULT(read(ends[0], bytes, sizeof(bytes)));
}

CASE(bad_args_splice, "splice and sendfile refuse before they look what there is")
{
	int s = tcp_connected_to_far_peer(), u = udp_socket_bound_to(here, 0), ends[2],
	    null = open("/dev/null", O_WRONLY);
	int dir = open("/", O_RDONLY), path = open("/etc/passwd", O_PATH), file = open("/etc/passwd", O_RDONLY);
	off_t at = 0;

	expect_offloaded(u);
	make_pipe_or_give_up(ends);
	fcntl(s, F_SETFL, O_NONBLOCK);
	fcntl(u, F_SETFL, O_NONBLOCK);
	SAY_RESULT(splice(s, NULL, ends[1], NULL, 10, 0x100));
	SAY_RESULT(splice(u, NULL, ends[1], NULL, 10, 0x100));
	SAY_RESULT(splice(s, NULL, ends[1], NULL, 0, 0x100));
	SAY_RESULT(splice(s, NULL, ends[0], NULL, 10, 0));
	SAY_RESULT(splice(u, NULL, ends[0], NULL, 10, 0));
	SAY_RESULT(splice(ends[1], NULL, s, NULL, 10, 0));
	SAY_RESULT(splice(ends[0], NULL, s, NULL, 10, 0x100));
	SAY_RESULT(splice(ends[0], NULL, s, NULL, 0, 0x100));
	SAY_RESULT(sendfile(s, null, NULL, 10));
	SAY_RESULT(sendfile(s, ends[1], NULL, 10));
	SAY_RESULT(sendfile(s, ends[0], NULL, 10));
	SAY_RESULT(sendfile(s, path, NULL, 10));
	SAY_RESULT(sendfile(s, dir, NULL, 10));
	SAY_RESULT(sendfile(s, dir, bad_pointer(), 10));
	SAY_RESULT(sendfile(s, file, &at, (size_t)-1));
	SAY_RESULT(sendfile(s, file, NULL, (size_t)-1));
	SAY_RESULT(sendfile(s, file, &at, 5));
	SAY_RESULT(sendfile(s, -1, bad_pointer(), 5));
	close(s);
}

/* ---- bad pieces among good ones ---- */

CASE(bad_args_piece_sent, "a piece that cannot be read: nothing of what is before it is sent")
{
	struct iovec pieces[] = {{bytes, 1000}, {bad_pointer(), 10}, {bytes, 10}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 3};
	int s = tcp_connected_to_far_peer(), p = peer_ask_to_open_socket(far(), 2, there, 0),
	    u = udp_socket_connected_to(there, p);

	SAY_RESULT(writev(s, pieces, 3));
	SAY_RESULT(sendmsg(s, &msg, 0));
	SAY_RESULT(writev(u, pieces, 3));
	SAY_RESULT(sendmsg(u, &msg, 0));
	pieces[1].iov_len = 0;
	SAY_RESULT(writev(s, pieces, 3));
	wait_until_sent_packets_arrived(50);
	say_far_peer_state(1);
	pieces[2].iov_base = (void *)-4096;
	SAY_RESULT(writev(s, pieces, 3));
	SAY_RESULT(writev(u, pieces, 3));
	pieces[2].iov_base = (void *)((uintptr_t)1 << 62);
	SAY_RESULT(writev(s, pieces, 3));
	SAY_RESULT(writev(u, pieces, 3));
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

	SAY_RESULT(sendmsg(s, &msg, MSG_NOSIGNAL));
	close(s);
}

CASE(bad_args_piece_received, "a piece that cannot be written: what has come is still there")
{
	struct iovec pieces[] = {{bytes, 100}, {bad_pointer(), 10}, {bytes, 10}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 3};
	int s = tcp_connected_to_far_peer(), p = peer_ask_to_open_socket(far(), 2, there, 0),
	    u = udp_socket_connected_to(there, p);

	expect_offloaded(u);
	far_peer_writes(1, 1000, 1, 1);
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(readv(s, pieces, 3));
	SAY_RESULT(recvmsg(s, &msg, MSG_PEEK));
	SAY_RESULT(recvmsg(s, &msg, 0));
	recv_and_print_result(s, 50, MSG_DONTWAIT);
	SAY_RESULT(readv(s, pieces, 3));
	SAY_RESULT(readv(s, pieces, 1));
	recv_and_print_result(s, 2000, MSG_DONTWAIT);
	for (int i = 0; i < 2; i++)
		peer_send(far(), 2, here, port_of(u), 1000, 1);
	wait_until_readable(u, 1000);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(readv(u, pieces, 3));
	SAY_RESULT(recv(u, bytes, sizeof(bytes), MSG_DONTWAIT));
	SAY_RESULT(recv(u, bytes, sizeof(bytes), MSG_DONTWAIT));
	close(s);
}

/* ---- lengths that nobody's memory has ---- */

static const size_t lengths[] = {SSIZE_MAX, (size_t)-1, (size_t)1 << 47, (size_t)1 << 63};

static void say_sends_of_bad_lengths(int s)
{
	struct iovec pieces[] = {{bytes, 10}, {bytes, 0}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 2};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		pieces[1].iov_len = lengths[i];
		say("%zx:", lengths[i]);
		SAY_RESULT(write(s, bytes, lengths[i]));
		SAY_RESULT(writev(s, pieces, 2));
		SAY_RESULT(sendmsg(s, &msg, 0));
	}
	SAY_RESULT(send(s, (void *)-4096, 10, 0));
	SAY_RESULT(send(s, (void *)-4096, SSIZE_MAX, 0));
	SAY_RESULT(write(s, (void *)-4096, 10));
	SAY_RESULT(write(s, (void *)-4096, SSIZE_MAX));
}

static void say_receives_of_bad_lengths(int s, void (*more)(int s))
{
	struct iovec pieces[] = {{bytes, 10}, {bytes, 0}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 2};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		pieces[1].iov_len = lengths[i];
		say("%zx:", lengths[i]);
		SAY_RESULT(read(s, bytes, lengths[i]));
		SAY_RESULT(readv(s, pieces, 2));
		SAY_RESULT(recvmsg(s, &msg, 0));
		more(s);
		SAY_RESULT(recv(s, bytes, lengths[i], 0));
		more(s);
		SAY_RESULT(readv(s, pieces + 1, 1));
		SAY_RESULT(recv(s, bytes, sizeof(bytes), 0));
	}
	SAY_RESULT(recv(s, (void *)-4096, SSIZE_MAX, 0));
	SAY_RESULT(read(s, (void *)-4096, SSIZE_MAX));
}

static void make_stream_bytes_arrive(int s)
{
	far_peer_writes(1, 30, 1, 1);
	wait_until_readable(s, 1000);
}

static void make_datagram_arrive(int s)
{
	peer_send(far(), 2, here, port_of(s), 30, 1);
	wait_until_readable(s, 1000);
}

CASE(bad_args_lengths_of_a_connection, "lengths beyond the address space: EFAULT, or as much as a call takes")
{
	int s = tcp_connected_to_far_peer();

	fcntl(s, F_SETFL, O_NONBLOCK);
	say_receives_of_bad_lengths(s, make_stream_bytes_arrive);
	say_sends_of_bad_lengths(s);
	say_far_peer_state(1);
	say("%s", send(s, bytes, SSIZE_MAX, 0) > 0 ? "some" : "nothing");
	close(s);
}

CASE(bad_args_lengths_of_datagrams,
     "lengths beyond the address space on a UDP socket: EFAULT, EMSGSIZE, or what has come")
{
	int p = peer_ask_to_open_socket(far(), 2, there, 0), s = udp_socket_connected_to(there, p);

	expect_offloaded(s);
	fcntl(s, F_SETFL, O_NONBLOCK);
	say_receives_of_bad_lengths(s, make_datagram_arrive);
	say_sends_of_bad_lengths(s);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		struct iovec piece = {bytes, lengths[i]};

		SAY_RESULT(send(s, bytes, lengths[i], 0));
		SAY_RESULT(writev(s, &piece, 1));
	}
}
