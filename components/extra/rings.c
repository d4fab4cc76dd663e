/* rings - by which rings a socket receives and sends, and their descriptors. */
#include <errno.h>

#include <vma/extra.h>
#include <vma/inet_ring_option.h>
#include <vma/sock_engine.h>

enum { RINGS_MAX = 256 };

/* The ring contexts of an offloaded socket, and how many there are, RINGS_MAX at most. */
static int get_ring_ctxs_of_socket(struct vma_file *file, struct vma_ring_ctx **ring_ctxs)
{
	int n;

	if (file == NULL || (file->kind != VMA_FILE_UDP && file->kind != VMA_FILE_TCP) || file->os_only ||
	    file->ops->ring_ctxs == NULL)
		return -EINVAL;
	n = file->ops->ring_ctxs(file, ring_ctxs, RINGS_MAX);
	return n < RINGS_MAX ? n : RINGS_MAX;
}

int vma_extra_get_rings_num(struct vma_file *file)
{
	struct vma_ring_ctx *ring_ctxs[RINGS_MAX];

	return get_ring_ctxs_of_socket(file, ring_ctxs);
}

/* A ring context that has ended by now is the socket's no more. */
int vma_extra_get_ring_fds(struct vma_file *file, int *fds, int max)
{
	struct vma_ring_ctx *ring_ctxs[RINGS_MAX];
	const int n = get_ring_ctxs_of_socket(file, ring_ctxs);
	int given = 0;

	if (n < 0 || max <= 0)
		return -EINVAL;
	for (int i = 0; i < n && given < max; i++) {
		const int fd = vma_ring_ctx_get_or_open_fd(ring_ctxs[i]);

		if (fd == -ENODEV)
			continue;
		if (fd < 0)
			return fd;
		if (vma_memcpy_or_efault(&fds[given], &fd, sizeof(fd)) != 0)
			return -EFAULT;
		given++;
	}
	return given;
}

static int copy_ipv4_destination_from_program(const struct vma_file *file, const struct sockaddr *to, socklen_t len,
                                              struct sockaddr_in *out)
{
	union vma_name name;
	const int rc = vma_name_copy_from_program_sockaddr(file->family, to, len, &name);

	if (rc < 0)
		return rc;
	if (name.any.sa_family != AF_INET)
		return -EAFNOSUPPORT;
	*out = vma_name_to_sockaddr_in(&name);
	return 0;
}

/* to NULL: the peer. */
int vma_extra_get_tx_ring_fd(struct vma_file *file, const struct sockaddr *to, socklen_t len)
{
	struct vma_ring_ctx *ring_ctx = NULL;
	struct sockaddr_in own;
	int rc = 0;

	if (file == NULL || (file->kind != VMA_FILE_UDP && file->kind != VMA_FILE_TCP) || file->os_only ||
	    file->ops->tx_ring_ctx == NULL)
		return -EINVAL;
	if (to != NULL && file->kind == VMA_FILE_UDP)
		rc = copy_ipv4_destination_from_program(file, to, len, &own);
	else
		to = NULL;
	if (rc == 0)
		rc = file->ops->tx_ring_ctx(file, to != NULL ? &own : NULL, &ring_ctx);
	if (rc < 0)
		return rc;
	rc = ring_ctx != NULL ? vma_ring_ctx_get_or_open_fd(ring_ctx) : -ENODATA;
	return rc == -ENODEV ? -ENODATA : rc;
}

/* ---- profiles, moderation, arming ---- */

/* What a device would have to do for memory of the program's in its receive queue none of them does. */
int vma_extra_add_ring_profile(const struct vma_ring_type_attr *profile, vma_ring_profile_key *key)
{
	struct vma_ring_type_attr own;
	int added;

	if (vma_memcpy_or_efault(&own, profile, sizeof(own)) != 0)
		return -EFAULT;
	if (own.ring_type == VMA_RING_EXTERNAL_MEM)
		return -EOPNOTSUPP;
	if (own.ring_type != VMA_RING_PACKET || own.comp_mask != 0 || own.ring_pktq.comp_mask != 0)
		return -EINVAL;
	if (vma_memcpy_or_efault(&added, key, sizeof(added)) != 0) /* before a profile is made in vain */
		return -EFAULT;
	added = vma_inet_ring_profile_add();
	return added < 0 ? added : vma_memcpy_or_efault(key, &added, sizeof(added));
}

int vma_extra_modify_ring(const struct vma_modify_ring_attr *attr)
{
	const uint32_t known = VMA_MODIFY_RING_CQ_MODERATION | VMA_MODIFY_RING_CQ_ARM;
	struct vma_modify_ring_attr own;
	struct vma_ring_ctx *ring_ctx;
	struct vma_file *file;
	int rc = 0;

	if (vma_memcpy_or_efault(&own, attr, sizeof(own)) != 0)
		return -EFAULT;
	if (own.comp_bit_mask == 0 || (own.comp_bit_mask & ~known) != 0)
		return -EINVAL;
	file = vma_fd_lookup(own.ring_fd);
	if (file == NULL || file->kind != VMA_FILE_RING)
		return -EBADF;
	ring_ctx = vma_ring_file_get_ring_ref(file);
	if (ring_ctx == NULL)
		return -EBADF;
	if (own.comp_bit_mask & VMA_MODIFY_RING_CQ_MODERATION)
		rc = vma_ring_ctx_set_moderation(ring_ctx, own.cq_moderation.cq_moderation_count,
		                                 own.cq_moderation.cq_moderation_period_usec);
	if (rc == 0 && (own.comp_bit_mask & VMA_MODIFY_RING_CQ_ARM) != 0)
		vma_ring_file_mark_all_seen(file);
	vma_ring_ctx_put(ring_ctx);
	return rc;
}
