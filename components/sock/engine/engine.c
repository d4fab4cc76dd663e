/* engine - the process's one engine: started on first use, ended at exit, left behind by a forked child. */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/nic_tap.h>
#include <vma/log.h>
#include <vma/stats.h>
#include <vma/tcp.h>

#include "engine.h"
#include "internal.h"
#include "../fd/file.h"

#define FDS_MAX 16

extern char **environ;

struct vma_engine *_Atomic vma_engine_now;
_Atomic bool vma_sockets_stay;
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool failed; /* and it has been said why */

/* ---- the steps of a start; each is undone only by the end of the process ---- */

static int engine_load_configuration(struct vma_engine *engine)
{
	/* A log file that cannot be opened has been warned of and is no reason not to start. */
	vma_conf_load_and_init_log(&engine->conf, environ);
	if (vma_log_fd() >= 0)
		vma_fd_guard_same_number(vma_log_fd());
	engine->latency = engine->conf.spec != VMA_SPEC_NONE;
	return 0;
}

static int start_stats(struct vma_engine *engine)
{
	int fds[VMA_STATS_FDS], rc = vma_stats_create(engine->conf.stats_shmem_dir, &engine->stats);
	unsigned n = rc == 0 ? vma_stats_fds(engine->stats, fds) : 0;

	for (unsigned i = 0; i < n; i++)
		vma_fd_guard_same_number(fds[i]);
	if (rc == 0) {
		engine->process_stats = vma_stats_block_alloc(engine->stats, VMA_STATS_TYPE_PROCESS, "process");
		engine->select_stats = vma_stats_block_alloc(engine->stats, VMA_STATS_TYPE_IOMUX, "select");
		engine->poll_stats = vma_stats_block_alloc(engine->stats, VMA_STATS_TYPE_IOMUX, "poll");
	}
	return rc;
}

static void unguard_stats(const struct vma_engine *engine)
{
	int fds[VMA_STATS_FDS];
	unsigned n = vma_stats_fds(engine->stats, fds);

	for (unsigned i = 0; i < n; i++)
		vma_fd_remove(fds[i]);
	if (vma_stats_capture_fd(engine->stats) >= 0)
		vma_fd_remove(vma_stats_capture_fd(engine->stats));
}

static int engine_create_buffer_pools(struct vma_engine *engine)
{
	struct vma_bufarena_attr arena = {.stats = engine->stats};
	struct vma_bufpool_attr spill = {.name = "spill", .stats = engine->stats};
	int rc;

	vma_ring_conf_to_memory_attrs(&engine->conf, &arena, &spill);
	rc = vma_bufarena_create(&arena, &engine->arena);
	if (rc < 0)
		return rc;
	spill.arena = engine->arena;
	return vma_bufpool_create(&spill, &engine->spill);
}

static int engine_create_net_monitor(struct vma_engine *engine)
{
	/* Who calls is inside (vma_enter), where handlers wait, or the internal thread, which has blocked all signals.
	 */
	const struct vma_conf *conf = &engine->conf;
	const struct vma_net_attr attr = {.callers_hold_signals = true,
	                                  .mtu_max = (uint32_t)conf->mtu,
	                                  .sends_arps = conf->given[VMA_CONF_AT_neigh_uc_arp_quata] ||
	                                                conf->given[VMA_CONF_AT_neigh_uc_arp_delay_msec],
	                                  .uc_arps = (uint32_t)conf->neigh_uc_arp_quata,
	                                  .uc_arp_delay_msec = (uint32_t)conf->neigh_uc_arp_delay_msec,
	                                  .failed_retries = conf->given[VMA_CONF_AT_neigh_num_err_retries]
	                                                            ? (uint32_t)conf->neigh_num_err_retries
	                                                            : 0};
	int fds[FDS_MAX], rc = vma_net_create(&attr, &engine->net);
	unsigned n = rc == 0 ? vma_net_fds(engine->net, fds, FDS_MAX) : 0;

	for (unsigned i = 0; i < n && i < FDS_MAX; i++)
		vma_fd_guard_same_number(fds[i]);
	return rc;
}

/* The file that holds this very code. */
static const char *library_file_path(void)
{
	Dl_info info;

	return dladdr((void *)&vma_engine_now, &info) != 0 ? info.dli_fname : NULL;
}

static int engine_count_cores_and_find_vmad(struct vma_engine *engine)
{
	cpu_set_t cpus;

	engine->cores = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (unsigned)CPU_COUNT(&cpus) : 1;
	vma_engine_find_vmad(library_file_path(), engine->priv->vmad_path, sizeof(engine->priv->vmad_path));
	return 0;
}

static void nic_fd_guard_callback(int fd, bool on)
{
	if (on)
		vma_fd_guard_same_number(fd);
	else
		vma_fd_remove(fd);
}

static int engine_install_fd_and_signal_hooks(struct vma_engine *engine)
{
	vma_nic_fd_hook = nic_fd_guard_callback;
	vma_signals_set_logging(engine->conf.handle_sigsegv, engine->conf.handle_sigintr);
	vma_signals_wrap_existing_handlers();
	return 0;
}

