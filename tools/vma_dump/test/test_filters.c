/* Filters: in libpcap's language, and of one socket; and how much of a frame they look at. */
#include <stdio.h>
#include <unistd.h>

#include <vma/capture.h>
#include <vma/test.h>

#include "../packet_filter.h"
#include "../socket_filter.h"
#include "frames.h"

#define HERE 0x0a090002u
#define PEER 0x0a090001u
#define OTHER 0x0a090003u

static char dir[64];
static struct vma_stats *stats;
static struct vma_stats_socket *blocks[3];

static int setup_temp_stats_directory(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/vma_dump_test.XXXXXX");
	return mkdtemp(dir) != NULL ? vma_stats_create(dir, &stats) : -1;
}

static int teardown_temp_stats(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++)
		vma_stats_block_free(stats, blocks[i]);
	memset(blocks, 0, sizeof(blocks));
	vma_stats_destroy(stats);
	return rmdir(dir);
}

static void add_socket_stats_block(unsigned i, int fd, uint8_t protocol, uint32_t local, uint16_t port, uint32_t peer,
                                   uint16_t peer_port)
{
	blocks[i] = vma_stats_block_alloc(stats, VMA_STATS_TYPE_SOCKET, "socket");
	vma_stats_set(&blocks[i]->fd, (uint64_t)fd);
	vma_stats_set(&blocks[i]->protocol, protocol);
	vma_stats_set(&blocks[i]->local_addr, local);
	vma_stats_set(&blocks[i]->local_port, port);
	vma_stats_set(&blocks[i]->peer_addr, peer);
	vma_stats_set(&blocks[i]->peer_port, peer_port);
}

static bool make_socket_filter_text(int fd, char text[512])
{
	struct vma_stats_view *view;
	char path[128];
	bool found;

	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, getpid());
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	found = socket_filter(view, fd, text, 512);
	vma_stats_view_close(view);
	return found;
}

static bool filter_passes_made_frame(const struct packet_filter *filter, uint8_t protocol, uint32_t src,
                                     uint16_t src_port, uint32_t dst, uint16_t dst_port)
{
	uint8_t frame[FRAME_BYTES];
	const uint32_t len = frame_make_udp_or_tcp(frame, protocol, src, src_port, dst, dst_port);

	return packet_filter_passes(filter, frame, len, len);
}

static void init_filter_of_socket(struct packet_filter *filter, int fd)
{
	char text[512];

	assert_true(make_socket_filter_text(fd, text));
	assert_true(packet_filter_init(filter, text));
}

static void test_a_connections_packets_pass_both_ways(void **state)
{
	struct packet_filter filter;

	(void)state;
	add_socket_stats_block(0, 4, IPPROTO_TCP, HERE, 7003, PEER, 40000);
	init_filter_of_socket(&filter, 4);
	assert_true(filter_passes_made_frame(&filter, IPPROTO_TCP, PEER, 40000, HERE, 7003));
	assert_true(filter_passes_made_frame(&filter, IPPROTO_TCP, HERE, 7003, PEER, 40000));
	assert_false(filter_passes_made_frame(&filter, IPPROTO_UDP, PEER, 40000, HERE, 7003));
	assert_false(filter_passes_made_frame(&filter, IPPROTO_TCP, PEER, 40001, HERE, 7003));
	assert_false(filter_passes_made_frame(&filter, IPPROTO_TCP, OTHER, 40000, HERE, 7003));
	assert_false(filter_passes_made_frame(&filter, IPPROTO_TCP, HERE, 7003, PEER, 40001));
	assert_false(filter_passes_made_frame(&filter, IPPROTO_TCP, PEER, 7003, HERE,
	                                      40000)); /* the ports the other way round */
	packet_filter_fini(&filter);
}

