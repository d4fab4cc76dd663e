/* tcp_data: reading and writing streams: every call, every flag, sizes, limits, bad pointers. */
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <linux/errqueue.h> /* needs <time.h> */

#include "parity.h"

static char bytes[1 << 20];
static volatile int minus_one = -1, too_many = 2000; /* which the compiler would warn of */

static void wait_for_and_say_fionread_bytes(int s, int count)
{
	int waiting = 0;
	uint64_t end = now_ms() + 2000;

	while (waiting < count && now_ms() < end) {
		ioctl(s, FIONREAD, &waiting);
		pause_ms(1);
	}
	say("FIONREAD %d", waiting);
}

CASE(tcp_read_every_way,
     "read, readv, recv, recvfrom, recvmsg and recvmmsg read the stream in order, around the kernel")
{
	int s = tcp_connected_to_far_peer();
	struct iovec iov[2] = {{bytes, 30}, {bytes + 30, 70}};
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2, .msg_name = &from, .msg_namelen = sizeof(from)};
	struct mmsghdr many[2] = {{.msg_hdr = msg}, {.msg_hdr = msg}};

	kernel_segments_wait_idle_and_start_count();
	far_peer_writes(1, 100, 1, 7);
	wait_for_and_say_fionread_bytes(s, 700);
	say("seed %d", (SAY_RESULT(read(s, bytes, 100)), seed_of_payload(bytes, 100)));
	say("seed %d", (SAY_RESULT(readv(s, iov, 2)), seed_of_payload(bytes, 100)));
	say("seed %d", (SAY_RESULT(recv(s, bytes, 100, 0)), seed_of_payload(bytes, 100)));
	say("seed %d",
	    (SAY_RESULT(recvfrom(s, bytes, 100, 0, (struct sockaddr *)&from, &len)), seed_of_payload(bytes, 100)));
	say("name of %u bytes", len);
	say("seed %d", (SAY_RESULT(recvmsg(s, &msg, 0)), seed_of_payload(bytes, 100)));
	say("name of %u bytes, flags %d", msg.msg_namelen, msg.msg_flags);
	SAY_RESULT(recvmmsg(s, many, 2, 0, NULL));
	say("%u and %u bytes", many[0].msg_len, many[1].msg_len);
	check_kernel_segments_were_bypassed();
	close(s);
}

CASE(tcp_write_every_way,
     "write, writev, send, sendto, sendmsg and sendmmsg write the stream in order, around the kernel")
{
	int s = tcp_connected_to_far_peer();
	struct iovec iov[2] = {{bytes, 30}, {bytes + 30, 70}};
	struct sockaddr_in to = ipv4_sockaddr_of(there, 5);
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	struct mmsghdr many[2] = {{.msg_hdr = msg}, {.msg_hdr = msg}};

	kernel_segments_wait_idle_and_start_count();
	fill(bytes, 100, 1);
	SAY_RESULT(write(s, bytes, 100));
	SAY_RESULT(writev(s, iov, 2));
	SAY_RESULT(send(s, bytes, 100, 0));
	SAY_RESULT(sendto(s, bytes, 100, 0, (struct sockaddr *)&to, sizeof(to)));
	SAY_RESULT(sendmsg(s, &msg, 0));
	SAY_RESULT(sendmmsg(s, many, 2, 0));
	for (int i = 0; i < 7; i++)
		say_far_peer_reads(1, 100, 1, 1);
	SAY_RESULT(write(s, bytes, 0));
	SAY_RESULT(send(s, bytes, 0, 0));
	check_kernel_segments_were_bypassed();
	close(s);
}

