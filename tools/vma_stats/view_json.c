/* view_json - the counters of processes as a JSON document: the parts that each view has, and their keys. */
#include <json-c/json.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vma/conf_version.h>
#include <vma/rules.h>

#include "processes.h"
#include "view_json.h"

/* What a socket's object has, beside "fd". */
enum socket_part {
	SOCKET_PART_IDENTITY = 1 << 0, /* names, state, inode */
	SOCKET_PART_REASON = 1 << 1,   /* why it is offloaded or not */
	SOCKET_PART_GROUPS = 1 << 2,
	SOCKET_PART_QUEUE = 1 << 3, /* what waits to be received */
	SOCKET_PART_COUNTERS = 1 << 4,
	SOCKET_PARTS_ALL = (1 << 5) - 1,
};

#define STATS_TYPE_BIT(type) (1U << VMA_STATS_TYPE_##type)
static const struct {
	const char *name;
	unsigned parts, blocks; /* of a socket; the types of blocks beside sockets */
} contents[] = {
        [VIEW_BASIC] = {"basic", SOCKET_PART_COUNTERS, STATS_TYPE_BIT(IOMUX)},
        [VIEW_EXTRA] = {"extra", SOCKET_PART_COUNTERS | SOCKET_PART_QUEUE,
                        STATS_TYPE_BIT(IOMUX) | STATS_TYPE_BIT(PROCESS)},
        [VIEW_FULL] = {"full", SOCKET_PART_IDENTITY | SOCKET_PART_GROUPS | SOCKET_PART_QUEUE | SOCKET_PART_COUNTERS,
                       STATS_TYPE_BIT(CQ) | STATS_TYPE_BIT(RING) | STATS_TYPE_BIT(NIC) | STATS_TYPE_BIT(BUFPOOL) |
                               STATS_TYPE_BIT(PROCESS)},
        [VIEW_GROUPS] = {"groups", SOCKET_PART_GROUPS, 0},
        [VIEW_NETSTAT] = {"netstat", SOCKET_PART_IDENTITY, 0},
        [VIEW_WHY] = {"why", SOCKET_PART_IDENTITY | SOCKET_PART_REASON | SOCKET_PART_QUEUE | SOCKET_PART_COUNTERS, 0},
        [VIEW_ALL] = {"all", SOCKET_PARTS_ALL,
                      STATS_TYPE_BIT(IOMUX) | STATS_TYPE_BIT(CQ) | STATS_TYPE_BIT(RING) | STATS_TYPE_BIT(NIC) |
                              STATS_TYPE_BIT(BUFPOOL) | STATS_TYPE_BIT(PROCESS)},
};

static const struct {
	enum vma_stats_type type;
	const char *key;
} block_keys[] = {
        {VMA_STATS_TYPE_PROCESS, "process"}, {VMA_STATS_TYPE_IOMUX, "iomux"}, {VMA_STATS_TYPE_RING, "rings"},
        {VMA_STATS_TYPE_CQ, "cqs"},          {VMA_STATS_TYPE_NIC, "nics"},    {VMA_STATS_TYPE_BUFPOOL, "bufpools"},
};

/* A new object, or the end of the program. */
static struct json_object *json_object_or_exit(struct json_object *object)
{
	if (object == NULL) {
		fputs("vmastat: out of memory\n", stderr);
		exit(EXIT_FAILURE);
	}
	return object;
}

static void json_put_value(struct json_object *object, const char *key, struct json_object *value)
{
	if (json_object_object_add(object, key, json_object_or_exit(value)) != 0)
		json_object_or_exit(NULL);
}

static void json_put_number(struct json_object *object, const char *key, uint64_t number)
{
	json_put_value(object, key, json_object_new_uint64(number));
}

static void json_put_bool(struct json_object *object, const char *key, bool value)
{
	json_put_value(object, key, json_object_new_boolean(value));
}

/* json-c escapes what JSON asks for, but takes any bytes: what is not printable ASCII becomes '?'. */
static struct json_object *json_string_unprintable_masked(const char *text)
{
	char clean[PROCESSES_NAME_BYTES];
	size_t n = 0;

