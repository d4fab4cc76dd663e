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

static inline unsigned fake_device_rule_index(const struct vma_flow_key *key)
{
	unsigned i = 0;

	while (i < device.count && memcmp(&device.rule[i].key, key, sizeof(*key)) != 0)
		i++;
	return i;
}

static inline void fake_device_run_hook_once(void (**hook)(void))
{
	void (*run)(void) = *hook;

	if (run == NULL) /* threads do not use it */
		return;
	*hook = NULL;
	run();
}

static int fake_device_add_rule(struct fake_nic *fake, const struct vma_flow_rule *rule)
{
	int rc = -EEXIST;

	(void)fake;
	fake_device_run_hook_once(&device.in_add);
	pthread_mutex_lock(&device.lock);
	device.asked++;
	if (fake_device_rule_index(&rule->key) == device.count) {
		rc = device.refusal;
		if (rc == 0 && device.count == DEVICE_RULES_MAX)
			rc = -ENOSPC;
		if (rc == 0)
			device.rule[device.count++] = *rule;
	}
	pthread_mutex_unlock(&device.lock);
	fake_device_run_hook_once(&device.after_add);
	return rc;
}

static int fake_device_delete_rule(struct fake_nic *fake, const struct vma_flow_key *key)
{
	unsigned place;
	int rc = -ENOENT;

	(void)fake;
	pthread_mutex_lock(&device.lock);
	place = fake_device_rule_index(key);
	if (place < device.count) {
		device.rule[place] = device.rule[--device.count];
		rc = 0;
	}
	pthread_mutex_unlock(&device.lock);
	return rc;
}

static inline void fake_device_reset_rules(struct fake_nic *fake)
{
	device.count = device.asked = 0;
	device.refusal = 0;
	device.in_add = device.after_add = NULL;
	fake->in_flow_add = fake_device_add_rule;
	fake->in_flow_del = fake_device_delete_rule;
}

static inline bool fake_device_has_rule(const struct vma_flow_key *key)
{
	return fake_device_rule_index(key) < device.count;
}

#endif
