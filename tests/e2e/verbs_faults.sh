#!/usr/bin/env bash
# A card's faults, one after the other, under traffic of programs: each ends recovered, or with the kernel, with a line in
# the log for each change and no other. What programs have said comes as they said it; of datagrams a fault loses those that
# were on their way. And a killed process, whose peers learn of it (how soon, verbs_killed.sh measures).
#
#   a (10.9.0.1, a client on kernel sockets) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, preloaded) b
# seconds: 25
# test-all: each fault is waited for
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
cards_pair
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")
talk=$ROOT/tests/e2e/verbs_faults.py

serve() { # LABEL
	start "$1" b "${preloaded[@]}" python3 "$talk" serve "$IP_B"
	wait_for 20 log_has "$1" ready
}
ask() {
	rm -f "$WORK/stop"
	start client a python3 "$talk" ask "$IP_B" "$WORK/stop"
}
last() { # NUMBER: of the client's last whole line: 2 udp, 3 sent, 4 known, 5 lost, 7 tcp, 8 ended, 10 wrong
	awk -v n="$1" '/^udp .* wrong [0-9]+$/ { is = $n } END { print is + 0 }' "$WORK/client.log"
}
more_than() { # UDP TCP
	[ "$(last 2)" -gt "$1" ] && [ "$(last 7)" -gt "$2" ]
}
goes_on() { # both are answered, over and over
	wait_for 30 more_than $(($(last 2) + 50)) $(($(last 7) + 20))
}

# ---- what a fault costs ----

# As the client has them. From `fault` to `over` the server may have no queue.
window=$(sed -n 's/^WINDOW = //p' "$talk") patience_ms=$(awk '/^PATIENCE = / { print $3 * 1000 }' "$talk")
now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }
all_known() { [ "$(last 4)" -ge "$1" ]; }
lost_is() { [ $(($(last 5) - lost)) -le "$1" ]; }
fault() { # COMMAND: of b's card
	begun=$(now_ms) lost=$(last 5)
	card b "$1"
}
over() { took=$(($(now_ms) - begun)); }
# A datagram in flight may be lost with each queue, and after each PATIENCE without queue another one in its place. An
# answer that is late on a busy machine is none that is lost.
loses_what_was_in_flight() { # SENTENCE FAULTS: 0: nothing may be lost
	local most=0
	[ "$2" -eq 0 ] || most=$((window * ($2 + took / patience_ms)))
	wait_for 30 all_known "$(last 3)"
	wait_for 10 lost_is $most
	check_num "$1: of $window datagrams at a time, $most may be lost in $took ms" $(($(last 5) - lost)) -le $most
}

# ---- what the library says ----

