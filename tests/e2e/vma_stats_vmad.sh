#!/usr/bin/env bash
# vma_stats --vmad: who has what of an interface, as its vmad says; strangers are refused.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (vmad, two servers) b
# seconds: 15
# test-all: vmads and their clients start and end; vma_stats.sh has the usual ones
. "$(dirname "$0")/../lib_sockperf.sh"
export VMA_STATS_SHMEM_DIR=$WORK
TRAFFIC=$ROOT/tests/e2e/stats_traffic.py
PYTHON=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')

state() { # [COMMAND...]: of b's interface
	in_ns b timeout -k 1 20 env -u LD_PRELOAD "$@" "$BUILD/bin/vma_stats" --vmad "$IF_B"
}
stranger=(setpriv --reuid 65534 --regid 65534 --clear-groups)
column() { # NUMBER PID: of a process's queue pairs, all together
	awk -v column="$1" -v pid="$2" '/^queue pair PID/ { on = 1; next } on && $2 == pid { sum += $column } END { print sum + 0 }' "$WORK/state"
}

state >"$WORK/out" 2>"$WORK/err"
check_eq "without a vmad there is no answer" "$? $(wc -c <"$WORK/out")" "1 0"
check "and it is told" grep -q "$IF_B: no vmad runs for it" "$WORK/err"
"$BUILD/bin/vma_stats" --vmad none-such >"$WORK/out" 2>&1
check_eq "nor of an interface that is not there" "$? $(cat "$WORK/out")" "1 vmastat: none-such: there is no such interface"

start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"
check "vmad owns the interface" wait_for 10 log_has vmad "owns $IF_B"
check "it answers" bash -c '"$@" >"$0"' "$WORK/state" ip netns exec "$(ns b)" "$BUILD/bin/vma_stats" --vmad "$IF_B"
check "it has no clients" grep -q "^queue pairs 0; flows 0; claimed ports 0" "$WORK/state"
check_eq "and lists none" "$(grep -cE '^[0-9]' "$WORK/state")" 0

start udp b env "$with" "$PYTHON" "$TRAFFIC" udp "$IP_B" 7001 1000
start tcp b env "$with" "$PYTHON" "$TRAFFIC" listen "$IP_B" 7003
wait_for 20 log_has udp "^ready"
wait_for 20 log_has tcp "^ready"
start asker a env "$with" "$PYTHON" "$TRAFFIC" ask "$IP_B" 7001 1000
wait_for 20 log_has asker "^asked"
start peer a env "$with" "$PYTHON" "$TRAFFIC" tcp "$IP_B" 7003 100
wait_for 20 log_has peer "^info"
state >"$WORK/state"
for program in udp tcp; do
	check "$program is a client, of root" grep -qE "^[0-9]+ +${PID[$program]} +0 +ready +[0-9]" "$WORK/state"
	check_num "it has flows, or has claimed a port" $(($(column 4 "${PID[$program]}") + $(column 5 "${PID[$program]}"))) -gt 0
	check_num "and frames to send from" "$(column 11 "${PID[$program]}")" -gt 0
done
check_eq "who asks is not among them" "$(awk '/^client PID/ { on = 1; next } /^$/ { on = 0 } on' "$WORK/state" | wc -l)" 2
check_eq "flows of all are those of each" "$(sed -nE 's/^queue pairs .* flows ([0-9]+); claimed.*/\1/p' "$WORK/state")" \
	$(($(column 4 "${PID[udp]}") + $(column 4 "${PID[tcp]}")))
check "no frame is missing" grep -q "missing 0\." "$WORK/state"

state "${stranger[@]}" >"$WORK/out" 2>"$WORK/err"
check_eq "another user is refused" "$? $(wc -c <"$WORK/out")" "1 0"
check "with a sentence" grep -q "its vmad refuses this user" "$WORK/err"

tcp=${PID[tcp]}
stop tcp KILL
gone() { state >"$WORK/state" && ! grep -q " $tcp " "$WORK/state"; }
check "a client that was killed is gone" wait_for 10 gone
check "the other one is not" grep -q " ${PID[udp]} " "$WORK/state"
stop peer
stop udp
stop vmad

start vmad b "$BUILD/bin/vmad" --foreground --allow-user=65534 "$IF_B"
check "a vmad that takes the user" wait_for 10 log_has vmad "owns $IF_B"
chmod 755 "$WORK"
state "${stranger[@]}" >"$WORK/out" 2>"$WORK/err"
check_eq "tells him nothing of the others, either" "$? $(wc -c <"$WORK/out")" "1 0"
check "with the same sentence" grep -q "its vmad refuses this user" "$WORK/err"
stop vmad
done_testing
