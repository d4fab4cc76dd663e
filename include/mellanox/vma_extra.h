/*
 * vma_extra - the VMA Extra API: what a program may ask of libvma.so beyond the calls of POSIX.
 *
 *   vma_get_api() ──┬─ NULL: the library is not preloaded; sockets are the kernel's
 *                   └─ struct vma_api_t: functions; vma_extra_supported_mask says which of them work
 *
 * A program needs this header only, and no library to link with. Names, numbers and layouts are those of the field: a
 * program that was compiled with another vendor's header of this API runs unchanged. Functions return -1 and set errno,
 * as calls of POSIX do. A function whose bit is missing in the mask is there, and fails with EOPNOTSUPP.
 *
 * Packets. A packet that the library gives without copying lies where the device has put it. It has an identifier,
 * packet_id, which is a number and is never dereferenced. The program reads the packet until it passes the identifier
 * to free_packets. It must not write to the packet: another socket of a multicast group may read the same memory.
 *
 * Threads: any thread may call any function, but for a function whose contract says otherwise.
 * Progress: only recvfrom_zcopy waits, and only as recvfrom would.
 * Memory: packets lie in the library's packet memory. What a socket may hold of it has a bound: see free_packets.
 * Example: examples/extra/udp_market_data.c.
 */
#ifndef VMA_EXTRA_H
#define VMA_EXTRA_H

#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

/* ---- numbers ---- */

/* Flags of recvfrom_zcopy: give without copying, or fail (in); it was given without copying (out). */
#define MSG_VMA_ZCOPY_FORCE 0x01000000
#define MSG_VMA_ZCOPY 0x00040000

/*
 * Flag of send, sendto, sendmsg and sendmmsg: the message takes its way through the library and is dropped before the
 * device, so that caches are warm for the next one. Returns what the call would return. EINVAL: the socket is not
 * offloaded, or its next message would go through the kernel.
 */
#define VMA_SND_FLAGS_DUMMY MSG_SYN

/*
 * Socket options of SOL_SOCKET. GET_API is vma_get_api's; RING_ALLOC_LOGIC: see struct vma_ring_alloc_logic_attr.
 * RING_USER_MEMORY fails with EOPNOTSUPP: see register_memory_on_ring.
 */
#define SO_VMA_GET_API 2800
#define SO_VMA_USER_DATA 2801
#define SO_VMA_RING_ALLOC_LOGIC 2810
#define SO_VMA_RING_USER_MEMORY 2811
/*
 * With VMA_SOCKETXTREME=1 only, else ENOPROTOOPT:
 *   USER_DATA    uint64_t, the user_data of the socket's completions. Also getsockopt. EINVAL: a length other than 8.
 *   FLOW_TAG     uint32_t from 1 to 2^20 - 1, else EINVAL: a number by which a device would recognise the socket's
 *                packets. The devices of this library go by addresses: it is kept for getsockopt, and has no effect.
 *   SHUTDOWN_RX  no value. UDP: what comes from now on is the kernel's, and what is queued can still be received; sends
 *                stay offloaded. TCP: EOPNOTSUPP.
 */
#define SO_VMA_FLOW_TAG 2820
#define SO_VMA_SHUTDOWN_RX 2821

/* Message type of ioctl, and what the user's allocator would be for. */
#define CMSG_VMA_IOCTL_USER_ALLOC 2900
enum {
	VMA_IOCTL_USER_ALLOC_FLAG_TX = 1,
	VMA_IOCTL_USER_ALLOC_FLAG_RX = 2,
};

