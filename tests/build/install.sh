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
for archive in build/lib/libvma-*.a; do
	name=$(basename "$archive" .a)
	[ -f "$WORK/root/usr/lib/$name.a" ] || continue
	component=${name#libvma-}
	# Objects of two folders may have one name; each is in the archive, and in the installed one.
	git ls-files -- "components/$component/*.c" | grep -vE '/test/|\.bpf\.c$' | sed 's|^|build/obj/|; s|c$|o|' |
		xargs nm -g --defined-only | awk 'NF == 3 { print $3 }' | sort >"$WORK/objects"
	for built in "$archive" "$WORK/root/usr/lib/$name.a"; do
		nm -g --defined-only "$built" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort >"$WORK/members"
		missing=$(comm -23 "$WORK/objects" "$WORK/members")
		[ -s "$WORK/objects" ] && [ -z "$missing" ] || not_ok "$built has all of its component" "$missing"
	done
done
check "vmad is installed" test -x "$WORK/root/usr/bin/vmad"
done_testing
