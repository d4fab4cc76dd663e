/*
 * process_mix - a server that gives its connections to other processes in every way there is, and its client.
 *
 *   process_mix serve ADDRESS PORT WORKERS
 *       a TCP listener and a UDP socket on PORT; WORKERS forked processes accept, too
 *   process_mix child BYTES
 *       what the server executes: serves so many bytes of its descriptor 0
 *   process_mix ask ADDRESS PORT SECONDS CLIENTS SEED [MODES]
 *       MODES: letters of `modes`, each of which is as likely as it is frequent
 *
 * A connection carries a request (struct request, host byte order: both ends are one machine) and `length` bytes, a
 * function of `seed` and the place; the server sends every byte back, changed. The request's mode says which process
 * does that (see `modes`). The client compares every byte and waits for the end of the stream. A datagram carries eight
 * bytes, which come back changed.
 *
 * "ask" ends with one line for each mode and two of sums; its exit status is 1 if a byte was wrong or missing, or
 * nothing moved for STALL_MS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	STALL_MS = 10000,
	CHUNK = 16384,
	MAX_WORKERS = 16,
	MAX_LENGTH = 400000,
	NOBODY = 65534,
};

struct request {
	char mode;
	char pad[3];
	uint32_t length;
	uint64_t seed;
};

static const struct {
	char mode;
	const char *what;
} modes[] = {
        {'s', "served by a thread of the process that accepted"},
        {'f', "served by a forked child, closed by its parent"},
        {'e', "served by a forked child while its parent keeps a copy"},
        {'d', "served by the child of a child"},
        {'u', "served by a forked child that became nobody"},
        {'m', "half served by the parent, the rest by a forked child"},
        {'x', "served by an executed program as its descriptor 0"},
        {'p', "served by a spawned program as its descriptor 0"},
        {'r', "passed by SCM_RIGHTS, then closed"},
        {'R', "passed by SCM_RIGHTS after half was served"},
        {'k', "served by a forked child that is killed half-way"},
        {'q', "served by a worker that is killed when it has no other connection"},
};
enum { MODES = sizeof(modes) / sizeof(modes[0]) };

static const char *self;

static void process_mix_die(const char *what)
{
	perror(what);
	exit(2);
}

static uint8_t process_mix_pattern_byte_at(uint64_t seed, uint32_t place)
{
	uint64_t x = seed + (place / 8 + 1) * 0x9e3779b97f4a7c15ULL;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	x ^= x >> 31;
	return (uint8_t)(x >> place % 8 * 8);
}

static uint8_t answer_byte_of(uint8_t byte)
{
	return byte ^ 0x5a;
}

static uint64_t process_mix_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- the server ---- */

static _Atomic int connections; /* accepted by this process, and not served to their end */
static _Atomic bool leaving;    /* killed as soon as there are none */
static bool is_worker;
static int listener, rights[2];

/* Sends back so many bytes of a blocking connection; false: the peer is gone. */
static bool process_mix_echo_bytes(int fd, uint64_t count)
{
	uint8_t buffer[CHUNK];

	while (count > 0) {
		ssize_t got = read(fd, buffer, count < CHUNK ? count : CHUNK);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			fprintf(stderr, "process_mix %d: read of descriptor %d: %s, %llu bytes are missing\n", getpid(),
			        fd, got < 0 ? strerror(errno) : "the end", (unsigned long long)count);
			return false;
		}
		count -= (uint64_t)got;
		for (ssize_t i = 0; i < got; i++)
			buffer[i] = answer_byte_of(buffer[i]);
		for (ssize_t done = 0; done < got;) {
			ssize_t put = write(fd, buffer + done, (size_t)(got - done));

			if (put < 0 && errno == EINTR)
				continue;
			if (put < 0) {
				fprintf(stderr, "process_mix %d: write to descriptor %d: %s\n", getpid(), fd,
				        strerror(errno));
				return false;
			}
			done += put;
		}
	}
	return true;
}

