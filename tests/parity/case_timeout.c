/* SO_RCVTIMEO, SO_SNDTIMEO, and what an idle process costs. */
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "parity.h"

CASE(timeout_of_recv, "SO_RCVTIMEO: recv gives up in time, and does not when something comes")
{
	int s = udp_socket_bound_to(here, 0);
	struct timeval tv = {.tv_usec = 60000}, got = {0};
	socklen_t len = sizeof(got);
	uint64_t start;
	char bytes[32];

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	say("%ld s, %ld usec", (long)got.tv_sec, (long)(got.tv_usec + 4000) / 10000 * 10000);
	start = now_ms();
	SAY_RESULT(recv(s, bytes, sizeof(bytes), 0));
	say_took_about("recv", start, 60);
	start = now_ms();
	SAY_RESULT(read(s, bytes, sizeof(bytes)));
	say_took_about("read", start, 60);
	start = now_ms();
	SAY_RESULT(recv(s, bytes, sizeof(bytes), MSG_DONTWAIT));
	say_took_about("MSG_DONTWAIT", start, 0);
	tv.tv_sec = 2;
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	start = now_ms();
	SAY_RESULT(recv(s, bytes, sizeof(bytes), 0));
	say_took_about("recv", start, 50);
	tv = (struct timeval){0};
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	peer_ask_to_send_after_ms(far(), 150, 0, here, port_of(s), 20, 1);
	start = now_ms();
	SAY_RESULT(recv(s, bytes, sizeof(bytes), 0));
	say_took_about("without a limit", start, 150);
}

CASE(timeout_values, "SO_RCVTIMEO and SO_SNDTIMEO: odd values")
{
	static const struct timeval odd[] = {{-1, 0}, {0, -1}, {0, 1000000}, {1, 999999}, {0, 1}, {1000000000, 0}};
	static const int names[] = {SO_RCVTIMEO, SO_SNDTIMEO};
	int s = udp_socket_bound_to(here, 0);
	struct timeval got;
	socklen_t len = sizeof(got);

	for (int n = 0; n < 2; n++)
		for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
			SAY_RESULT(setsockopt(s, SOL_SOCKET, names[n], &odd[i], sizeof(odd[0])));
			SAY_RESULT(getsockopt(s, SOL_SOCKET, names[n], &got, &len));
			say("%ld %ld", (long)got.tv_sec, (long)got.tv_usec);
		}
}

static unsigned cpu_ms(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (unsigned)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
	       (unsigned)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

CASE(idle_cpu, "a process that waits for a second uses next to no CPU: recv, poll and an internal thread at rest")
{
	int s = udp_socket_bound_to(here, 0);
	struct timeval tv = {.tv_sec = 1};
	struct pollfd p = {.fd = s, .events = POLLIN};
	unsigned before;
	char byte;

	expect_offloaded(s);
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	/* The first waits find out that spinning does not pay here. */
	for (int i = 0; i < 3; i++)
		poll(&p, 1, 20);
	before = cpu_ms();
	SAY_RESULT(recv(s, &byte, 1, 0));
	SAY_RESULT(poll(&p, 1, 1000));
	pause_ms(500);
	before = cpu_ms() - before;
	/* 2 % of 2.5 s are 50 ms; a first spin may be in it. */
	say("%s", before <= 150 ? "idle" : "busy");
	if (before > 150)
		complain("%u ms of CPU in 2.5 s", before);
}
