/* SocketXtreme: a buffer is freed as often as it is referenced, whatever else is asked for; and sources are not
 * forgotten. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/sock_engine.h>
#include <vma/sock_os.h>
#include <vma/test.h>

#include "../xtreme_ring.h"
#include "../../sock/test/fake_file.h"
#include "../../sock/test/small_engine.h"

enum { BIT = 5, OTHER_BIT = 6, THREADS = 3, ROUNDS = 20000 };

static struct fake_file *fake;
static struct vma_xtreme *xtreme;
static struct sigaction on_segv;

/* What the file has to tell: so many packets, of so many fragments. */
static struct {
	unsigned packets, fragments, told, calls;
	uint32_t events, cost;
	uint64_t limit, stamp_ns;
	unsigned empty_from; /* fragments that have nothing */
	enum vma_xtreme_given last;
	unsigned returned_bytes;
	uint64_t returned_connection;
} completions_to_give;

static struct vma_buf *get_buf(void)
{
	struct vma_buf *buf = NULL;

	assert_int_equal(vma_bufpool_get(vma_engine_get_or_start()->spill, &buf, 1), 1);
	return buf;
}

static void xtreme_give_one_packet(struct vma_xtreme_poll *poll)
{
	struct vma_fragment fragments[8];
	struct vma_xtreme_packet packet = {.fragments = fragments,
	                                   .n = completions_to_give.fragments,
	                                   .len = 10 * (completions_to_give.fragments < completions_to_give.empty_from
	                                                        ? completions_to_give.fragments
	                                                        : completions_to_give.empty_from),
	                                   .cost = completions_to_give.cost,
	                                   .limit = completions_to_give.limit,
	                                   .stamp_ns = completions_to_give.stamp_ns,
	                                   .connection = 9,
	                                   .src = htonl(0x0a000002),
	                                   .src_port_be = htons(4000)};

	for (unsigned i = 0; i < completions_to_give.fragments; i++)
		fragments[i] = (struct vma_fragment){
		        .buf = get_buf(), .off = i, .len = i < completions_to_give.empty_from ? 10 : 0};
	completions_to_give.last = vma_xtreme_poll_add_packet_completion(poll, xtreme, &packet);
	for (unsigned i = 0; i < completions_to_give.fragments && completions_to_give.last != VMA_XTREME_GIVEN; i++)
		vma_buf_put(vma_engine_get_or_start()->arena, fragments[i].buf);
}

static bool fake_file_give_xtreme_completions(struct vma_file *file, struct vma_xtreme_poll *poll, uint32_t *events)
{
	assert_ptr_equal(file, &fake->file);
	completions_to_give.calls++;
	completions_to_give.events |= *events;
	*events = 0;
	while (completions_to_give.packets > 0) {
		if (vma_xtreme_next_completion(poll) == NULL)
			return true;
		xtreme_give_one_packet(poll);
		completions_to_give.packets--;
	}
	return false;
}

static void record_returned_bytes(struct vma_file *file, uint64_t connection, uint32_t bytes)
{
	assert_ptr_equal(file, &fake->file);
	completions_to_give.returned_bytes += bytes;
	completions_to_give.returned_connection = connection;
}

static struct vma_file_ops ops;

static int setup_xtreme_on_fake_file(vma_xtreme_bytes_returned_fn returned)
{
	start_engine_with_few_buffers("4096", "256");
	fake = fake_file_create();
	ops = *fake->file.ops;
	ops.complete = fake_file_give_xtreme_completions;
	fake->file.ops = &ops;
	memset(&completions_to_give, 0, sizeof(completions_to_give));
	completions_to_give.fragments = 1;
	completions_to_give.cost = 100;
	completions_to_give.empty_from = UINT32_MAX;
	completions_to_give.limit = UINT32_MAX;
	vma_enter();
	xtreme = vma_xtreme_create(&fake->file, returned);
	return xtreme != NULL ? 0 : -1;
}

static int setup(void **state)
{
	(void)state;
	return setup_xtreme_on_fake_file(NULL);
}

static int setup_xtreme_with_returned_callback(void **state)
{
	(void)state;
	return setup_xtreme_on_fake_file(record_returned_bytes);
}

