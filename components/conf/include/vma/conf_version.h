/*
 * conf_version - the version of the library and of everything that is built with it. The Makefile, the packages and the
 * man pages take it from here.
 */
#ifndef VMA_CONF_VERSION_H
#define VMA_CONF_VERSION_H

#define VMA_VERSION "0.3.0"

#endif
