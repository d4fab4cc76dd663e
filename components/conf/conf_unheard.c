/*
 * conf_unheard - parameters of the field that have no effect here, and names that are no parameter: if one is set, the
 * log says so once.
 *
 * If a name gets a row in the table, it leaves this list (test_no_parameter_is_both_obeyed_and_not).
 */
#include <string.h>

#include "conf_priv.h"

const char *const conf_unheard[] = {
        /* not yet */
        "VMA_RING_MIGRATION_RATIO_TX",
        "VMA_RING_MIGRATION_RATIO_RX",
        "VMA_STATS_FILE",
        "VMA_CPU_USAGE_STATS",
        "VMA_HANDLE_SIGINTR",
        "VMA_HANDLE_SIGSEGV",
        "VMA_HW_TS_CONVERSION",
        "VMA_RX_CQ_DRAIN_RATE_NSEC",
        "VMA_RX_POLL_ON_TX_TCP",
        "VMA_SKIP_POLL_IN_RX",
        "VMA_RX_CQ_WAIT_CTRL",
        "VMA_AVOID_SYS_CALLS_ON_TCP_FD",
        "VMA_ALLOW_PRIVILEGED_SOCK_OPT",
        "VMA_ALLOW_PRIVILEGED_SOCKET_OPT",
        "VMA_INTERNAL_THREAD_CPUSET",
        "VMA_INTERNAL_THREAD_CPUSSET",
        "VMA_INTERNAL_THREAD_ARM_CQ",
        "VMA_SOCKETXTREME",
        "VMA_POLL",
        "VMA_MTU",
        "VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME",
        "VMA_TCP_SEND_BUFFER_SIZE",
        "VMA_TX_BUF_SIZE",
        "VMA_NGINX_WORKERS_NUM",
        /* of what there is nothing of here: device memory, inlined sends, hardware rules by kind, a timer's wheel, ...
         */
        "VMA_VMAD_NOTIFY_DIR",
        "VMA_RING_DEV_MEM_TX",
        "VMA_TX_SEGS_TCP",
        "VMA_TX_MAX_INLINE",
        "VMA_MAX_INLINE",
        "VMA_TX_PREFETCH_BYTES",
        "VMA_RX_PREFETCH_BYTES_BEFORE_POLL",
        "VMA_TCP_3T_RULES",
        "VMA_TCP_2T_RULES",
        "VMA_UDP_3T_RULES",
        "VMA_ETH_MC_L2_ONLY_RULES",
        "VMA_MC_FORCE_FLOWTAG",
        "VMA_TIMER_RESOLUTION_MSEC",
        "VMA_TCP_TIMER_RESOLUTION_MSEC",
        "VMA_TCP_CTL_THREAD",
        "VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING",
        "VMA_NEIGH_UC_ARP_QUATA",
        "VMA_NEIGH_UC_ARP_DELAY_MSEC",
        "VMA_NEIGH_NUM_ERR_RETRIES",
        "VMA_IPOIB",
        "VMA_BF",
        "VMA_FORK",
        "VMA_CLOSE_ON_DUP2",
        "VMA_TSO",
        "VMA_LRO",
        "VMA_MULTILOCK",
};
const size_t conf_unheard_count = sizeof(conf_unheard) / sizeof(conf_unheard[0]);

static bool is_param_name(const char *text, size_t len, const char *name)
{
	return strncmp(text, name, len) == 0 && name[len] == '\0';
}

bool conf_knows(const char *name, size_t len)
{
	static const char *const others[] = {CONF_OLD_MEM_ALLOC_TYPE, CONF_OLD_PROGRESS_ENGINE_WCE_MAX};

	for (size_t i = 0; i < conf_param_count; i++)
		if (is_param_name(name, len, conf_params[i].name))
			return true;
	for (size_t i = 0; i < conf_unheard_count; i++)
		if (is_param_name(name, len, conf_unheard[i]))
			return true;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (is_param_name(name, len, others[i]))
			return true;
	return false;
}
