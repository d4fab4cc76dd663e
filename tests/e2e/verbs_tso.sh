#!/usr/bin/env bash
# VMA_TSO: a card that can cut large packets of TCP into segments gets them. Every byte arrives, also over a wire that
# loses frames, and the interface's own setting (ethtool) counts.
#
#   a (10.9.0.1): preloaded ---- card ---- wire ---- card ---- (10.9.0.2) b: kernel sockets, or preloaded
# seconds: 25
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")
cards_pair

cat >"$WORK/bulk.py" <<'PY'
# bulk.py serve|send ADDRESS MB: the server checks each byte, and says how many came
import socket, sys
what, address, mb = sys.argv[1], (sys.argv[2], 7000), int(sys.argv[3])
BLOCK = bytes(i * 7 + (i >> 8) & 255 for i in range(65521)) # of a length that no segment's divides
total = mb << 20
if what == "send":
    s = socket.create_connection(address)
    sent = 0
    while sent < total:
        at = sent % len(BLOCK)
        sent += s.send(BLOCK[at:at + total - sent])
    s.shutdown(socket.SHUT_WR)
    assert s.recv(100) == b"%d" % total
    print("sent", flush=True)
else:
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind(address)
    l.listen()
    print("ready", flush=True)
    s, _ = l.accept()
    got = 0
    while data := s.recv(1 << 20):
        at = got % len(BLOCK)
        assert (BLOCK * (len(data) // len(BLOCK) + 2))[at:at + len(data)] == data, got
        got += len(data)
    s.sendall(b"%d" % got)
    print("got", got, flush=True)
PY

bulk() { # MB RECEIVER ASSIGNMENTS...: RECEIVER is kernel or preloaded
	local mb=$1 receiver=() rc
	[ "$2" = kernel ] || receiver=("${preloaded[@]}")
	shift 2
	start server b "${receiver[@]}" python3 "$WORK/bulk.py" serve "$IP_B" "$mb"
	wait_for 20 log_has server ready || return
	cut_before=$(card_count a tx_cut) kernel_before=$(snmp a Tcp OutSegs)
	start sender a env "$@" "${preloaded[@]}" python3 "$WORK/bulk.py" send "$IP_B" "$mb"
	finish sender 100
	rc=$?
	cut=$(($(card_count a tx_cut) - cut_before)) by_kernel=$(($(snmp a Tcp OutSegs) - kernel_before))
	finish server 20 || rc=$?
	[ $rc -eq 0 ] && log_has server "got $((mb << 20))"
}

check "20 MB arrive with VMA_TSO=1" bulk 20 kernel VMA_TSO=1
check_num "... in packets of many segments" "$cut" -ge 600
check_num "... none of it by the kernel" "$by_kernel" -eq 0
check "... also at another preloaded program" bulk 20 preloaded VMA_TSO=1
check_num "... in packets of many segments" "$cut" -ge 600
check "... also in segments of 536 bytes" in_ns b ip route replace 10.9.0.0/24 dev "$IF_B" advmss 536
check "... whose bytes arrive" bulk 5 kernel VMA_TSO=1
check_num "... in packets of many segments" "$cut" -ge 150
in_ns b ip route replace 10.9.0.0/24 dev "$IF_B"
card a "wire loses 10000"
card b "wire loses 2000"
check "4 MB arrive over a wire that loses one frame in a hundred" bulk 4 kernel VMA_TSO=1
check_num "... in packets of several segments" "$cut" -ge 50
check_num "... and frames were lost" "$(card_count a tx_dropped)" -ge 10
card a "wire loses 0"
card b "wire loses 0"
check "5 MB arrive with VMA_TSO=0" bulk 5 kernel VMA_TSO=0
check_num "... in single segments" "$cut" -eq 0
# But for what the transfer before, whose process has ended, is still asked: its peer sends its own end again and again.
check_num "... none of it by the kernel" "$by_kernel" -le 3
in_ns a ethtool -k "$IF_A" 2>/dev/null | grep -q '^tcp-segmentation-offload: on' && own=-ge || own=-eq
check "5 MB arrive with VMA_TSO=auto" bulk 5 kernel VMA_TSO=auto
check_num "... in packets as the interface is set for the kernel" "$cut" "$own" "$([ "$own" = -eq ] && echo 0 || echo 150)"
for name in a b; do check_eq "none of it broke a rule of the verbs ($name)" "$(card_count $name violations)" 0; done
done_testing
