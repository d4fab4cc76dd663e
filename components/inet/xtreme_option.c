/*
 * xtreme_option - SO_VMA_USER_DATA and SO_VMA_FLOW_TAG.
 *
 * A flow tag is a number that a device would write into the completions of a socket's packets. Devices here find the
 * socket by the addresses alone, so the tag is kept for whoever asks for it, and has no other effect.
 */
#include <errno.h>

#include <vma/inet_xtreme.h>

#define FLOW_TAG_MAX ((1U << 20) - 1)

static int set_user_data(struct vma_xtreme *xtreme, const void *value, socklen_t len)
{
	uint64_t data;

	if (len != sizeof(data))
		return -EINVAL;
	if (vma_memcpy_or_efault(&data, value, sizeof(data)) != 0)
		return -EFAULT;
	atomic_store_explicit(&xtreme->user_data, data, memory_order_relaxed);
	/* A poll that sees this sees the number: it reads the other one after it. */
	atomic_store_explicit(&xtreme->has_user_data, true, memory_order_release);
	return 0;
}

static int set_flow_tag(struct vma_xtreme *xtreme, const void *value, socklen_t len)
{
	uint32_t tag;

	if (len != sizeof(tag))
		return -EINVAL;
	if (vma_memcpy_or_efault(&tag, value, sizeof(tag)) != 0)
		return -EFAULT;
	if (tag == 0 || tag > FLOW_TAG_MAX)
		return -EINVAL;
	atomic_store_explicit(&xtreme->flow_tag, tag, memory_order_relaxed);
	return 0;
}

int vma_xtreme_setsockopt(struct vma_xtreme *xtreme, int name, const void *value, socklen_t len)
{
	switch (name) {
	case SO_VMA_USER_DATA:
		return set_user_data(xtreme, value, len);
	case SO_VMA_FLOW_TAG:
		return set_flow_tag(xtreme, value, len);
	default:
		return -ENOPROTOOPT;
	}
}

/* As the kernel: at most *len bytes, and their number. */
static int copy_option_to_caller(const void *own, socklen_t own_len, void *value, socklen_t *len)
{
	socklen_t room;

	if (vma_memcpy_or_efault(&room, len, sizeof(room)) != 0)
		return -EFAULT;
	if ((int)room < 0)
		return -EINVAL;
	if (room > own_len)
		room = own_len;
	if (vma_memcpy_or_efault(value, own, room) != 0)
		return -EFAULT;
	return vma_memcpy_or_efault(len, &room, sizeof(room));
}

int vma_xtreme_getsockopt(const struct vma_xtreme *xtreme, int name, void *value, socklen_t *len)
{
	const uint32_t tag = atomic_load_explicit(&xtreme->flow_tag, memory_order_relaxed);
	const uint64_t data = vma_xtreme_user_data(xtreme);

	switch (name) {
	case SO_VMA_USER_DATA:
		return copy_option_to_caller(&data, sizeof(data), value, len);
	case SO_VMA_FLOW_TAG:
		return copy_option_to_caller(&tag, sizeof(tag), value, len);
	default:
		return -ENOPROTOOPT;
	}
}