/* Bits of vma_extra_supported_mask. */
enum {
	VMA_EXTRA_API_REGISTER_RECV_CALLBACK = 1 << 0,
	VMA_EXTRA_API_RECVFROM_ZCOPY = 1 << 1,
	VMA_EXTRA_API_FREE_PACKETS = 1 << 2,
	VMA_EXTRA_API_ADD_CONF_RULE = 1 << 3,
	VMA_EXTRA_API_THREAD_OFFLOAD = 1 << 4,
	VMA_EXTRA_API_DUMP_FD_STATS = 1 << 5,
	VMA_EXTRA_API_SOCKETXTREME_POLL = 1 << 6,
	VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS = 1 << 7,
	VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF = 1 << 8,
	VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF = 1 << 9,
	VMA_EXTRA_API_GET_SOCKET_RINGS_NUM = 1 << 10,
	VMA_EXTRA_API_GET_SOCKET_RINGS_FDS = 1 << 11,
	VMA_EXTRA_API_GET_SOCKET_TX_RING_FD = 1 << 12,
	VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER = 1 << 13,
	VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS = 1 << 14,
	VMA_EXTRA_API_ADD_RING_PROFILE = 1 << 16,
	VMA_EXTRA_API_REGISTER_MEMORY_ON_RING = 1 << 17,
	VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING = 1 << 18,
	VMA_EXTRA_API_MODIFY_RING = 1 << 20,
	VMA_EXTRA_API_IOCTL = 1 << 21,
};

/* ---- received packets ---- */

#pragma pack(push, 1)

/* A packet that the program holds: sz_iov pieces follow. */
struct vma_packet_t {
	void *packet_id;
	size_t sz_iov;
	struct iovec iov[];
};

/*
 * What recvfrom_zcopy writes: n_packet_num packets, one directly behind the other. Each takes 16 bytes, and 16 more for
 * each of its pieces.
 */
struct vma_packets_t {
	size_t n_packet_num;
	struct vma_packet_t pkts[];
};

/* What a receive callback is told of a packet. It ends with the callback, and so do the addresses. */
struct vma_info_t {
	size_t struct_sz;                      /* sizeof(struct vma_info_t) */
	void *packet_id;                       /* for free_packets, if the callback returns VMA_PACKET_HOLD */
	struct sockaddr_in *src, *dst;         /* network order */
	size_t payload_sz;                     /* bytes of all pieces together */
	uint32_t socket_ready_queue_pkt_count; /* that wait in the socket for a receive call, without this one */
	uint32_t socket_ready_queue_byte_count;
	struct timespec hw_timestamp; /* the device's clock; 0: the device has not stamped it */
	struct timespec sw_timestamp; /* CLOCK_REALTIME, when the library got it */
};

struct vma_cmsg_ioctl_user_alloc_t {
	uint8_t flags;
	void *(*memalloc)(size_t);
	void (*memfree)(void *);
};

#pragma pack(pop)

typedef enum {
	VMA_PACKET_DROP, /* the packet is over */
	VMA_PACKET_RECV, /* it goes to the socket's receive queue */
	VMA_PACKET_HOLD, /* it is the program's, until free_packets gets its packet_id */
} vma_recv_callback_retval_t;

/* fd: the socket; iov: sz_iov pieces, in the packet's own memory; context: of register_recv_callback. */
typedef vma_recv_callback_retval_t (*vma_recv_callback_t)(int fd, size_t sz_iov, struct iovec iov[],
                                                          struct vma_info_t *vma_info, void *context);

/* ---- SocketXtreme ---- */

typedef enum {
	VMA_SOCKETXTREME_PACKET = (1ULL << 32),
	VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED = (1ULL << 33),
} vma_socketxtreme_events_t;

/*
 * A buffer of a packet, in memory of the library's, until it is given back. What the program writes into it is not read
 * by the library.
 */
struct vma_buff_t {
	struct vma_buff_t *next; /* of the same packet */
	void *payload;           /* where the device has put it */
	uint16_t len;
};

struct vma_packet_desc_t {
	size_t num_bufs;
	uint16_t total_len;
	struct vma_buff_t *buff_lst;
	struct timespec hw_timestamp; /* the device's clock; 0: the device has not stamped it. TCP: 0 */
};

/*
 * What socketxtreme_poll tells of one socket. packet: with VMA_SOCKETXTREME_PACKET. src: with a packet, the sender; of a
 * connection the peer. listen_fd: with VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED.
 */
