/* device_rules - the rules that a fake NIC has, as an owner of a device keeps them: one per key, by one queue pair. */
#ifndef DEVICE_RULES_H
#define DEVICE_RULES_H

#include "fake_nic.h"

enum { DEVICE_RULES_MAX = 64 };

static struct {
	pthread_mutex_t lock;
	struct vma_flow_rule rule[DEVICE_RULES_MAX];
	unsigned count, asked;
	int refusal;          /* of add; 0: none */
	void (*in_add)(void); /* while the owner is asked, once: before it has added, or after */
	void (*after_add)(void);
} device = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline unsigned device_place(const struct vma_flow_key *key)
{
	unsigned i = 0;

	while (i < device.count && memcmp(&device.rule[i].key, key, sizeof(*key)) != 0)
		i++;
	return i;
}

static inline void device_once(void (**hook)(void))
{
	void (*run)(void) = *hook;

	if (run == NULL) /* threads do not use it */
		return;
	*hook = NULL;
	run();
}

static int device_add(struct fake_nic *fake, const struct vma_flow_rule *rule)
{
	int rc = -EEXIST;

	(void)fake;
	device_once(&device.in_add);
	pthread_mutex_lock(&device.lock);
	device.asked++;
	if (device_place(&rule->key) == device.count) {
		rc = device.refusal;
		if (rc == 0 && device.count == DEVICE_RULES_MAX)
			rc = -ENOSPC;
		if (rc == 0)
			device.rule[device.count++] = *rule;
	}
	pthread_mutex_unlock(&device.lock);
	device_once(&device.after_add);
	return rc;
}

static int device_del(struct fake_nic *fake, const struct vma_flow_key *key)
{
	unsigned place;
	int rc = -ENOENT;

	(void)fake;
	pthread_mutex_lock(&device.lock);
	place = device_place(key);
	if (place < device.count) {
		device.rule[place] = device.rule[--device.count];
		rc = 0;
	}
	pthread_mutex_unlock(&device.lock);
	return rc;
}

static inline void device_begin(struct fake_nic *fake)
{
	device.count = device.asked = 0;
	device.refusal = 0;
	device.in_add = device.after_add = NULL;
	fake->in_flow_add = device_add;
	fake->in_flow_del = device_del;
}

static inline bool device_has(const struct vma_flow_key *key)
{
	return device_place(key) < device.count;
}

#endif
