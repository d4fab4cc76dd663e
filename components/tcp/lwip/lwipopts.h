/*
 * lwipopts - what is built of lwIP: TCP's state machine over IPv4, without timers, checksums, memory or IP of its own.
 */
#ifndef VMA_LWIPOPTS_H
#define VMA_LWIPOPTS_H

#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_TIMERS 0
#define LWIP_NETCONN 0
#define LWIP_SOCKET 0
#define LWIP_STATS 0

#define LWIP_IPV4 1
#define LWIP_IPV6 0
#define LWIP_ARP 0
#define LWIP_ETHERNET 0
#define LWIP_ICMP 0
#define LWIP_RAW 0
#define LWIP_UDP 0
#define IP_FRAG 0
#define IP_REASSEMBLY 0

/* Memory is the port's (objects.c). */
#define MEM_ALIGNMENT 8
#define MEM_LIBC_MALLOC 1
#define MEMP_MEM_MALLOC 1
#define LWIP_SUPPORT_CUSTOM_PBUF 1
#define PBUF_LINK_HLEN 0
#define PBUF_LINK_ENCAPSULATION_HLEN 0

/* The ring has checked what comes; tx/output.c sums up what goes. */
#define CHECKSUM_GEN_IP 0
#define CHECKSUM_GEN_TCP 0
#define CHECKSUM_CHECK_IP 0
#define CHECKSUM_CHECK_TCP 0
#define LWIP_CHECKSUM_ON_COPY 0

#define LWIP_TCP 1
#define LWIP_CALLBACK_API 1
#define TCP_LISTEN_BACKLOG 0 /* the listener's own, see listener.c */
#define TCP_QUEUE_OOSEQ 1
#define PBUF_POOL_FREE_OOSEQ 0
#define LWIP_TCP_SACK_OUT 1
#define LWIP_TCP_MAX_SACK_NUM 4
#define LWIP_TCP_TIMESTAMPS 1
#define LWIP_WND_SCALE 1
#define TCP_RCV_SCALE 7
#define TCP_WND 65535U /* until pcb->rcv_wnd_max says otherwise */
#define TCP_MSS 65495  /* of the largest IPv4 packet; each path's MTU is what counts */
#define TCP_CALCULATE_EFF_SEND_MSS 1
#define TCP_OVERSIZE 0 /* data is not copied */
#define TCP_SND_BUF (64U << 20)
#define TCP_SND_QUEUELEN 65532 /* pbufs, of 16 bits in lwIP */
#define TCP_SNDLOWAT 1
#define TCP_SNDQUEUELOWAT 1
#define LWIP_TCP_KEEPALIVE 0

#define LWIP_HOOK_FILENAME <vma_lwip_hooks.h>

#endif