CASE(tcp_read_flags, "MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, MSG_TRUNC and what else recv is given")
{
	int s = tcp_connected_to_far_peer();

	recv_and_print_result(s, 10, MSG_DONTWAIT);
	far_peer_writes(1, 100, 1, 3);
	wait_for_and_say_fionread_bytes(s, 300);
	recv_and_print_result(s, 100, MSG_PEEK);
	recv_and_print_result(s, 50, MSG_PEEK);
	SAY_RESULT(recv(s, bytes, 300, MSG_PEEK));
	SAY_RESULT(recv(s, bytes, 400, MSG_PEEK | MSG_DONTWAIT));
	SAY_RESULT(recv(s, NULL, 50, MSG_TRUNC));
	SAY_RESULT(recv(s, NULL, 50, MSG_TRUNC));
	recv_and_print_result(s, 100, MSG_WAITALL);
	SAY_RESULT(recv(s, bytes, 0, 0));
	SAY_RESULT(recv(s, bytes, 50, 0x4000000));
	SAY_RESULT(recv(s, bytes, 1000, MSG_DONTWAIT | MSG_WAITALL));
	recv_and_print_result(s, 10, MSG_DONTWAIT);
	SAY_RESULT(recv(s, bytes, 10, MSG_ERRQUEUE));
	SAY_RESULT(recv(s, bytes, 10, MSG_OOB));
	close(s);
}

CASE(tcp_read_waits_for_all,
     "MSG_WAITALL waits for all of it, over several segments, and ends at the end of the stream")
{
	int s = tcp_connected_to_far_peer();
	uint64_t since = now_ms();

	peer(far(), "later 100 write 1 500 2 2 100000");
	SAY_RESULT(recv(s, bytes, 1000, MSG_WAITALL));
	say_took_about("all of it", since, 200);
	far_peer_writes(1, 300, 1, 1);
	far_peer_shuts_down(1, SHUT_WR);
	SAY_RESULT(recv(s, bytes, 1000, MSG_WAITALL));
	SAY_RESULT(recv(s, bytes, 1000, MSG_WAITALL));
	close(s);
}

CASE(tcp_read_times_out, "SO_RCVTIMEO bounds a read; with part of it there, MSG_WAITALL gives the part")
{
	int s = tcp_connected_to_far_peer();
	struct timeval limit = {.tv_usec = 200000};
	uint64_t since;

	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	since = now_ms();
	recv_and_print_result(s, 10, 0);
	say_took_about("nothing", since, 200);
	far_peer_writes(1, 10, 1, 1);
	since = now_ms();
	SAY_RESULT(recv(s, bytes, 100, MSG_WAITALL));
	say_took_about("a part", since, 200);
	close(s);
}

CASE(tcp_bulk, "a megabyte each way, in pieces that do not fit")
{
	int s = tcp_connected_to_far_peer();
	size_t got = 0;

	kernel_segments_wait_idle_and_start_count();
	peer(far(), "later 0 write 1 50000 0 20");
	while (got < 1000000) {
		ssize_t n = recv(s, bytes + got, 1000000 - got, 0);

		if (n <= 0)
			break;
		got += (size_t)n;
	}
	say("%zu bytes", got);
	for (int i = 0; i < 20; i++)
		if (seed_of_payload(bytes + i * 50000, 50000) != i)
			say("piece %d is wrong", i);
	peer(far(), "later 50 read 1 50000 0 20");
	for (int i = 0; i < 20; i++)
		fill(bytes + i * 50000, 50000, i);
	SAY_RESULT(write(s, bytes, 1000000));
	check_kernel_segments_were_bypassed();
	SAY_RESULT(shutdown(s, SHUT_WR));
	pause_ms(300);
	say_far_peer_state(1);
	close(s);
}

CASE(tcp_write_fills_up, "without waiting, a writer whose peer does not read gets EAGAIN; then room comes back")
{
	int s = tcp_connected_to_far_peer(), full = 0;
	size_t written = 0;
	ssize_t n;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 30000));
	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	for (int i = 0; i < 200 && full < 3; i++) {
		n = write(s, bytes, 100000);
		if (n < 0) {
			if (errno != EAGAIN)
				say("error %s", error_name(errno));
			full++;
			pause_ms(50);
		} else {
			written += (size_t)n;
			full = 0;
		}
	}
	say("full: %s", full == 3 ? "yes" : "no");
	wait_and_print_poll_events("full", s, POLLOUT, 50);
	say("the peer reads it all: %s",
	    strncmp(peer(far(), "read 1 1000 70 %zu 500", written / 1000 + 1), "0 bytes", 7) != 0 ? "yes" : "no");
	wait_and_print_poll_events("empty", s, POLLOUT, 1000);
	close(s);
}

