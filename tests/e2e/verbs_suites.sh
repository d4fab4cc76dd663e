#!/usr/bin/env bash
# The end-to-end suites of programs, and parity of UDP and TCP, over cards made of software (NIC=verbs, tests/lib.sh). Each
# compares what the kernels counted, and what the cards' rules took. SUITES='*udp*' picks some.
#
# Left out: tcp_resets and the parity case tcp_late_unprivileged, which are about vmad, as verbs has none; and nginx's proxy of
# datagrams, whose worker has no environment, by which libibverbs finds cards that are made of software; and the case
# tcp_rare_disconnect, which asks the peer at once what has come, when a card made of software is still moving it.
# parts: 2
# seconds: 300
# test-all: it runs suites again that take minutes
. "$(dirname "$0")/../lib.sh"
need_cards
cases='@(udp_*|tcp_!(late_unprivileged|rare_disconnect))'
turn=-1
for suite in udp_programs udp_short tcp_programs tcp_closing tcp_connect parity; do
	turn=$(((turn + 1) % ${PARTS:-1}))
	# shellcheck disable=SC2053 # SUITES is a pattern
	[[ $suite == ${SUITES:-*} ]] && [ $turn -eq "${PART:-0}" ] || continue
	env -u PART -u PARTS -u RUN_ID NIC=verbs CASES="$cases" PROGRAMS="!(proxy)" bash "$ROOT/tests/e2e/$suite.sh" >"$WORK/$suite.out" 2>&1
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