/* Other processes may have copies for a while, so close alone need not end the stream. */
static void serve_remaining_bytes(int fd, uint64_t left)
{
	process_mix_echo_bytes(fd, left);
	shutdown(fd, SHUT_WR);
	close(fd);
}

/*
 * A worker may be killed as soon as it serves no connection: what its peer has not got by then ends with a process
 * whose TCP is its own, so the connection is served until the peer has closed it.
 */
static void echo_in_worker_until_peer_closes(int fd, uint64_t left)
{
	char end;

	if (!is_worker) {
		serve_remaining_bytes(fd, left);
		return;
	}
	if (process_mix_echo_bytes(fd, left)) {
		shutdown(fd, SHUT_WR);
		while (read(fd, &end, 1) < 0 && errno == EINTR)
			;
	}
	close(fd);
}

static void close_inherited_server_fds(void)
{
	close(listener);
	close(rights[0]);
	close(rights[1]);
}

static void pass_fd_by_scm_rights(int fd, uint32_t left)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {&left, sizeof(left)};
	struct msghdr message = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	memset(&control, 0, sizeof(control));
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	if (sendmsg(rights[0], &message, 0) != sizeof(left))
		perror("sendmsg SCM_RIGHTS");
	close(fd);
}

struct job {
	int fd;
	struct request request;
};

static void run_own_program_to_serve_connection(int fd, uint32_t left, bool spawn)
{
	char text[16];
	char *argv[] = {(char *)self, "child", text, NULL};
	extern char **environ;
	pid_t pid;

	snprintf(text, sizeof(text), "%u", left);
	if (spawn) {
		posix_spawn_file_actions_t actions;

		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_adddup2(&actions, fd, 0);
		posix_spawn_file_actions_addclose(&actions, listener);
		posix_spawn_file_actions_addclose(&actions, rights[0]);
		posix_spawn_file_actions_addclose(&actions, rights[1]);
		if (posix_spawn(&pid, self, &actions, NULL, argv, environ))
			perror("posix_spawn");
		posix_spawn_file_actions_destroy(&actions);
	} else {
		pid = fork();
		if (pid == 0) {
			dup2(fd, 0);
			close(fd);
			close_inherited_server_fds();
			execv(self, argv);
			_exit(127);
		}
	}
	close(fd);
}

static void fork_and_serve(int fd, uint32_t left, char mode)
{
	pid_t pid = fork();

	if (pid < 0)
		process_mix_die("fork");
	if (pid == 0) {
		close_inherited_server_fds();
		if (mode == 'd' && fork() != 0)
			_exit(0);
		if (mode == 'u' && (setgid(NOBODY) || setuid(NOBODY)))
			_exit(1);
		if (mode == 'k') {
			process_mix_echo_bytes(fd, left / 2);
			raise(SIGKILL);
		}
		serve_remaining_bytes(fd, left);
		_exit(0);
	}
	if (mode == 'e')
		waitpid(pid, NULL, 0);
	close(fd);
}

static void *thread_serve_request_by_mode(void *argument)
{
	struct job job = *(struct job *)argument;
	uint32_t left = job.request.length;

	free(argument);
	switch (job.request.mode) {
	case 'f':
	case 'e':
	case 'd':
	case 'u':
	case 'k':
		fork_and_serve(job.fd, left, job.request.mode);
		break;
	case 'm':
		if (!process_mix_echo_bytes(job.fd, left / 2))
			close(job.fd);
		else
			fork_and_serve(job.fd, left - left / 2, 'f');
		break;
	case 'x':
	case 'p':
		run_own_program_to_serve_connection(job.fd, left, job.request.mode == 'p');
		break;
	case 'R':
		if (!process_mix_echo_bytes(job.fd, left / 2))
			close(job.fd);
		else
			pass_fd_by_scm_rights(job.fd, left - left / 2);
		break;
	case 'r':
		pass_fd_by_scm_rights(job.fd, left);
		break;
	case 'q':
		atomic_store(&leaving, is_worker);
		/* fall through */
	default:
		echo_in_worker_until_peer_closes(job.fd, left);
	}
	atomic_fetch_sub(&connections, 1);
	return NULL;
}

