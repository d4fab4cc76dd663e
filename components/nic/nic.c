/*
 * nic - the front: finds the backend of a spec, checks what every backend would have to check, forwards.
 *
 * The calls of the control path put cancellation off. The backends use other libraries (libibverbs, libbpf), which
 * open, read and write: those are cancellation points, and would leave the locks of the backend and of its user taken.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include <vma/log.h>
#include <vma/nic.h>

#include "backends.h"
#include "tap.h"

/* The value of an expression that is no cancellation point. */
#define WITHOUT_CANCELLATION(expression)                                                                               \
	({                                                                                                             \
		int cancel_state;                                                                                      \
		__typeof__(expression) value;                                                                          \
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);                                         \
		value = (expression);                                                                                  \
		pthread_setcancelstate(cancel_state, NULL);                                                            \
		value;                                                                                                 \
	})
#define WITHOUT_CANCELLATION_VOID(call) ((void)WITHOUT_CANCELLATION(((call), 0)))

/* 0, the backend, and what follows its name. */
static int nic_spec_parse(const char *spec, const struct vma_nic_ops **ops, const char **arg)
{
	const char *colon = spec != NULL ? strchr(spec, ':') : NULL;

	if (colon == NULL || colon[1] == '\0') {
		vma_log_error("nic: '%s' is not of the form BACKEND:ARGUMENT", spec != NULL ? spec : "");
		return -EINVAL;
	}
	*arg = colon + 1;
	*ops = nic_backend_find(spec, (size_t)(colon - spec));
	if (*ops == NULL) {
		vma_log_error("nic: there is no backend for '%s'", spec);
		return -ENODEV;
	}
	return 0;
}

int vma_nic_open(const char *spec, const struct vma_nic_attr *attr, struct vma_nic **out)
{
	const struct vma_nic_ops *ops;
	const char *arg;
	int rc;

	*out = NULL;
	if (attr == NULL || attr->arena == NULL)
		return -EINVAL;
	rc = nic_spec_parse(spec, &ops, &arg);
	return rc < 0 ? rc : WITHOUT_CANCELLATION(ops->open(arg, attr, out));
}

int vma_nic_probe(const char *spec, const struct vma_nic_attr *attr)
{
	const struct vma_nic_ops *ops;
	const char *arg;
	int rc = nic_spec_parse(spec, &ops, &arg);

	if (rc < 0)
		return rc;
	return ops->look != NULL ? WITHOUT_CANCELLATION(ops->look(arg, attr)) : -EOPNOTSUPP;
}

void vma_nic_close(struct vma_nic *nic)
{
	if (nic != NULL)
		WITHOUT_CANCELLATION_VOID(nic->ops->close(nic));
}

int vma_nic_qp_create(struct vma_nic *nic, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out)
{
	int rc;

	*out = NULL;
	rc = WITHOUT_CANCELLATION(nic->ops->qp_create(nic, attr, out));
	if (rc == 0)
		nic_tap_register_queue_pair(*out);
	return rc;
}

void vma_nic_qp_destroy(struct vma_nic_qp *qp)
{
	if (qp == NULL)
		return;
	nic_tap_unregister_queue_pair(qp);
	WITHOUT_CANCELLATION_VOID(qp->ops->qp_destroy(qp));
}

int vma_nic_qp_rebind(struct vma_nic_qp *qp)
{
	return qp->ops->qp_rebind != NULL ? WITHOUT_CANCELLATION(qp->ops->qp_rebind(qp)) : 0;
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
	uint8_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum |= bytes[i];
	return sum == 0;
}

static bool flow_key_is_port_block(const struct vma_flow_key *key)
{
	return key->proto == VMA_FLOW_TCP_PORTS && key->peer_port_be == 0 &&
	       ntohs(key->local_port_be) % VMA_FLOW_PORTS == 0;
}

int vma_flow_key_check(const struct vma_flow_key *key)
{
	if (key->family != AF_INET)
		return key->family == AF_INET6 ? -EAFNOSUPPORT : -EINVAL;
	if (key->proto != IPPROTO_UDP && key->proto != IPPROTO_TCP && !flow_key_is_port_block(key))
		return -EINVAL;
	if (key->vlan > 4094 || key->local_port_be == 0 || all_zero(key->local, 4))
		return -EINVAL;
	if (!all_zero(key->local + 4, sizeof(key->local) - 4) || !all_zero(key->peer + 4, sizeof(key->peer) - 4))
		return -EINVAL;
	if (all_zero(key->peer, 4) != (key->peer_port_be == 0))
		return -EINVAL;
	return 0;
}

/* Of a NIC's own flows. No other process may ask for a flow of an address: vma_flow_key_check refuses it. */
static int nic_flow_key_check(const struct vma_nic_qp *qp, const struct vma_flow_key *key)
{
	struct vma_flow_key with_port = *key;

	if (key->proto != VMA_FLOW_TCP_ADDRESS)
		return vma_flow_key_check(key);
	if (key->local_port_be != 0 || key->peer_port_be != 0)
		return -EINVAL;
	if (!(qp->nic->info.caps & VMA_NIC_CAP_TO_KERNEL))
		return -EOPNOTSUPP;
	with_port.proto = IPPROTO_TCP;
	with_port.local_port_be = htons(1);
	return vma_flow_key_check(&with_port);
}

