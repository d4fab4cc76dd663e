#!/usr/bin/env bash
# The private jemalloc: its own names only, beside libc's malloc, also in a library that dlopen loads.
# seconds: 5
. "$(dirname "$0")/../lib.sh"
archive=$ROOT/build/lib/libvma-je.a

names=$(nm -g --defined-only "$archive" 2>/dev/null | awk 'NF == 3 { print $3 }')
check "vma_je_malloc is exported" grep -qx vma_je_malloc <<<"$names"
check_eq "every global name begins with vma_je_" "$(grep -v '^vma_je_' <<<"$names")" ""
relocations=$(readelf -rW "$archive" 2>/dev/null | awk '$3 ~ /^R_/ { print $3 }' | sort -u)
check "it has relocations to look at" test -n "$relocations"
check_eq "it has no thread-local storage of its own" "$(grep -E 'TPOFF|TLSGD|TLSLD|TLSDESC' <<<"$relocations")" ""

cat >"$WORK/lib.c" <<'END'
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
void *vma_je_malloc(size_t);
void vma_je_free(void *);
int vma_je_mallctl(const char *, void *, size_t *, void *, size_t);
int vma_je_key_create(pthread_key_t *key, void (*end)(void *)) /* components/sock/thread/mem.c */
{
	return pthread_key_create(key, end);
}
/* 0 when blocks of both allocators live side by side and the version is the pinned one. */
int probe(void)
{
	const char *version;
	size_t size = sizeof(version);
	char *ours = vma_je_malloc(100), *libc = strdup("libc's");
	if (!ours || !libc || vma_je_mallctl("version", &version, &size, NULL, 0))
		return 1;
	memset(ours, 1, 100);
	int bad = strncmp(version, "5.3.0-", 6) != 0 || strcmp(libc, "libc's") != 0;
	vma_je_free(ours);
	free(libc);
	return bad;
}
END
cat >"$WORK/main.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	int (*probe)(void) = lib ? (int (*)(void))dlsym(lib, "probe") : NULL;
	if (!probe)
		fprintf(stderr, "%s\n", dlerror());
	return probe ? probe() : 2;
}
END
gcc -shared -fPIC -o "$WORK/lib.so" "$WORK/lib.c" "$archive" -lm -pthread && gcc -o "$WORK/main" "$WORK/main.c"
check "both allocators work side by side in a library loaded by dlopen" "$WORK/main" "$WORK/lib.so"
done_testing
