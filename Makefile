# The one entry point. `make help` lists the targets; V=1 shows the commands.
VMA_ROOT := .
VMA_TOP := 1
all:

include mk/config.mk

# Bottom of the architecture first: a component may use only those before it.
COMPONENTS := log conf stats bufpool nic cq ring
COMPONENTS_TOP_FIRST := ring cq nic bufpool stats conf log
INCLUDES := $(COMPONENTS:%=-Icomponents/%/include)
LIBS_ALL :=
PROGRAMS :=
include $(COMPONENTS:%=components/%/Makefile)
-include $(wildcard tools/*/Makefile) $(wildcard examples/Makefile) $(wildcard bench/Makefile)

all: libs $(PROGRAMS)
libs: $(LIBS_ALL)

unit-test: $(COMPONENTS:%=test-%)

clean:
	$(Q)rm -rf build

.PHONY: all libs unit-test clean
