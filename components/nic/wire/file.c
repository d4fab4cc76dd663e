/*
 * file - the two-process form: how two processes find each other at FILE, and how the survivor goes on when its peer
 * dies.
 *
 *           nobody at FILE                 the peer is there
 *   open ──────────────────> LISTENER ───────────────────────> linked      FILE is the listener's listening socket
 *     └── somebody is ─────> JOINER ── hello, memfd, bell ───> linked      third opener: hello says EBUSY
 *   linked ── peer closed or died ──> no link ── FILE is ours: wait; somebody's: join; nobody's: keep
 *
 * Memory. For each link the listener makes a new memfd, sealed against shrinking and growing. So no peer can take pages
 * away (SIGBUS), and a former peer has no hand in a later link. Its layout is two pages and two sets of lanes, the
 * listener's half first. Each side maps its own half first, so within a process an end is always side 0. The mapping is
 * replaced in place. A data thread in the middle of something sees other bytes, which it does not trust anyway. It
 * takes up the new link at its next call, by the nonce.
 *
 * FILE is taken over by rename(2) of a socket that already listens. If two processes find a dead FILE at the same time,
 * both rename. The one that is not at FILE in the end notices within RETRY_MS and joins the other.
 *
 * A peer's death is seen by its pidfd, not only by its socket, which forked children of the peer keep open.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <vma/log.h>

#include "file.h"
#include "wire.h"

#define FILE_SLOTS 512
#define RETRY_MS 100
#define HELLO_TIMEOUT_SEC 1
#define MTU_DEFAULT 1500

struct wire_file {
	struct wire_end end;
	struct sockaddr_un address;
	int listen_fd, conn_fd, peer_pidfd; /* -1: none */
	int stop_fd;                        /* eventfd: the thread shall end */
	int mute_fd;                        /* stands in for the bell while there is no link: never readable */
	ino_t inode;                        /* of our socket at FILE */
	pthread_t thread;
};

static void wire_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* ---- the link ---- */

/* Maps memfd over the end's memory: own half first. `listens`: the first half is ours. */
static int wire_map_both_sides(struct wire_end *end, int memfd, bool listens)
{
	size_t lanes = WIRE_LANES * end->layout.lane_bytes, first = 2 * WIRE_PAGE;
	int own = listens ? 0 : 1;
	struct {
		size_t at, from, bytes;
	} parts[] = {
	        {0, (size_t)own * WIRE_PAGE, WIRE_PAGE},
	        {WIRE_PAGE, (size_t)(1 - own) * WIRE_PAGE, WIRE_PAGE},
	        {first, first + (size_t)own * lanes, lanes},
	        {first + lanes, first + (size_t)(1 - own) * lanes, lanes},
	};

	/* The system call itself: data threads may look meanwhile, by design, and ThreadSanitizer takes mmap() for a
	 * write. */
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (syscall(SYS_mmap, end->memory + parts[i].at, parts[i].bytes, PROT_READ | PROT_WRITE,
		            MAP_SHARED | MAP_FIXED, memfd, (off_t)parts[i].from) == -1)
			return -errno;
	madvise(end->memory, end->layout.bytes, MADV_DONTFORK);
	return 0;
}

/* The number doorbell_fd stays; what is behind it changes. Old registrations go first: a forked child may keep the old
 * socket alive, and epoll would go on reporting its end. */
static void replace_doorbell_fd(struct wire_file *file, int fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	int bell = atomic_load_explicit(&file->end.doorbell_fd, memory_order_relaxed);

	pthread_mutex_lock(&file->end.control);
	for (uint32_t i = 0; i < WIRE_LANES; i++)
		if (file->end.engine.qps[i] != NULL)
			epoll_ctl(file->end.engine.qps[i]->epoll_fd, EPOLL_CTL_DEL, bell, NULL);
	dup3(fd, bell, O_CLOEXEC);
	for (uint32_t i = 0; i < WIRE_LANES; i++)
		if (file->end.engine.qps[i] != NULL)
			epoll_ctl(file->end.engine.qps[i]->epoll_fd, EPOLL_CTL_ADD, bell, &event);
	pthread_mutex_unlock(&file->end.control);
}

