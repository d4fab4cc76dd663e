# Compilers, flags and the build directory of the variant at hand.
#   make                    build/            optimised, gcc
#   make CC=clang           build/clang/
#   make VARIANT=debug      build/debug/      all log levels, buffer checks
#   make SAN=address        build/address/    a sanitizer (address, undefined, thread), debug checks on
#   make VARIANT=fuzz       build/fuzz/       clang, libFuzzer's instrumentation, address and undefined (see `make fuzz`)
# CFLAGS and LDFLAGS are added to ours. What was built with other flags is built anew: every object depends on
# $(BUILD)/flags, which holds the flags and changes only with them.
VARIANT ?= $(SAN)
SAN ?=
ifeq ($(VARIANT),fuzz)
override CC := clang
override SAN := fuzzer-no-link,address,undefined
endif
ifeq ($(origin CC),default)
CC := gcc
endif
CLANG ?= clang
AR ?= ar
OBJCOPY ?= objcopy
BPFTOOL ?= $(firstword $(wildcard /usr/sbin/bpftool) bpftool)
MULTIARCH ?= $(shell uname -m)-linux-gnu

V ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-6s %s\n' '$(1)' '$(2)')

empty :=
space := $(empty) $(empty)
comma := ,
variant_dir := $(subst $(comma),-,$(subst $(space),-,$(strip $(if $(filter fuzz,$(VARIANT)),,$(if $(findstring clang,$(CC)),clang)) $(VARIANT))))
BUILD := build$(if $(variant_dir),/$(variant_dir))

# Sanitizers by clang: the tests that CI builds and runs once, so the build is the greater part. But for fuzzing.
SAN_OPT := $(if $(findstring clang,$(CC)),$(if $(filter fuzz,$(VARIANT)),$(if $(FUZZ_SMOKE),-O0,-O1),-O0),-O1)
OPT := $(if $(SAN),$(SAN_OPT) -g1 -fno-omit-frame-pointer,-O2 -g)
CPPFLAGS_ALL := -D_GNU_SOURCE $(if $(VARIANT),-DVMA_DEBUG=1)
CFLAGS_ALL := -std=gnu11 -Wall -Wextra -Werror $(OPT) -fPIC -fvisibility=hidden -fno-strict-aliasing -pthread
LDFLAGS_ALL := -pthread
# libvma.so is optimised as a whole when it is linked. For that the archives hold their code in gcc's own form, too; other
# programs take the machine code beside it. Variants and other compilers do without, and `make LTO=`.
LTO := $(if $(VARIANT)$(if $(findstring gcc,$(notdir $(CC))),,other),,-flto=auto)
LTO_OBJECT := $(if $(LTO),-flto -ffat-lto-objects)
LTO_OFF := $(if $(LTO),-fno-lto)
# Unit tests of the plain build are built as fast as can be, and without debug information: VARIANT=debug has it.
TEST_DEBUG := $(if $(VARIANT)$(SAN),,-g0)
TEST_LINK := $(if $(shell command -v ld.gold),-fuse-ld=gold) $(if $(VARIANT)$(SAN),,-Wl,-S)
ifneq ($(SAN),)
CFLAGS_ALL += -fsanitize=$(SAN) $(if $(findstring undefined,$(SAN)),-fno-sanitize-recover=all)
# Instrumentation hides from gcc what it sees in the plain build, where this warning is an error.
CFLAGS_ALL += $(if $(findstring clang,$(CC)),,-Wno-maybe-uninitialized)
LDFLAGS_ALL += $(patsubst %,-fsanitize=%,$(subst fuzzer-no-link$(comma),,$(SAN)))
# As gcc does.
CPPFLAGS_ALL += $(if $(findstring clang,$(CC)),$(if $(findstring address,$(SAN)),-D__SANITIZE_ADDRESS__=1) \
	$(if $(findstring thread,$(SAN)),-D__SANITIZE_THREAD__=1))
endif
CPPFLAGS_ALL += $(CPPFLAGS)
CFLAGS_ALL += $(CFLAGS)
LDFLAGS_ALL += $(LDFLAGS)

# $(call remember,FILE,TEXT): FILE holds TEXT, and is as old as the last change of TEXT. (strip: make 4.3 does not always
# take the last newline away, as $(file) should.)
remember = $(if $(call differ,$(strip $(file <$(1))),$(strip $(2))),$(shell mkdir -p $(dir $(1)))$(file >$(1),$(2)))
differ = $(subst x$(1),,x$(2))$(subst x$(2),,x$(1))
$(call remember,$(BUILD)/flags,$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(LTO_OBJECT))
