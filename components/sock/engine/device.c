/*
 * device - which interfaces are offloaded: opened on first use, kept until the process ends. A refusal is remembered,
 * so a socket per second does not cost a start of vmad per second.
 *
 * An interface is opened under one lock, so two threads do not start two vmads. Other threads that want a device wait
 * meanwhile: milliseconds, or seconds if a vmad hangs. Devices are read under that lock only: control path.
 */
#include <errno.h>
#include <linux/capability.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/nic_owner.h>

#include "engine.h"

#define REFUSED_FOR_NS 2000000000ULL

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static bool
        hw_timestamps_are_wanted; /* with the lock; a forked child has its parent's sockets, and so wants them, too */

/* ---- what can be offloaded ---- */

/* Said once per interface and reason. A reason of the interface itself ends with it: net tells of changes. */
static int device_check_link_usable(const struct vma_conf *conf, const struct vma_net_link *link)
{
	const char *why;
	int rc = vma_device_check_link(conf, link, &why);

	if (rc == 0 || (link->flags & IFF_LOOPBACK) != 0)
		return rc;
	if (rc == -ENETDOWN)
		vma_log_debug("%s: not offloaded now: %s", link->name, why);
	else if (conf->nic == VMA_CONF_NIC_NONE)
		vma_log_once(VMA_LOG_INFO, "no interface is offloaded: %s", why);
	else
		vma_log_once(VMA_LOG_INFO, "%s: not offloaded: %s", link->name, why);
	return rc;
}

/* What owning an interface takes. */
static bool process_may_own_interface(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};
	uint64_t have;

	if (syscall(SYS_capget, &header, data) < 0)
		return false;
	have = (uint64_t)data[1].effective << 32 | data[0].effective;
	if ((have & 1ULL << CAP_NET_RAW) == 0)
		return false;
	return (have & 1ULL << CAP_SYS_ADMIN) != 0 ||
	       ((have & 1ULL << CAP_BPF) != 0 && (have & 1ULL << CAP_PERFMON) != 0 &&
	        (have & 1ULL << CAP_NET_ADMIN) != 0);
}

/* ---- opening ---- */

/*
 * vmad, so that processes can share the interface; without one, this process alone, if it may. Why neither was possible
 * the log says in one line, where it is found out.
 */
static int device_open_nic(struct vma_engine *engine, const struct vma_net_link *link, struct vma_nic **out)
{
	const char *vmad_path = engine->priv->vmad_path[0] != '\0' ? engine->priv->vmad_path : NULL;
	struct vma_nic_attr attr = {
	        .arena = engine->arena,
	        .stats = engine->stats,
	        .owner = VMA_NIC_OWNER_VMAD,
	        .vmad_path = vmad_path,
	};
	char spec[IF_NAMESIZE + 16];
	int rc = vma_ring_conf_to_device_spec(&engine->conf, link->name, spec, sizeof(spec));

	if (rc < 0)
		return rc;
	vma_ring_conf_to_nic_attr(&engine->conf, &attr);
	rc = vma_nic_open(spec, &attr, out);
	if (rc != -ECONNREFUSED)
		return rc;
	if (process_may_own_interface()) {
		attr.owner = VMA_NIC_OWNER_SELF;
		rc = vma_nic_open(spec, &attr, out);
		if (rc == 0)
			vma_log_info("%s: %s: this process owns it alone", link->name,
			             vmad_path != NULL ? "vmad does not answer" : "there is no program vmad");
		return rc;
	}
	vma_log_debug("%s: not offloaded: this process may not own it itself", link->name);
	return rc;
}

static int engine_open_device(struct vma_device *device)
{
	struct vma_engine *engine = device->engine;
	struct vma_net_link link;
	int rc = vma_net_get_link(engine->net, device->ifindex, &link);

	if (rc == 0)
		rc = device_check_link_usable(&engine->conf, &link);
	if (rc == 0)
		rc = device_open_nic(engine, &link, &device->nic);
	if (rc < 0)
		return rc;
	/* Workers that are forked later rent for themselves. Who has no right of his own has none to pass on. Who
	 * starts a set-user-ID program has no say in what its children may do. */
	rc = vma_nic_set_children_inherit_right(device->nic, engine->conf.children_any_user && getauxval(AT_SECURE) == 0
	                                                             ? VMA_NIC_INHERIT_ANY_USER
	                                                             : VMA_NIC_INHERIT_SAME_USER);
	if (rc < 0)
		vma_log_debug("%s: forked children need a right of their own: %s", link.name, strerrordesc_np(-rc));
	if (hw_timestamps_are_wanted)
		vma_nic_enable_hw_timestamps(device->nic);
	vma_log_debug("%s: offloaded", link.name);
	return 0;
}

