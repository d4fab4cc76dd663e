#!/usr/bin/env bash
# vma_stats: each output of the field's manual, of traffic that goes while it looks; counts that agree with what programs
# have counted themselves; files that are cut short; what it asks of a process.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server, watched) b
# seconds: 62
. "$(dirname "$0")/../lib_sockperf.sh"
TRAFFIC="python3 $ROOT/tests/e2e/stats_traffic.py"
DIR=$WORK/stats
mkdir "$DIR"
export VMA_STATS_SHMEM_DIR=$DIR

stats() { # ARGUMENTS...: of vma_stats, for which every process is in the same place
	timeout -k 1 20 env -u LD_PRELOAD "$BUILD/bin/vma_stats" -k "$DIR" "$@"
}

raw() { # LABEL COUNTER BLOCK: of a running program
	"$BUILD/tests/measure/print_stats" "$DIR/vmastat.${PID[$1]}" | awk -v name="$2" -v block="$3" \
		'$1 == name { value = $2; $1 = $2 = ""; sub(/^ +/, ""); if ($0 == block) print value }'
}

begin() { # LABEL NAMESPACE ROLE...: a program of stats_traffic.py, preloaded; $fd is its socket
	local label=$1 name=$2
	shift 2
	# shellcheck disable=SC2086 # two words
	start "$label" "$name" env "$with" $TRAFFIC "$@"
	check "$1 starts" wait_for 20 log_has "$label" "^ready"
	fd=$(sed -n 's/^ready //p' "$WORK/$label.log")
}

# Numbers become N, but for those of the layout's own words; runs of blanks stay as they are.
shape() {
	sed -E 's/0x[0-9a-f]+/N/g; s/[0-9]+(\.[0-9]+)*/N/g; s/ +/ /g; s/ $//'
}

# ---- which process ----

mkdir "$WORK/none"
check_eq "no process: the field's message" \
	"$("$BUILD/bin/vma_stats" -k "$WORK/none" 2>&1; echo "$?")" $'vmastat: Failed to identify process...\n1'
begin server b udp "$IP_B" 7001 1000000000
check_eq "another pid: the same" "$(stats -p $((PID[server] + 1)) 2>&1)" "vmastat: Failed to identify process..."
check "the only one is found" stats -c 1
check "by its pid" stats -p "${PID[server]}" -c 1
check "by its name" stats -n python3 -c 1
! stats -n nginx -c 1 >/dev/null 2>&1
check "and no other" test $? -eq 0
begin group b group "$IP_B" 7002 224.4.1.
check "of several there is a list" bash -c '! "$@" </dev/null 2>"$0"' "$WORK/list" "$BUILD/bin/vma_stats" -k "$DIR" -c 1
check "it has one" grep -q "pid ${PID[server]} .*" "$WORK/list"
check "and the other" grep -q "pid ${PID[group]} .*" "$WORK/list"
check_eq "of another user there is nothing" \
	"$(setpriv --reuid 65534 --regid 65534 --clear-groups "$BUILD/bin/vma_stats" -k "$DIR" -p "${PID[server]}" -c 1 2>/dev/null)" ""

# ---- view 4, view 5 ----

check_eq "groups are listed" "$(stats -p "${PID[group]}" -v 4 -c 1)" \
	"VMA Group Membership Information
Group                fd number
------------------------------
[224.4.1.3]           $fd
[224.4.1.2]           $fd"
stop group
inode=$(readlink "/proc/${PID[server]}/fd/$(sed -n 's/^ready //p' "$WORK/server.log")" | tr -dc 0-9)
check_eq "the table of sockets" "$(stats -v 5 -c 1)" \
	"Proto Offloaded Local Address          Foreign Address       State       Inode      PID
$(printf '%-5s %-9s %-22s %-21s %-11s %-10s %d' udp Yes "$IP_B:7001" '0.0.0.0:*' '' "$inode" "${PID[server]}")"

# ---- views 1 to 3, of traffic ----

