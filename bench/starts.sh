#!/usr/bin/env bash
# bench/starts.sh [ROUNDS]: how much later a program starts because VMA_NIC=auto looks for an RDMA device, on a host that
# has libibverbs and no such device. A program that sends one datagram is executed with VMA_NIC=xdp, auto and xdp in turn,
# ROUNDS times each (51), with a vmad running. Prints medians in microseconds; fails if auto costs over a millisecond more.
. "$(dirname "$0")/lib.sh"
LIBRARY=$BUILD/libvma.so
ROUNDS=${1:-51}
need_machine
export VMA_TRACELEVEL=WARNING
[ -e "$LIBRARY" ] || { say "$LIBRARY is not built"; exit 1; }
ldconfig -p | grep -q libibverbs.so.1 || say "there is no libibverbs here"
[ ! -d /sys/class/infiniband ] || say "this host has RDMA devices, or their driver"
busy=$(warn_if_busy)
fresh_net
start_vmads || { say "vmad does not start"; exit 1; }
in_ns b env VMA_NIC=auto LD_PRELOAD="$LIBRARY" "$BUILD/bench/starts" one --peer "$IP_A" || { say "it does not run"; exit 1; }
in_ns b "$BUILD/bench/starts" compare --peer "$IP_A" --rounds "$ROUNDS" --library "$LIBRARY" >"$WORK/figures" || exit 1
stop vmad_a
stop vmad_b
drop_net
mkdir -p "$BUILD/bench"
awk '{ usec[$1] = $2 }
	END {
		for (i = split("wall cpu", what, " "); i >= 1; i--) {
			xdp = usec["xdp_" what[i] "_usec"]
			printf "%-4s  xdp %.0f, auto %+.0f, xdp again %+.0f us\n", what[i], xdp,
				usec["auto_" what[i] "_usec"] - xdp, usec["xdp_again_" what[i] "_usec"] - xdp
		}
		exit usec["auto_wall_usec"] - usec["xdp_wall_usec"] > 1000
	}' "$WORK/figures" | tee "$BUILD/bench/starts.txt"
late=${PIPESTATUS[0]}
[ -z "$busy" ] || echo "$busy" | tee -a "$BUILD/bench/starts.txt"
[ "$late" -eq 0 ] || say "auto starts over a millisecond later"
exit "$late"
