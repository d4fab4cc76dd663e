/*
 * probe - static tracepoints (USDT, provider "vma") for bpftrace, perf and others that read .note.stapsdt.
 *
 * A probe is one nop, and a note in the object that says where its arguments are at that place. A tracer that attaches
 * puts a breakpoint in place of the nop. So an argument has to be at hand: a register, a constant, or a field. Ports
 * are in network byte order, as packets have them.
 *
 * Threads: any. Progress: nothing waits, unless a tracer has attached; then the kernel serves it at each hit.
 * Memory: none.
 * Example: VMA_PROBE2(packet_in, frame, len); tests/e2e/probes.sh.
 */
#ifndef VMA_PROBE_H
#define VMA_PROBE_H

#if defined(__has_include)
#if !__has_include(<sys/sdt.h>)
#error "sys/sdt.h is missing: install systemtap-sdt-dev (Debian) or systemtap-sdt-devel (Fedora)"
#endif
#endif
#include <sys/sdt.h>

/* X(name, arguments, "text"); tests/e2e/probes.sh compares it with libvma.so. */
#define VMA_PROBES(X)                                                                                                  \
	X(packet_in, 2, "a packet has come: frame, length")                                                            \
	X(delivered, 4, "a socket has got it: descriptor (-1: TCP), length, local port, peer's port")                  \
	X(dropped, 3, "packets are dropped: name of the counter, how many, length (0: several)")                       \
	X(sent, 2, "the NIC is kicked for packets: how many, 0 or -errno")                                             \
	X(retransmitted, 4, "a TCP segment is sent again: sequence number, length, local port, peer's port")           \
	X(tcp_state, 4, "a TCP connection changes state: from, to (netinet/tcp.h), local port, peer's port")           \
	X(wakeup, 1, "a sleeping thread is woken by another: thread id of the sleeper")                                \
	X(fallback, 3, "a socket is left to the kernel: enum vma_sock_reason, its text, what it concerns")

enum vma_probe_arguments {
#define X(name, arguments, text) VMA_PROBE_ARGUMENTS_##name = arguments,
	VMA_PROBES(X)
#undef X
};

#define VMA_PROBE_CHECK(name, n) _Static_assert(VMA_PROBE_ARGUMENTS_##name == (n), "arguments as in VMA_PROBES")
#define VMA_PROBE1(name, a)                                                                                            \
	do {                                                                                                           \
		VMA_PROBE_CHECK(name, 1);                                                                              \
		DTRACE_PROBE1(vma, name, a);                                                                           \
	} while (0)
#define VMA_PROBE2(name, a, b)                                                                                         \
	do {                                                                                                           \
		VMA_PROBE_CHECK(name, 2);                                                                              \
		DTRACE_PROBE2(vma, name, a, b);                                                                        \
	} while (0)
#define VMA_PROBE3(name, a, b, c)                                                                                      \
	do {                                                                                                           \
		VMA_PROBE_CHECK(name, 3);                                                                              \
		DTRACE_PROBE3(vma, name, a, b, c);                                                                     \
	} while (0)
#define VMA_PROBE4(name, a, b, c, d)                                                                                   \
	do {                                                                                                           \
		VMA_PROBE_CHECK(name, 4);                                                                              \
		DTRACE_PROBE4(vma, name, a, b, c, d);                                                                  \
	} while (0)

#endif