static void start_thread_to_serve_request(int fd, const struct request *request)
{
	struct job *job = malloc(sizeof(*job));
	pthread_t thread;
	pthread_attr_t attr;

	*job = (struct job){fd, *request};
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 1 << 17);
	if (pthread_create(&thread, &attr, thread_serve_request_by_mode, job))
		process_mix_die("pthread_create");
	pthread_attr_destroy(&attr);
}

/* A connection in the set is one whose request has not come. */
static void read_request(int epoll, int fd)
{
	struct request request;
	ssize_t got = recv(fd, &request, sizeof(request), MSG_PEEK | MSG_DONTWAIT);

	if (got < 0 && errno == EAGAIN)
		return;
	if (got > 0 && got < (ssize_t)sizeof(request))
		return;
	epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
	if (got > 0 && recv(fd, &request, sizeof(request), MSG_WAITALL) == sizeof(request) &&
	    request.length <= MAX_LENGTH) {
		start_thread_to_serve_request(fd, &request);
		return;
	}
	close(fd);
	atomic_fetch_sub(&connections, 1);
}

static void process_mix_accept_all(int epoll)
{
	int fd;

	while (!atomic_load(&leaving) && (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

		atomic_fetch_add(&connections, 1);
		epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	}
}

static void answer_datagrams(int fd)
{
	struct sockaddr_in peer;
	socklen_t length = sizeof(peer);
	uint8_t bytes[64];
	ssize_t got;

	while ((got = recvfrom(fd, bytes, sizeof(bytes), MSG_DONTWAIT, (struct sockaddr *)&peer, &length)) >= 0) {
		for (ssize_t i = 0; i < got; i++)
			bytes[i] = answer_byte_of(bytes[i]);
		sendto(fd, bytes, (size_t)got, 0, (struct sockaddr *)&peer, length);
		length = sizeof(peer);
	}
}

/*
 * A worker that is to leave takes no new connection, and is killed when it serves none and none of those that it has
 * accepted waits for its request: what the queue of the listener holds by then is for the others to accept.
 */
static void serve_connections_until_killed(int epoll, int udp, void (*each_round)(void))
{
	struct epoll_event events[64], event = {.events = EPOLLIN, .data.fd = listener};
	int quiet = 0;

	epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
	for (;;) {
		int count = epoll_wait(epoll, events, 64, 50);

		for (int i = 0; i < count; i++) {
			if (events[i].data.fd == listener)
				process_mix_accept_all(epoll);
			else if (events[i].data.fd == udp)
				answer_datagrams(udp);
			else
				read_request(epoll, events[i].data.fd);
		}
		if (each_round)
			each_round();
		/* Some rounds without the listener first: what comes meanwhile is to be in its queue at the end. */
		quiet = count > 0 ? 0 : quiet + 1;
		if (atomic_load(&leaving)) {
			epoll_ctl(epoll, EPOLL_CTL_DEL, listener, NULL);
			if (quiet > 2 && atomic_load(&connections) == 0)
				raise(SIGKILL);
		}
	}
}

static void run_rights_receiver(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(listener);
	close(rights[0]);
	for (;;) {
		union {
			struct cmsghdr header;
			char bytes[CMSG_SPACE(sizeof(int))];
		} control;
		struct request request = {.mode = 's'};
		struct iovec iov = {&request.length, sizeof(request.length)};
		struct msghdr message = {
		        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
		ssize_t got = recvmsg(rights[1], &message, MSG_CMSG_CLOEXEC);
		int fd;

		if (got == 0)
			exit(0);
		if (got < 0 || !CMSG_FIRSTHDR(&message))
			continue;
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
		atomic_fetch_add(&connections, 1);
		start_thread_to_serve_request(fd, &request);
	}
}

static pid_t workers[MAX_WORKERS];
static int worker_count;

static pid_t fork_worker(int index)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	is_worker = true;
	atomic_store(&connections, 0);
	/* A copy of a connection that the parent serves at this moment would keep its stream open for ever. */
	for (int fd = 3; fd < 1024; fd++) {
		if (fd != listener && fd != rights[0] && fd != rights[1])
			close(fd);
	}
	if (index % 2 && (setgid(NOBODY) || setuid(NOBODY)))
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* setuid forgets it */
	serve_connections_until_killed(epoll_create1(EPOLL_CLOEXEC), -1, NULL);
	_exit(0);
}

static void replace_workers(void)
{
	for (int i = 0; i < worker_count; i++) {
		if (kill(workers[i], 0) && errno == ESRCH)
			workers[i] = fork_worker(i);
	}
}

static struct sockaddr_in process_mix_address_of(const char *address, const char *port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, address, &name.sin_addr) != 1)
		process_mix_die(address);
	return name;
}

