/*
 * vmad_path - where the program is that owns interfaces: beside the library, else where the system keeps such programs.
 * Nothing in the environment counts, so a program with raised privileges is not led astray.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock_engine.h>

static bool is_executable_file(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && syscall(SYS_faccessat, AT_FDCWD, path, X_OK) == 0;
}

static bool find_vmad_in_directory(const char *directory, const char *below, char *path, size_t size)
{
	int n = snprintf(path, size, "%s%s/vmad", directory, below);

	return n > 0 && (size_t)n < size && is_executable_file(path);
}

/* A build tree has bin/ beside the library, an installed one beside the library's folder or the folder above that. */
static bool find_vmad_beside_library(const char *name, char *path, size_t size)
{
	static const char *const below[] = {"/bin", "/../bin", "/../sbin", "/../../bin", "/../../sbin"};
	char *library = name != NULL ? realpath(name, NULL) : NULL, *slash;
	bool found = false;

	if (library == NULL)
		return false;
	slash = strrchr(library, '/');
	if (slash != NULL) {
		*slash = '\0';
		for (size_t i = 0; i < sizeof(below) / sizeof(below[0]) && !found; i++)
			found = find_vmad_in_directory(library, below[i], path, size);
	}
	free(library);
	return found;
}

void vma_engine_find_vmad(const char *library, char *path, size_t size)
{
	static const char *const usual[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
	                                    "/usr/bin",        "/sbin",          "/bin"};
	bool found = find_vmad_beside_library(library, path, size);

	for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]) && !found; i++)
		found = find_vmad_in_directory(usual[i], "", path, size);
	if (!found)
		path[0] = '\0';
}
