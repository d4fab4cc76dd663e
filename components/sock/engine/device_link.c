/* device_link - whether an interface can be offloaded, by what the kernel says of it. */
#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>

#include <vma/sock_engine.h>

int vma_device_check_link(const struct vma_conf *conf, const struct vma_net_link *link, const char **why)
{
	*why = "";
	if ((link->flags & IFF_LOOPBACK) != 0)
		*why = "it is the loopback interface";
	else if (conf->nic == VMA_CONF_NIC_NONE)
		*why = "VMA_NIC is none";
	else if (link->hw_type != ARPHRD_ETHER)
		*why = "it is not Ethernet";
	else if (link->vlan != 0)
		*why = "it is a VLAN interface";
	if (**why != '\0')
		return -EOPNOTSUPP;
	if ((link->flags & IFF_UP) != 0)
		return 0;
	*why = "it is down";
	return -ENETDOWN;
}
