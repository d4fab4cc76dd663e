/* Registered memory. The card touches a program's memory here and nowhere else, and only what a key covers. */
#include "card.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/uio.h>

/* True if the program has all of it mapped, and may write to it if `writes`. */
static bool memory_is_mapped(pid_t pid, uint64_t addr, uint64_t length, bool writes)
{
	uint64_t begin, end, at = addr;
	char path[64], line[512], rights[8];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	if (!maps)
		return false;
	while (at < addr + length && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &begin, &end, rights) != 3 || end <= at)
			continue;
		if (begin > at || rights[0] != 'r' || (writes && rights[1] != 'w'))
			break;
		at = end;
	}
	fclose(maps);
	return at >= addr + length;
}

int memory_register_region(struct card_client *client, const struct card_request *request, uint32_t *lkey)
{
	uint32_t access = request->mr.access, slot;
	const uint32_t writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	const uint32_t known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED |
	                       IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE | writes;
	struct card_region *region;

	if (card.faults.registration_error)
		return card.faults.registration_error;
	if (request->mr.pd >= CARD_MAX_PDS || !client->pds[request->mr.pd])
		return EINVAL;
	if (access & ~known)
		return EOPNOTSUPP;
	if ((access & writes) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	if (request->mr.length == 0 || request->mr.addr + request->mr.length < request->mr.addr)
		return EINVAL;
	if (!memory_is_mapped(client->pid, request->mr.addr, request->mr.length, access & IBV_ACCESS_LOCAL_WRITE))
		return EFAULT;
	for (slot = 0; slot < CARD_MAX_MRS && client->regions[slot].lkey; slot++)
		;
	if (slot == CARD_MAX_MRS)
		return ENOMEM;
	region = &client->regions[slot];
	/* No two registrations of a context have the same key soon after each other. */
	client->region_generation = client->region_generation % 0x7ffff + 1;
	*region = (struct card_region){
	        .lkey = client->region_generation * CARD_MAX_MRS + slot,
	        .pd = request->mr.pd,
	        .addr = request->mr.addr,
	        .length = request->mr.length,
	        .iova = access & IBV_ACCESS_ZERO_BASED ? 0 : request->mr.iova,
	        .is_writable = access & IBV_ACCESS_LOCAL_WRITE,
	};
	*lkey = region->lkey;
	return 0;
}

static struct card_region *region_find(struct card_client *client, uint32_t lkey)
{
	struct card_region *region = &client->regions[lkey % CARD_MAX_MRS];

	return lkey != 0 && region->lkey == lkey ? region : NULL;
}

int memory_deregister(struct card_client *client, uint32_t lkey)
{
	struct card_region *region = region_find(client, lkey);

	if (!region)
		return EINVAL;
	region->lkey = 0;
	return 0;
}

bool memory_region_exists_in_pd(const struct card_client *client, uint32_t pd)
{
	for (int i = 0; i < CARD_MAX_MRS; i++)
		if (client->regions[i].lkey && client->regions[i].pd == pd)
			return true;
	return false;
}

/* One entry of a list as a range of the program's memory. */
static int sge_find_program_memory(struct card_qp *qp, const struct card_sge *sge, bool writes, struct iovec *range)
{
	struct card_region *region = region_find(qp->client, sge->lkey);
	const char *why = NULL;

	if (!region)
		why = "no memory is registered under this key";
	else if (region->pd != qp->pd)
		why = "the memory is of another protection domain";
	else if (sge->addr < region->iova || sge->addr - region->iova > region->length ||
	         sge->length > region->length - (sge->addr - region->iova))
		why = "it is outside the registered memory";
	else if (writes && !region->is_writable)
		why = "the memory is registered without IBV_ACCESS_LOCAL_WRITE";
	if (why) {
		card_client_report_violation(
		        qp->client, "queue pair 0x%x: %s of %u bytes at 0x%" PRIx64 ", key 0x%x: %s", qp->number,
		        writes ? "receive" : "send", sge->length, sge->addr, sge->lkey, why);
		return IBV_WC_LOC_PROT_ERR;
	}
	range->iov_base = (void *)(uintptr_t)(region->addr + (sge->addr - region->iova));
	range->iov_len = sge->length;
	return 0;
}

/* A list of no bytes asks the kernel for nothing. */
static int memory_copy_from_or_to_program(struct card_qp *qp, const struct iovec *ranges, int n, void *ours, size_t len,
                                          bool writes)
{
	struct iovec local = {.iov_base = ours, .iov_len = len};
	ssize_t done;

	if (len == 0)
		return 0;
	if (writes)
		done = process_vm_writev(qp->client->pid, &local, 1, ranges, (unsigned long)n, 0);
	else
		done = process_vm_readv(qp->client->pid, &local, 1, ranges, (unsigned long)n, 0);
	if (done == (ssize_t)len)
		return 0;
	if (done < 0 && errno == ESRCH) /* it has ended, and its objects are about to */
		return IBV_WC_LOC_PROT_ERR;
	card_client_report_violation(qp->client, "queue pair 0x%x: registered memory is no longer mapped (%s)",
	                             qp->number, done < 0 ? strerror(errno) : "in part");
	return IBV_WC_LOC_PROT_ERR;
}

int memory_read_frame_from_program(struct card_qp *qp, const struct card_wqe *wqe, uint8_t *frame, size_t max,
                                   size_t *len)
{
	struct iovec ranges[CARD_MAX_SGE];
	size_t sum = 0;
	int status;

	for (uint32_t i = 0; i < wqe->num_sge; i++) {
		status = sge_find_program_memory(qp, &wqe->sge[i], false, &ranges[i]);
		if (status)
			return status;
		sum += wqe->sge[i].length;
	}
	*len = sum;
	if (sum > max)
		return 0; /* the caller says what is too long */
	return memory_copy_from_or_to_program(qp, ranges, (int)wqe->num_sge, frame, sum, false);
}

int memory_write_frame_to_program(struct card_qp *qp, const struct card_wqe *wqe, const uint8_t *frame, size_t len)
{
	struct iovec ranges[CARD_MAX_SGE];
	size_t room = 0;
	int status;

	for (uint32_t i = 0; i < wqe->num_sge; i++) {
		status = sge_find_program_memory(qp, &wqe->sge[i], true, &ranges[i]);
		if (status)
			return status;
		room += wqe->sge[i].length;
	}
	if (room < len) {
		card_client_report_violation(qp->client,
		                             "queue pair 0x%x: a frame of %zu bytes came, and %zu were posted",
		                             qp->number, len, room);
		return IBV_WC_LOC_LEN_ERR;
	}
	return memory_copy_from_or_to_program(qp, ranges, (int)wqe->num_sge, (void *)(uintptr_t)frame, len, true);
}
