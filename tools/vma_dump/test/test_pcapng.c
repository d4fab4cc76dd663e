/* The file that is written, read back block by block as its format says. */
#include <stdlib.h>
#include <string.h>

#include <vma/test.h>

#include "../pcapng.h"

enum { SECTION = 0x0a0d0d0a, INTERFACE = 1, STATISTICS = 5, PACKET = 6 };

static struct pcapng pcapng;
static char *bytes;
static size_t written, at;
static FILE *out;

static int setup_pcapng_output(void **state)
{
	(void)state;
	at = 0;
	out = open_memstream(&bytes, &written);
	return out != NULL && pcapng_write_section_header(&pcapng, out, VMA_CAPTURE_DATA_MAX, "process 7: prog") ? 0
	                                                                                                         : -1;
}

static int teardown_pcapng_output(void **state)
{
	(void)state;
	fclose(out);
	free(bytes);
	return 0;
}

static uint32_t word_at(size_t offset)
{
	uint32_t word;

	assert_true(offset + 4 <= written);
	memcpy(&word, bytes + offset, 4);
	return word;
}

/* The next block is of that type and well formed: where its body begins, and how long that is. */
static size_t assert_next_pcapng_block(uint32_t type, uint32_t *len)
{
	const size_t begin = at;
	const uint32_t all = word_at(begin + 4);

	assert_int_equal(word_at(begin), type);
	assert_int_equal(all % 4, 0);
	assert_true(all >= 12 && begin + all <= written);
	assert_int_equal(word_at(begin + all - 4), all);
	at = begin + all;
	*len = all - 12;
	return begin + 8;
}

/* The n-th option with the code, in the options from `from` to `end`: its bytes, padded with zeros; NULL: none. */
static const char *find_pcapng_option(size_t from, size_t end, uint16_t code, unsigned n, uint16_t *len)
{
	while (from < end) {
		uint16_t head[2];

		memcpy(head, bytes + from, 4);
		if (head[0] == 0) {
			assert_int_equal(head[1], 0);
			assert_int_equal(from + 4, end);
			return NULL;
		}
		for (size_t i = head[1]; i < (head[1] + 3u) / 4 * 4; i++)
			assert_int_equal(bytes[from + 4 + i], 0);
		if (head[0] == code && n-- == 0) {
			*len = head[1];
			return bytes + from + 4;
		}
		from += 4 + (head[1] + 3u) / 4 * 4;
	}
	return NULL;
}

static void assert_pcapng_option_text(size_t from, size_t end, uint16_t code, unsigned n, const char *text)
{
	uint16_t len = 0;
	const char *found = find_pcapng_option(from, end, code, n, &len);

	assert_non_null(found);
	assert_int_equal(len, strlen(text));
	assert_memory_equal(found, text, len);
}

static struct vma_capture_info make_capture_info(uint32_t len, uint16_t captured, const char *interface)
{
	struct vma_capture_info info = {.time_ns = UINT64_C(0x123456789abcdef0), .len = len, .captured = captured};

	snprintf(info.text, sizeof(info.text), "%s", interface);
	return info;
}

static void pcapng_put_test_packet(uint32_t len, uint16_t captured, const char *interface, const char *const *comments,
                                   unsigned n)
{
	static uint8_t data[VMA_CAPTURE_DATA_MAX];
	const struct vma_capture_info info = make_capture_info(len, captured, interface);

	for (uint32_t i = 0; i < captured; i++)
		data[i] = (uint8_t)(i * 7 + 1);
	assert_true(pcapng_write_packet(&pcapng, &info, data, comments, n));
}

static void skip_section(void)
{
	uint32_t len;

	assert_int_equal(fflush(out), 0);
	assert_next_pcapng_block(SECTION, &len);
}

