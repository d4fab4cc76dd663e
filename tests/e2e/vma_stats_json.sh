#!/usr/bin/env bash
# vma_stats --json: every counter of a running program, as it lies in the program's memory and as the text views show it;
# one document a line; names that would break a document; files that are cut short.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server, watched) b
# seconds: 15
. "$(dirname "$0")/../lib_sockperf.sh"
command -v jq >/dev/null || cannot_run "no jq"
DIR=$WORK/stats
mkdir "$DIR"
export VMA_STATS_SHMEM_DIR=$DIR

stats() { # ARGUMENTS...: of vma_stats, for which every process is in the same place
	timeout -k 1 20 env -u LD_PRELOAD "$BUILD/bin/vma_stats" -k "$DIR" "$@"
}

begin() { # LABEL NAMESPACE PROGRAM ROLE...: of stats_traffic.py, preloaded
	local label=$1 name=$2 program=$3
	shift 3
	start "$label" "$name" env "$with" "$program" "$ROOT/tests/e2e/stats_traffic.py" "$@"
	check "$label starts" wait_for 20 log_has "$label" "^ready"
}

# ---- every counter ----

# The name of this program would end a string, and is no UTF-8.
odd=$(printf '%s/py"\\},\xff' "$WORK")
ln -s "$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')" "$odd"
begin server b "$odd" udp "$IP_B" 7001 100
begin group b python3 group "$IP_B" 7002 224.4.1.
start asker a env "$with" python3 "$ROOT/tests/e2e/stats_traffic.py" ask "$IP_B" 7001 100
check "traffic has passed" wait_for 20 log_has server answered

# Of both, "TYPE.COUNTER VALUE BLOCK" a line.
memory() {
	"$BUILD/tests/measure/print_stats" "$DIR/vmastat.${PID[$1]}" | sort
}
# shellcheck disable=SC2016 # of jq
document() {
	stats -p "${PID[$1]}" --json -c 1 | jq -r '.processes[0] |
		({process: "process", iomux: "iomux", rings: "ring", cqs: "cq", nics: "nic", bufpools: "bufpool"} | to_entries[]) as $kind |
		.[$kind.key][] | .name as $name | .counters | to_entries[] | "\($kind.value).\(.key) \(.value) \($name)"' >"$WORK/blocks"
	stats -p "${PID[$1]}" --json -c 1 | jq -r '.processes[0].sockets[] | "fd \(.fd)" as $name | .counters | to_entries[] |
		"socket.\(.key) \(.value) \($name)"' | sort - "$WORK/blocks"
}
agree() { # LABEL: a sleeper may count between two readings
	memory "$1" >"$WORK/memory"
	document "$1" >"$WORK/document"
	cmp -s "$WORK/memory" "$WORK/document"
}
check "every counter is there, with its value" wait_for 20 agree server
cmp -s "$WORK/memory" "$WORK/document" || note "$(diff "$WORK/memory" "$WORK/document" | head -n 20)"
check "there are many" test "$(wc -l <"$WORK/document")" -gt 150

# ---- as the text views ----

one() { # LABEL JQ ARGUMENTS...
	local label=$1 filter=$2
	shift 2
	stats -p "${PID[$label]}" --json -c 1 "$@" | jq -r "$filter"
}
numbers() { # LABEL: of view 1: received and sent
	stats -p "${PID[$1]}" -v 1 -c 1 | awk '/Rx:/ && NF == 10 { print $3, $4, $5, $6, $8, $9, $10 } /Tx:/ { print $2, $3, $4, $5, $6, $7, $8 }'
}
check_eq "view 1 has the text's numbers" "$(one server '.processes[0].sockets[].counters |
	([.rx_packets, (.rx_bytes / 1024 | floor), .rx_eagain, .rx_errors, .rx_os_packets, (.rx_os_bytes / 1024 | floor), .rx_os_errors],
	[.tx_packets, (.tx_bytes / 1024 | floor), .tx_eagain, .tx_errors, .tx_os_packets, (.tx_os_bytes / 1024 | floor), .tx_os_errors]) |
	map(tostring) | join(" ")' -v 1)" "$(numbers server)"
check_eq "they are the program's" "$(one server '.processes[0].sockets[].counters | [.rx_packets, .rx_bytes, .tx_packets, .tx_bytes] | map(tostring) | join(" ")' -v 1)" \
	"100 20000 100 20000"