	for (; text[n] != '\0' && n + 1 < sizeof(clean); n++)
		clean[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
	clean[n] = '\0';
	return json_object_or_exit(json_object_new_string(clean));
}

static void json_put_text(struct json_object *object, const char *key, const char *text)
{
	json_put_value(object, key, json_string_unprintable_masked(text));
}

static void json_array_append(struct json_object *array, struct json_object *value)
{
	if (json_object_array_add(array, json_object_or_exit(value)) != 0)
		json_object_or_exit(NULL);
}

/* Every counter of a block, by its name in the lists of <vma/stats.h>. */
static void json_put_block_counters(struct json_object *object, const struct vma_stats_item *item)
{
	struct json_object *counters = json_object_or_exit(json_object_new_object());
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(item->type, &count);

	for (size_t i = 0; i < count; i++)
		json_put_number(counters, fields[i].name,
		                view_read_counter(item->words + fields[i].offset / sizeof(uint64_t)));
	json_put_value(object, "counters", counters);
}

static void json_put_address(struct json_object *object, const char *key, const char *port_key, uint64_t address,
                             uint64_t port)
{
	char text[VIEW_NAME_BYTES];

	if (address == 0 && port == 0)
		return;
	view_format_ipv4_address(text, address);
	json_put_text(object, key, text);
	json_put_number(object, port_key, port);
}

static void json_put_socket_identity(struct json_object *object, const struct view_input *in,
                                     const struct vma_stats_socket *s)
{
	const unsigned long inode = view_socket_inode_of_fd(in->now->pid, view_read_counter(&s->fd));
	const bool tcp = view_read_counter(&s->protocol) == IPPROTO_TCP;

	json_put_text(object, "protocol", tcp ? "tcp" : "udp");
	json_put_bool(object, "offloaded", view_read_counter(&s->offloaded) != 0);
	json_put_address(object, "local_address", "local_port", view_read_counter(&s->local_addr),
	                 view_read_counter(&s->local_port));
	json_put_address(object, "peer_address", "peer_port", view_read_counter(&s->peer_addr),
	                 view_read_counter(&s->peer_port));
	if (tcp && view_read_counter(&s->tcp_state) != 0)
		json_put_text(object, "tcp_state", view_tcp_state_name(view_read_counter(&s->tcp_state)));
	if (inode != 0)
		json_put_number(object, "inode", inode);
}

static void json_put_socket_reason(struct json_object *object, const struct vma_stats_socket *s)
{
	const uint64_t reason = view_read_counter(&s->reason);
	char interface[VIEW_INTERFACE_BYTES];

	if (view_read_counter(&s->offloaded) == 0) {
		json_put_text(object, "reason", view_reason_word(reason));
		json_put_text(object, "reason_text", view_reason_to_text(reason));
	}
	if (view_read_counter(&s->rule_line) & VMA_RULES_ADDED)
		json_put_number(object, "added_rule", view_read_counter(&s->rule_line) & ~(uint64_t)VMA_RULES_ADDED);
	else if (view_read_counter(&s->rule_line) != 0)
		json_put_number(object, "rule_line", view_read_counter(&s->rule_line));
	view_interface_name(s, interface);
	if (interface[0] != '\0')
		json_put_text(object, "interface", interface);
	if (view_read_counter(&s->ring) != 0)
		json_put_number(object, "ring", view_read_counter(&s->ring) - 1);
	if (view_read_counter(&s->last_error) != 0)
		json_put_text(object, "last_error", view_errno_name(view_read_counter(&s->last_error)));
}

static void json_put_socket_groups(struct json_object *object, const struct vma_stats_socket *s)
{
	struct json_object *array = json_object_or_exit(json_object_new_array());
	const _Atomic uint64_t *groups = &s->group_0;
	char text[VIEW_NAME_BYTES];

	for (uint64_t i = 0; i < view_read_counter(&s->groups) && i < VMA_STATS_SOCKET_GROUPS; i++) {
		view_format_ipv4_address(text, view_read_counter(&groups[i]));
		json_array_append(array, json_string_unprintable_masked(text));
	}
	json_put_value(object, "groups", array);
}

/* TCP counts no packets that wait. */
static void json_put_socket_queue(struct json_object *object, const struct view_input *in,
                                  const struct vma_stats_socket *s)
{
	uint64_t packets, bytes;

	view_queued_packets_and_bytes(in, s, &packets, &bytes);
	if (view_read_counter(&s->protocol) != IPPROTO_TCP)
		json_put_number(object, "queue_packets", packets);
	json_put_number(object, "queue_bytes", bytes);
}

static struct json_object *json_object_of_socket(const struct view_input *in, const struct vma_stats_item *item)
{
	const unsigned parts = contents[in->options->view].parts;
	struct json_object *object = json_object_or_exit(json_object_new_object());

