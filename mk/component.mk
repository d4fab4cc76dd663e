# The rule file of every component. A component's Makefile says
#
#   VMA_ROOT ?= ../..
#   NAME := ring
#   DEPS := cq nic bufpool stats conf log     archives that this one uses, top first
#   LIBS := -lck                              system libraries that it uses itself
#   include $(VMA_ROOT)/mk/component.mk
#
# and gets build/lib/libvma-NAME.a from its *.c (a *.bpf.c is compiled for the kernel's BPF machine instead and turned
# into the libbpf skeleton FILE.skel.h, which the .c files may include as <FILE.skel.h>), one test program from each test/test_*.c and test/stress_*.c
# (cmocka, linked with the archive and DEPS), and test-NAME. Run in the component's own folder, make hands the
# target to the tree's Makefile, so that there is one dependency graph only.
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
$(NAME)_BPF := $(wildcard $($(NAME)_DIR)/*.bpf.c)
$(NAME)_SKEL := $($(NAME)_BPF:components/$(NAME)/%.bpf.c=$(BUILD)/gen/%.skel.h)
$(NAME)_SRC := $(filter-out %.bpf.c,$(wildcard $($(NAME)_DIR)/*.c)) $(addprefix $($(NAME)_DIR)/,$(SRCS))
$(NAME)_OBJ := $($(NAME)_SRC:%.c=$(BUILD)/obj/%.o)
$(NAME)_TESTSRC := $(wildcard $($(NAME)_DIR)/test/test_*.c $($(NAME)_DIR)/test/stress_*.c)
$(NAME)_TESTS := $($(NAME)_TESTSRC:components/%.c=$(BUILD)/test/%)
LIBS_ALL += $($(NAME)_LIB)

define component_rules
$(1)_LINK := $$($(1)_LIB) $$(foreach d,$$($(1)_DEPS),$(BUILD)/lib/libvma-$$(d).a)
$(1)_SYSLIBS := $$($(1)_LIBS) $$(foreach d,$$($(1)_DEPS),$$($$(d)_LIBS))
$$($(1)_OBJ) $$($(1)_TESTSRC:%.c=$(BUILD)/obj/%.o): | $$($(1)_SKEL)
$$($(1)_SKEL): $(BUILD)/gen/%.skel.h: $(BUILD)/obj/$$($(1)_DIR)/%.bpf.o
	$$(call say,SKEL,$$@)
	$$(Q)mkdir -p $$(@D) && $$(BPFTOOL) gen skeleton $$< name $$(*F) >$$@.tmp && mv $$@.tmp $$@
$$($(1)_LIB): $$($(1)_OBJ)
	$$(call say,AR,$$@)
	$$(Q)mkdir -p $$(@D) && rm -f $$@ && $$(AR) rcs $$@ $$^
$$($(1)_TESTS): $(BUILD)/test/%: $(BUILD)/obj/components/%.o $$($(1)_LINK)
	$$(call say,LINK,$$@)
	$$(Q)mkdir -p $$(@D) && $$(CC) $$(LDFLAGS_ALL) -o $$@ $$^ -lcmocka $$($(1)_SYSLIBS)
lib-$(1): $$($(1)_LIB)
test-$(1): $$($(1)_TESTS)
	$$(Q)T='$$(T)' $$(VMA_ROOT)/mk/run-tests $$^
.PHONY: lib-$(1) test-$(1)
endef
$(eval $(call component_rules,$(NAME)))
SRCS :=
LIBS :=
DEPS :=

ifndef COMPONENT_RULES_ONCE
COMPONENT_RULES_ONCE := 1
# The multiarch folder holds asm/types.h, which clang does not look for when it compiles for another machine.
$(BUILD)/obj/%.bpf.o: %.bpf.c
	$(call say,BPF,$<)
	$(Q)mkdir -p $(@D) && $(CLANG) -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror $(INCLUDES) \
		-I/usr/include/$(MULTIARCH) -MMD -MP -c -o $@ $<
$(BUILD)/obj/%.o: %.c
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(INCLUDES) -I$(BUILD)/gen -Itests/include $(CFLAGS_ALL) -MMD -MP -c -o $@ $<
endif
-include $($(NAME)_OBJ:.o=.d) $($(NAME)_BPF:%.c=$(BUILD)/obj/%.d) $($(NAME)_TESTSRC:%.c=$(BUILD)/obj/%.d)
endif