fd=$(sed -n 's/^ready //p' "$WORK/server.log")
start asker a env "$with" python3 "$ROOT/tests/e2e/stats_traffic.py" ask "$IP_B" 7001 1000000000
wait_for 20 test "$(raw server socket.rx_packets "fd $fd")" -gt 100
check_eq "view 1 has the field's lines" "$(stats -p "${PID[server]}" -c 1 | shape)" "$(shape <<END
fd      ------------ total offloaded -------------   ----- total os ------
               pkt  Kbyte   eagain   error   poll%     pkt   Kbyte   error
$fd  Rx:  140479898 274374        0       0   100.0       0       0       0
    Tx:  140479902 274502        0       0               0       0       0
select() Rx Ready:15185/30372 [os/offload]
Timeouts:0 Errors:0 Poll:100.00% Polling CPU:70%
--------------------------------------------------------------------------
END
)"
check_eq "so have deltas" "$(stats -p "${PID[server]}" -d 2 -c 1 | shape)" "$(shape <<END
fd     --------------- offloaded ---------------- ---------- os ----------
             pkt/s Kbyte/s eagain/s error/s  poll%   pkt/s Kbyte/s error/s
 $fd  Rx:     15186      29        0       0    0.0       0       0       0
     Tx:     15186      29        0       0              0       0       0
select() Rx Ready:15185/30372 [os/offload]
Timeouts:0 Errors:0 Poll:100.00% Polling CPU:70%
--------------------------------------------------------------------------
END
)"
stats -p "${PID[server]}" -v 3 -c 1 >"$WORK/full"
check_eq "view 3 has the socket's lines" "$(sed '/CQ=/,$d' "$WORK/full" | head -n -1 | shape)" "$(shape <<END
======================================================
        Fd=[14]
- Blocked, MC Loop Enabled
- Bound IF  = [0.0.0.0:11111]
Tx Offload: 128 / 9413 / 0 / 0 [kilobytes/packets/drops/errors]
Rx Offload: 1128530 / 786133 / 0 / 0 [kilobytes/packets/eagains/errors]
Rx byte: cur 1470 / max 23520 / dropped 0 / limit 16777216
Rx pkt : cur 1 / max 16 / dropped 0
END
)"
check_eq "and those of a ring with its queue" "$(sed -n '/CQ=\[0\]/,/Moderation/p' "$WORK/full" | grep -v '^=' | shape)" "$(shape <<END
        CQ=[0]
Packets dropped:              0
Packets queue len:            0
Drained max:                511
Buffer pool size:           500
        RING_ETH=[0]
Tx Offload:    1192953 / 786133 [kilobytes/packets]
Rx Offload:    1192953 / 786133 [kilobytes/packets]
Interrupts:    786137 / 78613      [requests/received]
Moderation:    10 / 181            [frame count/usec period]
END
)"
check "and pools" grep -qE '^        BUFFER_POOL\((RX|TX)\)=\[0\]$' "$WORK/full"
check "view 2 has the queue, too" bash -c '"$@" | head -1 | grep -q "ready queue"' - "$BUILD/bin/vma_stats" -k "$DIR" -p "${PID[server]}" -v 2 -c 1

# ---- what it asks of the process ----

before=$(raw server socket.rx_packets "fd $fd")
check "counters are zeroed" stats -p "${PID[server]}" -z
counts_anew() { [ "$(raw server socket.rx_packets "fd $fd")" -lt "$before" ]; }
check "they begin at zero, under traffic" wait_for 5 counts_anew
grows() { [ "$(raw server socket.rx_packets "fd $fd")" -gt "$1" ]; }
check "and grow again" wait_for 10 grows "$(raw server socket.rx_packets "fd $fd")"

# ---- a file that is cut short ----

