/* watches - see watches.h. */
#include <errno.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <vma/log.h>

#include "../kernel_sock.h"
#include "../os.h"
#include "../owner/owner.h"
#include "../route_type.h"
#include "server.h"
#include "watches.h"

#define VLAN_MAX 4094
#define FIRST_MS 50
#define AGAIN_MS 600
#define PACE_MS 1
#define PER_PACE 32
#define BUCKETS VMAD_WATCHES_MAX
#define NONE UINT32_MAX

/* Lists: of each client; what is due for its first probe, and for its second: there the delay is the same, so they are
 * in order. */
enum { LIST_FIRST = VMAD_PEERS_MAX, LIST_AGAIN, LISTS };

struct watch {
	struct vmad_watched of;
	uint32_t list, next, prev, chain; /* chain: the next of its bucket; of a free one, the next that is free */
	uint64_t due_ms;
};

struct list {
	uint32_t first, last;
};

struct vmad_watches {
	unsigned ifindex;
	const char *interface;
	uint64_t seed;
	uint32_t count, free_ones, seq;
	uint64_t pace_ms;              /* not before */
	int raw_fd, route_fd, diag_fd; /* -1: not open */
	struct list list[LISTS];
	uint32_t noted[VMAD_PEERS_MAX]; /* of each client */
	uid_t uid[VMAD_PEERS_MAX];
	uint32_t bucket[BUCKETS];
	struct watch at[VMAD_WATCHES_MAX];
};

/* ---- lists and buckets ---- */

static void watch_append(struct vmad_watches *watches, uint32_t number, uint32_t list)
{
	struct watch *watch = &watches->at[number];
	struct list *to = &watches->list[list];

	watch->list = list;
	watch->next = NONE;
	watch->prev = to->last;
	if (to->last == NONE)
		to->first = number;
	else
		watches->at[to->last].next = number;
	to->last = number;
	if (list < VMAD_PEERS_MAX)
		watches->noted[list]++;
}

static void watch_unlink(struct vmad_watches *watches, uint32_t number)
{
	const struct watch *watch = &watches->at[number];
	struct list *from = &watches->list[watch->list];

	if (watch->prev == NONE)
		from->first = watch->next;
	else
		watches->at[watch->prev].next = watch->next;
	if (watch->next == NONE)
		from->last = watch->prev;
	else
		watches->at[watch->next].prev = watch->prev;
	if (watch->list < VMAD_PEERS_MAX)
		watches->noted[watch->list]--;
}

static uint32_t *vmad_watch_bucket_of_key(struct vmad_watches *watches, const struct vmad_watched *watched)
{
	uint64_t words[sizeof(*watched) / 8], hash = watches->seed;

	memcpy(words, watched, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 29;
	}
	return &watches->bucket[hash % BUCKETS];
}

static bool watch_matches_conn(const struct watch *watch, const struct vmad_watched *watched)
{
	return memcmp(&watch->of, watched, sizeof(*watched)) == 0;
}

static uint32_t watch_find(struct vmad_watches *watches, uint32_t list, const struct vmad_watched *watched)
{
	uint32_t number = *vmad_watch_bucket_of_key(watches, watched);

	while (number != NONE &&
	       (watches->at[number].list != list || !watch_matches_conn(&watches->at[number], watched)))
		number = watches->at[number].chain;
	return number;
}

/* Some client watches it that is still there, and is not `but`. */
static bool conn_is_watched_by_other_client(struct vmad_watches *watches, const struct vmad_watched *watched,
                                            uint32_t but)
{
	uint32_t number = *vmad_watch_bucket_of_key(watches, watched);

	while (number != NONE && (watches->at[number].list >= VMAD_PEERS_MAX || watches->at[number].list == but ||
	                          !watch_matches_conn(&watches->at[number], watched)))
		number = watches->at[number].chain;
	return number != NONE;
}

static void watch_drop(struct vmad_watches *watches, uint32_t number)
{
	struct watch *watch = &watches->at[number];
	uint32_t *place = vmad_watch_bucket_of_key(watches, &watch->of);

	watch_unlink(watches, number);
	while (*place != number)
		place = &watches->at[*place].chain;
	*place = watch->chain;
	watch->chain = watches->free_ones;
	watches->free_ones = number;
	watches->count--;
}

/* ---- clients ---- */

struct vmad_watches *vmad_watches_create(unsigned ifindex, const char *interface)
{
	struct vmad_watches *watches = calloc(1, sizeof(*watches));

	if (watches == NULL)
		return NULL;
	watches->ifindex = ifindex;
	watches->interface = interface;
	watches->raw_fd = watches->route_fd = watches->diag_fd = -1;
	if (getrandom(&watches->seed, sizeof(watches->seed), GRND_NONBLOCK) != sizeof(watches->seed))
		watches->seed = os_now_ns();
	watches->seq = (uint32_t)(watches->seed >> 32);
	for (unsigned i = 0; i < LISTS; i++)
		watches->list[i] = (struct list){.first = NONE, .last = NONE};
	memset(watches->bucket, 0xff, sizeof(watches->bucket)); /* NONE */
	for (uint32_t i = 0; i < VMAD_WATCHES_MAX; i++)
		watches->at[i].chain = i + 1 < VMAD_WATCHES_MAX ? i + 1 : NONE;
	return watches;
}

