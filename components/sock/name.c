/* name - an address that is given to the application, whose pointers may be anything. */
#include <errno.h>

#include <vma/sock_thread.h>

int vma_copy_name(const void *own, socklen_t own_len, void *addr, socklen_t *len)
{
	socklen_t room;

	if (vma_copy(&room, len, sizeof(room)) != 0)
		return -EFAULT;
	if ((int)room < 0)
		return -EINVAL;
	if (room > own_len)
		room = own_len;
	if (room > 0 && vma_copy(addr, own, room) != 0)
		return -EFAULT;
	return vma_copy(len, &own_len, sizeof(own_len));
}