static const struct step {
	const char *name;
	int (*start)(struct vma_engine *engine);
} steps[] = {
        {"configuration", engine_load_configuration},
        {"rules", engine_read_rules_once},
        {"statistics", start_stats},
        {"VMA_STATS_FILE", stats_log_start},
        {"packet memory", engine_create_buffer_pools},
        {"network", engine_create_net_monitor},
        {"cores", engine_count_cores_and_find_vmad},
        {"signals", engine_install_fd_and_signal_hooks},
        {"thread", internal_thread_setup_and_start},
        {"requests", stats_requests_start},
};

static void engine_unguard_fds(struct vma_engine *engine)
{
	int fds[FDS_MAX];
	unsigned n = engine->net != NULL ? vma_net_fds(engine->net, fds, FDS_MAX) : 0;

	for (unsigned i = 0; i < n && i < FDS_MAX; i++)
		vma_fd_remove(fds[i]);
	if (engine->stats != NULL)
		unguard_stats(engine);
}

/* What a failed start leaves. It is not tried again in this process. */
static void engine_free_failed_start(struct vma_engine *engine)
{
	engine_unguard_fds(engine);
	vma_net_destroy(engine->net);
	if (engine->arena != NULL)
		vma_bufarena_destroy(engine->arena);
	vma_stats_destroy(engine->stats);
	vma_free(engine->priv);
	vma_free(engine);
}

static struct vma_engine *engine_start(void)
{
	struct vma_engine *engine = vma_alloc(sizeof(*engine));
	const struct step *step = steps;
	int rc = -ENOMEM;

	if (engine != NULL)
		engine->priv = vma_alloc(sizeof(*engine->priv));
	if (engine != NULL && engine->priv != NULL)
		for (rc = 0; step < steps + sizeof(steps) / sizeof(steps[0]); step++) {
			rc = step->start(engine);
			if (rc < 0)
				break;
		}
	if (rc == 0) {
		engine_log_startup_banner(&engine->conf);
		return engine;
	}
	vma_log_error("cannot start (%s: %s): all sockets are the kernel's", step->name, strerrordesc_np(-rc));
	if (engine != NULL && engine->conf.exception_handling == VMA_EXCEPTION_EXIT)
		exit(EXIT_FAILURE);
	if (engine != NULL)
		engine_free_failed_start(engine);
	return NULL;
}

/* Files and netlink are read by calls that are cancellation points, and the program's call is none. */
struct vma_engine *vma_engine_start(void)
{
	const int saved = errno;
	struct vma_engine *engine;
	int cancel_state;

	if (atomic_load_explicit(&failed, memory_order_relaxed))
		return NULL;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
	pthread_mutex_lock(&start_lock);
	engine = atomic_load_explicit(&vma_engine_now, memory_order_relaxed);
	if (engine == NULL && !atomic_load_explicit(&failed, memory_order_relaxed)) {
		engine = engine_start();
		atomic_store_explicit(&failed, engine == NULL, memory_order_relaxed);
		atomic_store_explicit(&vma_engine_now, engine, memory_order_release);
	}
	pthread_mutex_unlock(&start_lock);
	pthread_setcancelstate(cancel_state, NULL);
	errno = saved;
	return engine;
}

/* ---- counters of sockets ---- */

#define SOCKET_BLOCKS_MAX 1024 /* as many as VMA_STATS_FD_NUM may allow: the rest of the segment is for all else */

static bool counter_take_below_limit(_Atomic uint32_t *taken, uint32_t most)
{
	if (atomic_fetch_add_explicit(taken, 1, memory_order_relaxed) < most)
		return true;
	atomic_fetch_sub_explicit(taken, 1, memory_order_relaxed);
	return false;
}

static bool engine_reserve_socket_stats_block(struct vma_engine *engine)
{
	if (!counter_take_below_limit(&engine->priv->stats_counted, (uint32_t)engine->conf.stats_fd_num))
		return false;
	if (counter_take_below_limit(&engine->priv->stats_in_use, SOCKET_BLOCKS_MAX))
		return true;
	atomic_fetch_sub_explicit(&engine->priv->stats_counted, 1, memory_order_relaxed);
	return false;
}

struct vma_stats_socket *vma_engine_alloc_socket_stats(struct vma_engine *engine, int fd, _Atomic bool *counts)
{
	struct vma_stats_socket *block;
	char name[VMA_STATS_NAME_MAX];

	if (!engine_reserve_socket_stats_block(engine)) {
		atomic_fetch_add_explicit(&engine->process_stats->sockets_unseen, 1, memory_order_relaxed);
		return NULL;
	}
	atomic_store_explicit(counts, true, memory_order_relaxed);
	snprintf(name, sizeof(name), "fd %d", fd);
	block = vma_stats_block_alloc(engine->stats, VMA_STATS_TYPE_SOCKET, name);
	vma_stats_set(&block->fd, (uint64_t)fd);
	return block;
}