static void test_a_section_says_what_it_is_of(void **state)
{
	uint32_t len;
	size_t body;

	(void)state;
	assert_int_equal(fflush(out), 0);
	body = assert_next_pcapng_block(SECTION, &len);
	assert_int_equal(word_at(body), 0x1a2b3c4d);
	assert_int_equal(word_at(body + 4), 1);
	assert_pcapng_option_text(body + 16, body + len, 4, 0, "vma_dump");
	assert_pcapng_option_text(body + 16, body + len, 1, 0, "process 7: prog");
	assert_int_equal(at, written);
}

static void test_an_interface_stands_once_before_its_first_packet(void **state)
{
	const char *const order[] = {"eth0", "eth0", "eth1", "eth0"};
	unsigned known = 0;
	uint32_t len;

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		pcapng_put_test_packet(60, 60, order[i], NULL, 0);
	skip_section();
	for (unsigned i = 0; i < 4; i++) {
		const unsigned number = strcmp(order[i], "eth1") == 0;
		size_t body;

		if (number == known) {
			body = assert_next_pcapng_block(INTERFACE, &len);
			assert_int_equal(word_at(body), 1); /* Ethernet */
			assert_int_equal(word_at(body + 4), VMA_CAPTURE_DATA_MAX);
			assert_pcapng_option_text(body + 8, body + len, 2, 0, order[i]);
			assert_pcapng_option_text(body + 8, body + len, 9, 0, "\t"); /* nanoseconds */
			known++;
		}
		body = assert_next_pcapng_block(PACKET, &len);
		assert_int_equal(word_at(body), number);
	}
	assert_int_equal(at, written);
}

static void test_a_packet_of_any_length_is_whole(void **state)
{
	static const uint16_t lens[] = {0, 1, 2, 3, 4, 5, 60, 1514, 1984, 1985, 9018, 65535};

	(void)state;
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
		pcapng_put_test_packet(lens[i], lens[i], "eth0", (const char *const[]){"dropped: rx_drop_sink"}, i % 2);
	skip_section();
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		const uint32_t padded = (lens[i] + 3u) / 4 * 4;
		uint32_t len;
		size_t body;

		if (i == 0)
			assert_next_pcapng_block(INTERFACE, &len);
		body = assert_next_pcapng_block(PACKET, &len);
		assert_int_equal(word_at(body + 4), 0x12345678);
		assert_int_equal(word_at(body + 8), 0x9abcdef0);
		assert_int_equal(word_at(body + 12), lens[i]);
		assert_int_equal(word_at(body + 16), lens[i]);
		for (uint32_t k = 0; k < lens[i]; k++)
			assert_int_equal((uint8_t)bytes[body + 20 + k], (uint8_t)(k * 7 + 1));
		if (i % 2 != 0)
			assert_pcapng_option_text(body + 20 + padded, body + len, 1, 0, "dropped: rx_drop_sink");
		else
			assert_null(find_pcapng_option(body + 20 + padded, body + len, 1, 0, &(uint16_t){0}));
	}
	assert_int_equal(at, written);
}

static void test_a_cut_packet_keeps_its_length(void **state)
{
	uint32_t len;
	size_t body;

	(void)state;
	pcapng.snap = 60;
	pcapng_put_test_packet(9014, 3000, "eth0", NULL, 0); /* the process was asked for more by another reader */
	pcapng_put_test_packet(9014, 50, "eth0", NULL, 0);
	skip_section();
	body = assert_next_pcapng_block(INTERFACE, &len);
	assert_int_equal(word_at(body + 4), 60);
	body = assert_next_pcapng_block(PACKET, &len);
	assert_int_equal(word_at(body + 12), 60);
	assert_int_equal(word_at(body + 16), 9014);
	body = assert_next_pcapng_block(PACKET, &len);
	assert_int_equal(word_at(body + 12), 50);
	assert_int_equal(word_at(body + 16), 9014);
}

