#!/usr/bin/env bash
# VMA_NIC=auto: verbs if the interface has an RDMA device that can be used. If it has one that cannot, one line says why,
# and the interface is xdp's. If it has none, nothing is said. Each run is compared with one of VMA_NIC=xdp.
#
#   a (10.9.0.1) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, preloaded, and a vmad) b
#
# The real libibverbs is used, over a tree in place of /sys in which the card is, or another one, or a bond. This kernel
# has neither InfiniBand nor bonds: to a program, vs_b is the bond that the tree shows.
# seconds: 15
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
need_xdp
command -v python3 >/dev/null || cannot_run "no python3"
[ ! -d /sys/class/infiniband ] || cannot_run "this host has RDMA devices"
cards_pair

cat >"$WORK/sends.py" <<'PY'
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.9.0.1", 7000))
s.send(b"x")
maps = open("/proc/self/maps").read() # packet memory says whose
print("by", "verbs" if "vma-verbs" in maps else "xdp" if "vma-umem" in maps else "the kernel")
PY
start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"
wait_for 10 log_has vmad "owns" || cannot_run "vmad does not start"

# What the library says, but for the banner.
says() { # NIC COMMAND...: that starts the program, with LD_PRELOAD from $0
	local nic=$1
	shift
	# shellcheck disable=SC2016
	in_ns b env VMA_NIC="$nic" VMA_TRACELEVEL=INFO "$@" bash -c \
		'LD_PRELOAD="${LD_PRELOAD-} $0" exec python3 "$1"' "$BUILD/libvma.so" "$WORK/sends.py" >"$WORK/all" 2>&1
	grep -vE '^ *VMA INFO: (---|VMA_VERSION|Cmd Line|Log (Level|File)|NIC backend)' "$WORK/all"
}
with_tree() { echo "$ROOT/tests/verbs/with_card" "$1"; }
tree() { # NAME: another one like the cards'
	cp -r "$TREE" "$WORK/$1"
	rm -rf "${WORK:?}/$1/dev"
}
says_why() { # SENTENCE LINE COMMAND...: this line, and it is xdp's
	local sentence=$1 line=$2
	shift 2
	check_eq "$sentence: one line says why, and it is xdp's" "$(says auto "$@")" "VMA $line"$'\n'"by xdp"
}

bond() { # NAME FUNCTION...: a tree in which vs_b is a bond of functions 0 and 1 of a card; these have devices of their own
	local net=$WORK/$1/class/net function
	tree "$1"
	mkdir -p "$net/vs_b/bonding" "$net/eth0" "$net/eth1" "$WORK/$1/devices/0000:03:00.0" "$WORK/$1/devices/0000:03:00.1"
	echo "eth0 eth1" >"$net/vs_b/bonding/slaves"
	for function in 0 1; do ln -s "../../../devices/0000:03:00.$function" "$net/eth$function/device"; done
	shift
	for function; do mkdir "$net/eth$function/device/infiniband"; done
}
libibverbs=$(ldconfig -p | sed -n 's/.*libibverbs\.so\.1 .*=> //p' | head -1)
libibverbs=$(readlink -f "$libibverbs")

xdp=$(says xdp)
check_eq "xdp says nothing" "$xdp" "by xdp"
check_eq "no RDMA device on this host: auto says nothing either, and is xdp" "$(says auto)" "$xdp"
mkdir -p "$WORK/none/class/infiniband"
check_eq "... nor with a driver, and no device" "$(says auto SYSFS_PATH="$WORK/none")" "$xdp"
tree others
for file in "$WORK"/others/class/infiniband/*/ports/1/gid_attrs/ndevs/*; do echo eth77 >"$file"; done
# shellcheck disable=SC2046 # two words
check_eq "devices of other interfaces: nothing is said" "$(says auto $(with_tree "$WORK/others"))" "$xdp"

# shellcheck disable=SC2046
{
	usable="VMA INFO: vs_b: by RDMA device vmasoft1, port 1"$'\n'"by verbs"
	check_eq "a device that can be used: one line says which" "$(says auto $(with_tree "$TREE"))" "$usable"

	is_not_used="vs_b: RDMA device vmasoft1 is not used"
	says_why "a device whose driver is missing" "WARNING: $is_not_used: opening it: No such file or directory" \
		SYSFS_PATH="$TREE"
	card b "rules fail EPERM"
	says_why "a device that takes no rule" "WARNING: $is_not_used: a flow rule: Operation not permitted" \
		$(with_tree "$TREE")
	card b "rules ok"
	says_why "a process without CAP_NET_RAW" "WARNING: $is_not_used: without CAP_NET_RAW there are no raw packet queue \
pairs: Operation not permitted" $(with_tree "$TREE") setpriv --bounding-set=-net_raw
	# shellcheck disable=SC2016
	says_why "a host without libibverbs" "INFO: $is_not_used: there is no libibverbs.so.1" SYSFS_PATH="$TREE" \
		unshare --mount bash -c 'mount --bind /dev/null "$0" && exec "$@"' "$libibverbs"

	# ---- bonds ----

	bond two 0 1
	says_why "a bond of two devices" "WARNING: vs_b: RDMA devices are not used: it is a bond that no card carries \
itself (LAG)" $(with_tree "$WORK/two")
	bond one 0
	check_eq "a bond that its card carries is its card's" "$(says auto $(with_tree "$WORK/one"))" "$usable"
	bond plain
	rm -r "$WORK/plain/class/infiniband"
	check_eq "a bond without RDMA devices: nothing is said" "$(says auto SYSFS_PATH="$WORK/plain")" "$xdp"
}
for name in a b; do check_eq "no rule of the verbs is broken ($name)" "$(card_count $name violations)" 0; done
stop vmad
cards_end
done_testing
