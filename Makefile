# The one entry point. `make help` lists the targets; V=1 shows the commands.
VMA_ROOT := .
VMA_TOP := 1
all:

include mk/config.mk

# What is to be built first of all: the packages of mk/packages.txt. Checked again when the list or the installed
# packages have changed.
ifneq ($(filter-out deps help clean distclean,$(or $(MAKECMDGOALS),all)),)
include build/deps.stamp
endif
build/deps.stamp: mk/packages.txt mk/deps $(wildcard /var/lib/dpkg/status)
	$(Q)mk/deps $@

# Bottom of the architecture first: a component may use only those before it.
COMPONENTS := log conf stats bufpool nic cq ring
COMPONENTS_TOP_FIRST := ring cq nic bufpool stats conf log
INCLUDES := $(COMPONENTS:%=-Icomponents/%/include)
LIBS_ALL :=
TESTS_ALL :=
FUZZERS_ALL :=
PROGRAMS :=
include mk/compile.mk
include $(COMPONENTS:%=components/%/Makefile)
-include $(wildcard tools/*/Makefile) $(wildcard examples/Makefile) $(wildcard bench/Makefile)

all: libs $(PROGRAMS)
libs: $(LIBS_ALL)

unit-test: $(TESTS_ALL)
	$(Q)T='$(T)' mk/run-tests $^

clean:
	$(Q)rm -rf build

.PHONY: all libs unit-test clean
