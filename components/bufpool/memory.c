/* memory - ordinary memory behind frames, by VMA_MEM_ALLOC_TYPE: huge pages, transparent huge pages, small pages. */
#include <errno.h>
#include <sys/mman.h>

#include <vma/log.h>

#include "bufpool_priv.h"

/* The warning that users of the field know and search for; its text is fixed. */
static COLD void warn_no_huge_pages(void)
{
	static _Atomic bool said;

	if (atomic_exchange_explicit(&said, true, memory_order_relaxed))
		return;
	vma_log_warn("**************************************************************");
	vma_log_warn("* NO IMMEDIATE ACTION NEEDED!");
	vma_log_warn("* Not enough hugepage resources for VMA memory allocation.");
	vma_log_warn("* VMA will continue working with regular memory allocation.");
	vma_log_info("   * Optional:");
	vma_log_info("   *   1. Switch to a different memory allocation type");
	vma_log_info("   *      (VMA_MEM_ALLOC_TYPE!= 2)");
	vma_log_info("   *   2. Restart process after increasing the number of");
	vma_log_info("   *      hugepages resources in the system:");
	vma_log_info("   *      \"echo 1000000000 > /proc/sys/kernel/shmmax\"");
	vma_log_info("   *      \"echo 800 > /proc/sys/vm/nr_hugepages\"");
	vma_log_warn("* Please refer to the memory allocation section in the VMA's");
	vma_log_warn("* User Manual for more information");
	vma_log_warn("***************************************************************");
}

void bufpool_memory_reserve(void *addr, size_t bytes)
{
	void *map = mmap(addr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	/* Without memory for a new mapping the old one stays readable; its pages go back all the same. */
	if (map == MAP_FAILED && madvise(addr, bytes, MADV_DONTNEED) != 0)
		vma_log_debug("bufpool: %zu bytes at %p could not be given back (errno %d)", bytes, addr, errno);
}

/*
 * Huge pages are taken elsewhere and then moved: mmap(MAP_FIXED | MAP_HUGETLB) may fail after it has removed what was
 * there, and another thread's mmap could land in the hole.
 */
static int map_huge(void *addr, size_t bytes)
{
	void *map;

	if (((uintptr_t)addr | bytes) & (HUGE_PAGE - 1))
		return -EINVAL;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (map == MAP_FAILED)
		return -errno;
	if (mremap(map, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, addr) == MAP_FAILED) {
		int err = errno;
		munmap(map, bytes);
		return -err;
	}
	return 0;
}

int bufpool_memory_map(void *addr, size_t bytes, enum vma_mem_alloc_type type)
{
	int rc = type == VMA_MEM_HUGE ? map_huge(addr, bytes) : -EINVAL;

	if (rc == 0)
		return 0;
	if (rc != -EINVAL) /* that is: less than a huge page is wanted, which says nothing about how many there are */
		warn_no_huge_pages();
	if (mmap(addr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
		bufpool_memory_reserve(addr, bytes);
		return -ENOMEM;
	}
	/* A refusal means small pages, which is what VMA_MEM_ALLOC_TYPE 1 and 2 fall back to. */
	if (type != VMA_MEM_ANON && madvise(addr, bytes, MADV_HUGEPAGE) != 0)
		vma_log_debug("bufpool: no transparent huge pages (errno %d), using small ones", errno);
	return 0;
}
