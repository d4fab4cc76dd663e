/* JSON: what is printed is parsed again, and has every counter; the page of counters is what the lists say. */
#include <json-c/json.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include <vma/rules.h>
#include <vma/sock.h>
#include <vma/test.h>

#include "../view_json.h"

#define PAGE "docs/counters.md"

static struct vma_stats_snapshot now;
static struct options options;
static struct json_object *parsed; /* the document of the last print */
static unsigned sockets_shown_n, by_kernel;

static struct vma_stats_item *add_stats_item(enum vma_stats_type type, const char *name)
{
	struct vma_stats_item *new = &now.items[now.count];

	memset(new, 0, sizeof(*new));
	new->type = type;
	new->place = (uint32_t)now.count++;
	strcpy(new->name, name);
	return new;
}

static struct vma_stats_socket *stats_add_offloaded_socket_item(uint64_t fd, int protocol)
{
	struct vma_stats_socket *socket = &add_stats_item(VMA_STATS_TYPE_SOCKET, "fd")->socket;

	vma_stats_set(&socket->fd, fd);
	vma_stats_set(&socket->protocol, (uint64_t)protocol);
	vma_stats_set(&socket->offloaded, 1);
	return socket;
}

static void begin(enum options_view view)
{
	now.count = 0;
	now.pid = 1; /* whose name is not looked at */
	now.taken_ns = 12345;
	options = (struct options){.view = view, .interval = 1, .json = true};
}

/* The one process of the document that is printed, which is one line. */
static struct json_object *print_json_and_parse_process(void)
{
	const struct view_input in = {.options = &options, .now = &now, .total = &now};
	struct json_object *document = view_json_new_document(&options);
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	sockets_shown_n = by_kernel = 0;
	view_json_add_process(document, &in, &sockets_shown_n, &by_kernel);
	view_json_print_and_free(document, out);
	fclose(out);
	assert_ptr_equal(strchr(text, '\n'), text + bytes - 1);
	for (const char *c = text; c < text + bytes - 1; c++)
		assert_true(*c >= ' ' && *c <= '~');
	json_object_put(parsed);
	parsed = json_tokener_parse(text);
	free(text);
	assert_non_null(parsed);
	assert_int_equal(json_object_array_length(json_object_object_get(parsed, "processes")), 1);
	return json_object_array_get_idx(json_object_object_get(parsed, "processes"), 0);
}

static int teardown_free_parsed_json(void **state)
{
	(void)state;
	json_object_put(parsed);
	parsed = NULL;
	return 0;
}

static struct json_object *first_element_of_json_array(struct json_object *object, const char *key)
{
	struct json_object *array = json_object_object_get(object, key);

	assert_non_null(array);
	assert_true(json_object_array_length(array) > 0);
	return json_object_array_get_idx(array, 0);
}

static void assert_json_text_is(struct json_object *object, const char *key, const char *text)
{
	assert_string_equal(json_object_get_string(json_object_object_get(object, key)), text);
}

static void assert_json_number_is(struct json_object *object, const char *key, uint64_t number)
{
	struct json_object *value = json_object_object_get(object, key);

	assert_non_null(value);
	assert_int_equal(json_object_get_type(value), json_type_int);
	assert_int_equal(json_object_get_uint64(value), number);
}

static void assert_json_key_absent(struct json_object *object, const char *key)
{
	assert_false(json_object_object_get_ex(object, key, NULL));
}

static const char *const keys[VMA_STATS_TYPE_COUNT] = {
        [VMA_STATS_TYPE_RING] = "rings",  [VMA_STATS_TYPE_CQ] = "cqs",         [VMA_STATS_TYPE_BUFPOOL] = "bufpools",
        [VMA_STATS_TYPE_NIC] = "nics",    [VMA_STATS_TYPE_SOCKET] = "sockets", [VMA_STATS_TYPE_PROCESS] = "process",
        [VMA_STATS_TYPE_IOMUX] = "iomux",
};

static void test_every_counter_of_every_block_is_there(void **state)
{
	struct json_object *process;

	(void)state;
	begin(VIEW_ALL);
	for (unsigned type = 1; type < VMA_STATS_TYPE_COUNT; type++) {
		struct vma_stats_item *item = add_stats_item(type, "block");
		size_t count;
		const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);

		for (size_t i = 0; i < count; i++)
			vma_stats_set(item->words + fields[i].offset / sizeof(uint64_t), type * 1000 + i);
	}
	process = print_json_and_parse_process();
	for (unsigned type = 1; type < VMA_STATS_TYPE_COUNT; type++) {
		struct json_object *counters =
		        json_object_object_get(first_element_of_json_array(process, keys[type]), "counters");
		size_t count;
		const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);

		assert_int_equal(json_object_object_length(counters), count);
		for (size_t i = 0; i < count; i++)
			assert_json_number_is(counters, fields[i].name, type * 1000 + i);
	}
}

