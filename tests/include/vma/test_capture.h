/*
 * test_capture - the packets of this process captured by itself: what the internal thread does at a request, and what
 * vma_dump reads.
 */
#ifndef VMA_TEST_CAPTURE_H
#define VMA_TEST_CAPTURE_H

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <vma/capture.h>
#include <vma/nic_tap.h>
#include <vma/stats_read.h>
#include <vma/test.h>

struct test_capture {
	char dir[64];
	struct vma_stats *stats;
	struct vma_capture *capture;
	struct vma_stats_view *view;
	struct vma_capture_reader *reader;
};

static inline void test_capture_ask(struct test_capture *t, int seconds, int snap)
{
	int rc;

	do
		rc = vma_stats_enable_packet_capture(t->stats, seconds, snap, &t->capture);
	while (rc == -EAGAIN);
	assert_int_equal(rc, 0);
	vma_nic_tap_start_capture(t->capture);
}

/* snap: bytes of each frame; 0: all. */
static inline void test_capture_start(struct test_capture *t, int snap)
{
	char path[128];

	snprintf(t->dir, sizeof(t->dir), "/tmp/vma_tap_test.XXXXXX");
	assert_non_null(mkdtemp(t->dir));
	assert_int_equal(vma_stats_create(t->dir, &t->stats), 0);
	test_capture_ask(t, VMA_CAPTURE_LEASE_MAX, snap);
	snprintf(path, sizeof(path), "%s/vmastat.%d", t->dir, getpid());
	assert_int_equal(vma_stats_view_open(path, &t->view), 0);
	assert_int_equal(vma_capture_open(t->view, &t->reader), 0);
}

static inline void test_capture_stop(struct test_capture *t)
{
	vma_nic_tap_stop_in_child(); /* the memory goes: nobody captures any more */
	vma_capture_close(t->reader);
	vma_stats_view_close(t->view);
	vma_stats_destroy(t->stats);
	rmdir(t->dir);
}

/* The next record is a note of that kind on the packet with this id. */
static inline void test_capture_note(struct test_capture *t, uint8_t kind, uint32_t id, const char *text, uint32_t len)
{
	static uint8_t data[VMA_CAPTURE_DATA_MAX];
	struct vma_capture_info info;

	assert_int_equal(vma_capture_next(t->reader, 0, &info, data), 1);
	assert_int_equal(info.kind, kind);
	assert_int_equal(info.id, id);
	assert_int_equal(info.captured, 0);
	assert_int_equal(info.len, len);
	if (text != NULL)
		assert_string_equal(info.text, text);
}

static inline void test_capture_nothing_more(struct test_capture *t)
{
	static uint8_t data[VMA_CAPTURE_DATA_MAX];
	struct vma_capture_info info;

	assert_int_equal(vma_capture_next(t->reader, 0, &info, data), 0);
	assert_int_equal(vma_capture_lost(t->reader), 0);
}

#endif
