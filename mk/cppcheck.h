/* What cppcheck, which does not read system headers, must know of their macros. Included before every file. */
#define assert_non_null(p)                                                                                             \
	if (!(p))                                                                                                      \
	abort()
#define LIBBPF_OPTS(type, name, ...) struct type name = {0}