static void wire_file_close_peer_link(struct wire_file *file)
{
	atomic_store_explicit(&file->end.nonce, 0, memory_order_seq_cst);
	wire_close_fd(&file->conn_fd);
	wire_close_fd(&file->peer_pidfd);
	replace_doorbell_fd(file, file->mute_fd);
}

static int link_up(struct wire_file *file, int conn_fd, int memfd, int doorbell_fd, uint32_t nonce, bool listens)
{
	int rc = wire_map_both_sides(&file->end, memfd, listens);

	if (rc != 0)
		return rc;
	replace_doorbell_fd(file, doorbell_fd);
	file->conn_fd = conn_fd;
	file->peer_pidfd = wire_pidfd_open_of_unix_peer(conn_fd);
	pthread_mutex_lock(&file->end.control);
	wire_end_set_link(&file->end, nonce);
	pthread_mutex_unlock(&file->end.control);
	vma_log_debug("nic: wire %s: linked as %s", file->address.sun_path, listens ? "listener" : "joiner");
	return 0;
}

/* A peer that shuts the bell down would keep our sleepers awake for ever: it counts as gone. */
static bool peer_alive(const struct wire_file *file)
{
	struct pollfd fds[] = {{.fd = file->conn_fd, .events = POLLRDHUP},
	                       {.fd = file->peer_pidfd, .events = POLLIN},
	                       {.fd = atomic_load(&file->end.doorbell_fd), .events = POLLRDHUP}};

	return file->conn_fd >= 0 && poll(fds, 3, 0) == 0;
}

/* ---- joining ---- */

/* 0 linked; -ENOENT, -ECONNREFUSED nobody is there; -EBUSY; -EPROTO, -ETIMEDOUT, ... */
static int wire_file_connect_to_listener(struct wire_file *file)
{
	struct timeval timeout = {.tv_sec = HELLO_TIMEOUT_SEC};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fds[WIRE_HELLO_FDS] = {-1, -1};
	struct wire_hello hello;
	int rc;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)); /* connect to a full backlog */
	if (connect(fd, (struct sockaddr *)&file->address, sizeof(file->address)) != 0)
		rc = -errno;
	else
		rc = wire_hello_recv(fd, &hello, fds);
	if (rc == 0)
		rc = wire_hello_check(&hello, fds, FILE_SLOTS, file->end.nic.info.mtu, file->end.layout.bytes);
	if (rc == 0)
		rc = link_up(file, fd, fds[0], fds[1], hello.nonce, false);
	wire_close_fd(&fds[0]);
	wire_close_fd(&fds[1]);
	if (rc != 0)
		close(fd);
	return rc == -EAGAIN ? -ETIMEDOUT : rc;
}

/* ---- keeping ---- */

static bool wire_file_socket_path_is_ours(const struct wire_file *file)
{
	struct stat st;

	return file->listen_fd >= 0 && stat(file->address.sun_path, &st) == 0 && st.st_ino == file->inode;
}

