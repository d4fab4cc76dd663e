/*
 * nic_owner - owning an interface for other processes (the service behind the program vmad), and passing on the right
 * to be a client.
 *
 * Threads: vma_vmad_serve runs in one thread; several interfaces are several processes.
 * vma_nic_set_children_inherit_right as nic.h. Progress: the service never waits for a client. A client that does not
 * read, or sends what makes no sense, is dropped.
 * Memory: the attributes must outlive the call.
 * Example: tools/vmad/vmad.c; tests/e2e/xdp_processes.sh.
 */
#ifndef VMA_NIC_OWNER_H
#define VMA_NIC_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <vma/nic.h>

struct vma_vmad_attr {
	const char *interface;
	uint32_t window_bytes; /* packet memory per device queue, 0: 16 MB */
	bool huge_pages;
	bool replace;        /* a vmad that has the interface is asked to end, if it is root's or this user's */
	bool exit_when_idle; /* end a second after the last client has gone, or 10 s after a start that nobody used */
	const uid_t *users;  /* who may be a client besides those with CAP_NET_RAW and those it was passed on to */
	unsigned nusers;
	const gid_t *groups;
	unsigned ngroups;
	const char *stats_dir; /* what killed processes leave there (stats.h) is removed; NULL: not */
	int stop_fd;           /* readable: end */
	/* Then: is it to end for good, or may the interface wait for another vmad? NULL: for good. */
	bool (*stops_for_good)(int stop_fd);
	unsigned keep_seconds; /* so long an fdstore (owner/fdstore.h) waits for another vmad; 0, or not as root: there
	                          is none */
	bool discard_state;    /* what another vmad has left is not taken over */
	void (*owns)(void);    /* called once, when the interface is owned; may be NULL */
};

/* Serves until told to stop: 0. -EADDRINUSE another vmad has the interface, -ENODEV no such interface (or it went
 * away), else what kept it from owning the interface; the log has the line. */
int vma_vmad_serve(const struct vma_vmad_attr *attr);

/*
 * Children forked from now on (and theirs, until they call exec) may rent from the interface's vmad themselves, also
 * after they gave up every capability: they inherit a right, one fd, that is good for that and nothing else. Of one
 * user: that of the process that opened the interface. A client shares the packet memory of all clients of the
 * interface: pass this on to workers, not to a sandbox. vmad takes the right away from all who have it if one of them
 * breaks its protocol. -EPERM: this process has no right to pass on (before Linux 5.17 it takes CAP_NET_ADMIN), or may
 * not change whose it is good for.
 */
enum vma_nic_inherit_right { VMA_NIC_INHERIT_NOBODY, VMA_NIC_INHERIT_SAME_USER, VMA_NIC_INHERIT_ANY_USER };
int vma_nic_set_children_inherit_right(struct vma_nic *nic, enum vma_nic_inherit_right to);

#endif
