/*
 * lib - the functions of libibverbs that are symbols of the shared library, found at the first need.
 *
 * Functions that <infiniband/verbs.h> calls through the context, the queue pair or the completion queue (ibv_wr_send,
 * ibv_start_poll, ibv_create_flow, ...) are no symbols, and are used directly.
 *
 * Threads: any. Progress: the first call opens the library. Memory: constant once it is found.
 */
#ifndef VMA_NIC_VERBS_LIB_H
#define VMA_NIC_VERBS_LIB_H

#include <infiniband/verbs.h>

/* The header makes macros of these. */
#undef ibv_reg_mr
#undef ibv_query_port

/* X(type, name, (parameters)) */
#define VERBS_SYMBOLS(X)                                                                                               \
	X(struct ibv_device **, ibv_get_device_list, (int *n))                                                         \
	X(void, ibv_free_device_list, (struct ibv_device * *list))                                                     \
	X(struct ibv_context *, ibv_open_device, (struct ibv_device * device))                                         \
	X(int, ibv_close_device, (struct ibv_context * context))                                                       \
	X(int, ibv_query_device, (struct ibv_context * context, struct ibv_device_attr * attr))                        \
	X(int, ibv_get_async_event, (struct ibv_context * context, struct ibv_async_event * event))                    \
	X(void, ibv_ack_async_event, (struct ibv_async_event * event))                                                 \
	X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * context))                                               \
	X(int, ibv_dealloc_pd, (struct ibv_pd * pd))                                                                   \
	X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd * pd, void *addr, size_t length, int access))                    \
	X(int, ibv_dereg_mr, (struct ibv_mr * mr))                                                                     \
	X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context * context))                          \
	X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel * channel))                                          \
	X(struct ibv_cq *, ibv_create_cq,                                                                              \
	  (struct ibv_context * context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector))     \
	X(int, ibv_destroy_cq, (struct ibv_cq * cq))                                                                   \
	X(int, ibv_get_cq_event, (struct ibv_comp_channel * channel, struct ibv_cq * *cq, void **cq_context))          \
	X(void, ibv_ack_cq_events, (struct ibv_cq * cq, unsigned n))                                                   \
	X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr * attr))                        \
	X(struct ibv_qp_ex *, ibv_qp_to_qp_ex, (struct ibv_qp * qp))                                                   \
	X(int, ibv_modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask))                               \
	X(int, ibv_query_qp, (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask, struct ibv_qp_init_attr *init)) \
	X(int, ibv_destroy_qp, (struct ibv_qp * qp))

struct verbs_lib {
#define X(type, name, parameters) type(*name) parameters;
	VERBS_SYMBOLS(X)
#undef X
};

const struct verbs_lib *verbs_lib(void); /* NULL: there is no such library here */
/* A function of that name that stands in front of the library's, as one that is preloaded may; else the library's own.
 * NULL: there is none. */
void *verbs_lib_symbol(void *library, const char *name);

#endif
