/*
 * control.c - control messages. Those of a send are checked as the kernel's sock_cmsg_send checks them for TCP. None
 * changes what is sent, but a program whose message is not understood is told so. Those of a receive are written as
 * put_cmsg does.
 */
#include <asm/socket.h>
#include <errno.h>
#include <linux/net_tstamp.h>
#include <string.h>

#include "stream_priv.h"

enum {
	SENT_STAMPS = SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_SCHED |
	              SOF_TIMESTAMPING_TX_ACK
};

static int stream_check_sol_socket_cmsg_value(const struct cmsghdr *head, const uint8_t *at)
{
	uint32_t number;

	if (head->cmsg_len != CMSG_LEN(sizeof(number)))
		return -EINVAL;
	if (vma_memcpy_or_efault(&number, at + CMSG_LEN(0), sizeof(number)) != 0)
		return -EFAULT;
	switch (head->cmsg_type) {
	case SO_TIMESTAMPING_OLD:
	case SO_TIMESTAMPING_NEW:
		return (number & ~(uint32_t)SENT_STAMPS) == 0 ? 0 : -EINVAL;
	default:
		return 0;
	}
}

/* Those of other levels are not TCP's to check. */
static int stream_check_one_send_cmsg(const struct cmsghdr *head, const uint8_t *at)
{
	if (head->cmsg_level != SOL_SOCKET)
		return 0;
	switch (head->cmsg_type) {
	case SCM_RIGHTS: /* of sockets of other families, which have looked at them already */
	case SCM_CREDENTIALS:
		return 0;
	case SO_MARK:
	case SO_PRIORITY:
	case SO_TIMESTAMPING_OLD:
	case SO_TIMESTAMPING_NEW:
		return stream_check_sol_socket_cmsg_value(head, at);
	default:
		return -EINVAL;
	}
}

int stream_check_send_cmsgs(const struct msghdr *msg)
{
	const uint8_t *at = msg->msg_control;
	size_t left = msg->msg_controllen, step;
	struct cmsghdr head;
	int rc = 0;

	while (rc == 0 && left >= sizeof(head)) {
		if (vma_memcpy_or_efault(&head, at, sizeof(head)) != 0)
			return -EFAULT;
		if (head.cmsg_len < sizeof(head) || head.cmsg_len > left)
			return -EINVAL;
		rc = stream_check_one_send_cmsg(&head, at);
		step = CMSG_ALIGN(head.cmsg_len);
		if (step > left)
			return rc;
		at += step;
		left -= step;
	}
	return rc;
}

/* ---- received ---- */

enum { VALUE_BYTES_MAX = 64 };

/* What does not fit is cut, and MSG_CTRUNC says so. */
int stream_put_cmsg(struct msghdr *msg, int level, int type, const void *data, size_t len)
{
	size_t room = msg->msg_control != NULL ? msg->msg_controllen : 0, whole = CMSG_LEN(len);
	struct cmsghdr head = {.cmsg_len = whole, .cmsg_level = level, .cmsg_type = type};
	uint8_t bytes[VALUE_BYTES_MAX] = {0};

	msg->msg_controllen = 0;
	if (room < whole)
		msg->msg_flags |= MSG_CTRUNC;
	if (room < sizeof(head))
		return 0;
	if (room < whole)
		head.cmsg_len = room;
	memcpy(bytes, &head, sizeof(head));
	memcpy(bytes + CMSG_LEN(0), data, head.cmsg_len - CMSG_LEN(0));
	if (vma_memcpy_or_efault(msg->msg_control, bytes, head.cmsg_len) != 0)
		return -EFAULT;
	msg->msg_controllen = CMSG_ALIGN(head.cmsg_len) < room ? CMSG_ALIGN(head.cmsg_len) : room;
	return 0;
}
