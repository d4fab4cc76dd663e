/* tcp_sysctl: settings of the host that a process reads when it makes its first TCP socket. */
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

static char bytes[65536];

static void write_sysctl(const char *name, const char *value)
{
	char path[96];
	const int len = (int)strlen(value);
	int fd;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/%s", name);
	fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, value, (size_t)len) != len)
		die_with_message("%s", path);
	close(fd);
}

static void read_sysctl_value(const char *name, char *value, size_t size)
{
	char path[96];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/%s", name);
	fd = open(path, O_RDONLY);
	got = read(fd, value, size - 1);
	if (got <= 0)
		die_with_message("%s", path);
	value[got] = '\0';
	close(fd);
}

/*
 * The rest of the case runs with this setting, in a child: however that ends, its parent puts back what was, before the
 * next case begins.
 */
static void run_rest_of_case_with_sysctl(const char *name, const char *value)
{
	char before[64];
	sigset_t ends, mask;
	int status = -1;
	pid_t child;

	read_sysctl_value(name, before, sizeof(before));
	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigprocmask(SIG_BLOCK, &ends, &mask);
	write_sysctl(name, value);
	child = fork();
	if (child == 0) {
		sigprocmask(SIG_SETMASK, &mask, NULL);
		return;
	}
	if (child > 0)
		waitpid(child, &status, 0);
	write_sysctl(name, before);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static struct tcp_info tcp_sysctl_get_tcp_info(int fd)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
		die_with_message("TCP_INFO");
	return info;
}

/* What the peer has seen of our SYN or SYN-ACK, and both ends of it; some bytes go each way. */
static void say_negotiated_tcp_options_and_transfer(const char *what, int fd)
{
	const struct tcp_info info = tcp_sysctl_get_tcp_info(fd);

	say("%s, the peer: %s", what, peer(far(), "agreed 1"));
	say("%s, here: SACK %d, scales %d, of the peer's %s", what, (info.tcpi_options & 2) != 0,
	    (info.tcpi_options & 4) != 0, info.tcpi_snd_wscale != 0 ? "some" : "none");
	for (int i = 0; i < 3; i++) {
		send_pattern_and_print_result(fd, 60000, i, 0);
		say_far_peer_reads(1, 60000, i, 1);
		far_peer_writes(1, 50000, i, 1);
		recv_and_print_result(fd, 50000, MSG_WAITALL);
	}
}

static void say_tcp_options_of_both_directions(void)
{
	int s = tcp_connected_to_far_peer();

	say_negotiated_tcp_options_and_transfer("out", s);
	close(s);
	peer(far(), "close 1");
	s = tcp_accepted_from_far_peer(NULL);
	say_negotiated_tcp_options_and_transfer("in", s);
	close(s);
}

CASE(tcp_sysctl_sack, "tcp_sack 0: neither offered nor agreed to, on either side of a connection")
{
	run_rest_of_case_with_sysctl("tcp_sack", "0");
	say_tcp_options_of_both_directions();
}

CASE(tcp_sysctl_window_scaling, "tcp_window_scaling 0: neither offered nor agreed to, and no window is above 64 KB")
{
	struct tcp_info info;
	int s;

	run_rest_of_case_with_sysctl("tcp_window_scaling", "0");
	say_tcp_options_of_both_directions();
	s = tcp_connected_to_far_peer();
	for (int i = 0; i < 10; i++) {
		send_pattern_and_print_result(s, 60000, i, 0);
		say_far_peer_reads(1, 60000, i, 1);
	}
	info = tcp_sysctl_get_tcp_info(s);
	say("the peer's window %s", info.tcpi_snd_wnd > 1000 && info.tcpi_snd_wnd <= 65535 ? "sane" : "odd");
	close(s);
}

/* What a connection may send at once after a pause of several timeouts, beside before. The kernel's BBR keeps it. */
static void say_window_after_pause(void)
{
	int s = tcp_connected_to_far_peer();
	unsigned before, after;

	SAY_RESULT(setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5));
	for (int i = 0; i < 40; i++) {
		fill(bytes, sizeof(bytes), i);
		if (send(s, bytes, sizeof(bytes), 0) != sizeof(bytes))
			die_with_message("send");
		peer(far(), "read 1 %d %d 1", (int)sizeof(bytes), i);
	}
	wait_until_sent_packets_arrived(100);
	before = tcp_sysctl_get_tcp_info(s).tcpi_snd_cwnd;
	say("before: %s", before >= 20 ? "a large window" : "a small window");
	pause_ms(1300);
	send_pattern_and_print_result(s, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
	after = tcp_sysctl_get_tcp_info(s).tcpi_snd_cwnd;
	if (after >= before)
		say("after a pause: as before");
	else
		say("after a pause: %s", after <= 12 ? "as at the start" : "in between");
	close(s);
}

CASE(tcp_sysctl_idle_restart, "tcp_slow_start_after_idle 1: after a pause the window is what it was at the start")
{
	run_rest_of_case_with_sysctl("tcp_slow_start_after_idle", "1");
	say_window_after_pause();
}

CASE(tcp_sysctl_no_idle_restart, "tcp_slow_start_after_idle 0: after a pause the window is what it was before")
{
	run_rest_of_case_with_sysctl("tcp_slow_start_after_idle", "0");
	say_window_after_pause();
}

CASE(tcp_sysctl_notsent_lowat, "tcp_notsent_lowat bounds what waits, unless the socket has a bound of its own")
{
	int s, unsent = 0;

	run_rest_of_case_with_sysctl("tcp_notsent_lowat", "20000");
	s = tcp_connected_to_far_peer();
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 200000));
	for (int own = 0; own <= 1; own++) {
		if (own)
			SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_NOTSENT_LOWAT, -1)); /* none */
		for (int quiet = 0; quiet < 10; quiet++) {
			while (send(s, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
				quiet = 0;
			pause_ms(10);
		}
		ioctl(s, SIOCOUTQNSD, &unsent);
		say("unsent: %s", unsent < 20000 ? "less" : unsent < 20000 + 65536 ? "up to the mark" : "more");
		wait_and_print_poll_events("then", s, POLLOUT, 100);
	}
	close(s);
}
