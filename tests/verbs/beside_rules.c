/*
 * beside_rules - what a socket notices of the rules that other sockets of its ring are given.
 *
 *   beside_rules echo ADDRESS            says again what comes, by UDP and TCP; on kernel sockets, at the other end
 *   beside_rules ask ADDRESS PEER        preloaded; obeys the lines of its standard input, until the end of it
 *
 * `ask` has a thread that sends eight bytes to the peer and waits until they are back: by UDP, then by TCP. That is a
 * round. A second thread makes sockets that need a rule of the card, and ends them.
 *
 *   make KIND, end KIND      the second thread does so, and says "made KIND" or "ended KIND"
 *   rounds N LABEL           says "LABEL: N rounds" when so many more rounds are over
 *   measure PHASES MS        every other phase the second thread makes and ends sockets all the time. Prints the times of
 *                            a round in each phase, and the medians of the phases
 *
 * In the end it prints "rounds N, lost N". A datagram that is not back after LOST_S is lost.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	PORT = 7400,      /* that the peer answers on */
	PORT_MADE = 7410, /* the first of those of the sockets that come and go */
	PORT_ACCEPTS = 7401,
	LOST_S = 10,
	PACE_NS = 4000000,   /* from one socket to the next */
	MAX_TIMES = 1 << 16, /* of a phase */
	MAX_PHASES = 64,
};

/* Until ALWAYS they come and go while times are measured. For "accepted" somebody has to connect to PORT_ACCEPTS. */
enum kind { UDP, CONNECTED, GROUP, LISTENER, CONNECTION, ALWAYS, ACCEPTED = ALWAYS, KINDS };
static const char *const kind_names[KINDS] = {"udp", "connected", "group", "listener", "connection", "accepted"};

static struct in_addr own, peer, group;

