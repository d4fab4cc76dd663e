# The one entry point. `make help` lists the targets; V=1 shows the commands.
VMA_ROOT := .
VMA_TOP := 1
.SUFFIXES:
all:

include mk/config.mk

# What is to be built first of all: the packages of mk/packages.txt. Checked again when the list or the installed
# packages have changed. The user's DEPS (=no) is for this alone: the fragments call what a component uses by that name.
PACKAGES := $(DEPS)
override undefine DEPS
ifneq ($(filter-out deps help clean distclean,$(or $(MAKECMDGOALS),all)),)
include build/deps.stamp
endif
build/deps.stamp: mk/packages.txt mk/deps $(wildcard /var/lib/dpkg/status)
	$(Q)DEPS='$(PACKAGES)' mk/deps $@

build/deps-all.stamp: mk/packages-all.txt mk/deps build/deps.stamp
	$(Q)DEPS='$(PACKAGES)' mk/deps $@ mk/packages-all.txt

build/deps-packages.stamp: mk/packages-build.txt mk/deps build/deps.stamp
	$(Q)DEPS='$(PACKAGES)' mk/deps $@ mk/packages-build.txt

# Bottom of the architecture first: a component may use only those before it.
COMPONENTS := log conf rules stats bufpool nic cq ring tcp net sock inet udp stream iomux extra
COMPONENTS_TOP_FIRST := extra iomux stream udp inet sock net tcp ring cq nic bufpool stats rules conf log
INCLUDES := $(COMPONENTS:%=-Icomponents/%/include) -Iinclude
LIBS_ALL :=
TESTS_ALL :=
FUZZERS_ALL :=
PROGRAMS :=
TOOL_TESTS :=
include mk/compile.mk
include mk/sources.mk
include $(COMPONENTS:%=components/%/Makefile)
-include $(wildcard tools/*/Makefile) $(wildcard interpose/Makefile) $(wildcard tests/*/Makefile) $(wildcard examples/Makefile) $(wildcard examples/*/Makefile) $(wildcard bench/Makefile)

include mk/install.mk

# Everything but the debug library, which is built of its own archives and costs half as much again.
programs: libs $(PROGRAMS) $(libvma_SO)
all: programs
libs: $(LIBS_ALL)

# ---- tests ----
# The runners take the place of their shell, so that a signal reaches them.

# A sanitizer makes all slower; make test-san runs makes that inherit what is said here.
export TEST_TIMEOUT ?= $(if $(SAN)$(filter test-san,$(MAKECMDGOALS)),600,300)

# Checks that exist in the debug build only.
DEBUG_TESTS := log bufpool

test:
	+$(Q)exec mk/tally programs sources unit-test test-scripts

test-san:
	+$(Q)exec mk/tally $(foreach san,address undefined thread,'programs SAN=$(san)' \
		'unit-test SAN=$(san)' 'test-e2e SAN=$(san)')

test-programs: $(TESTS_ALL)
unit-test: $(TESTS_ALL)
	$(Q)exec env T='$(T)' mk/run-tests $^

# Two TCP stacks against each other, one seed after the other, for T seconds: what test-tcp does for a few. SEED_BASE
# says where to begin. Then a UDP socket and TCP connections that move from ring to ring under traffic, for T seconds
# each, a hundred moves at least.
SOAKS := $(BUILD)/test/tcp/test/test_seeds $(BUILD)/test/udp/test/stress_migrate $(BUILD)/test/stream/test/stress_migrate
soak: $(SOAKS)
	$(Q)for soak in $(SOAKS); do SEEDS_SECONDS=$(or $(T),60) STRESS_SECONDS=$(or $(T),60) T= $$soak || exit; done

# The build machinery itself; no root.
test-build: all sources
	$(Q)exec env T='$(T)' tests/run tests/build/*.sh

# Both, side by side: those of the build machinery keep a core busy, the others mostly wait.
test-scripts: programs sources
	$(Q)exec env T='$(T)' BUILD=$(BUILD) UNPRIVILEGED='$(UNPRIVILEGED)' tests/run tests/build tests/e2e

# Root and namespaces; UNPRIVILEGED=1 accepts what cannot run.
test-e2e: programs
	$(Q)exec env T='$(T)' BUILD=$(BUILD) UNPRIVILEGED='$(UNPRIVILEGED)' tests/run

# Servers as they are shipped, with processes of their own; root and namespaces. What is long is here and not in `make test`.
# Their load keeps a core busy, so there are two at a time.
test-servers: programs build/deps-all.stamp
	$(Q)exec env AT_ONCE=2 TEST_TIMEOUT=900 T='$(T)' BUILD=$(BUILD) UNPRIVILEGED='$(UNPRIVILEGED)' tests/run tests/servers/*.sh

# Clients of vmad that are hostile to their neighbours; root and namespaces.
test-hostile: programs
	$(Q)exec env T='$(T)' BUILD=$(BUILD) UNPRIVILEGED='$(UNPRIVILEGED)' tests/run tests/hostile/*.sh

# What is too long for `make test`: the tests that only the debug build has, the fuzz targets, the scripts that are
# marked so.
LONG_STEPS := '$(DEBUG_TESTS:%=test-%) VARIANT=debug' 'fuzz FUZZ_SMOKE=1'
test-long:
	+$(Q)exec mk/tally $(LONG_STEPS) test-long-scripts
test-long-scripts: all build/deps-packages.stamp
	$(Q)exec env ALL=only BUILD=$(BUILD) UNPRIVILEGED='$(UNPRIVILEGED)' tests/run tests/build tests/e2e

# The other compiler builds all, and the unit tests run under its sanitizers that see bad memory and undefined steps. gcc's,
# the race detector, and the end-to-end tests under all three are `make test-san`.
test-compilers:
	+$(Q)exec mk/tally 'programs unit-test CC=clang SAN=address,undefined TEST_TIMEOUT=600'

# All scripts that `make test` leaves out run side by side: at the end of each folder cores would be idle.
test-all:
	+$(Q)exec mk/tally test $(LONG_STEPS) test-all-scripts test-compilers
test-all-scripts: all build/deps-packages.stamp build/deps-all.stamp
	$(Q)exec env ALL=only TEST_TIMEOUT=900 BUILD=$(BUILD) UNPRIVILEGED='$(UNPRIVILEGED)' tests/run tests/build tests/e2e \
		tests/servers/*.sh tests/hostile/*.sh

# ---- fuzzing ----

# libFuzzer on every target for T seconds each; as part of `make test-long` a short run from a fixed seed.
ifeq ($(VARIANT),fuzz)
fuzz-run: $(FUZZERS_ALL)
	$(Q)exec mk/fuzz $(FUZZ_SECONDS) $^
endif
fuzz:
	+$(Q)$(MAKE) --no-print-directory VARIANT=fuzz FUZZ_SECONDS=$(if $(FUZZ_SMOKE),2,$(or $(T),60)) T= fuzz-run

# ---- the rest ----

lint: all test-programs
	$(Q)mk/lint

format:
	$(Q)git ls-files -z -- '*.[ch]' | xargs -0 clang-format -i

deps: build/deps.stamp
	@:

# The pinned sources stay, so that a clean tree builds without a network.
clean:
	$(Q)for entry in build/*; do [ "$$entry" = build/sources ] || rm -rf "$$entry"; done
distclean:
	$(Q)rm -rf build

# For scripts: where this variant is built.
show-build:
	@echo $(BUILD)

help:
	@cat mk/help.txt

.PHONY: all programs libs test test-san unit-test soak test-build test-scripts test-e2e test-servers test-hostile test-long test-long-scripts test-compilers test-all test-all-scripts fuzz fuzz-run lint format deps clean distclean \
	show-build \
	help test-programs
