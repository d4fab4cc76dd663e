#!/usr/bin/env bash
# The Extra API in random order, by two threads on the same sockets: no crash, no errno that a contract does not have, no
# byte of a held packet that changes; what is held comes back. The same with SocketXtreme. SEED=N begins elsewhere,
# SECONDS_EACH=N goes on for longer.
# seconds: 50
# test-all: it looks for what nobody has thought of
#
#   a: extra_random talk (the kernel's sockets) ---- veth ---- b: extra_random calls, preloaded
EXTRA_PROGRAM=extra_random
. "$(dirname "$0")/../lib_extra.sh"
seconds=${SECONDS_EACH:-6}
seed=${SEED:-$$}
run_calls() { # LABEL SEED WANTED ENVIRONMENT...
	local label=$1 begun=$2 wanted=$3
	shift 3
	start "$label" b env "$preload" "$@" "$program" calls "$IP_B" 7200 "$seconds" "$begun"
	wait_for 30 log_has "$label" '^ready'
	in_ns a timeout 120 "$program" talk "$IP_B" 7200 "$seconds"
	finish "$label" 60
	check_eq "$label in any order, begun by $begun" "$(said "$label")" "$wanted"
	note "$(grep -E '^(# |wrong:)' "$WORK/$label.log")"
}

for i in 1 2; do
	run_calls "calls$i" $((seed + i)) "zcopy some copied some callbacks some freed some wrong 0"
	run_calls "xtreme$i" $((seed + i)) "polled some accepted some twice some wrong 0" VMA_SOCKETXTREME=1
done
done_testing
