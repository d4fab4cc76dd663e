/*
 * rules_parse.c - the parser: one function for each symbol of the grammar in <vma/rules.h>, which moves `at` behind it.
 * A function that fails has told why, and where; then the line is left, and the next one begins.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "rules_priv.h"

enum {
	SHORTEST = sizeof("use os tcp_server *:*") - 1, /* so many bytes make a rule at least */
	SHOWN_MAX = 40,                                 /* of a word, in a message */
	PORT_LIMIT = 65536,                             /* as documented; there is no such port */
};

struct parser {
	const struct vma_rules_attr *attr;
	const char *at, *line_start, *line_end, *end;
	uint32_t line, errors;
	bool applies;  /* the statements that follow: the last application-id is this program's */
	bool log_told; /* that log is skipped */
	struct vma_rules *out;
	uint32_t room;
};

struct word {
	const char *text;
	size_t len;
};

/* ---- messages ---- */

static void __attribute__((format(printf, 4, 0)))
parser_report_message(struct parser *p, const char *at, bool is_error, const char *fmt, va_list args)
{
	struct vma_rules_message message = {
	        .is_error = is_error, .line = p->line, .column = (uint32_t)(at - p->line_start) + 1};
	char text[256];

	if (p->attr->tell == NULL)
		return;
	vsnprintf(text, sizeof(text), fmt, args);
	message.text = text;
	p->attr->tell(p->attr->arg, &message);
}

/* Always false, for the caller to return. */
static bool __attribute__((format(printf, 3, 4))) parser_fail(struct parser *p, const char *at, const char *fmt, ...)
{
	va_list args;

	p->errors++;
	va_start(args, fmt);
	parser_report_message(p, at, true, fmt, args);
	va_end(args);
	return false;
}

static void __attribute__((format(printf, 3, 4))) parser_note(struct parser *p, const char *at, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	parser_report_message(p, at, false, fmt, args);
	va_end(args);
}

/* A word as a message may show it; returns `out`. */
static const char *word_to_printable_text(const struct word *word, char out[SHOWN_MAX + 4])
{
	const size_t len = word->len < SHOWN_MAX ? word->len : SHOWN_MAX;

	for (size_t i = 0; i < len; i++)
		out[i] = (unsigned char)word->text[i] < ' ' || word->text[i] == 0x7f ? '?' : word->text[i];
	memcpy(out + len, len < word->len ? "..." : "", len < word->len ? 4 : 1);
	return out;
}

/* ---- blanks and words ---- */

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* Of what the line says: the rest is a comment. */
static bool statement_has_ended(const struct parser *p)
{
	return p->at == p->line_end || *p->at == '#';
}

static void skip_blanks(struct parser *p)
{
	while (p->at < p->line_end && is_blank(*p->at))
		p->at++;
}

static struct word take_bare_word(struct parser *p)
{
	struct word word = {.text = p->at};

	while (!statement_has_ended(p) && !is_blank(*p->at))
		p->at++;
	word.len = (size_t)(p->at - word.text);
	return word;
}

static bool parse_quoted_word(struct parser *p, struct word *word)
{
	const char *const quote = p->at;
	const char *const closing = memchr(quote + 1, '"', (size_t)(p->line_end - quote - 1));

	if (closing == NULL)
		return parser_fail(p, quote, "the quote is not closed");
	*word = (struct word){.text = quote + 1, .len = (size_t)(closing - quote - 1)};
	p->at = closing + 1;
	if (!statement_has_ended(p) && !is_blank(*p->at))
		return parser_fail(p, p->at, "a blank is missing after the quote");
	return true;
}

/* `what` is missing if there is none. */
static bool parse_word(struct parser *p, const char *what, struct word *word)
{
	skip_blanks(p);
	if (statement_has_ended(p))
		return parser_fail(p, p->at, "%s is missing", what);
	if (*p->at == '"')
		return parse_quoted_word(p, word);
	*word = take_bare_word(p);
	return true;
}

static bool parse_expect_end_of_statement(struct parser *p)
{
	char shown[SHOWN_MAX + 4];
	const char *at;
	struct word word;

	skip_blanks(p);
	if (statement_has_ended(p))
		return true;
	at = p->at;
	word = take_bare_word(p);
	return parser_fail(p, at, "'%s' is too much", word_to_printable_text(&word, shown));
}

/* ---- names ---- */

static bool take_char(struct parser *p, char c)
{
	if (p->at == p->line_end || *p->at != c)
		return false;
	p->at++;
	return true;
}