int vma_nic_flow_add(struct vma_nic_qp *qp, const struct vma_flow_rule *rule)
{
	int rc = nic_flow_key_check(qp, &rule->key);

	if (rc == 0 && !vma_flow_flags_ok(rule))
		rc = -EINVAL;
	return rc != 0 ? rc : WITHOUT_CANCELLATION(qp->ops->flow_add(qp, rule));
}

int vma_nic_flow_stop_new_connections(struct vma_nic_qp *qp, const struct vma_flow_key *key)
{
	const int rc = vma_flow_key_check(key);

	if (rc != 0)
		return rc;
	return qp->ops->flow_retire != NULL ? WITHOUT_CANCELLATION(qp->ops->flow_retire(qp, key)) : -ENOENT;
}

int vma_nic_flow_del(struct vma_nic_qp *qp, const struct vma_flow_key *key)
{
	int rc = nic_flow_key_check(qp, key);

	return rc != 0 ? rc : WITHOUT_CANCELLATION(qp->ops->flow_del(qp, key));
}

int vma_nic_flow_move(struct vma_nic_qp *from, struct vma_nic_qp *to, const struct vma_flow_key *key)
{
	const int rc = vma_flow_key_check(key);

	if (rc != 0)
		return rc;
	if (from == to || from->nic != to->nic || !vma_flow_may_move_to_other_qp(key))
		return -EINVAL;
	return from->ops->flow_move != NULL ? WITHOUT_CANCELLATION(from->ops->flow_move(from, to, key)) : -EOPNOTSUPP;
}

bool vma_nic_port_has_rule(const struct vma_nic_qp *qp, uint16_t local_port_be)
{
	return qp->ops->port_is_named == NULL || qp->ops->port_is_named(qp, local_port_be);
}

bool vma_nic_qp_is_only_tenant(const struct vma_nic_qp *qp)
{
	return qp->ops->is_alone == NULL || qp->ops->is_alone(qp);
}

int vma_nic_export_tcp_states_to_daemon(struct vma_nic_qp *qp, const struct vma_flow_minisock *minisocks, unsigned n)
{
	return qp->ops->minisock_export != NULL ? WITHOUT_CANCELLATION(qp->ops->minisock_export(qp, minisocks, n))
	                                        : -EOPNOTSUPP;
}

int vma_nic_set_interrupt_moderation(struct vma_nic_qp *qp, uint32_t count, uint32_t period_usec)
{
	if (qp->ops->moderate == NULL || (qp->nic->info.caps & VMA_NIC_CAP_MODERATION) == 0)
		return -EOPNOTSUPP;
	return WITHOUT_CANCELLATION(qp->ops->moderate(qp, count, period_usec));
}

int vma_nic_set_tx_pacing_rate(struct vma_nic_qp *qp, uint64_t bytes_per_sec, uint32_t burst_bytes)
{
	if (qp->ops->pace == NULL || (qp->nic->info.caps & VMA_NIC_CAP_PACING) == 0)
		return -EOPNOTSUPP;
	return WITHOUT_CANCELLATION(qp->ops->pace(qp, bytes_per_sec, burst_bytes));
}

int vma_nic_enable_hw_timestamps(struct vma_nic *nic)
{
	if (nic->ops->stamp == NULL || (nic->info.caps & VMA_NIC_CAP_HW_TIMESTAMP) == 0)
		return -EOPNOTSUPP;
	return WITHOUT_CANCELLATION(nic->ops->stamp(nic));
}

int vma_nic_leave_connection_to_kernel(struct vma_nic *nic, const struct vma_flow_key *key)
{
	if (nic->ops->exempt == NULL)
		return -EOPNOTSUPP;
	if (vma_flow_key_check(key) != 0 || key->proto != IPPROTO_TCP || key->peer_port_be == 0)
		return -EINVAL;
	return WITHOUT_CANCELLATION(nic->ops->exempt(nic, key));
}

void vma_nic_end_leave_connection_to_kernel(struct vma_nic *nic, const struct vma_flow_key *key)
{
	if (nic->ops->unexempt != NULL)
		WITHOUT_CANCELLATION_VOID(nic->ops->unexempt(nic, key));
}

int vma_nic_mem_register(struct vma_nic *nic, uint32_t first, uint32_t count)
{
	if (nic->ops->mem_register == NULL)
		return -EOPNOTSUPP;
	if (count == 0 || first >= nic->arena->capacity || count > nic->arena->capacity - first)
		return -EINVAL;
	return WITHOUT_CANCELLATION(nic->ops->mem_register(nic, first, count));
}

void vma_nic_mem_unregister(struct vma_nic *nic, uint32_t first, uint32_t count)
{
	if (nic->ops->mem_unregister != NULL)
		WITHOUT_CANCELLATION_VOID(nic->ops->mem_unregister(nic, first, count));
}
