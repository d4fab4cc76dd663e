/*
 * fixture - what the cases of preload_probe have in common: a peer that echoes datagrams, the library's word on a
 * socket,
 *       and a way to fail.
 *
 *   preload_probe CASE PEER PORT     runs one case; exit 0: as it should be, 1: not, and stderr says what
 *   preload_probe echo ADDRESS PORT  is the peer: sends back what it gets
 */
#ifndef VMA_TEST_PRELOAD_FIXTURE_H
#define VMA_TEST_PRELOAD_FIXTURE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

struct fixture {
	struct sockaddr_in peer;
};

/* Ends the process with 1 unless what it says is so. */
void expect(bool so, const char *sentence);
#define EXPECT(what) expect((what), #what)

struct sockaddr_in fixture_address(const char *text, const char *port);
/* 1 offloaded, 0 the OS's, -1 no descriptor; -2 without the library. */
int fixture_get_socket_offload_state(int fd);
/* A UDP socket connected to the peer; offloaded, or the case fails. */
int fixture_socket(const struct fixture *fixture);
/* One datagram there and back, by send and recv; false: it did not come within half a second. */
bool fixture_echo(int fd);

struct fixture_case {
	const char *name;
	void (*run)(const struct fixture *fixture);
};
extern const struct fixture_case cases_children[], cases_descriptors[], cases_handlers[], cases_start[], cases_stdio[];

#endif