static void test_largest_number_is_printed_whole(void **state)
{
	(void)state;
	begin(VIEW_BASIC);
	vma_stats_set(&stats_add_offloaded_socket_item(3, IPPROTO_UDP)->rx_bytes, UINT64_MAX);
	assert_json_number_is(
	        json_object_object_get(first_element_of_json_array(print_json_and_parse_process(), "sockets"),
	                               "counters"),
	        "rx_bytes", UINT64_MAX);
}

static void test_hostile_names_are_escaped(void **state)
{
	struct vma_stats_socket *socket;
	struct json_object *process;

	(void)state;
	begin(VIEW_ALL);
	socket = stats_add_offloaded_socket_item(3, IPPROTO_UDP);
	add_stats_item(VMA_STATS_TYPE_RING, "a\"b\\c</script>\n\x01\xff,\"pid\":7");
	memcpy((void *)&socket->interface_0, "\"},{\n\xc3(\\", 8);
	process = print_json_and_parse_process();
	assert_json_text_is(first_element_of_json_array(process, "rings"), "name", "a\"b\\c</script>\?\?\?,\"pid\":7");
	assert_json_text_is(first_element_of_json_array(process, "sockets"), "interface", "\"},{\?\?(\\");
	assert_json_number_is(process, "pid", 1);
}

static void test_numbers_that_mean_nothing_are_survived(void **state)
{
	struct vma_stats_socket *socket;
	struct json_object *object;

	(void)state;
	begin(VIEW_ALL);
	socket = stats_add_offloaded_socket_item(UINT64_MAX, IPPROTO_TCP);
	vma_stats_set(&socket->offloaded, 0);
	vma_stats_set(&socket->reason, UINT64_MAX);
	vma_stats_set(&socket->tcp_state, UINT64_MAX);
	vma_stats_set(&socket->groups, UINT64_MAX);
	vma_stats_set(&socket->last_error, UINT64_MAX);
	object = first_element_of_json_array(print_json_and_parse_process(), "sockets");
	assert_json_text_is(object, "reason", "?");
	assert_json_text_is(object, "tcp_state", "?");
	assert_json_text_is(object, "last_error", "?");
	assert_int_equal(json_object_array_length(json_object_object_get(object, "groups")), VMA_STATS_SOCKET_GROUPS);
}

static void test_connection_has_its_names(void **state)
{
	struct vma_stats_socket *socket;
	struct json_object *object;

	(void)state;
	begin(VIEW_WHY);
	socket = stats_add_offloaded_socket_item(5, IPPROTO_TCP);
	vma_stats_set(&socket->local_addr, 0x0a090002);
	vma_stats_set(&socket->local_port, 11111);
	vma_stats_set(&socket->peer_addr, 0x0a090001);
	vma_stats_set(&socket->peer_port, 34664);
	vma_stats_set(&socket->tcp_state, TCP_ESTABLISHED);
	vma_stats_set(&socket->tcp_bytes_in, 100);
	vma_stats_set(&socket->rx_bytes, 40);
	vma_stats_set(&socket->ring, 1);
	vma_stats_set(&socket->last_error, 104);
	memcpy((void *)&socket->interface_0, "eth0", 4);
	object = first_element_of_json_array(print_json_and_parse_process(), "sockets");
	assert_json_number_is(object, "fd", 5);
	assert_json_text_is(object, "protocol", "tcp");
	assert_true(json_object_get_boolean(json_object_object_get(object, "offloaded")));
	assert_json_text_is(object, "local_address", "10.9.0.2");
	assert_json_number_is(object, "local_port", 11111);
	assert_json_text_is(object, "peer_address", "10.9.0.1");
	assert_json_number_is(object, "peer_port", 34664);
	assert_json_text_is(object, "tcp_state", "ESTABLISHED");
	assert_json_text_is(object, "interface", "eth0");
	assert_json_number_is(object, "ring", 0);
	assert_json_text_is(object, "last_error", "ECONNRESET");
	assert_json_number_is(object, "queue_bytes", 60);
	assert_json_key_absent(object, "queue_packets");
	assert_json_key_absent(object, "reason");
	assert_json_key_absent(object, "rule_line");
	assert_int_equal(sockets_shown_n, 1);
	assert_int_equal(by_kernel, 0);
}

static void test_socket_of_the_kernel_has_its_reason(void **state)
{
	struct vma_stats_socket *socket;
	struct json_object *object;

	(void)state;
	begin(VIEW_WHY);
	socket = stats_add_offloaded_socket_item(6, IPPROTO_UDP);
	vma_stats_set(&socket->offloaded, 0);
	vma_stats_set(&socket->reason, VMA_SOCK_RULE);
	vma_stats_set(&socket->rule_line, 2);
	object = first_element_of_json_array(print_json_and_parse_process(), "sockets");
	assert_json_text_is(object, "reason", "RULE");
	assert_json_text_is(object, "reason_text", "a rule leaves it to the kernel");
	assert_json_number_is(object, "rule_line", 2);
	assert_json_key_absent(object, "added_rule");
	assert_json_key_absent(object, "local_address");
	assert_json_key_absent(object, "peer_port");
	assert_json_key_absent(object, "interface");
	assert_int_equal(by_kernel, 1);
	vma_stats_set(&socket->rule_line, VMA_RULES_ADDED + 3);
	object = first_element_of_json_array(print_json_and_parse_process(), "sockets");
	assert_json_number_is(object, "added_rule", 3);
	assert_json_key_absent(object, "rule_line");
}

