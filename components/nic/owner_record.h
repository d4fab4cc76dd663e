/*
 * owner_record - what a new vmad must know of the one before, and cannot see in the kernel or in the shared object.
 *
 * The record lies in memory of its own. The vmads of one interface map it one after the other; no other process does.
 * The owner writes it as it works, and may be killed between two instructions. So each entry has one word that makes it
 * count, which is stored last and cleared first: `whole` of the record, `state` of a slot, `number` of a minisock
 * (heir). An entry is never more than one step behind the kernel's maps and the shared object. Adoption (owner_adopt.c)
 * settles that step.
 *
 * is_spare[f]: the owner holds the frame. If the shared object differs, owner_frames_adopt says what is believed.
 *
 * Threads: the owner's one (vmad's only thread). No other process has the record mapped while a vmad lives.
 */
#ifndef VMA_OWNER_RECORD_H
#define VMA_OWNER_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>

#include "xdp_flow.h"
#include "xdp_priv.h"

#define OWNER_RECORD_MAGIC 0x72776f76u
#define OWNER_RECORD_VERSION 1u
#define OWNER_RECORD_HEIRS 32768

/* The process that rents a slot. `ticket` is known to it and to vmad only. */
struct owner_tenant {
	int32_t pid;
	uint32_t uid, gid, reserved;
	uint64_t ticket;
};

struct owner_record_slot {
	_Atomic uint32_t state; /* enum owner_slot_state */
	uint32_t rx_size, rx_quota, rx_promised, tx_size, tx_first, tx_count;
	struct owner_tenant tenant;
};

struct owner_record_heir {
	_Atomic uint32_t number; /* as in the program's map; 0: the place is free */
	uint32_t state, snd_nxt, rcv_nxt;
	uint64_t due_ns;
};

struct owner_record {
	uint32_t magic, version, bytes, shared_bytes, shared_version, variables_bytes; /* as this vmad has them */
	_Atomic uint32_t whole;
	uint32_t ifindex, queues, nframes, queue_frames, rx_frames, clock_ms, isn_key[4];
	uint32_t multi_buffer, tx_csum, generic;
	uint64_t begun_ns;
	struct owner_record_slot slot[XDP_SLOTS_MAX];
	_Atomic uint64_t members[XDP_GROUPS]; /* of each group: a bit for each slot */
	struct owner_record_heir heir[OWNER_RECORD_HEIRS];
	bool is_spare[XDP_FRAMES_MAX];
};

#endif
