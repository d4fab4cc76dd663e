/* conf_form - text forms: from text to number, from number to the banner's text. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "conf_priv.h"

#define CHOICES(...)                                                                                                   \
	.choices = (const struct conf_choice[]){__VA_ARGS__},                                                          \
	.count = sizeof((const struct conf_choice[]){__VA_ARGS__}) / sizeof(struct conf_choice)

const struct conf_form conf_form_PLAIN = {.open = true};
const struct conf_form conf_form_SWITCH = {.values = "0, 1",
                                           CHOICES({0, NULL, "Disabled", NULL}, {1, NULL, "Enabled", NULL})};
const struct conf_form conf_form_LEVEL = {
        .values = "none, panic 0, error 1, warn 2, info 3, details, debug 4, fine 5, finer 6, all", .log_level = true};
const struct conf_form conf_form_SPEC = {
        .values = "none, latency, multi_ring_latency",
        .words_only = true,
        CHOICES({VMA_SPEC_NONE, "none", "none", NULL}, {VMA_SPEC_LATENCY, "latency", "Latency", NULL},
                {VMA_SPEC_MULTI_RING_LATENCY, "multi_ring_latency", "Multi Ring Latency", NULL})};
const struct conf_form conf_form_FILE = {.values = "path", .names_a_file = true};
const struct conf_form conf_form_DIRECTORY = {.values = "path", .names_a_file = true};
const struct conf_form conf_form_WORD = {.values = "any word"};
const struct conf_form conf_form_RING_LOGIC = {
        .values = "0, 1, 10, 20, 30, 31",
        CHOICES({0, NULL, "0 (Ring per interface)", NULL}, {1, NULL, "1 (Ring per ip address)", NULL},
                {10, NULL, "10 (Ring per socket)", NULL}, {20, NULL, "20 (Ring per thread)", NULL},
                {30, NULL, "30 (Ring per core)", NULL}, {31, NULL, "31 (Ring per core - attach threads)", NULL})};
const struct conf_form conf_form_LIMIT = {.open = true, CHOICES({0, NULL, "0 (no limit)", NULL})};
const struct conf_form conf_form_POLL_BATCH = {.open = true, .most = VMA_CONF_CQ_POLL_BATCH_MOST};
const struct conf_form conf_form_SEND_BUFFER = {
        .open = true, .unset = "as the kernel", .least = VMA_CONF_SEND_BUFFER_LEAST};
const struct conf_form conf_form_BY_KERNEL = {.open = true, .unset = "as the kernel"};
const struct conf_form conf_form_BY_MEMORY = {.open = true, .unset = "as memory allows"};
const struct conf_form conf_form_UDP_RULES = {
        .values = "0, 1", .unset = "5 tuple", CHOICES({0, NULL, "Disabled", NULL}, {1, NULL, "Enabled", NULL})};
const struct conf_form conf_form_PRIVILEGED = {
        .values = "0, 1", .unset = "as the kernel", CHOICES({0, NULL, "Disabled", NULL}, {1, NULL, "Enabled", NULL})};
const struct conf_form conf_form_RX_PREFETCH = {.open = true, .most = VMA_CONF_RX_PREFETCH_MOST};
const struct conf_form conf_form_MSS = {
        .open = true, .least = VMA_CONF_MSS_LEAST, CHOICES({0, NULL, "0 (follow VMA_MTU)", NULL})};
/* What holds of moderation while it is not set depends on the others of its parameters: vma_ring_conf_to_ring_attr. */
const struct conf_form conf_form_MODERATION = {.unset = "as far as asked for",
                                               .values = "0, 1",
                                               CHOICES({0, NULL, "Disabled", NULL}, {1, NULL, "Enabled", NULL})};
const struct conf_form conf_form_MODERATION_COUNT = {.unset = "48, if a period is set", .open = true};
const struct conf_form conf_form_MODERATION_PERIOD = {.unset = "50, if a count is set", .open = true};
const struct conf_form conf_form_AIM = {
        .unset = "250, if asked for", .open = true, CHOICES({0, NULL, "Disabled", "CQ Adaptive Moderation"})};
