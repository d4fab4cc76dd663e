#!/usr/bin/env bash
# The Debian packages: built, looked at by lintian, and in a fresh root installed, used, upgraded, removed and purged.
#
#   a (10.9.0.1, veth_a) ---- (veth_b, 10.9.0.2) b: what runs there has the fresh root as its own
# test-all: it makes a Debian root by debootstrap, from the package sources of this machine
# alone: it wants both cores, or it takes minutes
# seconds: 120
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1
need_xdp
if [ ! "$BUILD" -ef build ]; then
	skip "packages" "they are made of the plain build"
	done_testing
fi
for tool in dpkg-buildpackage dh lintian debootstrap; do
	command -v $tool >/dev/null && continue
	skip "packages" "there is no $tool (mk/packages-build.txt)"
	done_testing
done
version=$(sed -n 's/^#define VMA_VERSION "\(.*\)"/\1/p' components/conf/include/vma/conf_version.h)
check "the packages are built" mk/deb "$version" || done_testing
packages=()
for name in libvma libvma-utils libvma-dev; do packages+=("build/packages/${name}_$version-1_$(dpkg --print-architecture).deb"); done
check "lintian finds no error" lintian --allow-root --fail-on error build/packages/libvma_"$version"-1_*.changes

# ---- a fresh root ----
read -r source release < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | head -n 1)
needs=$(for file in "${packages[@]}"; do dpkg-deb -f "$file" Depends; done | tr ',' '\n' | sed 's/(.*//; s/ //g' |
	grep -v '^libvma' | sort -u | paste -sd,)
mkdir -p build/debootstrap
if ! debootstrap --variant=minbase --cache-dir="$PWD/build/debootstrap" --include="$needs" "$release" "$WORK/root" \
	"$source" >"$WORK/debootstrap.log" 2>&1; then
	note "$(tail -n 5 "$WORK/debootstrap.log")"
	skip "installed in a fresh root" "debootstrap cannot make one from this machine's package sources"
	done_testing
fi
net_pair
root=$WORK/root
# With mounts that end with the command.
in_root() { # COMMAND...
	in_ns b sh -c 'mount -t proc proc "$0/proc" && mount -t sysfs sysfs "$0/sys" && mount --rbind /dev "$0/dev" &&
		mount -t tmpfs tmpfs "$0/run" && exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' "$root" "$@"
}
# The same packages as a newer version, with another default configuration: $root/newer.
newer() { # VERSION
	local file tree=$WORK/newer
	rm -rf "$root/newer" && mkdir "$root/newer" || return
	for file in "${packages[@]}"; do
		rm -rf "$tree" && dpkg-deb -R "$file" "$tree" || return
		sed -i "s/^Version: .*/Version: $1/; s/(= $version-1)/(= $1)/" "$tree/DEBIAN/control"
		[ ! -e "$tree/etc/libvma.conf" ] || echo "# the default of $1" >>"$tree/etc/libvma.conf"
		dpkg-deb -Znone -b "$tree" "$root/newer/$(basename "$file")" || return
	done
}
cp "${packages[@]}" "$root/"
check "they are installed" in_root sh -c 'dpkg -i /libvma*.deb'
check_eq "nothing is left to configure" "$(in_root dpkg --audit)" ""
check "every file is as it was packaged" in_root dpkg -V libvma libvma-utils libvma-dev

# ---- used ----
check_eq "the command is there" "$(in_root vma --version)" "vma $version"
in_root vma --check >"$WORK/check.txt" 2>&1
check_eq "vma --check: programs can be offloaded" $? 0
check "with the library and the vmad of the packages" grep -qE "^ok +library +/usr/lib/.*/libvma.so, version $version" "$WORK/check.txt"
check "vmad too" grep -qE '^ok +vmad +/usr/(lib/.*/\.\./\.\./)?sbin/vmad$' "$WORK/check.txt"
check_eq "LD_PRELOAD=libvma.so needs no path" \
	"$(in_root env LD_PRELOAD=libvma.so sh -c 'grep -c libvma.so /proc/self/maps >/dev/null && echo loaded' 2>&1)" loaded
cat >"$root/echo.pl" <<-'PL'
	use IO::Socket::INET;
	$| = 1;
	my $socket = IO::Socket::INET->new(Proto => "udp", LocalAddr => "10.9.0.2", LocalPort => 7000) or die;
	print "listening\n";
	for (1 .. 100) { my $sender = $socket->recv(my $text, 100); $socket->send($text, 0, $sender); }
PL
cat >"$WORK/ask.py" <<-'PY'
	import socket
	s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
	s.settimeout(5)
	for i in range(100):
	    s.sendto(b"%d" % i, ("10.9.0.2", 7000))
	    assert s.recv(100) == b"%d" % i
PY
before=$(snmp b Udp InDatagrams)
: >"$WORK/echo.log"
in_root vma perl /echo.pl >"$WORK/echo.log" 2>&1 </dev/null &
PID[echo]=$!
wait_for 10 log_has echo listening
check "a program of the root answers over the link" in_ns a python3 "$WORK/ask.py"
check_eq "and its kernel saw no datagram" "$(snmp b Udp InDatagrams)" "$before"
check "it ends" finish echo 5
check "the vmad that it started ends" wait_for 10 no_xdp b "$IF_B"
# shellcheck disable=SC2046 # lists of options
check "an example links against libvma-dev" gcc -std=gnu11 -D_GNU_SOURCE -o "$WORK/udp_echo" examples/udp_echo.c examples/stack.c \
	$(PKG_CONFIG_LIBDIR=$(echo "$root"/usr/lib/*/pkgconfig) PKG_CONFIG_SYSROOT_DIR=$root pkg-config --static --cflags --libs libvma-stack)

# ---- upgraded ----
conf=$root/etc/libvma.conf
check "newer packages" newer "$version-2"
check "an upgrade" in_root sh -c 'dpkg -i /newer/*.deb'
check "replaces a configuration that nobody has edited" grep -qx "# the default of $version-2" "$conf"
echo "use os udp_connect *:53" >>"$conf"
cp "$conf" "$WORK/edited"
check "still newer packages" newer "$version-3"
check "the next upgrade" in_root sh -c 'dpkg -i --force-confold /newer/*.deb'
check "keeps one that was edited" cmp "$conf" "$WORK/edited"
check "the new one is beside it" grep -qx "# the default of $version-3" "$conf.dpkg-dist"

# ---- removed ----
check "they are removed" in_root dpkg -r libvma-dev libvma-utils libvma
check "the configuration stays" cmp "$conf" "$WORK/edited"
left() { # of /usr and /lib
	find "$root/usr" "$root/lib/systemd" \( -name '*vma*' -o -path '*/include/vma/*' \) -printf '%P '
}
check_eq "of the rest nothing is left" "$(left)" ""
check "they are purged" in_root dpkg -P libvma libvma-utils libvma-dev
check_eq "then the configuration has gone, too" "$(find "$root/etc" -name '*vma*' -printf '%P ')" ""
done_testing