struct vma_completion_t {
	struct vma_packet_desc_t packet;
	uint64_t events;        /* EPOLL* and vma_socketxtreme_events_t */
	uint64_t user_data;     /* the socket's descriptor, or what SO_VMA_USER_DATA has set */
	struct sockaddr_in src; /* network order */
	int listen_fd;
};

/* ---- rings ---- */

typedef enum {
	RING_LOGIC_PER_INTERFACE = 0,
	RING_LOGIC_PER_IP = 1,
	RING_LOGIC_PER_SOCKET = 10,
	RING_LOGIC_PER_USER_ID = 11,
	RING_LOGIC_PER_THREAD = 20,
	RING_LOGIC_PER_CORE = 30,
	RING_LOGIC_PER_CORE_ATTACH_THREADS = 31,
	RING_LOGIC_LAST = 32,
} ring_logic_t;

typedef int vma_ring_profile_key;

enum {
	VMA_RING_ALLOC_MASK_RING_PROFILE_KEY = 1 << 0,
	VMA_RING_ALLOC_MASK_RING_USER_ID = 1 << 1,
	VMA_RING_ALLOC_MASK_RING_INGRESS = 1 << 2,
	VMA_RING_ALLOC_MASK_RING_ENGRESS = 1 << 3,
};

struct vma_rate_limit_t {
	uint32_t rate; /* kbit/s */
	uint32_t max_burst_sz;
	uint16_t typical_pkt_sz;
};

/*
 * Value of SO_VMA_RING_ALLOC_LOGIC: which ring a socket has, in place of VMA_RING_ALLOCATION_LOGIC_RX and _TX. Set
 * before the socket has rings: before bind and connect, and before its first message. Sockets that ask for the same
 * share a ring, so two that ask for the same user id do. Those of thread and core mean the thread that sets the option.
 * A TCP connection has one ring: what is set for receiving, else, if VMA_RING_ALLOCATION_LOGIC_RX is 0, for sending.
 * An accepted socket has the option of its listener. A socket with the option does not move to other rings
 * (VMA_RING_MIGRATION_RATIO_*). VMA_RING_LIMIT_PER_INTERFACE counts these rings, too. UDP sockets on one address and
 * port share the ring of the first, but equals with SO_REUSEPORT.
 *
 * setsockopt: EINVAL: another size than this; an unknown logic or bit of comp_mask; neither direction; a user id's logic
 * without one; a key that no profile has. EPERM: the socket has rings. ENOPROTOOPT: it is not offloaded. EFAULT.
 * getsockopt: what holds for receiving, by the option or as configured; engress 1: and the same for sending.
 */
struct vma_ring_alloc_logic_attr {
	uint32_t comp_mask; /* VMA_RING_ALLOC_MASK_*: the members that are set */
	ring_logic_t ring_alloc_logic;
	uint32_t ring_profile_key; /* of vma_add_ring_profile: rings of another profile are not shared */
	uint32_t user_id;          /* any number */
	uint32_t ingress : 1;      /* for receiving */
	uint32_t engress : 1;      /* for sending */
	uint32_t reserved : 30;
};

struct vma_cq_moderation_attr {
	uint32_t cq_moderation_count;       /* packets */
	uint32_t cq_moderation_period_usec; /* from the first */
};

struct vma_cq_arm_attr {
};

enum {
	VMA_MODIFY_RING_CQ_MODERATION = 1 << 0,
	VMA_MODIFY_RING_CQ_ARM = 1 << 1,
};

struct vma_modify_ring_attr {
	uint32_t comp_bit_mask;
	int ring_fd;
	union {
		struct vma_cq_moderation_attr cq_moderation;
		struct vma_cq_arm_attr cq_arm;
	};
};

typedef enum {
	VMA_RING_PACKET,
	VMA_RING_EXTERNAL_MEM,
} vma_ring_type;

struct vma_packet_queue_ring_attr {
	uint32_t comp_mask;
};

struct vma_external_mem_attr {
	uint32_t comp_mask;
};