static int teardown(void **state)
{
	(void)state;
	if (xtreme != NULL)
		vma_xtreme_destroy(xtreme);
	assert_int_equal(atomic_load(&fake->file.refs), 1);
	vma_file_put(&fake->file);
	vma_leave(vma_thread_self());
	fake_poll_until_retired_are_freed();
	return 0;
}

/* One poll after a source has posted. */
static int xtreme_post_source_and_poll(struct vma_completion_t *completions, unsigned n, unsigned packets)
{
	static struct vma_xtreme_source *source;
	int got;

	completions_to_give.packets = packets;
	source = vma_xtreme_source_create(&fake->file, BIT);
	assert_non_null(source);
	vma_xtreme_queue_source_events(source, 0);
	got = vma_xtreme_poll(1ULL << BIT, completions, n);
	vma_xtreme_source_end(source);
	vma_xtreme_source_put(source);
	return got;
}

/* Who sleeps on the ring's descriptor must not take that for a look that has found nothing. */
static void test_poll_says_that_another_thread_had_the_list_in_hand(void **state)
{
	struct vma_xtreme_source *source = vma_xtreme_source_create(&fake->file, BIT);
	struct vma_xtreme_ring *ring = xtreme_ring_get_by_bit(BIT);
	struct vma_completion_t completion;
	bool has_skipped = false;

	(void)state;
	completions_to_give.packets = 1;
	vma_xtreme_queue_source_events(source, 0);
	atomic_store(&ring->taking, true);
	assert_int_equal(vma_xtreme_poll_and_note_skips(1ULL << BIT, &completion, 1, &has_skipped), 0);
	assert_true(has_skipped);
	atomic_store(&ring->taking, false);
	has_skipped = false;
	assert_int_equal(vma_xtreme_poll_and_note_skips(1ULL << BIT, &completion, 1, &has_skipped), 1);
	assert_false(has_skipped);
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), 0);
	vma_xtreme_source_end(source);
	vma_xtreme_source_put(source);
}

static void test_packet_is_freed_once(void **state)
{
	struct vma_completion_t completion;

	(void)state;
	completions_to_give.stamp_ns = 3000000007;
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 1);
	assert_true(completion.events == VMA_SOCKETXTREME_PACKET);
	assert_int_equal(completion.packet.num_bufs, 1);
	assert_int_equal(completion.packet.total_len, 10);
	assert_int_equal(completion.packet.buff_lst->len, 10);
	assert_null(completion.packet.buff_lst->next);
	assert_int_equal(completion.packet.hw_timestamp.tv_sec, 3);
	assert_int_equal(completion.packet.hw_timestamp.tv_nsec, 7);
	assert_int_equal(completion.src.sin_port, htons(4000));
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 100);
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), 0);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 0);
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), -ENOENT);
	assert_int_equal(vma_xtreme_free_buff(completion.packet.buff_lst), -ENOENT);
	assert_int_equal(vma_xtreme_ref(completion.packet.buff_lst), -ENOENT);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 0);
}

static void test_reference_keeps_a_buffer_after_its_packet(void **state)
{
	struct vma_completion_t completion;
	struct vma_buff_t *second;

	(void)state;
	completions_to_give.fragments = 3;
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 1);
	assert_int_equal(completion.packet.num_bufs, 3);
	second = completion.packet.buff_lst->next;
	assert_non_null(second->next);
	assert_null(second->next->next);
	assert_int_equal(vma_xtreme_ref(second), 2);
	assert_int_equal(vma_xtreme_ref(second), 3);
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), 0);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 11);
	assert_int_equal(vma_xtreme_free_buff(second), 1);
	assert_int_equal(vma_xtreme_free_buff(second), 0);
	assert_int_equal(vma_xtreme_free_buff(second), -ENOENT);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 0);
}

/* Else the account would have ended with the first one, and be looked into by the others. */
static void test_empty_buffers_count(void **state)
{
	struct vma_completion_t completion;
	struct vma_buff_t *second, *third;

	(void)state;
	completions_to_give.fragments = 3;
	completions_to_give.empty_from = 1;
	completions_to_give.cost = 10;
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 1);
	second = completion.packet.buff_lst->next;
	third = second->next;
	assert_int_equal(third->len, 0);
	vma_xtreme_close(xtreme);
	assert_int_equal(vma_xtreme_free_buff(completion.packet.buff_lst), 0);
	assert_int_equal(atomic_load(&fake->file.refs), 2); /* the account's */
	assert_int_equal(vma_xtreme_free_buff(second), 0);
	assert_int_equal(atomic_load(&fake->file.refs), 2);
	assert_int_equal(vma_xtreme_free_buff(third), 0);
	assert_int_equal(atomic_load(&fake->file.refs), 1);
}

