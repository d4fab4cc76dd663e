#!/usr/bin/env bash
# The RPM packages: built, looked at by rpmlint, and in an empty root installed, used, upgraded and erased. What they need
# of others is not looked for (--nodeps): there are no RPM packages of a C library here.
#
#   a (10.9.0.1, veth_a) ---- (veth_b, 10.9.0.2) b: a program with the library of the packages
# test-all: with package_deb.sh, which has the packages of this machine's kind
# seconds: 15
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1
need_xdp
if [ ! "$BUILD" -ef build ]; then
	skip "packages" "they are made of the plain build"
	done_testing
fi
for tool in rpm rpmbuild rpmlint; do
	command -v $tool >/dev/null && continue
	skip "packages" "there is no $tool (mk/packages-build.txt)"
	done_testing
done
version=$(sed -n 's/^#define VMA_VERSION "\(.*\)"/\1/p' components/conf/include/vma/conf_version.h)
check "the packages are built" mk/rpm "$version" || done_testing
packages=(build/packages/libvma{,-utils,-devel}-"$version"-1.*.rpm)
check_eq "they are three" "${#packages[@]}" 3
check "rpmlint finds no error" rpmlint -c packaging/rpmlint.toml "${packages[@]}"

net_pair
root=$WORK/root
mkdir "$root"
in_root() { # ARGUMENTS of rpm
	rpm --root "$root" --dbpath /var/lib/rpm "$@"
}
# The same packages as another release, with another default configuration: $WORK/newer.
newer() { # RELEASE
	rm -rf "$WORK/newer" && mkdir "$WORK/newer" || return
	sed "s/^Release: .*/Release: $1/; s|^gzip .*|&\\necho '# the default of $1' >>%{buildroot}/etc/libvma.conf|" \
		build/rpm/libvma.spec >"$WORK/newer/libvma.spec"
	rpmbuild -bb --nodeps --define "_topdir $WORK/newer" "$WORK/newer/libvma.spec"
}
check "they are installed" in_root -i --nodeps "${packages[@]}"
check "every file is as it was packaged" in_root -V --nodeps libvma libvma-utils libvma-devel

# ---- used ----
check_eq "the command is there" "$("$root/usr/bin/vma" --version)" "vma $version"
in_ns b "$root/usr/bin/vma" --check >"$WORK/check.txt" 2>&1
check_eq "vma --check: programs can be offloaded" $? 0
check "with the library and the vmad of the packages" grep -qE "^ok +library +$root/usr/lib64/libvma.so, version $version" \
	"$WORK/check.txt"
check "vmad too" grep -qE "^ok +vmad +$root/usr/lib64/\.\./sbin/vmad" "$WORK/check.txt"
cat >"$WORK/state.py" <<-'PY'
	import ctypes, socket
	s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
	s.bind(("10.9.0.2", 7000))
	print(ctypes.CDLL(None).vma_get_socket_state(s.fileno(), None))
PY
check_eq "a program's socket is offloaded" "$(in_ns b "$root/usr/bin/vma" python3 "$WORK/state.py" 2>"$WORK/state.err")" 1

# ---- upgraded ----
conf=$root/etc/libvma.conf
check "a newer release" newer 2
check "an upgrade" in_root -U --nodeps "$WORK"/newer/RPMS/*/*.rpm
check "replaces a configuration that nobody has edited" grep -qx '# the default of 2' "$conf"
echo "use os udp_connect *:53" >>"$conf"
cp "$conf" "$WORK/edited"
check "a still newer release" newer 3
check "the next upgrade" in_root -U --nodeps "$WORK"/newer/RPMS/*/*.rpm
check "keeps one that was edited" cmp "$conf" "$WORK/edited"
check "the new one is beside it" grep -qx '# the default of 3' "$conf.rpmnew"

# ---- erased ----
check "they are erased" in_root -e --nodeps libvma libvma-utils libvma-devel
check "the edited configuration is saved" cmp "$conf.rpmsave" "$WORK/edited"
check_eq "of the rest nothing is left" \
	"$(find "$root" -type f ! -path "$root/var/lib/rpm/*" ! -name 'libvma.conf.rpm*' -printf '%P ')" ""
done_testing