static struct vma_device *device_find(struct vma_engine *engine, uint32_t ifindex)
{
	struct vma_device *device = engine->priv->devices;

	while (device != NULL && device->ifindex != ifindex)
		device = device->priv->next;
	return device;
}

static struct vma_device *device_create(struct vma_engine *engine, uint32_t ifindex)
{
	struct vma_device *device = vma_alloc(sizeof(*device));

	if (device == NULL)
		return NULL;
	device->priv = vma_alloc(sizeof(*device->priv));
	if (device->priv == NULL) {
		vma_free(device);
		return NULL;
	}
	device->ifindex = ifindex;
	device->engine = engine;
	device->priv->next = engine->priv->devices;
	engine->priv->devices = device;
	return device;
}

/* Worth another try: it was never tried, or long ago, or the interfaces have changed since. */
static bool device_retry_is_due(const struct vma_device *device, uint64_t now)
{
	const struct vma_device_priv *priv = device->priv;

	return priv->refused == 0 || now - priv->refused_ns >= REFUSED_FOR_NS ||
	       priv->generation != vma_net_generation(device->engine->net);
}

/* With the lock. */
static int device_find_or_open(struct vma_engine *engine, uint32_t ifindex, struct vma_device **out)
{
	struct vma_device *device = device_find(engine, ifindex);
	uint64_t now;
	int before;

	if (device != NULL && device->nic != NULL) {
		*out = device;
		return 0;
	}
	if (device == NULL)
		device = device_create(engine, ifindex);
	if (device == NULL)
		return -ENOMEM;
	now = vma_now_ns();
	if (!device_retry_is_due(device, now))
		return device->priv->refused;
	device->priv->generation = vma_net_generation(engine->net);
	before = device->priv->refused;
	device->priv->refused = engine_open_device(device);
	device->priv->refused_ns = vma_now_ns();
	if (device->priv->refused < 0)
		return device->priv->refused;
	if (before < 0)
		schedule_notify_of_all_files(); /* others were refused it, too */
	taken_open_hand_over_server();
	*out = device;
	return 0;
}

int vma_device_find_or_open(struct vma_engine *engine, uint32_t ifindex, struct vma_device **out)
{
	int rc;

	pthread_mutex_lock(&devices_lock);
	rc = device_find_or_open(engine, ifindex, out);
	pthread_mutex_unlock(&devices_lock);
	return rc;
}

/* ---- time stamps ---- */

/* A device without is no error: stamps by software are there, too. */
void vma_devices_enable_hw_timestamps(struct vma_engine *engine)
{
	pthread_mutex_lock(&devices_lock);
	for (struct vma_device *device = engine->priv->devices; device != NULL && !hw_timestamps_are_wanted;
	     device = device->priv->next)
		if (device->nic != NULL)
			vma_nic_enable_hw_timestamps(device->nic);
	hw_timestamps_are_wanted = true;
	pthread_mutex_unlock(&devices_lock);
}

bool vma_device_has_hw_timestamps(struct vma_engine *engine, uint32_t ifindex)
{
	struct vma_device *device;

	return vma_device_find_or_open(engine, ifindex, &device) == 0 &&
	       (vma_nic_info(device->nic)->caps & VMA_NIC_CAP_HW_TIMESTAMP) != 0;
}

/* ---- fork ---- */

#define INHERITED_MAX 16

static uint32_t inherited[INHERITED_MAX]; /* interfaces that the parent had open */
static unsigned n_inherited;

/* A parent without an engine has what its own parent had. */
__attribute__((cold)) void device_record_parents_devices_in_child(struct vma_engine *engine)
{
	pthread_mutex_init(&devices_lock, NULL);
	if (engine == NULL)
		return;
	n_inherited = 0;
	for (struct vma_device *device = engine->priv->devices; device != NULL && n_inherited < INHERITED_MAX;
	     device = device->priv->next)
		if (device->nic != NULL)
			inherited[n_inherited++] = device->ifindex;
}

void devices_open_those_parent_had(struct vma_engine *engine)
{
	struct vma_device *device;

	for (unsigned i = 0; i < n_inherited; i++)
		vma_device_find_or_open(engine, inherited[i], &device);
}
