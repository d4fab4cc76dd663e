/* maker - the thread and the core that made a socket: what VMA_RING_ALLOCATION_LOGIC_* goes by for all its life. */
#include <string.h>

#include "engine.h"

static bool has_logic(const struct vma_conf *conf, int logic)
{
	return conf->ring_allocation_logic_rx == logic || conf->ring_allocation_logic_tx == logic;
}

static uint32_t core_of_maker(const struct vma_conf *conf, struct vma_thread *self)
{
	if (has_logic(conf, VMA_RING_LOGIC_PER_CORE_ATTACH_THREADS))
		return vma_thread_bind_core(self);
	return has_logic(conf, VMA_RING_LOGIC_PER_CORE) ? vma_thread_core() : 0;
}

void vma_file_made_here(struct vma_file *file)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	struct vma_thread *self = vma_thread_self();

	if (engine == NULL || self->is_internal)
		return;
	file->maker_thread = atomic_load_explicit(&self->tid, memory_order_relaxed);
	file->maker_core = core_of_maker(&engine->conf, self);
}

void vma_file_moved(struct vma_file *file, const struct vma_ring_where *where)
{
	if (where->thread_id != 0)
		file->maker_thread = (uint32_t)where->thread_id;
	else
		file->maker_core = where->core;
}

struct vma_ring_where vma_file_where(const struct vma_file *file, const void *local)
{
	struct vma_ring_where where = {
	        .socket_id = file->id, .thread_id = file->maker_thread, .core = file->maker_core};

	memcpy(where.local, local, 4);
	return where;
}

enum vma_ring_logic ring_ctx_logic(const struct vma_conf *conf, enum vma_ring_ctx_side side)
{
	int64_t logic = conf->ring_allocation_logic_rx;

	if (side == VMA_RING_CTX_TX || (side == VMA_RING_CTX_TCP && logic == VMA_RING_LOGIC_PER_INTERFACE))
		logic = conf->ring_allocation_logic_tx;
	return (enum vma_ring_logic)logic;
}

bool vma_ring_ctx_may_differ(const struct vma_engine *engine, const struct vma_file *conn,
                             const struct vma_file *listener)
{
	const enum vma_ring_logic logic = ring_ctx_logic(&engine->conf, VMA_RING_CTX_TCP);

	if (logic != ring_ctx_logic(&engine->conf, VMA_RING_CTX_RX))
		return true;
	switch (logic) {
	case VMA_RING_LOGIC_PER_SOCKET:
		return true;
	case VMA_RING_LOGIC_PER_THREAD:
		return conn->maker_thread != listener->maker_thread;
	case VMA_RING_LOGIC_PER_CORE:
	case VMA_RING_LOGIC_PER_CORE_ATTACH_THREADS:
		return conn->maker_core != listener->maker_core;
	default:
		return false;
	}
}

bool vma_ring_ctx_is_by_maker(const struct vma_engine *engine)
{
	return engine != NULL && engine->conf.ring_allocation_logic_rx >= VMA_RING_LOGIC_PER_SOCKET;
}