static int process_mix_serve(const char *address, const char *port, int count)
{
	struct sockaddr_in name = process_mix_address_of(address, port);
	struct epoll_event event = {.events = EPOLLIN};
	int on = 1, udp, epoll;

	signal(SIGPIPE, SIG_IGN);
	/* Nobody waits for the children, nor for theirs. */
	signal(SIGCHLD, SIG_IGN);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	worker_count = count < MAX_WORKERS ? count : MAX_WORKERS;
	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (struct sockaddr *)&name, sizeof(name)) || listen(listener, 512) ||
	    bind(udp, (struct sockaddr *)&name, sizeof(name)))
		process_mix_die("bind");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, rights))
		process_mix_die("socketpair");
	if (fork() == 0)
		run_rights_receiver();
	for (int i = 0; i < worker_count; i++)
		workers[i] = fork_worker(i);
	epoll = epoll_create1(EPOLL_CLOEXEC);
	event.data.fd = udp;
	epoll_ctl(epoll, EPOLL_CTL_ADD, udp, &event);
	printf("listening\n");
	fflush(stdout);
	serve_connections_until_killed(epoll, udp, replace_workers);
	return 0;
}

/* ---- the client ---- */

static struct sockaddr_in server;
static uint64_t end_ms;
static char request_mode_letters[256];
static _Atomic uint64_t asked[MODES], failed[MODES], resets, bytes_back, slowest_ms, datagrams, datagrams_lost;
static pthread_mutex_t output_lock = PTHREAD_MUTEX_INITIALIZER;

static void process_mix_print_failure(const struct request *request, int port, const char *what, uint32_t sent,
                                      uint32_t got)
{
	pthread_mutex_lock(&output_lock);
	printf("mode %c, from port %d: %s (%u sent, %u back of %u)\n", request->mode, port, what, sent, got,
	       request->length);
	fflush(stdout);
	pthread_mutex_unlock(&output_lock);
}

static void print_datagram_failure(uint64_t number, const char *what, uint64_t begun)
{
	atomic_fetch_add(&datagrams_lost, 1);
	pthread_mutex_lock(&output_lock);
	printf("datagram %llu: %s, after %llu ms\n", (unsigned long long)number, what,
	       (unsigned long long)(process_mix_now_ms() - begun));
	fflush(stdout);
	pthread_mutex_unlock(&output_lock);
}