	json_put_number(object, "fd", view_read_counter(&item->socket.fd));
	if (parts & SOCKET_PART_IDENTITY)
		json_put_socket_identity(object, in, &item->socket);
	if (parts & SOCKET_PART_REASON)
		json_put_socket_reason(object, &item->socket);
	if (parts & SOCKET_PART_GROUPS)
		json_put_socket_groups(object, &item->socket);
	if (parts & SOCKET_PART_QUEUE)
		json_put_socket_queue(object, in, &item->socket);
	if (parts & SOCKET_PART_COUNTERS)
		json_put_block_counters(object, item);
	return object;
}

static struct json_object *json_object_of_stats_block(const struct vma_stats_item *item)
{
	struct json_object *object = json_object_or_exit(json_object_new_object());

	json_put_text(object, "name", item->name);
	json_put_block_counters(object, item);
	return object;
}

static void json_put_stats_blocks(struct json_object *object, const struct view_input *in, enum vma_stats_type type,
                                  const char *key)
{
	struct json_object *array = json_object_or_exit(json_object_new_array());

	for (size_t i = 0; i < in->now->count; i++)
		if (in->now->items[i].type == type)
			json_array_append(array, json_object_of_stats_block(&in->now->items[i]));
	json_put_value(object, key, array);
}

struct json_object *view_json_new_document(const struct options *options)
{
	struct json_object *document = json_object_or_exit(json_object_new_object());

	json_put_number(document, "format", VIEW_JSON_FORMAT);
	json_put_text(document, "version", VMA_VERSION);
	json_put_text(document, "view", contents[options->view].name);
	json_put_number(document, "time", (uint64_t)time(NULL));
	if (options->deltas)
		json_put_number(document, "interval", options->interval);
	json_put_value(document, "processes", json_object_new_array());
	return document;
}

void view_json_add_process(struct json_object *document, const struct view_input *in, unsigned *shown,
                           unsigned *by_kernel)
{
	struct json_object *process = json_object_or_exit(json_object_new_object());
	struct json_object *sockets = json_object_or_exit(json_object_new_array());
	char name[PROCESSES_NAME_BYTES];

	json_put_number(process, "pid", (uint64_t)in->now->pid);
	if (processes_name(in->now->pid, name))
		json_put_text(process, "program", name);
	json_put_number(process, "taken_ns", in->now->taken_ns);
	for (size_t i = 0; i < in->now->count; i++) {
		if (!view_is_selected_socket(in, &in->now->items[i]))
			continue;
		json_array_append(sockets, json_object_of_socket(in, &in->now->items[i]));
		++*shown;
		*by_kernel += view_is_by_kernel(&in->now->items[i].socket);
	}
	json_put_value(process, "sockets", sockets);
	for (size_t i = 0; i < sizeof(block_keys) / sizeof(block_keys[0]); i++)
		if (contents[in->options->view].blocks & 1U << block_keys[i].type)
			json_put_stats_blocks(process, in, block_keys[i].type, block_keys[i].key);
	json_array_append(json_object_object_get(document, "processes"), process);
}

void view_json_print_and_free(struct json_object *document, FILE *out)
{
	if (out != NULL) {
		const int flags = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
		const char *const text = json_object_to_json_string_ext(document, flags);

		if (text == NULL)
			json_object_or_exit(NULL);
		else
			fprintf(out, "%s\n", text);
		fflush(out);
	}
	json_object_put(document);
}