struct vma_ring_type_attr {
	uint32_t comp_mask;
	vma_ring_type ring_type;
	union {
		struct vma_packet_queue_ring_attr ring_pktq;
		struct vma_external_mem_attr ring_ext;
	};
};

/* ---- descriptors of a device's queues ---- */

enum {
	VMA_HW_PP_EN = 1 << 0,
	VMA_HW_PP_BURST_EN = 1 << 3,
};

enum {
	DATA_VALID_DEV,
	DATA_VALID_SQ,
	DATA_VALID_RQ,
};

struct dev_data {
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t device_cap;
};

struct hw_cq_data {
	void *buf;
	volatile uint32_t *dbrec;
	uint32_t cq_size;
	uint32_t cqe_size;
	uint32_t cqn;
	void *uar;
	uint32_t *cons_idx;
};

struct hw_wq_data {
	void *buf;
	uint32_t wqe_cnt;
	uint32_t stride;
	volatile uint32_t *dbrec;
	struct hw_cq_data cq_data;
};

struct hw_rq_data {
	struct hw_wq_data wq_data;
	uint32_t *head;
	uint32_t *tail;
};

struct hw_sq_data {
	struct hw_wq_data wq_data;
	uint32_t sq_num;
	struct {
		void *reg;
		uint32_t size;
		uint32_t offset;
	} bf;
};

struct vma_mlx_hw_device_data {
	uint32_t valid_mask;
	struct dev_data dev_data;
	struct hw_sq_data sq_data;
	struct hw_rq_data rq_data;
};

/* ---- the functions ---- */

#pragma pack(push, 1)

struct vma_api_t {
	/*
	 * From now on cb decides of each packet of s, before the packet is queued; NULL: no callback any more. What is
	 * queued by then stays queued, and what comes by the kernel (from this host, or before the socket is offloaded)
	 * goes to receive calls without a callback.
	 *
	 * The callback runs in a thread of the program that drives the socket's ring: in a receive call, select, poll,
	 * epoll_wait or another call on an offloaded socket, when that call is about to return or to sleep. It never
	 * runs in a thread of the library's own. Callbacks of one socket run one after the other, in the order in which
	 * its packets came from one ring.
	 *
	 * The callback holds no lock of the library, and may call any function of the sockets API and of this one. Of
	 * its own socket:
	 *   - close, and register_recv_callback with another function or NULL, act at once; the verdict on the present
	 *     packet still counts. After a close VMA_PACKET_RECV means VMA_PACKET_DROP.
	 *   - receive calls get what is queued; the present packet is not. If nothing is, they fail with EDEADLK where
	 *     they would wait. select, poll and epoll_wait wait for other sockets only.
	 * Packets of other sockets that come during a callback are decided by the same thread only when the callback
	 * has returned; other threads do it meanwhile. The callback must return: it must not leave by longjmp, by an
	 * exception or, on TCP, by exit (the connection would be reset). If it ends its thread by pthread_exit, the
	 * packet is dropped, and other threads are told of the next ones. A thread is cancelled when its callback has
	 * returned, unless the callback itself allows it before: then as by pthread_exit. A handler of a signal that calls the library on an offloaded socket may run the
	 * callback, too. In a child that the callback forks, the packet is not there, and the verdict has no effect.
	 *
	 * iov and vma_info end with the callback. A packet for which VMA_PACKET_HOLD was returned lives on by its
	 * packet_id. If the socket holds as much as it may (see free_packets), a new packet is dropped without a call
	 * of cb, and counted (rx_hold_refused). On TCP its peer has to wait instead, and a piece that the library had
	 * to copy has no packet_id: VMA_PACKET_HOLD receives it. sw_timestamp of a piece is the time of the question.
	 *
	 * On TCP: what is still to be decided, or was received, when the socket is closed is unread, and resets the
	 * connection. Set on a listener, a callback has no effect on what it accepts.
	 *
	 * EINVAL: s is no offloaded socket. EOPNOTSUPP: no socket of this kind has callbacks. ENOMEM.
	 */
	int (*register_recv_callback)(int s, vma_recv_callback_t cb, void *context);