cp "$DIR/vmastat.${PID[server]}" "$WORK/whole"
truncate -s 0 "$DIR/vmastat.${PID[server]}"
check "what is cut short is refused" bash -c '! "$@" 2>"$0"' "$WORK/cut" "$BUILD/bin/vma_stats" -k "$DIR" -p "${PID[server]}" -c 1
check "with a sentence" grep -q "is no statistics file" "$WORK/cut"
cat "$WORK/whole" >"$DIR/vmastat.${PID[server]}"
check "the program goes on" wait_for 10 grows "$(raw server socket.rx_packets "fd $fd")"
head -c 100000 /dev/urandom >"$DIR/vmastat.1"
check_eq "a foreign file is passed over" "$(stats -p 1 -c 1 2>&1)" "vmastat: Failed to identify process..."
check "and was removed, for nobody holds it" test ! -e "$DIR/vmastat.1"
stop asker

# ---- the log ----

check "the log's level is set" stats -p "${PID[server]}" -l 5 -D 2
check "a dump goes to the log" stats -p "${PID[server]}" -S "$fd" info
wait_for 5 log_has server "DUMPING FD $fd STATISTICS"
check "with the details that were asked for" log_has server "^ *Pid: +${PID[server]} Tid: +[0-9]+ VMA INFO"
stop server

begin listener b listen "$IP_B" 7003
begin client a tcp "$IP_B" 7003 500
check "TCP_INFO is printed" wait_for 20 log_has client "^info"
check "a connection is dumped" stats -p "${PID[client]}" -S "$fd" info
wait_for 5 log_has client "Acknowledge : lastack"
check_eq "the dump has the field's lines" "$(sed -n 's/^ *VMA INFO *: //p' "$WORK/client.log" | shape)" "$(shape <<END
============ DUMPING FD 17 STATISTICS ============
==================== SOCKET FD ===================
Fd number : 17
Bind info : 22.0.0.4:58795
Connection info : 22.0.0.3:6666
Protocol : PROTO_TCP
Is closed : false
Is blocking : true
Rx reuse buffer pending : false
Rx reuse buffer postponed : false
Is offloaded : true
Tx Offload : 12374 / 905105 / 0 / 0 [kilobytes/packets/drops/errors]
Rx Offload : 12374 / 905104 / 0 / 0 [kilobytes/packets/eagains/errors]
Rx byte : max 14 / dropped 0 (0.00%) / limit 0
Rx pkt : max 1 / dropped 0 (0.00%)
Rx poll : 0 / 905109 (100.00%) [miss/hit]
Socket state : TCP_SOCK_CONNECTED_RDWR
Connection state : TCP_CONN_CONNECTED
Receive buffer : m_rcvbuff_current 0, m_rcvbuff_max 87380, m_rcvbuff_non_tcp_recved 0
Rx lists size : m_rx_pkt_ready_list 0, m_rx_ctl_packets_list 0, m_rx_ctl_reuse_list 0
PCB state : ESTABLISHED
PCB flags : 0x140
Segment size : mss 1460, advtsd_mss 1460
Window scaling : ENABLED, rcv_scale 7, snd_scale 7
Receive window : rcv_wnd 87380 (682), rcv_ann_wnd 87240 (681), rcv_wnd_max 87380 (682), rcv_wnd_max_desired 87380 (682)
Send window : snd_wnd 87168 (681), snd_wnd_max 8388480 (65535)
Congestion : cwnd 1662014
Receiver data : rcv_nxt 12678090, rcv_ann_right_edge 12765330
Sender data : snd_nxt 12678080, snd_wl1 12678076, snd_wl2 12678066
Send buffer : snd_buf 255986, max_snd_buff 256000
Retransmission : rtime 0, rto 3, nrtx 0
RTT variables : rttest 38, rtseq 12678066
First unsent : NULL
First unacked : NULL
Last unacked : NULL
Acknowledge : lastack 12678066
==================================================
==================================================
END
)"

# ---- counts of TCP, and why ----

info=$(sed -n 's/^info //p' "$WORK/client.log")
seen="segments_in $(raw client socket.tcp_segments_in "fd $fd") segments_out $(raw client socket.tcp_segments_out "fd $fd")"
seen="$seen bytes_in $(raw client socket.tcp_bytes_in "fd $fd") bytes_acked $(raw client socket.tcp_bytes_acked "fd $fd")"
check_eq "counts of TCP are those of TCP_INFO" "$seen retransmits $(raw client socket.tcp_retransmits "fd $fd")" "$info"
check_eq "and of the program" "$(raw client socket.tx_bytes "fd $fd") $(raw client socket.rx_bytes "fd $fd")" "50000 50000"
check_eq "both ends are in the table" "$(stats -v 5 -c 1 | awk '$1 == "tcp" { print $2, $5 }' | sort | paste -sd' ')" \
	"Yes ESTABLISHED Yes ESTABLISHED Yes LISTEN"