/* NULL: every byte came back and then the end. For mode 'k' an end or a reset is right at any place after half. */
static const char *process_mix_run_conversation(int fd, const struct request *request, uint32_t *sent, uint32_t *got)
{
	uint8_t out[CHUNK], in[CHUNK];
	uint32_t queued_from = 0, queued = 0;
	bool killed = request->mode == 'k';
	size_t head = 0;

	for (;;) {
		bool wants_out = head < sizeof(*request) || *sent < request->length;
		struct pollfd poll_fd = {fd, (short)(POLLIN | (wants_out ? POLLOUT : 0)), 0};
		int ready = poll(&poll_fd, 1, STALL_MS);
		ssize_t n;

		if (ready == 0)
			return "nothing moves";
		if (poll_fd.revents & POLLOUT) {
			if (head < sizeof(*request)) {
				n = send(fd, (const char *)request + head, sizeof(*request) - head,
				         MSG_DONTWAIT | MSG_NOSIGNAL);
				if (n > 0)
					head += (size_t)n;
			} else {
				uint32_t room = request->length - *sent < CHUNK ? request->length - *sent : CHUNK;

				if (queued == 0 || queued_from != *sent) {
					for (uint32_t i = 0; i < room; i++)
						out[i] = process_mix_pattern_byte_at(request->seed, *sent + i);
					queued_from = *sent;
					queued = room;
				}
				n = send(fd, out, queued, MSG_DONTWAIT | MSG_NOSIGNAL);
				if (n > 0) {
					*sent += (uint32_t)n;
					queued = 0;
				}
			}
			if (n < 0 && errno != EAGAIN)
				return killed ? NULL : strerror(errno);
		}
		if (poll_fd.revents & (POLLIN | POLLHUP | POLLERR)) {
			n = recv(fd, in, sizeof(in), MSG_DONTWAIT);
			if (n < 0 && errno == EAGAIN)
				continue;
			if (n < 0)
				return killed ? NULL : strerror(errno);
			if (n == 0)
				return *got == request->length || killed ? NULL : "ends too early";
			for (ssize_t i = 0; i < n; i++) {
				if (*got + (uint32_t)i >= request->length)
					return "more comes back than was sent";
				if (in[i] !=
				    answer_byte_of(process_mix_pattern_byte_at(request->seed, *got + (uint32_t)i)))
					return "a wrong byte";
			}
			*got += (uint32_t)n;
		}
	}
}

static int draw_random_request_mode(unsigned int *seed)
{
	char mode = request_mode_letters[(size_t)rand_r(seed) % strlen(request_mode_letters)];
	int index = 0;

	while (index < MODES - 1 && modes[index].mode != mode)
		index++;
	return index;
}

static void *run_conversations_until_end(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;

	while (process_mix_now_ms() < end_ms) {
		int index = draw_random_request_mode(&seed), fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		uint32_t length =
		        rand_r(&seed) % 4 ? (uint32_t)rand_r(&seed) % 4000 : (uint32_t)rand_r(&seed) % MAX_LENGTH;
		struct request request = {
		        .mode = modes[index].mode, .length = length, .seed = (uint64_t)rand_r(&seed) << 20};
		uint64_t begun = process_mix_now_ms(), took;
		uint32_t sent = 0, got = 0;
		struct sockaddr_in mine = {0};
		const char *wrong;

		if (fd < 0)
			process_mix_die("socket");
		if (connect(fd, (struct sockaddr *)&server, sizeof(server)))
			wrong = "connect fails";
		else
			wrong = process_mix_run_conversation(fd, &request, &sent, &got);
		getsockname(fd, (struct sockaddr *)&mine, &(socklen_t){sizeof(mine)});
		close(fd);
		took = process_mix_now_ms() - begun;
		for (uint64_t old = atomic_load(&slowest_ms);
		     took > old && !atomic_compare_exchange_weak(&slowest_ms, &old, took);)
			;
		atomic_fetch_add(&asked[index], 1);
		atomic_fetch_add(&bytes_back, got);
		if (wrong) {
			if (got == 0 && !strcmp(wrong, strerror(ECONNRESET)))
				atomic_fetch_add(&resets, 1);
			atomic_fetch_add(&failed[index], 1);
			process_mix_print_failure(&request, ntohs(mine.sin_port), wrong, sent, got);
		}
	}
	return NULL;
}

/*
 * One datagram at a time: nothing can overflow, so each comes back, once and in its turn. An answer to an earlier one
 * has come late or twice: both are said.
 */