static void test_what_the_program_overwrites_is_not_followed(void **state)
{
	struct vma_completion_t completion;

	(void)state;
	completions_to_give.fragments = 2;
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 1);
	completion.packet.buff_lst->next->payload = (void *)(uintptr_t)8;
	completion.packet.buff_lst->next = (void *)(uintptr_t)16;
	completion.packet.buff_lst->len = 60000;
	completion.packet.num_bufs = 1000;
	completion.packet.total_len = 1;
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), 0);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 0);
}

static void test_strange_pointers_are_refused_unread(void **state)
{
	struct vma_completion_t completion;
	struct vma_buff_t own = {0};
	struct vma_packet_desc_t packet = {.buff_lst = &own};
	struct vma_buff_t *good;

	(void)state;
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 1);
	good = completion.packet.buff_lst;
	assert_int_equal(vma_xtreme_free_packets(&packet, 1), -EINVAL);
	assert_int_equal(vma_xtreme_ref(NULL), -EINVAL);
	assert_int_equal(vma_xtreme_free_buff((void *)(uintptr_t)64), -EINVAL);
	assert_int_equal(vma_xtreme_free_buff((void *)((char *)good + 8)), -EINVAL);
	assert_int_equal(vma_xtreme_free_buff((void *)((char *)good - (1L << 40))), -EINVAL);
	assert_int_equal(vma_xtreme_free_buff((void *)((char *)good + (1L << 26))), -EINVAL);
	assert_int_equal(vma_xtreme_free_packets(NULL, -1), -EINVAL);
	assert_int_equal(vma_xtreme_free_packets(NULL, 0), 0);
	assert_int_equal(vma_xtreme_free_buff(good), 0);
}

static void test_memory_that_is_not_there_loses_nothing(void **state)
{
	const size_t page = 4096;
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct vma_completion_t good[2], *across = (void *)(pages + page - sizeof(good[0]));

	(void)state;
	vma_os.sigaction(SIGSEGV, &on_segv, NULL);
	assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
	assert_int_equal(xtreme_post_source_and_poll(NULL, 2, 2), -EFAULT);
	assert_int_equal(xtreme_post_source_and_poll((void *)(uintptr_t)-64, 16, 2),
	                 -EFAULT);                                    /* its end is below its beginning */
	assert_int_equal(vma_xtreme_poll(1ULL << BIT, across, 2), 0); /* the source has ended, and nothing is written */
	assert_int_equal(completions_to_give.packets, 2);
	assert_int_equal(xtreme_post_source_and_poll(across, 2, 2), -EFAULT);
	assert_int_equal(completions_to_give.packets, 2);
	assert_int_equal(xtreme_post_source_and_poll(across, 1, 1), 1);
	assert_int_equal(vma_xtreme_free_packets(&across->packet, 1), 0);
	assert_int_equal(vma_xtreme_free_packets(&across->packet, 3), -EFAULT);
	assert_int_equal(xtreme_post_source_and_poll(across, 2, 2), -EFAULT); /* more of it than was there before */
	munmap(pages, 2 * page);
}

static void test_account_that_is_full_refuses_but_one_alone(void **state)
{
	struct vma_completion_t completions[4];

	(void)state;
	completions_to_give.limit = 150;
	completions_to_give.cost = 200;
	assert_int_equal(xtreme_post_source_and_poll(completions, 4, 2), 1);
	assert_int_equal(completions_to_give.last, VMA_XTREME_REFUSED);
	assert_int_equal(vma_xtreme_free_packets(&completions[0].packet, 1), 0);
	assert_int_equal(xtreme_post_source_and_poll(completions, 4, 1), 1);
	assert_int_equal(vma_xtreme_free_packets(&completions[0].packet, 1), 0);
}

