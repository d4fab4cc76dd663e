/* conf_reference - the table as a page of docs/. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "conf_priv.h"

struct page {
	char *out;
	size_t size, used; /* used may pass size: then it did not fit */
};

__attribute__((format(printf, 2, 3))) static void page_append_format(struct page *page, const char *fmt, ...)
{
	size_t left = page->used < page->size ? page->size - page->used : 0;
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(left > 0 ? page->out + page->used : NULL, left, fmt, args);
	va_end(args);
	page->used += n > 0 ? (size_t)n : 0;
}

static void reference_write_text_defaults(struct page *page, const struct conf_param *param)
{
	const char *const text = param->string[VMA_SPEC_NONE];

	page_append_format(page, text[0] != '\0' ? "Default: `%s`" : "Default: empty%s", text);
	if (param->string[VMA_SPEC_LATENCY] != NULL)
		page_append_format(page, "; with `VMA_SPEC=latency`: `%s`", param->string[VMA_SPEC_LATENCY]);
	if (param->string[VMA_SPEC_MULTI_RING_LATENCY] != NULL)
		page_append_format(page, "; with `VMA_SPEC=multi_ring_latency`: `%s`",
		                   param->string[VMA_SPEC_MULTI_RING_LATENCY]);
	page_append_format(page, ".");
}

static void reference_write_defaults(struct page *page, const struct conf_param *param)
{
	char shown[CONF_SHOWN_MAX];
	const char *label;

	if (param->type == CONF_TEXT) {
		reference_write_text_defaults(page, param);
		return;
	}
	page_append_format(page, "Default: %s",
	                   param->form->unset != NULL
	                           ? param->form->unset
	                           : conf_param_format_value(param, conf_default(param, VMA_SPEC_NONE), shown, &label));
	if (param->number[VMA_SPEC_LATENCY] != CONF_SAME)
		page_append_format(page, "; with `VMA_SPEC=latency`: %s",
		                   conf_param_format_value(param, param->number[VMA_SPEC_LATENCY], shown, &label));
	if (param->number[VMA_SPEC_MULTI_RING_LATENCY] != CONF_SAME)
		page_append_format(
		        page, "; with `VMA_SPEC=multi_ring_latency`: %s",
		        conf_param_format_value(param, param->number[VMA_SPEC_MULTI_RING_LATENCY], shown, &label));
	page_append_format(page, ".");
}

static const char *reference_note_of_param_class(enum conf_class class)
{
	switch (class) {
	case CONF_EFFECT:
		break;
	case CONF_NO_MEANING:
		return "**No meaning here.** If it is set, the log says so. ";
	case CONF_SUPERSEDED:
		return "**Superseded.** If it is set, the log says so. ";
	}
	return "";
}

static void reference_write_aliases(struct page *page, const struct conf_param *param)
{
	const char *before = " Other names: ";

	for (size_t i = 0; i < conf_alias_count; i++)
		if (strcmp(conf_aliases[i].means, param->name) == 0) {
			page_append_format(page, "%s`%s`", before, conf_aliases[i].name);
			before = ", ";
		}
	if (before[0] == ',')
		page_append_format(page, ".");
}

static void reference_write_param_section(struct page *page, const struct conf_param *param)
{
	char values[CONF_SHOWN_MAX];

	page_append_format(page, "## %s\n\n%s%s", param->name, reference_note_of_param_class(param->class),
	                   param->text);
	page_append_format(page, "\n\n%s: %s. ", param->label, conf_param_allowed_values_text(param, values));
	reference_write_defaults(page, param);
	reference_write_aliases(page, param);
	page_append_format(page, "\n\n");
}

int vma_conf_write_reference_page(char *out, size_t size)
{
	struct page page = {.out = out, .size = size};

	page_append_format(
	        &page,
	        "# Parameters\n\n"
	        "Environment variables, read once when the library starts. A number is decimal or, with 0x, "
	        "hexadecimal; words may be written in any case. A value that is not understood or out of range gives "
	        "one warning and the default is used. A name that begins with XLIO_ means the one with VMA_, if that "
	        "is "
	        "not set. A name that is no parameter gives a warning with the nearest name. In a process with raised "
	        "privileges (set-user-ID, file "
	        "capabilities) the variables that name files are ignored.\n\n"
	        "This page is made from the table in `components/conf/include/vma/conf_params.h`: "
	        "`make test-conf UPDATE_DOCS=1` writes it anew.\n\n");
	for (size_t i = 0; i < conf_param_count; i++)
		reference_write_param_section(&page, &conf_params[i]);
	if (page.used >= size)
		return -ENOSPC;
	/* One newline at the end, as files have. */
	out[--page.used] = '\0';
	return (int)page.used;
}
