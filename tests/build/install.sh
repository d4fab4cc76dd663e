#!/usr/bin/env bash
# make install: a program outside the tree compiles and links against what was installed.
# test-all: it builds the debug library
# seconds: 60
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS TALLY
check "make install" make --no-print-directory install DESTDIR="$WORK/root" PREFIX=/usr
[ -f "$WORK/root/usr/include/mellanox/vma_extra.h" ] || not_ok "mellanox/vma_extra.h is installed"
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
	[ -d "components/$component" ] || continue
	# Objects of two folders may have one name; each is in the archive, and in the installed one.
	git ls-files -- "components/$component/*.c" | grep -vE '/test/|\.bpf\.c$' | sed 's|^|build/obj/|; s|c$|o|' |
		xargs nm -g --defined-only | awk 'NF == 3 { print $3 }' | sort >"$WORK/objects"
	for built in "$archive" "$WORK/root/usr/lib/$name.a"; do
		nm -g --defined-only "$built" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort >"$WORK/members"
		missing=$(comm -23 "$WORK/objects" "$WORK/members")
		[ -s "$WORK/objects" ] && [ -z "$missing" ] || not_ok "$built has all of its component" "$missing"
	done
done
exports() {
	nm -D --defined-only "$WORK/root/usr/lib/$1" | awk '{ print $3 }' | sort
}
check "the debug library exports what the library exports" diff <(exports libvma.so) <(exports libvma-debug.so)
check "vmad is installed" test -x "$WORK/root/usr/sbin/vmad"

# ---- every file is where it belongs ----
version=$(sed -n 's/^#define VMA_VERSION "\(.*\)"/\1/p' components/conf/include/vma/conf_version.h)
for file in usr/lib/libvma.so usr/lib/libvma-debug.so usr/bin/vma usr/bin/vma_stats usr/sbin/vmad usr/share/man/man1/vma.1 \
	usr/share/man/man1/vma_conf.1 usr/share/man/man1/vma_dump.1 usr/share/man/man1/vma_stats.1 usr/share/man/man8/vmad.8 usr/share/man/man7/libvma.7 \
	usr/share/man/man5/libvma.conf.5 \
	usr/lib/pkgconfig/libvma.pc usr/lib/pkgconfig/libvma-stack.pc usr/lib/systemd/system/vmad@.service \
	etc/libvma.conf etc/security/limits.d/30-libvma-limits.conf usr/share/doc/libvma/preload.md \
	usr/share/grafana/libvma.json usr/share/libvma/verbs_report usr/share/doc/libvma/LICENSE usr/share/doc/libvma/NOTICE; do
	[ -s "$WORK/root/$file" ] || not_ok "$file is installed"
done
find "$WORK/root" -type f -printf '/%P\n' | grep -vE '^/etc/' | sort >"$WORK/found"
check "the list of installed files is complete" diff "$WORK/found" <(sort "$WORK/root/usr/share/libvma/installed")
! grep -rnE '@[A-Z_]+@' "$WORK/root/usr/share/man" "$WORK/root/usr/lib/pkgconfig" "$WORK/root/usr/lib/systemd"
check "no place is left unfilled" test $? -eq 0
check_eq "the unit starts the vmad that was installed" \
	"$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$WORK/root/usr/lib/systemd/system/vmad@.service")" /usr/sbin/vmad
check_eq "libvma.conf has comments only: nothing changes" "$(grep -cvE '^(#|$)' "$WORK/root/etc/libvma.conf")" 0
check_eq "every command tells the version" \
	"$("$WORK/root/usr/bin/vma" --version) $("$WORK/root/usr/bin/vma_stats" --version) $("$WORK/root/usr/sbin/vmad" --version)" \
	"vma $version vma_stats $version vmad $version"
check_eq "the command finds the library beside itself" \
	"$("$WORK/root/usr/bin/vma" sh -c 'echo "$LD_PRELOAD"')" "$(realpath "$WORK/root")/usr/lib/libvma.so"