static void test_an_unconnected_socket_has_any_peer(void **state)
{
	struct packet_filter filter;

	(void)state;
	add_socket_stats_block(0, 3, IPPROTO_UDP, INADDR_ANY, 53, 0, 0);
	add_socket_stats_block(1, 5, IPPROTO_UDP, HERE, 54, 0, 0);
	init_filter_of_socket(&filter, 3);
	assert_true(filter_passes_made_frame(&filter, IPPROTO_UDP, PEER, 1, HERE, 53));
	assert_true(filter_passes_made_frame(&filter, IPPROTO_UDP, OTHER, 2, 0xe0040101, 53)); /* a group */
	assert_true(filter_passes_made_frame(&filter, IPPROTO_UDP, HERE, 53, PEER, 1));
	assert_false(filter_passes_made_frame(&filter, IPPROTO_UDP, PEER, 1, HERE, 54));
	packet_filter_fini(&filter);
	init_filter_of_socket(&filter, 5);
	assert_true(filter_passes_made_frame(&filter, IPPROTO_UDP, PEER, 1, HERE, 54));
	assert_false(filter_passes_made_frame(&filter, IPPROTO_UDP, PEER, 1, OTHER, 54));
	assert_false(filter_passes_made_frame(&filter, IPPROTO_UDP, PEER, 1, HERE, 53));
	packet_filter_fini(&filter);
}

static void test_what_is_no_bound_socket_has_no_filter(void **state)
{
	char text[512];

	(void)state;
	add_socket_stats_block(0, 3, IPPROTO_UDP, INADDR_ANY, 0, 0, 0);
	assert_false(make_socket_filter_text(3, text));
	assert_false(make_socket_filter_text(4, text));
}

static void test_without_a_filter_every_packet_passes(void **state)
{
	struct packet_filter filter;

	(void)state;
	assert_true(packet_filter_init(&filter, ""));
	assert_true(filter_passes_made_frame(&filter, IPPROTO_UDP, PEER, 1, HERE, 53));
	assert_true(packet_filter_passes(&filter, (const uint8_t *)"", 0, 9014));
	assert_int_equal(packet_filter_bytes_needed(&filter), 0);
	packet_filter_fini(&filter);
}

static void test_a_filter_that_is_none_is_refused(void **state)
{
	struct packet_filter filter;

	(void)state;
	assert_false(packet_filter_init(&filter, "nonsense"));
	assert_false(filter.is_set);
	packet_filter_fini(&filter);
}

/* A cut frame passes as the whole one does, if it is as long as packet_filter_bytes_needed says. */
static void test_as_much_of_a_frame_is_asked_for_as_the_filter_looks_at(void **state)
{
	static const struct {
		const char *text;
		uint32_t least, most;
	} cases[] = {
	        {"ip", 14, 20},
	        {"udp port 7001", 38, 120},
	        {"host 10.9.0.1", 34, 60},
	        {"ether[100] = 0", 101, 110},
	        {"greater 500", 0, 0},
	        {"tcp[((tcp[12] & 0xf0) >> 2):4] = 0", VMA_CAPTURE_DATA_MAX, VMA_CAPTURE_DATA_MAX},
	};
	uint8_t frame[200];
	uint32_t len = frame_make_udp_or_tcp(frame, IPPROTO_UDP, PEER, 1000, HERE, 7001);

	(void)state;
	memset(frame + len, 0, sizeof(frame) - len);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct packet_filter filter;
		uint32_t bytes;

		assert_true(packet_filter_init(&filter, cases[i].text));
		bytes = packet_filter_bytes_needed(&filter);
		assert_in_range(bytes, cases[i].least, cases[i].most);
		assert_int_equal(packet_filter_passes(&filter, frame, sizeof(frame), sizeof(frame)),
		                 packet_filter_passes(&filter, frame, bytes < sizeof(frame) ? bytes : sizeof(frame),
		                                      sizeof(frame)));
		packet_filter_fini(&filter);
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_temp_stats_directory, teardown_temp_stats)

static const struct CMUnitTest tests[] = {
        CASE(test_a_connections_packets_pass_both_ways),
        CASE(test_an_unconnected_socket_has_any_peer),
        CASE(test_what_is_no_bound_socket_has_no_filter),
        CASE(test_without_a_filter_every_packet_passes),
        CASE(test_a_filter_that_is_none_is_refused),
        CASE(test_as_much_of_a_frame_is_asked_for_as_the_filter_looks_at),
};

VMA_TEST_MAIN(tests)
