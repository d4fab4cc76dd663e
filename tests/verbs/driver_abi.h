/*
 * driver_abi - what libibverbs and its drivers agree on, as far as this driver needs it.
 *
 * Debian's libibverbs-dev has no header for it. The agreement is that of rdma-core 44, whose libibverbs.so carries it as
 * the symbol version IBVERBS_PRIVATE_34: another version of the library does not resolve the names below. Sizes and
 * offsets are asserted here; driver.c compares at run time where the library puts what it is given.
 */
#ifndef TESTS_VERBS_DRIVER_ABI_H
#define TESTS_VERBS_DRIVER_ABI_H

#include <assert.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct verbs_sysfs_dev; /* the library's */

/* ---- matching a device ---- */

enum {
	VERBS_MATCH_BY_NAME = 2 /* with "rdma_device:" and N before the name, a pattern for fnmatch */
};

struct verbs_match_ent {
	void *driver_data;
	union {
		const char *modalias;
		uint64_t driver_id;
	} u;
	uint16_t vendor, device;
	uint8_t kind; /* 0 ends the table */
};

struct verbs_device {
	struct ibv_device device;
	const struct verbs_device_ops *ops;
	atomic_int refcount;
	void *list_next, *list_prev;
	struct verbs_sysfs_dev *sysfs;
	uint64_t core_support;
};

struct verbs_device_ops {
	const char *name;
	uint32_t match_min_abi_version, match_max_abi_version;
	const struct verbs_match_ent *match_table;
	const struct verbs_device_ops **static_providers;
	bool (*match_device)(struct verbs_sysfs_dev *sysfs_dev);
	struct verbs_context *(*alloc_context)(struct ibv_device *device, int cmd_fd, void *private_data);
	struct verbs_context *(*import_context)(struct ibv_device *device, int cmd_fd);
	struct verbs_device *(*alloc_device)(struct verbs_sysfs_dev *sysfs_dev);
	void (*uninit_device)(struct verbs_device *device);
};

/* ---- objects that the library looks into ---- */

enum {
	VERBS_MR_ORDINARY,        /* a kind of memory that may be registered anew, and is hidden from forks */
	VERBS_QP_HAS_EX = 1 << 1, /* qp_ex is filled in */
};

struct verbs_mr {
	struct ibv_mr ibv_mr;
	int mr_type;
	int access;
};

struct verbs_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex qp_ex;
	};
	uint32_t comp_mask;
	void *xrcd;
};

struct verbs_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex cq_ex;
	};
};

/* ---- operations of a context, sorted by name; those of no use here have no type ---- */

typedef void (*verbs_unused)(void);

struct verbs_context_ops {
	verbs_unused advise_mr, alloc_dm, alloc_mw, alloc_null_mr, alloc_parent_domain;
	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	verbs_unused alloc_td;
	void (*async_event)(struct ibv_context *context, struct ibv_async_event *event);
	verbs_unused attach_counters_point_flow, attach_mcast, bind_mw, close_xrcd;
	void (*cq_event)(struct ibv_cq *cq);
	verbs_unused create_ah, create_counters;
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel,
	                            int comp_vector);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
	struct ibv_flow *(*create_flow)(struct ibv_qp *qp, struct ibv_flow_attr *attr);
	verbs_unused create_flow_action_esp;
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
	verbs_unused create_rwq_ind_table, create_srq, create_srq_ex, create_wq, dealloc_mw;
	int (*dealloc_pd)(struct ibv_pd *pd);
	verbs_unused dealloc_td;
	int (*dereg_mr)(struct verbs_mr *mr);
	verbs_unused destroy_ah, destroy_counters;
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*destroy_flow)(struct ibv_flow *flow);
	verbs_unused destroy_flow_action;
	int (*destroy_qp)(struct ibv_qp *qp);
	verbs_unused destroy_rwq_ind_table, destroy_srq, destroy_wq, detach_mcast;
	void (*free_context)(struct ibv_context *context);
	verbs_unused free_dm, get_srq_num, import_dm, import_mr, import_pd, modify_cq, modify_flow_action_esp;
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
	verbs_unused modify_qp_rate_limit, modify_srq, modify_wq, open_qp, open_xrcd;
	int (*poll_cq)(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
	verbs_unused post_srq_ops, post_srq_recv;
	int (*query_device_ex)(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
	                       struct ibv_device_attr_ex *attr, size_t attr_size);
	verbs_unused query_ece;
	int (*query_port)(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr);
	int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr);
	verbs_unused query_qp_data_in_order;
	int (*query_rt_values)(struct ibv_context *context, struct ibv_values_ex *values);
	verbs_unused query_srq, read_counters, reg_dm_mr, reg_dmabuf_mr;
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	verbs_unused rereg_mr, resize_cq, set_ece, unimport_dm, unimport_mr, unimport_pd;
};

static_assert(sizeof(struct verbs_context_ops) == 76 * sizeof(void *),
              "as many as verbs_dummy_ops of rdma-core 44 has");
static_assert(offsetof(struct verbs_context_ops, create_cq) == 15 * sizeof(void *), "layout");
static_assert(offsetof(struct verbs_context_ops, free_context) == 39 * sizeof(void *), "layout");
static_assert(offsetof(struct verbs_context_ops, query_port) == 60 * sizeof(void *), "layout");
static_assert(offsetof(struct verbs_context_ops, req_notify_cq) == 69 * sizeof(void *), "layout");
static_assert(offsetof(struct verbs_device, ops) == sizeof(struct ibv_device), "the device comes first");
static_assert(offsetof(struct ibv_qp_ex, qp_base) == 0, "a queue pair is the begin of its larger form");
static_assert(offsetof(struct ibv_cq_ex, comp_events_completed) == offsetof(struct ibv_cq, comp_events_completed),
              "a completion queue is the begin of its larger form");
#endif