library_lines() { # LABEL
	sed -n 's/^ *VMA [A-Z]*: *//p' "$WORK/$1.log"
}
said() { told=$(library_lines "$1" | wc -l); } # LABEL: up to here
says() { # SENTENCE LABEL REGEX...: since then the library has said a line for each, and nothing else
	local sentence=$1 label=$2 line lines i=0
	shift 2
	mapfile -t lines < <(library_lines "$label" | tail -n +$((told + 1)))
	said "$label"
	for line in "${lines[@]}"; do
		i=$((i + 1))
		[[ $i -gt $# || ! $line =~ ${!i} ]] || continue
		not_ok "$sentence" "line $i of $#: $line"
		return
	done
	check_eq "$sentence" $i $#
}
stopped='RDMA device vmasoft1 has stopped its queue' again='ring vs_b.*: offloaded again'

lines() { # LABEL REGEX
	grep -cE "$2" "$WORK/$1.log"
}
lines_are() { # LABEL REGEX NUMBER
	[ "$(lines "$1" "$2")" -eq "$3" ]
}
in_kernel() { # what the kernel of b counts of UDP and TCP
	echo "$(snmp b Udp InDatagrams) $(snmp b Tcp InSegs)"
}
offloaded() { # both are, for a while
	local before
	goes_on || return
	before=$(in_kernel)
	goes_on || return
	echo "the kernel counted $before before and $(in_kernel) after"
	[ "$(in_kernel)" = "$before" ]
}

check "a server of UDP and TCP starts" serve server
ask
check "its client is answered by the card" offloaded

# ---- errors of completions: another queue ----

recovered() { # TIMES, of all
	wait_for 20 lines_are server "$again" "$1"
}
n=0
said server
for fault in "sends fail 1" "receives fail 1" "sends fail 2" "receives fail 2"; do
	times=${fault##* }
	n=$((n + times))
	fault "$fault"
	check "$fault: it is bound again" recovered $n
	over
	check "... and the traffic is the card's" offloaded
	loses_what_was_in_flight "... and the loss has a bound" "$times"
	lines=()
	for ((i = 0; i < times; i++)); do lines+=("$stopped" "$again"); done
	says "... with a line for each loss, and for its end" server "${lines[@]}"
done

# ---- no rules ----

fault "rules fail ENOMEM"
check "no rules: others come and go, by the kernel" in_ns a python3 "$talk" many "$IP_B" 4 2
serve_another() { # what no rule can be had for, the kernel serves
	start other b "${preloaded[@]}" python3 -c '
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7300))
print("ready", flush=True)
while True:
    data, peer = s.recvfrom(100)
    s.sendto(data, peer)' "$IP_B"
	wait_for 20 log_has other ready
}
check "... and a program that starts meanwhile" serve_another
check "... is answered by the kernel" in_ns a python3 -c '
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.sendto(b"z", (sys.argv[1], 7300))
assert s.recv(100) == b"z"' "$IP_B"
check_eq "... and has a line that says so" "$(lines other 'a flow rule|takes no more rules')" 1
check "... and what has its rules is the card's" goes_on
card b "rules ok"
over
loses_what_was_in_flight "... and loses nothing" 0
stop other
says "... and the first server, which got none, says nothing" server

# ---- slow rules, slow completions ----

fault "rules slow 20"
check "slow rules: others come and go" in_ns a python3 "$talk" many "$IP_B" 4 2
card b "rules slow 0"
over
loses_what_was_in_flight "... and the first server loses nothing" 0
fault "completions slow 5000"
check "slow completions: all is answered" goes_on
card b "completions slow 0"
check "... and again by the card" offloaded
over
loses_what_was_in_flight "... and nothing is lost" 0
says "what is slow is no fault, and has no line" server

# ---- no memory for the next queue ----

card b "registration fail ENOMEM"
fault "sends fail 1"
n=$((n + 1))
check "no registration: the loss has its line" wait_for 10 lines_are server "$stopped" $n
check "... and so has the memory" wait_for 10 lines_are server 'no more memory for its card' 1
card b "registration ok"
check "... and when there is memory again, it is bound" recovered $n
over
check "... and the traffic is the card's" offloaded
loses_what_was_in_flight "... and the loss has a bound" 1
says "... with a line for each change" server "$stopped" 'no more memory for its card' "$again"

# ---- the port ----

for _ in 1 2; do
	fault "port down"
	sleep 0.5
	card b "port up"
	over
	check "the port goes and comes: all is answered" offloaded
	loses_what_was_in_flight "... and the loss has a bound" 1
	says "... with a line for each" server 'RDMA device vmasoft1, port 1 is down' 'RDMA device vmasoft1, port 1 is up again'
done

check_eq "no connection has ended" "$(last 8)" 0

# ---- the device goes while there is to be a new queue ----

rules_held_more() { # THAN
	[ "$(card_count b rules_held)" -gt "$1" ]
}
replaced_in_rebind() { # the next queue waits for its first rule; there is another device by then
	local held
	held=$(card_count b rules_held)
	card b "rules hold"
	fault "sends fail 1"
	wait_for 20 rules_held_more "$held" && card b replace
	card b "rules go"
}
check "the device goes during a rebind, and another one is there" replaced_in_rebind
n=$((n + 1))
check "... it is bound again" recovered $n
over
check "... and the traffic is the card's" offloaded
loses_what_was_in_flight "... and the loss has a bound" 1
says "... with a line for the loss, and for its end" server "$stopped" "$again"
card b "port down"
check "a port that is down has its line" wait_for 10 lines_are server 'port 1 is down' 3
card b remove
check "... its device goes" wait_for 10 lines_are server 'is not used: opening it' 1
card b "port up"
card b insert
n=$((n + 1))
check "... and is bound again, with the port up" recovered $n
says "... with a line for each" server 'port 1 is down' "$stopped" 'is not used: opening it' 'port 1 is up again' "$again"

check_eq "no answer was wrong" "$(last 10)" 0
touch "$WORK/stop"
finish client 20
check_eq "... and no rule of the verbs is broken" "$(card_count b violations)" 0

# ---- a process that is killed ----

cat >"$WORK/learn.py" <<'PY'
import socket, sys, time
quiet = socket.create_connection((sys.argv[1], 7200), 5)
busy = socket.create_connection((sys.argv[1], 7200), 5)
print("connected", flush=True)
for s in quiet, busy:
    s.settimeout(30)
busy.sendall(b"x")
assert busy.recv(1) == b"x"
sys.stdin.readline()
try:
    while True:
        busy.sendall(b"y")
        busy.recv(1) or sys.exit("an end, and no reset")
        time.sleep(0.05)
except ConnectionError:
    pass
PY
mkfifo "$WORK/killed"
# shellcheck disable=SC2016
start peer a bash -c 'python3 "$1" "$2" <"$3"' - "$WORK/learn.py" "$IP_B" "$WORK/killed"
exec 8>"$WORK/killed"
check "a peer has connections" wait_for 20 log_has peer connected
sleep 0.3
server_pid=$(ip netns pids "$(ns b)" | while read -r pid; do
	[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != python3 ] || echo "$pid"
done | head -1)
kill -KILL "$server_pid"
echo go >&8
exec 8>&-
check "the server is killed: its peer gets a reset" finish peer 20
stop server KILL
check "... and no rule is left" bash -c "! '$CARD' --control '$WORK/card_b' rules | grep -q ':7200'"

# ---- the card goes, and its wire with it ----

cat >"$WORK/later.py" <<'PY'
import os, socket, sys, time
early = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
early.bind((sys.argv[1], 7301))
print("waits", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7302))
print("ready", flush=True)
while True:
    data, peer = s.recvfrom(100)
    s.sendto(data, peer)
