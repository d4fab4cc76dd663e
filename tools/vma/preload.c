/* preload - see preload.h. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "preload.h"

#define SEPARATORS " :" /* as the loader splits the list */
#define MULTIARCH_PLACE "/../lib/" VMA_MULTIARCH

int preload_find_library(char *path, size_t size)
{
	/* Of a build tree, and below the PREFIX of an installed one. */
	static const char *const places[] = {"/..", MULTIARCH_PLACE, "/../lib64", "/../lib"};
	char own[PATH_MAX];
	const ssize_t len = readlink("/proc/self/exe", own, sizeof(own) - 1);
	char *slash;

	if (len < 0)
		return -errno;
	own[len] = '\0';
	slash = strrchr(own, '/');
	if (slash != NULL)
		*slash = '\0';
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char name[PATH_MAX + 64], whole[PATH_MAX];

		snprintf(name, sizeof(name), "%s%s/libvma.so", own, places[i]);
		if (access(name, R_OK) < 0 || realpath(name, whole) == NULL)
			continue;
		return (size_t)snprintf(path, size, "%s", whole) < size ? 0 : -ENAMETOOLONG;
	}
	return -ENOENT;
}

static bool preload_entry_is_libvma(const char *entry, size_t len)
{
	static const char *const names[] = {"libvma.so", "libvma-debug.so"};
	const char *slash = memrchr(entry, '/', len);
	const char *name = slash != NULL ? slash + 1 : entry;

	len -= (size_t)(name - entry);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
			return true;
	return false;
}

int preload_list_add_library(const char *list, const char *library, char *out, size_t size)
{
	size_t used = 0;

	if (library[strcspn(library, SEPARATORS)] != '\0')
		return -EINVAL;
	for (const char *entry = list != NULL ? list : ""; *entry != '\0';) {
		const size_t len = strcspn(entry, SEPARATORS);

		if (len > 0 && !preload_entry_is_libvma(entry, len)) {
			if (used + len + 1 >= size)
				return -E2BIG;
			memcpy(out + used, entry, len);
			used += len;
			out[used++] = ':';
		}
		entry += len;
		entry += strspn(entry, SEPARATORS);
	}
	return used + strlen(library) < size ? (strcpy(out + used, library), 0) : -E2BIG;
}

static bool is_executable_regular_file(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

int preload_find_program(const char *name, char *path, size_t size)
{
	const char *dirs = getenv("PATH");

	if (strchr(name, '/') != NULL)
		return (size_t)snprintf(path, size, "%s", name) < size && is_executable_regular_file(path) ? 0
		                                                                                           : -ENOENT;
	for (dirs = dirs != NULL ? dirs : "/bin:/usr/bin";; dirs++) {
		const size_t len = strcspn(dirs, ":");
		const int n = snprintf(path, size, "%.*s%s%s", (int)len, dirs, len > 0 ? "/" : "", name);

		if (n > 0 && (size_t)n < size && is_executable_regular_file(path))
			return 0;
		dirs += len;
		if (*dirs == '\0')
			return -ENOENT;
	}
}

/* As the kernel decides about AT_SECURE: does the program get rights that this user has not? */
static const char *reason_program_raises_privileges(int fd, const struct stat *st)
{
	struct statvfs fs;

	if (fstatvfs(fd, &fs) == 0 && (fs.f_flag & ST_NOSUID) != 0)
		return NULL;
	if ((st->st_mode & S_ISUID) != 0 && st->st_uid != getuid())
		return "is set-user-ID";
	if ((st->st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st->st_gid != getgid())
		return "is set-group-ID";
	if (getuid() != 0 && fgetxattr(fd, "security.capability", NULL, 0) > 0)
		return "has file capabilities";
	return NULL;
}

/* Whether the program header at `at` (of either word size: the type comes first) asks for a loader. */
static bool program_header_is_interp(int fd, off_t at)
{
	uint32_t type;

	return pread(fd, &type, sizeof(type), at) == sizeof(type) && type == PT_INTERP;
}

static const char *reason_program_has_no_loader(int fd)
{
	Elf64_Ehdr head;

	if (pread(fd, &head, sizeof(head), 0) != sizeof(head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
		return NULL; /* a script, for example */
	if (head.e_ident[EI_CLASS] != ELFCLASS64)
		return "is a 32-bit program";
	for (unsigned i = 0; i < head.e_phnum; i++)
		if (program_header_is_interp(fd, (off_t)(head.e_phoff + (uint64_t)i * head.e_phentsize)))
			return NULL;
	return "is linked statically";
}

const char *preload_refusal_reason(const char *program)
{
	const char *why = NULL;
	struct stat st;
	int fd = open(program, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return NULL; /* it may be executed all the same, and nothing is known */
	if (fstat(fd, &st) == 0)
		why = reason_program_raises_privileges(fd, &st);
	if (why == NULL)
		why = reason_program_has_no_loader(fd);
	close(fd);
	return why;
}
