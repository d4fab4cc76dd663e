/* tcp_rare: answers in states that few programs come to: cut off, shut on both sides, with nothing to send. */
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "parity.h"

CASE(tcp_rare_row, "recvmmsg tells an error before anything that has come")
{
	char bytes[3][10] = {{0}};
	struct iovec piece[3];
	struct mmsghdr row[3];
	int s = tcp_out();

	memset(row, 0, sizeof(row));
	for (int i = 0; i < 3; i++) {
		piece[i] = (struct iovec){bytes[i], sizeof(bytes[i])};
		row[i].msg_hdr = (struct msghdr){.msg_iov = &piece[i], .msg_iovlen = 1};
	}
	far_writes(1, 30, 1, 1);
	pause_ms(30);
	RES(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	RES(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	far_writes(1, 15, 2, 1);
	peer(far(), "reset 1");
	pause_ms(50);
	RES(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	RES(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	RES(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	say_so_error(s);
	close(s);
}

CASE(tcp_rare_row_fault, "recvmmsg: an error after the first is left to the next call")
{
	char bytes[10] = {0};
	struct iovec piece[2] = {{bytes, sizeof(bytes)}, {bad_pointer(), 10}};
	struct mmsghdr row[2];
	int s = tcp_out();

	memset(row, 0, sizeof(row));
	for (int i = 0; i < 2; i++)
		row[i].msg_hdr = (struct msghdr){.msg_iov = &piece[i], .msg_iovlen = 1};
	far_writes(1, 30, 1, 1);
	pause_ms(30);
	RES(recvmmsg(s, row, 2, MSG_DONTWAIT, NULL));
	say_state("left", s, POLLERR, 20);
	say_read(s, 10, MSG_DONTWAIT);
	say_so_error(s);
	far_writes(1, 30, 1, 1);
	pause_ms(30);
	RES(recvmmsg(s, row, 2, MSG_DONTWAIT, NULL));
	RES(recvmmsg(s, row, 2, MSG_DONTWAIT, NULL));
	say_read(s, 10, MSG_DONTWAIT);
	close(s);
}
