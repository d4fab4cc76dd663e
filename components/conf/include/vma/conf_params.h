/*
 * conf_params - the parameter table, in the order of the banner.
 *
 *   X(type, field, NAME, label, default, latency, multi_ring_latency, min, max, form, text)    a row of class effect
 *   Y(class, type, field, ... the same)                                                        a row of another class
 *
 * A row of class effect is obeyed: `make lint` checks that its field is read outside conf. The other classes say why a
 * name has no effect. The banner, the log and the reference page show it, and no code reads the field:
 *
 *   NO_MEANING   no backend has what it is about, and its text says why; shown as "no meaning here"
 *   SUPERSEDED   the library always does more than any of its values says
 *
 * `field` is NAME without VMA_, in lower case. `latency` and `multi_ring_latency` are the defaults under that VMA_SPEC;
 * SAME (of a TEXT: AS_IS) if the profile changes nothing. min and max bound INT only. `form` (conf_form.c) is the text
 * form: which values have words, how they are printed. `text` is the entry of docs/parameters.md.
 *
 * Threads: constant.
 */
#ifndef VMA_CONF_PARAMS_H
#define VMA_CONF_PARAMS_H

/* clang-format off */
#define VMA_CONF_PARAMS(X, Y)                                                                                          \
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
	X(TEXT, stats_file, "VMA_STATS_FILE", "Stats File", "", AS_IS, AS_IS, 0, 0, FILE,                              \
	  "Where the counters of a socket are written when it is closed, or the process ends, if it has moved any "    \
	  "packet; of sockets that VMA_STATS_FD_NUM allows.")                                                          \
	X(TEXT, stats_shmem_dir, "VMA_STATS_SHMEM_DIR", "Stats shared memory directory", "/tmp/", AS_IS, AS_IS, 0, 0,  \
	  DIRECTORY, "Where the file vmastat.PID with the counters lies. Empty: no file.")                             \
	Y(SUPERSEDED, TEXT, vmad_notify_dir, "VMA_VMAD_NOTIFY_DIR", "VMAD output directory", "/tmp/vma", AS_IS, AS_IS, \
	  0, 0, DIRECTORY,                                                                                             \
	  "Processes and vmad need no files to tell each other of connections: vmad knows each connection's flow, and "\
	  "answers for connections of processes that died (docs/vmad.md).")                                            \
	X(INT, stats_fd_num, "VMA_STATS_FD_NUM", "Stats FD Num (max)", 100, SAME, SAME, 0, 1024, PLAIN,                \
	  "At most so many sockets have counters that another process can read.")                                      \
	X(TEXT, config_file, "VMA_CONFIG_FILE", "Conf File", "/etc/libvma.conf", AS_IS, AS_IS, 0, 0, FILE,             \
	  "The file of rules that say which sockets are offloaded (docs/rules.md). If it is not set, and there is no " \
	  "such file, /etc/libxlio.conf. Empty: no file.")                                                             \
	X(TEXT, application_id, "VMA_APPLICATION_ID", "Application ID", "VMA_DEFAULT_APPLICATION_ID", AS_IS, AS_IS,    \
	  0, 0, WORD, "Rules of that file that are for one ID hold if it is this one. The other name is "              \
	  "XLIO_APPLICATION_ID.")                                                                                      \
	X(BOOL, cpu_usage_stats, "VMA_CPU_USAGE_STATS", "Polling CPU idle usage", 0, SAME, SAME, 0, 1, SWITCH,         \
	  "Measure which part of its time a thread spends looking in select, poll and epoll_wait; vma_stats shows it.")\
	X(BOOL, handle_sigintr, "VMA_HANDLE_SIGINTR", "SigIntr Ctrl-C Handle", 0, SAME, SAME, 0, 1, SWITCH,            \
	  "If SIGINT comes, the log says from which process, before the program's handler runs or the program ends.")  \
	X(BOOL, handle_sigsegv, "VMA_HANDLE_SIGSEGV", "SegFault Backtrace", 0, SAME, SAME, 0, 1, SWITCH,               \
	  "If a segmentation fault ends the program, the log shows the calls that led to it, with symbols.")           \
	X(ENUM, ring_allocation_logic_tx, "VMA_RING_ALLOCATION_LOGIC_TX", "Ring allocation logic TX", 0, SAME, 20, 0,  \
	  0, RING_LOGIC, "What has a ring of its own for sending, per interface: 0 all together, 1 each local address, "\
	  "10 each socket, 20 each thread, 30 each core, 31 each core, threads staying on theirs. The thread and core "\
	  "are those that made the socket, or accepted it. A TCP connection has one ring for both directions: by the " \
	  "logic for receiving, or by this one if that is 0.")                                                         \
	X(ENUM, ring_allocation_logic_rx, "VMA_RING_ALLOCATION_LOGIC_RX", "Ring allocation logic RX", 0, SAME, 20, 0,  \
	  0, RING_LOGIC, "The same for receiving.")                                                                    \
	X(INT, ring_migration_ratio_tx, "VMA_RING_MIGRATION_RATIO_TX", "Ring migration ratio TX", 100, SAME, SAME, 1,  \
	  INT32_MAX, MIGRATION, "With rings per thread or core: a UDP socket or TCP connection that one other thread or "\
	  "core has used for so many sends in a row, after a round of as many in which it was noticed, goes on with "  \
	  "that one's ring. A TCP connection has one ring for both directions, and stays if one thread receives and "  \
	  "another sends, and both are counted. -1, and if it is not set: never.")                                       \
	X(INT, ring_migration_ratio_rx, "VMA_RING_MIGRATION_RATIO_RX", "Ring migration ratio RX", 100, SAME, SAME, 1,  \
	  INT32_MAX, MIGRATION, "The same for receives. A UDP socket that shares its port or group with another one "  \
	  "of the process, or was inherited by fork, keeps its ring. So does a TCP connection without a rule of its "  \
	  "own (VMA_TCP_3T_RULES, VMA_TCP_2T_RULES).")                                                    \
	X(INT, ring_limit_per_interface, "VMA_RING_LIMIT_PER_INTERFACE", "Ring limit per interface", 0, SAME, SAME, 0, \
	  65535, LIMIT, "At most so many rings per interface; what would need more shares them. 0: no limit.")         \
	Y(NO_MEANING, INT, ring_dev_mem_tx, "VMA_RING_DEV_MEM_TX", "Ring On Device Memory TX", 0, 16384, SAME, 0,      \
	  262144, PLAIN,                                                                                               \
	  "Memory of the card spares it a read of the host's memory for each packet. What is small enough goes "       \
	  "inline (VMA_TX_MAX_INLINE), which spares the same read, and needs no copy of its own.")                     \
	X(INT, tcp_max_syn_rate, "VMA_TCP_MAX_SYN_RATE", "TCP max syn rate", 0, SAME, SAME, 0, 100000, LIMIT,          \
	  "At most so many TCP connection requests are taken per second, by each listening socket on each interface; " \
	  "the others are dropped, and peers ask again. 0: no limit.")                                                 \
	X(INT, tx_segs_tcp, "VMA_TX_SEGS_TCP", "Tx Mem Segs TCP", 1000000, SAME, SAME, 1, 1000000000, BY_MEMORY,       \
	  "At most so many TCP segments of the process wait for their acknowledgement; of each connection one may "    \
	  "always. If it is not set, the memory of all connections bounds them (net.ipv4.tcp_mem).")                   \
	X(INT, tx_bufs, "VMA_TX_BUFS", "Tx Mem Bufs", 200000, SAME, SAME, 64, 100000000, PLAIN,                        \
	  "At most so many buffers for sending. Memory grows on demand, so this is a bound, not a cost.")              \
	X(INT, tx_wre, "VMA_TX_WRE", "Tx QP WRE", 2048, 256, SAME, 16, 1048576, PLAIN,                                 \
	  "Depth of each send queue, in frames. If the device and its memory grant less than is set, the log says so.")\
	X(INT, tx_wre_batching, "VMA_TX_WRE_BATCHING", "Tx QP WRE Batching", 64, 4, SAME, 1, 64, PLAIN,                \
	  "So many frames are sent before their completions are asked for.")                                           \
	X(INT, tx_max_inline, "VMA_TX_MAX_INLINE", "Tx Max QP INLINE", 204, SAME, SAME, 0, 65535, PLAIN,               \
	  "An RDMA card gets packets of up to so many bytes in its send queue itself. Less, if the card says so.")     \
	X(BOOL, tx_mc_loopback, "VMA_TX_MC_LOOPBACK", "Tx MC Loopback", 1, SAME, SAME, 0, 1, SWITCH,                   \
	  "What IP_MULTICAST_LOOP is of a socket that does not set it: whether its multicast is also received on "     \
	  "this host.")                                                                                                \
	X(BOOL, tx_nonblocked_eagains, "VMA_TX_NONBLOCKED_EAGAINS", "Tx non-blocked eagains", 0, SAME, SAME, 0, 1,     \
	  EAGAINS, "What a non-blocking send of UDP says where the queue is full. Not set, or 1: EAGAIN, as the kernel. "\
	  "0, if it is set: that it is sent, and the datagram is dropped and counted.")                                \
	Y(SUPERSEDED, INT, tx_prefetch_bytes, "VMA_TX_PREFETCH_BYTES", "Tx Prefetch Bytes", 256, SAME, SAME, 0, 9000,  \
	  PLAIN,                                                                                                       \
	  "Each thread sends from the buffers that it has used last, which are in its cache already "                  \
	  "(VMA_BUFFER_BATCHING_MODE), and what describes the next one is always fetched.")                            \
	X(INT, rx_bufs, "VMA_RX_BUFS", "Rx Mem Bufs", 200000, SAME, SAME, 64, 100000000, PLAIN,                        \
	  "At most so many buffers for receiving. Memory grows on demand, so this is a bound, not a cost.")            \
	X(INT, rx_wre, "VMA_RX_WRE", "Rx QP WRE", 16000, 256, SAME, 16, 1048576, PLAIN,                                \
	  "Depth of each receive queue, in frames. If the device and its memory grant less than is set, the log says so.")\
	X(INT, rx_wre_batching, "VMA_RX_WRE_BATCHING", "Rx QP WRE Batching", 64, 4, SAME, 1, 1024, PLAIN,              \
	  "So many used receive buffers are gathered before they are replaced.")                                       \
	X(INT, rx_bytes_min, "VMA_RX_BYTES_MIN", "Rx Byte Min Limit", 65536, SAME, SAME, 0, INT32_MAX, PLAIN,          \
	  "A socket queues at least so many bytes, also where SO_RCVBUF says less. That holds for TCP only if it is "  \
	  "set: else a TCP socket's buffer is as SO_RCVBUF says, as the kernel's.")                                    \
	X(INT, rx_poll, "VMA_RX_POLL", "Rx Poll Loops", 100000, -1, -1, -1, 100000000, PLAIN,                          \
	  "A blocking receive looks at most so often for a packet before it sleeps, and less where looking does "      \
	  "not pay. -1: for ever; 0: it sleeps at once. If it is not set, it also sleeps at once while more threads "  \
	  "want to run on this host than it has cores.")                                                               \
	X(INT, rx_poll_init, "VMA_RX_POLL_INIT", "Rx Poll Init Loops", 0, SAME, SAME, -1, 100000000, PLAIN,            \
	  "The same for a UDP socket that has nothing offloaded yet.")                                                 \
	X(INT, rx_udp_poll_os_ratio, "VMA_RX_UDP_POLL_OS_RATIO", "Rx UDP Poll OS Ratio", 100, SAME, SAME, 0,           \
	  1000000000, PLAIN,                                                                                           \
	  "The kernel is asked for datagrams once in so many looks. 0: only before sleeping.")                         \
	X(INT, hw_ts_conversion, "VMA_HW_TS_CONVERSION", "HW TS Conversion", 3, SAME, SAME, 0, 4, PLAIN,               \
	  "In which time a card's stamps of received datagrams are (verbs; docs/verbs.md): 0 it gives none, 1 the "    \
	  "card's own time in nanoseconds, 2 as 3, or as 1 if the card's clock cannot be read, 3 the system's time, "  \
	  "4 the card's clock that PTP sets, or as 3 if there is none. SO_TIMESTAMPING tells the stamp, if it asks "   \
	  "for that of the hardware; the other stamps are the card's, too, if they are in the system's time. On xdp "  \
	  "stamps are by software.")                                                                                   \
	X(BOOL, rx_poll_yield, "VMA_RX_POLL_YIELD", "Rx Poll Yield", 0, SAME, SAME, 0, 1, SWITCH,                      \
	  "Who looks without success lets other threads run before it looks again.")                                   \
	X(INT, rx_prefetch_bytes, "VMA_RX_PREFETCH_BYTES", "Rx Prefetch Bytes", 256, SAME, SAME, 32, 9000, RX_PREFETCH,\
	  "So many bytes of each received packet are fetched into the cache before it is looked at. More than 2048 "   \
	  "counts as 2048.")                                                                                           \
	Y(NO_MEANING, INT, rx_prefetch_bytes_before_poll, "VMA_RX_PREFETCH_BYTES_BEFORE_POLL",                         \
	  "Rx Prefetch Bytes Before Poll", 0, 256, SAME, 0, 9000, PLAIN,                                               \
	  "A fetch before the packet has come gets the buffer's old bytes. A card writes the new ones into the "       \
	  "processor's cache itself, and on xdp it is not known which buffer the next packet gets.")                   \
	X(INT, rx_cq_drain_rate_nsec, "VMA_RX_CQ_DRAIN_RATE_NSEC", "Rx CQ Drain Rate", 0, SAME, SAME, 0, 1000000000,   \
	  OFF, "A receive that finds data looks for packets first, if the socket's last such look was so many "        \
	  "nanoseconds ago. 0: it takes what is queued.")                                                              \
	X(BOOL, rx_poll_on_tx_tcp, "VMA_RX_POLL_ON_TX_TCP", "Polling Rx on Tx TCP", 0, SAME, 1, 0, 1, SWITCH,          \
	  "A send of TCP also looks for received packets.")                                                            \
	X(BOOL, rx_sw_csum, "VMA_RX_SW_CSUM", "Rx SW checksum validation", 1, SAME, SAME, 0, 1, SWITCH,                \
	  "Check the checksums of received packets where the device has not done it.")                                 \
	X(INT, gro_streams_max, "VMA_GRO_STREAMS_MAX", "GRO max streams", 32, 0, SAME, 0, 1000000, PLAIN,              \
	  "Of at most so many TCP connections the segments that came together are taken as one. 0: each by itself.")   \
	X(BOOL, tcp_3t_rules, "VMA_TCP_3T_RULES", "TCP 3T rules", 0, SAME, SAME, 0, 1, SWITCH,                         \
	  "A connection that is accepted stays with its listener's flow, which has no remote address, as long as no "  \
	  "other process may serve the listener. Else it gets a flow of its own when it has lived for 50 to 100 ms.")  \
	X(BOOL, udp_3t_rules, "VMA_UDP_3T_RULES", "UDP 3T rules", 1, SAME, SAME, 0, 1, UDP_RULES,                      \
	  "1: the flow of a connected UDP socket has no remote address, if the kernel has chosen its port and no other "\
	  "socket can have it; what others send to the port is then dropped. If it is not set, or 0: the flow is the " \
	  "peer's, and the kernel refuses what others send.")                                                          \
	Y(NO_MEANING, BOOL, eth_mc_l2_only_rules, "VMA_ETH_MC_L2_ONLY_RULES", "ETH MC L2 only rules", 0, SAME, SAME,   \
	  0, 1, SWITCH,                                                                                                \
	  "Rules for multicast name group and port. A rule for Ethernet addresses alone would also bring what no "     \
	  "socket here asked for, and take it from the kernel.")                                                       \
	Y(NO_MEANING, BOOL, mc_force_flowtag, "VMA_MC_FORCE_FLOWTAG", "Force Flowtag for MC", 0, SAME, SAME, 0, 1,     \
	  SWITCH,                                                                                                      \
	  "Packets are not marked: a ring finds their sockets by addresses and ports, whether one socket wants "       \
	  "them or several.")                                                                                          \
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
	  "looked at by the internal thread. 0: never. That holds for rings with TCP only if it is set: else a "       \
	  "packet waits there for about a millisecond at most.")                                                       \
	X(INT, progress_engine_wce_max, "VMA_PROGRESS_ENGINE_WCE_MAX", "CQ Drain WCE (max)", 10000, SAME, SAME, 0,     \
	  100000000, PLAIN,                                                                                            \
	  "It takes at most about so many packets at a time. 0: it takes none.")                                       \
	X(BOOL, cq_moderation_enable, "VMA_CQ_MODERATION_ENABLE", "CQ Interrupts Moderation", 1, 0, SAME, 0, 1,        \
	  MODERATION, "Whether a thread that sleeps until a packet comes is woken for several at a time. 1: by count " \
	  "and period if one of these is set, and adaptively (VMA_CQ_AIM_*). 0: it is woken by the first packet. If "  \
	  "it is not set: 1, as far as a parameter of these is set.")                                                  \
	X(INT, cq_moderation_count, "VMA_CQ_MODERATION_COUNT", "CQ Moderation Count", 48, SAME, SAME, 0, 65535,        \
	  MODERATION_COUNT, "A sleeper is woken after so many packets, or when the period is over. On xdp the sleeper "\
	  "counts itself: it gets up for packets that come meanwhile, at most every 0.1 milliseconds, and the call "   \
	  "sleeps on. 0 or 1: the first packet wakes it.")                                                             \
	X(INT, cq_moderation_period_usec, "VMA_CQ_MODERATION_PERIOD_USEC", "CQ Moderation Period (usec)", 50, SAME,    \
	  SAME, 0, 65535, MODERATION_PERIOD, "A sleeper is woken so many microseconds after the first packet, or "     \
	  "after the count. 0: the first packet wakes it.")                                                            \
	X(INT, cq_aim_max_count, "VMA_CQ_AIM_MAX_COUNT", "CQ AIM Max Count", 560, 128, SAME, 0, 65535, PLAIN,          \
	  "Adaptive moderation goes up to so many packets,")                                                           \
	X(INT, cq_aim_max_period_usec, "VMA_CQ_AIM_MAX_PERIOD_USEC", "CQ AIM Max Period (usec)", 250, SAME, SAME, 0,   \
	  65535, PLAIN, "and so many microseconds.")                                                                   \
	X(INT, cq_aim_interval_msec, "VMA_CQ_AIM_INTERVAL_MSEC", "CQ AIM Interval (msec)", 250, 0, SAME, 0, 3600000,   \
	  AIM, "Milliseconds between two adaptations. 0: moderation does not adapt. If it is not set, it adapts only " \
	  "if VMA_CQ_MODERATION_ENABLE or another parameter of VMA_CQ_AIM_* is set.")                                  \
	X(INT, cq_aim_interrupts_rate_per_sec, "VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC",                                   \
	  "CQ AIM Interrupts Rate (per sec)", 5000, SAME, SAME, 1, 10000000, PLAIN,                                    \
	  "Wake-ups per second and ring that adaptive moderation aims at, while more packets than that come. A "       \
	  "packet after silence is not held back.")                                                                    \
	X(INT, cq_poll_batch_max, "VMA_CQ_POLL_BATCH_MAX", "CQ Poll Batch (max)", 16, SAME, SAME, 1, 1024, POLL_BATCH, \
	  "At most so many packets are taken from a queue at a time. More than 64 counts as 64.")                      \
	X(BOOL, cq_keep_qp_full, "VMA_CQ_KEEP_QP_FULL", "CQ Keeps QP Full", 1, 0, SAME, 0, 1, SWITCH,                  \
	  "Replace used receive buffers at every poll, and not only when idle or when many are owed.")                 \
	X(INT, qp_compensation_level, "VMA_QP_COMPENSATION_LEVEL", "QP Compensation Level", 256, SAME, SAME, 1,        \
	  1048576, PLAIN, "Spare receive buffers that each queue keeps ready.")                                        \
	X(BOOL, offloaded_sockets, "VMA_OFFLOADED_SOCKETS", "Offloaded Sockets", 1, SAME, SAME, 0, 1, SWITCH,          \
	  "Whether sockets are offloaded. 0: all of them are the kernel's.")                                           \
	X(BOOL, io_uring, "VMA_IO_URING", "io_uring", 0, SAME, SAME, 0, 1, SWITCH,                                     \
	  "Whether the program gets io_uring. 0: io_uring_setup fails with ENOSYS, as on a kernel without it, and "    \
	  "programs do without. 1: it succeeds, and from then on all sockets of the program are the kernel's.")        \
	X(BOOL, children_any_user, "VMA_CHILDREN_ANY_USER", "Children of any user", 0, SAME, SAME, 0, 1, SWITCH,       \
	  "Whether forked children may be clients of vmad by the right of this process whoever they have become. 0: "  \
	  "children of the same user only. The others need a right of their own, which a child makes that changes its "\
	  "user after the fork, or a vmad that names their user (--allow-user).")                                      \
	X(INT, timer_resolution_msec, "VMA_TIMER_RESOLUTION_MSEC", "Timer Resolution (msec)", 10, SAME, SAME, 1, 60000, \
	  RESOLUTION,                                                                                                  \
	  "The internal thread wakes for what is due at multiples of so many milliseconds only. Packets and other "    \
	  "threads still wake it at once, but not packets of a ring that another thread has driven just before. More " \
	  "than 1000 counts as 1000. If it is not set: at the time itself.")                                           \
	X(INT, tcp_timer_resolution_msec, "VMA_TCP_TIMER_RESOLUTION_MSEC", "TCP Timer Resolution (msec)", 100, SAME,   \
	  SAME, 1, 60000, RESOLUTION,                                                                                  \
	  "Timers of TCP connections (retransmission, delayed ACK, closed window, keepalive) end at multiples of so "  \
	  "many milliseconds. Less than VMA_TIMER_RESOLUTION_MSEC, if that is set, counts as that, and more than 1000 " \
	  "as 1000. If it is not set: at the time itself.")                                                            \
	X(ENUM, tcp_ctl_thread, "VMA_TCP_CTL_THREAD", "TCP control thread", 0, SAME, SAME, 0, 0, CTL_THREAD,           \
	  "Which thread makes the connections that listening TCP sockets are asked for: 0 the one that takes the "     \
	  "packets, 1 the internal thread, which is woken for it, 2 the internal thread, at the next multiple of "     \
	  "VMA_TIMER_RESOLUTION_MSEC (of 10 if that is not set).")                                                     \
	X(ENUM, tcp_timestamp_option, "VMA_TCP_TIMESTAMP_OPTION", "TCP timestamp option", 0, SAME, SAME, 0, 0,         \
	  TCP_TIMESTAMPS, "Whether TCP connections use time stamps, where the peer does: 0 no, 1 yes, 2 as the kernel "\
	  "(net.ipv4.tcp_timestamps).")                                                                                \
	X(BOOL, tcp_nodelay, "VMA_TCP_NODELAY", "TCP nodelay", 0, 1, SAME, 0, 1, FLAG,                                 \
	  "What TCP_NODELAY is of a socket that does not set it.")                                                     \
	X(BOOL, tcp_quickack, "VMA_TCP_QUICKACK", "TCP quickack", 0, SAME, SAME, 0, 1, FLAG,                           \
	  "1: what is received is acknowledged at once, never a little later together with an answer.")                \
	X(INT, tcp_quickack_threshold, "VMA_TCP_QUICKACK_THRESHOLD", "TCP quickack threshold", 0, SAME, SAME, 0,       \
	  65535, PLAIN, "A segment of at most so many bytes is acknowledged at once, as with VMA_TCP_QUICKACK; longer "\
	  "ones are not. A socket that sets TCP_QUICKACK to 0 is left out. 0: no segment.")                            \
	X(ENUM, exception_handling, "VMA_EXCEPTION_HANDLING", "Exception handling mode", -1, SAME, SAME, 0, 0,         \
	  EXCEPTION,                                                                                                   \
	  "What happens if a socket, or what the program asks for, cannot be offloaded, and neither its address nor a "\
	  "rule wants it so. -1 and 0: the log says so at level debug, and the kernel does it. 1: the same at level "  \
	  "error. 2: the log says so at level error, and the call fails (setsockopt, fcntl, ioctl, bind, connect, "    \
	  "listen); where there is no call, as 1. 3: the log says so at level error, and the program ends. -2: as -1, "\
	  "and the program ends if the library cannot start.")                                                         \
	X(BOOL, avoid_sys_calls_on_tcp_fd, "VMA_AVOID_SYS_CALLS_ON_TCP_FD", "Avoid sys-calls on tcp fd", 0, 1, SAME, 0, 1,\
	  SWITCH, "setsockopt and getsockopt of a connected TCP socket do without the kernel for TCP_NODELAY, TCP_CORK, "\
	  "TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT and SO_KEEPALIVE. The kernel's socket gets the " \
	  "values when another option is asked for, or when it gets the connection. fcntl, and other options, go to the "\
	  "kernel; FIONREAD, SIOCATMARK, SIOCOUTQ and SIOCOUTQNSD never do.")                                          \
	X(BOOL, allow_privileged_sock_opt, "VMA_ALLOW_PRIVILEGED_SOCK_OPT", "Allow privileged sock opt", 1, SAME, SAME, 0,\
	  1, PRIVILEGED, "1: SO_MARK, SO_RCVBUFFORCE and SO_SNDBUFFORCE succeed although the kernel refuses them for want "\
	  "of a privilege, and hold for what is offloaded: routes by mark, and how much a socket queues. If it is not "\
	  "set, or 0: the kernel's answer is the answer.")                                                             \
	X(INT, wait_after_join_msec, "VMA_WAIT_AFTER_JOIN_MSEC", "Delay after join (msec)", 0, SAME, SAME, 0, 60000,   \
	  PLAIN,                                                                                                       \
	  "A call that joins a multicast group returns so many milliseconds later.")                                   \
	X(TEXT, internal_thread_affinity, "VMA_INTERNAL_THREAD_AFFINITY", "Internal Thread Affinity", "-1", "0",       \
	  AS_IS, 0, 0, AFFINITY,                                                                                       \
	  "Processors that the internal thread runs on: a hexadecimal mask (0x3) or a list with ranges (0,4-6). "      \
	  "-1: those of the program.")                                                                                 \
	X(TEXT, internal_thread_cpuset, "VMA_INTERNAL_THREAD_CPUSET", "Internal Thread Cpuset", "", AS_IS,             \
	  AS_IS, 0, 0, FILE,                                                                                           \
	  "Folder of a control group with the controller cpuset, which the internal thread moves into when it starts.")\
	X(BOOL, internal_thread_arm_cq, "VMA_INTERNAL_THREAD_ARM_CQ", "Internal Thread Arm CQ", 0, SAME, SAME, 0, 1,   \
	  SWITCH,                                                                                                      \
	  "1: each packet wakes the internal thread, which takes it to its socket unless another thread is at it. "    \
	  "0: only if no thread of the program looks at the ring.")                                                    \
	X(ENUM, internal_thread_tcp_timer_handling, "VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING",                          \
	  "Internal Thread TCP Handling", 0, SAME, SAME, 0, 0, TCP_HANDLING,                                           \
	  "If a timer of TCP is due while threads of the program look at the ring: 0 they do its work, and the "       \
	  "internal thread only if they have not done it about a millisecond later; 1 the internal thread does it "    \
	  "at once.")                                                                                                  \
	X(ENUM, thread_mode, "VMA_THREAD_MODE", "Thread mode", 1, 0, SAME, 0, 0, THREAD_MODE,                          \
	  "0: the program uses its sockets in one thread, which pays nothing for others; if others come all the same, "\
	  "it is as 1 soon. Else, what a thread does that must wait for another in a control call: 1 spin, 2 sleep, 3 "\
	  "spin and then yield.")                                                                                      \
	X(ENUM, buffer_batching_mode, "VMA_BUFFER_BATCHING_MODE", "Buffer batching mode", 1, SAME, SAME, 0, 0,         \
	  BATCHING_MODE, "Whether each thread keeps a small cache of buffers: 0 none, 1 yes and unused ones are given "\
	  "back, 2 yes and they stay.")                                                                                \
	X(ENUM, mem_alloc_type, "VMA_MEM_ALLOC_TYPE", "Mem Allocate type", 1, 2, 2, 0, 0, MEM_ALLOC_TYPE,              \
	  "Memory of the buffers: 0 ANON small pages, 1 CONTIG pages that the kernel may join, 2 HUGEPAGES. What is "  \
	  "not to be had is replaced by the next smaller. The old VMA_HUGETBL=1 means 2.")                             \
	X(INT, neigh_uc_arp_quata, "VMA_NEIGH_UC_ARP_QUATA", "Num of UC ARPs", 3, SAME, SAME, 0, 1000, BY_KERNEL,      \
	  "A stale neighbour in use gets so many ARP requests to itself; then one goes to all, and then the kernel "   \
	  "resolves anew. That needs CAP_NET_RAW. If neither this nor VMA_NEIGH_UC_ARP_DELAY_MSEC is set, or without " \
	  "that right, the kernel confirms it in its way. If only the other is set: 3.")                               \
	X(INT, neigh_uc_arp_delay_msec, "VMA_NEIGH_UC_ARP_DELAY_MSEC", "UC ARP delay (msec)", 10000, SAME, SAME, 0,    \
	  3600000, BY_KERNEL,                                                                                          \
	  "Milliseconds between two of these ARP requests. If only VMA_NEIGH_UC_ARP_QUATA is set: 10000.")             \
	X(INT, neigh_num_err_retries, "VMA_NEIGH_NUM_ERR_RETRIES", "Num of neigh restart retries", 1, SAME, SAME, 0,   \
	  1000, BY_KERNEL,                                                                                             \
	  "If the kernel cannot resolve a neighbour, it is asked so often again before a connection fails. If it is "  \
	  "not set: not again, as the kernel.")                                                                        \
	Y(NO_MEANING, BOOL, ipoib, "VMA_IPOIB", "IPOIB support", 1, SAME, SAME, 0, 1, SWITCH,                          \
	  "Only Ethernet is offloaded. IP over InfiniBand is always the kernel's.")                                    \
	X(BOOL, socketxtreme, "VMA_SOCKETXTREME", "SocketXtreme mode", 0, SAME, SAME, 0, 1, SWITCH,                    \
	  "The program polls rings itself by the Extra API (docs/extra-api.md). Its calls of sockets work as without.")\
	Y(NO_MEANING, BOOL, bf, "VMA_BF", "BF (Blue Flame)", 1, SAME, SAME, 0, 1, SWITCH,                              \
	  "Whether small packets are written into a register of the card is its driver's decision, which does so "     \
	  "where it can. MLX5_SHUT_UP_BF=1 in the environment turns it off for mlx5.")                                 \
	Y(SUPERSEDED, BOOL, fork, "VMA_FORK", "fork() support", 1, SAME, SAME, 0, 1, SWITCH,                           \
	  "Sockets always work in parent and child after a fork.")                                                     \
	Y(SUPERSEDED, BOOL, close_on_dup2, "VMA_CLOSE_ON_DUP2", "close on dup2()", 1, SAME, SAME, 0, 1, SWITCH,        \
	  "dup2 always closes the descriptor that it replaces, and duplicates share the offloaded socket.")            \
	X(INT, mtu, "VMA_MTU", "MTU", 0, SAME, SAME, 68, 9000, MTU,                                                    \
	  "Packets that are offloaded are not larger. TCP segments follow, and the kernel sends UDP datagrams that need "\
	  "more. 0: what interface and route say.")                                                                    \
	X(INT, mss, "VMA_MSS", "MSS", 0, SAME, SAME, 0, 32767, MSS,                                                    \
	  "What TCP_MAXSEG is of a socket that does not set it: at most so many bytes of data per segment. Less than " \
	  "88 counts as 88. 0: what the path takes.")                                                                  \
	X(ENUM, tcp_cc_algo, "VMA_TCP_CC_ALGO", "TCP CC Algorithm", 0, SAME, SAME, 0, 0, TCP_CC,                       \
	  "Congestion control of TCP connections that do not set TCP_CONGESTION: 0 NewReno, 1 Cubic, 2 none, 3 BBR. "  \
	  "If it is not set: what the kernel would use (net.ipv4.tcp_congestion_control), or Cubic if that is none of "\
	  "these.")                                                                                                    \
	X(BOOL, trigger_dummy_send_getsockname, "VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME",                           \
	  "Trig dummy send getsockname()", 0, SAME, 1, 0, 1, SWITCH,                                                   \
	  "1: getsockname of a connected socket sends a dummy message, so that caches are warm for the next one.")                                               \
	X(ENUM, nic, "VMA_NIC", "NIC backend", VMA_CONF_NIC_AUTO, SAME, SAME, 0, 0, NIC,                               \
	  "How interfaces are reached: auto takes verbs where the interface has such a device, else xdp; none leaves " \
	  "all to the kernel.")                                                                                        \
	X(BOOL, mlx5_direct, "VMA_MLX5_DIRECT", "mlx5 direct", 0, SAME, SAME, 0, 1, SWITCH,                            \
	  "The library drives the queues of an mlx5 card itself, without a call of libibverbs for each packet. It has "\
	  "been tried on a model of such a card only (docs/verbs.md).")                                                \
	X(ENUM, tso, "VMA_TSO", "TSO", VMA_CONF_AUTO, SAME, SAME, 0, 0, AUTO,                                          \
	  "A card cuts large sends of TCP into segments (verbs). 1: if it can. auto: if it can, and the interface does "\
	  "the same for the kernel (ethtool -k IF, tcp-segmentation-offload).")                                                             \
	Y(NO_MEANING, ENUM, lro, "VMA_LRO", "LRO", VMA_CONF_AUTO, SAME, SAME, 0, 0, AUTO,                              \
	  "Queue pairs for raw packets get each segment as it came. Those of a connection that came together are "     \
	  "taken as one by software (VMA_GRO_STREAMS_MAX).")                                                           \
	X(INT, tcp_send_buffer_size, "VMA_TCP_SEND_BUFFER_SIZE", "TCP send buffer size", 1048576, SAME, SAME, 1,       \
	  INT32_MAX, SEND_BUFFER,                                                                                      \
	  "Bytes that a TCP connection without SO_SNDBUF takes for sending. Less than 4608 counts as 4608. If it is "  \
	  "not set, the buffer grows with the window, as the kernel's (net.ipv4.tcp_wmem).")                           \
	X(INT, tx_buf_size, "VMA_TX_BUF_SIZE", "Tx buffer size", 0, SAME, SAME, 68, 65280, TX_BUF_SIZE,                \
	  "What a TCP connection is to send lies in buffers of so many bytes. Less than the interface's MTU counts as "\
	  "the MTU. 0: 0.5 to 64 KB, as much as the connection has to send.")                                          \
	X(ENUM, skip_poll_in_rx, "VMA_SKIP_POLL_IN_RX", "Skip CQ polling in rx", 0, SAME, SAME, 0, 0, SKIP_POLL,       \
	  "A receive of TCP takes what is queued, and looks for packets only while it waits: 1 always, 2 if the socket " \
	  "is in an epoll set.")                                                                                       \
	X(ENUM, multilock, "VMA_MULTILOCK", "Multi lock type", 0, SAME, SAME, 0, 0, MULTILOCK,                         \
	  "What a control call does that must wait for another thread, if VMA_THREAD_MODE is 1: "                      \
	  "0 spin and then sleep, 1 sleep at once.")                                                                   \
	X(BOOL, tcp_2t_rules, "VMA_TCP_2T_RULES", "TCP 2T rules", 0, SAME, SAME, 0, 1, SWITCH,                         \
	  "A connection that the program makes stays with the flow of its local address and block of ports, if it "    \
	  "began there. Else it gets a flow of its own when it has lived for 50 to 100 ms. Over verbs that flow is "   \
	  "all TCP of the local address, which the program has to bind its sockets to. The kernel's connections of "   \
	  "the address then come through the program, so an address for the program alone is best.")                   \
	Y(SUPERSEDED, BOOL, rx_cq_wait_ctrl, "VMA_RX_CQ_WAIT_CTRL", "CQ wait control", 0, SAME, SAME, 0, 1, SWITCH,    \
	  "A thread waits for a ring's descriptor only while it sleeps; of the threads that sleep for a ring only one "\
	  "does so, and it wakes those that packets have come for.")                                                   \
	Y(SUPERSEDED, INT, nginx_workers_num, "VMA_NGINX_WORKERS_NUM", "Nginx workers", 0, SAME, SAME, 0, 1024, PLAIN, \
	  "Workers of nginx, and of every other server, are found when they accept. Each gets its share of new "       \
	  "connections, however many there are.")
/* clang-format on */

#endif
