/*
 * rules - transport rules (libvma.conf): which sockets are offloaded, and which are the kernel's, by role and names.
 *
 *   file ── vma_rules_read ──> text ── vma_rules_parse, for one program and ID ──> rules ── vma_rules_match ──> a rule
 *
 *   file       = [BOM] { line }
 *   line       = [statement] ["#" comment]
 *   statement  = "application-id" word word            the program's name, with * and ?; and its ID, or *
 *              | "use" transport role name [":" name]  the second name: of tcp_client and udp_connect only
 *              | "log" ...                             skipped
 *   transport  = "vma" | "xlio" | "os"
 *   name       = address ":" ports
 *   address    = "*" | a.b.c.d ["/" length]
 *   ports      = "*" | number ["-" number]
 *
 * A word may stand in double quotes. Keywords may be written in any case. A statement that is wrong is told with line
 * and column, and is left out; all others hold. If it is an application-id, the statements up to the next one hold for
 * no program: else they would hold for the wrong one.
 *
 * The text comes from outside: any bytes may be in it. It is at most VMA_RULES_FILE_MAX long.
 *
 * Threads: one thread parses. Then the rules are constant, and any thread may match. A forked child has them, too.
 * Progress: no locks. vma_rules_read waits for the file's disk, and never for another process.
 * Memory: mappings of its own, as the program's allocator may not be called everywhere. No interposed function of the C
 *         library is called.
 * Example: test/test_parse.c.
 */
#ifndef VMA_RULES_H
#define VMA_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VMA_RULES_FILE_MAX (1 << 20) /* bytes */

/* X(NAME, keyword, names): names: of the peer (remote) or of the socket itself (local), in their order. */
#define VMA_RULES_ROLES(X)                                                                                             \
	X(TCP_SERVER, "tcp_server", LOCAL)                                                                             \
	X(TCP_CLIENT, "tcp_client", REMOTE_LOCAL)                                                                      \
	X(UDP_RECEIVER, "udp_receiver", LOCAL)                                                                         \
	X(UDP_SENDER, "udp_sender", REMOTE)                                                                            \
	X(UDP_CONNECT, "udp_connect", REMOTE_LOCAL)
enum vma_rules_role {
#define X(name, ...) VMA_RULES_##name,
	VMA_RULES_ROLES(X)
#undef X
	        VMA_RULES_ROLE_COUNT
};
const char *vma_rules_role_keyword(enum vma_rules_role role);
/* Any case; -EINVAL. */
int vma_rules_role_parse(const char *keyword, enum vma_rules_role *role);
/* How many names a statement of this role may have: 1 or 2. */
unsigned vma_rules_role_address_count(enum vma_rules_role role);

/* An IPv4 address and a port, both in host order. */
struct vma_rules_name {
	uint32_t address;
	uint16_t port;
};

/* The names that match: (address & mask) == address, and the port in between, ends included. */
struct vma_rules_range {
	uint32_t address, mask;
	uint32_t first_port, last_port; /* up to 65536, which is no port */
};

/* In place of a line, with its number from 1 on: a rule that was added at run time. A file has no such lines. */
#define VMA_RULES_ADDED (1U << 31)
_Static_assert(VMA_RULES_FILE_MAX < VMA_RULES_ADDED, "a byte is a line at most");

struct vma_rule {
	struct vma_rules_range names[2]; /* the second one is any name where the statement has none */
	uint32_t line;                   /* or VMA_RULES_ADDED */
	uint8_t role;                    /* enum vma_rules_role */
	bool by_os;                      /* "os" */
};

struct vma_rules {
	size_t bytes; /* of the mapping */
	uint32_t count;
	uint32_t os_roles; /* a bit for each role that has a rule with "os": else nothing need be looked for */
	char file[256];    /* its name, for messages; a longer one has lost its beginning */
	struct vma_rule at[];
};

/* What a parse has to tell: an error is a statement that is left out. */
struct vma_rules_message {
	bool is_error;
	uint32_t line, column; /* from 1; the column counts bytes */
	const char *text;      /* valid during the call */
};

struct vma_rules_attr {
	const char *file;    /* its name, for messages */
	const char *program; /* its name without a path; NULL: every application-id is left out */
	const char *id;      /* VMA_APPLICATION_ID */
	void (*tell)(void *arg, const struct vma_rules_message *message); /* NULL: nobody hears */
	void *arg;
};

/*
 * The file's text, *size bytes, for vma_rules_text_unmap. 0; -errno of open or read; -EISDIR a directory;
 * -EINVAL no regular file (a FIFO is not waited for); -EFBIG longer than VMA_RULES_FILE_MAX. An empty file has no
 * mapping: *text is NULL.
 */
int vma_rules_read(const char *path, char **text, size_t *size);
void vma_rules_text_unmap(char *text); /* NULL is fine */

/* What holds for the program. The number of errors, each of which has been told; -ENOMEM, -EFBIG: *out is NULL. */
int vma_rules_parse(const struct vma_rules_attr *attr, const char *text, size_t size, struct vma_rules **out);
/*
 * One more rule, which goes before those of `old` (NULL: there are none): a single statement `use`, whose line is
 * VMA_RULES_ADDED and one more than how many were added before. 0; -EINVAL: it is none, or more than one (attr's tell
 * hears why); -ENOMEM. `old` stays as it is.
 */
int vma_rules_prepend(const struct vma_rules_attr *attr, const struct vma_rules *old, const char *line,
                      struct vma_rules **out);
void vma_rules_destroy(struct vma_rules *rules); /* NULL is fine */

/* The first rule of this role that the names match; NULL: none. `second` is not looked at where the role has one name.
 * */
const struct vma_rule *vma_rules_match(const struct vma_rules *rules, enum vma_rules_role role,
                                       const struct vma_rules_name *first, const struct vma_rules_name *second);

/* Whether a rule may leave something of this role to the kernel. rules NULL: there are none. */
static inline bool vma_rules_may_leave_to_os(const struct vma_rules *rules, enum vma_rules_role role)
{
	return __builtin_expect(rules != NULL, 0) && (rules->os_roles & 1U << role) != 0;
}

#endif
