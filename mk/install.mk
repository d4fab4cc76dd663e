# Installing, and packages. Each place may be given to make; DESTDIR goes before all of them.
VERSION := $(shell sed -n 's/^.define VMA_VERSION "\(.*\)"/\1/p' components/conf/include/vma/conf_version.h)
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/libvma
DATADIR ?= $(PREFIX)/share/libvma
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSCONFDIR ?= /etc

# In link order; a variant that has no archive of jemalloc uses the C library's allocator.
install_STATIC := $(foreach c,$(COMPONENTS_TOP_FIRST),$($(c)_LIB)) $(filter %.a,$(foreach c,$(COMPONENTS),$($(c)_LIBS)))
install_SYSTEM := $(foreach c,$(COMPONENTS_TOP_FIRST),$(filter -l%,$($(c)_LIBS)))
install_ENV = DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' BINDIR='$(BINDIR)' SBINDIR='$(SBINDIR)' \
	INCLUDEDIR='$(INCLUDEDIR)' MANDIR='$(MANDIR)' DOCDIR='$(DOCDIR)' DATADIR='$(DATADIR)' SYSCONFDIR='$(SYSCONFDIR)' \
	PKGCONFIGDIR='$(PKGCONFIGDIR)' UNITDIR='$(UNITDIR)' VERSION='$(VERSION)' OBJCOPY='$(OBJCOPY)' \
	SHARED='$(libvma_SO) $(libvma_DEBUG_SO)' STATIC='$(install_STATIC)' PROGRAMS='$(filter $(BUILD)/bin/%,$(PROGRAMS))' \
	ARCHIVES='$(patsubst lib%.a,-l%,$(notdir $(install_STATIC)))' SYSTEM_LIBS='$(install_SYSTEM)'

install: all
	$(Q)$(install_ENV) mk/install install

uninstall:
	$(Q)$(install_ENV) mk/install uninstall

# ---- packages, in build/packages/ ----

export PACKAGER

deb: all build/deps-packages.stamp
	$(Q)mk/deb $(VERSION)

rpm: all build/deps-packages.stamp
	$(Q)mk/rpm $(VERSION)

.PHONY: install uninstall deb rpm