	/*
	 * As recvfrom, but without a copy where that is possible. Then buf has a struct vma_packets_t, *flags has
	 * MSG_VMA_ZCOPY, and the result is the number of bytes of all its pieces. Else buf has the bytes, and the
	 * result is their number, as recvfrom's. *flags is also what recvmsg writes to msg_flags.
	 *
	 * flags (in): those of recvmsg, and MSG_VMA_ZCOPY_FORCE. Copied is what lies in the kernel, what is only
	 * looked at (MSG_PEEK), what `len` has no room to describe, and what would be more than the socket may hold.
	 * With MSG_VMA_ZCOPY_FORCE such a packet stays where it is: ENOBUFS (no room), EIO (all else). On TCP a
	 * packet is a piece of the stream. What the library itself had to copy is copied to buf, or with force to a
	 * buffer of the library's, which is then given as a packet.
	 *
	 * Else errno is that of recvfrom. from and fromlen may be NULL.
	 */
	int (*recvfrom_zcopy)(int s, void *buf, size_t len, int *flags, struct sockaddr *from, socklen_t *fromlen);

	/*
	 * Gives back `count` packets that recvfrom_zcopy has given on s, or that a callback of s has held. pkts is laid
	 * out as in struct vma_packets_t: the packet behind one with sz_iov pieces begins 16 + 16 * sz_iov bytes after
	 * it. The pieces are not looked at, so sz_iov may be 0.
	 *
	 * Also after s was closed, by any thread: then s is the number that the socket had.
	 *
	 * A UDP socket may hold as many bytes as it may queue (SO_RCVBUF as getsockopt tells it, each packet counting for
	 * 64 at least), beside those that are queued. Those of a TCP socket fill its receive buffer until they are freed. If the device has too few frames left, the library copies new
	 * packets out of them, so that other sockets receive.
	 *
	 * ENOENT: a packet is not held, was given back already, or is another socket's. Those before it are given back.
	 * EINVAL: s is no offloaded socket, and none that held packets when it was closed. EFAULT: pkts.
	 */
	int (*free_packets)(int s, struct vma_packet_t *pkts, size_t count);

	/*
	 * A rule as in a line of libvma.conf, ended by 0, goes before all others. Sockets that are decided already stay
	 * as they are. EINVAL: the line is none, or has more than one line. ENOMEM.
	 */
	int (*add_conf_rule)(const char *config_line);

	/*
	 * Sockets that thread tid makes from now on are offloaded (1) or the kernel's (0); rules and
	 * VMA_OFFLOADED_SOCKETS decide of those that may be offloaded. tid: pthread_self(), or another thread that runs.
	 * ESRCH: there is no such thread. EINVAL: offload is neither. ENOMEM.
	 */
	int (*thread_offload)(int offload, pthread_t tid);

	/*
	 * SocketXtreme, with VMA_SOCKETXTREME=1; without it the four functions fail with EOPNOTSUPP. Drives the rings
	 * that fd stands for, and fills at most ncompletions completions of all sockets of these rings. fd: a ring, a
	 * socket (the rings by which it receives), or an epoll set with such members. flags: 0. Never waits.
	 *
	 *   VMA_SOCKETXTREME_PACKET  a datagram, or a piece of a stream. Its buffers are the program's until they are
	 *                            given back. EPOLLIN is not set.
	 *   VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED  a listener has accepted by itself: user_data is the new descriptor,
	 *                            listen_fd the listener's, src the peer. EPOLLIN is not told of the listener.
	 *   EPOLLOUT                 connected; or there is room again after a send that found none
	 *   EPOLLIN | EPOLLRDHUP     the peer has sent its FIN, and all bytes before it were told
	 *   EPOLLERR, EPOLLHUP       the connection has failed (SO_ERROR says why), or is over. Told once.
	 *
	 * One completion may say several of these; EPOLL* bits come after the packet with which they stand. Datagrams
	 * of one socket come in the order of one ring, unless it also receives otherwise. What receive calls, select,
	 * poll and epoll_wait see is what was queued while nobody polled; a TCP socket should be read in one way only.
	 * Packets that come by the kernel, such as those of this host, are not told: receive calls get them. In a forked
	 * child a socket of the parent's has rings soon after its first poll.
	 *
	 * Threads: any. Where two poll one ring, one of them gets nothing.
	 *
	 * Bounds: a UDP socket may have given out as many bytes as it may queue (SO_RCVBUF as getsockopt tells it, each
	 * datagram counting for 64 at least); what comes then is dropped and counted (rx_hold_refused). The bytes of a
	 * TCP socket fill its receive buffer until they are given back: its peer has to wait.
	 *
	 * Returns how many. EBADF: fd is none of these. EINVAL: flags. EFAULT: completions; nothing is lost. A thread
	 * that polls with the same array again is not told: if its memory has been taken away since, the poll faults.
	 */
	int (*socketxtreme_poll)(int fd, struct vma_completion_t *completions, unsigned int ncompletions, int flags);