static void watches_close_fds(struct vmad_watches *watches)
{
	if (watches->raw_fd >= 0)
		close(watches->raw_fd);
	if (watches->route_fd >= 0)
		close(watches->route_fd);
	if (watches->diag_fd >= 0)
		nic_fd_close(watches->diag_fd);
	watches->raw_fd = watches->route_fd = watches->diag_fd = -1;
}

void vmad_watches_destroy(struct vmad_watches *watches)
{
	if (watches != NULL)
		watches_close_fds(watches);
	free(watches);
}

uint32_t vmad_watches_count(const struct vmad_watches *watches)
{
	return watches->count;
}

static bool watches_user_is_at_limit(const struct vmad_watches *watches, uid_t uid)
{
	uint32_t n = 0;

	if (uid == 0 || watches->count < VMAD_USER_FLOWS)
		return false;
	for (unsigned client = 0; client < VMAD_PEERS_MAX; client++)
		n += watches->uid[client] == uid ? watches->noted[client] : 0;
	return n >= VMAD_USER_FLOWS;
}

void vmad_watches_add(struct vmad_watches *watches, unsigned client, uid_t uid, const struct vmad_watched *watched)
{
	uint32_t *bucket, number;

	/* Bytes that a client is free to choose would be as many names for one connection, and in one chain. */
	if (watched->local_port_be == 0 || watched->peer_port_be == 0 || watched->reserved != 0 ||
	    watched->vlan > VLAN_MAX || watch_find(watches, client, watched) != NONE)
		return;
	if (watches->free_ones == NONE && watches->list[LIST_AGAIN].first != NONE)
		watch_drop(watches, watches->list[LIST_AGAIN].first); /* its peer has been probed once */
	number = watches->free_ones;
	bucket = vmad_watch_bucket_of_key(watches, watched);
	if (number == NONE || watches_user_is_at_limit(watches, uid)) {
		vma_log_once(VMA_LOG_WARN,
		             "vmad: %s: too many connections by the card: if a process is killed, peers are not told "
		             "of all",
		             watches->interface);
		return;
	}
	watches->free_ones = watches->at[number].chain;
	watches->at[number] = (struct watch){.of = *watched, .chain = *bucket};
	*bucket = number;
	watches->count++;
	watches->uid[client] = uid;
	watch_append(watches, number, client);
}

void vmad_watches_del(struct vmad_watches *watches, unsigned client, const struct vmad_watched *watched)
{
	const uint32_t number = watch_find(watches, client, watched);

	if (number != NONE)
		watch_drop(watches, number);
}

void vmad_watches_del_all_of_client(struct vmad_watches *watches, unsigned client)
{
	while (watches->list[client].first != NONE)
		watch_drop(watches, watches->list[client].first);
}

static void watch_schedule_first_probe(struct vmad_watches *watches, uint32_t number)
{
	watch_unlink(watches, number);
	watches->at[number].due_ms = os_now_ms() + FIRST_MS;
	watch_append(watches, number, LIST_FIRST);
}

void vmad_watches_probe_all_of_client(struct vmad_watches *watches, unsigned client)
{
	while (watches->list[client].first != NONE)
		watch_schedule_first_probe(watches, watches->list[client].first);
}

void vmad_watches_add_and_probe_now(struct vmad_watches *watches, unsigned client, uid_t uid,
                                    const struct vmad_watched *watched)
{
	uint32_t number;

	vmad_watches_add(watches, client, uid, watched);
	number = watch_find(watches, client, watched);
	if (number != NONE)
		watch_schedule_first_probe(watches, number);
}

/* ---- probes ---- */

static bool watches_open_sockets(struct vmad_watches *watches)
{
	if (watches->raw_fd < 0)
		watches->raw_fd = owner_open_raw_ip_socket();
	if (watches->route_fd < 0)
		watches->route_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (watches->raw_fd >= 0 && watches->route_fd >= 0)
		return true;
	vma_log_once(VMA_LOG_WARN, "vmad: %s: peers of ended processes are not told: no raw socket",
	             watches->interface);
	return false;
}

struct vma_flow_key vmad_watched_key(const struct vmad_watched *watched)
{
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = IPPROTO_TCP,
	                           .vlan = watched->vlan,
	                           .local_port_be = watched->local_port_be,
	                           .peer_port_be = watched->peer_port_be};

	memcpy(key.local, watched->local, sizeof(watched->local));
	memcpy(key.peer, watched->peer, sizeof(watched->peer));
	return key;
}

