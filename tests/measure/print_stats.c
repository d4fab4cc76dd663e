/* print_stats FILE: the counters of a running program (vmastat.PID), a line each: TYPE.COUNTER VALUE BLOCK. */
#include <stdio.h>
#include <string.h>

#include <vma/stats_read.h>

static void print_stats_block(enum vma_stats_type type, const char *name, const void *block)
{
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);

	for (size_t i = 0; i < count; i++) {
		const _Atomic uint64_t *counter = (const void *)((const char *)block + fields[i].offset);

		printf("%s.%s %llu %s\n", vma_stats_type_name(type), fields[i].name,
		       (unsigned long long)vma_stats_read_counter(counter), name);
	}
}

int main(int argc, char **argv)
{
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const void *block;
	const char *name;
	size_t cursor = 0;
	int rc;

	if (argc != 2) {
		fprintf(stderr, "usage: print_stats FILE\n");
		return 2;
	}
	rc = vma_stats_view_open(argv[1], &view);
	if (rc < 0) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(-rc));
		return 1;
	}
	while (vma_stats_view_next(view, &cursor, &type, &name, &block))
		print_stats_block(type, name, block);
	vma_stats_view_close(view);
	return 0;
}