static void *run_datagram_client(void *argument)
{
	uint64_t number = 0, answered = 0, back;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct timeval timeout = {.tv_sec = 3};

	(void)argument;
	if (connect(fd, (struct sockaddr *)&server, sizeof(server)))
		process_mix_die("connect");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	while (process_mix_now_ms() < end_ms) {
		const uint64_t begun = process_mix_now_ms();
		ssize_t n;

		number++;
		atomic_fetch_add(&datagrams, 1);
		if (send(fd, &number, sizeof(number), 0) != sizeof(number)) {
			print_datagram_failure(number, strerror(errno), begun);
			continue;
		}
		while ((n = recv(fd, &back, sizeof(back), 0)) == sizeof(back) &&
		       (back ^= 0x5a5a5a5a5a5a5a5aULL) != number)
			print_datagram_failure(back, back <= answered ? "answered twice" : "answered late", begun);
		if (n == sizeof(back))
			answered = number;
		else
			print_datagram_failure(number, n < 0 ? strerror(errno) : "cut", begun);
		usleep(2000);
	}
	close(fd);
	return NULL;
}

static int process_mix_run_all_clients(const char *address, const char *port, int seconds, int clients,
                                       unsigned int seed, const char *letters)
{
	pthread_t threads[256], datagram_thread;
	uint64_t sum = 0, wrong = 0;

	snprintf(request_mode_letters, sizeof(request_mode_letters), "%s", letters);
	server = process_mix_address_of(address, port);
	end_ms = process_mix_now_ms() + (uint64_t)seconds * 1000;
	clients = clients < 256 ? clients : 256;
	for (int i = 0; i < clients; i++) {
		if (pthread_create(&threads[i], NULL, run_conversations_until_end,
		                   (void *)(uintptr_t)(seed * 1000 + (unsigned int)i)))
			process_mix_die("pthread_create");
	}
	if (pthread_create(&datagram_thread, NULL, run_datagram_client, NULL))
		process_mix_die("pthread_create");
	for (int i = 0; i < clients; i++)
		pthread_join(threads[i], NULL);
	pthread_join(datagram_thread, NULL);
	for (int i = 0; i < MODES; i++) {
		printf("%c: %llu, %llu failed: %s\n", modes[i].mode, (unsigned long long)asked[i],
		       (unsigned long long)failed[i], modes[i].what);
		sum += asked[i];
		wrong += failed[i];
	}
	printf("%llu connections, %llu failed; %llu bytes came back; the slowest took %llu ms; %llu datagrams, %llu "
	       "wrong\n",
	       (unsigned long long)sum, (unsigned long long)wrong, (unsigned long long)bytes_back,
	       (unsigned long long)slowest_ms, (unsigned long long)datagrams, (unsigned long long)datagrams_lost);
	printf("%llu of the failed were reset before a byte came back\n", (unsigned long long)resets);
	return wrong != 0 || datagrams_lost != 0 || sum == 0;
}

int main(int argc, char **argv)
{
	static char path[4096];

	self = realpath("/proc/self/exe", path);
	if (argc == 5 && !strcmp(argv[1], "serve"))
		return process_mix_serve(argv[2], argv[3], atoi(argv[4]));
	if (argc == 3 && !strcmp(argv[1], "child")) {
		serve_remaining_bytes(0, (uint64_t)atoll(argv[2]));
		return 0;
	}
	if ((argc == 7 || (argc == 8 && *argv[7])) && !strcmp(argv[1], "ask"))
		return process_mix_run_all_clients(argv[2], argv[3], atoi(argv[4]), atoi(argv[5]),
		                                   (unsigned int)atoi(argv[6]), argc == 8 ? argv[7] : "sfedumxprRkq");
	fprintf(stderr, "usage: process_mix serve ADDRESS PORT WORKERS | child BYTES | ask ADDRESS PORT SECONDS "
	                "CLIENTS SEED [MODES]\n");
	return 2;
}
