#!/usr/bin/env bash
# The harness itself: namespaces are joined, counters move with kernel traffic, processes and waits end, and a measurement
# is not made again in silence.
# seconds: 3
. "$(dirname "$0")/../lib.sh"
need_net
net_pair

before=$(snmp b Udp InDatagrams) packets=$(if_counter b "$IF_B" rx_packets)
start sink b python3 -c '
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7000))
print("bound", flush=True)
for _ in range(5):
	s.recv(100)
' "$IP_B"
check "a log line can be waited for" wait_for 10 log_has sink bound
in_ns a bash -c "for i in 1 2 3 4 5; do echo x >/dev/udp/$IP_B/7000; done"
check "a process ends by itself" finish sink 5
check_eq "the kernel counted five datagrams" $(($(snmp b Udp InDatagrams) - before)) 5
check_eq "the interface counted five packets" $(($(if_counter b "$IF_B" rx_packets) - packets)) 5

start sleeper a sleep 100
pid=${PID[sleeper]}
stop sleeper
check_eq "a stopped process gives its signal" $? 143
check "a stopped process is gone" gone "$pid"
check_eq "its end is nothing to tell" "${_bad_ends[*]}" ""

# Others do not end by their stop: each is told, with its status and what it said last.
bad_end() { # STATUS_OF_STOP WORDS: there is one, and it is forgotten
	check_eq "stop gives the status" "$1" "$2"
	check_eq "it is told" "${_bad_ends[*]}" "$3"
	_bad_ends=()
}
crashed() { # LABEL COMMAND: it has ended
	start "$1" a sh -c "echo last words; $2"
	wait_for 5 gone "${PID[$1]}"
}
crashed crashing 'kill -SEGV $$'
stop crashing
bad_end $? 139 "crashing, of line $((LINENO - 1)), ends by its stop
status 139, SIGSEGV before it was stopped
last words"
crashed failing 'exit 3'
stop failing
bad_end $? 3 "failing, of line $((LINENO - 1)), ends by its stop
status 3 before it was stopped
last words"
start unwilling a sh -c 'trap "exit 1" TERM; echo trapped; while :; do sleep 0.1; done'
wait_for 5 log_has unwilling trapped
stop unwilling
bad_end $? 1 "unwilling, of line $((LINENO - 1)), ends by its stop
status 1 after SIGTERM
trapped"
start killed a sh -c 'trap "kill -ABRT $$" TERM; echo trapped; while :; do sleep 0.1; done'
wait_for 5 log_has killed trapped
stop killed
bad_end $? 134 "killed, of line $((LINENO - 1)), ends by its stop
status 134, SIGABRT after SIGTERM
trapped"
crashed ready 'exit 0'
stop ready
check_eq "a process that has ended well may be stopped" "$? ${_bad_ends[*]}" "0 "
crashed reaped 'kill -SEGV $$'
reap reaped
check_eq "any end of one that is reaped is as good" "$? ${_bad_ends[*]}" "139 "
crashed left 'exit 4'
check_eq "a script fails for one that it has left" "$(done_testing)" "not ok $((_count + 1)) - left, of line $LINENO, ends by its stop
# status 4 before it was stopped
# last words
1..$((_count + 1))"
reap left

ns_add c
start parent c sh -c 'sleep 100 & echo $!; wait'
wait_for 5 log_has parent '^[0-9]'
child=$(cat "$WORK/parent.log")
stop parent
check "what a process has forked outlives it" kill -0 "$child"
ns_del c
check "and ends with its namespace" wait_for 5 gone "$child"
check "no program is attached to a fresh interface" no_xdp b "$IF_B"
started=$EPOCHSECONDS
wait_for 1 false
check_eq "a wait for what never comes fails" $? 1
check_num "and takes its time and no longer" $((EPOCHSECONDS - started)) -le 5

turn=0 seen=0
ten_more() {
	turn=$((turn + 1)) seen=$((seen + 10))
}
check_eq "a measurement that hits is made once, and nothing is told" "$(remeasure 3 cost seen -ge 10 ten_more && echo "$turn")" 1
check_eq "one that missed is made again, and all that was seen is told" "$(remeasure 3 cost seen -ge 20 ten_more)" \
	"# flaky: cost: 10 20 in 2 measurements, wanted -ge 20"
check_eq "but not for ever" "$(remeasure 3 cost seen -lt 0 ten_more)" \
	"# flaky: cost: 10 20 30 in 3 measurements, wanted -lt 0"
check_eq "one that fails is not made again" "$(remeasure 3 cost seen -lt 0 false | tail -n 1)" "# false (exit 1)"
done_testing