static int wire_file_listen(struct wire_file *file)
{
	struct sockaddr_un temporary = {.sun_family = AF_UNIX};
	struct stat st;
	int fd, n;

	n = snprintf(temporary.sun_path, sizeof(temporary.sun_path), "%.80s.%d.%d", file->address.sun_path, getpid(),
	             file->stop_fd);
	if (n < 0 || (size_t)n >= sizeof(temporary.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	unlink(temporary.sun_path);
	if (bind(fd, (struct sockaddr *)&temporary, sizeof(temporary)) != 0) {
		int rc = -errno;
		close(fd);
		return rc;
	}
	if (chmod(temporary.sun_path, 0600) != 0 || listen(fd, 8) != 0 || stat(temporary.sun_path, &st) != 0 ||
	    rename(temporary.sun_path, file->address.sun_path) != 0) {
		int rc = -errno;
		unlink(temporary.sun_path);
		close(fd);
		return rc;
	}
	file->listen_fd = fd;
	file->inode = st.st_ino;
	return 0;
}

static int wire_file_send_memory_offer(struct wire_file *file, int conn_fd)
{
	struct wire_hello hello = {.magic = WIRE_HELLO_MAGIC,
	                           .version = WIRE_HELLO_VERSION,
	                           .slots = FILE_SLOTS,
	                           .mtu = file->end.nic.info.mtu};
	int bells[2] = {-1, -1}, memfd = wire_create_sealed_memfd(file->end.layout.bytes), rc;

	if (memfd < 0)
		return memfd;
	rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bells) != 0 ? -errno : 0;
	while (rc == 0 && hello.nonce == 0)
		if (getrandom(&hello.nonce, sizeof(hello.nonce), 0) != sizeof(hello.nonce))
			rc = -EIO;
	if (rc == 0) /* up before the hello is out: when the joiner's open returns, both ends are */
		rc = link_up(file, conn_fd, memfd, bells[0], hello.nonce, true);
	if (rc == 0) {
		rc = wire_hello_send(conn_fd, &hello, (int[]){memfd, bells[1]}, 2);
		if (rc != 0) {
			file->conn_fd = -1; /* the caller's to close */
			wire_file_close_peer_link(file);
		}
	}
	wire_close_fd(&bells[0]);
	wire_close_fd(&bells[1]);
	close(memfd);
	return rc;
}

static void wire_file_accept_peer(struct wire_file *file)
{
	struct wire_hello busy = {.magic = WIRE_HELLO_MAGIC, .version = WIRE_HELLO_VERSION, .busy = 1};
	int fd = accept4(file->listen_fd, NULL, NULL, SOCK_CLOEXEC), rc;

	if (fd < 0) { /* out of descriptors, perhaps: not in a tight loop */
		poll(&(struct pollfd){.fd = file->stop_fd, .events = POLLIN}, 1, RETRY_MS);
		return;
	}
	if (file->conn_fd >= 0 && peer_alive(file)) {
		wire_hello_send(fd, &busy, NULL, 0);
		close(fd);
		return;
	}
	if (file->conn_fd >= 0)
		wire_file_close_peer_link(file);
	rc = wire_file_send_memory_offer(file, fd);
	if (rc != 0) {
		vma_log_warn("nic: wire %s: cannot link: %s", file->address.sun_path, strerror(-rc));
		close(fd);
	}
}

/* Becomes joiner or listener. */
static int wire_connect_to_peer_or_listen(struct wire_file *file)
{
	int rc;

	if (wire_file_socket_path_is_ours(file))
		return 0;
	wire_close_fd(&file->listen_fd);
	rc = wire_file_connect_to_listener(file);
	return rc == -ENOENT || rc == -ECONNREFUSED ? wire_file_listen(file) : rc;
}

/* ---- the thread that looks after the link ---- */

static void *wire_file_link_watch_thread(void *arg)
{
	struct wire_file *file = arg;

	for (;;) {
		struct pollfd fds[] = {{.fd = file->stop_fd, .events = POLLIN},
		                       {.fd = file->listen_fd, .events = POLLIN},
		                       {.fd = file->conn_fd, .events = POLLRDHUP},
		                       {.fd = file->peer_pidfd, .events = POLLIN},
		                       {.fd = atomic_load(&file->end.doorbell_fd), .events = POLLRDHUP}};
		if (poll(fds, 5, file->conn_fd >= 0 ? -1 : RETRY_MS) < 0 && errno != EINTR)
			vma_log_once(VMA_LOG_ERROR, "nic: wire: poll: %s", strerror(errno));
		if (fds[0].revents != 0)
			return NULL;
		if (file->conn_fd >= 0 && !peer_alive(file)) {
			vma_log_debug("nic: wire %s: the other end has gone", file->address.sun_path);
			wire_file_close_peer_link(file);
		}
		if (fds[1].revents != 0)
			wire_file_accept_peer(file);
		if (file->conn_fd < 0) {
			int rc = wire_connect_to_peer_or_listen(file);
			if (rc != 0)
				vma_log_once(VMA_LOG_WARN, "nic: wire %s: no link: %s", file->address.sun_path,
				             strerror(-rc));
		}
	}
}

/* The program's signals are not for the thread, and would cut the first exchange short: that takes two seconds at most.
 */
static int wire_file_link_and_start_thread(struct wire_file *file)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = wire_connect_to_peer_or_listen(file);
	if (rc == 0)
		rc = -pthread_create(&file->thread, NULL, wire_file_link_watch_thread, file);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

/* ---- open and close ---- */

static int parse_wire_address(const char *arg, struct sockaddr_un *address, uint32_t *mtu)
{
	const char *comma = strrchr(arg, ',');
	size_t len = comma != NULL ? (size_t)(comma - arg) : strlen(arg);
	char *end;

	*mtu = MTU_DEFAULT;
	if (comma != NULL) {
		if (strncmp(comma, ",mtu=", 5) != 0)
			return -EINVAL;
		unsigned long value = strtoul(comma + 5, &end, 10);
		if (end == comma + 5 || *end != '\0' || value < WIRE_MTU_MIN || value > WIRE_MTU_MAX)
			return -EINVAL;
		*mtu = (uint32_t)value;
	}
	if (len == 0)
		return -EINVAL;
	if (len > 80) /* leaves room for the temporary name in sun_path */
		return -ENAMETOOLONG;
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, arg, len);
	address->sun_path[len] = '\0';
	return 0;
}

