#!/usr/bin/env bash
# A card that takes long for a rule: while one thread waits for it, the others of the ring receive as ever. The rule takes
# so long here that no neighbour on this machine is taken for it.
#
#   a (10.9.0.1, kernel sockets) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, preloaded) b
# seconds: 13
# test-all: its rules take long
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
RULE_MS=400
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
cards_pair
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")
program=$ROOT/tests/e2e/verbs_rules.py

figure() { # NAME
	sed -n "s/.*$1 \([0-9]*\).*/\1/p" "$WORK/server.log" | tail -1
}

rules_are_made() { # SETTING...: of the server's environment
	mkfifo "$WORK/go"
	start accepting a python3 -c '
import socket, sys
listener = socket.create_server((sys.argv[1], 7401))
kept = [listener.accept() for _ in range(4)]
sys.stdin.readline()' "$IP_A"
	# shellcheck disable=SC2016
	start server b env "$@" "${preloaded[@]}" bash -c 'exec python3 "$1" serve "$2" "$3" "$4" <"$5"' - "$program" "$IP_B" \
		"$IP_A" $RULE_MS "$WORK/go"
	exec 8>"$WORK/go"
	wait_for 20 log_has server ready || return
	start asking a python3 "$program" ask "$IP_B"
	sleep 0.5
	before=$(snmp b Udp InDatagrams)
	card b "rules slow $RULE_MS"
	echo go >&8
	exec 8>&-
	wait_for 60 log_has server 'calls [0-9]+'
	local rc=$?
	after=$(snmp b Udp InDatagrams)
	card b "rules slow 0"
	finish server 10
	stop asking
	stop accepting
	rm -f "$WORK/go"
	return $rc
}

for setting in VMA_THREAD_MODE=1 VMA_RX_POLL=0; do
	check "sockets are made while one receives ($setting)" rules_are_made "$setting"
	check_num "... whose rules took long" "$(figure slow)" -ge 12
	check_num "... and it was not stopped for that" "$(figure stopped)" -le 1
	check_eq "... and has lost nothing" "$(figure missing)" 0
	check_eq "... and the kernel saw none of it" "$after" "$before"
done
check_eq "no rule of the verbs is broken" "$(card_count b violations)" 0
done_testing
