/*
 * conf_params - the parameter table, in the order of the banner.
 *
 *   X(type, field, NAME, label, default, latency, multi_ring_latency, min, max, form, text)
 *
 * `field` is NAME without VMA_, in lower case. `latency` and `multi_ring_latency` are the defaults under that VMA_SPEC;
 * SAME (of a TEXT: AS_IS) if the profile changes nothing. min and max bound INT only. `form` (conf_form.c) is the text
 * form: which values have words, how they are printed. `text` is the entry of docs/parameters.md. If no code obeys a
 * parameter, it is not listed here (conf_unheard.c).
 *
 * Threads: constant.
 */
#ifndef VMA_CONF_PARAMS_H
#define VMA_CONF_PARAMS_H

/* clang-format off */
#define VMA_CONF_PARAMS(X)                                                                                             \
	X(ENUM, spec, "VMA_SPEC", "VMA Spec", VMA_SPEC_NONE, SAME, SAME, 0, 0, SPEC,                                   \
	  "Profile: sets the defaults of other parameters for one kind of use. A parameter that is set itself wins.")  \
	X(ENUM, tracelevel, "VMA_TRACELEVEL", "Log Level", VMA_LOG_INFO, SAME, SAME, 0, 0, LEVEL,                      \
	  "What is logged: this level and the more urgent ones. Levels above debug exist in libvma-debug.so only.")    \
	X(INT, log_details, "VMA_LOG_DETAILS", "Log Details", 0, SAME, SAME, 0, 3, PLAIN,                              \
	  "What stands before each line: 1 thread id, 2 and process id, 3 and milliseconds since the process started. "\
	  "Where the level is debug or above the default is 2.")                                                       \
	X(BOOL, log_colors, "VMA_LOG_COLORS", "Log Colors", 1, SAME, SAME, 0, 1, SWITCH,                               \
	  "Errors and warnings red, fine and finer dim; only where the log goes to a terminal.")                       \
	X(TEXT, log_file, "VMA_LOG_FILE", "Log File", "", AS_IS, AS_IS, 0, 0, FILE,                                    \
	  "Write the log to the end of this file instead of stderr. A single %d becomes the process id.")              \
	X(TEXT, stats_shmem_dir, "VMA_STATS_SHMEM_DIR", "Stats shared memory directory", "/tmp/", AS_IS, AS_IS, 0, 0,  \
	  DIRECTORY, "Where the file vmastat.PID with the counters lies. Empty: no file.")                             \
	X(INT, stats_fd_num, "VMA_STATS_FD_NUM", "Stats FD Num (max)", 100, SAME, SAME, 0, 1024, PLAIN,                \
	  "At most so many sockets have counters that another process can read.")                                      \
	X(TEXT, config_file, "VMA_CONFIG_FILE", "Conf File", "/etc/libvma.conf", AS_IS, AS_IS, 0, 0, FILE,             \
	  "The file of rules that say which sockets are offloaded (docs/rules.md). If it is not set, and there is no " \
	  "such file, /etc/libxlio.conf. Empty: no file. The other name is XLIO_CONFIG_FILE.")                         \
	X(TEXT, application_id, "VMA_APPLICATION_ID", "Application ID", "VMA_DEFAULT_APPLICATION_ID", AS_IS, AS_IS,    \
	  0, 0, WORD, "Rules of that file that are for one ID hold if it is this one. The other name is "              \
	  "XLIO_APPLICATION_ID.")                                                                                      \
	X(ENUM, ring_allocation_logic_tx, "VMA_RING_ALLOCATION_LOGIC_TX", "Ring allocation logic TX", 0, SAME, 20, 0,  \
	  0, RING_LOGIC, "What has a ring of its own for sending, per interface: 0 all together, 1 each local address, "\
	  "10 each socket, 20 each thread, 30 each core, 31 each core, threads staying on theirs.")                    \
	X(ENUM, ring_allocation_logic_rx, "VMA_RING_ALLOCATION_LOGIC_RX", "Ring allocation logic RX", 0, SAME, 20, 0,  \
	  0, RING_LOGIC, "The same for receiving.")                                                                    \
	X(INT, ring_limit_per_interface, "VMA_RING_LIMIT_PER_INTERFACE", "Ring limit per interface", 0, SAME, SAME, 0, \
	  65535, LIMIT, "At most so many rings per interface; what would need more shares them. 0: no limit.")         \
	X(INT, tcp_max_syn_rate, "VMA_TCP_MAX_SYN_RATE", "TCP max syn rate", 0, SAME, SAME, 0, 100000, LIMIT,          \
	  "At most so many TCP connection requests are taken per second and ring; the others are dropped, and peers "  \
	  "ask again. 0: no limit.")                                                                                   \
	X(INT, tx_bufs, "VMA_TX_BUFS", "Tx Mem Bufs", 200000, SAME, SAME, 64, 100000000, PLAIN,                        \
	  "At most so many buffers for sending. Memory grows on demand, so this is a bound, not a cost.")              \
	X(INT, tx_wre, "VMA_TX_WRE", "Tx QP WRE", 2048, 256, SAME, 16, 1048576, PLAIN,                                 \
	  "Depth of each send queue, in frames.")                                                                      \
	X(INT, tx_wre_batching, "VMA_TX_WRE_BATCHING", "Tx QP WRE Batching", 64, 4, SAME, 1, 64, PLAIN,                \
	  "So many frames are sent before their completions are asked for.")                                           \
	X(BOOL, tx_mc_loopback, "VMA_TX_MC_LOOPBACK", "Tx MC Loopback", 1, SAME, SAME, 0, 1, SWITCH,                   \
	  "What IP_MULTICAST_LOOP is of a socket that does not set it: whether its multicast is also received on "     \
	  "this host.")                                                                                                \
	X(BOOL, tx_nonblocked_eagains, "VMA_TX_NONBLOCKED_EAGAINS", "Tx non-blocked eagains", 0, SAME, SAME, 0, 1,     \
	  SWITCH, "What a non-blocking send of UDP says where the queue is full. Not set, or 1: EAGAIN, as the kernel. " \
	  "0, if it is set: that it is sent, and the datagram is dropped and counted.")                                \
	X(INT, rx_bufs, "VMA_RX_BUFS", "Rx Mem Bufs", 200000, SAME, SAME, 64, 100000000, PLAIN,                        \
	  "At most so many buffers for receiving. Memory grows on demand, so this is a bound, not a cost.")            \
	X(INT, rx_wre, "VMA_RX_WRE", "Rx QP WRE", 16000, 256, SAME, 16, 1048576, PLAIN,                                \
	  "Depth of each receive queue, in frames; the device and its memory may grant less.")                         \
	X(INT, rx_wre_batching, "VMA_RX_WRE_BATCHING", "Rx QP WRE BATCHING", 64, 4, SAME, 1, 1024, PLAIN,              \
	  "So many used receive buffers are gathered before they are replaced.")                                       \
	X(INT, rx_bytes_min, "VMA_RX_BYTES_MIN", "Rx Byte Min Limit", 65536, SAME, SAME, 0, INT32_MAX, PLAIN,          \
	  "A socket queues at least so many bytes, also where SO_RCVBUF says less.")                                   \
	X(INT, rx_poll, "VMA_RX_POLL", "Rx Poll Loops", 100000, -1, -1, -1, 100000000, PLAIN,                          \
	  "A blocking receive looks at most so often for a packet before it sleeps, and less where looking does "      \
	  "not pay. -1: for ever; 0: it sleeps at once. If it is not set, it also sleeps at once while more threads "  \
	  "want to run on this host than it has cores.")                                                               \
	X(INT, rx_poll_init, "VMA_RX_POLL_INIT", "Rx Poll Init Loops", 0, SAME, SAME, -1, 100000000, PLAIN,            \
	  "The same for a UDP socket that has nothing offloaded yet.")                                                 \
	X(INT, rx_udp_poll_os_ratio, "VMA_RX_UDP_POLL_OS_RATIO", "Rx UDP Poll OS Ratio", 100, SAME, SAME, 0,           \
	  1000000000, PLAIN,                                                                                           \
	  "The kernel is asked for datagrams once in so many looks. 0: only before sleeping.")                         \
	X(BOOL, rx_poll_yield, "VMA_RX_POLL_YIELD", "Rx Poll Yield", 0, SAME, SAME, 0, 1, SWITCH,                      \
	  "Who looks without success lets other threads run before it looks again.")                                   \
	X(INT, rx_prefetch_bytes, "VMA_RX_PREFETCH_BYTES", "Rx Prefetch Bytes", 256, SAME, SAME, 32, 9000, PLAIN,      \
	  "So many bytes of each received packet are fetched into the cache before it is looked at.")                  \
	X(BOOL, rx_sw_csum, "VMA_RX_SW_CSUM", "Rx SW checksum validation", 1, SAME, SAME, 0, 1, SWITCH,                \
	  "Check the checksums of received packets where the device has not done it.")                                 \
	X(INT, gro_streams_max, "VMA_GRO_STREAMS_MAX", "GRO max streams", 32, 0, SAME, 0, 1000000, PLAIN,              \
	  "Of at most so many TCP connections the segments that came together are taken as one. 0: each by itself.")   \
	X(INT, select_poll, "VMA_SELECT_POLL", "Select Poll (usec)", 100000, -1, -1, -1, 100000000, PLAIN,             \
	  "select, poll and epoll_wait look for at most so many microseconds before they sleep, and shorter where "    \
	  "looking does not pay. -1: for ever; 0: they sleep at once. If it is not set, they also sleep at once "      \
	  "while more threads want to run on this host than it has cores.")                                            \
	X(BOOL, select_poll_os_force, "VMA_SELECT_POLL_OS_FORCE", "Select Poll OS Force", 0, 1, SAME, 0, 1, SWITCH,    \
	  "Look so also where no descriptor is offloaded; the next two are then 1 unless they are set themselves.")    \
	X(INT, select_poll_os_ratio, "VMA_SELECT_POLL_OS_RATIO", "Select Poll OS Ratio", 10, 1, 0, 0, 1000000000,      \
	  PLAIN,                                                                                                       \
	  "While they look, the kernel is asked once in so many looks. 0: only before sleeping.")                      \
	X(INT, select_skip_os, "VMA_SELECT_SKIP_OS", "Select Skip OS", 4, 1, 0, 0, 10000, PLAIN,                       \
	  "Where an offloaded descriptor is ready, the kernel is asked for the others once in so many calls. 0: "      \
	  "never then.")                                                                                               \
	X(INT, progress_engine_interval, "VMA_PROGRESS_ENGINE_INTERVAL", "CQ Drain Interval (msec)", 10, 100, SAME, 0, \
	  3600000, PLAIN,                                                                                              \
	  "A ring that holds packets and that no thread of the program has looked at for so many milliseconds is "     \
	  "looked at by the internal thread. 0: never.")                                                               \
	X(INT, progress_engine_wce_max, "VMA_PROGRESS_ENGINE_WCE_MAX", "CQ Drain WCE (max)", 10000, SAME, SAME, 0,     \
	  100000000, PLAIN,                                                                                            \
	  "It takes at most about so many packets at a time. 0: it takes none. The old name is "                       \
	  "VMA_CQ_DRAIN_WCE_MAX.")                                                                                     \
	X(BOOL, cq_moderation_enable, "VMA_CQ_MODERATION_ENABLE", "CQ Interrupts Moderation", 1, 0, SAME, 0, 1,        \
	  SWITCH, "Gather arrivals before a sleeper is woken, where the device can.")                                  \
	X(INT, cq_moderation_count, "VMA_CQ_MODERATION_COUNT", "CQ Moderation Count", 48, SAME, SAME, 0, 65535, PLAIN, \
	  "A sleeper is woken after so many packets,")                                                                 \
	X(INT, cq_moderation_period_usec, "VMA_CQ_MODERATION_PERIOD_USEC", "CQ Moderation Period (usec)", 50, SAME,    \
	  SAME, 0, 65535, PLAIN, "or so many microseconds after the first.")                                           \
	X(INT, cq_aim_max_count, "VMA_CQ_AIM_MAX_COUNT", "CQ AIM Max Count", 560, 128, SAME, 0, 65535, PLAIN,          \
	  "Adaptive moderation goes up to so many packets,")                                                           \
	X(INT, cq_aim_max_period_usec, "VMA_CQ_AIM_MAX_PERIOD_USEC", "CQ AIM Max Period (usec)", 250, SAME, SAME, 0,   \
	  65535, PLAIN, "and so many microseconds.")                                                                   \
	X(INT, cq_aim_interval_msec, "VMA_CQ_AIM_INTERVAL_MSEC", "CQ AIM Interval (msec)", 250, 0, SAME, 0, 3600000,   \
	  AIM, "Milliseconds between two adaptations. 0: moderation does not adapt.")                                  \
	X(INT, cq_aim_interrupts_rate_per_sec, "VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC",                                   \
	  "CQ AIM Interrupts Rate (per sec)", 5000, SAME, SAME, 1, 10000000, PLAIN,                                    \
	  "Wake-ups per second and ring that adaptive moderation aims at.")                                            \
	X(INT, cq_poll_batch_max, "VMA_CQ_POLL_BATCH_MAX", "CQ Poll Batch (max)", 16, SAME, SAME, 1, 1024, PLAIN,      \
	  "At most so many packets are taken from a queue at a time.")                                                 \
	X(BOOL, cq_keep_qp_full, "VMA_CQ_KEEP_QP_FULL", "CQ Keeps QP Full", 1, 0, SAME, 0, 1, SWITCH,                  \
	  "Replace used receive buffers at every poll, and not only when idle or when many are owed.")                 \
	X(INT, qp_compensation_level, "VMA_QP_COMPENSATION_LEVEL", "QP Compensation Level", 256, SAME, SAME, 1,        \
	  1048576, PLAIN, "Spare receive buffers that each queue keeps ready.")                                        \
	X(BOOL, offloaded_sockets, "VMA_OFFLOADED_SOCKETS", "Offloaded Sockets", 1, SAME, SAME, 0, 1, SWITCH,          \
	  "Whether sockets are offloaded. 0: all of them are the kernel's.")                                           \
	X(BOOL, io_uring, "VMA_IO_URING", "io_uring", 0, SAME, SAME, 0, 1, SWITCH,                                     \
	  "Whether the program gets io_uring. 0: io_uring_setup fails with ENOSYS, as on a kernel without it, and "    \
	  "programs do without. 1: it succeeds, and from then on all sockets of the program are the kernel's.")        \
	X(BOOL, children_any_user, "VMA_CHILDREN_ANY_USER", "Children of any user", 0, SAME, SAME, 0, 1, SWITCH,        \
	  "Whether forked children may be clients of vmad by the right of this process whoever they have become. 0: "  \
	  "children of the same user only. The others need a right of their own, which a child makes that changes its "\
	  "user after the fork, or a vmad that names their user (--allow-user).")                                      \
	X(ENUM, tcp_timestamp_option, "VMA_TCP_TIMESTAMP_OPTION", "TCP timestamp option", 0, SAME, SAME, 0, 0,         \
	  TCP_TIMESTAMPS, "Whether TCP connections use time stamps, where the peer does: 0 no, 1 yes, 2 as the kernel "\
	  "(net.ipv4.tcp_timestamps).")                                                                                \
	X(BOOL, tcp_nodelay, "VMA_TCP_NODELAY", "TCP nodelay", 0, 1, SAME, 0, 1, FLAG,                                 \
	  "What TCP_NODELAY is of a socket that does not set it.")                                                     \
	X(BOOL, tcp_quickack, "VMA_TCP_QUICKACK", "TCP quickack", 0, SAME, SAME, 0, 1, FLAG,                           \
	  "1: what is received is acknowledged at once, never a little later together with an answer.")                \
	X(ENUM, exception_handling, "VMA_EXCEPTION_HANDLING", "Exception handling mode", -1, SAME, SAME, 0, 0,         \
	  EXCEPTION,                                                                                                   \
	  "What happens where the program asks for something that is not offloaded: -1 and 0 say so at level "         \
	  "debug, 1 at level error, and the kernel does it; 2 says so and the call fails; 3 says so and the "          \
	  "program ends. -2: as -1, and the program ends if the library cannot start.")                                \
	X(INT, wait_after_join_msec, "VMA_WAIT_AFTER_JOIN_MSEC", "Delay after join (msec)", 0, SAME, SAME, 0, 60000,   \
	  PLAIN,                                                                                                       \
	  "A call that joins a multicast group returns so many milliseconds later.")                                   \
	X(TEXT, internal_thread_affinity, "VMA_INTERNAL_THREAD_AFFINITY", "Internal Thread Affinity", "-1", "0",       \
	  AS_IS, 0, 0, AFFINITY,                                                                                       \
	  "Processors that the internal thread runs on: a hexadecimal mask (0x3) or a list with ranges (0,4-6). "      \
	  "-1: those of the program.")                                                                                 \
	X(ENUM, thread_mode, "VMA_THREAD_MODE", "Thread mode", 1, 0, SAME, 0, 0, THREAD_MODE,                          \
	  "0: the program uses its sockets in one thread only. Else, what a thread does that must wait for another in "\
	  "a control call: 1 spin, 2 sleep, 3 spin and then yield.")                                                   \
	X(ENUM, buffer_batching_mode, "VMA_BUFFER_BATCHING_MODE", "Buffer batching mode", 1, SAME, SAME, 0, 0,         \
	  BATCHING_MODE, "Whether each thread keeps a small cache of buffers: 0 none, 1 yes and unused ones are given "\
	  "back, 2 yes and they stay.")                                                                                \
	X(ENUM, mem_alloc_type, "VMA_MEM_ALLOC_TYPE", "Mem Allocate type", 1, 2, 2, 0, 0, MEM_ALLOC_TYPE,              \
	  "Memory of the buffers: 0 ANON small pages, 1 CONTIG pages that the kernel may join, 2 HUGEPAGES. What is "  \
	  "not to be had is replaced by the next smaller. The old VMA_HUGETBL=1 means 2.")                             \
	X(INT, mss, "VMA_MSS", "MSS", 0, SAME, SAME, 0, 32767, MSS,                                                    \
	  "What TCP_MAXSEG is of a socket that does not set it: at most so many bytes of data per segment, and at "    \
	  "least 88. 0: what the path takes.")                                                                         \
	X(ENUM, tcp_cc_algo, "VMA_TCP_CC_ALGO", "TCP CC Algorithm", 0, SAME, SAME, 0, 0, TCP_CC,                       \
	  "Congestion control of TCP connections that do not set TCP_CONGESTION: 0 NewReno, 1 Cubic, 2 none, 3 BBR. "  \
	  "If it is not set: what the kernel would use (net.ipv4.tcp_congestion_control), or Cubic if that is none of "\
	  "these.")                                                                                                    \
	X(ENUM, nic, "VMA_NIC", "NIC backend", VMA_CONF_NIC_AUTO, SAME, SAME, 0, 0, NIC,                               \
	  "How interfaces are reached: auto takes verbs where the interface has such a device, else xdp; none leaves " \
	  "all to the kernel.")
/* clang-format on */

#endif
