#!/usr/bin/env bash
# The Extra API in random order, by two threads on the same sockets: no crash, no errno that a contract does not have, no
# byte of a held packet that changes; what is held comes back. SEED=N begins elsewhere, SECONDS_EACH=N goes on for longer.
# seconds: 25
# test-all: it looks for what nobody has thought of
#
#   a: extra_random talk (the kernel's sockets) ---- veth ---- b: extra_random calls, preloaded
EXTRA_PROGRAM=extra_random
. "$(dirname "$0")/../lib_extra.sh"
seconds=${SECONDS_EACH:-6}
seed=${SEED:-$$}
for i in 1 2; do
	start "calls$i" b env "$preload" "$program" calls "$IP_B" 7200 "$seconds" $((seed + i))
	wait_for 30 log_has "calls$i" '^ready'
	in_ns a timeout 120 "$program" talk "$IP_B" 7200 "$seconds"
	finish "calls$i" 60
	check_eq "calls in any order, begun by $((seed + i))" "$(said "calls$i")" \
		"zcopy some copied some callbacks some freed some wrong 0"
	note "$(grep '^# ' "$WORK/calls$i.log")"
done
done_testing
