#!/usr/bin/env bash
# vma_stats -t: what it shows of a connection is what TCP_INFO says to the connection's own program, in the words of ss.
#
#   a (client, watched)  10.9.0.1 ---- veth ---- 10.9.0.2  (server) b
# seconds: 10
. "$(dirname "$0")/../lib_sockperf.sh"
DIR=$WORK/stats
mkdir "$DIR"
export VMA_STATS_SHMEM_DIR=$DIR

stats() { # ARGUMENTS...: of vma_stats, for which every process is in the same place
	timeout -k 1 20 env -u LD_PRELOAD "$BUILD/bin/vma_stats" -k "$DIR" "$@"
}

begin() { # LABEL NAMESPACE PRELOAD ROLE...: of stats_traffic.py; $fd is its socket
	local label=$1 name=$2 preload=$3
	shift 3
	start "$label" "$name" env ${preload:+"$preload"} python3 "$ROOT/tests/e2e/stats_traffic.py" "$@"
	check "$1 starts" wait_for 20 log_has "$label" "^ready"
	fd=$(sed -n 's/^ready //p' "$WORK/$label.log")
}

VMA_TCP_CC_ALGO=0 begin listener b "$with" listen "$IP_B" 7003
begin client a "$with" info "$IP_B" 7003 cubic
wait_for 20 log_has client "^info"
stats -t -c 1 -p "${PID[client]}" >"$WORK/table"
check_eq "the columns are those of ss" "$(head -n 1 "$WORK/table")" \
	"State      Recv-Q Send-Q     Local Address:Port      Peer Address:Port  Process"
check_eq "a connection with what was not read" "$(sed -n 2p "$WORK/table" | awk '{ print $1, $2, $3, $5, $6 }')" \
	"ESTAB 300 0 $IP_B:7003 users:((\"python3\",pid=${PID[client]},fd=$fd))"
# "send", a rate, is made of others.
check_eq "what is known of it is what TCP_INFO says" "$(sed -n 3p "$WORK/table" | sed -E 's/^[[:space:]]*//; s/ send [0-9]+bps//')" \
	"$(sed -n 's/^info //p' "$WORK/client.log")"
check_eq "nothing else is there" "$(wc -l <"$WORK/table")" 3
stats -t -c 1 >"$WORK/all"
check_eq "without -p there are the sockets of all programs" "$(awk '/pid=/ { print $1 }' "$WORK/all" | sort | paste -sd' ')" \
	"ESTAB ESTAB LISTEN"
check "a listener has no queues that are known" grep -qE "^LISTEN +- +- +$IP_B:7003 " "$WORK/all"
check "the server has its own congestion control" grep -q "reno wscale:" "$WORK/all" || note "$(cat "$WORK/all")"
check_eq "-s picks sockets" "$(stats -t -c 1 -s 1000 | wc -l)" 1
check_eq "two reports are two tables" "$(stats -t -c 2 -i 1 -p "${PID[client]}" | grep -c ^State)" 2

# ---- the words, beside ss ----

begin plain b "" listen "$IP_B" 7004
begin kernel a "" info "$IP_B" 7004 cubic
wait_for 20 log_has kernel "^info"
words() { # FILE: keys of lines that begin with a tab
	sed -n 's/^\t//p' "$1" | tr ' ' '\n' | sed -nE 's/^([a-z_]+):.*/\1/p' | sort -u
}
in_ns a ss -tin >"$WORK/ss"
check_eq "ss has each word, too" "$(comm -23 <(words "$WORK/table") <(words "$WORK/ss"))" ""
stop kernel
reap plain # by a reset

for arguments in "-t -v 1" "-t --json" "-t -d 2"; do
	# shellcheck disable=SC2086 # words
	"$BUILD/bin/vma_stats" $arguments >"$WORK/out" 2>&1
	check_eq "$arguments: no" "$? $(grep -c "does not go with" "$WORK/out")" "64 1"
done
stop client
reap listener # by a reset
done_testing