check "a connection that is offloaded is so by the assertion" stats -p "${PID[client]}" --assert-offloaded
check "and by its words" bash -c '"$@" | grep -q "offloaded, interface '"$IF_A"', ring 0"' - "$BUILD/bin/vma_stats" -k "$DIR" -p "${PID[client]}" -v 6 -c 1
stop client
stop listener
cat >"$WORK/libvma.conf" <<'END'
application-id * *
use os udp_receiver *:7004
END
VMA_CONFIG_FILE=$WORK/libvma.conf begin ruled b udp "$IP_B" 7004 1
check "a socket that a rule leaves to the kernel fails it" bash -c '! "$@" >"$0" 2>&1' "$WORK/why" \
	"$BUILD/bin/vma_stats" -k "$DIR" -p "${PID[ruled]}" --assert-offloaded
check "with the rule's line" grep -q 'kernel: a rule leaves it to the kernel (line 2 of libvma.conf)' "$WORK/why"
stop ruled

# ---- to the packet ----

# What the server has received it says itself, at its end.
agree() { # RUN
	local got counted
	# shellcheck disable=SC2086 # arguments
	serve "$with" $at >/dev/null 2>&1 && ask "$with" under-load $at -t 1 --mps 20000 --reply-every 10 >/dev/null || return
	sleep 0.2
	counted=$("$BUILD/tests/measure/print_stats" "$DIR/vmastat.${PID[server]}" | awk '$1 == "socket.rx_packets" { sum += $2 } END { print sum + 0 }')
	stop server INT
	got=$(sed -nE 's/.*Total ([0-9]+) messages received.*/\1/p' "$WORK/server.log")
	echo "run $1: sockperf $got, counted $counted"
	[ -n "$got" ] && [ "$got" -eq "$counted" ]
}
runs=10
[ -z "$SAN" ] || runs=2
for ((run = 1; run <= runs; run++)); do
	check "what sockperf has received is counted to the packet, run $run" agree $run || break
done

# ---- VMA_STATS_FILE, VMA_CPU_USAGE_STATS ----

# The bound is set, if only to what it is anyhow: such a wait spins however busy the host is.
VMA_STATS_FILE=$WORK/closed VMA_CPU_USAGE_STATS=1 VMA_SELECT_POLL=100000 begin server b udp "$IP_B" 7001 1000000000
fd=$(sed -n 's/^ready //p' "$WORK/server.log")
start asker a env "$with" python3 "$ROOT/tests/e2e/stats_traffic.py" ask "$IP_B" 7001 1000000000
measured() { [ "$(raw server iomux.polling_cpu select)" -gt 0 ]; }
check "the time spent looking is measured" wait_for 10 measured
check "it is a part of all" test "$(raw server iomux.polling_cpu select)" -le 100
stop asker
stop server
check_eq "what was counted is written at the end" "$(shape <"$WORK/closed")" "$(shape <<END
VMA: [fd=10] Tx Offload: 455 / 233020 / 0 [kilobytes/packets/errors]
VMA: [fd=10] Tx OS info: 0 / 0 / 0 [kilobytes/packets/errors]
VMA: [fd=10] Rx Offload: 455 / 233020 / 0 [kilobytes/packets/errors]
VMA: [fd=10] Rx OS info: 0 / 0 / 0 [kilobytes/packets/errors]
VMA: [fd=10] Rx byte: max 200 / dropped 0 (0.00%) / limit 2000000
VMA: [fd=10] Rx pkt : max 1 / dropped 0 (0.00%)
VMA: [fd=10] Rx poll: 0 / 233020 (100.00%) [miss/hit]
END
)"
done_testing