static void fail(const char *what)
{
	fprintf(stderr, "beside_rules: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void must(bool is_true, const char *what)
{
	if (!is_true)
		fail(what);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct sockaddr_in address_of(struct in_addr address, int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = address, .sin_port = htons((uint16_t)port)};
}

static void socket_bind(int fd, struct in_addr address, int port)
{
	const struct sockaddr_in at = address_of(address, port);
	const int on = 1;

	must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0, "SO_REUSEADDR");
	must(bind(fd, (const struct sockaddr *)&at, sizeof(at)) == 0, "bind");
}

static int socket_bound_to(int type, struct in_addr address, int port)
{
	const int fd = socket(AF_INET, type, 0);

	must(fd >= 0, "socket");
	socket_bind(fd, address, port);
	return fd;
}

static void socket_connect_to_peer(int fd)
{
	const struct sockaddr_in to = address_of(peer, PORT);

	must(connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0, "connect");
}

/* ---- the other end ---- */

static void echo_one(int epoll, int fd, int listener)
{
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	char bytes[2048];
	ssize_t n;

	if (fd == listener) {
		const int on = 1, accepted = accept(listener, NULL, NULL);
		struct epoll_event event = {.events = EPOLLIN, .data.fd = accepted};

		if (accepted >= 0 && (setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
		                      epoll_ctl(epoll, EPOLL_CTL_ADD, accepted, &event) != 0))
			close(accepted);
		return;
	}
	n = recvfrom(fd, bytes, sizeof(bytes), 0, (struct sockaddr *)&from, &len);
	if (n > 0)
		n = len != 0 ? sendto(fd, bytes, (size_t)n, 0, (struct sockaddr *)&from, len)
		             : send(fd, bytes, (size_t)n, MSG_NOSIGNAL);
	if (n <= 0 && len == 0)
		close(fd);
}

static void echo(void)
{
	const int udp = socket_bound_to(SOCK_DGRAM, own, PORT), listener = socket_bound_to(SOCK_STREAM, own, PORT);
	const int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = udp};

	must(listen(listener, 64) == 0, "listen");
	must(epoll_ctl(epoll, EPOLL_CTL_ADD, udp, &event) == 0, "epoll_ctl");
	event.data.fd = listener;
	must(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
	puts("echoes");
	fflush(stdout);
	while (epoll_wait(epoll, &event, 1, -1) == 1)
		echo_one(epoll, event.data.fd, listener);
}

/* ---- rounds ---- */

static _Atomic uint64_t rounds, lost;
static _Atomic bool over;

/* The thread that asks writes; while `phase` is -1 it writes to none of them. */
static struct {
	uint32_t times[2][MAX_TIMES]; /* ns; of UDP, of TCP */
	uint32_t n;
} phases[MAX_PHASES];
static _Atomic int phase = -1;

/* "LABEL: N rounds" is said when `rounds` is `at`. */
static struct {
	pthread_mutex_t lock;
	uint64_t at;
	unsigned n;
	char label[64];
} wanted = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool answer_is_back(int fd, uint64_t number)
{
	uint64_t got = 0;

	while (recv(fd, &got, sizeof(got), 0) == sizeof(got))
		if (got == number)
			return true;
	return false;
}

/* ns; 0: lost. */
static uint32_t ask_once(int fd, uint64_t number)
{
	const uint64_t begun = now_ns();

	must(send(fd, &number, sizeof(number), 0) == sizeof(number), "send");
	if (!answer_is_back(fd, number)) {
		atomic_fetch_add(&lost, 1);
		return 0;
	}
	return (uint32_t)(now_ns() - begun);
}

static void round_note_times(uint32_t udp_ns, uint32_t tcp_ns)
{
	const int at = atomic_load(&phase);

	if (at < 0 || phases[at].n == MAX_TIMES)
		return;
	phases[at].times[0][phases[at].n] = udp_ns;
	phases[at].times[1][phases[at].n] = tcp_ns;
	phases[at].n++;
}

static void round_tell_if_wanted(uint64_t number)
{
	pthread_mutex_lock(&wanted.lock);
	if (wanted.at != 0 && number >= wanted.at) {
		printf("%s: %u rounds\n", wanted.label, wanted.n);
		fflush(stdout);
		wanted.at = 0;
	}
	pthread_mutex_unlock(&wanted.lock);
}

static int asking_socket(int type)
{
	const struct timeval patience = {.tv_sec = LOST_S};
	const int fd = socket(AF_INET, type, 0), on = 1;

	must(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0, "SO_RCVTIMEO");
	if (type == SOCK_STREAM)
		must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0, "TCP_NODELAY");
	socket_connect_to_peer(fd);
	return fd;
}

static void *ask_all_the_time(void *arg)
{
	const int udp = asking_socket(SOCK_DGRAM), tcp = asking_socket(SOCK_STREAM);

	for (uint64_t number = 1; !atomic_load(&over); number++) {
		const uint32_t udp_ns = ask_once(udp, number), tcp_ns = ask_once(tcp, number);

		round_note_times(udp_ns, tcp_ns);
		round_tell_if_wanted(atomic_fetch_add(&rounds, 1) + 1);
	}
	close(udp);
	close(tcp);
	return arg;
}

/* ---- sockets that come and go ---- */

static int made[KINDS], accepting;

/* A socket that is bound to a group first is the kernel's. */
static int group_socket(void)
{
	const struct ip_mreq membership = {.imr_multiaddr = group, .imr_interface = own};
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);

	must(fd >= 0 && setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof(membership)) == 0,
	     "IP_ADD_MEMBERSHIP");
	socket_bind(fd, group, PORT_MADE + GROUP);
	return fd;
}

/* One that ends by a reset leaves no TIME_WAIT, which would keep its rule for a second. */
static int connection_socket(void)
{
	const struct linger reset = {.l_onoff = 1};
	const int fd = socket(AF_INET, SOCK_STREAM, 0);

	must(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0, "SO_LINGER");
	return fd;
}

