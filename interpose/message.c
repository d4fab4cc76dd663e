/* message - reads the application's headers and pieces, a few at a time: its stack may be a small one. */
#include "message.h"

#define PIECES_AT_ONCE 8

ssize_t message_iovec_total_bytes(const struct iovec *iov, int n)
{
	struct iovec some[PIECES_AT_ONCE];
	size_t total = 0;

	if (n < 0 || n > MESSAGE_PIECES_MAX)
		return MESSAGE_KERNEL;
	for (int done = 0; done < n; done += PIECES_AT_ONCE) {
		int count = n - done < PIECES_AT_ONCE ? n - done : PIECES_AT_ONCE;

		if (vma_memcpy_or_efault(some, iov + done, (size_t)count * sizeof(some[0])) != 0)
			return -EFAULT;
		for (int i = 0; i < count; i++) {
			if ((ssize_t)some[i].iov_len < 0)
				return MESSAGE_KERNEL;
			total += some[i].iov_len;
			if (total > MESSAGE_BYTES_MAX)
				total = MESSAGE_BYTES_MAX;
		}
	}
	return (ssize_t)total;
}

int message_copy_from_application(struct msghdr *own, const struct msghdr *msg)
{
	if (vma_memcpy_or_efault(own, msg, sizeof(*own)) != 0)
		return -EFAULT;
	if (own->msg_name == NULL)
		own->msg_namelen = 0;
	if ((int)own->msg_namelen < 0 || own->msg_iovlen > MESSAGE_PIECES_MAX)
		return MESSAGE_KERNEL;
	if (own->msg_namelen > sizeof(struct sockaddr_storage))
		own->msg_namelen = sizeof(struct sockaddr_storage);
	return 0;
}