struct question {
	const struct vma_flow_key *key;
	bool has;
};

static void conn_question_match_kernel_sock(const struct kernel_sock *socket, void *arg)
{
	struct question *question = arg;

	question->has = socket->state != TCP_LISTEN && socket->peer_port_be == question->key->peer_port_be &&
	                memcmp(socket->peer, question->key->peer, 4) == 0;
}

/* Not knowing is no licence to disturb it. */
static bool kernel_has_conn(struct vmad_watches *watches, const struct vma_flow_key *key)
{
	struct question question = {.key = key};
	const int rc = kernel_sock_visit_sockets_of_connection(&watches->diag_fd, key, watches->ifindex,
	                                                       conn_question_match_kernel_sock, &question);

	return rc == -ENOENT ? false : rc < 0 || question.has;
}

static bool conn_has_no_owner_on_host(struct vmad_watches *watches, struct xdp_owner *owner,
                                      const struct vmad_watched *watched, uint32_t but)
{
	const struct vma_flow_key key = vmad_watched_key(watched);

	return !conn_is_watched_by_other_client(watches, watched, but) && !xdp_owner_has_flow(owner, &key) &&
	       nic_route_type(watches->route_fd, key.local) == RTN_LOCAL &&
	       nic_route_type(watches->route_fd, key.peer) == RTN_UNICAST && !kernel_has_conn(watches, &key);
}

/* False: no room in the kernel now. Any other failure (no route, a firewall) is what the peer's silence would be. */
static bool watch_send_probe_segments(struct vmad_watches *watches, const struct watch *watch)
{
	const struct vma_flow_key key = vmad_watched_key(&watch->of);
	const bool again = watch->list == LIST_AGAIN;
	int rc = owner_probe_send(watches->raw_fd, watches->ifindex, &key, !again, watches->seq);

	if (rc == 0 && again)
		rc = owner_probe_send(watches->raw_fd, watches->ifindex, &key, false, watches->seq + (1u << 31));
	if (rc == -EAGAIN || rc == -ENOBUFS)
		return false;
	watches->seq += 0x9e3779b9;
	return true;
}

static unsigned watches_send_due_probes(struct vmad_watches *watches, struct xdp_owner *owner, uint32_t list,
                                        uint64_t now_ms, unsigned left)
{
	while (left > 0 && watches->list[list].first != NONE) {
		const uint32_t number = watches->list[list].first;
		struct watch *watch = &watches->at[number];
		bool over;

		if (watch->due_ms > now_ms)
			break;
		over = !conn_has_no_owner_on_host(watches, owner, &watch->of, NONE);
		if (!over && !watch_send_probe_segments(watches, watch))
			return 0;
		left--;
		if (over || list == LIST_AGAIN) {
			watch_drop(watches, number);
			continue;
		}
		watch_unlink(watches, number);
		watch->due_ms = now_ms + AGAIN_MS;
		watch_append(watches, number, LIST_AGAIN);
	}
	return left;
}

static int watches_ms_until_next_probe(const struct vmad_watches *watches, uint64_t now_ms)
{
	uint64_t due_ms = UINT64_MAX;

	for (uint32_t list = LIST_FIRST; list < LISTS; list++) {
		const uint32_t number = watches->list[list].first;

		if (number != NONE && watches->at[number].due_ms < due_ms)
			due_ms = watches->at[number].due_ms;
	}
	if (due_ms == UINT64_MAX)
		return -1;
	if (due_ms < watches->pace_ms)
		due_ms = watches->pace_ms;
	return due_ms > now_ms ? (int)(due_ms - now_ms) : 0;
}

bool vmad_watches_may_take_over_conn(struct vmad_watches *watches, struct xdp_owner *owner, unsigned client,
                                     const struct vmad_watched *watched)
{
	return watched->local_port_be != 0 && watched->peer_port_be != 0 && watched->vlan <= VLAN_MAX &&
	       watches_open_sockets(watches) && conn_has_no_owner_on_host(watches, owner, watched, client);
}

int vmad_watches_tick(struct vmad_watches *watches, struct xdp_owner *owner)
{
	const uint64_t now_ms = os_now_ms();
	unsigned left = PER_PACE;
	int ms = watches_ms_until_next_probe(watches, now_ms);

	if (ms != 0)
		return ms;
	if (!watches_open_sockets(watches)) {
		for (uint32_t list = LIST_FIRST; list < LISTS; list++)
			while (watches->list[list].first != NONE)
				watch_drop(watches, watches->list[list].first);
		return -1;
	}
	for (uint32_t list = LIST_FIRST; list < LISTS && left > 0; list++)
		left = watches_send_due_probes(watches, owner, list, now_ms, left);
	watches->pace_ms = left == 0 ? now_ms + PACE_MS : 0;
	ms = watches_ms_until_next_probe(watches, now_ms);
	if (ms < 0)
		watches_close_fds(watches);
	return ms;
}