const struct conf_form conf_form_EXCEPTION = {
        .values = "-2, -1, 0, 1, 2, 3",
        CHOICES({-2, NULL, "-2 (exit at failed start)", NULL}, {-1, NULL, "-1 (just log debug message)", NULL},
                {0, NULL, "0 (log debug, leave to OS)", NULL}, {1, NULL, "1 (log error, leave to OS)", NULL},
                {2, NULL, "2 (log error, fail)", NULL}, {3, NULL, "3 (log error, abort)", NULL})};
static bool is_valid_cpu_list(const char *text)
{
	cpu_set_t cpus;

	return vma_conf_parse_cpus(text, &cpus) >= 0;
}
const struct conf_form conf_form_AFFINITY = {.values = "-1, 0xMASK, LIST", .understands = is_valid_cpu_list};
const struct conf_form conf_form_THREAD_MODE = {.values = "0, 1, 2, 3",
                                                CHOICES({0, NULL, "Single", NULL}, {1, NULL, "Multi spin lock", NULL},
                                                        {2, NULL, "Multi mutex lock", NULL},
                                                        {3, NULL, "Multi more threads than cores", NULL})};
const struct conf_form conf_form_BATCHING_MODE = {.values = "0, 1, 2",
                                                  CHOICES({0, NULL, "0 (No batching buffers)", NULL},
                                                          {1, NULL, "1 (Batch and reclaim buffers)", NULL},
                                                          {2, NULL, "2 (Batch and don't reclaim buffers)", NULL})};
const struct conf_form conf_form_MEM_ALLOC_TYPE = {.values = "0 or ANON, 1 or CONTIG, 2 or HUGEPAGES",
                                                   CHOICES({0, "ANON", "0 (Malloc)", NULL},
                                                           {1, "CONTIG", "1 (Contig Pages)", NULL},
                                                           {2, "HUGEPAGES", "2 (Huge Pages)", NULL})};
const struct conf_form conf_form_FLAG = {.values = "0, 1", CHOICES({0, NULL, "0", NULL}, {1, NULL, "1", NULL})};
const struct conf_form conf_form_TCP_TIMESTAMPS = {
        .values = "0, 1, 2", CHOICES({0, NULL, "0", NULL}, {1, NULL, "1", NULL}, {2, NULL, "2", NULL})};
const struct conf_form conf_form_TCP_CC = {.unset = "as the kernel",
                                           .values = "0, 1, 2, 3",
                                           CHOICES({0, NULL, "0 (LWIP)", NULL}, {1, NULL, "1 (CUBIC)", NULL},
                                                   {2, NULL, "2 (NONE)", NULL}, {3, NULL, "3 (BBR)", NULL})};
const struct conf_form conf_form_NIC = {
        .values = "auto, verbs, xdp, none",
        .words_only = true,
        CHOICES({VMA_CONF_NIC_AUTO, "auto", "auto", NULL}, {VMA_CONF_NIC_VERBS, "verbs", "verbs", NULL},
                {VMA_CONF_NIC_XDP, "xdp", "xdp", NULL}, {VMA_CONF_NIC_NONE, "none", "none", NULL})};

const struct conf_form conf_form_EAGAINS = {
        .unset = "as the kernel", .values = "0, 1", CHOICES({0, NULL, "Disabled", NULL}, {1, NULL, "Enabled", NULL})};
const struct conf_form conf_form_MTU = {
        .open = true, .values = "0, 68..9000", CHOICES({0, NULL, "0 (follow actual MTU)", NULL})};
const struct conf_form conf_form_TX_BUF_SIZE = {
        .open = true, .values = "0, 68..65280", CHOICES({0, NULL, "0 (from MTU and MSS)", NULL})};
const struct conf_form conf_form_MIGRATION = {
        .open = true, .unset = "-1 (off)", .values = "-1, 1 and up", CHOICES({-1, NULL, "-1 (off)", NULL})};
const struct conf_form conf_form_RESOLUTION = {.open = true, .unset = "none (exact)", .most = VMA_CONF_RESOLUTION_MOST};
const struct conf_form conf_form_OFF = {.open = true, CHOICES({0, NULL, "Disabled", NULL})};
const struct conf_form conf_form_CTL_THREAD = {
        .values = "0, 1, 2",
        CHOICES({0, NULL, "0 (Disabled)", NULL}, {1, NULL, "1 (Delegate)", NULL}, {2, NULL, "2 (With timer)", NULL})};
const struct conf_form conf_form_TCP_HANDLING = {
        .values = "0, 1", CHOICES({0, NULL, "0 (deferred)", NULL}, {1, NULL, "1 (immediate)", NULL})};
