/*
 * card - what the parts of the card share.
 *
 * One thread does everything: it waits for connections, frames and doorbells, and runs the queues. So there is no lock,
 * and no object changes while a function uses it. What a driver writes into shared memory is read once into a private
 * copy, and checked there.
 */
#ifndef TESTS_VERBS_CARD_H
#define TESTS_VERBS_CARD_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include "frame.h"
#include "proto.h"

struct card_region {   /* memory that a program has registered */
	uint32_t lkey; /* 0: free */
	uint32_t pd;
	uint64_t addr, length, iova;
	bool is_writable;
};

struct card_client {
	struct card_client *next;
	int fd;
	pid_t pid; /* of the program, as the kernel says */
	bool is_context, is_channel, is_closing;
	bool is_of_removed; /* a context of before the device went: nothing of it works again */
	uint64_t cookie;    /* of a channel */
	/* of a context */
	struct card_page *page;
	uint64_t node_byte; /* 0: none */
	int async_fd, doorbell;
	uint32_t next_pd;
	bool pds[CARD_MAX_PDS];
	struct card_region regions[CARD_MAX_MRS];
	uint32_t region_generation;
};

struct card_cq {
	struct card_client *client;
	uint32_t number; /* 0: free */
	uint32_t depth;
	uint64_t handle, channel;
	struct card_cq_head *head;
	uint64_t bytes;
	uint32_t produced; /* ours; the shared one is for the driver */
	uint32_t users;    /* queue pairs */
	bool ignores_overrun, has_overrun;
};

struct card_qp {
	struct card_client *client;
	uint32_t number; /* 0: free */
	uint32_t pd;
	uint64_t handle;
	struct card_cq *send_cq, *recv_cq;
	struct card_qp_head *head;
	uint64_t bytes;
	uint32_t sq_depth, rq_depth, max_send_sge, max_recv_sge, max_inline, max_tso_header;
	bool signals_all;
	enum ibv_qp_state state;
	uint32_t sq_taken, rq_taken;
	uint32_t rate_kbps; /* 0: as fast as it can */
	uint64_t send_due_ns;
	struct card_tso_packet *cut; /* of the packet that is being cut; NULL: none is */
};

/* What the card counts: `card --control SOCKET show` prints them. */
#define CARD_COUNTS                                                                                                    \
	X(tx_frames, "frames that queue pairs have sent")                                                              \
	X(tx_cut, "packets that were cut into several of these frames")                                                \
	X(tx_tap, "frames that the kernel has sent")                                                                   \
	X(tx_lost, "frames that were sent while nothing was plugged in, or the port was down")                         \
	X(tx_dropped, "frames that the wire has lost, as a fault says")                                                \
	X(rx_frames, "frames that the wire has brought")                                                               \
	X(rx_tap, "received frames that no rule took, and the kernel got")                                             \
	X(rx_tap_lost, "of these, those that the kernel's interface did not take")                                     \
	X(rx_matched, "received frames that a rule took")                                                              \
	X(rx_copies, "copies of them that reached a queue pair's memory")                                              \
	X(rx_missed_by_rule, "received frames that a rule has left to the kernel")                                     \
	X(rx_dropped_by_rule, "received frames that a rule has dropped")                                               \
	X(rx_no_buffer, "copies lost because nothing was posted")                                                      \
	X(rx_not_ready, "copies lost because the queue pair was not in RTR or RTS")                                    \
	X(completions, "completions")                                                                                  \
	X(events, "completion events")                                                                                 \
	X(rules_held, "times that a rule, or its end, was held back")                                                  \
	X(violations, "broken rules")

struct card_counts {
#define X(name, text) uint64_t name;
	CARD_COUNTS
#undef X
};

struct card_faults {
	int rules_error; /* errno of each new rule */
	uint32_t rules_ms;
	bool rules_are_held; /* and so are their ends */
	int registration_error;
	uint32_t cq_us; /* completions come so much later */
	uint32_t sends_to_fail, receives_to_fail;
	uint32_t loss_ppm; /* of the frames that leave by the wire */
	bool is_removed, is_down;
};

struct card {
	struct card_client *clients;
	struct card_cq cqs[CARD_MAX_CQS];
	struct card_qp qps[CARD_MAX_QPS]; /* number N is at N % CARD_MAX_QPS */
	struct card_counts counts;
	struct card_faults faults;
	uint8_t mac[6];
	uint32_t mtu;
	char name[16], tap_name[16];
	bool should_stop;
};
extern struct card card;

