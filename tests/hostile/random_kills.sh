#!/usr/bin/env bash
# vmad and clients of it are killed, ended, replaced and stopped at random, for KILL_SECONDS (60): the connections of the
# servers that are left alone never end, and never wait; at the end no queue pair, flow or frame is lost.
#
#   a (10.9.0.1): askers of the kernel's  ---- veth ----  b (10.9.0.2): vmad, two servers, two more that are killed, and
#                                                         one of the kernel's, which shows what the machine does
#
# seconds: 70
. "$(dirname "$0")/../lib_programs.sh"
net_pair
KILL_SECONDS=${KILL_SECONDS:-60}
SEED=${SEED:-$RANDOM}
RANDOM=$SEED
GAP_MS=200
[ -z "$SAN" ] || GAP_MS=2000
vmad=$BUILD/bin/vmad echo=$ROOT/tests/e2e/restart_echo.py ask=$ROOT/tests/e2e/restart_ask.py
# Beside this one lies no vmad, so clients start none.
cp "$LIBRARY" "$WORK/libvma.so"
alone=${preload//"$LIBRARY"/"$WORK/libvma.so"}
note "SEED=$SEED"

vmads=0
vmad_up() { # [OPTION...]
	vmads=$((vmads + 1))
	start "vmad$vmads" b "$vmad" --foreground "$@" "$IF_B"
	wait_for 15 log_has "vmad$vmads" "owns $IF_B"
}
current() { echo "vmad$vmads"; }
server_up() { # LABEL PORT
	start "$1" b env "$alone" python3 "$echo" "$IP_B" "$2"
	wait_for 20 log_has "$1" listening
}
number() { # LABEL WORD
	sed -n "s/^asked.*\\b$2 \\([0-9]*\\).*/\\1/p;s/^$2 \\([0-9]*\\).*/\\1/p" "$WORK/$1.log" | tail -n 1
}
pause() { # at most this many ms
	sleep "$(printf '0.%03d' $((RANDOM % $1)))"
}

check "vmad owns the interface" vmad_up
server_up one 7000
server_up two 7001
server_up victim2 7002
server_up victim3 7003
start kernel b python3 "$echo" "$IP_B" 7009
wait_for 10 log_has kernel listening
for i in 0 1 2 3 9; do
	how=''
	case $i in 2 | 3) how=loose ;; esac
	start "ask$i" a python3 "$ask" "$IP_B" 700$i 4 "$WORK/end" $how
	wait_for 20 log_has "ask$i" connected
done

end=$((SECONDS + KILL_SECONDS)) failed=0
declare -A done_=()
while [ $SECONDS -lt $end ]; do
	label=$(current)
	victim=victim$((RANDOM % 2 + 2))
	what=$((RANDOM % 8))
	case $what in
	0 | 1) stop "$label" KILL && : ; pause 100; vmad_up || failed=1 ;;
	2) stop "$label" TERM; vmad_up || failed=1 ;;
	3) vmad_up --replace || failed=1; finish "$label" 5 ;;
	4)
		kill -STOP "${PID[$label]}"
		pause 1000
		[ $((RANDOM % 4)) -ne 0 ] || sleep 4
		kill -CONT "${PID[$label]}"
		;;
	5) stop "$victim" KILL; server_up "$victim" "700${victim#victim}" || failed=2 ;;
	6) # both, while the other is away
		stop "$label" KILL
		stop "$victim" KILL
		pause 100
		vmad_up || failed=1
		server_up "$victim" "700${victim#victim}" || failed=2
		;;
	7)
		kill -STOP "${PID[$victim]}"
		pause 500
		kill -CONT "${PID[$victim]}"
		;;
	esac 2>/dev/null
	done_[$what]=$((${done_[$what]:-0} + 1))
	if [ $failed -ne 0 ]; then break; fi
	pause 400
done
note "$(for what in "${!done_[@]}"; do echo "action $what: ${done_[$what]} times"; done)"
check_eq "every vmad owned the interface, and every server that was begun anew listened" $failed 0

: >"$WORK/end"
for i in 0 1 2 3 9; do finish "ask$i" 60; done
control=$(number ask9 longest)
for i in 0 1; do
	note "$i: $(tail -n 3 "$WORK/ask$i.log"); of the kernel: $(tail -n 1 "$WORK/ask9.log")"
	check_eq "no connection of server $i has ended" "$(number "ask$i" ended)" 0
	check_num "its answers came all the time" "$(number "ask$i" longest)" -le $((GAP_MS + 2 * control))
	check_num "and were many" "$(number "ask$i" asked)" -ge $((KILL_SECONDS * 20))
done
stop one; stop two; stop victim2; stop victim3
sleep 3
label=$(current)
stop "$label" INT
note "$(grep 'queue pairs:' "$WORK/$label.log" | tail -n 1)"
check "at the end no queue pair, flow or frame is lost" sh -c "grep 'queue pairs:' '$WORK/$label.log' | tail -n 1 |
	grep -q 'queue pairs: 0; flows: 0;.*receive frames missing: 0 of'"
check "no program is left" wait_for 5 no_xdp b "$IF_B"
done_testing
