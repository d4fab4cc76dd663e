#!/usr/bin/env bash
# verbs_card: the network card made of software (tests/verbs): what libibverbs' own tools say of it, each of its
# promises, each rule whose break it tells, and the kernel's traffic beside that of queue pairs.
# seconds: 12
# test-all: the card made of software is what it tests; verbs.sh uses it
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
cards_pair

# ---- what others see ----

devinfo=$(in_ns a "${with_cards[@]}" ibv_devinfo -v 2>&1)
says() { # TEXT: a line of ibv_devinfo, whatever its blanks
	tr -s ' \t' ' ' <<<"$devinfo" | grep -qF -- "$1" || { echo "$devinfo" && false; }
}
check "ibv_devinfo -v finds both cards" says "hca_id: vmasoft0"
check "... by their names" says "hca_id: vmasoft1"
check "... the ports are active" says "state: PORT_ACTIVE (4)"
check "... and Ethernet" says "link_layer: Ethernet"
check "... raw frames have checksums" says "RAW_IP_CSUM"
says_guid() {
	local guid
	guid=$(python3 -c 'import sys; m = [int(x, 16) for x in sys.argv[1].split(":")]; m[0] ^= 2
print("%02x%02x:%02xff:fe%02x:%02x%02x" % tuple(m))' "$1")
	says "node_guid: $guid" && says "GID[ 0]: fe80:" && says ":${guid#*:}, RoCE v1"
}
check "... GUID and GID are made of the interface's address" says_guid "$MAC_A"
check "a command that did not ask for cards sees none" bash -c '! ibv_devinfo 2>&1 | grep -q vmasoft'

# ---- the kernel's side ----

ping_rounds() {
	in_ns a ping -c "$1" -i 0.02 -W 2 -q "$IP_B"
}
before=$(card_count b rx_tap)
check "the kernels reach each other through the cards" ping_rounds 20
check_num "... over the wire, into the other card's interface" "$(($(card_count b rx_tap) - before))" -ge 20

datagrams() { # from the kernel of a to the port
	in_ns a bash -c "for i in 1 2 3 4 5 6 7 8 9 10; do echo datagram >/dev/udp/$IP_B/7000; done"
}
no_port() { # the kernel of b has turned this many datagrams away
	[ $(($(snmp b Udp NoPorts) - before)) -eq "$1" ]
}
before=$(snmp b Udp NoPorts)
start hold a "${with_cards[@]}" "$BUILD/tests/verbs/cases" card_hold_port_until_10_datagrams
check "a queue pair takes a port from the kernel" wait_for 20 log_has hold holding
check "... beside it the kernels still reach each other" ping_rounds 20
datagrams
check "... the datagrams that a kernel sends to the port are the queue pair's" finish hold 20
check_eq "... the other kernel saw none of them" "$(snmp b Udp NoPorts)" "$before"
datagrams
check "... and afterwards it gets all again" wait_for 5 no_port 10

# ---- promises and rules ----

run_case() { # NAME
	in_ns a "${with_cards[@]}" "$BUILD/tests/verbs/cases" "$1"
}
breaks_rule() { # NAME REGEX
	local before=() rc
	[ "$1" != break_no_right ] || before=(setpriv --bounding-set -net_raw --inh-caps -all)
	in_ns a "${with_cards[@]}" "${before[@]}" "$BUILD/tests/verbs/cases" "$1" >"$WORK/broken" 2>&1
	rc=$?
	cat "$WORK/broken"
	[ $rc -eq 134 ] && grep -qE "vmasoft: rule broken: .*($2)" "$WORK/broken"
}
while IFS=: read -r name sentence; do
	sentence=${sentence# }
	case $name in
	break_*) check "a broken rule aborts: $sentence" breaks_rule "$name" "$sentence" ;;
	card_hold_* | card_use_until_it_ends) ;; # above
	last_removed_*) removed=$name removed_sentence=$sentence ;;
	last_inserted_*) inserted=$name inserted_sentence=$sentence ;;
	*) check "$sentence" run_case "$name" ;;
	esac
done < <("$BUILD/tests/verbs/cases")

lenient() {
	VMASOFT_RULES=error run_case break_send_in_state 2>&1 | tee "$WORK/broken"
	[ "${PIPESTATUS[0]}" -eq 0 ] && grep -q "vmasoft: rule broken: .*a send is posted in state" "$WORK/broken"
}
check "with VMASOFT_RULES=error a broken rule is told, and the call fails" lenient

check "$removed_sentence" run_case "$removed"
check "a removed device is no port of the kernel any more" wait_for 5 bash -c \
	"! ip netns exec $(ns a) ping -c 1 -W 1 -q $IP_B"
card b insert
check "$inserted_sentence" run_case "$inserted"
check "... and is a port of the kernel again" wait_for 5 in_ns a ping -c 1 -W 1 -q "$IP_B"

check "the cards ran through all of it" alive card_a
check "... both" alive card_b

# ---- a card's end ----

cards_end
cards_pair
start hold a "${with_cards[@]}" "$BUILD/tests/verbs/cases" card_use_until_it_ends
check "a program uses two cards" wait_for 20 log_has hold holding
stop card_b
check_eq "... a card ends when it is told to" "$?" 0
check "... the program's calls fail, none of them waits, and the other card's port is down" finish hold 30
stop card_a
check_eq "... the other card ends, too" "$?" 0
done_testing
