/*
 * alloc_count - a preload that counts the calls of malloc and the like in a file that others can read at any time.
 *
 *   LD_PRELOAD=alloc_count.so ALLOC_COUNT_FILE=count PROGRAM;  od -An -tu8 count
 *
 * The file holds two 64-bit numbers: calls of the main thread, and of all others (a NIC's own thread looks after the
 * interface every 100 ms, and that is no data path). Built by the script that uses it (e2e/data_path.sh).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* glibc's own names: dlsym would allocate. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t align, size_t size);

static _Atomic uint64_t alloc_counters_before_mapping[2];
static _Atomic uint64_t *_Atomic alloc_counters = alloc_counters_before_mapping;
static __thread int other __attribute__((tls_model("initial-exec"))); /* 0 not known yet, 1 main, 2 other */

static void __attribute__((constructor)) alloc_count_start(void)
{
	const char *path = getenv("ALLOC_COUNT_FILE");
	int fd = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	_Atomic uint64_t *shared;

	if (fd < 0 || ftruncate(fd, 4096) != 0)
		return;
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (shared == MAP_FAILED)
		return;
	atomic_store(&shared[0], atomic_load(&alloc_counters_before_mapping[0]));
	atomic_store(&alloc_counters, shared);
}

static void alloc_count_call(void)
{
	if (other == 0)
		other = gettid() == getpid() ? 1 : 2;
	atomic_fetch_add(&atomic_load(&alloc_counters)[other - 1], 1);
}

void *malloc(size_t size)
{
	alloc_count_call();
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	alloc_count_call();
	return __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
	alloc_count_call();
	return __libc_realloc(old, size);
}

void *memalign(size_t align, size_t size)
{
	alloc_count_call();
	return __libc_memalign(align, size);
}

void *aligned_alloc(size_t align, size_t size)
{
	alloc_count_call();
	return __libc_memalign(align, size);
}

int posix_memalign(void **out, size_t align, size_t size)
{
	alloc_count_call();
	*out = __libc_memalign(align, size);
	return *out == NULL ? ENOMEM : 0;
}