	/*
	 * The number of rings by which the socket receives, 256 at most. A UDP socket has them from bind or connect on,
	 * a TCP socket, too: one that is bound only has those that it would listen on. EINVAL: fd is no offloaded socket.
	 */
	int (*get_socket_rings_num)(int fd);
	/*
	 * Descriptors of these rings, ring_fds_sz at most. Returns how many were written; 0: the socket has none yet.
	 *
	 * A ring has one descriptor, which is made when it is asked for first. poll, select and epoll take it: it is
	 * readable if the ring has handled packets, whichever thread drove it, since it was armed (vma_modify_ring) or
	 * polled (socketxtreme_poll). Who waits for it drives the ring, as who waits for a socket does. It is also
	 * readable for packets that no socket wants. It is never writable, read and write fail with EINVAL.
	 *
	 * The library closes the descriptor when the ring ends: with the last socket that uses it, where rings are not
	 * those of a whole interface. A wait for it ends then (EPOLLHUP; poll: POLLHUP or POLLNVAL), and the number may
	 * come to be another file's. The program may close it before: then it is the program's number as any other, and
	 * the next ask makes another. In a forked child the number leads nowhere (EPOLLHUP); exec closes it.
	 *
	 * EINVAL: fd is no offloaded socket, or ring_fds_sz is below 1. EFAULT. EMFILE, ENFILE, ENOMEM: a descriptor is
	 * not to be had; those of the rings before it are written.
	 */
	int (*get_socket_rings_fds)(int fd, int *ring_fds, int ring_fds_sz);
	/*
	 * The descriptor of the ring by which the socket's next message to `to` leaves; to NULL: to its peer. A TCP
	 * connection has one ring, whatever `to` says. EINVAL: sock_fd is no offloaded socket, or tolen is too short.
	 * EAFNOSUPPORT: to. ENOTCONN: there is no peer. ENODATA: no ring leads there, as the kernel sends to it, or its
	 * route or neighbour is not known yet. EFAULT, EMFILE, ENFILE, ENOMEM.
	 */
	int (*get_socket_tx_ring_fd)(int sock_fd, struct sockaddr *to, socklen_t tolen);

	/*
	 * Give buffers back, by any thread, also after the socket was closed. free_vma_packets drops one reference of
	 * each buffer of num packets, of which only buff_lst is read; ref_vma_buff adds one to a buffer, and
	 * free_vma_buff drops one: both return how many there are then. A buffer without a reference is the library's
	 * again. Its pointer may be given to the program anew with a later packet: to free it once more after that frees
	 * that packet.
	 *
	 * ENOENT: the buffer is not the program's (any more); packets before it are given back. EINVAL: the pointer is no
	 * buffer of the library's, or num is negative. EFAULT: packets. EOVERFLOW: 2^31 references. In a forked child the
	 * parent's buffers are EINVAL.
	 */
	int (*socketxtreme_free_vma_packets)(struct vma_packet_desc_t *packets, int num);
	int (*socketxtreme_ref_vma_buff)(struct vma_buff_t *buff);
	int (*socketxtreme_free_vma_buff)(struct vma_buff_t *buff);

