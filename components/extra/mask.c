/* mask - the functions that work. They do so on every device: none of them asks a device for more than frames. */
#include <vma/extra.h>

#define XTREME                                                                                                         \
	(VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |                               \
	 VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF)

uint64_t vma_extra_mask(void)
{
	return (vma_extra_is_socketxtreme_enabled() ? XTREME : 0) | VMA_EXTRA_API_REGISTER_RECV_CALLBACK |
	       VMA_EXTRA_API_RECVFROM_ZCOPY | VMA_EXTRA_API_FREE_PACKETS | VMA_EXTRA_API_ADD_CONF_RULE |
	       VMA_EXTRA_API_THREAD_OFFLOAD | VMA_EXTRA_API_DUMP_FD_STATS | VMA_EXTRA_API_GET_SOCKET_RINGS_NUM |
	       VMA_EXTRA_API_GET_SOCKET_RINGS_FDS | VMA_EXTRA_API_GET_SOCKET_TX_RING_FD |
	       VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER | VMA_EXTRA_API_ADD_RING_PROFILE | VMA_EXTRA_API_MODIFY_RING;
}