PY
start later b "${preloaded[@]}" python3 "$WORK/later.py" "$IP_B" "$WORK/back"
check "a program has a socket" wait_for 20 log_has later waits
check "the next server starts" serve last
ask
check "... and is answered by the card" offloaded
said last
card b remove
check "the card has gone: the loss has its line" wait_for 10 lines_are last "$stopped" 1
touch "$WORK/stop"
finish client 20
check_eq "... and no answer was wrong" "$(last 10)" 0
opens=$(snmp b Tcp PassiveOpens)
served() { # by whoever is there: on this host the kernel has a way
	in_ns b python3 "$talk" many "$IP_B" 2 1
}
check "... and the kernel has its sockets" wait_for 20 served
check_num "... by its own connections" $(($(snmp b Tcp PassiveOpens) - opens)) -gt 0
says "... with a line for the loss, and for what comes of it" last "$stopped" 'RDMA device vmasoft1 is not used: opening it'
check "... and the server runs on" alive last
card b insert
check "the card is back: there is a queue again" wait_for 20 lines_are last "$again" 1
says "... with a line" last "$again"
check "... also in the other program" wait_for 20 lines_are later "$again" 1
touch "$WORK/back"
check "... which makes a new socket" wait_for 20 log_has later ready
datagrams=$(snmp b Udp InDatagrams)
check "... that answers" in_ns a python3 -c '
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.sendto(b"z", (sys.argv[1], 7302))
assert s.recv(100) == b"z"' "$IP_B"
check_eq "... by the card" "$(snmp b Udp InDatagrams)" "$datagrams"
check_eq "... and no rule of the verbs is broken" "$(card_count b violations)" 0
done_testing
