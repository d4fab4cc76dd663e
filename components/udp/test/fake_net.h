/*
 * fake_net.h - paths as the test says, for dst.c, which is compiled into the test with these in place of net's.
 *
 * One path for all destinations: to the fixture's remote address over the fixture's device, until the test changes it.
 */
#ifndef VMA_UDP_TEST_FAKE_NET_H
#define VMA_UDP_TEST_FAKE_NET_H

#include <linux/rtnetlink.h>

#include "../dst.h"
#include "fixture.h"

static struct {
	struct vma_net_path path; /* its version only */
	struct vma_net_template template;
	struct vma_net_key asked_for; /* the last get */
	_Atomic int held;
	bool known;     /* find finds */
	bool no_device; /* refused */
	_Atomic unsigned gets, finds, wants, probes;
} fake_net;
static pthread_mutex_t fake_net_lock = PTHREAD_MUTEX_INITIALIZER;

static inline void fake_net_reset(void)
{
	static const uint8_t ethernet[14] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0};

	int held = atomic_load(&fake_net.held); /* by destinations of sockets that are gone, until they are retired */

	memset(&fake_net, 0, sizeof(fake_net));
	atomic_store(&fake_net.held, held);
	fake_net.template = (struct vma_net_template){.len = 34,
	                                              .ip_off = 14,
	                                              .state = VMA_NET_READY,
	                                              .type = RTN_UNICAST,
	                                              .ifindex = FIXTURE_IFINDEX,
	                                              .nic = FIXTURE_IFINDEX,
	                                              .mtu = 1500,
	                                              .version = 1};
	memcpy(fake_net.template.bytes, ethernet, 14);
	memcpy(fake_net.template.bytes + 26, fixture_local, 4);
	memcpy(fake_net.template.bytes + 30, fixture_remote, 4);
	atomic_store(&fake_net.path.version, 1);
}

/* As an event does: under the lock, the version last. */
#define fake_net_change(field, value)                                                                                  \
	do {                                                                                                           \
		pthread_mutex_lock(&fake_net_lock);                                                                    \
		fake_net.template.field = (value);                                                                     \
		fake_net.template.version++;                                                                           \
		atomic_fetch_add(&fake_net.path.version, 1);                                                           \
		pthread_mutex_unlock(&fake_net_lock);                                                                  \
	} while (0)

static void fake_net_path_read_template(const struct vma_net_path *path, struct vma_net_template *out)
{
	(void)path;
	pthread_mutex_lock(&fake_net_lock);
	*out = fake_net.template;
	pthread_mutex_unlock(&fake_net_lock);
}

static int fake_path_get(struct vma_net *net, const struct vma_net_key *key, struct vma_net_path **out)
{
	(void)net;
	pthread_mutex_lock(&fake_net_lock);
	fake_net.asked_for = *key;
	pthread_mutex_unlock(&fake_net_lock);
	atomic_fetch_add(&fake_net.gets, 1);
	atomic_fetch_add(&fake_net.held, 1);
	*out = &fake_net.path;
	return 0;
}

static void fake_path_put(struct vma_net *net, struct vma_net_path *path)
{
	(void)net, (void)path;
	atomic_fetch_sub(&fake_net.held, 1);
}

static bool fake_net_find_template(struct vma_net *net, const struct vma_net_key *key, struct vma_net_template *out)
{
	(void)net, (void)key;
	atomic_fetch_add(&fake_net.finds, 1);
	if (!fake_net.known)
		return false;
	fake_net_path_read_template(NULL, out);
	return true;
}

static bool fake_net_want(struct vma_net *net, const struct vma_net_key *key)
{
	(void)net, (void)key;
	atomic_fetch_add(&fake_net.wants, 1);
	return true;
}

static void fake_net_request(struct vma_net *net, const struct vma_net_key *key, unsigned what)
{
	(void)net, (void)key, (void)what;
	atomic_fetch_add(&fake_net.probes, 1);
}

static void fake_net_count_probe(struct vma_net *net, struct vma_net_path *path)
{
	(void)net, (void)path;
	atomic_fetch_add(&fake_net.probes, 1);
}

static int fake_device_get(struct vma_engine *engine, uint32_t ifindex, struct vma_device **out)
{
	(void)engine;
	if (fake_net.no_device || ifindex != FIXTURE_IFINDEX)
		return -EOPNOTSUPP;
	*out = &fixture_device;
	return 0;
}

#define vma_net_path_get fake_path_get
#define vma_net_path_put fake_path_put
#define vma_net_path_read_template fake_net_path_read_template
#define vma_net_find_template fake_net_find_template
#define vma_net_request_path fake_net_want
#define vma_net_request_path_check fake_net_request
#define vma_net_path_probe fake_net_count_probe
#define vma_device_find_or_open fake_device_get
#include "../dst.c"
#include "../dst_find.c"

#endif
