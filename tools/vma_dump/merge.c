/* merge - a queue for each process, in the order of times; the oldest head of all is the next. */
#include <stdlib.h>
#include <string.h>

#include "merge.h"

/* ---- fragments ---- */

static uint16_t merge_read_be16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

/* Its IPv4 header; NULL: it has none, or is too short. */
static const uint8_t *merge_packet_ipv4_header(const struct merge_packet *packet)
{
	const uint8_t *const data = packet->data;
	const uint32_t len = packet->info.captured, ip = len >= 18 && merge_read_be16(data + 12) == 0x8100 ? 18 : 14;

	return len >= ip + 20 && merge_read_be16(data + ip - 2) == 0x0800 && data[ip] >> 4 == 4 ? data + ip : NULL;
}

static bool frame_is_fragment(const struct merge_packet *packet)
{
	const uint8_t *ip = merge_packet_ipv4_header(packet);

	return ip != NULL && (merge_read_be16(ip + 6) & 0x3fff) != 0; /* more fragments, or an offset */
}

/* Of a fragment: what it has of its datagram's bytes, and where that ends. */
static uint32_t fragment_len(const struct merge_packet *fragment)
{
	const uint8_t *const ip = merge_packet_ipv4_header(fragment);
	const uint32_t len = merge_read_be16(ip + 2), head = (ip[0] & 15u) * 4;

	return len > head ? len - head : 0;
}

static uint32_t fragment_end(const struct merge_packet *fragment)
{
	return (merge_read_be16(merge_packet_ipv4_header(fragment) + 6) & 0x1fffu) * 8 + fragment_len(fragment);
}

static bool fragment_is_last(const struct merge_packet *fragment)
{
	return (merge_read_be16(merge_packet_ipv4_header(fragment) + 6) & 0x2000) == 0;
}

/* Both are fragments. */
static bool fragments_are_of_same_datagram(const struct merge_packet *a, const struct merge_packet *b)
{
	const uint8_t *const ip_a = merge_packet_ipv4_header(a), *const ip_b = merge_packet_ipv4_header(b);

	return memcmp(ip_a + 4, ip_b + 4, 2) == 0 && ip_a[9] == ip_b[9] && memcmp(ip_a + 12, ip_b + 12, 8) == 0;
}

/* ---- what is known later ---- */

static struct merge_packet *merge_queue_find_packet(const struct merge_queue *queue, uint32_t id)
{
	struct merge_packet *packet = queue->last;

	while (packet != NULL && (packet->info.kind != VMA_CAPTURE_IN || packet->info.id != id))
		packet = packet->before;
	return packet;
}

/* A datagram that was put together is dropped as a whole: from the newest fragment back to where it is complete. Those
 * that have a reason of their own were no part of it. */
static void merge_queue_note_dropped_datagram(struct merge_queue *queue, const struct merge_packet *of,
                                              const char *reason)
{
	uint32_t have = 0, total = UINT32_MAX;

	for (struct merge_packet *packet = queue->last; packet != NULL && have < total; packet = packet->before) {
		if (packet->info.kind != VMA_CAPTURE_IN || !packet->is_fragment || packet->reason[0] != '\0' ||
		    !fragments_are_of_same_datagram(packet, of))
			continue;
		memcpy(packet->reason, reason, sizeof(packet->reason));
		have += fragment_len(packet);
		if (fragment_is_last(packet))
			total = fragment_end(packet);
	}
}

static void merge_queue_note_dropped_packet(struct merge_queue *queue, const struct vma_capture_info *info)
{
	struct merge_packet *packet = merge_queue_find_packet(queue, info->id);

	if (packet == NULL)
		return;
	if (packet->is_fragment && strcmp(info->text, "rx_drop_ip_fragment") != 0)
		merge_queue_note_dropped_datagram(queue, packet, info->text);
	else
		memcpy(packet->reason, info->text, sizeof(packet->reason));
}