CASE(tcp_write_waits, "a blocking writer waits for room, as long as SO_SNDTIMEO says")
{
	int s = tcp_connected_to_far_peer();
	struct timeval limit = {.tv_usec = 300000};
	ssize_t n;
	uint64_t since;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 20000));
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	while ((n = write(s, bytes, 1000000)) > 0)
		;
	say("in the end: %s", error_name(errno));
	/* What is left of the window, less than a segment, goes a quarter of a second later, and makes room. */
	pause_ms(500);
	while (send(s, bytes, 1000000, MSG_DONTWAIT) > 0)
		;
	since = now_ms();
	SAY_RESULT(write(s, bytes, 1000000));
	say_took_about("gave up", since, 300);
	close(s);
}

CASE(tcp_bad_pointers, "bad pointers: EFAULT, and no byte is lost")
{
	int s = tcp_connected_to_far_peer();
	struct iovec iov[2] = {{bytes, 50}, {bad_pointer(), 50}}, none = {NULL, 0};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2}, bad = {.msg_iov = bad_pointer(), .msg_iovlen = 1};

	far_peer_writes(1, 100, 1, 1);
	wait_for_and_say_fionread_bytes(s, 100);
	SAY_RESULT(recv(s, bad_pointer(), 100, 0));
	wait_for_and_say_fionread_bytes(s, 100);
	SAY_RESULT(recvmsg(s, bad_pointer(), 0));
	SAY_RESULT(recvmsg(s, &bad, 0));
	SAY_RESULT(readv(s, &none, 1));
	SAY_RESULT(readv(s, iov, minus_one));
	SAY_RESULT(readv(s, iov, too_many));
	recv_and_print_result(s, 100, 0);
	fill(bytes, 100, 2);
	SAY_RESULT(send(s, bad_pointer(), 100, 0));
	SAY_RESULT(sendmsg(s, bad_pointer(), 0));
	SAY_RESULT(sendmsg(s, &bad, 0));
	SAY_RESULT(writev(s, &none, 1));
	iov[1] = (struct iovec){bytes + 50, 50};
	SAY_RESULT(sendmsg(s, &msg, 0));
	say_far_peer_reads(1, 100, 2, 1);
	close(s);
}

CASE(tcp_more, "MSG_MORE and TCP_CORK hold a short segment back; what follows takes it along")
{
	int s = tcp_connected_to_far_peer();
	uint64_t since;

	send_pattern_and_print_result(s, 10, 1, MSG_MORE);
	say("the peer: %s", peer(far(), "read 1 10 1 1 50"));
	send_pattern_and_print_result(s, 10, 2, 0);
	say_far_peer_reads(1, 10, 1, 2);
	SAY_RESULT(set_int(s, IPPROTO_TCP, 3 /* TCP_CORK */, 1));
	send_pattern_and_print_result(s, 10, 1, 0);
	say("the peer: %s", peer(far(), "read 1 10 1 1 50"));
	SAY_RESULT(set_int(s, IPPROTO_TCP, 3, 0));
	say_far_peer_reads(1, 10, 1, 1);
	SAY_RESULT(set_int(s, IPPROTO_TCP, 3, 1));
	since = now_ms();
	send_pattern_and_print_result(s, 10, 1, 0);
	say_far_peer_reads(1, 10, 1, 1);
	say_took_about("the cork gives way", since, 200);
	close(s);
}

CASE(tcp_nodelay_corked, "TCP_NODELAY sends what TCP_CORK holds back, each time that it is set")
{
	int s = tcp_connected_to_far_peer();

	SAY_RESULT(set_int(s, IPPROTO_TCP, 3 /* TCP_CORK */, 1));
	for (int i = 0; i < 3; i++) {
		send_pattern_and_print_result(s, 10, i, 0);
		say("the peer: %s", peer(far(), "read 1 10 %d 1 50", i));
		SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_NODELAY, 1));
		say("the peer: %s", peer(far(), "read 1 10 %d 1 100", i));
	}
	close(s);
}

