/*
 * processes - those that can be captured.
 *
 * Threads: one.
 */
#ifndef VMA_DUMP_PROCESSES_H
#define VMA_DUMP_PROCESSES_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include <vma/stats_read.h>

#define PROCESSES_MAX 1024
#define PROCESSES_NAME_BYTES 64

/* The path of a process's file. False: it is too long. */
bool processes_path(const char *directory, pid_t pid, char path[PATH_MAX]);
/* The kernel's name of the program; what is not printable becomes '?'. "?": it has gone. */
void processes_name(pid_t pid, char name[PROCESSES_NAME_BYTES]);
/* To standard output, those of other users left out. */
void processes_print(const char *directory);
/* The only one there is; 0 after a message. */
pid_t processes_find_sole_pid_or_print_error(const char *directory);
/* Whether the interface of that name, in this network namespace, is one that the process receives and sends by now. */
bool process_has_ring_on_interface(struct vma_stats_view *view, pid_t pid, const char *interface);

#endif
