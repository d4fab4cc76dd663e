#!/usr/bin/env bash
# Time stamps of received datagrams by the card: VMA_HW_TS_CONVERSION, SO_TIMESTAMPING, SO_TIMESTAMPNS, SIOCSHWTSTAMP.
# The card's counter has 6.4 ns a tick.
#
#   a (10.9.0.1) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2) b: a program that is preloaded
# seconds: 25
# test-all: clocks are read for many seconds
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
# The shell puts the library behind what the cards preload.
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO}
cards_pair

stamps_are() { # CONVERSION KIND [IFNAME]
	before=$(snmp b Udp InDatagrams)
	start receiver b env VMA_HW_TS_CONVERSION="$1" "${preloaded[@]}" python3 "$ROOT/tests/e2e/verbs_stamps.py" \
		"$IP_B" "${@:2}"
	wait_for 20 log_has receiver ready || return
	sleep 0.2
	in_ns a python3 "$ROOT/tests/e2e/verbs_stamps.py" "$IP_B" send 40
	finish receiver 30 || return
	after=$(snmp b Udp InDatagrams)
	log_has receiver right
}

check "0: the card gives no stamps" stamps_are 0 NONE
check_eq "... and the kernel saw none of the datagrams" "$after" "$before"
check "... and stamps by software are there" stamps_are 0 SOFTWARE
check "1: the card's own time, in nanoseconds" stamps_are 1 OWN
check_eq "... and the kernel saw none of the datagrams" "$after" "$before"
check "2: the system's time" stamps_are 2 SYSTEM
check "3: the system's time" stamps_are 3 SYSTEM
check_eq "... and the kernel saw none of the datagrams" "$after" "$before"
check "... and the interface's stamps can be switched on, as for the kernel" stamps_are 3 SYSTEM "$IF_B"
check "4: the clock that PTP sets" stamps_are 4 WALL
for name in a b; do check_eq "the stamps broke no rule of the verbs ($name)" "$(card_count $name violations)" 0; done
done_testing