/* At most `limit`, else false and `at` stays; `what` says what belongs here. */
static bool parse_number(struct parser *p, uint32_t limit, const char *what, uint32_t *number)
{
	const char *at = p->at;
	uint64_t value = 0;

	while (at < p->line_end && *at >= '0' && *at <= '9' && value <= limit)
		value = value * 10 + (uint64_t)(*at++ - '0');
	if (at == p->at)
		return parser_fail(p, at, "%s is missing: a number from 0 to %u", what, limit);
	if (value > limit)
		return parser_fail(p, p->at, "%s is a number from 0 to %u", what, limit);
	p->at = at;
	*number = (uint32_t)value;
	return true;
}

static bool parse_address(struct parser *p, struct vma_rules_range *range)
{
	uint32_t part, length = 32;

	range->address = range->mask = 0;
	if (take_char(p, '*'))
		return true;
	if (p->at == p->line_end || *p->at < '0' || *p->at > '9')
		return parser_fail(p, p->at, "an address is missing: a.b.c.d, a.b.c.d/length or *");
	for (unsigned i = 0; i < 4; i++) {
		if (i > 0 && !take_char(p, '.'))
			return parser_fail(p, p->at, "an IPv4 address has four parts: a.b.c.d");
		if (!parse_number(p, 255, "a part of an address", &part))
			return false;
		range->address = range->address << 8 | part;
	}
	if (take_char(p, '/') && !parse_number(p, 32, "a prefix length", &length))
		return false;
	range->mask = length == 0 ? 0 : UINT32_MAX << (32 - length);
	range->address &= range->mask;
	return true;
}

static bool parse_ports(struct parser *p, struct vma_rules_range *range)
{
	const char *const at = p->at;

	range->first_port = 0;
	range->last_port = PORT_LIMIT;
	if (take_char(p, '*'))
		return true;
	if (!parse_number(p, PORT_LIMIT, "a port", &range->first_port))
		return false;
	range->last_port = range->first_port;
	if (!take_char(p, '-'))
		return true;
	if (!parse_number(p, PORT_LIMIT, "the last port of a range", &range->last_port))
		return false;
	if (range->last_port < range->first_port)
		return parser_fail(p, at, "the range of ports ends before it begins");
	return true;
}

static bool rules_parse_address_and_ports(struct parser *p, struct vma_rules_range *range)
{
	if (!parse_address(p, range))
		return false;
	if (!take_char(p, ':'))
		return parser_fail(p, p->at, "':' and a port (or *) are missing after the address");
	return parse_ports(p, range);
}

static bool rules_parse_local_and_peer_addresses(struct parser *p, struct vma_rule *rule)
{
	const enum vma_rules_role role = (enum vma_rules_role)rule->role;

	rule->names[1] = (struct vma_rules_range){.last_port = PORT_LIMIT};
	skip_blanks(p);
	if (!rules_parse_address_and_ports(p, &rule->names[0]))
		return false;
	if (p->at == p->line_end || *p->at != ':')
		return true;
	if (vma_rules_role_address_count(role) < 2)
		return parser_fail(p, p->at, "%s has one address and port", vma_rules_role_keyword(role));
	p->at++;
	return rules_parse_address_and_ports(p, &rule->names[1]);
}

/* ---- statements ---- */

static bool parse_transport(struct parser *p, bool *by_os)
{
	char shown[SHOWN_MAX + 4];
	const char *at;
	struct word word;

	skip_blanks(p);
	at = p->at;
	if (!parse_word(p, "the transport (vma, xlio or os)", &word))
		return false;
	*by_os = rules_is_keyword(word.text, word.len, "os");
	if (*by_os || rules_is_keyword(word.text, word.len, "vma") || rules_is_keyword(word.text, word.len, "xlio"))
		return true;
	return parser_fail(p, at, "'%s' is no transport: vma, xlio or os", word_to_printable_text(&word, shown));
}

static bool parse_role(struct parser *p, uint8_t *role)
{
	enum vma_rules_role found;
	char shown[SHOWN_MAX + 4];
	const char *at;
	struct word word;

	skip_blanks(p);
	at = p->at;
	if (!parse_word(p, "the role", &word))
		return false;
	if (rules_parse_role_keyword(word.text, word.len, &found) < 0)
		return parser_fail(p, at,
		                   "'%s' is no role: tcp_server, tcp_client, udp_receiver, udp_sender or udp_connect",
		                   word_to_printable_text(&word, shown));
	*role = (uint8_t)found;
	return true;
}

static void add_rule(struct parser *p, const struct vma_rule *rule)
{
	if (!p->applies || p->out->count == p->room)
		return;
	p->out->at[p->out->count++] = *rule;
	if (rule->by_os)
		p->out->os_roles |= 1U << rule->role;
}

static void parse_use(struct parser *p)
{
	struct vma_rule rule = {.line = p->line};

	if (parse_transport(p, &rule.by_os) && parse_role(p, &rule.role) &&
	    rules_parse_local_and_peer_addresses(p, &rule) && parse_expect_end_of_statement(p))
		add_rule(p, &rule);
}

