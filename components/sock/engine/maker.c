/*
 * maker - the thread and the core that made a socket, and the socket's own request (SO_VMA_RING_ALLOC_LOGIC). By these
 * VMA_RING_ALLOCATION_LOGIC_* goes for all its life.
 */
#include <string.h>

#include "engine.h"

/* ---- a request: set << 63 | logic << 56 | profile << 32 | user id ---- */

#define REQUEST_SET (1ULL << 63)

static _Atomic uint64_t *ring_request_slot_of_side(struct vma_file *file, enum vma_ring_ctx_side side)
{
	return &file->ring_requests[side == VMA_RING_CTX_TX];
}

struct vma_ring_request vma_file_get_ring_alloc_request(const struct vma_file *file, enum vma_ring_ctx_side side)
{
	const uint64_t request =
	        atomic_load_explicit(&file->ring_requests[side == VMA_RING_CTX_TX], memory_order_relaxed);

	return (struct vma_ring_request){.is_set = (request & REQUEST_SET) != 0,
	                                 .logic = (enum vma_ring_logic)(request >> 56 & 0x7f),
	                                 .profile = (uint32_t)(request >> 32) & 0xffffff,
	                                 .user_id = (uint32_t)request};
}

static bool file_requests_ring_logic(const struct vma_file *file, enum vma_ring_logic logic)
{
	const struct vma_ring_request rx = vma_file_get_ring_alloc_request(file, VMA_RING_CTX_RX),
	                              tx = vma_file_get_ring_alloc_request(file, VMA_RING_CTX_TX);

	return (rx.is_set && rx.logic == logic) || (tx.is_set && tx.logic == logic);
}

void vma_file_inherit_ring_requests(struct vma_file *file, const struct vma_file *from)
{
	for (unsigned side = 0; side < 2; side++)
		atomic_store_explicit(&file->ring_requests[side],
		                      atomic_load_explicit(&from->ring_requests[side], memory_order_relaxed),
		                      memory_order_relaxed);
	if (vma_file_has_ring_request(file))
		vma_file_record_creating_thread_and_core(file);
}

void vma_file_set_ring_request(struct vma_file *file, enum vma_ring_ctx_side side,
                               const struct vma_ring_request *request)
{
	atomic_store_explicit(ring_request_slot_of_side(file, side),
	                      REQUEST_SET | (uint64_t)request->logic << 56 |
	                              (uint64_t)(request->profile & 0xffffff) << 32 | request->user_id,
	                      memory_order_relaxed);
	vma_file_record_creating_thread_and_core(file);
}

/* ---- the maker ---- */

static bool file_uses_ring_logic(const struct vma_conf *conf, const struct vma_file *file, enum vma_ring_logic logic)
{
	return conf->ring_allocation_logic_rx == (int64_t)logic || conf->ring_allocation_logic_tx == (int64_t)logic ||
	       (vma_file_has_ring_request(file) && file_requests_ring_logic(file, logic));
}

static uint32_t core_of_socket_maker(const struct vma_conf *conf, const struct vma_file *file, struct vma_thread *self)
{
	if (file_uses_ring_logic(conf, file, VMA_RING_LOGIC_PER_CORE_ATTACH_THREADS))
		return vma_thread_bind_core(self);
	return file_uses_ring_logic(conf, file, VMA_RING_LOGIC_PER_CORE) ? vma_thread_current_core() : 0;
}

void vma_file_record_creating_thread_and_core(struct vma_file *file)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	struct vma_thread *self = vma_thread_self();

	if (engine == NULL || self->is_internal)
		return;
	file->maker_thread = atomic_load_explicit(&self->tid, memory_order_relaxed);
	file->maker_core = core_of_socket_maker(&engine->conf, file, self);
}

void vma_file_record_ring_move(struct vma_file *file, const struct vma_ring_requester *where)
{
	if (where->thread_id != 0)
		file->maker_thread = (uint32_t)where->thread_id;
	else
		file->maker_core = where->core;
}

struct vma_ring_requester vma_file_get_ring_requester(const struct vma_file *file, const void *local)
{
	struct vma_ring_requester where = {
	        .socket_id = file->id, .thread_id = file->maker_thread, .core = file->maker_core};

	where.rx = vma_file_get_ring_alloc_request(file, VMA_RING_CTX_RX);
	where.tx = vma_file_get_ring_alloc_request(file, VMA_RING_CTX_TX);

	memcpy(where.local, local, 4);
	return where;
}

/* ---- the logic of a side ---- */

enum vma_ring_logic conf_ring_allocation_logic_of_side(const struct vma_conf *conf, enum vma_ring_ctx_side side)
{
	int64_t logic = conf->ring_allocation_logic_rx;

	if (side == VMA_RING_CTX_TX || (side == VMA_RING_CTX_TCP && logic == VMA_RING_LOGIC_PER_INTERFACE))
		logic = conf->ring_allocation_logic_tx;
	return (enum vma_ring_logic)logic;
}

/* Of a connection: the request for receiving, else, where nothing is configured for that, the one for sending. */
static const struct vma_ring_request *ring_request_for_side(const struct vma_conf *conf, enum vma_ring_ctx_side side,
                                                            const struct vma_ring_requester *where)
{
	if (side == VMA_RING_CTX_TX)
		return &where->tx;
	return side == VMA_RING_CTX_TCP && !where->rx.is_set &&
	                       conf->ring_allocation_logic_rx == VMA_RING_LOGIC_PER_INTERFACE
	               ? &where->tx
	               : &where->rx;
}

struct vma_ring_key ring_ctx_key(const struct vma_conf *conf, enum vma_ring_ctx_side side,
                                 const struct vma_ring_requester *where)
{
	const struct vma_ring_request *request = ring_request_for_side(conf, side, where);
	struct vma_ring_requester own;

	if (!request->is_set)
		return vma_ring_key(conf_ring_allocation_logic_of_side(conf, side), where);
	own = *where;
	own.user_id = request->user_id;
	own.profile = request->profile;
	return vma_ring_key(request->logic, &own);
}

static struct vma_ring_key ring_key_for_interface(const struct vma_engine *engine, const struct vma_file *file,
                                                  enum vma_ring_ctx_side side)
{
	const uint32_t same = 0; /* a connection has its listener's address */
	const struct vma_ring_requester where = vma_file_get_ring_requester(file, &same);

	return ring_ctx_key(&engine->conf, side, &where);
}

bool vma_conn_ring_may_differ_from_listener(const struct vma_engine *engine, const struct vma_file *conn,
                                            const struct vma_file *listener)
{
	const struct vma_ring_key a = ring_key_for_interface(engine, conn, VMA_RING_CTX_TCP),
	                          b = ring_key_for_interface(engine, listener, VMA_RING_CTX_RX);

	return memcmp(&a, &b, sizeof(a)) != 0;
}

bool vma_ring_depends_on_creating_thread(const struct vma_engine *engine, const struct vma_file *file)
{
	const struct vma_ring_request rx = vma_file_get_ring_alloc_request(file, VMA_RING_CTX_RX);

	if (engine == NULL)
		return false;
	return rx.is_set ? rx.logic >= VMA_RING_LOGIC_PER_SOCKET || rx.profile != 0
	                 : engine->conf.ring_allocation_logic_rx >= VMA_RING_LOGIC_PER_SOCKET;
}
