/*
 * libbpf - the functions of libbpf that libvma.so uses, found in the shared library at the first call.
 *
 * Only a process that owns an interface itself calls them; the clients of a vmad never do. If libvma.so needed
 * libbpf.so.1, that would bring libelf and libz along. Each process that is executed would pay for mapping and
 * relocating the three, and each fork for copying them. Without the library the calls fail with ENOSYS.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <vma/log.h>

/* X(type, name, (parameters), (arguments), what a call returns without the library) */
#define LIBBPF_CALLS(X)                                                                                                \
	X(int, bpf_link_create,                                                                                        \
	  (int prog_fd, int target_fd, enum bpf_attach_type type, const struct bpf_link_create_opts *opts),            \
	  (prog_fd, target_fd, type, opts), -ENOSYS)                                                                   \
	X(int, bpf_link_detach, (int link_fd), (link_fd), -ENOSYS)                                                     \
	X(int, bpf_map__fd, (const struct bpf_map *map), (map), -ENOSYS)                                               \
	X(int, bpf_map__set_max_entries, (struct bpf_map * map, __u32 entries), (map, entries), -ENOSYS)               \
	X(int, bpf_map_delete_elem, (int fd, const void *key), (fd, key), -ENOSYS)                                     \
	X(int, bpf_map_lookup_elem, (int fd, const void *key, void *value), (fd, key, value), -ENOSYS)                 \
	X(int, bpf_map_update_elem, (int fd, const void *key, const void *value, __u64 flags),                         \
	  (fd, key, value, flags), -ENOSYS)                                                                            \
	X(int, bpf_object__load_skeleton, (struct bpf_object_skeleton * skeleton), (skeleton), -ENOSYS)                \
	X(int, bpf_object__open_skeleton,                                                                              \
	  (struct bpf_object_skeleton * skeleton, const struct bpf_object_open_opts *opts), (skeleton, opts), -ENOSYS) \
	X(int, bpf_program__fd, (const struct bpf_program *program), (program), -ENOSYS)                               \
	X(__u32, bpf_program__flags, (const struct bpf_program *program), (program), 0)                                \
	X(int, bpf_program__set_flags, (struct bpf_program * program, __u32 flags), (program, flags), -ENOSYS)         \
	X(libbpf_print_fn_t, libbpf_set_print, (libbpf_print_fn_t print), (print), NULL)                               \
	X(struct ring_buffer *, ring_buffer__new,                                                                      \
	  (int map_fd, ring_buffer_sample_fn sample, void *arg, const struct ring_buffer_opts *opts),                  \
	  (map_fd, sample, arg, opts), NULL)                                                                           \
	X(int, ring_buffer__epoll_fd, (const struct ring_buffer *buffer), (buffer), -ENOSYS)                           \
	X(int, ring_buffer__consume, (struct ring_buffer * buffer), (buffer), -ENOSYS)

/* The name of the library is that of its binary interface, which the headers of this build describe. */
static void *libbpf_symbol(const char *name)
{
	void *library = dlopen("libbpf.so.1", RTLD_NOW | RTLD_LOCAL);

	if (library == NULL)
		vma_log_once(VMA_LOG_WARN, "this process cannot own an interface: %s", dlerror());
	return library != NULL ? dlsym(library, name) : NULL; /* it stays open */
}

/* Threads that come at the same time find the same address. */
#define X(type, name, parameters, arguments, without)                                                                  \
	type name parameters                                                                                           \
	{                                                                                                              \
		static void *_Atomic known;                                                                            \
		void *found = atomic_load(&known);                                                                     \
                                                                                                                       \
		if (found == NULL)                                                                                     \
			atomic_store(&known, found = libbpf_symbol(#name));                                            \
		if (found == NULL) {                                                                                   \
			errno = ENOSYS;                                                                                \
			return without;                                                                                \
		}                                                                                                      \
		return ((type(*) parameters)found)arguments;                                                           \
	}
LIBBPF_CALLS(X)
#undef X

/* Both are given what the library has made, or NULL. */
void bpf_object__destroy_skeleton(struct bpf_object_skeleton *skeleton)
{
	void (*found)(struct bpf_object_skeleton *) = libbpf_symbol("bpf_object__destroy_skeleton");

	if (found != NULL)
		found(skeleton);
}

void ring_buffer__free(struct ring_buffer *buffer)
{
	void (*found)(struct ring_buffer *) = buffer != NULL ? libbpf_symbol("ring_buffer__free") : NULL;

	if (found != NULL)
		found(buffer);
}