/* Writes until nothing more is taken for a while; what waits unsent then. */
static int send_until_full_and_get_unsent(int s)
{
	int unsent = 0;

	for (int quiet = 0; quiet < 10; quiet++) {
		while (send(s, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
			quiet = 0;
		pause_ms(10);
	}
	ioctl(s, SIOCOUTQNSD, &unsent);
	return unsent;
}

CASE(tcp_notsent_lowat, "TCP_NOTSENT_LOWAT bounds what waits, also within one write")
{
	int s = tcp_connected_to_far_peer(), unsent;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 200000));
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 20000));
	unsent = send_until_full_and_get_unsent(s);
	say("unsent: %s", unsent >= 20000 && unsent < 20000 + 65536 ? "up to the mark" : "odd");
	wait_and_print_poll_events("then", s, POLLOUT, 100);
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0)); /* as the host says: no bound */
	unsent = send_until_full_and_get_unsent(s);
	say("unsent: %s", unsent > 20000 + 65536 ? "more" : "odd");
	close(s);
}

CASE(tcp_sendfile, "sendfile and splice send a file's bytes, from its offset or from where it stands")
{
	char name[] = "/tmp/parity-XXXXXX";
	int s = tcp_connected_to_far_peer(), file = mkstemp(name), ends[2];
	off_t offset = 1000;

	unlink(name);
	for (int i = 0; i < 10; i++) {
		fill(bytes, 1000, i);
		if (write(file, bytes, 1000) != 1000)
			die_with_message("write");
	}
	SAY_RESULT(sendfile(s, file, &offset, 2000));
	say("offset %ld", (long)offset);
	say_far_peer_reads(1, 1000, 1, 2);
	lseek(file, 5000, SEEK_SET);
	SAY_RESULT(sendfile(s, file, NULL, 100000));
	say("stands at %ld", (long)lseek(file, 0, SEEK_CUR));
	say_far_peer_reads(1, 1000, 5, 5);
	SAY_RESULT(pipe(ends));
	far_peer_writes(1, 1000, 7, 1);
	wait_for_and_say_fionread_bytes(s, 1000);
	SAY_RESULT(splice(s, NULL, ends[1], NULL, 1000, 0));
	SAY_RESULT(read(ends[0], bytes, 1000));
	say("seed %d", seed_of_payload(bytes, 1000));
	SAY_RESULT(write(ends[1], bytes, 1000));
	SAY_RESULT(splice(ends[0], NULL, s, NULL, 1000, 0));
	say_far_peer_reads(1, 1000, 7, 1);
	close(s);
}

CASE(tcp_queue_sizes, "FIONREAD, SIOCOUTQ and SIOCOUTQNSD")
{
	int s = tcp_connected_to_far_peer(), value = -1;

	SAY_RESULT(ioctl(s, FIONREAD, &value));
	say("%d", value);
	SAY_RESULT(ioctl(s, TIOCOUTQ, &value));
	say("%d", value);
	SAY_RESULT(ioctl(s, 0x894B /* SIOCOUTQNSD */, &value));
	say("%d", value);
	send_pattern_and_print_result(s, 100, 1, 0);
	wait_until_sent_packets_arrived(100);
	SAY_RESULT(ioctl(s, TIOCOUTQ, &value));
	say("%d", value);
	SAY_RESULT(ioctl(s, FIONREAD, bad_pointer()));
	far_peer_writes(1, 10, 1, 1);
	wait_for_and_say_fionread_bytes(s, 10);
	close(s);
	s = tcp_listener(here, 0, 5);
	SAY_RESULT(ioctl(s, FIONREAD, &value));
	SAY_RESULT(ioctl(s, TIOCOUTQ, &value));
	close(s);
}

CASE(tcp_urgent, "one urgent byte: MSG_OOB, SIOCATMARK, POLLPRI")
{
	int s = tcp_connected_to_far_peer(), mark = -1;
	char c = 0;

	far_peer_writes(1, 10, 1, 1);
	wait_for_and_say_fionread_bytes(s, 10);
	peer(far(), "urgent 1 X");
	wait_and_print_poll_events("urgent", s, POLLPRI, 1000);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(recv(s, &c, 1, MSG_OOB | MSG_PEEK));
	SAY_RESULT(recv(s, &c, 1, MSG_OOB));
	say("the byte is %c", c);
	SAY_RESULT(recv(s, &c, 1, MSG_OOB));
	SAY_RESULT(ioctl(s, 0x8905 /* SIOCATMARK */, &mark));
	say("at the mark: %d", mark);
	far_peer_writes(1, 10, 2, 1);
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(recv(s, bytes, 100, 0));
	SAY_RESULT(ioctl(s, 0x8905, &mark));
	say("at the mark: %d", mark);
	SAY_RESULT(recv(s, bytes, 100, 0));
	SAY_RESULT(send(s, "Y", 1, MSG_OOB));
	wait_until_sent_packets_arrived(50);
	say_far_peer_state(1);
	close(s);
}

