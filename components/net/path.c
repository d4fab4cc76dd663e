/* path - taking, holding and finding paths. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "net_priv.h"
#include "path_slot.h"

static struct path *path_priv(struct vma_net_path *path)
{
	return (struct path *)path;
}

/* ---- memory ---- */

/* A path without holder, not found for longest: the first of the queue that was not used since it was passed over. */
static void path_evict_least_recent(struct vma_net *net)
{
	struct path *path = TAILQ_FIRST(&net->paths);

	for (uint32_t passed = 0; path != NULL && passed < 2 * NET_PATHS_IDLE_MAX; passed++) {
		struct path *next = TAILQ_NEXT(path, all);

		if (path->refs == 0 && atomic_exchange_explicit(&path->pub.used, 0, memory_order_relaxed) == 0) {
			net_path_free(net, path);
			return;
		}
		TAILQ_REMOVE(&net->paths, path, all);
		TAILQ_INSERT_TAIL(&net->paths, path, all);
		path = next != NULL ? next : TAILQ_FIRST(&net->paths);
	}
}

static struct path *path_allocate(struct vma_net *net)
{
	struct path *path;

	if (net->paths_idle >= NET_PATHS_IDLE_MAX)
		path_evict_least_recent(net);
	path = TAILQ_FIRST(&net->free_paths);
	if (path != NULL) {
		TAILQ_REMOVE(&net->free_paths, path, all);
		return path;
	}
	path = aligned_alloc(_Alignof(struct path), sizeof(*path));
	if (path != NULL)
		memset(path, 0, sizeof(*path));
	return path;
}

/* What readers may still look at (pub, request_entry) stays valid: the version goes on, and the key in the slot is
 * none. */
void net_path_free(struct vma_net *net, struct path *path)
{
	static const struct vma_net_key nothing;
	struct vma_net_template empty = {.state = VMA_NET_USE_OS, .reason = VMA_NET_REASON_NOT_ASKED};

	if (path->in_table)
		path_table_remove(&net->table, &path->key);
	path->in_table = false;
	path->dirty = false;
	net_path_drop_neigh(path);
	path->key = path->published_key = nothing;
	path_slot_publish_template(&path->pub, &empty, &nothing);
	path->now = empty;
	TAILQ_REMOVE(&net->paths, path, all);
	TAILQ_INSERT_HEAD(&net->free_paths, path, all);
	net->paths_idle--;
}

void net_paths_fini(struct vma_net *net)
{
	struct path *path;

	while ((path = TAILQ_FIRST(&net->paths)) != NULL) {
		TAILQ_REMOVE(&net->paths, path, all);
		net_path_drop_neigh(path);
		free(path);
	}
	while ((path = TAILQ_FIRST(&net->free_paths)) != NULL) {
		TAILQ_REMOVE(&net->free_paths, path, all);
		free(path);
	}
}

/* ---- taking ---- */

/*
 * The lock is held, so what the table finds is not reused meanwhile. A path that lost its place in the table to another
 * one of the same hash is found by nobody: its holder is its only one.
 */
static struct path *path_find_locked(struct vma_net *net, const struct vma_net_key *key)
{
	struct vma_net_path *path = path_table_find(&net->table, key);

	return path != NULL && memcmp(&path_priv(path)->key, key, sizeof(*key)) == 0 ? path_priv(path) : NULL;
}

static struct path *path_create(struct vma_net *net, const struct vma_net_key *key)
{
	struct path *path = path_allocate(net);

	if (path == NULL)
		return NULL;
	path->key = *key;
	path->refs = 0;
	path->idle_since_ns = net_now_ns();
	TAILQ_INSERT_TAIL(&net->paths, path, all);
	net->paths_idle++;
	net_path_update(net, path);
	path->in_table = path_table_add(&net->table, key, &path->pub);
	return path;
}

static int check_path_key(const struct vma_net_key *key)
{
	if (key->family == AF_INET6)
		return -EAFNOSUPPORT;
	if (key->family != AF_INET || key->zero != 0)
		return -EINVAL;
	for (int i = 4; i < 16; i++)
		if (key->dst[i] != 0 || key->src[i] != 0)
			return -EINVAL;
	return 0;
}

int vma_net_path_get(struct vma_net *net, const struct vma_net_key *requested, struct vma_net_path **out)
{
	struct vma_net_key key;
	struct net_hold hold;
	struct path *path;
	int rc = check_path_key(requested);

	if (rc < 0)
		return rc;
	net_lock(net, &hold);
	net_process_events_and_timers(net);
	key = net_route_key_without_unused_ports(net, requested);
	path = path_find_locked(net, &key);
	if (path == NULL)
		path = path_create(net, &key);
	if (path != NULL) {
		if (path->refs++ == 0)
			net->paths_idle--;
		*out = &path->pub;
		net_arm_timer_for_next_work(net); /* the first path starts the rechecks */
	}
	net_unlock(net, &hold);
	return path != NULL ? 0 : -ENOMEM;
}

