# The rule file of every program: tools, examples, benchmarks. A folder's Makefile says, once for each program,
#
#   VMA_ROOT ?= ..
#   DIR := examples                 this folder, seen from the top
#   NAME := udp_echo                the program
#   SRCS := udp_echo.c echo_io.c    in DIR; default NAME.c
#   DEPS := ring                    components it uses itself; what they use follows by itself, in link order
#   LIBS := -lm                     system libraries beyond those of the components
#   include $(VMA_ROOT)/mk/program.mk
#
# and gets build/DIR/NAME (a program of tools/ goes to build/bin/NAME), which `make` builds. $(NAME_PROG) is its path
# afterwards: `demo: $(udp_echo_PROG) $(udp_ping_PROG)`. Other targets of the folder (demo, bench) go below, within
# `ifdef VMA_TOP`, and are .PHONY. Run in its own folder, make builds all.
#
# A tool has tests as a component has: tools/NAME/test/test_*.c and fuzz_*.c, linked with its SRCS but NAME.c (where
# main is) and its components, and a target test-NAME.
ifndef VMA_TOP
ifndef PROGRAM_FORWARD_ONCE
PROGRAM_FORWARD_ONCE := 1
all clean:
	@$(MAKE) --no-print-directory -C $(VMA_ROOT) $@
test:
	@$(MAKE) --no-print-directory -C $(VMA_ROOT) test-$(NAME)
.PHONY: all clean test
endif
else

ifneq ($(filter $(NAME),$(COMPONENTS)),)
$(error $(DIR)/Makefile: program $(NAME) has the name of a component)
endif
$(NAME)_PROG := $(BUILD)/$(if $(filter tools/%,$(DIR)),bin,$(DIR))/$(NAME)
$(NAME)_OBJ := $(patsubst %.c,$(BUILD)/obj/$(DIR)/%.o,$(or $(SRCS),$(NAME).c))
$(NAME)_USES := $(sort $(DEPS) $(foreach d,$(DEPS),$($(d)_DEPS)))
$(NAME)_ARCHIVES := $(foreach c,$(COMPONENTS_TOP_FIRST),$(if $(filter $(c),$($(NAME)_USES)),$($(c)_LIB)))
$(NAME)_SYSLIBS := $(LIBS) $(foreach d,$($(NAME)_USES),$($(d)_LIBS))
PROGRAMS += $($(NAME)_PROG)
$(NAME)_TESTSRC := $(if $(filter tools/%,$(DIR)),$(wildcard $(DIR)/test/test_*.c))
$(NAME)_TESTS := $($(NAME)_TESTSRC:tools/%.c=$(BUILD)/test/%)
$(NAME)_FUZZSRC := $(if $(filter tools/%,$(DIR)),$(wildcard $(DIR)/test/fuzz_*.c))
$(NAME)_FUZZERS := $($(NAME)_FUZZSRC:tools/%.c=$(BUILD)/test/%)
$(NAME)_PARTS := $(filter-out %/$(NAME).o,$($(NAME)_OBJ))
TESTS_ALL += $($(NAME)_TESTS)
FUZZERS_ALL += $($(NAME)_FUZZERS)
TOOL_TESTS += $(if $($(NAME)_TESTS),test-$(NAME))

define program_rules
$$($(1)_PROG): $$($(1)_OBJ) $$($(1)_ARCHIVES)
	$$(call link,$$($(1)_SYSLIBS))
$$($(1)_TESTS): $(BUILD)/test/%: $(BUILD)/obj/tools/%.o $$($(1)_PARTS) $$($(1)_ARCHIVES)
	$$(call link,-lcmocka $$($(1)_SYSLIBS))
$$($(1)_FUZZERS): $(BUILD)/test/%: $(BUILD)/obj/tools/%.o $$($(1)_PARTS) $$($(1)_ARCHIVES)
	$$(call link,-fsanitize=fuzzer $$($(1)_SYSLIBS))
$(if $($(1)_TESTS),
test-$(1): $$($(1)_TESTS)
	$$(Q)exec env T='$$(T)' mk/run-tests $$^
.PHONY: test-$(1))
endef
$(eval $(call program_rules,$(NAME)))
-include $($(NAME)_OBJ:.o=.d) $(patsubst %.c,$(BUILD)/obj/%.d,$($(NAME)_TESTSRC) $($(NAME)_FUZZSRC))
DIR :=
NAME :=
SRCS :=
DEPS :=
LIBS :=
endif
