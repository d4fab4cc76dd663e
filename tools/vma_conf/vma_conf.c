/*
 * vma_conf - checks a file of transport rules (libvma.conf), and says which line decides about a socket.
 *
 *   vma_conf FILE                                                       the errors, each with its line and column
 *   vma_conf FILE PROGRAM ID ROLE ADDRESS[:PORT] [ADDRESS[:PORT]]       and the line that decides
 */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "question.h"

enum { FILE_WORD, PROGRAM_WORD, ID_WORD, QUESTION_WORDS, WORDS_MAX = 7 };
enum { EXIT_RULES_HAVE_ERRORS = 1, EXIT_FILE_NOT_READ = 2 };

struct words {
	char *at[WORDS_MAX];
	int count;
};

static error_t add_argument_word(int key, char *arg, struct argp_state *state)
{
	struct words *words = state->input;

	switch (key) {
	case ARGP_KEY_ARG:
		if (words->count == WORDS_MAX)
			argp_error(state, "'%s' is too much", arg);
		words->at[words->count++] = arg;
		return 0;
	case ARGP_KEY_END:
		if (words->count != 1 && words->count < QUESTION_WORDS + 2)
			argp_error(state, words->count == 0 ? "FILE is missing" : "ROLE and ADDRESS are missing");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argp = {
        .parser = add_argument_word,
        .args_doc = "FILE\nFILE PROGRAM ID ROLE ADDRESS[:PORT] [ADDRESS[:PORT]]",
        .doc = "Checks a file of transport rules (libvma.conf), and says which line decides about a socket.\v"
               "ROLE is tcp_server, tcp_client, udp_receiver, udp_sender or udp_connect. The first address is the "
               "peer's, of a server or receiver its own. tcp_client and udp_connect have a second one, their own.\n\n"
               "Exit status: 0; 1 if a statement is wrong; 2 if the file cannot be read; 64 for a wrong command line.",
};

static void print_rules_diagnostic(void *arg, const struct vma_rules_message *message)
{
	fprintf(stderr, "%s:%u:%u: %s%s\n", (const char *)arg, message->line, message->column,
	        message->is_error ? "error: " : "", message->text);
}

/* The text of a line, from 1, without its end. */
static const char *line_of(const char *text, size_t size, uint32_t line, int *len)
{
	const char *end = text + size, *newline;

	while (--line > 0)
		text = (const char *)memchr(text, '\n', (size_t)(end - text)) + 1;
	newline = memchr(text, '\n', (size_t)(end - text));
	*len = (int)((newline != NULL ? newline : end) - text);
	if (*len > 0 && text[*len - 1] == '\r')
		--*len;
	return text;
}

static void print_rule_that_matches(const struct vma_rules *rules, const struct question *question, const char *text,
                                    size_t size, const char *file)
{
	const struct vma_rule *rule = vma_rules_match(rules, question->role, &question->names[0], &question->names[1]);
	const char *line;
	int len;

	if (rule == NULL) {
		printf("vma: no line decides\n");
		return;
	}
	line = line_of(text, size, rule->line, &len);
	printf("%s: %s:%u: %.*s\n", rule->by_os ? "os" : "vma", file, rule->line, len, line);
}

static int check_rules_file(const struct words *words, const struct question *question)
{
	char *const file = words->at[FILE_WORD];
	const struct vma_rules_attr attr = {.file = file,
	                                    .program = words->at[PROGRAM_WORD],
	                                    .id = words->at[ID_WORD],
	                                    .tell = print_rules_diagnostic,
	                                    .arg = file};
	struct vma_rules *rules;
	size_t size;
	char *text;
	int rc = vma_rules_read(file, &text, &size);

	if (rc == 0)
		rc = vma_rules_parse(&attr, text != NULL ? text : "", size, &rules);
	if (rc < 0) {
		fprintf(stderr, "vma_conf: %s: %s\n", file,
		        rc == -EINVAL ? "it is no regular file" : strerrordesc_np(-rc));
	} else {
		if (question != NULL)
			print_rule_that_matches(rules, question, text, size, file);
		vma_rules_destroy(rules);
	}
	vma_rules_text_unmap(text);
	return rc < 0 ? EXIT_FILE_NOT_READ : rc > 0 ? EXIT_RULES_HAVE_ERRORS : 0;
}

int main(int argc, char **argv)
{
	struct question question;
	struct words words = {0};
	const char *wrong;

	argp_parse(&argp, argc, argv, 0, NULL, &words);
	if (words.count == 1)
		return check_rules_file(&words, NULL);
	wrong = parse_rule_query_words(&question, words.at + QUESTION_WORDS, words.count - QUESTION_WORDS);
	if (wrong != NULL) {
		fprintf(stderr, "vma_conf: '%s' is not understood: try vma_conf --help\n", wrong);
		return EX_USAGE;
	}
	return check_rules_file(&words, &question);
}