/* More than are put together at a time, long ones between short ones; and one that stops the call. */
static void test_many_packets_are_freed_by_one_call(void **state)
{
	struct vma_completion_t completions[60];
	struct vma_packet_desc_t packets[60];
	unsigned n = 0;

	(void)state;
	completions_to_give.fragments = 7;
	assert_int_equal(xtreme_post_source_and_poll(completions, 15, 15), 15);
	completions_to_give.fragments = 1;
	assert_int_equal(xtreme_post_source_and_poll(completions + 15, 45, 45), 45);
	for (unsigned i = 0; i < 15; i++) {
		for (unsigned k = 0; k < 3; k++)
			packets[n++] = completions[15 + 3 * i + k].packet;
		packets[n++] = completions[i].packet;
	}
	assert_int_equal(vma_xtreme_free_packets(packets, 60), 0);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 0);
	for (unsigned i = 0; i < 60; i++)
		assert_int_equal(vma_xtreme_free_packets(&packets[i], 1), -ENOENT);
	assert_int_equal(xtreme_post_source_and_poll(completions, 40, 40), 40);
	for (unsigned i = 0; i < 40; i++)
		packets[i] = completions[i].packet;
	assert_int_equal(vma_xtreme_free_packets(&packets[20], 1), 0);
	assert_int_equal(vma_xtreme_free_packets(packets, 40), -ENOENT);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 19 * 100);
	assert_int_equal(vma_xtreme_free_packets(packets + 21, 19), 0);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 0);
}

static void test_buffers_outlive_their_socket(void **state)
{
	struct vma_completion_t completion;

	(void)state;
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 1);
	vma_xtreme_destroy(xtreme);
	xtreme = NULL;
	assert_int_equal(completion.packet.buff_lst->len, 10);
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), 0);
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), -ENOENT);
}

static void test_closed_account_gives_nothing(void **state)
{
	struct vma_completion_t completion;

	(void)state;
	vma_xtreme_close(xtreme);
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 0);
	assert_int_equal(completions_to_give.last, VMA_XTREME_REFUSED);
}

static void test_file_lives_until_all_is_back(void **state)
{
	struct vma_completion_t completion;

	(void)state;
	assert_int_equal(atomic_load(&fake->file.refs), 2);
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 1);
	vma_xtreme_close(xtreme);
	assert_int_equal(atomic_load(&fake->file.refs), 2);
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), 0);
	assert_int_equal(completions_to_give.returned_bytes, 100);
	assert_int_equal(completions_to_give.returned_connection, 9);
	assert_int_equal(atomic_load(&fake->file.refs), 1);
}