/* A close may come before the block: then the end of the block is what counts. */
void vma_engine_uncount_socket_stats_at_close(struct vma_engine *engine, _Atomic bool *counts)
{
	if (atomic_exchange_explicit(counts, false, memory_order_relaxed))
		atomic_fetch_sub_explicit(&engine->priv->stats_counted, 1, memory_order_relaxed);
}

void vma_engine_free_socket_stats(struct vma_engine *engine, struct vma_stats_socket *block, _Atomic bool *counts)
{
	if (block == NULL)
		return;
	stats_log_socket(engine, block);
	vma_stats_block_free(engine->stats, block);
	atomic_fetch_sub_explicit(&engine->priv->stats_in_use, 1, memory_order_relaxed);
	vma_engine_uncount_socket_stats_at_close(engine, counts);
}

/* ---- the end ---- */

static void ring_ctx_flush_at_exit(struct vma_ring_ctx *ring_ctx, void *arg)
{
	struct vma_tcp *tcp = atomic_load_explicit(&ring_ctx->tcp, memory_order_acquire);

	(void)arg;
	vma_ring_flush_tx(ring_ctx->ring);
	if (tcp != NULL)
		vma_tcp_end_all_connections_at_exit(tcp);
}

/* Nothing is taken down: other threads may be in the middle of anything, and the kernel takes all of it back. */
void vma_engine_flush_and_log_at_exit(void)
{
	struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	struct vma_thread *self;

	if (engine == NULL)
		return;
	self = vma_enter();
	tcp_steer_all_conns_under_wide_rules(&engine->conf);
	ring_ctxs_each(ring_ctx_flush_at_exit, NULL);
	vma_leave(self);
	stats_log_all_open_sockets_at_exit(engine);
	vma_stats_remove_file(engine->stats);
}

/* ---- fork ---- */

/*
 * Of what the parent's threads may be changing at this moment the child keeps only the list of files and their memory;
 * the rest it leaves as it is, closes its descriptors, and makes its own. (nic sees to its own in the same way.)
 */
void vma_engine_fork_prepare(void)
{
	vma_engine_steer_conns_under_wide_rules(); /* a child may serve listeners of ours, too */
	files_lock_before_fork();
}

void vma_engine_after_fork_in_parent(void)
{
	files_unlock_after_fork_in_parent();
}

static bool is_tcp_listener(int fd)
{
	int protocol = 0, listens = 0;
	socklen_t len = sizeof(protocol);

	if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) != 0 || protocol != IPPROTO_TCP)
		return false;
	len = sizeof(listens);
	return syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 && listens != 0;
}

struct engine_needs {
	bool engine, devices;
};

/*
 * A connection that a forked child uses becomes the kernel's; its other sockets are offloaded. A listener that came
 * through exec is the kernel's, but the engine watches for what waits with the process that made it.
 */
static void collect_engine_needs_of_file(struct vma_file *file, void *arg)
{
	struct engine_needs *engine_needs = arg;
	const int fd = atomic_load_explicit(&file->fd, memory_order_relaxed);

	if (!engine_needs->devices && file->from_parent && !atomic_load(&file->os_only))
		engine_needs->devices =
		        file->kind == VMA_FILE_UDP || (file->kind == VMA_FILE_TCP && is_tcp_listener(fd));
	if (engine_needs->devices || (!engine_needs->engine && file->kind == VMA_FILE_EXEC && is_tcp_listener(fd)))
		engine_needs->engine = true;
}

void vma_engine_start_if_open_files_need_it(void)
{
	const int saved = errno;
	struct vma_engine *engine = NULL;
	struct vma_thread *self;
	struct engine_needs engine_needs = {0};

	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) != NULL)
		return;
	self = vma_enter();
	vma_file_each(collect_engine_needs_of_file, &engine_needs);
	if (engine_needs.engine)
		engine = vma_engine_start();
	if (engine != NULL && engine_needs.devices)
		devices_open_those_parent_had(engine);
	vma_leave(self);
	errno = saved;
}

static __attribute__((cold)) void engine_close_parent_fds_in_fork_child(struct vma_engine *engine)
{
	int fds[FDS_MAX];
	unsigned n = vma_net_fds(engine->net, fds, FDS_MAX);

	for (unsigned i = 0; i < n && i < FDS_MAX; i++)
		vma_fd_unguard_close(fds[i]);
	stats_log_close_in_fork_child(engine);
	unguard_stats(engine);
	vma_stats_detach_from_parent_after_fork(engine->stats);
}

__attribute__((cold)) void vma_engine_reset_in_fork_child(void)
{
	struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_relaxed);
	struct vma_thread *self;

	vma_threads_reset_in_forked_child();
	vma_nic_tap_stop_in_child();
	self = vma_enter();
	pthread_mutex_init(&start_lock, NULL);
	atomic_store_explicit(&failed, false, memory_order_relaxed);
	atomic_store_explicit(&vma_engine_now, NULL, memory_order_relaxed);
	device_record_parents_devices_in_child(engine);
	ring_ctxs_forget_in_fork_child();
	internal_thread_reset_in_fork_child();
	if (engine != NULL)
		engine_close_parent_fds_in_fork_child(engine);
	files_reset_in_fork_child();
	vma_leave(self);
}