static void kind_make(enum kind kind)
{
	int fd;

	if (kind == ACCEPTED)
		must((fd = accept(accepting, NULL, NULL)) >= 0, "accept");
	else if (kind == GROUP)
		fd = group_socket();
	else if (kind == CONNECTION)
		fd = connection_socket();
	else
		fd = socket_bound_to(kind == LISTENER ? SOCK_STREAM : SOCK_DGRAM, own, PORT_MADE + (int)kind);
	if (kind == LISTENER)
		must(listen(fd, 8) == 0, "listen");
	if (kind == CONNECTED || kind == CONNECTION)
		socket_connect_to_peer(fd);
	made[kind] = fd;
}

static void kind_end(enum kind kind)
{
	close(made[kind]);
}

/* What the second thread is to do: one thing at a time, or all of them all the time. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_asked, ends, always;
	enum kind kind;
	_Atomic uint64_t sockets; /* so many were made */
} work = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void work_do_what_is_asked(void)
{
	if (work.ends)
		kind_end(work.kind);
	else
		kind_make(work.kind);
	printf("%s %s\n", work.ends ? "ended" : "made", kind_names[work.kind]);
	fflush(stdout);
}

/* At a steady pace, so that it takes as much of the processor however long the rules take. */
static void work_make_and_end_all_kinds(void)
{
	for (enum kind kind = 0; kind < ALWAYS; kind++) {
		const uint64_t until = now_ns() + PACE_NS;
		uint64_t now;

		kind_make(kind);
		kind_end(kind);
		atomic_fetch_add(&work.sockets, 1);
		now = now_ns();
		if (now < until)
			usleep((unsigned)((until - now) / 1000));
	}
}

static void *make_and_end(void *arg)
{
	pthread_mutex_lock(&work.lock);
	while (!atomic_load(&over)) {
		const bool is_asked = work.is_asked, always = work.always;

		if (!is_asked && !always) {
			pthread_cond_wait(&work.changed, &work.lock);
			continue;
		}
		work.is_asked = false;
		pthread_mutex_unlock(&work.lock);
		if (is_asked)
			work_do_what_is_asked();
		else
			work_make_and_end_all_kinds();
		pthread_mutex_lock(&work.lock);
	}
	pthread_mutex_unlock(&work.lock);
	return arg;
}

static void work_set(bool is_asked, bool ends, enum kind kind, bool always)
{
	pthread_mutex_lock(&work.lock);
	work.is_asked = is_asked;
	work.ends = ends;
	work.kind = kind;
	work.always = always;
	pthread_cond_signal(&work.changed);
	pthread_mutex_unlock(&work.lock);
}

/* ---- times ---- */

static int compare_times(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static double us_at(const uint32_t *sorted, uint32_t n, double share)
{
	return n != 0 ? sorted[(uint32_t)((n - 1) * share)] / 1000.0 : 0;
}

enum { MEDIAN, P99, FIGURES };
static double figures[2][2][FIGURES][MAX_PHASES]; /* without and with rules; UDP and TCP */

static void phase_print(int at)
{
	const bool has_rules = at % 2 == 1;

	printf("phase %d, %s rules: %u rounds", at, has_rules ? "with" : "without", phases[at].n);
	for (int proto = 0; proto < 2; proto++) {
		uint32_t *times = phases[at].times[proto];

		qsort(times, phases[at].n, sizeof(times[0]), compare_times);
		figures[has_rules][proto][MEDIAN][at / 2] = us_at(times, phases[at].n, 0.5);
		figures[has_rules][proto][P99][at / 2] = us_at(times, phases[at].n, 0.99);
		printf(", %s p50 %.0f p99 %.0f max %.0f us", proto ? "TCP" : "UDP", us_at(times, phases[at].n, 0.5),
		       us_at(times, phases[at].n, 0.99), us_at(times, phases[at].n, 1));
	}
	printf("\n");
}

static int compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *values, int n)
{
	qsort(values, (size_t)n, sizeof(values[0]), compare_doubles);
	return values[n / 2];
}