CASE(tcp_urgent_mark, "sockatmark says whether the reader is at the mark")
{
	int s = tcp_connected_to_far_peer();

	SAY_RESULT(sockatmark(s));
	far_peer_writes(1, 10, 1, 1);
	peer(far(), "urgent 1 U");
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(sockatmark(s));
	recv_and_print_result(s, 100, 0);
	SAY_RESULT(sockatmark(s));
	far_peer_writes(1, 10, 1, 1);
	wait_until_sent_packets_arrived(50);
	recv_and_print_result(s, 100, 0);
	SAY_RESULT(sockatmark(s));
	SAY_RESULT(sockatmark(-1));
	SAY_RESULT(sockatmark(0));
	close(s);
}

CASE(tcp_urgent_inline, "SO_OOBINLINE: the urgent byte is part of the stream")
{
	int s = tcp_connected_to_far_peer(), mark = -1;
	char c = 0;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_OOBINLINE, 1));
	far_peer_writes(1, 3, 1, 1);
	peer(far(), "urgent 1 X");
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(recv(s, &c, 1, MSG_OOB));
	SAY_RESULT(recv(s, bytes, 100, 0));
	SAY_RESULT(ioctl(s, 0x8905, &mark));
	say("at the mark: %d", mark);
	SAY_RESULT(recv(s, bytes, 100, 0));
	close(s);
}

static void say_at_urgent_mark(int s)
{
	int mark = -1;

	SAY_RESULT(ioctl(s, 0x8905 /* SIOCATMARK */, &mark));
	say("at the mark: %d", mark);
}

static void recv_and_say_urgent_byte(int s)
{
	char c = '-';

	SAY_RESULT(recv(s, &c, 1, MSG_OOB));
	say("the byte is %c", c);
}

/* abX cdY ef: X is urgent first, then Y, and nobody has read anything. */
static void far_peer_sends_two_urgent_bytes(void)
{
	far_peer_writes(1, 2, 1, 1);
	peer(far(), "urgent 1 X");
	wait_until_sent_packets_arrived(30);
	far_peer_writes(1, 2, 2, 1);
	peer(far(), "urgent 1 Y");
	wait_until_sent_packets_arrived(30);
	far_peer_writes(1, 2, 3, 1);
	wait_until_sent_packets_arrived(50);
}

static void recv_5_times_and_say_urgent_mark(int s)
{
	for (int i = 0; i < 5; i++) {
		SAY_RESULT(recv(s, bytes, 100, MSG_DONTWAIT));
		say_at_urgent_mark(s);
	}
}

CASE(tcp_urgent_again, "a second urgent byte before the first was read: the first is part of the stream")
{
	int s = tcp_connected_to_far_peer();

	far_peer_sends_two_urgent_bytes();
	say_at_urgent_mark(s);
	recv_5_times_and_say_urgent_mark(s);
	recv_and_say_urgent_byte(s);
	recv_and_say_urgent_byte(s);
	close(s);
}

CASE(tcp_urgent_again_taken, "a second urgent byte, taken before what is before it; and after the first was taken")
{
	int s = tcp_connected_to_far_peer();

	far_peer_sends_two_urgent_bytes();
	recv_and_say_urgent_byte(s);
	recv_5_times_and_say_urgent_mark(s);
	far_peer_writes(1, 2, 4, 1);
	peer(far(), "urgent 1 V");
	wait_until_sent_packets_arrived(50);
	recv_and_say_urgent_byte(s);
	far_peer_writes(1, 2, 5, 1);
	peer(far(), "urgent 1 W");
	wait_until_sent_packets_arrived(50);
	recv_and_say_urgent_byte(s);
	recv_5_times_and_say_urgent_mark(s);
	close(s);
}