static void test_view_has_only_its_parts(void **state)
{
	struct json_object *process;

	(void)state;
	begin(VIEW_GROUPS);
	vma_stats_set(&stats_add_offloaded_socket_item(3, IPPROTO_UDP)->groups, 1);
	stats_add_offloaded_socket_item(4, IPPROTO_UDP);
	assert_true(fd_list_parse(&options.fds, "3"));
	process = print_json_and_parse_process();
	assert_int_equal(json_object_array_length(json_object_object_get(process, "sockets")), 1);
	assert_int_equal(json_object_object_length(first_element_of_json_array(process, "sockets")), 2);
	assert_json_key_absent(process, "rings");
	assert_json_text_is(parsed, "view", "groups");
	assert_json_number_is(parsed, "format", VIEW_JSON_FORMAT);
	assert_json_key_absent(parsed, "interval");
	options.deltas = true;
	print_json_and_parse_process();
	assert_json_number_is(parsed, "interval", 1);
}

static const char *unit_of(const char *name)
{
	static const char *const units[][2] = {{"bytes", "bytes"}, {"usec", "microseconds"}, {"window", "bytes"}};

	if (strcmp(name, "polling_cpu") == 0)
		return "percent";
	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strstr(name, units[i][0]) != NULL)
			return units[i][1];
	return "";
}

static void write_counters_doc_page(FILE *page)
{
	static const char *const kinds[] = {
	        [VMA_STATS_COUNT] = "count", [VMA_STATS_NOW] = "now", [VMA_STATS_MAX] = "maximum"};

	fputs("# Counters\n\n"
	      "The counters of each kind of block, by the names that `vma_stats --json` gives them: "
	      "[observe.md](observe.md#as-json). A\n"
	      "*count* grows from the start of the block, or from `vma_stats -z`. *Now* is a value that holds at "
	      "present, and "
	      "a *maximum*\nis the largest so far. Where no unit is named, things are counted, or the number is a "
	      "sign.\n\n"
	      "This page is made from the lists in `components/stats/include/vma/stats.h`: "
	      "`make test-vma_stats UPDATE_DOCS=1` writes\nit anew.\n",
	      page);
	for (unsigned type = 1; type < VMA_STATS_TYPE_COUNT; type++) {
		size_t count;
		const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);

		fprintf(page, "\n## %s\n\n| key | kind | unit | meaning |\n|---|---|---|---|\n", keys[type]);
		for (size_t i = 0; i < count; i++)
			fprintf(page, "| `%s` | %s | %s | %s |\n", fields[i].name, kinds[fields[i].kind],
			        unit_of(fields[i].name), fields[i].text);
	}
}

/* Run from the root of the tree, as make does. UPDATE_DOCS=1 writes the page. */
static void test_page_of_counters_is_what_the_lists_say(void **state)
{
	char *wanted = NULL, *found = NULL;
	size_t wanted_bytes = 0, found_bytes = 0;
	FILE *page = open_memstream(&wanted, &wanted_bytes);

	(void)state;
	assert_non_null(page);
	write_counters_doc_page(page);
	fclose(page);
	if (getenv("UPDATE_DOCS") != NULL) {
		page = fopen(PAGE, "w");
		assert_non_null(page);
		fputs(wanted, page);
		assert_int_equal(fclose(page), 0);
	}
	page = fopen(PAGE, "r");
	if (page == NULL)
		fail_msg("no %s here", PAGE);
	if (getdelim(&found, &found_bytes, '\0', page) < 0 || strcmp(found, wanted) != 0)
		fail_msg("%s is out of date: make test-vma_stats UPDATE_DOCS=1 writes it", PAGE);
	fclose(page);
	free(wanted);
	free(found);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_counter_of_every_block_is_there, teardown_free_parsed_json),
        cmocka_unit_test_teardown(test_largest_number_is_printed_whole, teardown_free_parsed_json),
        cmocka_unit_test_teardown(test_hostile_names_are_escaped, teardown_free_parsed_json),
        cmocka_unit_test_teardown(test_numbers_that_mean_nothing_are_survived, teardown_free_parsed_json),
        cmocka_unit_test_teardown(test_connection_has_its_names, teardown_free_parsed_json),
        cmocka_unit_test_teardown(test_socket_of_the_kernel_has_its_reason, teardown_free_parsed_json),
        cmocka_unit_test_teardown(test_view_has_only_its_parts, teardown_free_parsed_json),
        cmocka_unit_test(test_page_of_counters_is_what_the_lists_say),
};

VMA_TEST_MAIN(tests)