check_eq "view 3 has the rings' packets" "$(one server '[.processes[0].rings[].counters | select(.rx_packets != 0) | .rx_packets] | map(tostring) | join(" ")' -v 3)" \
	"$(stats -p "${PID[server]}" -v 3 -c 1 | sed -n '/RING_ETH/,/Interrupts/s/^Rx Offload: .* \/ \([0-9]*\) .*/\1/p' | paste -sd' ')"
check_eq "view 4 has the groups" "$(one group '.processes[0].sockets[] | "\(.groups | join(" ")) \(.fd)"' -v 4)" \
	"224.4.1.3 224.4.1.2 $(sed -n 's/^ready //p' "$WORK/group.log")"
check_eq "view 5 has the sockets of all, as the table" \
	"$(stats --json -v 5 -c 1 | jq -r '.processes[] | .pid as $pid | .sockets[] | "\(.protocol) \(.local_address):\(.local_port) \(.inode) \($pid)"')" \
	"$(stats -v 5 -c 1 | awk 'NR > 1 { print $1, $3, $5, $6 }')"
check_eq "view 6 has what the sentence says" "$(one server '.processes[0].sockets[] | "\(.offloaded) \(.interface // "none")"' -v 6)" \
	"true $(stats -p "${PID[server]}" -v 6 -c 1 | grep -oE "interface [^,]+" | cut -d' ' -f2 | grep . || echo none)"
check "an assertion holds beside it" bash -c '"$@" >"$0"' "$WORK/asserted" "$BUILD/bin/vma_stats" -k "$DIR" -p "${PID[server]}" --json --assert-offloaded
check_eq "with its document" "$(jq -r .view "$WORK/asserted")" why
check_eq "-s picks sockets" "$(one server '.processes[0].sockets | length' -s 1000)" 0

# ---- names ----

check_eq "a name that would end a string is only a name" "$(one server '.processes[0].program')" 'py"\},?'
check_eq "python reads the same" "$(stats -p "${PID[server]}" --json -c 1 | python3 -c '
import json, sys
print(json.load(sys.stdin)["processes"][0]["program"])')" 'py"\},?'

# ---- a document a line ----

stats -p "${PID[server]}" --json -d 2 -i 1 -c 2 >"$WORK/loop"
check_eq "two reports are two lines" "$(wc -l <"$WORK/loop")" 2
check_eq "each is a document, of what one interval counted" \
	"$(jq -r '"\(.interval) \(.processes[0].sockets[0].counters.rx_packets)"' "$WORK/loop" | paste -sd' ')" "1 0 1 0"
check_eq "numbers are integers" "$(head -n 1 "$WORK/loop" | jq '[.. | numbers | select(. != floor)] | length')" 0

# ---- what is no document ----

refused() { # EXPECTED MESSAGE ARGUMENTS...: status 1, a sentence, no output
	local message=$1
	shift
	stats "$@" >"$WORK/out" 2>"$WORK/err"
	[ $? -eq 1 ] && [ ! -s "$WORK/out" ] && grep -q -- "$message" "$WORK/err"
}
left_out() { # a document without it, and a sentence
	stats --json -v 5 -c 1 >"$WORK/out" 2>"$WORK/err" && jq -e .format "$WORK/out" >/dev/null &&
		! grep -q "\"pid\":${PID[server]}," "$WORK/out" && grep -q "is left out: .* is no statistics file" "$WORK/err"
}
file=$DIR/vmastat.${PID[server]}
cp "$file" "$WORK/whole"
for bytes in 0 7 30; do
	truncate -s $bytes "$file"
	check "a file cut to $bytes bytes is refused" refused "is no statistics file" -p "${PID[server]}" --json -c 1
	check "in the table of all it is left out" left_out
	cat "$WORK/whole" >"$file"
done
head -c 4096 /dev/urandom >"$DIR/foreign"
cat "$DIR/foreign" >"$file"
check "another program's file is refused" refused "is no statistics file" -p "${PID[server]}" --json -c 1
cat "$WORK/whole" >"$file"
check "a process that is not there" refused "Failed to identify process" -p 1 --json -c 1
check "the whole file is read again" bash -c '"$@" | jq -e .format' - "$BUILD/bin/vma_stats" -k "$DIR" -p "${PID[server]}" --json -c 1
check "a full disk is no success" bash -c '! "$@" >/dev/full 2>"$0"' "$WORK/err" "$BUILD/bin/vma_stats" -k "$DIR" -p "${PID[server]}" --json -c 1
check "and is told" grep -q "cannot be written" "$WORK/err"
"$BUILD/bin/vma_stats" --json=yes >"$WORK/out" 2>&1
check_eq "--json has no value" $? 64
stop asker
stop server
stop group
done_testing