CASE(tcp_urgent_again_at_mark, "a second urgent byte, right behind the first; one while the reader is at the mark")
{
	int s = tcp_connected_to_far_peer();

	far_peer_writes(1, 2, 1, 1);
	peer(far(), "urgent 1 X");
	peer(far(), "urgent 1 Y");
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(recv(s, bytes, 100, MSG_DONTWAIT));
	say_at_urgent_mark(s);
	peer(far(), "urgent 1 Z");
	wait_until_sent_packets_arrived(50);
	recv_5_times_and_say_urgent_mark(s);
	recv_and_say_urgent_byte(s);
	far_peer_writes(1, 2, 2, 1);
	peer(far(), "urgent 1 P");
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(recv(s, bytes, 2, MSG_DONTWAIT));
	say_at_urgent_mark(s);
	far_peer_writes(1, 1, 3, 1);
	peer(far(), "urgent 1 Q");
	wait_until_sent_packets_arrived(50);
	recv_5_times_and_say_urgent_mark(s);
	recv_and_say_urgent_byte(s);
	close(s);
}

CASE(tcp_urgent_row, "urgent bytes in a row while the reader is at the first: it is behind all but the last")
{
	int s = tcp_connected_to_far_peer();

	far_peer_writes(1, 2, 1, 1);
	peer(far(), "urgent 1 X");
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(recv(s, bytes, 100, MSG_DONTWAIT));
	say_at_urgent_mark(s);
	for (const char *c = "YZW"; *c != '\0'; c++) {
		peer(far(), "urgent 1 %c", *c);
		wait_until_sent_packets_arrived(30);
	}
	say_at_urgent_mark(s);
	wait_and_print_poll_events("in a row", s, POLLIN, 30);
	recv_and_say_urgent_byte(s);
	far_peer_writes(1, 2, 2, 1);
	wait_until_sent_packets_arrived(50);
	recv_5_times_and_say_urgent_mark(s);
	close(s);
}

CASE(tcp_urgent_then_inline, "an urgent byte that a second one had the reader pass is not read inline either")
{
	int s = tcp_connected_to_far_peer();

	peer(far(), "urgent 1 X");
	wait_until_sent_packets_arrived(30);
	far_peer_writes(1, 2, 1, 1);
	peer(far(), "urgent 1 Y");
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_OOBINLINE, 1));
	say_at_urgent_mark(s);
	recv_5_times_and_say_urgent_mark(s);
	close(s);
}

CASE(tcp_urgent_again_inline, "a second urgent byte where they are read inline")
{
	int s = tcp_connected_to_far_peer();

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_OOBINLINE, 1));
	far_peer_sends_two_urgent_bytes();
	say_at_urgent_mark(s);
	recv_5_times_and_say_urgent_mark(s);
	recv_and_say_urgent_byte(s);
	close(s);
}

static void *tcp_data_recv_100_at_a_time_thread(void *arg)
{
	static _Atomic int total;
	char some[100];
	ssize_t n;

	while ((n = recv(*(int *)arg, some, sizeof(some), 0)) > 0)
		total += (int)n;
	return (void *)(intptr_t)total;
}

CASE(tcp_read_by_threads, "several threads read one stream: every byte once, all of them see the end")
{
	int s = tcp_connected_to_far_peer();
	pthread_t threads[4];
	void *total = NULL;

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, tcp_data_recv_100_at_a_time_thread, &s);
	far_peer_writes(1, 1000, 1, 50);
	far_peer_shuts_down(1, SHUT_WR);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], &total);
	say("all ended");
	SAY_RESULT(recv(s, bytes, 10, 0));
	close(s);
}

