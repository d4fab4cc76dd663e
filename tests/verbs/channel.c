/*
 * Preloaded in tests: ibv_create_comp_channel is the one call that libibverbs makes to the kernel by itself, without
 * its driver. For a device of this card's it makes the channel here: a connection to the card, on which events arrive
 * in the form that the kernel gives them. All other devices get the library's own.
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "proto.h"

typedef struct ibv_comp_channel *(*create_channel)(struct ibv_context *context);

/* 0; -ENOENT: this is no device of ours; another -errno. */
static int card_path(const struct ibv_device *device, struct sockaddr_un *addr)
{
	char path[IBV_SYSFS_PATH_MAX + 8], format[16];
	FILE *file;
	int n;

	snprintf(path, sizeof(path), "%s/card", device->ibdev_path);
	snprintf(format, sizeof(format), "%%%zus", sizeof(addr->sun_path) - 1);
	file = fopen(path, "re");
	if (!file)
		return -errno;
	n = fscanf(file, format, addr->sun_path);
	fclose(file);
	return n == 1 ? 0 : -ENOENT;
}

static int channel_connect_to_card(const struct sockaddr_un *addr)
{
	struct card_request request = {.type = CARD_CHANNEL};
	struct card_reply reply;
	socklen_t len = sizeof(request.channel.cookie);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &request.channel.cookie, &len) == 0 &&
	    connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 &&
	    send(fd, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request) &&
	    recv(fd, &reply, sizeof(reply), 0) == sizeof(reply) && reply.error == 0)
		return fd;
	close(fd);
	errno = ENODEV;
	return -1;
}

__attribute__((visibility("default"))) struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct ibv_comp_channel *channel;
	create_channel next;
	int rc = card_path(context->device, &addr);

	if (rc < 0 && rc != -ENOENT) {
		errno = -rc;
		return NULL;
	}
	if (rc < 0) {
		next = (create_channel)dlsym(RTLD_NEXT, "ibv_create_comp_channel");
		if (next)
			return next(context);
		errno = ENOSYS;
		return NULL;
	}
	channel = calloc(1, sizeof(*channel));
	if (!channel)
		return NULL;
	channel->context = context;
	channel->fd = channel_connect_to_card(&addr);
	if (channel->fd >= 0)
		return channel;
	free(channel);
	return NULL;
}