static void wire_file_unlink_close_and_free(struct wire_file *file)
{
	int bell = atomic_load(&file->end.doorbell_fd);

	if (wire_file_socket_path_is_ours(file))
		unlink(file->address.sun_path);
	if (file->conn_fd >= 0) {
		shutdown(file->conn_fd, SHUT_RDWR); /* forked children may hold it too */
		shutdown(bell, SHUT_RDWR);
	}
	wire_close_fd(&file->listen_fd);
	wire_close_fd(&file->conn_fd);
	wire_close_fd(&file->peer_pidfd);
	wire_close_fd(&file->stop_fd);
	wire_close_fd(&file->mute_fd);
	wire_close_fd(&bell);
	if (file->end.memory != NULL)
		munmap(file->end.memory, file->end.layout.bytes);
	wire_end_fini(&file->end);
	free(file);
}

static int wire_file_init_end_and_fds(struct wire_file *file, uint32_t mtu, const struct vma_nic_attr *attr)
{
	struct wire_layout layout;
	struct wire_end *end = &file->end;
	int rc;

	wire_layout_init(&layout, FILE_SLOTS, mtu);
	rc = wire_end_init(end, 0, wire_memory_map(layout.bytes), &layout, FILE_SLOTS, 0, attr->arena);
	file->listen_fd = file->conn_fd = file->peer_pidfd = -1;
	file->stop_fd = eventfd(0, EFD_CLOEXEC);
	file->mute_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	atomic_store(&end->doorbell_fd, fcntl(file->mute_fd, F_DUPFD_CLOEXEC, 0));
	end->file = file;
	end->stats = attr->stats;
	if (rc == 0 && end->memory == NULL)
		rc = -ENOMEM;
	if (rc == 0 && (file->stop_fd < 0 || file->mute_fd < 0 || atomic_load(&end->doorbell_fd) < 0))
		rc = -EMFILE;
	if (rc == 0 && getrandom(end->nic.info.mac + 2, 4, 0) != 4)
		rc = -EIO;
	snprintf(end->nic.info.name, sizeof(end->nic.info.name), "wire-%.56s", file->address.sun_path);
	return rc;
}

int wire_file_open_nic(const char *arg, const struct vma_nic_attr *attr, struct vma_nic **out)
{
	struct wire_file *file = NULL;
	struct sockaddr_un address;
	uint32_t mtu;
	int rc = parse_wire_address(arg, &address, &mtu);

	if (rc != 0) {
		vma_log_error("nic: wire: '%s' is not FILE or FILE,mtu=N: %s", arg, strerror(-rc));
		return rc;
	}
	if (posix_memalign((void **)&file, WIRE_LINE, sizeof(*file)) != 0)
		return -ENOMEM;
	memset(file, 0, sizeof(*file));
	file->address = address;
	rc = wire_file_init_end_and_fds(file, mtu, attr);
	if (rc == 0)
		rc = wire_file_link_and_start_thread(file);
	if (rc != 0) {
		vma_log_error("nic: wire %s: %s", address.sun_path, strerror(-rc));
		wire_file_unlink_close_and_free(file);
		return rc;
	}
	*out = &file->end.nic;
	return 0;
}

void wire_file_close(struct wire_end *end)
{
	struct wire_file *file = end->file;
	uint64_t one = 1;

	(void)!write(file->stop_fd, &one, sizeof(one));
	pthread_join(file->thread, NULL);
	atomic_store_explicit(&end->nonce, 0, memory_order_seq_cst);
	wire_file_unlink_close_and_free(file);
}
