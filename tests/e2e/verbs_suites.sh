#!/usr/bin/env bash
# The end-to-end suites of programs, and parity of UDP and TCP, over cards made of software (NIC=verbs, tests/lib.sh). Each
# compares what the kernels counted, and what the cards' rules took. SUITES='*udp*' picks some.
#
# Left out, as verbs has no vmad and a card has no other way: tcp_resets, the parity case tcp_late_unprivileged, and of
# tcp_fork python_may_not (connections of users without capabilities, and of processes that were killed); and haproxy,
# whose workers have a new root and another user when they open the card.
# parts: 3
# seconds: 300
# test-all: it runs suites again that take minutes
. "$(dirname "$0")/../lib.sh"
need_cards
cases='@(udp_*|tcp_!(late_unprivileged))'
turn=-1
# In turn, so that the parts take about as long: 200, 100, 80 s; 12, 70, 50; 8, 17, 37; 32.
for suite in parity tcp_programs tcp_connect udp_short tcp_fork udp_programs tcp_closing tcp_forking tcp_rights tcp_migration; do
	turn=$(((turn + 1) % ${PARTS:-1}))
	# shellcheck disable=SC2053 # SUITES is a pattern
	[[ $suite == ${SUITES:-*} ]] && [ $turn -eq "${PART:-0}" ] || continue
	env -u PART -u PARTS -u RUN_ID NIC=verbs CASES="$cases" PROGRAMS="!(haproxy_works|python_may_not)" bash "$ROOT/tests/e2e/$suite.sh" >"$WORK/$suite.out" 2>&1
	while IFS= read -r line; do
		case $line in
		"ok "* | "not ok "*)
			line=${line/ok [0-9]* - /ok - }
			if [[ $line == ok* ]]; then
				ok "$suite: ${line#ok - }"
			else
				not_ok "$suite: ${line#not ok - }"
			fi
			;;
		1..*) ended=$suite ;;
		"# told: "*) echo "$line" ;;
		"#"*) echo "$line" ;;
		esac
	done <"$WORK/$suite.out"
	check_eq "$suite: it came to its end" "${ended:-}" "$suite"
done
done_testing
