/*
 * parity - cases that make socket calls and print what they see; run on kernel sockets and under the preload, the two
 *          printouts must be equal. tests/e2e/parity.sh does that, with peers on kernel sockets in other processes.
 *
 *   CASE(peek_leaves_the_datagram, "MSG_PEEK leaves the datagram where it is")
 *   {
 *           int s = udp_socket_bound_to(here, 0), port = port_of(s);
 *
 *           expect_offloaded(s);
 *           peer_send(far(), far_socket(), here, port, 100, 1);
 *           take(s, 2000, MSG_PEEK);
 *           take(s, 2000, 0);
 *   }
 *
 * Each case is a process of its own. What differs from run to run is normalised: ports are printed by the name that
 * register_port_name gave them, times as classes. What a case declares of its sockets (offloaded or not, and whether
 * the kernel's counters stand still) is checked in the preloaded run only, prints nothing, and makes the process fail.
 */
#ifndef PARITY_H
#define PARITY_H

#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <vma/sock.h>

#include "payload.h"

/* This program has ThreadSanitizer in it, in both runs. */
#if defined(__SANITIZE_THREAD__)
#define PARITY_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PARITY_TSAN 1
#endif
#endif

/* ---- cases (parity.c) ---- */

struct parity_case {
	const char *name, *sentence;
	void (*run)(void);
	struct parity_case *next;
};
void parity_register_case(struct parity_case *entry);
#define CASE(id, text)                                                                                                 \
	static void run_##id(void);                                                                                    \
	static struct parity_case case_##id = {#id, text, run_##id, NULL};                                             \
	__attribute__((constructor)) static void add_##id(void)                                                        \
	{                                                                                                              \
		parity_register_case(&case_##id);                                                                      \
	}                                                                                                              \
	static void run_##id(void)

/* From the script: addresses of this namespace and the peer's on the first and the second link, interface names. */
extern const char *here, *there, *there_too, *here_second, *there_second, *if_first, *if_second;
extern const char *this_program;
bool is_preloaded(void);
bool ipv4_mapped_mode_is_on(void); /* the case runs on AF_INET6 sockets with mapped addresses (mapped.c) */
/* The case cannot go on; the process fails. */
void die_with_message(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* What was declared does not hold; the process goes on and fails at its end. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- the printout (say.c) ---- */

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "text = value", or "text = -1 ENAME"; value and errno stay as they are. */
long result(const char *text, long value);
#define SAY_RESULT(call) result(#call, (long)(call))
/* For descriptors and other numbers that do not matter: "text: ok", or the error. */
long say_ok_or_error(const char *text, long value);
#define SAY_OK_OR_ERROR(call) say_ok_or_error(#call, (long)(call))
const char *error_name(int error);
void register_port_name(int port, const char *name);
bool port_has_name(int port);
void register_port_name_of_fd(int fd, const char *name);
/* "10.9.0.2:name", "[::ffff:10.9.0.2]:name", one of a few buffers in turn. */
const char *address_text(const void *address, socklen_t len);
void say_local_address(const char *what, int fd); /* getsockname */
void say_peer_address(const char *what, int fd);  /* getpeername */

/* "text: after about N ms", or what it really took. */
uint64_t now_ms(void);
void say_took_about(const char *text, uint64_t since_ms, unsigned expected_ms);

/* ---- sockets (say.c) ---- */

struct sockaddr_in ipv4_sockaddr_of(const char *ip, int port);
int udp_socket(void);                                  /* gives up when there is none */
int udp_socket_bound_to(const char *ip, int port);     /* bound */
int udp_socket_connected_to(const char *ip, int port); /* connected */
int port_of(int fd);
int set_int(int fd, int level, int name, int value);
void *bad_pointer(void); /* a page that cannot be read or written */
/* Waits up to wait_ms for readability, then one recvmsg with a buffer of 65536 bytes and prints all that it gave but
 * control messages. The length, or -1. */
ssize_t take(int fd, int wait_ms, int flags);
/* The same with a buffer of `size` bytes. */
ssize_t receive_and_say_up_to(int fd, int wait_ms, int flags, size_t size);
/* Reads with `flags` and MSG_DONTWAIT until EAGAIN, printing each: after the last has surely arrived. */
void receive_all_until_empty(int fd);
void pause_ms(unsigned ms);
/* What was under way between here and the far peer has arrived, on both links, and so has what the kernel answers to
 * it, and `ms` have passed since: for a look that does not wait. A pause alone is for what does not come. */
void wait_until_sent_packets_arrived(unsigned ms);
int close_fd_in_use_without_tsan_report(int fd); /* close, while another thread waits in a call on it */
bool wait_until_readable(int fd, int wait_ms);

/* ---- what is declared (state.c) ---- */

void expect_offloaded(int fd);
void expect_kernel_socket_for_reason(int fd, enum vma_sock_reason reason);
void expect_os_any(int fd); /* whatever the reason */
/* Between the two the kernel of this namespace counts no datagram of ours under the preload, and at least so many
 * without it. */
void save_kernel_udp_counters(void);
/* The first datagrams to a destination may go by the kernel, while the way there is being looked up: sends one from a
 * connected socket to the far peer's slot 0, or to ip:port, until one has not (under the preload; a few at most). */
void warm_up_until_offloaded_send(int fd, const char *ip, int port);
void check_kernel_udp_was_bypassed(unsigned received, unsigned sent);

/* ---- streams (stream.c) ---- */

int tcp_socket(void);
int tcp_socket_bound_to(const char *ip, int port);       /* bound, SO_REUSEADDR */
int tcp_listener(const char *ip, int port, int backlog); /* port 0: any, named "listener" */
int tcp_socket_connected_to(const char *ip, int port);   /* connected; declared offloaded */
/* Connected to the far peer's slot 1, which its listener in slot 0 accepted. Ports are named "mine" and "its". */
int tcp_connected_to_far_peer(void);
/* The far peer's slot 1 is connected to us: *listener stays open unless it is NULL. */
int tcp_accepted_from_far_peer(int *listener);
void far_peer_writes(int slot, int len, int seed, int count);
void say_far_peer_reads(int slot, int len, int seed, int count); /* prints "the peer: ..." */
void far_peer_shuts_down(int slot, int how);
void say_far_peer_state(int slot);
/* Prints what one recv gives: bytes and seed, "the end", or the error. The length. */
ssize_t recv_and_print_result(int fd, size_t len, int flags);
/* Writes len bytes of fill(); prints what send gives. */
ssize_t send_pattern_and_print_result(int fd, size_t len, int seed, int flags);
/* Prints poll's events after up to wait_ms for any of `wanted`. */
void wait_and_print_poll_events(const char *what, int fd, short wanted, int wait_ms);
/* Prints SO_ERROR. */
void say_so_error(int fd);
/* As save_kernel_udp_counters and _end, of TCP segments received. */
void kernel_segments_wait_idle_and_start_count(void);
void check_kernel_segments_were_bypassed(void);

/* ---- peers: processes that do what they are told (peer.c, parity_peer.c) ---- */

struct peer;
struct peer *far(void);  /* in the other namespace, kernel sockets */
struct peer *near(void); /* in this namespace, kernel sockets */
struct peer *twin(void); /* in this namespace, preloaded when we are */
/* One command of parity_peer.c; its answer, valid until the next one. A leading "later MS " answers at once. */
const char *peer(struct peer *peer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Socket `slot` (0..255) at ip:port; its port. */
int peer_ask_to_open_socket(struct peer *p, int slot, const char *ip, int port);
void peer_send(struct peer *p, int slot, const char *ip, int port, int len, int seed);
void peer_ask_to_send_after_ms(struct peer *p, int ms, int slot, const char *ip, int port, int len, int seed);
/* Prints what the peer's socket receives within wait_ms. */
void say_peer_received(struct peer *p, int slot, int wait_ms);
void peer_run_shell_command(struct peer *p, const char *command); /* a shell command, which must succeed */
void run_shell_command_here(const char *command);                 /* the same in this namespace, not preloaded */

#endif
