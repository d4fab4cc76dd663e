#!/usr/bin/env bash
# vma_stats --report: one text with all that is known of a program, and nothing that is secret.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server, reported) b
# seconds: 10
. "$(dirname "$0")/../lib_sockperf.sh"
DIR=$WORK/stats
mkdir "$DIR"
export VMA_STATS_SHMEM_DIR=$DIR
PYTHON=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
stats=(env -u LD_PRELOAD "$BUILD/bin/vma_stats" -k "$DIR")

start server b env "$with" VMA_TRACELEVEL=INFO VMA_LOG_FILE="$WORK/log.%d" XLIO_RX_POLL=7 PASSWORD=hunter2 NOT_VMA_SECRET=hunter2 \
	"$PYTHON" "$ROOT/tests/e2e/stats_traffic.py" udp "$IP_B" 7001 50
check "a program starts" wait_for 20 log_has server "^ready"
start asker a env "$with" "$PYTHON" "$ROOT/tests/e2e/stats_traffic.py" ask "$IP_B" 7001 50
check "traffic has passed" wait_for 20 log_has server answered

# Of a namespace's owner a name that a terminal would obey.
check "an interface has a name with control characters" ip -n "$(ns b)" link add $'odd\033[31m\007' type veth peer name plain
check "a report is written" timeout 20 "${stats[@]}" -p "${PID[server]}" --report -o "$WORK/report"
check_eq "for this user only" "$(stat -c %a "$WORK/report")" 600
has() { # SENTENCE REGEX
	check "$1" grep -qE -- "$2" "$WORK/report"
}
has "version" "^libvma [0-9]"
has "process" "^process ${PID[server]}: python3"
has "kernel" "^kernel $(uname -r) "
has "parameters" "^VMA_TRACELEVEL=INFO$"
has "and their twins" "^XLIO_RX_POLL=7$"
check_eq "but nothing else of the environment" "$(grep -c hunter2 "$WORK/report")" 0
for view in "view 2: sockets" "view 3: all counters" "view 4: groups" "view 5: netstat" "view 6: why" "TCP connections"; do
	has "$view" "^==== $view ====$"
done
has "the program's packets" "^Rx Offload: [0-9]+ / 50 / "
has "its interface" "^$IF_B: number [0-9]+, MTU [0-9]+, driver veth, XDP program [1-9]"
has "another one" "^lo: number 1, MTU [0-9]+.*XDP program 0 \(none\)"
has "the odd one" "^odd\?\[31m\?: number [0-9]+"
has "and its vmad" "^==== vmad of odd\?\[31m\? ====$"
has "its vmad" "^interface $IF_B: 1 device queues"
has "which it rents from" "^[0-9]+ +${PID[server]} +0 +ready"
has "the log" "VMA INFO"
check_eq "no byte is printed that a terminal could obey" "$(LC_ALL=C grep -cP '[^\x20-\x7e\t]' "$WORK/report")" 0
timeout 20 "${stats[@]}" -p "${PID[server]}" --report >"$WORK/printed"
check_eq "without -o it is printed" "$? $(grep -c ^==== "$WORK/printed")" "0 $(grep -c ^==== "$WORK/report")"

# ---- what it does not do ----

ln -s "$WORK/elsewhere" "$WORK/link"
"${stats[@]}" -p "${PID[server]}" --report -o "$WORK/link" >/dev/null 2>&1
check_eq "a symbolic link is not followed" "$? $(test -e "$WORK/elsewhere"; echo $?)" "1 1"
"${stats[@]}" -p "${PID[server]}" --report -o /dev/full >/dev/null 2>"$WORK/err"
check_eq "a full disk is told" "$? $(cat "$WORK/err")" "1 vmastat: /dev/full cannot be written"
log=$WORK/log.${PID[server]}
chown 65534 "$log"
"${stats[@]}" -p "${PID[server]}" --report >"$WORK/printed"
check "a log of another user is not shown" grep -q "no file of the process's user" "$WORK/printed"
stop asker
stop server
done_testing
