/*
 * record - the facts that a new vmad needs of the one before, and cannot see in the kernel or in the shared object.
 *
 * The record lies in memory of its own. The vmads of one interface map it one after the other; no other process does.
 * The owner writes it as it works, and may be killed between two instructions. So each entry has one word that makes it
 * count, which is stored last and cleared first. It is `whole` of the record, `state` of a slot, `number` of a
 * minisock, `list` of a reset. Of a parked listener and of a connection that waits it is `state`. An entry is never
 * more than one step behind the kernel's maps and the shared object. Adoption (adopt.c) settles that step.
 *
 * A minisock is here before the map has it, and a reset before the flow of its connection ends. If the owner is killed
 * in between, the entry is of nothing, and adoption drops it. The other way round a peer would not be told.
 *
 * is_spare[f]: the owner holds the frame. If the shared object differs, owner_frames_take_over_from_fdstore says which
 * of the two is believed.
 *
 * Threads: the owner's one (vmad's only thread). No other process has the record mapped while a vmad lives.
 */
#ifndef VMA_NIC_OWNER_RECORD_H
#define VMA_NIC_OWNER_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>

#include <vma/nic_group.h>

#include "../sock_cookies.h"
#include "../xdp/flow.h"
#include "../xdp/xdp.h"

#define OWNER_RECORD_MAGIC 0x72776f76u
#define OWNER_RECORD_VERSION 2u
#define OWNER_RECORD_MINISOCKS 32768
#define OWNER_RECORD_RESETS 65536  /* as many as there are: OWNER_FLOWS_MAX */
#define OWNER_RECORD_LISTENERS 256 /* listeners at which connections wait in no process; what waits at others is lost */
#define OWNER_RECORD_WAITING 8192  /* connections that wait in no process, or are on their way to one; the same */
#define OWNER_NO_PLACE UINT32_MAX

/* The process that rents a slot. `ticket` is known to it and to vmad only. */
struct owner_slot_tenant {
	int32_t pid;
	uint32_t uid, gid, reserved;
	uint64_t ticket;
};

struct owner_record_slot {
	_Atomic uint32_t state; /* enum owner_slot_state */
	uint32_t rx_size, rx_quota, rx_promised, tx_size, tx_first, tx_count;
	struct owner_slot_tenant tenant;
};

struct owner_record_minisock {
	_Atomic uint32_t number; /* as in the program's map; 0: the place is free */
	uint32_t snd_nxt;
	_Atomic uint64_t state; /* enum owner_minisock_state; above it rcv_nxt: both change in one step */
};

/* A peer that is still to be told: resets.c. */
struct owner_record_reset {
	_Atomic uint32_t list; /* 1 + the list that it is in; 0: the place is free */
	uint32_t slot;
	struct vma_flow_key key;
};

/* Kernel sockets of a listener. */
struct owner_record_shadows {
	_Atomic uint32_t n;
	uint32_t reserved;
	uint64_t cookie[NIC_COOKIES_MAX];
};

struct owner_record_group {
	_Atomic uint64_t members; /* a bit for each slot */
	_Atomic uint64_t leaving; /* of those that delete the flow, until what waits there is moved */
	_Atomic uint32_t inherited;
	struct owner_record_shadows shadows;
};

/* See parked.c. The slot's client may still accept what waits, or is dead, or has closed the listener. */
enum owner_record_listener_state { RECORD_NO_LISTENER, RECORD_LISTENER, RECORD_LISTENER_CLOSED };
struct owner_record_listener {
	_Atomic uint32_t state;
	uint32_t slot;
	struct vma_flow_key key;
	struct owner_record_shadows shadows;
};

/*
 * A connection that nobody has accepted. WAITS: in a process that has left, with a minisock. PARKED: here, with one.
 * MOVING: on its way to a slot, until that one's client says that it has made it. PARKED and MOVING are recorded before
 * the entry in the slot's page that it comes from is taken: if that one still waits there, they do not count.
 */
enum owner_record_pending_state { RECORD_NO_WAITING, RECORD_WAITS, RECORD_PARKED, RECORD_MOVING };
struct owner_record_pending {
	_Atomic uint32_t state;
	uint32_t minisock, listener; /* the number of its minisock; its parked listener's place */
	uint32_t from, to;           /* slots of a move; from XDP_NO_SLOT: it was parked */
	uint32_t reserved;
	uint64_t due_ns; /* of what is parked: until then */
	struct vma_pending pending;
};

struct owner_record {
	uint32_t magic, version, bytes, shared_bytes, shared_version, variables_bytes; /* as this vmad has them */
	_Atomic uint32_t whole;
	uint32_t ifindex, queues, nframes, queue_frames, rx_frames, clock_ms, isn_key[4];
	uint32_t multi_buffer, tx_csum, generic;
	uint64_t begun_ns;
	struct owner_record_slot slot[XDP_SLOTS_MAX];
	struct owner_record_group group[XDP_GROUPS];
	struct owner_record_minisock minisock[OWNER_RECORD_MINISOCKS];
	struct owner_record_reset reset[OWNER_RECORD_RESETS];
	struct owner_record_pending waiting[OWNER_RECORD_WAITING];
	struct owner_record_listener listener[OWNER_RECORD_LISTENERS];
	bool is_spare[XDP_FRAMES_MAX];
};

#endif
