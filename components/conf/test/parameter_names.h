/*
 * parameter_names - the 104 names of the field: label, default and values as its manual has them. They come from
 * the manual and not from the table, which is compared with them.
 */
#ifndef VMA_CONF_TEST_PARAMETER_NAMES_H
#define VMA_CONF_TEST_PARAMETER_NAMES_H

#include <stddef.h>

struct known_parameter {
	const char *name, *label;
	const char *def;     /* as the banner shows it */
	const char *given;   /* a legal value that is not the default, */
	const char *shown;   /* and as the banner shows it */
	const char *latency; /* defaults by VMA_SPEC, as they would be given; NULL: the same */
	const char *multi_ring_latency;
};

/* clang-format off */
static const struct known_parameter known_parameters[] = {
        {"VMA_TRACELEVEL", "Log Level", "INFO", "debug", "DEBUG", NULL, NULL},
        {"VMA_LOG_DETAILS", "Log Details", "0", "1", "1", NULL, NULL},
        {"VMA_LOG_COLORS", "Log Colors", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_LOG_FILE", "Log File", "", "/dev/null", "/dev/null", NULL, NULL},
        {"VMA_STATS_FILE", "Stats File", "", "/tmp/there", "/tmp/there", NULL, NULL},
        {"VMA_STATS_SHMEM_DIR", "Stats shared memory directory", "/tmp/", "/tmp/there", "/tmp/there", NULL, NULL},
        {"VMA_VMAD_NOTIFY_DIR", "VMAD output directory", "/tmp/vma", "/tmp/there", "/tmp/there", NULL, NULL},
        {"VMA_STATS_FD_NUM", "Stats FD Num (max)", "100", "1024", "1024", NULL, NULL},
        {"VMA_CONFIG_FILE", "Conf File", "/etc/libvma.conf", "/no/such.conf", "/no/such.conf", NULL, NULL},
        {"VMA_APPLICATION_ID", "Application ID", "VMA_DEFAULT_APPLICATION_ID", "server", "server", NULL, NULL},
        {"VMA_CPU_USAGE_STATS", "Polling CPU idle usage", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_HANDLE_SIGINTR", "SigIntr Ctrl-C Handle", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_HANDLE_SIGSEGV", "SegFault Backtrace", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_SPEC", "VMA Spec", "none", "latency", "Latency", NULL, NULL},
        {"VMA_RING_ALLOCATION_LOGIC_TX", "Ring allocation logic TX", "0 (Ring per interface)", "10", "10 (Ring per socket)", NULL, "20"},
        {"VMA_RING_ALLOCATION_LOGIC_RX", "Ring allocation logic RX", "0 (Ring per interface)", "31", "31 (Ring per core - attach threads)", NULL, "20"},
        {"VMA_RING_MIGRATION_RATIO_TX", "Ring migration ratio TX", "100", "-1", "-1 (off)", NULL, NULL},
        {"VMA_RING_MIGRATION_RATIO_RX", "Ring migration ratio RX", "100", "7", "7", NULL, NULL},
        {"VMA_RING_LIMIT_PER_INTERFACE", "Ring limit per interface", "0 (no limit)", "77", "77", NULL, NULL},
        {"VMA_RING_DEV_MEM_TX", "Ring On Device Memory TX", "0", "77", "77", "16384", NULL},
        {"VMA_TCP_MAX_SYN_RATE", "TCP max syn rate", "0 (no limit)", "77", "77", NULL, NULL},
        {"VMA_TX_SEGS_TCP", "Tx Mem Segs TCP", "1000000", "77", "77", NULL, NULL},
        {"VMA_TX_BUFS", "Tx Mem Bufs", "200000", "77", "77", NULL, NULL},
        {"VMA_TX_WRE", "Tx QP WRE", "2048", "77", "77", "256", NULL},
        {"VMA_TX_WRE_BATCHING", "Tx QP WRE Batching", "64", "1", "1", "4", NULL},
        {"VMA_TX_MAX_INLINE", "Tx Max QP INLINE", "204", "77", "77", NULL, NULL},
        {"VMA_TX_MC_LOOPBACK", "Tx MC Loopback", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_TX_NONBLOCKED_EAGAINS", "Tx non-blocked eagains", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_TX_PREFETCH_BYTES", "Tx Prefetch Bytes", "256", "77", "77", NULL, NULL},
        {"VMA_RX_BUFS", "Rx Mem Bufs", "200000", "77", "77", NULL, NULL},
        {"VMA_RX_WRE", "Rx QP WRE", "16000", "77", "77", "256", NULL},
        {"VMA_RX_WRE_BATCHING", "Rx QP WRE Batching", "64", "77", "77", "4", NULL},
        {"VMA_RX_BYTES_MIN", "Rx Byte Min Limit", "65536", "77", "77", NULL, NULL},
        {"VMA_RX_POLL", "Rx Poll Loops", "100000", "77", "77", "-1", "-1"},
        {"VMA_RX_POLL_INIT", "Rx Poll Init Loops", "0", "77", "77", NULL, NULL},
        {"VMA_RX_UDP_POLL_OS_RATIO", "Rx UDP Poll OS Ratio", "100", "77", "77", NULL, NULL},
        {"VMA_HW_TS_CONVERSION", "HW TS Conversion", "3", "4", "4", NULL, NULL},
        {"VMA_RX_POLL_YIELD", "Rx Poll Yield", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_RX_PREFETCH_BYTES", "Rx Prefetch Bytes", "256", "77", "77", NULL, NULL},
        {"VMA_RX_PREFETCH_BYTES_BEFORE_POLL", "Rx Prefetch Bytes Before Poll", "0", "77", "77", "256", NULL},
        {"VMA_RX_CQ_DRAIN_RATE_NSEC", "Rx CQ Drain Rate", "Disabled", "77", "77", NULL, NULL},
        {"VMA_RX_POLL_ON_TX_TCP", "Polling Rx on Tx TCP", "Disabled", "1", "Enabled", NULL, "1"},
        {"VMA_RX_SW_CSUM", "Rx SW checksum validation", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_GRO_STREAMS_MAX", "GRO max streams", "32", "77", "77", "0", NULL},
        {"VMA_TCP_3T_RULES", "TCP 3T rules", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_UDP_3T_RULES", "UDP 3T rules", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_ETH_MC_L2_ONLY_RULES", "ETH MC L2 only rules", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_MC_FORCE_FLOWTAG", "Force Flowtag for MC", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_SELECT_POLL", "Select Poll (usec)", "100000", "77", "77", "-1", "-1"},
        {"VMA_SELECT_POLL_OS_FORCE", "Select Poll OS Force", "Disabled", "1", "Enabled", "1", NULL},
        {"VMA_SELECT_POLL_OS_RATIO", "Select Poll OS Ratio", "10", "77", "77", "1", "0"},
        {"VMA_SELECT_SKIP_OS", "Select Skip OS", "4", "77", "77", "1", "0"},
        {"VMA_PROGRESS_ENGINE_INTERVAL", "CQ Drain Interval (msec)", "10", "77", "77", "100", NULL},
        {"VMA_PROGRESS_ENGINE_WCE_MAX", "CQ Drain WCE (max)", "10000", "77", "77", NULL, NULL},
        {"VMA_CQ_MODERATION_ENABLE", "CQ Interrupts Moderation", "Enabled", "0", "Disabled", "0", NULL},
        {"VMA_CQ_MODERATION_COUNT", "CQ Moderation Count", "48", "77", "77", NULL, NULL},
        {"VMA_CQ_MODERATION_PERIOD_USEC", "CQ Moderation Period (usec)", "50", "77", "77", NULL, NULL},
        {"VMA_CQ_AIM_MAX_COUNT", "CQ AIM Max Count", "560", "77", "77", "128", NULL},
        {"VMA_CQ_AIM_MAX_PERIOD_USEC", "CQ AIM Max Period (usec)", "250", "77", "77", NULL, NULL},
        {"VMA_CQ_AIM_INTERVAL_MSEC", "CQ AIM Interval (msec)", "250", "0", "Disabled", "0", NULL},
        {"VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC", "CQ AIM Interrupts Rate (per sec)", "5000", "77", "77", NULL, NULL},
        {"VMA_CQ_POLL_BATCH_MAX", "CQ Poll Batch (max)", "16", "33", "33", NULL, NULL},
        {"VMA_CQ_KEEP_QP_FULL", "CQ Keeps QP Full", "Enabled", "0", "Disabled", "0", NULL},
        {"VMA_QP_COMPENSATION_LEVEL", "QP Compensation Level", "256", "77", "77", NULL, NULL},
        {"VMA_OFFLOADED_SOCKETS", "Offloaded Sockets", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_TIMER_RESOLUTION_MSEC", "Timer Resolution (msec)", "10", "77", "77", NULL, NULL},
        {"VMA_TCP_TIMER_RESOLUTION_MSEC", "TCP Timer Resolution (msec)", "100", "77", "77", NULL, NULL},
        {"VMA_TCP_CTL_THREAD", "TCP control thread", "0 (Disabled)", "2", "2 (With timer)", NULL, NULL},
        {"VMA_TCP_TIMESTAMP_OPTION", "TCP timestamp option", "0", "2", "2", NULL, NULL},
        {"VMA_TCP_NODELAY", "TCP nodelay", "0", "1", "1", "1", NULL},
        {"VMA_TCP_QUICKACK", "TCP quickack", "0", "1", "1", NULL, NULL},
        {"VMA_EXCEPTION_HANDLING", "Exception handling mode", "-1 (just log debug message)", "2", "2 (log error, fail)", NULL, NULL},
        {"VMA_AVOID_SYS_CALLS_ON_TCP_FD", "Avoid sys-calls on tcp fd", "Disabled", "1", "Enabled", "1", NULL},
        {"VMA_ALLOW_PRIVILEGED_SOCK_OPT", "Allow privileged sock opt", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_WAIT_AFTER_JOIN_MSEC", "Delay after join (msec)", "0", "77", "77", NULL, NULL},
        {"VMA_INTERNAL_THREAD_AFFINITY", "Internal Thread Affinity", "-1", "0,4-6", "0,4-6", "0", NULL},
        {"VMA_INTERNAL_THREAD_CPUSET", "Internal Thread Cpuset", "", "/tmp/there", "/tmp/there", NULL, NULL},
        {"VMA_INTERNAL_THREAD_ARM_CQ", "Internal Thread Arm CQ", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING", "Internal Thread TCP Handling", "0 (deferred)", "1", "1 (immediate)", NULL, NULL},
        {"VMA_THREAD_MODE", "Thread mode", "Multi spin lock", "3", "Multi more threads than cores", "0", NULL},
        {"VMA_BUFFER_BATCHING_MODE", "Buffer batching mode", "1 (Batch and reclaim buffers)", "2", "2 (Batch and don't reclaim buffers)", NULL, NULL},
        {"VMA_MEM_ALLOC_TYPE", "Mem Allocate type", "1 (Contig Pages)", "2", "2 (Huge Pages)", "2", "2"},
        {"VMA_NEIGH_UC_ARP_QUATA", "Num of UC ARPs", "3", "77", "77", NULL, NULL},
        {"VMA_NEIGH_UC_ARP_DELAY_MSEC", "UC ARP delay (msec)", "10000", "77", "77", NULL, NULL},
        {"VMA_NEIGH_NUM_ERR_RETRIES", "Num of neigh restart retries", "1", "77", "77", NULL, NULL},
        {"VMA_IPOIB", "IPOIB support", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_SOCKETXTREME", "SocketXtreme mode", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_BF", "BF (Blue Flame)", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_FORK", "fork() support", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_CLOSE_ON_DUP2", "close on dup2()", "Enabled", "0", "Disabled", NULL, NULL},
        {"VMA_MTU", "MTU", "0 (follow actual MTU)", "1400", "1400", NULL, NULL},
        {"VMA_MSS", "MSS", "0 (follow VMA_MTU)", "500", "500", NULL, NULL},
        {"VMA_TCP_CC_ALGO", "TCP CC Algorithm", "0 (LWIP)", "1", "1 (CUBIC)", NULL, NULL},
        {"VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", "Trig dummy send getsockname()", "Disabled", "1", "Enabled", NULL, "1"},
        {"VMA_NIC", "NIC backend", "auto", "none", "none", NULL, NULL},
        {"VMA_TSO", "TSO", "auto", "1", "Enabled", NULL, NULL},
        {"VMA_LRO", "LRO", "auto", "0", "Disabled", NULL, NULL},
        {"VMA_TCP_SEND_BUFFER_SIZE", "TCP send buffer size", "1048576", "7777", "7777", NULL, NULL},
        {"VMA_TX_BUF_SIZE", "Tx buffer size", "0 (from MTU and MSS)", "2048", "2048", NULL, NULL},
        {"VMA_SKIP_POLL_IN_RX", "Skip CQ polling in rx", "Disabled", "2", "2 (in an epoll set)", NULL, NULL},
        {"VMA_MULTILOCK", "Multi lock type", "Spin", "1", "Mutex", NULL, NULL},
        {"VMA_TCP_2T_RULES", "TCP 2T rules", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_RX_CQ_WAIT_CTRL", "CQ wait control", "Disabled", "1", "Enabled", NULL, NULL},
        {"VMA_NGINX_WORKERS_NUM", "Nginx workers", "0", "77", "77", NULL, NULL},
};
/* clang-format on */

/* Other names, as the manual has them. */
static const struct {
	const char *name, *means;
} known_aliases[] = {
        {"VMA_MAX_INLINE", "VMA_TX_MAX_INLINE"},
        {"VMA_CQ_DRAIN_WCE_MAX", "VMA_PROGRESS_ENGINE_WCE_MAX"},
        {"VMA_ALLOW_PRIVILEGED_SOCKET_OPT", "VMA_ALLOW_PRIVILEGED_SOCK_OPT"},
        {"VMA_INTERNAL_THREAD_CPUSSET", "VMA_INTERNAL_THREAD_CPUSET"},
        {"VMA_HUGETBL", "VMA_MEM_ALLOC_TYPE"},
        {"VMA_POLL", "VMA_SOCKETXTREME"},
        {"XLIO_TSO", "VMA_TSO"},
        {"XLIO_LRO", "VMA_LRO"},
        {"XLIO_TCP_SEND_BUFFER_SIZE", "VMA_TCP_SEND_BUFFER_SIZE"},
        {"XLIO_TX_BUFFER_SIZE", "VMA_TX_BUF_SIZE"},
        {"XLIO_TX_BUF_SIZE", "VMA_TX_BUF_SIZE"},
        {"XLIO_SKIP_POLL_IN_RX", "VMA_SKIP_POLL_IN_RX"},
        {"XLIO_MULTILOCK", "VMA_MULTILOCK"},
        {"XLIO_TCP_2T_RULES", "VMA_TCP_2T_RULES"},
        {"XLIO_RX_CQ_WAIT_CTRL", "VMA_RX_CQ_WAIT_CTRL"},
        {"XLIO_NGINX_WORKERS_NUM", "VMA_NGINX_WORKERS_NUM"},
};

#endif
