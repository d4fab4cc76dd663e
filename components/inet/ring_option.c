/* ring_option.c - SO_VMA_RING_ALLOC_LOGIC, and the profiles of rings that it names. */
#include <errno.h>

#include <mellanox/vma_extra.h>

#include <vma/inet_ring_option.h>
#include <vma/sock_engine.h>

enum { PROFILES_MAX = 1 << 16 };

/* Keys are 1 and above. All profiles are of packets, and have no properties that a ring would have to have. */
static _Atomic int profiles;

int vma_inet_ring_profile_add(void)
{
	int n = atomic_load_explicit(&profiles, memory_order_relaxed);

	do {
		if (n == PROFILES_MAX)
			return -ENOSPC;
	} while (!atomic_compare_exchange_weak_explicit(&profiles, &n, n + 1, memory_order_relaxed,
	                                                memory_order_relaxed));
	return n + 1;
}

bool vma_inet_is_ring_option(int level, int name)
{
	return level == SOL_SOCKET && (name == SO_VMA_RING_ALLOC_LOGIC || name == SO_VMA_RING_USER_MEMORY);
}

static bool is_ring_alloc_logic(ring_logic_t logic)
{
	switch (logic) {
	case RING_LOGIC_PER_INTERFACE:
	case RING_LOGIC_PER_IP:
	case RING_LOGIC_PER_SOCKET:
	case RING_LOGIC_PER_USER_ID:
	case RING_LOGIC_PER_THREAD:
	case RING_LOGIC_PER_CORE:
	case RING_LOGIC_PER_CORE_ATTACH_THREADS:
		return true;
	default:
		return false;
	}
}

static bool attr_has_bit(const struct vma_ring_alloc_logic_attr *attr, uint32_t bit)
{
	return (attr->comp_mask & bit) != 0;
}

static int ring_request_from_attr(const struct vma_ring_alloc_logic_attr *attr, struct vma_ring_request *request)
{
	const uint32_t known = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY | VMA_RING_ALLOC_MASK_RING_USER_ID |
	                       VMA_RING_ALLOC_MASK_RING_INGRESS | VMA_RING_ALLOC_MASK_RING_ENGRESS;
	const uint32_t last = (uint32_t)atomic_load_explicit(&profiles, memory_order_relaxed);

	if ((attr->comp_mask & ~known) != 0 || !is_ring_alloc_logic(attr->ring_alloc_logic))
		return -EINVAL;
	if (attr->ring_alloc_logic == RING_LOGIC_PER_USER_ID && !attr_has_bit(attr, VMA_RING_ALLOC_MASK_RING_USER_ID))
		return -EINVAL;
	*request = (struct vma_ring_request){.is_set = true, .logic = (enum vma_ring_logic)attr->ring_alloc_logic};
	if (attr_has_bit(attr, VMA_RING_ALLOC_MASK_RING_USER_ID))
		request->user_id = attr->user_id;
	if (!attr_has_bit(attr, VMA_RING_ALLOC_MASK_RING_PROFILE_KEY))
		return 0;
	request->profile = attr->ring_profile_key;
	return request->profile != 0 && request->profile <= last ? 0 : -EINVAL;
}

int vma_inet_set_ring_option(struct vma_file *file, int name, const void *value, socklen_t len, bool has_rings)
{
	struct vma_ring_alloc_logic_attr attr;
	struct vma_ring_request request;
	bool rx, tx;
	int rc;

	if (name != SO_VMA_RING_ALLOC_LOGIC)
		return -EOPNOTSUPP;
	if (len != sizeof(attr))
		return -EINVAL;
	if (vma_memcpy_or_efault(&attr, value, sizeof(attr)) != 0)
		return -EFAULT;
	rc = ring_request_from_attr(&attr, &request);
	rx = attr_has_bit(&attr, VMA_RING_ALLOC_MASK_RING_INGRESS) && attr.ingress;
	tx = attr_has_bit(&attr, VMA_RING_ALLOC_MASK_RING_ENGRESS) && attr.engress;
	if (rc < 0 || (!rx && !tx))
		return -EINVAL;
	if (has_rings)
		return -EPERM;
	if (rx)
		vma_file_set_ring_request(file, VMA_RING_CTX_RX, &request);
	if (tx)
		vma_file_set_ring_request(file, VMA_RING_CTX_TX, &request);
	return 0;
}

static struct vma_ring_request ring_request_of_file_or_conf(const struct vma_file *file, enum vma_ring_ctx_side side)
{
	struct vma_ring_request request = vma_file_get_ring_alloc_request(file, side);
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	if (!request.is_set && engine != NULL)
		request.logic = (enum vma_ring_logic)(side == VMA_RING_CTX_RX ? engine->conf.ring_allocation_logic_rx
		                                                              : engine->conf.ring_allocation_logic_tx);
	return request;
}

static bool ring_requests_are_equal(const struct vma_ring_request *a, const struct vma_ring_request *b)
{
	return a->logic == b->logic && a->user_id == b->user_id && a->profile == b->profile;
}

/* That for receiving; engress says whether that for sending is the same. */
int vma_inet_get_ring_option(const struct vma_file *file, int name, void *value, socklen_t *len)
{
	const struct vma_ring_request rx = ring_request_of_file_or_conf(file, VMA_RING_CTX_RX),
	                              tx = ring_request_of_file_or_conf(file, VMA_RING_CTX_TX);
	struct vma_ring_alloc_logic_attr attr = {
	        .comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS | VMA_RING_ALLOC_MASK_RING_ENGRESS,
	        .ring_alloc_logic = (ring_logic_t)rx.logic,
	        .ring_profile_key = rx.profile,
	        .user_id = rx.user_id,
	        .ingress = 1,
	        .engress = ring_requests_are_equal(&rx, &tx),
	};
	socklen_t room;

	if (name != SO_VMA_RING_ALLOC_LOGIC)
		return -EOPNOTSUPP;
	if (vma_memcpy_or_efault(&room, len, sizeof(room)) != 0)
		return -EFAULT;
	if (room < sizeof(attr))
		return -EINVAL;
	attr.comp_mask |= (rx.profile != 0 ? VMA_RING_ALLOC_MASK_RING_PROFILE_KEY : 0) |
	                  (rx.logic == VMA_RING_LOGIC_PER_USER_ID ? VMA_RING_ALLOC_MASK_RING_USER_ID : 0);
	room = sizeof(attr);
	return vma_memcpy_or_efault(value, &attr, sizeof(attr)) != 0 ||
	                       vma_memcpy_or_efault(len, &room, sizeof(room)) != 0
	               ? -EFAULT
	               : 0;
}