# ---- man pages ----
for page in "$WORK/root/usr/share"/man/man*/*; do
	check_eq "$(basename "$page") is clean" "$(groff -man -Tutf8 -ww -z "$page" 2>&1)" ""
done
options() { grep -oE -- '--[a-z][a-z-]+' | sort -u; }
for command in bin/vma:1 bin/vma_conf:1 bin/vma_dump:1 bin/vma_stats:1 sbin/vmad:8; do
	program=$WORK/root/usr/${command%:*} section=${command#*:}
	page=$(basename "$program").$section
	check_eq "$page has the options of --help" \
		"$(sed 's/\\-/-/g' "$WORK/root/usr/share/man/man$section/$page" | options | grep -vx -- --now)" \
		"$("$program" --help | options)"
done

# ---- pkg-config ----
pc() { PKG_CONFIG_PATH="$WORK/root/usr/lib/pkgconfig" pkg-config --define-variable=prefix="$WORK/root/usr" \
	--define-variable=libdir="$WORK/root/usr/lib" --define-variable=includedir="$WORK/root/usr/include" "$@"; }
check_eq "pkg-config knows the version" "$(pc --modversion libvma)" "$version"
check_eq "and what to preload" "$(pc --variable=preload libvma)" "$WORK/root/usr/lib/libvma.so"
for example in udp_echo tcp_echo; do
	# shellcheck disable=SC2046 # lists of options
	check "$example links against the static archives by pkg-config --static" gcc -std=gnu11 -D_GNU_SOURCE -O1 \
		-o "$WORK/$example" examples/$example.c examples/stack.c $(pc --static --cflags --libs libvma-stack)
	check "and runs" "$WORK/$example" --help
done
cat >"$WORK/linked.c" <<'END'
#include <stdio.h>
extern const char *vma_get_version(void);
int main(void)
{
	puts(vma_get_version());
	return 0;
}
END
# shellcheck disable=SC2046 # lists of options
check "a program links the shared library" gcc -o "$WORK/linked" "$WORK/linked.c" $(pc --cflags --libs libvma)
check_eq "and runs with it" "$(LD_LIBRARY_PATH="$WORK/root/usr/lib" "$WORK/linked")" "$version"

# ---- upgrade: an edited file is the administrator's ----
again() { # [TARGET]
	make --no-print-directory "${1:-install}" DESTDIR="$WORK/root" PREFIX=/usr
}
conf=$WORK/root/etc/libvma.conf
echo "# an older default" | tee "$conf" >"$WORK/root/usr/share/libvma/libvma.conf"
check "install again" again
check "a file that nobody has edited is replaced" cmp "$conf" packaging/libvma.conf
echo "use os udp_connect *:53" >>"$conf"
cp "$conf" "$WORK/edited"
again >"$WORK/again.out"
check "a file that was edited is kept" cmp "$conf" "$WORK/edited"
check "the new one is beside it" cmp "$conf.new" packaging/libvma.conf
check "and that is said" grep -q '/etc/libvma.conf was edited and is kept; the new one is /etc/libvma.conf.new' "$WORK/again.out"
cp packaging/libvma.conf "$conf"
again >"$WORK/again.out"
check "edited back to the new one: nothing is beside it" test ! -e "$conf.new"
cp "$WORK/edited" "$conf"
again uninstall >"$WORK/again.out"
check "uninstall keeps a file that was edited" cmp "$conf" "$WORK/edited"
check_eq "and nothing else" "$(find "$WORK/root" -type f -printf '%P\n')" etc/libvma.conf
check "and says so" grep -q '/etc/libvma.conf was edited and is kept' "$WORK/again.out"
check "a second uninstall says that there is nothing" test "$(again uninstall 2>&1 >/dev/null | head -n 1 | cut -d' ' -f1-4)" = \
	"make: nothing is installed"
done_testing