	/*
	 * What is known of fd goes to the log, or of all sockets if fd is 0. log_level: 0 panic, 1 error, 2 warning,
	 * 3 info, 4 details, 5 debug, 6 fine, 7 finer, 8 all; -1: nothing is written. The lines are written whatever
	 * VMA_TRACELEVEL is. EINVAL: the level. EBADF: fd is no socket of the library's.
	 */
	int (*dump_fd_stats)(int fd, int log_level);

	/*
	 * A new profile of rings, whose key, above 0, SO_VMA_RING_ALLOC_LOGIC takes. ring_type VMA_RING_PACKET: rings as
	 * they are without a profile. comp_mask of both structures is 0. Profiles last as long as the process.
	 *
	 * EOPNOTSUPP: VMA_RING_EXTERNAL_MEM, as no device has it. EINVAL: another type, a bit of comp_mask. ENOSPC: there
	 * are 65536. EFAULT.
	 */
	int (*vma_add_ring_profile)(struct vma_ring_type_attr *profile, vma_ring_profile_key *key);

	/*
	 * The headers that the next message of a connected socket has, from the Ethernet header to the one of UDP or
	 * TCP. Lengths, checksums and numbers in them are those of an empty message; a TCP header has the options that every
	 * segment has. *len (in): room at ptr; (out): the
	 * length. ptr NULL asks for the length. ENOBUFS: *len is too small. ENOTCONN: not connected, not offloaded, or
	 * the neighbour is not known yet. EINVAL: fd is no socket, or len is NULL.
	 */
	int (*get_socket_network_header)(int fd, void *ptr, uint16_t *len);

	/* EOPNOTSUPP: queues are driven by the library alone. */
	int (*get_ring_direct_descriptors)(int fd, struct vma_mlx_hw_device_data *data);
	/*
	 * EOPNOTSUPP. The key would be of use to who writes to a device's queues himself. SO_VMA_RING_USER_MEMORY, too:
	 * receive queues take frames of the library's packet memory, which is one range of addresses, and on AF_XDP is
	 * shared with the owner of the device.
	 */
	int (*register_memory_on_ring)(int fd, void *addr, size_t length, uint32_t *key);
	int (*deregister_memory_on_ring)(int fd, void *addr, size_t length);
	/*
	 * Changes the ring of descriptor ring_fd, as comp_bit_mask says; several bits at a time are allowed.
	 *
	 * VMA_MODIFY_RING_CQ_MODERATION: a thread that sleeps on the ring, or on its sockets, is woken when count packets
	 * have come, or period_usec after the first, whichever is sooner; from its next sleep on. In place of
	 * VMA_CQ_MODERATION_*; adaptive moderation (VMA_CQ_AIM_*) goes on from here. A period of 0, or a count below 2, is
	 * none. Cards moderate themselves; on other devices the sleeper holds back.
	 *
	 * VMA_MODIFY_RING_CQ_ARM: what was handled so far is known. The descriptor is readable again with the next packet
	 * that is handled. A program looks at its sockets after it has armed, and then waits.
	 *
	 * EINVAL: no bit, or an unknown one. EBADF: ring_fd is no ring's, or its ring has ended. EFAULT.
	 */
	int (*vma_modify_ring)(struct vma_modify_ring_attr *mr_data);

	/* VMA_EXTRA_API_*: the functions that work. Constant. */
	uint64_t vma_extra_supported_mask;

	/* EOPNOTSUPP: CMSG_VMA_IOCTL_USER_ALLOC, for the same reason: packet memory cannot lie where memalloc puts it. */
	int (*ioctl)(void *cmsg_hdr, size_t cmsg_len);
};

#pragma pack(pop)

/* NULL: the library is not preloaded (errno is set then). The answer is valid until the process ends. */
static inline struct vma_api_t *vma_get_api(void)
{
	struct vma_api_t *api = NULL;
	socklen_t len = sizeof(api);

	return getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &api, &len) == 0 ? api : NULL;
}

#endif