CASE(tcp_duplicates, "dup, dup2 and F_DUPFD share the stream; it ends with the last of them")
{
	int s = tcp_connected_to_far_peer(), a = dup(s), b = dup2(s, 200), c = fcntl(s, F_DUPFD, 210);

	expect_offloaded(a);
	expect_offloaded(b);
	send_pattern_and_print_result(a, 10, 1, 0);
	send_pattern_and_print_result(b, 10, 2, 0);
	send_pattern_and_print_result(c, 10, 3, 0);
	say_far_peer_reads(1, 10, 1, 3);
	far_peer_writes(1, 10, 4, 2);
	close(s);
	recv_and_print_result(b, 10, MSG_WAITALL);
	recv_and_print_result(c, 10, MSG_WAITALL);
	close(a);
	close(b);
	say("the peer: %s", peer(far(), "read 1 1 0 1 50"));
	close(c);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(tcp_many_pieces, "writev and readv of as many pieces as there may be")
{
	enum { PIECES = 1024 };
	static struct iovec out[PIECES + 1], in[PIECES + 1];
	static char from[PIECES * 7], to[PIECES * 7];
	int s = tcp_connected_to_far_peer();

	fill(from, sizeof(from), 9);
	for (int i = 0; i < PIECES; i++) {
		out[i] = (struct iovec){from + i * 7, 7};
		in[i] = (struct iovec){to + i * 7, 7};
	}
	SAY_RESULT(writev(s, out, PIECES));
	say_far_peer_reads(1, sizeof(from), 9, 1);
	far_peer_writes(1, sizeof(to), 10, 1);
	wait_for_and_say_fionread_bytes(s, sizeof(to));
	SAY_RESULT(readv(s, in, PIECES));
	say("seed %d", seed_of_payload(to, sizeof(to)));
	SAY_RESULT(writev(s, out, PIECES + 1));
	SAY_RESULT(readv(s, in, PIECES + 1));
	close(s);
}

CASE(tcp_low_water, "SO_RCVLOWAT: fewer bytes do not make it readable, but for the end")
{
	int s = tcp_connected_to_far_peer();

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_RCVLOWAT, 10));
	far_peer_writes(1, 5, 1, 1);
	wait_and_print_poll_events("five", s, POLLIN, 100);
	far_peer_writes(1, 5, 2, 1);
	wait_and_print_poll_events("ten", s, POLLIN, 1000);
	recv_and_print_result(s, 4, 0);
	wait_and_print_poll_events("six", s, POLLIN, 50);
	recv_and_print_result(s, 5, MSG_DONTWAIT);
	far_peer_shuts_down(1, SHUT_WR);
	wait_and_print_poll_events("one, and the end", s, POLLIN, 1000);
	recv_and_print_result(s, 5, 0);
	recv_and_print_result(s, 5, 0);
	close(s);
}

CASE(tcp_zerocopy, "MSG_ZEROCOPY: the bytes arrive, and a notice says so for each call")
{
	int s = tcp_connected_to_far_peer();

	fill(bytes, 20000, 1);
	SAY_RESULT(send(s, bytes, 100, MSG_ZEROCOPY)); /* not asked for: no notice */
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_ZEROCOPY, 1));
	SAY_RESULT(send(s, bytes, 20000, MSG_ZEROCOPY));
	say_far_peer_reads(1, 20100, 0, 1);
	wait_and_print_poll_events("a notice", s, POLLERR, 1000);
	{
		char control[200];
		struct msghdr msg = {.msg_control = control, .msg_controllen = sizeof(control)};

		SAY_RESULT(recvmsg(s, &msg, MSG_ERRQUEUE));
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
			const struct sock_extended_err *e = (const void *)CMSG_DATA(c);

			say("level %d type %d: errno %u origin %u, %u to %u", c->cmsg_level, c->cmsg_type, e->ee_errno,
			    e->ee_origin, e->ee_info, e->ee_data);
		}
		SAY_RESULT(recvmsg(s, &msg, MSG_ERRQUEUE));
	}
	say_so_error(s);
	close(s);
}

static void *read_in_thread(void *arg)
{
	recv_and_print_result(*(int *)arg, 100, 0);
	return NULL;
}

CASE(tcp_close_while_reading,
     "close in another thread: the read that waits goes on and gets what comes; then it is over")
{
	int s = tcp_connected_to_far_peer(), copy = s;
	pthread_t thread;

	pthread_create(&thread, NULL, read_in_thread, &copy);
	pause_ms(100);
	SAY_RESULT(close_fd_in_use_without_tsan_report(s));
	pause_ms(50);
	far_peer_writes(1, 10, 3, 1);
	pthread_join(thread, NULL);
	say_far_peer_reads(1, 1, 0, 1);
}
