/*
 * vma - runs a program with the library preloaded, or tells whether that would help: see docs/man/vma.1.
 *
 * The command becomes the program (exec): there is no process in between, and signals, exit status and descriptors are
 * the program's own.
 */
#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vma/conf.h>
#include <vma/conf_version.h>

#include "check.h"
#include "preload.h"

/* As env(1) has them. */
#define EXIT_OWN_FAILURE 125
#define EXIT_NOT_EXECUTED 126
#define EXIT_NOT_FOUND 127

enum { KEY_CHECK = 256 };

/* argp looks for it by name. */
__attribute__((visibility("default"))) const char *argp_program_version = "vma " VMA_VERSION;

static const struct argp_option option_table[] = {
        {"check", KEY_CHECK, NULL, 0, "Tell whether programs of this user can be offloaded here, and what is missing",
         0},
        {"profile", 'p', "NAME", 0, "Set VMA_SPEC: latency, multi_ring_latency", 0},
        {"library", 'l', "FILE", 0, "Preload this file (default: the libvma.so that belongs to this command)", 0},
        {0},
};

struct options {
	bool check;
	const char *profile, *library;
	char **rest; /* [VAR=VALUE...] PROGRAM [ARG...], NULL at the end */
};

static bool is_profile(const char *name)
{
	static struct vma_conf conf;
	char entry[64];
	char *const env[] = {entry, NULL};

	if ((size_t)snprintf(entry, sizeof(entry), "VMA_SPEC=%s", name) >= sizeof(entry))
		return false;
	vma_conf_load_without_warnings(&conf, env);
	return conf.given[VMA_CONF_AT_spec];
}

static error_t vma_argp_parse_option(int key, char *text, struct argp_state *state)
{
	struct options *options = state->input;

	switch (key) {
	case KEY_CHECK:
		options->check = true;
		return 0;
	case 'p':
		if (!is_profile(text))
			argp_error(state, "no profile \"%s\": latency, multi_ring_latency", text);
		options->profile = text;
		return 0;
	case 'l':
		options->library = text;
		return 0;
	case ARGP_KEY_ARG:
		/* All that follows is the program's, whatever it looks like. */
		options->rest = &state->argv[state->next - 1];
		state->next = state->argc;
		return 0;
	case ARGP_KEY_END:
		if (options->check && options->rest != NULL)
			argp_error(state, "--check takes no program");
		if (!options->check && options->rest == NULL)
			argp_error(state, "which program?");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp parser = {
        .options = option_table,
        .parser = vma_argp_parse_option,
        .args_doc = "[VAR=VALUE...] PROGRAM [ARG...]\n--check",
        .doc = "Runs PROGRAM with its UDP and TCP sockets in user space, by LD_PRELOAD of libvma.so.",
};

static bool argument_is_env_assignment(const char *arg)
{
	if (!isalpha((unsigned char)*arg) && *arg != '_')
		return false;
	while (isalnum((unsigned char)*arg) || *arg == '_')
		arg++;
	return *arg == '=';
}

static int print_error_and_return_status(int status, const char *what, int error)
{
	fprintf(stderr, "vma: %s: %s\n", what, strerror(error));
	return status;
}

/* The library's whole path: the program may change its directory before it executes others. */
static int find_library(const char *given, char path[PATH_MAX])
{
	if (given == NULL)
		return preload_find_library(path, PATH_MAX);
	return realpath(given, path) != NULL && access(path, R_OK) == 0 ? 0 : -errno;
}

static int set_preload(const char *library)
{
	static char list[1 << 16];
	int rc = preload_list_add_library(getenv("LD_PRELOAD"), library, list, sizeof(list));

	if (rc == -EINVAL) {
		fprintf(stderr, "vma: %s: LD_PRELOAD takes no path with a space or a colon\n", library);
		return rc;
	}
	if (rc == 0 && setenv("LD_PRELOAD", list, 1) < 0)
		rc = -errno;
	if (rc < 0)
		print_error_and_return_status(0, "LD_PRELOAD", -rc);
	return rc;
}

static void warn_of_preload_refusal(const char *name)
{
	char program[PATH_MAX];
	const char *why =
	        preload_find_program(name, program, sizeof(program)) == 0 ? preload_refusal_reason(program) : NULL;

	if (why != NULL)
		fprintf(stderr, "vma: %s %s: nothing is preloaded, its sockets are the kernel's\n", program, why);
}

static int exec_program_with_preload(const struct options *options, const char *library)
{
	char **arg = options->rest;

	if (options->profile != NULL && setenv("VMA_SPEC", options->profile, 1) < 0)
		return print_error_and_return_status(EXIT_OWN_FAILURE, "VMA_SPEC", errno);
	for (; *arg != NULL && argument_is_env_assignment(*arg); arg++)
		if (putenv(*arg) != 0)
			return print_error_and_return_status(EXIT_OWN_FAILURE, *arg, errno);
	if (*arg == NULL) {
		fprintf(stderr, "vma: which program?\n");
		return EXIT_OWN_FAILURE;
	}
	warn_of_preload_refusal(*arg);
	if (set_preload(library) < 0)
		return EXIT_OWN_FAILURE;
	execvp(*arg, arg);
	return print_error_and_return_status(errno == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTED, *arg, errno);
}

int main(int argc, char **argv)
{
	struct options options = {0};
	char library[PATH_MAX];
	int rc;

	argp_err_exit_status = EXIT_OWN_FAILURE;
	argp_parse(&parser, argc, argv, ARGP_IN_ORDER, NULL, &options);
	rc = find_library(options.library, library);
	if (options.check)
		return check_and_print_report(rc == 0 ? library : NULL) ? 0 : 1;
	if (rc < 0)
		return print_error_and_return_status(EXIT_OWN_FAILURE,
		                                     options.library != NULL ? options.library : "libvma.so", -rc);
	return exec_program_with_preload(&options, library);
}
