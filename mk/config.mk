# Compilers, flags and the build directory of the variant at hand.
#   make                    build/            optimised
#   make VARIANT=debug      build/debug/      all log levels, buffer checks
#   make SAN=address        build/address/    a sanitizer (address, undefined, thread), debug checks on
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
CLANG ?= clang
AR ?= ar
BPFTOOL ?= $(firstword $(wildcard /usr/sbin/bpftool) bpftool)
MULTIARCH ?= $(shell uname -m)-linux-gnu

V ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-6s %s\n' '$(1)' '$(2)')

SAN ?=
VARIANT ?= $(SAN)
BUILD := build$(if $(VARIANT),/$(VARIANT))

CSTD := -std=gnu11 -Wall -Wextra -Werror
OPT := -O2 -g
CPPFLAGS_ALL := -D_GNU_SOURCE
CFLAGS_ALL := $(CSTD) $(OPT) -fPIC -fvisibility=hidden -fno-strict-aliasing -pthread
LDFLAGS_ALL := -pthread
ifneq ($(VARIANT),)
CPPFLAGS_ALL += -DVMA_DEBUG=1
endif
ifneq ($(SAN),)
OPT := -O1 -g -fno-omit-frame-pointer
CFLAGS_ALL += -fsanitize=$(SAN) $(if $(filter undefined,$(SAN)),-fno-sanitize-recover=all)
LDFLAGS_ALL += -fsanitize=$(SAN)
endif
CFLAGS_ALL += $(CFLAGS)
LDFLAGS_ALL += $(LDFLAGS)
