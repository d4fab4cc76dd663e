/* say - the printout, in a form that does not differ from run to run; and short forms of everyday socket calls. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "parity.h"

#define NAMES 64

static struct {
	int port;
	char name[24];
} names[NAMES];
static int port_names_n;

/* One write per line and no stdio: cases fork, jump out of handlers and close what stdio may use. */
void say(const char *format, ...)
{
	char line[1024];
	int saved = errno, len;
	va_list args;

	va_start(args, format);
	len = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (len > (int)sizeof(line) - 2)
		len = sizeof(line) - 2;
	line[len++] = '\n';
	if (write(STDOUT_FILENO, line, (size_t)len) != len)
		_exit(3);
	errno = saved;
}

const char *error_name(int error)
{
	const char *name = error == 0 ? "0" : strerrorname_np(error);

	return name != NULL ? name : "unknown error";
}

long result(const char *text, long value)
{
	if (value == -1)
		say("%s = -1 %s", text, error_name(errno));
	else
		say("%s = %ld", text, value);
	return value;
}

long say_ok_or_error(const char *text, long value)
{
	if (value < 0)
		say("%s: %s", text, error_name(errno));
	else
		say("%s: ok", text);
	return value;
}

void register_port_name(int port, const char *name)
{
	if (port_names_n == NAMES)
		die_with_message("too many names of ports");
	names[port_names_n].port = port;
	snprintf(names[port_names_n].name, sizeof(names[0].name), "%s", name);
	port_names_n++;
}

void register_port_name_of_fd(int fd, const char *name)
{
	register_port_name(port_of(fd), name);
}

bool port_has_name(int port)
{
	for (int i = 0; i < port_names_n; i++)
		if (names[i].port == port)
			return true;
	return false;
}

static const char *port_name_or_number_text(int port)
{
	static char number[8][12];
	static unsigned turn;
	char *text = number[turn++ % 8];

	for (int i = port_names_n - 1; i >= 0; i--)
		if (names[i].port == port)
			return names[i].name;
	/* Below the range that the kernel hands out, a port was chosen by the case. */
	if (port >= 32768)
		return "(some port)";
	snprintf(text, sizeof(number[0]), "%d", port);
	return text;
}

const char *address_text(const void *address, socklen_t len)
{
	static char texts[8][96];
	static unsigned turn;
	char *text = texts[turn++ % 8], ip[INET6_ADDRSTRLEN];
	const struct sockaddr_in *in = address;
	const struct sockaddr_in6 *in6 = address;

	if (len == 0)
		snprintf(text, sizeof(texts[0]), "nobody");
	else if (len >= sizeof(*in6) && in6->sin6_family == AF_INET6)
		snprintf(text, sizeof(texts[0]), "[%s]:%s%s%s", inet_ntop(AF_INET6, &in6->sin6_addr, ip, sizeof(ip)),
		         port_name_or_number_text(ntohs(in6->sin6_port)),
		         in6->sin6_scope_id != 0 ? " with a scope" : "", in6->sin6_flowinfo != 0 ? " with a flow" : "");
	else if (len < sizeof(*in) || in->sin_family != AF_INET)
		snprintf(text, sizeof(texts[0]), "(%u bytes, family %d)", (unsigned)len,
		         len >= sizeof(sa_family_t) ? in->sin_family : -1);
	else
		snprintf(text, sizeof(texts[0]), "%s:%s", inet_ntop(AF_INET, &in->sin_addr, ip, sizeof(ip)),
		         port_name_or_number_text(ntohs(in->sin_port)));
	return text;
}

static void say_address_or_error(const char *what, int rc, const struct sockaddr_storage *address, socklen_t len)
{
	if (rc != 0)
		say("%s: %s", what, error_name(errno));
	else
		say("%s: %s (%u)", what, address_text(address, len), (unsigned)len);
}

void say_local_address(const char *what, int fd)
{
	struct sockaddr_storage address = {0};
	socklen_t len = sizeof(address);
	int rc = getsockname(fd, (struct sockaddr *)&address, &len);

	say_address_or_error(what, rc, &address, len);
}

