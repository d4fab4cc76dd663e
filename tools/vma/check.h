/*
 * check - whether programs of this user can be offloaded on this machine, in ten lines at most.
 */
#ifndef VMA_TOOLS_CHECK_H
#define VMA_TOOLS_CHECK_H

#include <stdbool.h>

/*
 * Prints the report on stdout; true: they can. `library` is the file that would be preloaded, NULL: none was found.
 * Nothing is started or owned. The judgement about interfaces is the library's own code.
 */
bool check_and_print_report(const char *library);

#endif
