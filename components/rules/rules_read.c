/*
 * rules_read.c - a file's text, in a mapping.
 *
 * The file is opened without waiting, so that a FIFO does not stop the program. Its size is not trusted: it may grow,
 * and files of /proc have none.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/rules.h>

static int rules_check_file_type(const struct stat *st)
{
	if (S_ISDIR(st->st_mode))
		return -EISDIR;
	if (!S_ISREG(st->st_mode))
		return -EINVAL;
	return st->st_size > VMA_RULES_FILE_MAX ? -EFBIG : 0;
}

/* As many bytes as there are, up to `room`; -errno. */
static ssize_t read_file_up_to(int fd, char *to, size_t room)
{
	size_t len = 0;

	while (len < room) {
		const ssize_t n = syscall(SYS_read, fd, to + len, room - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	return (ssize_t)len;
}

enum { ROOM = VMA_RULES_FILE_MAX + 1 }; /* a byte more shows that there are too many */

static int rules_read_text_into_mapping(int fd, char **text, size_t *size)
{
	void *const map = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ssize_t len;

	if (map == MAP_FAILED)
		return -ENOMEM;
	len = read_file_up_to(fd, map, ROOM);
	if (len > 0 && len < ROOM) {
		*text = map;
		*size = (size_t)len;
		return 0;
	}
	munmap(map, ROOM);
	return len == ROOM ? -EFBIG : (int)len;
}

int vma_rules_read(const char *path, char **text, size_t *size)
{
	const int saved = errno;
	struct stat st;
	int fd, rc;

	*text = NULL;
	*size = 0;
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0) {
		rc = -errno;
	} else {
		rc = syscall(SYS_fstat, fd, &st) == 0 ? rules_check_file_type(&st) : -errno;
		if (rc == 0)
			rc = rules_read_text_into_mapping(fd, text, size);
		syscall(SYS_close, fd);
	}
	errno = saved;
	return rc;
}

void vma_rules_text_unmap(char *text)
{
	if (text != NULL)
		munmap(text, ROOM);
}
