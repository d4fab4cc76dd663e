# The rule file of every component. A component's Makefile says
#
#   VMA_ROOT ?= ../..
#   NAME := ring
#   DEPS := cq nic bufpool stats conf log     archives that this one uses, top first
#   LIBS := -lck                              system libraries that it uses itself
#   FOLDERS := wire xdp client:xdp            those that have sources, and whose headers each may include besides
#   include $(VMA_ROOT)/mk/component.mk
#
# and gets build/lib/libvma-NAME.a from its *.c and those of its folders (a *.bpf.c is compiled for the kernel's BPF
# machine instead and turned into the libbpf skeleton FOLDER/FILE.skel.h, which the .c files may include as
# <FOLDER/FILE.skel.h>), one test program from each test/test_*.c and test/stress_*.c (cmocka, linked with the archive
# and DEPS), one fuzz target from each test/fuzz_*.c (VARIANT=fuzz only), and the targets lib-NAME and test-NAME. Run in
# the component's own folder, make hands the target to the tree's Makefile, so that there is one dependency graph only.
#
# A folder includes the headers at the component's top, and those of the folders that FOLDERS names after its colon. The
# top includes no folder's, unless an entry `.:FOLDER,FOLDER` says so. mk/lint holds all this.
ifndef VMA_TOP
all:
	@$(MAKE) --no-print-directory -C $(VMA_ROOT) lib-$(NAME)
test:
	@$(MAKE) --no-print-directory -C $(VMA_ROOT) test-$(NAME)
clean:
	@$(MAKE) --no-print-directory -C $(VMA_ROOT) clean
.PHONY: all test clean
else

$(NAME)_DIR := components/$(NAME)
$(NAME)_DEPS := $(DEPS)
$(NAME)_LIBS := $(LIBS)
$(NAME)_LIB := $(BUILD)/lib/libvma-$(NAME).a
$(NAME)_FOLDERS := $(filter-out .,$(foreach f,$(FOLDERS),$(firstword $(subst :, ,$(f)))))
$(NAME)_FILES := $(wildcard $(addsuffix /*.c,$($(NAME)_DIR) $(addprefix $($(NAME)_DIR)/,$($(NAME)_FOLDERS))))
$(NAME)_BPF := $(filter %.bpf.c,$($(NAME)_FILES))
$(NAME)_SKEL := $($(NAME)_BPF:components/$(NAME)/%.bpf.c=$(BUILD)/gen/%.skel.h)
$(NAME)_SRC := $(filter-out %.bpf.c,$($(NAME)_FILES)) $(addprefix $($(NAME)_DIR)/,$(SRCS))
$(NAME)_OBJ := $($(NAME)_SRC:%.c=$(BUILD)/obj/%.o)
$(NAME)_TESTSRC := $(wildcard $($(NAME)_DIR)/test/test_*.c $($(NAME)_DIR)/test/stress_*.c)
$(NAME)_TESTS := $($(NAME)_TESTSRC:components/%.c=$(BUILD)/test/%)
$(NAME)_FUZZSRC := $(wildcard $($(NAME)_DIR)/test/fuzz_*.c)
$(NAME)_FUZZERS := $($(NAME)_FUZZSRC:components/%.c=$(BUILD)/test/%)
$(NAME)_COMPILED := $($(NAME)_OBJ) $(patsubst %.c,$(BUILD)/obj/%.o,$($(NAME)_TESTSRC) $($(NAME)_FUZZSRC))
LIBS_ALL += $($(NAME)_LIB)
TESTS_ALL += $($(NAME)_TESTS)
FUZZERS_ALL += $($(NAME)_FUZZERS)
# An archive is built anew also when a source file has gone. Objects of two folders may have one name: `ar q` keeps both.
$(call remember,$(BUILD)/obj/$($(NAME)_DIR)/members,$(NAME): $(sort $($(NAME)_OBJ)))

define component_rules
$(1)_LINK := $$($(1)_LIB) $$(foreach d,$$($(1)_DEPS),$(BUILD)/lib/libvma-$$(d).a)
$(1)_SYSLIBS := $$($(1)_LIBS) $$(foreach d,$$($(1)_DEPS),$$($$(d)_LIBS))
$$($(1)_COMPILED): | $$($(1)_SKEL)
$$($(1)_OBJ): LTO_HERE := $(LTO_OBJECT)
$(if $(SAN),,$$(patsubst %.c,$(BUILD)/obj/%.o,$$(wildcard $$($(1)_DIR)/test/test_*.c)): TEST_OPT := -O0 $(TEST_DEBUG))
$$($(1)_SKEL): $(BUILD)/gen/%.skel.h: $(BUILD)/obj/$$($(1)_DIR)/%.bpf.o
	$$(call say,SKEL,$$@)
	$$(Q)mkdir -p $$(@D) && $$(BPFTOOL) gen skeleton $$< name $$(subst /,_,$$*) >$$@.tmp && mv $$@.tmp $$@
$$($(1)_LIB): $$($(1)_OBJ) $(BUILD)/obj/$$($(1)_DIR)/members
	$$(call say,AR,$$@)
	$$(Q)mkdir -p $$(@D) && rm -f $$@ && $$(AR) qcs $$@ $$(filter %.o,$$^)
$$($(1)_TESTS): $(BUILD)/test/%: $(BUILD)/obj/components/%.o $$($(1)_LINK)
	$$(call link,-lcmocka $$($(1)_SYSLIBS) $$(TEST_LINK))
$$($(1)_FUZZERS): $(BUILD)/test/%: $(BUILD)/obj/components/%.o $$($(1)_LINK)
	$$(call link,-fsanitize=fuzzer $$($(1)_SYSLIBS))
lib-$(1): $$($(1)_LIB)
test-$(1): $$($(1)_TESTS)
	$$(Q)exec env T='$$(T)' mk/run-tests $$^
.PHONY: lib-$(1) test-$(1)
endef
$(eval $(call component_rules,$(NAME)))
-include $($(NAME)_COMPILED:.o=.d) $($(NAME)_BPF:%.c=$(BUILD)/obj/%.d)
SRCS :=
LIBS :=
DEPS :=
FOLDERS :=
endif
