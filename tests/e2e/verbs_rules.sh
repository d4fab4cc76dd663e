#!/usr/bin/env bash
# A card that takes long for a rule: a thread waits for it, and the other sockets of the ring send and receive as ever. The
# card holds a rule back, or its end, until so many packets have come and gone; so no time is compared with another one.
#
#   a (10.9.0.1, kernel sockets) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, preloaded) b
#
# MEASURE=1 prints how long a round takes while rules of 1 ms are made. PHASES and PHASE_MS: how often, and how long.
# seconds: 15
# test-all: its rules take long
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
program=$BUILD/tests/verbs/beside_rules
ROUNDS=100 PHASES=${PHASES:-6} PHASE_MS=${PHASE_MS:-150}
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
cards_pair
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")

rules_held_more() { # THAN
	[ "$(card_count b rules_held)" -gt "$1" ]
}
# A connection for `make accepted`, which ends before `end accepted`, so that no TIME_WAIT of ours keeps its rule.
visit() { # make|end KIND
	case "$1 $2" in
	"make accepted") start visitor a bash -c "exec 8>&- 3<>/dev/tcp/$IP_B/7401; exec sleep 60" ;;
	"end accepted") stop visitor ;;
	esac
	return 0
}
rounds_while_held() { # make|end KIND SAID RULES: that were held before
	echo "$1 $2" >&8
	wait_for 20 rules_held_more "$4" || { echo "no rule was held back" && return 1; }
	echo "rounds $ROUNDS $1-$2" >&8
	wait_for 60 log_has ask "^$1-$2: $ROUNDS rounds" || { echo "the others have stopped" && return 1; }
	[ "$1" = end ] || [ "$2" = accepted ] || ! log_has ask "^$3" || { echo "the call did not wait for its rule" && return 1; }
}
goes_on_beside() { # make|end KIND: until the card lets go what it takes
	local said="made $2" held rc
	[ "$1" = make ] || said="ended $2"
	held=$(card_count b rules_held)
	card b "rules hold"
	visit "$@"
	rounds_while_held "$1" "$2" "$said" "$held"
	rc=$?
	card b "rules go"
	[ $rc -eq 0 ] && wait_for 20 log_has ask "^$said"
}

measurements_more() { # THAN
	[ "$(grep -c '^measured' "$WORK/ask.log")" -gt "$1" ]
}
measured() { # MS of a rule
	local before rc
	before=$(grep -c '^measured' "$WORK/ask.log")
	card b "rules slow $1"
	echo "measure $PHASES $PHASE_MS" >&8
	wait_for 60 measurements_more "$before"
	rc=$?
	card b "rules slow 0"
	return $rc
}
tell_times() { # MS of a rule
	local line
	tail -n $((PHASES + 5)) "$WORK/ask.log" | grep -E '^(UDP|TCP|measured) ' | while IFS= read -r line; do
		tell "$setting, rules of $1 ms: $line"
	done
}

start echo a "$program" echo "$IP_A"
wait_for 10 log_has echo echoes || cannot_run "the other end does not start"
for setting in VMA_THREAD_MODE=1 VMA_RX_POLL=0; do
	mkfifo "$WORK/lines"
	# shellcheck disable=SC2016
	start ask b env "$setting" "${preloaded[@]}" bash -c 'exec "$1" ask "$2" "$3" <"$4"' - "$program" "$IP_B" "$IP_A" \
		"$WORK/lines"
	exec 8>"$WORK/lines"
	echo "rounds 10 first" >&8
	check "sockets send and receive ($setting)" wait_for 20 log_has ask '^first'
	kernel=$(snmp b Udp InDatagrams)
	for kind in udp connected group listener connection accepted; do
		for what in make end; do
			check "... while the card holds back what '$what $kind' takes" goes_on_beside $what $kind
		done
	done
	for ms in 0 1; do
		check "... while sockets come and go whose rules take $ms ms" measured $ms
		[ "${MEASURE:-0}" = 0 ] || tell_times $ms
		check_num "... of which there were some" "$(sed -n 's/^measured beside \([0-9]*\).*/\1/p' "$WORK/ask.log" | tail -1)" -gt 10
	done
	check_eq "... and the kernel has seen none of it" "$(snmp b Udp InDatagrams)" "$kernel"
	exec 8>&-
	check "... until the end" finish ask 30
	check "... and nothing was lost" log_has ask 'lost 0$'
	rm -f "$WORK/lines"
done
check_eq "no rule of the verbs is broken" "$(card_count b violations)" 0
done_testing