const struct conf_form conf_form_AUTO = {.values = "auto, 0, 1",
                                         CHOICES({VMA_CONF_OFF, NULL, "Disabled", NULL},
                                                 {VMA_CONF_ON, NULL, "Enabled", NULL},
                                                 {VMA_CONF_AUTO, "auto", "auto", NULL})};
const struct conf_form conf_form_SKIP_POLL = {
        .values = "0, 1, 2",
        CHOICES({0, NULL, "Disabled", NULL}, {1, NULL, "1 (always)", NULL}, {2, NULL, "2 (in an epoll set)", NULL})};
const struct conf_form conf_form_MULTILOCK = {.values = "0, 1",
                                              CHOICES({0, NULL, "Spin", NULL}, {1, NULL, "Mutex", NULL})};

static int hex_digit_to_int(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
}

/*
 * The whole text is one number, decimal (also with leading zeros) or 0x hexadecimal, perhaps negative. strtoll is not
 * used: it takes blanks, a sign alone and octal. -ERANGE beyond 64 bits.
 */
static int form_parse_number(const char *text, int64_t *value)
{
	bool negative = *text == '-';
	const char *p = text + negative;
	int base = p[0] == '0' && (p[1] == 'x' || p[1] == 'X') ? 16 : 10;
	int64_t n = 0;
	bool overflow = false;

	p += base == 16 ? 2 : 0;
	if (*p == '\0')
		return -EINVAL;
	for (; *p != '\0'; p++) {
		int digit = hex_digit_to_int(*p);
		if (digit >= base)
			return -EINVAL;
		overflow |= __builtin_mul_overflow(n, base, &n) || __builtin_add_overflow(n, digit, &n);
	}
	if (overflow)
		return -ERANGE;
	*value = negative ? -n : n;
	return 0;
}

static const struct conf_choice *conf_choice_of_value(const struct conf_form *form, int64_t value)
{
	for (size_t i = 0; i < form->count; i++)
		if (form->choices[i].value == value)
			return &form->choices[i];
	return NULL;
}

static int form_parse_word(const struct conf_form *form, const char *text, int64_t *value)
{
	for (size_t i = 0; i < form->count; i++)
		if (form->choices[i].word != NULL && strcasecmp(form->choices[i].word, text) == 0) {
			*value = form->choices[i].value;
			return 0;
		}
	return -EINVAL;
}

static int conf_parse_log_level(const char *text, int64_t *value)
{
	enum vma_log_level level;
	int rc = vma_log_level_parse(text, &level);

	if (rc == 0)
		*value = level;
	return rc;
}

int conf_param_parse_value(const struct conf_param *param, const char *text, int64_t *value)
{
	const struct conf_form *form = param->form;
	int64_t n;
	int rc;

	if (form->log_level)
		return conf_parse_log_level(text, value);
	if (form_parse_word(form, text, value) == 0)
		return 0;
	if (form->words_only)
		return -EINVAL;
	rc = form_parse_number(text, &n);
	if (rc < 0)
		return rc;
	if (!form->open && conf_choice_of_value(form, n) == NULL)
		return -EINVAL;
	if (form->open && (n < param->min || n > param->max) && conf_choice_of_value(form, n) == NULL)
		return -ERANGE;
	*value = n;
	return 0;
}

const char *conf_param_format_value(const struct conf_param *param, int64_t value, char out[CONF_SHOWN_MAX],
                                    const char **label)
{
	const struct conf_choice *choice = conf_choice_of_value(param->form, value);

	*label = choice != NULL && choice->label != NULL ? choice->label : param->label;
	if (param->form->log_level)
		snprintf(out, CONF_SHOWN_MAX, "%s", vma_log_level_name((enum vma_log_level)value));
	else if (choice != NULL)
		snprintf(out, CONF_SHOWN_MAX, "%s", choice->shown);
	else
		snprintf(out, CONF_SHOWN_MAX, "%" PRId64, value);
	return out;
}

const char *conf_param_allowed_values_text(const struct conf_param *param, char out[CONF_SHOWN_MAX])
{
	if (param->form->values != NULL)
		return param->form->values;
	snprintf(out, CONF_SHOWN_MAX, "%" PRId64 "..%" PRId64, param->min, param->max);
	return out;
}