static void test_child_has_nothing_of_its_parents(void **state)
{
	struct vma_completion_t completion, own;
	int status;
	pid_t child;

	(void)state;
	assert_int_equal(xtreme_post_source_and_poll(&completion, 1, 1), 1);
	child = fork();
	if (child == 0) {
		bool is_right;

		vma_xtreme_drop_tables_in_fork_child();
		vma_xtreme_reset_account_in_fork_child(xtreme);
		is_right = vma_xtreme_free_packets(&completion.packet, 1) == -EINVAL &&
		           vma_xtreme_held_bytes(xtreme) == 0 && xtreme_post_source_and_poll(&own, 1, 1) == 1 &&
		           vma_xtreme_free_packets(&own.packet, 1) == 0;
		_exit(is_right ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 100);
	assert_int_equal(vma_xtreme_free_packets(&completion.packet, 1), 0);
}

static void test_source_that_does_not_fit_is_told_in_the_next_poll(void **state)
{
	struct vma_xtreme_source *source = vma_xtreme_source_create(&fake->file, BIT);
	struct vma_completion_t completions[3];

	(void)state;
	completions_to_give.packets = 5;
	vma_xtreme_queue_source_events(source, 1);
	vma_xtreme_queue_source_events(source, 4); /* one entry, both events */
	assert_int_equal(vma_xtreme_poll(1ULL << BIT, completions, 3), 3);
	assert_int_equal(completions_to_give.events, 5);
	assert_int_equal(vma_xtreme_free_packets(&completions[0].packet, 1), 0);
	assert_int_equal(vma_xtreme_free_packets(&completions[1].packet, 1), 0);
	assert_int_equal(vma_xtreme_free_packets(&completions[2].packet, 1), 0);
	assert_int_equal(vma_xtreme_poll(1ULL << BIT, completions, 3), 2);
	assert_int_equal(vma_xtreme_free_packets(&completions[0].packet, 1), 0);
	assert_int_equal(vma_xtreme_free_packets(&completions[1].packet, 1), 0);
	completions_to_give.calls = 0;
	assert_int_equal(vma_xtreme_poll(1ULL << BIT, completions, 3), 0);
	assert_int_equal(completions_to_give.calls, 0);
	assert_int_equal(vma_xtreme_poll(1ULL << OTHER_BIT, completions, 3), 0);
	vma_xtreme_source_end(source);
	vma_xtreme_source_put(source);
}

/* Not while the thread drives the ring: complete() would run in a sink. */
static void test_source_is_completed_at_once_by_the_thread_that_polls_its_ring(void **state)
{
	struct vma_xtreme_source *source = vma_xtreme_source_create(&fake->file, BIT);
	struct vma_completion_t completions[2];
	struct vma_xtreme_poll poll = {.at = completions,
	                               .end = completions,
	                               .first = completions,
	                               .n = 2,
	                               .arena = vma_engine_get_or_start()->arena,
	                               .ring = xtreme_ring_get_by_bit(BIT)};
	struct vma_thread *self = vma_thread_self();

	(void)state;
	completions_to_give.packets = 3;
	self->xtreme = &poll;
	vma_xtreme_complete_or_post(source, 4);
	assert_ptr_equal(self->xtreme, &poll);
	assert_int_equal(poll.at - completions, 2);
	assert_int_equal(completions_to_give.events, 4);
	assert_int_equal(completions_to_give.packets, 1);
	assert_int_equal(vma_xtreme_free_packets(&completions[0].packet, 1), 0);
	assert_int_equal(vma_xtreme_free_packets(&completions[1].packet, 1), 0);
	vma_xtreme_complete_or_post(source, 4); /* the array is full, and the third one is on the list */
	assert_int_equal(completions_to_give.calls, 1);
	poll.at = completions;
	poll.ring = NULL;
	vma_xtreme_complete_or_post(source, 4);
	assert_int_equal(completions_to_give.calls, 1);
	self->xtreme = NULL;
	assert_int_equal(vma_xtreme_poll(1ULL << BIT, completions, 2), 1);
	assert_int_equal(vma_xtreme_free_packets(&completions[0].packet, 1), 0);
	completions_to_give.packets = 1;
	poll.ring = xtreme_ring_get_by_bit(BIT);
	self->xtreme = &poll;
	self->gathers = true;
	vma_xtreme_complete_or_post(source, 4);
	self->gathers = false;
	self->xtreme = NULL;
	assert_int_equal(completions_to_give.packets, 1);
	assert_int_equal(vma_xtreme_poll(1ULL << BIT, completions, 2), 1);
	assert_int_equal(vma_xtreme_free_packets(&completions[0].packet, 1), 0);
	vma_xtreme_source_end(source);
	vma_xtreme_source_put(source);
}

static void test_sources_that_nobody_polls_do_not_pile_up(void **state)
{
	struct vma_completion_t completion;
	unsigned listed = 0;

	(void)state;
	for (unsigned i = 0; i < 5000; i++) {
		struct vma_xtreme_source *source = vma_xtreme_source_create(&fake->file, OTHER_BIT);

		vma_xtreme_queue_source_events(source, 1);
		vma_xtreme_source_end(source);
		vma_xtreme_source_put(source);
	}
	for (const struct vma_xtreme_source *s = atomic_load(&xtreme_ring_get_by_bit(OTHER_BIT)->arrived); s != NULL;
	     s = s->next)
		listed++;
	assert_true(listed + xtreme_ring_get_by_bit(OTHER_BIT)->n < 200);
	assert_int_equal(vma_xtreme_poll(1ULL << OTHER_BIT, &completion, 1), 0);
	assert_int_equal(completions_to_give.calls, 0);
}

static void test_options_are_kept_and_checked(void **state)
{
	uint64_t data = 0x1122334455667788, got = 0;
	uint32_t tag = 77;
	socklen_t len = sizeof(got);

	(void)state;
	assert_int_equal(vma_xtreme_getsockopt(xtreme, SO_VMA_USER_DATA, &got, &len), 0);
	assert_int_equal((int)got, atomic_load(&fake->file.fd));
	assert_int_equal(vma_xtreme_setsockopt(xtreme, SO_VMA_USER_DATA, &data, 4), -EINVAL);
	assert_int_equal(vma_xtreme_setsockopt(xtreme, SO_VMA_USER_DATA, &data, 8), 0);
	assert_int_equal(vma_xtreme_getsockopt(xtreme, SO_VMA_USER_DATA, &got, &len), 0);
	assert_true(got == data);
	assert_int_equal(len, 8);
	assert_int_equal(vma_xtreme_setsockopt(xtreme, SO_VMA_FLOW_TAG, &tag, 4), 0);
	tag = 0;
	assert_int_equal(vma_xtreme_setsockopt(xtreme, SO_VMA_FLOW_TAG, &tag, 4), -EINVAL);
	tag = 1 << 20;
	assert_int_equal(vma_xtreme_setsockopt(xtreme, SO_VMA_FLOW_TAG, &tag, 4), -EINVAL);
	len = 4;
	assert_int_equal(vma_xtreme_getsockopt(xtreme, SO_VMA_FLOW_TAG, &tag, &len), 0);
	assert_int_equal(tag, 77);
	assert_int_equal(vma_xtreme_setsockopt(xtreme, SO_VMA_RING_ALLOC_LOGIC, &tag, 4), -ENOPROTOOPT);
}

/* ---- threads ---- */

static struct vma_completion_t shared[64];
static _Atomic unsigned freed, current_round, arrived;

static void *free_packets_in_rounds_thread(void *arg)
{
	(void)arg;
	for (unsigned round = 1; round <= ROUNDS / 64; round++) {
		while (atomic_load(&current_round) < round)
			sched_yield();
		vma_enter();
		for (unsigned i = 0; i < 64; i++)
			atomic_fetch_add(&freed, vma_xtreme_free_packets(&shared[i].packet, 1) == 0);
		vma_leave(vma_thread_self());
		atomic_fetch_add(&arrived, 1);
	}
	return NULL;
}

static void test_of_threads_that_free_the_same_packets_one_succeeds(void **state)
{
	pthread_t threads[THREADS];

	(void)state;
	atomic_store(&freed, 0);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, free_packets_in_rounds_thread, NULL), 0);
	for (unsigned round = 1; round <= ROUNDS / 64; round++) {
		atomic_store(&arrived, 0);
		assert_int_equal(xtreme_post_source_and_poll(shared, 64, 64), 64);
		atomic_store(&current_round, round);
		while (atomic_load(&arrived) < THREADS)
			sched_yield();
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&freed), ROUNDS / 64 * 64);
	assert_int_equal(vma_xtreme_held_bytes(xtreme), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(test_packet_is_freed_once, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_poll_says_that_another_thread_had_the_list_in_hand, setup,
	                                        teardown),
	        cmocka_unit_test_setup_teardown(test_reference_keeps_a_buffer_after_its_packet, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_what_the_program_overwrites_is_not_followed, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_strange_pointers_are_refused_unread, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_memory_that_is_not_there_loses_nothing, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_account_that_is_full_refuses_but_one_alone, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_many_packets_are_freed_by_one_call, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_buffers_outlive_their_socket, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_closed_account_gives_nothing, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_file_lives_until_all_is_back, setup_xtreme_with_returned_callback,
	                                        teardown),
	        cmocka_unit_test_setup_teardown(test_empty_buffers_count, setup_xtreme_with_returned_callback,
	                                        teardown),
	        cmocka_unit_test_setup_teardown(test_child_has_nothing_of_its_parents, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_source_that_does_not_fit_is_told_in_the_next_poll, setup,
	                                        teardown),
	        cmocka_unit_test_setup_teardown(test_source_is_completed_at_once_by_the_thread_that_polls_its_ring,
	                                        setup, teardown),
	        cmocka_unit_test_setup_teardown(test_sources_that_nobody_polls_do_not_pile_up, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_options_are_kept_and_checked, setup, teardown),
	        cmocka_unit_test_setup_teardown(test_of_threads_that_free_the_same_packets_one_succeeds, setup,
	                                        teardown),
	};

	start_engine_with_few_buffers("4096", "256");
	vma_signals_wrap_existing_handlers();
	vma_os.sigaction(SIGSEGV, NULL, &on_segv);
	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