void say_peer_address(const char *what, int fd)
{
	struct sockaddr_storage address = {0};
	socklen_t len = sizeof(address);
	int rc = getpeername(fd, (struct sockaddr *)&address, &len);

	say_address_or_error(what, rc, &address, len);
}

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void say_took_about(const char *text, uint64_t since_ms, unsigned expected_ms)
{
	uint64_t took = now_ms() - since_ms;
	unsigned slack = 90;

	if (getenv("PARITY_SLOW") != NULL)
		slack = 1000;
	/* The kernel rounds to its ticks, so a wait may be some milliseconds short of what the clock says. */
	if (took + 5 >= expected_ms && took <= expected_ms + slack)
		say("%s: after about %u ms", text, expected_ms);
	else
		say("%s: after %lu ms, which is not about %u", text, (unsigned long)took, expected_ms);
}

struct sockaddr_in ipv4_sockaddr_of(const char *ip, int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	if (inet_pton(AF_INET, ip, &address.sin_addr) != 1)
		die_with_message("%s is no address", ip);
	return address;
}

int udp_socket(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0)
		die_with_message("socket");
	return fd;
}

int udp_socket_bound_to(const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);
	int fd = udp_socket();

	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		die_with_message("bind to %s:%d", ip, port);
	return fd;
}

int udp_socket_connected_to(const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);
	int fd = udp_socket();

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		die_with_message("connect to %s:%d", ip, port);
	return fd;
}

int port_of(int fd)
{
	struct sockaddr_in address;
	socklen_t len = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &len) != 0)
		die_with_message("getsockname");
	return ntohs(address.sin_port);
}

int set_int(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value));
}

void *bad_pointer(void)
{
	static void *page;

	if (page == NULL) {
		page = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED)
			die_with_message("mmap");
	}
	return page;
}

bool wait_until_readable(int fd, int wait_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, wait_ms) > 0;
}

static const char *msg_flags_text(int flags)
{
	static char text[96];

	snprintf(text, sizeof(text), "%s%s%s%s", flags & MSG_TRUNC ? " TRUNC" : "", flags & MSG_CTRUNC ? " CTRUNC" : "",
	         flags & MSG_ERRQUEUE ? " ERRQUEUE" : "",
	         flags & ~(MSG_TRUNC | MSG_CTRUNC | MSG_ERRQUEUE) ? " and others" : "");
	return text;
}

ssize_t receive_and_say_up_to(int fd, int wait_ms, int flags, size_t size)
{
	static char buf[65536];
	struct sockaddr_storage from = {0};
	struct iovec iov = {.iov_base = buf, .iov_len = size};
	struct msghdr msg = {.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &iov, .msg_iovlen = 1};
	ssize_t len;

	if (wait_ms > 0 && !wait_until_readable(fd, wait_ms)) {
		say("nothing came");
		errno = EAGAIN;
		return -1;
	}
	len = recvmsg(fd, &msg, flags | MSG_DONTWAIT);
	if (len < 0)
		say("took nothing: %s", error_name(errno));
	else
		say("took %zd bytes, seed %d, from %s, flags%s", len,
		    seed_of_payload(buf, (size_t)len < size ? (size_t)len : size), address_text(&from, msg.msg_namelen),
		    msg_flags_text(msg.msg_flags));
	return len;
}

ssize_t take(int fd, int wait_ms, int flags)
{
	return receive_and_say_up_to(fd, wait_ms, flags, 65536);
}

void receive_all_until_empty(int fd)
{
	while (take(fd, 0, 0) >= 0)
		;
}

void pause_ms(unsigned ms)
{
	struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
}

#ifdef PARITY_TSAN
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#else
#define AnnotateIgnoreWritesBegin(file, line) ((void)0)
#define AnnotateIgnoreWritesEnd(file, line) ((void)0)
#endif

/*
 * ThreadSanitizer calls it a race to close a kernel socket in use. It is one, and what this is about. What the library
 * does when one of its own is closed is looked at as always.
 */
int close_fd_in_use_without_tsan_report(int fd)
{
	int rc;

	if (!is_preloaded())
		AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
	rc = close(fd);
	if (!is_preloaded())
		AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
	return rc;
}
