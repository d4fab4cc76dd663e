/*
 * inherited - sockets that the program has had since it was executed, and those that it leaves to a program that it
 * becomes.
 *
 *   load                        every UDP and TCP socket among the descriptors gets a file: its first use asks for it
 *                               (inherited.c of sock)
 *   exec                        the process's own sockets without close-on-exec become the kernel's: no process could
 *                               be asked for them
 *   after fork, a copy or no    the child says by that which socket is for its program, which need not have the
 *   close-on-exec any more,     library: it is asked for before
 *   exec
 *   fork, exec                  nothing: the program may never use what it has, as a shell does not
 *
 * Of 0, 1 and 2 only listeners are looked at: other sockets there are the kernel's by then (descriptor.c).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inherited.h"

#include "call.h"

enum { NUMBERS_MAX = 1024 }; /* that are looked at where there is no /proc */

_Atomic bool inherited_copies;

/* ---- load ---- */

static int socket_int_option_of_fd(int fd, int name)
{
	return vma_os_getsockopt_int_or(fd, SOL_SOCKET, name, -1);
}

static void register_inherited(int fd)
{
	const bool is_looked_at = fd > STDERR_FILENO || socket_int_option_of_fd(fd, SO_ACCEPTCONN) == 1;
	const int protocol = is_looked_at ? socket_int_option_of_fd(fd, SO_PROTOCOL) : -1;
	const int family =
	        protocol == IPPROTO_TCP || protocol == IPPROTO_UDP ? socket_int_option_of_fd(fd, SO_DOMAIN) : -1;

	if (protocol == 0 && FD_IS_NOT_OURS(fd) && socket_int_option_of_fd(fd, SO_DOMAIN) == AF_UNIX &&
	    socket_int_option_of_fd(fd, SO_TYPE) == SOCK_SEQPACKET)
		vma_inherited_record_conn_queue_fd(fd);
	if ((family != AF_INET && family != AF_INET6) || !FD_IS_NOT_OURS(fd))
		return;
	process_start_library_once();
	vma_inherited_listener = vma_stream_inherit_by_exec;
	vma_inherited_fd_install_placeholder(fd);
}

struct entry { /* of getdents64 */
	uint64_t inode, offset;
	uint16_t bytes;
	uint8_t type;
	char name[];
};

static void register_inherited_fds_of_directory(int directory)
{
	_Alignas(struct entry) char text[2048];
	long n;

	while ((n = syscall(SYS_getdents64, directory, text, sizeof(text))) > 0)
		for (long at = 0; at < n;) {
			const struct entry *entry = (const struct entry *)(text + at);
			const int fd = atoi(entry->name);

			if (fd != directory)
				register_inherited(fd);
			at += entry->bytes;
		}
}

/* Opened by a program that is under way (dlopen), the library finds sockets that the program has made. */
static bool is_preloaded(void)
{
	return getenv("LD_PRELOAD") != NULL || syscall(SYS_faccessat, AT_FDCWD, "/etc/ld.so.preload", R_OK) == 0;
}

static __attribute__((constructor)) void register_inherited_at_load(void)
{
	const int saved = errno;
	const int directory =
	        is_preloaded() ? (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
	                       : -1;

	if (directory >= 0) {
		register_inherited_fds_of_directory(directory);
		syscall(SYS_close, directory);
	} else if (is_preloaded()) {
		for (int fd = 0; fd < NUMBERS_MAX; fd++)
			register_inherited(fd);
	}
	errno = saved;
}

/* ---- exec ---- */

void inherited_mark_copied(int fd)
{
	const int saved = errno;
	struct vma_thread *self = vma_enter();
	struct vma_file *file = vma_fd_lookup(fd);

	if (file != NULL && file->from_parent) {
		file->is_copied = true;
		atomic_store(&inherited_copies, true);
	}
	vma_leave(self);
	errno = saved;
}

/* Inside. */
static void inherited_have_owner_hand_over_fd(int fd, const struct vma_file *file)
{
	const int flags = vma_os.fcntl(fd, F_GETFD, NULL);
	int waiting_fd;

	if (!file->is_copied || flags < 0 || (flags & FD_CLOEXEC) != 0)
		return;
	waiting_fd = vma_inherited_ask_owners_for_conn_queue_fd(
	        fd); /* the program asks for it itself, if it has the library */
	if (waiting_fd >= 0)
		syscall(SYS_close, waiting_fd);
}

/* Inside. A datagram socket of this process's own. */
static void inherited_export_udp_socket_for_exec(struct vma_file *file, void *arg)
{
	const int flags = file->kind == VMA_FILE_UDP && !file->os_only && !file->from_parent
	                          ? vma_os.fcntl(atomic_load(&file->fd), F_GETFD, NULL)
	                          : -1;

	(void)arg;
	if (flags >= 0 && (flags & FD_CLOEXEC) == 0)
		file->ops->exec_export(file);
}

void inherited_prepare_sockets_for_exec(void)
{
	struct vma_thread *self = vma_enter();

	vma_file_each(inherited_export_udp_socket_for_exec, NULL);
	vma_leave(self);
	if (!atomic_load_explicit(&inherited_copies, memory_order_relaxed))
		return;
	self = vma_enter();
	for (int fd = STDERR_FILENO + 1; fd <= vma_fd_highest(); fd++) {
		const struct vma_file *file = vma_fd_lookup(fd);

		if (file != NULL &&
		    (file->kind == VMA_FILE_TCP || file->kind == VMA_FILE_UDP || file->kind == VMA_FILE_EXEC))
			inherited_have_owner_hand_over_fd(fd, file);
	}
	vma_leave(self);
}
