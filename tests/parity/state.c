/* state - what a case declares of its sockets, and who tells: the library by a query, the kernel by its counters. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity.h"

/* A service may have to be started before the first socket is offloaded, and to look some times at others'. */
static unsigned parity_timeout_ms_from_env(void)
{
	const char *text = getenv("PARITY_TIMEOUT_MS");

	return text != NULL ? (unsigned)atoi(text) : 5000;
}

typedef int socket_state_query_fn(int fd, const char **text);

static const char *const sock_reason_texts[] = {
#define X(name, text) text,
        VMA_SOCK_REASONS(X)
#undef X
};

static socket_state_query_fn *find_socket_state_query_function(void)
{
	static socket_state_query_fn *fn;

	if (fn == NULL) {
		*(void **)&fn = dlsym(RTLD_DEFAULT, "vma_get_socket_state");
		if (fn == NULL && is_preloaded())
			die_with_message("the library is not loaded, or cannot be asked");
	}
	return fn;
}

/* Waits for the wanted answer; a reason of NULL: any. */
static void wait_for_offload_state(int fd, int wanted, const char *reason)
{
	uint64_t end = now_ms() + parity_timeout_ms_from_env();
	const char *text = "";
	socket_state_query_fn *ask = find_socket_state_query_function();
	int saved = errno, state;

	if (ask == NULL)
		return;
	for (;;) {
		state = ask(fd, &text);
		if (state == wanted && (reason == NULL || strstr(text, reason) != NULL))
			break;
		if (state < 0 || now_ms() > end) {
			complain("descriptor %d should be %s%s%s, but is %s (%s)", fd,
			         wanted ? "offloaded" : "the OS's", reason != NULL ? ": " : "",
			         reason != NULL ? reason : "",
			         state < 0    ? "unknown"
			         : state == 1 ? "offloaded"
			                      : "the OS's",
			         state < 0 ? error_name(-state) : text);
			break;
		}
		pause_ms(2);
	}
	errno = saved;
}

void expect_offloaded(int fd)
{
	wait_for_offload_state(fd, 1, NULL);
}

void expect_kernel_socket_for_reason(int fd, enum vma_sock_reason reason)
{
	wait_for_offload_state(fd, 0, sock_reason_texts[reason]);
}

void expect_os_any(int fd)
{
	wait_for_offload_state(fd, 0, NULL);
}

/* /proc/net/snmp: a line of names and a line of numbers per protocol. */
static void read_kernel_udp_counters(long *received, long *sent)
{
	char line[1024];
	bool named = false;
	FILE *file = fopen("/proc/self/net/snmp", "re");

	if (file == NULL)
		die_with_message("/proc/self/net/snmp");
	*received = *sent = -1;
	while (fgets(line, sizeof(line), file) != NULL) {
		if (strncmp(line, "Udp: ", 5) != 0)
			continue;
		if (!named) {
			/* The order of these columns has never changed; were it to, this says so. */
			if (strncmp(line, "Udp: InDatagrams NoPorts InErrors OutDatagrams", 46) != 0)
				die_with_message("unknown columns of /proc/net/snmp");
			named = true;
		} else if (sscanf(line, "Udp: %ld %*d %*d %ld", received, sent) != 2) {
			die_with_message("unknown numbers of /proc/net/snmp");
		}
	}
	fclose(file);
}

static long kernel_received_before, kernel_sent_before;

void save_kernel_udp_counters(void)
{
	read_kernel_udp_counters(&kernel_received_before, &kernel_sent_before);
}

void check_kernel_udp_was_bypassed(unsigned received, unsigned sent)
{
	long received_now, sent_now;

	read_kernel_udp_counters(&received_now, &sent_now);
	received_now -= kernel_received_before;
	sent_now -= kernel_sent_before;
	if (!is_preloaded() && (received_now < (long)received || sent_now < (long)sent))
		complain("the kernel counted %ld in, %ld out: fewer than %u and %u", received_now, sent_now, received,
		         sent);
	if (is_preloaded() && ((received > 0 && received_now != 0) || (sent > 0 && sent_now != 0)))
		complain("the kernel counted %ld in, %ld out, which should have bypassed it", received_now, sent_now);
}

static long read_kernel_tcp_segments_received(void)
{
	char line[1024];
	bool named = false;
	long received = -1;
	FILE *file = fopen("/proc/self/net/snmp", "re");

	if (file == NULL)
		die_with_message("/proc/self/net/snmp");
	while (received < 0 && fgets(line, sizeof(line), file) != NULL) {
		if (strncmp(line, "Tcp: ", 5) != 0)
			continue;
		if (named)
			sscanf(line, "Tcp: %*d %*d %*d %*d %*d %*d %*d %*d %*d %ld", &received);
		named = true;
	}
	fclose(file);
	return received;
}

static long kernel_segments_before;

/*
 * What the case before has left comes late, and is the kernel's to answer: a peer sends its end again after 200 ms. So
 * the count begins when nothing has come for longer than that.
 */
void kernel_segments_wait_idle_and_start_count(void)
{
	long before;
	int tries = 0;

	kernel_segments_before = read_kernel_tcp_segments_received();
	do {
		before = kernel_segments_before;
		if (is_preloaded())
			pause_ms(230);
		kernel_segments_before = read_kernel_tcp_segments_received();
	} while (kernel_segments_before != before && ++tries < 20);
}

void check_kernel_segments_were_bypassed(void)
{
	long received = read_kernel_tcp_segments_received() - kernel_segments_before;

	if (is_preloaded() && received != 0)
		complain("the kernel received %ld segments, which should have bypassed it", received);
	if (!is_preloaded() && received == 0)
		complain("the kernel received no segment: nothing was tested");
}

#define WARM_UPS 10 /* on a busy machine events of a neighbour take their time */

void warm_up_until_offloaded_send(int fd, const char *ip, int port)
{
	struct sockaddr_in to = ip != NULL ? ipv4_sockaddr_of(ip, port) : (struct sockaddr_in){0};
	long received, before, after;
	int tries = 0;

	do {
		read_kernel_udp_counters(&received, &before);
		if (sendto(fd, "w", 1, 0, ip != NULL ? (struct sockaddr *)&to : NULL, ip != NULL ? sizeof(to) : 0) != 1)
			die_with_message("the first datagram");
		peer(far(), "recv 0 2000");
		pause_ms(30);
		read_kernel_udp_counters(&received, &after);
	} while (is_preloaded() && after != before && ++tries < WARM_UPS);
}
