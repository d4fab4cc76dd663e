# The pinned sources of others: Debian source packages, fetched once, verified (mk/sources.sha256), unpacked below
# build/sources/ and built here. `make sources` does it; `make LWIP_DIR=/path JEMALLOC_DIR=/path` takes trees that
# are there, as they are.
LWIP_VERSION := 2.1.3+dfsg1-2
JEMALLOC_VERSION := 5.3.0-1
SOURCES := build/sources
LWIP_SRC := $(or $(LWIP_DIR),$(SOURCES)/lwip)
JEMALLOC_SRC := $(or $(JEMALLOC_DIR),$(SOURCES)/jemalloc)

$(SOURCES)/%.stamp: mk/sources.sha256 mk/fetch-source
	$(call say,SOURCE,$*)
	$(Q)mk/fetch-source $(subst _, ,$*) $(SOURCES) && touch $@
lwip_STAMP := $(if $(LWIP_DIR),$(LWIP_DIR)/src/core/tcp.c,$(SOURCES)/lwip_$(LWIP_VERSION).stamp)
jemalloc_STAMP := $(if $(JEMALLOC_DIR),$(JEMALLOC_DIR)/configure,$(SOURCES)/jemalloc_$(JEMALLOC_VERSION).stamp)

# jemalloc for control objects, beside whatever malloc the application has: every symbol begins with vma_je_, none
# replaces one of libc (no pthread_create wrapper either: --disable-libdl), and its thread state is reached by a pthread
# key (force_tls=0): 2.6 KB of thread-local storage would, with the few bytes of ours that must be of the initial-exec
# model, be more than a library may have that dlopen loads. It registers no handlers for fork, and the end of a thread
# comes to it through ours: components/sock/thread/mem.c. It starts with its first call: its constructor is taken out,
# which would cost each program that is executed a hundred pages. One archive serves all variants; those of the
# sanitizers use libc's malloc instead.
JE_LIB := build/lib/libvma-je.a
JE_BUILD := build/jemalloc
JE_CONFIGURE := --with-jemalloc-prefix=vma_je_ --with-private-namespace=vma_je_ --without-export \
	force_tls=0 je_cv_pthread_atfork=no --disable-libdl --disable-cxx --disable-shared --disable-doc
JE_LEFT_OUT := -R .init_array -R .rela.init_array
$(call remember,$(JE_BUILD)/options,$(JEMALLOC_SRC) $(JE_CONFIGURE) $(JE_LEFT_OUT))
$(JE_LIB): $(jemalloc_STAMP) $(JE_BUILD)/options
	$(call say,JE,$@)
	$(Q)cd $(JE_BUILD) && rm -rf tree && mkdir tree && cd tree && \
		{ CC=gcc CFLAGS='-O2 -g -fPIC -fvisibility=hidden -Dpthread_key_create=vma_je_key_create' $(abspath $(JEMALLOC_SRC))/configure $(JE_CONFIGURE) && \
		$(MAKE) lib/libjemalloc_pic.a; } >../log 2>&1 || { tail -n 30 ../log; exit 1; }
	$(Q)mkdir -p $(@D) && $(OBJCOPY) $(JE_LEFT_OUT) $(JE_BUILD)/tree/lib/libjemalloc_pic.a $@

sources: $(lwip_STAMP) $(JE_LIB)
.PHONY: sources
