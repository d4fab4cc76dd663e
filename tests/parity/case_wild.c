/* wild: flags, lengths and pointers that few programs pass, and which of several mistakes is told. */
#include <errno.h>
#include <fcntl.h>
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

static void read_with(int s, int flags)
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

CASE(wild_flags_of_a_connection, "preadv2 and pwritev2: flags that say nothing to a connection are taken")
{
	struct iovec piece = {bytes, 10};
	int s = tcp_out();

	for (size_t i = 0; i < RWFS; i++)
		write_with(s, rwf[i]);
	for (size_t i = 0; i < RWFS; i++) {
		far_writes(1, 10, 1, 1);
		read_with(s, rwf[i]);
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

CASE(wild_flags_of_datagrams, "preadv2 and pwritev2: flags that say nothing to a UDP socket are taken")
{
	int p = peer_open(far(), 0, there, 0), s = udp_to(there, p);

	expect_offloaded(s);
	for (size_t i = 0; i < RWFS; i++)
		write_with(s, rwf[i]);
	for (size_t i = 0; i < RWFS; i++) {
		peer_send(far(), 0, here, port_of(s), 10, 1);
		read_with(s, rwf[i]);
	}
}

static volatile sig_atomic_t pipes;

static void on_pipe(int sig)
{
	(void)sig;
	pipes++;
}

CASE(wild_flag_no_signal, "pwritev2 with RWF_NOSIGNAL: EPIPE without a signal")
{
	int s = tcp_out();

	signal(SIGPIPE, on_pipe);
	OKAY(shutdown(s, SHUT_WR));
	write_with(s, 0x100);
	say("%d signals", (int)pipes);
	write_with(s, RWF_HIPRI);
	say("%d signals", (int)pipes);
}
