#!/usr/bin/env bash
# make install: a program outside the tree compiles and links against what was installed.
# seconds: 10
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS TALLY
check "make install" make --no-print-directory install DESTDIR="$WORK/root" PREFIX=/usr
for header in components/*/include/vma/*.h; do
	[ -f "$WORK/root/usr/include/vma/$(basename "$header")" ] || not_ok "$header is installed"
done
cat >"$WORK/probe.c" <<'END'
#include <vma/log.h>
#include <vma/ring.h>
int main(void)
{
	return 0;
}
END
check "a program compiles against the installed headers and archives" gcc -std=gnu11 -Wall -Wextra -Werror \
	-I "$WORK/root/usr/include" -o "$WORK/probe" "$WORK/probe.c" -L "$WORK/root/usr/lib" -lvma-ring -lvma-log
check "and runs" "$WORK/probe"
! readelf -SW "$WORK/root/usr/lib/libvma-ring.a" | grep -q 'gnu\.lto_'
check "the archives are for every compiler" test $? -eq 0
check "vmad is installed" test -x "$WORK/root/usr/bin/vmad"
done_testing
