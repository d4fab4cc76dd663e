/*
 * mappings - a provider's mappings of its device, which a forked child does not inherit.
 *
 * A mapping of the device's file (registers, the card's clock) keeps the file open as a descriptor does. With the file
 * the kernel keeps all that the process has in the card. So the rules of a parent that has ended would take the packets
 * of its connections, and nobody would answer, until the child ends too. The child cannot use the mappings anyway. No
 * function of libibverbs names them (ibv_fork_init is about registered memory), so they are found in the process's list
 * of mappings, by the device's path.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <vma/log.h>

#include "../os.h"
#include "verbs.h"

#define LIST_BYTES 4096
#define PATH_FIELD 5 /* START-END RIGHTS OFFSET DEVICE INODE PATH */

/* The path of a line, NULL: it has none. */
static const char *mapping_path(const char *line)
{
	for (int field = 0; field < PATH_FIELD && *line != '\0'; field++) {
		line += strcspn(line, " ");
		line += strspn(line, " ");
	}
	return *line != '\0' ? line : NULL;
}

static bool mapping_is_of_file(const char *line, const char *path)
{
	const char *of = mapping_path(line);

	return of != NULL && strcmp(of, path) == 0;
}

static void mapping_set_dontfork(const char *line)
{
	uintptr_t start, end;

	if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2 &&
	    madvise((void *)start, end - start, MADV_DONTFORK) != 0)
		vma_log_debug("verbs: a mapping stays for forked children: error %d", errno);
}

/* Whole lines of the list; returns how many bytes they were. */
static size_t mappings_take_lines(char *list, size_t bytes, const char *path)
{
	char *line = list, *end;

	while ((end = memchr(line, '\n', bytes - (size_t)(line - list))) != NULL) {
		*end = '\0';
		if (mapping_is_of_file(line, path))
			mapping_set_dontfork(line);
		line = end + 1;
	}
	return (size_t)(line - list);
}

/* A line that is longer than the list's memory has another path: it is left out. */
void verbs_mappings_of_file_set_dontfork(const char *path)
{
	const int fd = os_open("/proc/self/maps", O_RDONLY | O_CLOEXEC), saved = errno;
	char list[LIST_BYTES];
	size_t have = 0, used;
	ssize_t got;

	if (fd < 0) {
		vma_log_debug("verbs: /proc/self/maps: error %d", saved);
		return;
	}
	while ((got = os_read(fd, list + have, sizeof(list) - have)) > 0) {
		have += (size_t)got;
		used = mappings_take_lines(list, have, path);
		have -= used;
		memmove(list, list + used, have);
		if (have == sizeof(list))
			have = 0;
	}
	os_close(fd);
}

void verbs_device_mappings_set_dontfork(const struct verbs_device *device)
{
	char path[sizeof("/dev/infiniband/") + sizeof(device->context->device->dev_name)];

	snprintf(path, sizeof(path), "/dev/infiniband/%s", device->context->device->dev_name);
	verbs_mappings_of_file_set_dontfork(path);
}
