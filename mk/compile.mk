# How one file is compiled and one program linked; component.mk and program.mk say which. LTO_HERE and TEST_OPT are set
# for some objects: a unit test is compiled as fast as can be, what it tests is as users have it.
$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(INCLUDES) -I$(BUILD)/gen -Itests/include $(CFLAGS_ALL) $(LTO_HERE) $(TEST_OPT) -MMD -MP -c -o $@ $<

# The multiarch folder holds asm/types.h, which clang does not look for when it compiles for another machine.
$(BUILD)/obj/%.bpf.o: %.bpf.c
	$(call say,BPF,$<)
	$(Q)mkdir -p $(@D) && $(CLANG) -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror $(INCLUDES) \
		-I/usr/include/$(MULTIARCH) -MMD -MP -c -o $@ $<

# $(call link,SYSTEM LIBRARIES), as the recipe of a program whose prerequisites are objects and archives
define link
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS_ALL) $(LTO_OFF) -o $@ $(filter %.o %.a,$^) $(1)
endef
