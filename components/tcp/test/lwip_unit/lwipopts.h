/*
 * lwipopts - the options under which lwIP's own unit tests of TCP run on the adapted source: the sizes and the memory
 * that they count on, and of the component's options those that change nothing which they look at.
 */
#ifndef VMA_LWIP_UNIT_OPTS_H
#define VMA_LWIP_UNIT_OPTS_H

#include "vma_lwip_unit_hooks.h"

/* As lwIP's test/unit/lwipopts.h has them. */
#define LWIP_TESTMODE 1
#define LWIP_CHECKSUM_ON_COPY 1
#define TCP_CHECKSUM_ON_COPY_SANITY_CHECK 1
#define TCP_CHECKSUM_ON_COPY_SANITY_CHECK_FAIL(printfmsg) LWIP_ASSERT("checksum of a copy", 0)
#define SYS_LIGHTWEIGHT_PROT 0
#define MEM_SIZE 16000
#define TCP_SND_QUEUELEN 40
#define MEMP_NUM_TCP_SEG TCP_SND_QUEUELEN
#define TCP_SND_BUF (12 * TCP_MSS)
#define TCP_WND (10 * TCP_MSS)
#define LWIP_WND_SCALE 1
#define TCP_RCV_SCALE 0
#define PBUF_POOL_SIZE 400
#define MIB2_STATS 1
#define LWIP_MEM_ILLEGAL_FREE(msg) /* the tests look at lwip_stats.mem.illegal */

/* The component's. */
#define NO_SYS 1
#define LWIP_NETCONN 0
#define LWIP_SOCKET 0
#define LWIP_IPV4 1
#define LWIP_IPV6 0
#define LWIP_ARP 0
#define LWIP_ETHERNET 0
#define LWIP_RAW 0
#define LWIP_UDP 0
#define IP_FRAG 0
#define IP_REASSEMBLY 0
#define LWIP_CALLBACK_API 1
#define LWIP_TCP_SACK_OUT 1
#define LWIP_TCP_MAX_SACK_NUM 4
#define LWIP_TCP_TIMESTAMPS 1
#define MEM_ALIGNMENT 8

#endif