static void merge_queue_update_moved_packet_id(struct merge_queue *queue, const struct vma_capture_info *info)
{
	struct merge_packet *packet = merge_queue_find_packet(queue, info->id);

	if (packet != NULL)
		packet->info.id = info->len;
}

/* ---- queues ---- */

void merge_add_queue(struct merge *merge, struct merge_queue *queue)
{
	queue->next = merge->queues;
	merge->queues = queue;
}

void merge_remove_queue(struct merge *merge, struct merge_queue *queue)
{
	struct merge_queue **place = &merge->queues;

	while (*place != queue)
		place = &(*place)->next;
	*place = queue->next;
}

/* Threads of a process stamp their packets before they put them: so one may come a little late. */
static bool packet_is_slightly_out_of_order(const struct merge_packet *packet, const struct merge_packet *last)
{
	return last != NULL && packet->info.time_ns < last->info.time_ns &&
	       last->info.time_ns - packet->info.time_ns < MERGE_HOLD_NS;
}

static void merge_queue_insert_by_time(struct merge_queue *queue, struct merge_packet *packet)
{
	struct merge_packet *before = queue->last;

	while (packet_is_slightly_out_of_order(packet, before))
		before = before->before;
	packet->before = before;
	packet->next = before != NULL ? before->next : queue->first;
	*(before != NULL ? &before->next : &queue->first) = packet;
	*(packet->next != NULL ? &packet->next->before : &queue->last) = packet;
}

static size_t merge_packet_bytes(const struct merge_packet *packet)
{
	return sizeof(*packet) + packet->info.captured;
}

bool merge_push_record(struct merge *merge, struct merge_queue *queue, const struct vma_capture_info *info,
                       const uint8_t *data, uint64_t now_ns)
{
	struct merge_packet *packet;

	if (info->kind == VMA_CAPTURE_DROP || info->kind == VMA_CAPTURE_MOVED) {
		(info->kind == VMA_CAPTURE_DROP ? merge_queue_note_dropped_packet
		                                : merge_queue_update_moved_packet_id)(queue, info);
		return true;
	}
	packet = malloc(sizeof(*packet) + info->captured);
	if (packet == NULL)
		return false;
	*packet = (struct merge_packet){.queue = queue,
	                                .info = *info,
	                                .since_ns = now_ns,
	                                .lost = queue->lost,
	                                .interrupted = queue->interrupted};
	memcpy(packet->data, data, info->captured);
	packet->is_fragment = frame_is_fragment(packet);
	queue->lost = 0;
	queue->interrupted = false;
	merge_queue_insert_by_time(queue, packet);
	merge->bytes += merge_packet_bytes(packet);
	return true;
}

/* ---- the next ---- */

static bool merge_packet_is_written_first(const struct merge_packet *a, const struct merge_packet *b, uint64_t now_ns)
{
	const bool a_starves = now_ns - a->since_ns > MERGE_STARVED_NS;
	const bool b_starves = now_ns - b->since_ns > MERGE_STARVED_NS;

	return a_starves != b_starves ? a_starves : a->info.time_ns < b->info.time_ns;
}

struct merge_packet *merge_pop_oldest_packet(struct merge *merge, uint64_t now_ns, bool all)
{
	struct merge_packet *first = NULL;
	struct merge_queue *queue;

	for (queue = merge->queues; queue != NULL; queue = queue->next)
		if (queue->first != NULL &&
		    (first == NULL || merge_packet_is_written_first(queue->first, first, now_ns)))
			first = queue->first;
	if (first == NULL || (!all && merge->bytes <= MERGE_BYTES_MAX &&
	                      now_ns - first->since_ns < (first->is_fragment ? MERGE_HOLD_FRAGMENT_NS : MERGE_HOLD_NS)))
		return NULL;
	queue = first->queue;
	queue->first = first->next;
	*(first->next != NULL ? &first->next->before : &queue->last) = NULL;
	merge->bytes -= merge_packet_bytes(first);
	return first;
}
