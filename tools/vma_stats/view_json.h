/*
 * view_json - a report as one JSON document (json-c), on one line. docs/observe.md has its keys.
 *
 *   {"format": 1, ..., "processes": [{"pid": 4711, ..., "sockets": [{"fd": 3, ..., "counters": {...}}], "rings": [...]}]}
 *
 * The document is built as a whole, then printed by one write: a reader never sees half of it. If memory runs out the
 * program ends with status 1, and nothing is printed.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_VIEW_JSON_H
#define VMA_STATS_TOOL_VIEW_JSON_H

#include "view.h"

#define VIEW_JSON_FORMAT 1 /* one more if a key goes, or changes its meaning; new keys may come at any time */

struct json_object;

/* A document without processes. */
struct json_object *view_json_new_document(const struct options *options);
/* Adds the process of in->now. How many sockets were added, and how many of them the kernel has. */
void view_json_add_process(struct json_object *document, const struct view_input *in, unsigned *shown,
                           unsigned *by_kernel);
/* Prints the document, and frees it; out NULL: only frees it. If it cannot be written, ferror(out) says so. */
void view_json_print_and_free(struct json_object *document, FILE *out);

#endif
