/* rings - by which rings a socket receives and sends, and their descriptors. */
#include <errno.h>

#include <vma/extra.h>
#include <vma/sock_engine.h>

enum { RINGS_MAX = 256 };

/* The ring contexts of an offloaded socket, and how many there are, RINGS_MAX at most. */
static int rings_of(struct vma_file *file, struct vma_ring_ctx **ring_ctxs)
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

	return rings_of(file, ring_ctxs);
}

/* A ring context that has ended by now is the socket's no more. */
int vma_extra_get_ring_fds(struct vma_file *file, int *fds, int max)
{
	struct vma_ring_ctx *ring_ctxs[RINGS_MAX];
	const int n = rings_of(file, ring_ctxs);
	int given = 0;

	if (n < 0 || max <= 0)
		return -EINVAL;
	for (int i = 0; i < n && given < max; i++) {
		const int fd = vma_ring_ctx_fd(ring_ctxs[i]);

		if (fd == -ENODEV)
			continue;
		if (fd < 0)
			return fd;
		if (vma_copy(&fds[given], &fd, sizeof(fd)) != 0)
			return -EFAULT;
		given++;
	}
	return given;
}

/* to NULL: the peer. */
static int read_destination(const struct vma_file *file, const struct sockaddr *to, socklen_t len,
                            struct sockaddr_in *out)
{
	union vma_name name;
	const int rc = vma_name_read(file->family, to, len, &name);

	if (rc < 0)
		return rc;
	if (name.any.sa_family != AF_INET)
		return -EAFNOSUPPORT;
	*out = vma_name_in(&name);
	return 0;
}

int vma_extra_get_tx_ring_fd(struct vma_file *file, const struct sockaddr *to, socklen_t len)
{
	struct vma_ring_ctx *ring_ctx = NULL;
	struct sockaddr_in own;
	int rc = 0;

	if (file == NULL || (file->kind != VMA_FILE_UDP && file->kind != VMA_FILE_TCP) || file->os_only ||
	    file->ops->tx_ring_ctx == NULL)
		return -EINVAL;
	if (to != NULL && file->kind == VMA_FILE_UDP)
		rc = read_destination(file, to, len, &own);
	else
		to = NULL;
	if (rc == 0)
		rc = file->ops->tx_ring_ctx(file, to != NULL ? &own : NULL, &ring_ctx);
	if (rc < 0)
		return rc;
	rc = ring_ctx != NULL ? vma_ring_ctx_fd(ring_ctx) : -ENODATA;
	return rc == -ENODEV ? -ENODATA : rc;
}