static bool rule_id_matches_program(const struct word *id, const char *ours)
{
	if (id->len == 1 && *id->text == '*')
		return true;
	return ours != NULL && strlen(ours) == id->len && memcmp(ours, id->text, id->len) == 0;
}

/* at: where the statement begins. */
static void parse_application_id(struct parser *p, const char *at)
{
	const struct vma_rules_attr *attr = p->attr;
	struct word program, id;

	p->applies = false;
	if (parse_word(p, "the program's name", &program) && parse_word(p, "the ID (or *)", &id) &&
	    parse_expect_end_of_statement(p))
		p->applies = attr->program != NULL && rules_wildcard_match(program.text, program.len, attr->program) &&
		             rule_id_matches_program(&id, attr->id);
	else
		parser_note(p, at, "what follows, up to the next application-id, holds for no program");
}

static void note_once_that_log_is_skipped(struct parser *p, const char *at)
{
	if (!p->log_told)
		parser_note(p, at, "log is skipped: VMA_TRACELEVEL and VMA_LOG_FILE say what is logged");
	p->log_told = true;
}

static void parse_line(struct parser *p)
{
	char shown[SHOWN_MAX + 4];
	const char *at;
	struct word word;

	skip_blanks(p);
	if (statement_has_ended(p))
		return;
	at = p->at;
	word = take_bare_word(p);
	if (rules_is_keyword(word.text, word.len, "use"))
		parse_use(p);
	else if (rules_is_keyword(word.text, word.len, "application-id"))
		parse_application_id(p, at);
	else if (rules_is_keyword(word.text, word.len, "log"))
		note_once_that_log_is_skipped(p, at);
	else
		parser_fail(p, at, "'%s' is no statement: application-id or use", word_to_printable_text(&word, shown));
}

static void parse_file(struct parser *p)
{
	while (p->at < p->end) {
		const char *const newline = memchr(p->at, '\n', (size_t)(p->end - p->at));

		p->line++;
		p->line_start = p->at;
		p->line_end = newline != NULL ? newline : p->end;
		parse_line(p);
		p->at = newline != NULL ? newline + 1 : p->end;
	}
}

/* ---- rules ---- */

static struct vma_rules *rules_create(const char *file, uint32_t room)
{
	const size_t bytes = sizeof(struct vma_rules) + room * sizeof(struct vma_rule);
	struct vma_rules *const rules = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const size_t len = strlen(file);

	if (rules == MAP_FAILED)
		return NULL;
	rules->bytes = bytes;
	if (len < sizeof(rules->file))
		memcpy(rules->file, file, len + 1);
	else
		snprintf(rules->file, sizeof(rules->file), "...%s", file + len - (sizeof(rules->file) - 4));
	return rules;
}

void vma_rules_destroy(struct vma_rules *rules)
{
	if (rules != NULL)
		munmap(rules, rules->bytes);
}

int vma_rules_parse(const struct vma_rules_attr *attr, const char *text, size_t size, struct vma_rules **out)
{
	static const char bom[] = {(char)0xef, (char)0xbb, (char)0xbf};
	struct parser p = {.attr = attr, .at = text, .end = text + size, .applies = true};

	*out = NULL;
	if (size > VMA_RULES_FILE_MAX)
		return -EFBIG;
	p.room = (uint32_t)(size / SHORTEST) + 1;
	p.out = rules_create(attr->file, p.room);
	if (p.out == NULL)
		return -ENOMEM;
	if (size >= sizeof(bom) && memcmp(text, bom, sizeof(bom)) == 0)
		p.at += sizeof(bom);
	parse_file(&p);
	*out = p.out;
	return (int)p.errors;
}

int vma_rules_prepend(const struct vma_rules_attr *attr, const struct vma_rules *old, const char *line,
                      struct vma_rules **out)
{
	const uint32_t count = old != NULL ? old->count : 0;
	const uint32_t last = count != 0 && old->at[0].line & VMA_RULES_ADDED ? old->at[0].line : VMA_RULES_ADDED;
	struct vma_rules *first, *all;
	int rc = vma_rules_parse(attr, line, strlen(line), &first);

	*out = NULL;
	if (rc == -ENOMEM)
		return rc;
	all = rc == 0 && first->count == 1 ? rules_create(attr->file, count + 1) : NULL;
	if (all != NULL) {
		all->at[0] = first->at[0];
		all->at[0].line = last + 1;
		if (count != 0)
			memcpy(&all->at[1], old->at, count * sizeof(old->at[0]));
		all->count = count + 1;
		all->os_roles = first->os_roles | (old != NULL ? old->os_roles : 0);
		rc = 0;
	} else {
		rc = rc == 0 && first->count == 1 ? -ENOMEM : -EINVAL;
	}
	vma_rules_destroy(first);
	*out = all;
	return rc;
}