void vma_net_path_put(struct vma_net *net, struct vma_net_path *pub)
{
	struct net_hold hold;
	struct path *path = path_priv(pub);

	net_lock(net, &hold);
	if (--path->refs == 0) {
		net->paths_idle++;
		path->idle_since_ns = net_now_ns();
		if (!path->in_table) /* nobody could find it again */
			net_path_free(net, path);
	}
	net_unlock(net, &hold);
}

/* ---- without the lock ---- */

void vma_net_path_read_template(const struct vma_net_path *path, struct vma_net_template *out)
{
	uint64_t words[VMA_NET_TEMPLATE_WORDS];

	path_slot_read_template_words(path, words, VMA_NET_TEMPLATE_WORDS);
	memcpy(out, words, sizeof(*out));
}

/* The path of exactly this key, with its template. */
static struct vma_net_path *path_find(struct vma_net *net, const struct vma_net_key *requested,
                                      struct vma_net_template *out)
{
	const struct vma_net_key key = net_route_key_without_unused_ports(net, requested);
	struct vma_net_path *path = path_table_find(&net->table, &key);
	uint64_t words[PATH_SLOT_WORDS];

	if (path == NULL)
		return NULL;
	path_slot_read_template_words(path, words, PATH_SLOT_WORDS);
	if (memcmp(words + VMA_NET_TEMPLATE_WORDS, &key, sizeof(key)) != 0)
		return NULL;
	memcpy(out, words, sizeof(*out));
	if (atomic_load_explicit(&path->used, memory_order_relaxed) == 0)
		atomic_store_explicit(&path->used, 1, memory_order_relaxed);
	return path;
}

bool vma_net_find_template(struct vma_net *net, const struct vma_net_key *key, struct vma_net_template *out)
{
	return path_find(net, key, out) != NULL;
}

static void path_post_request(struct vma_net *net, struct vma_net_path *path, uint32_t what)
{
	if (request_queue_push_mpsc(&net->requests, path, &path_priv(path)->request_entry, what))
		net_wake(net);
}

void vma_net_request_path_check(struct vma_net *net, const struct vma_net_key *key, unsigned what)
{
	struct vma_net_template unused;
	struct vma_net_path *path = path_find(net, key, &unused);

	if (path != NULL) /* should it be reused from here on, another path is probed or rechecked: no harm */
		path_post_request(net, path, what);
}

bool vma_net_request_path(struct vma_net *net, const struct vma_net_key *requested)
{
	const struct vma_net_key key = net_route_key_without_unused_ports(net, requested);

	if (check_path_key(&key) < 0 || !path_request_board_post(&net->wants, &key))
		return false;
	net_wake(net);
	return true;
}

int net_paths_create_requested(struct vma_net *net)
{
	struct vma_net_key key;
	unsigned at = 0;
	int n = 0;

	while (path_request_board_take(&net->wants, &at, &key)) {
		struct path *path = path_find_locked(net, &key);

		if (path == NULL)
			path = path_create(net, &key);
		if (path != NULL && !path->in_table && path->refs == 0)
			net_path_free(net, path);
		n++;
	}
	return n;
}

void vma_net_path_probe(struct vma_net *net, struct vma_net_path *path)
{
	path_post_request(net, path, VMA_NET_REQUEST_PROBE);
}

void vma_net_path_recheck(struct vma_net *net, struct vma_net_path *path)
{
	path_post_request(net, path, VMA_NET_REQUEST_RECHECK);
}

/* ---- watches ---- */

void vma_net_watch(struct vma_net *net, struct vma_net_path *path, struct vma_net_watch *watch)
{
	struct net_hold hold;

	net_lock(net, &hold);
	watch->next = path_priv(path)->watches;
	watch->prev_next = &path_priv(path)->watches;
	if (watch->next != NULL)
		watch->next->prev_next = &watch->next;
	path_priv(path)->watches = watch;
	net_unlock(net, &hold);
}

void vma_net_unwatch(struct vma_net *net, struct vma_net_watch *watch)
{
	struct net_hold hold;

	net_lock(net, &hold);
	*watch->prev_next = watch->next;
	if (watch->next != NULL)
		watch->next->prev_next = watch->prev_next;
	net_unlock(net, &hold);
}