static void test_direction_and_all_comments_are_told(void **state)
{
	const char *const comments[] = {"process 7: prog", "dropped: rx_drop_sink", "gap before: 5 lost"};
	struct vma_capture_info info = make_capture_info(60, 0, "eth0");
	uint16_t option_len;
	uint32_t len;
	size_t body;

	(void)state;
	info.kind = VMA_CAPTURE_IN;
	assert_true(pcapng_write_packet(&pcapng, &info, (const uint8_t *)"", comments, 3));
	info.kind = VMA_CAPTURE_OUT;
	assert_true(pcapng_write_packet(&pcapng, &info, (const uint8_t *)"", NULL, 0));
	skip_section();
	assert_next_pcapng_block(INTERFACE, &len);
	body = assert_next_pcapng_block(PACKET, &len);
	assert_memory_equal(find_pcapng_option(body + 20, body + len, 2, 0, &option_len), "\1\0\0\0", 4);
	for (unsigned i = 0; i < 3; i++)
		assert_pcapng_option_text(body + 20, body + len, 1, i, comments[i]);
	body = assert_next_pcapng_block(PACKET, &len);
	assert_memory_equal(find_pcapng_option(body + 20, body + len, 2, 0, &option_len), "\2\0\0\0", 4);
}

static void test_more_interfaces_than_there_is_room_for_count_as_the_last(void **state)
{
	char name[16];
	uint32_t len;
	size_t body = 0;

	(void)state;
	for (unsigned i = 0; i < PCAPNG_INTERFACES + 2; i++) {
		snprintf(name, sizeof(name), "eth%u", i);
		pcapng_put_test_packet(60, 60, name, NULL, 0);
	}
	skip_section();
	for (unsigned i = 0; i < PCAPNG_INTERFACES + 2; i++) {
		if (i < PCAPNG_INTERFACES)
			assert_next_pcapng_block(INTERFACE, &len);
		body = assert_next_pcapng_block(PACKET, &len);
		assert_int_equal(word_at(body), i < PCAPNG_INTERFACES ? i : PCAPNG_INTERFACES - 1);
	}
	assert_int_equal(at, written);
}

static void test_the_end_says_how_many(void **state)
{
	const uint64_t seen = 5000000000, lost = 3;
	uint16_t option_len;
	uint32_t len;
	size_t body;

	(void)state;
	assert_true(pcapng_write_statistics_and_flush(
	        &pcapng, seen, lost, 1)); /* an interface that there was none of: the format wants one */
	skip_section();
	assert_next_pcapng_block(INTERFACE, &len);
	body = assert_next_pcapng_block(STATISTICS, &len);
	assert_memory_equal(find_pcapng_option(body + 12, body + len, 4, 0, &option_len), &seen, 8);
	assert_memory_equal(find_pcapng_option(body + 12, body + len, 5, 0, &option_len), &lost, 8);
	assert_int_equal(at, written);
}

static void test_an_output_that_fails_is_told(void **state)
{
	const struct vma_capture_info info = make_capture_info(0, 0, "eth0");
	FILE *full = fopen("/dev/full", "w");
	static struct pcapng broken;

	(void)state;
	assert_non_null(full);
	setvbuf(full, NULL, _IONBF, 0);
	assert_false(pcapng_write_section_header(&broken, full, 60, "none"));
	assert_false(pcapng_write_packet(&broken, &info, (const uint8_t *)"", NULL, 0));
	assert_false(pcapng_write_statistics_and_flush(&broken, 0, 0, 0));
	fclose(full);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_pcapng_output, teardown_pcapng_output)

static const struct CMUnitTest tests[] = {
        CASE(test_a_section_says_what_it_is_of),
        CASE(test_an_interface_stands_once_before_its_first_packet),
        CASE(test_a_packet_of_any_length_is_whole),
        CASE(test_a_cut_packet_keeps_its_length),
        CASE(test_direction_and_all_comments_are_told),
        CASE(test_more_interfaces_than_there_is_room_for_count_as_the_last),
        CASE(test_the_end_says_how_many),
        CASE(test_an_output_that_fails_is_told),
};

VMA_TEST_MAIN(tests)
