#!/usr/bin/env bash
# share/verbs/verbs_report over two cards made of software: each check runs, and says what is so of these cards.
#
#   a (10.9.0.1): verbs_report serve ---- card ---- wire ---- card ---- vs_b (10.9.0.2) b: verbs_report
# seconds: 60
# test-all: each check of the report lasts for seconds
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
command -v sockperf >/dev/null || cannot_run "no sockperf"
report=$ROOT/share/verbs/verbs_report
cards_pair
ip -n "$(ns a)" route add 239.0.0.0/8 dev "$IF_A"
ip -n "$(ns b)" route add 239.0.0.0/8 dev "$IF_B"

start serve a "$report" serve "$IP_A"
wait_for 10 log_has serve ready

reports() { # CHECK...: the report; shown if it has failed
	in_ns b env LIBVMA="$BUILD/libvma.so" VERBS_REPORT_RULES=60 "${with_cards[@]}" "$report" "$IF_B" "$IP_A" "$@" \
		>"$WORK/report.log" 2>&1 || { cat "$WORK/report.log" && false; }
}
says() { # REGEX
	grep -qE -- "$1" "$WORK/report.log" || { cat "$WORK/report.log" && false; }
}

check "the report runs" reports host open latency blueflame direct rules miss multicast clock pacing
check "... and tells what the card is" says '^host +info +hca_id: vmasoft'
check "... and its firmware" says '^host +info +fw_ver'
check "... that it is opened" says '^open +pass +RDMA device vmasoft1'
check "... latencies beside the kernel's" says '^latency +info +udp: [0-9.]+ us one way.*; [0-9.]+ us by kernel'
check "... also of TCP" says '^latency +info +tcp: [0-9.]+ us'
check "... and without the register for small packets" says '^blueflame +info +[0-9.]+ us one way, [0-9.]+ us with'
check "... that its rings are libibverbs' business" says '^direct +info .*VMA_MLX5_DIRECT has no effect on RDMA device vmasoft1'
check "... what a rule costs" says '^rules +info +60 sockets bound; [0-9]+ us each'
check "... that other packets come to the kernel" says '^miss +pass '
check "... what comes of own multicast" says '^multicast +(pass|fail) +of 5 own'
for conversion in 1 2 3 4; do
	check "... that packets are stamped, in order (conversion $conversion)" \
		says "^clock +pass +VMA_HW_TS_CONVERSION=$conversion: 50 of 50 stamped"
done
check "... and the pace, as the other host sees it" says '^pacing +pass +500 of 500 came'
check "fragments are a check of their own" reports fragments
check "... which tells who has taken them" says '^fragments +(pass|info) .*the kernel took [0-9]+ datagrams'
for name in a b; do check_eq "the report broke no rule of the verbs ($name)" "$(card_count $name violations)" 0; done

check "an interface that is not there is told" bash -c "! '$report' nothing0 $IP_A 2>&1 | grep -v 'no interface nothing0'"
check "a check that is not there is told" bash -c "! '$report' lo $IP_A nothing 2>&1 | grep -v 'no check nothing'"
check "without arguments it says how it is used" bash -c "'$report' 2>&1 | grep -q 'verbs_report serve ADDRESS'"
done_testing