uint64_t clock_ns(clockid_t clock);

/* ---- loop.c: descriptors that are waited for ---- */
typedef void (*card_fd_ready_fn)(void *owner, uint32_t events);
int loop_add_fd(int fd, card_fd_ready_fn ready, void *owner);
void loop_set_events(int fd, uint32_t events);
void loop_remove_fd(int fd);
void loop_run(void);

/* ---- port.c: the kernel's interface and the wire ---- */
enum card_wire_kind { CARD_WIRE_NONE, CARD_WIRE_LISTENS, CARD_WIRE_CONNECTS, CARD_WIRE_LOOPS };
int port_open_tap(const char *name);
int port_open_wire(enum card_wire_kind kind, const char *path);
bool port_can_send(void); /* false: the other card is behind, and nothing is taken from queues */
bool port_is_up(void);
int port_read_tap_mac_and_mtu(void);   /* address and MTU */
bool port_deliver_looped_frames(void); /* true: something was done */
bool port_has_looped_frames(void);
void port_send_frame(const uint8_t *frame, size_t len);
void port_write_frame_to_tap(const uint8_t *frame, size_t len);
void port_announce_link_state(void);

/* ---- client.c: connections of drivers, channels and tests ---- */
int card_listen_for_clients(const char *path);
int card_free_closed_clients(void);
void card_close_all_clients(void);
void card_client_report_violation(struct card_client *client, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
void card_send_async_event_to_client(struct card_client *client, uint64_t element, enum ibv_event_type type);
void card_send_completion_event(uint64_t channel, uint64_t handle);
void card_send_async_event_to_all(enum ibv_event_type type);
void card_detach_contexts(void);
bool card_prepare_sleep(void); /* false: a doorbell's work came in between */
void card_end_sleep(void);

/* ---- memory.c: what is registered, and the copies ---- */
int memory_register_region(struct card_client *client, const struct card_request *request, uint32_t *lkey);
int memory_deregister(struct card_client *client, uint32_t lkey);
bool memory_region_exists_in_pd(const struct card_client *client, uint32_t pd);
/* Copies between a frame and a list of a program's memory; 0, or a status (enum ibv_wc_status). */
int memory_read_frame_from_program(struct card_qp *qp, const struct card_wqe *wqe, uint8_t *frame, size_t max,
                                   size_t *len);
int memory_write_frame_to_program(struct card_qp *qp, const struct card_wqe *wqe, const uint8_t *frame, size_t len);

/* ---- queue.c: queue pairs and completion queues ---- */
int cq_create(struct card_client *client, const struct card_request *request, struct card_reply *reply, int *fd);
int cq_destroy(struct card_client *client, uint32_t number);
int qp_create(struct card_client *client, const struct card_request *request, struct card_reply *reply, int *fd);
int qp_modify(struct card_client *client, const struct card_request *request);
int qp_destroy(struct card_client *client, uint32_t number);
struct card_qp *qp_find(struct card_client *client, uint32_t number);
bool qp_uses_pd(const struct card_client *client, uint32_t pd);
void qps_destroy_of_client(struct card_client *client);
void qp_deliver_frame(struct card_qp *qp, const uint8_t *frame, size_t len, uint32_t flow_tag);
bool qps_run(void); /* true: something was done */
bool qps_have_work(void);
int64_t cqs_next_delayed_completion_ns(void); /* until the next delayed completion; -1: none */
int64_t qps_next_paced_send_ns(void);         /* until the next frame that waits for its time; -1: none */
void cqs_deliver_delayed(void);

/* ---- steer.c: rules ---- */
int card_rules_add(struct card_client *client, const struct card_rule *rule, uint32_t *number);
int card_rules_remove(struct card_client *client, uint32_t number);
bool card_rules_use_qp(uint32_t qp_num);
void card_rules_remove_of_client(struct card_client *client);
void card_rules_steer_frame(const uint8_t *frame, size_t len);
int card_rules_print(char *text, size_t size);

/* ---- control.c: faults and counters ---- */
int card_control_execute_command(const char *command, char *answer, size_t size);
int card_control_send_command(const char *path, const char *command);

/* ---- sysfs.c: the tree that libibverbs reads ---- */
int fake_sysfs_create_card_tree(const char *folder, int index, const char *socket_path);
#endif
