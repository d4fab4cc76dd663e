/*
 * processes - which process is meant: by pid, by the program's name, or the only one.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_PROCESSES_H
#define VMA_STATS_TOOL_PROCESSES_H

#include "options.h"

#define PROCESSES_MAX 4096

/* Those that the options allow, in order: how many, in `pids`. */
unsigned processes_find(const struct options *options, pid_t pids[PROCESSES_MAX]);
/* One of several: the user's choice if input is a terminal; 0: there is no choice, and the list has been shown. */
pid_t processes_ask_user_to_choose(const pid_t *pids, unsigned count);
/* The path of a process's file. False: it is too long. */
bool processes_path(const struct options *options, pid_t pid, char *path, unsigned bytes);
#define PROCESSES_NAME_BYTES 256
/* The kernel's name of the program, at most 15 bytes; what is not printable becomes '?'. False: it has gone. */
bool processes_name(pid_t pid, char name[PROCESSES_NAME_BYTES]);
bool process_is_alive(pid_t pid);

#endif