static void print_medians_of_phases(int n)
{
	for (int proto = 0; proto < 2; proto++) {
		const char *name = proto ? "TCP" : "UDP";

		for (int figure = 0; figure < FIGURES; figure++) {
			const double without = median(figures[0][proto][figure], n / 2),
			             with = median(figures[1][proto][figure], n / 2);

			printf("%s %s: %.0f us without rules, %.0f with, %+.0f\n", name, figure == P99 ? "p99" : "p50",
			       without, with, with - without);
		}
	}
	printf("measured beside %llu sockets\n", (unsigned long long)atomic_exchange(&work.sockets, 0));
	fflush(stdout);
}

static void measure(int n, unsigned ms)
{
	n = n < MAX_PHASES ? n / 2 * 2 : MAX_PHASES;
	for (int i = 0; i < n; i++) {
		phases[i].n = 0;
		work_set(false, false, 0, i % 2 == 1);
		usleep(50000); /* what was begun before is over */
		atomic_store(&phase, i);
		usleep(ms * 1000);
		atomic_store(&phase, -1);
	}
	work_set(false, false, 0, false);
	usleep(50000);
	for (int i = 0; i < n; i++)
		phase_print(i);
	print_medians_of_phases(n);
}

/* ---- lines ---- */

static bool kind_by_name(const char *name, enum kind *kind)
{
	for (*kind = 0; *kind < KINDS; (*kind)++)
		if (strcmp(name, kind_names[*kind]) == 0)
			return true;
	return false;
}

static void obey(const char *line)
{
	char word[32] = "", name[64] = "";
	unsigned n = 0, ms = 0;
	enum kind kind;

	if (sscanf(line, "rounds %u %63s", &n, name) == 2) {
		pthread_mutex_lock(&wanted.lock);
		wanted.at = atomic_load(&rounds) + n;
		wanted.n = n;
		snprintf(wanted.label, sizeof(wanted.label), "%s", name);
		pthread_mutex_unlock(&wanted.lock);
	} else if (sscanf(line, "measure %u %u", &n, &ms) == 2) {
		measure((int)n, ms);
	} else if (sscanf(line, "%31s %63s", word, name) == 2 && kind_by_name(name, &kind)) {
		work_set(true, strcmp(word, "end") == 0, kind, false);
	} else {
		fprintf(stderr, "beside_rules: unknown: %s", line);
		exit(2);
	}
}

static void ask(void)
{
	pthread_t asking, making;
	char line[128];

	inet_pton(AF_INET, "239.1.2.3", &group);
	accepting = socket_bound_to(SOCK_STREAM, own, PORT_ACCEPTS);
	must(listen(accepting, 8) == 0, "listen");
	must(pthread_create(&asking, NULL, ask_all_the_time, NULL) == 0, "pthread_create");
	must(pthread_create(&making, NULL, make_and_end, NULL) == 0, "pthread_create");
	while (fgets(line, sizeof(line), stdin) != NULL)
		obey(line);
	atomic_store(&over, true);
	work_set(false, false, 0, false);
	pthread_join(making, NULL);
	pthread_join(asking, NULL);
	printf("rounds %llu, lost %llu\n", (unsigned long long)atomic_load(&rounds),
	       (unsigned long long)atomic_load(&lost));
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "echo") == 0 && inet_pton(AF_INET, argv[2], &own) == 1)
		echo();
	else if (argc == 4 && strcmp(argv[1], "ask") == 0 && inet_pton(AF_INET, argv[2], &own) == 1 &&
	         inet_pton(AF_INET, argv[3], &peer) == 1)
		ask();
	else
		return fprintf(stderr, "usage: beside_rules echo ADDRESS | ask ADDRESS PEER\n"), 2;
	return 0;
}
