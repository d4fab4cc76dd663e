/* symbol - see lib.h. Apart from lib.c, as tests have a verbs_lib of their own. */
#include <dlfcn.h>
#include <stddef.h>

#include "lib.h"

void *verbs_lib_symbol(void *library, const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);

	return found != NULL ? found : dlsym(library, name);
}
