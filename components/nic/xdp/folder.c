/*
 * folder - sockets of vmad's in a folder where only root writes, so no other user can take their names first.
 *
 * /run may be that of several network namespaces, so the file's name begins with the namespace's cookie. A file whose
 * socket is gone stays until the next vmad removes it. A connection of another type tells whether there is a socket. It
 * is refused if there is none, and has the wrong type if there is one. It takes no place in the socket's queue.
 *
 * Two vmads must not both take the same file for a dead one's. So names are looked at, removed and bound under a lock,
 * which is a file that only root can open.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "proto.h"

#define LOCK VMAD_FOLDER "/lock"
#define LOCK_TRIES 100 /* one that is stopped inside the lock does not keep others from starting */
#define LOCK_PAUSE_MS 10
#define SWEPT_MAX 4096 /* files that are looked at in a sweep */

static int lock_vmad_socket_folder(void)
{
	const struct timespec pause = {.tv_nsec = LOCK_PAUSE_MS * 1000000};
	const int fd = open(LOCK, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);

	if (fd < 0)
		return -errno;
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return fd;
		nanosleep(&pause, NULL);
	}
	close(fd);
	return -ETIMEDOUT;
}

static socklen_t sockaddr_un_length(const struct sockaddr_un *address)
{
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(address->sun_path) + 1);
}

/* The file is there, and no socket. */
static bool unix_socket_has_no_listener(const struct sockaddr_un *address)
{
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool refused;

	if (fd < 0)
		return false;
	refused =
	        connect(fd, (const struct sockaddr *)address, sockaddr_un_length(address)) < 0 && errno == ECONNREFUSED;
	close(fd);
	return refused;
}

/* A file mode mask must not close the folder to clients. */
static void create_vmad_folder(void)
{
	if (mkdir(VMAD_FOLDER, 0755) == 0 && chmod(VMAD_FOLDER, 0755) < 0)
		vma_log_debug("vmad: %s stays closed to other users: %s", VMAD_FOLDER, strerror(errno));
}

int vmad_bind_in_own_folder(int fd, unsigned ifindex, const char *kind, mode_t mode)
{
	struct sockaddr_un address;
	int lock, rc;

	create_vmad_folder();
	rc = vmad_socket_path_address(fd, ifindex, kind, &address);
	if (rc < 0)
		return rc;
	lock = lock_vmad_socket_folder();
	if (lock < 0)
		return lock;
	if (unix_socket_has_no_listener(&address))
		unlink(address.sun_path);
	rc = bind(fd, (const struct sockaddr *)&address, sockaddr_un_length(&address)) < 0 ? -errno : 0;
	if (rc == 0 && chmod(address.sun_path, mode) < 0)
		rc = -errno;
	close(lock);
	return rc;
}

void vmad_remove_own_socket_file(unsigned ifindex, const char *kind)
{
	struct sockaddr_un address;
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	const int rc = fd < 0 ? -errno : vmad_socket_path_address(fd, ifindex, kind, &address);
	const int lock = rc < 0 ? rc : lock_vmad_socket_folder();

	if (fd >= 0)
		close(fd);
	if (lock < 0)
		return;
	if (unix_socket_has_no_listener(&address))
		unlink(address.sun_path);
	close(lock);
}

static bool folder_is_vmad_or_fdstore(const char *name)
{
	const char *kind = strrchr(name, '.');

	return kind != NULL && (strcmp(kind, ".vmad") == 0 || strcmp(kind, ".fdstore") == 0);
}

void vmad_remove_stale_socket_files(void)
{
	const int lock = lock_vmad_socket_folder();
	DIR *folder = lock >= 0 ? opendir(VMAD_FOLDER) : NULL;
	const struct dirent *entry;
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	for (int n = 0; folder != NULL && n < SWEPT_MAX && (entry = readdir(folder)) != NULL; n++) {
		const size_t room = sizeof(address.sun_path);

		if (!folder_is_vmad_or_fdstore(entry->d_name) ||
		    (size_t)snprintf(address.sun_path, room, "%s/%s", VMAD_FOLDER, entry->d_name) >= room)
			continue;
		if (unix_socket_has_no_listener(&address))
			unlink(address.sun_path);
	}
	if (folder != NULL)
		closedir(folder);
	if (lock >= 0)
		close(lock);
}
