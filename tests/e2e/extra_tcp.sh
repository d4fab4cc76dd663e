#!/usr/bin/env bash
# The Extra API on TCP, between two namespaces: every byte is in its place, without copies, with callbacks, and mixed
# with plain receives; also if segments are lost. Who frees nothing stops its peer and nobody else; who breaks the rules
# gets an error.
# seconds: 13
#
#   a: extra_tcp send (the kernel's sockets) ---- veth ---- b: extra_tcp, preloaded
EXTRA_PROGRAM=extra_tcp
. "$(dirname "$0")/../lib_extra.sh"
port=7100
serve() { # LABEL ROLE BYTES
	port=$((port + 1))
	start "$1" b env "$preload" "$program" "$2" "$IP_B" $port "$3"
	wait_for 30 log_has "$1" '^ready'
}
talk() { # LABEL ROLE BYTES
	serve "$@"
	in_ns a timeout 120 "$program" send "$IP_B" $port "$3"
	finish "$1" 60
}

size=20000000
before=$(snmp b Tcp InSegs)
talk zcopy zcopy $size
check_eq "without a copy, but for what is small and much: every byte" "$(said zcopy | sed 's/copied [a-z]*/-/')" \
	"bytes $size zcopy most - wrong 0"
talk force force $size
check_eq "with force nothing is copied to the program" "$(said force)" "bytes $size zcopy most copied none wrong 0"
# How much is left uncopied depends on when the segments come.
talk_mixed() {
	talk mixed mixed $size
	left=$(grep -c 'zcopy most' <<<"$(said mixed)")
}
remeasure 3 "in turns with plain receives, most bytes are left uncopied" left -eq 1 talk_mixed
check_num "in turns with plain receives, most bytes are left uncopied" "$left" -eq 1
check_eq "... and every byte comes" "$(said mixed)" "bytes $size zcopy most copied some wrong 0"
talk callback callback $size
check_eq "callbacks: dropped, received, held and freed by another thread" "$(said callback)" \
	"bytes $size sum $size each 1 wrong 0"
talk copies copies 16000
check_eq "what came before the first call is given by force, and is held together" "$(said copies)" \
	"bytes 16000 copied none held some wrong 0"
talk closed closed 50000
check_eq "pieces are read and freed after the close" "$(said closed)" "bytes 50000 freed some wrong 0"
talk misuse misuse 100000
check_eq "who breaks the rules gets an error" "$(said misuse)" "calls 2 wrong 0"

# ---- who frees nothing ----

serve hold hold $size
start sender a "$program" send "$IP_B" $port $size
serve neighbour zcopy 3000000
in_ns a timeout 120 "$program" send "$IP_B" $port 3000000
finish neighbour 60
check_eq "no other socket starves beside who holds all" "$(said neighbour | sed 's/copied [a-z]*/-/')" \
	"bytes 3000000 zcopy most - wrong 0"
finish hold 90
check_eq "its peer has to wait, and goes on when all is freed" "$(said hold)" "stopped 1 bytes $size wrong 0"
finish sender 60
# ---- killed ----

serve other zcopy 3000000 # a process on the same interface, from before the kills until after them
other_port=$port
for i in 1 2 3 4; do
	serve "kept$i" keep $size
	start "sender$i" a timeout 120 "$program" send "$IP_B" $port $size
	wait_for 60 log_has "kept$i" '^kept'
	got=$(said "kept$i")
	check_num "a process holds frames of a stream ($i)" "${got#kept }" -gt 16
	stop "kept$i" KILL
	check "its peer gets its end when it is killed ($i)" wait_for 60 gone "${PID[sender$i]}"
	reap "sender$i" # by its error
done
in_ns a timeout 120 "$program" send "$IP_B" $other_port 3000000
finish other 60
check_eq "another process goes on, and has frames enough" "$(said other | sed 's/copied [a-z]*/-/')" \
	"bytes 3000000 zcopy most - wrong 0"

# ---- the example ----

start echo b env "$preload" "$BUILD/examples/extra/tcp_zcopy_echo" "$IP_B" 7190 3
wait_for 30 log_has echo '^listening, without copies'
in_ns a timeout 120 python3 -c "
import os, socket, threading
def talk(i):
    s = socket.create_connection(('$IP_B', 7190))
    sent = os.urandom(2000000 + i)
    threading.Thread(target=lambda: (s.sendall(sent), s.shutdown(socket.SHUT_WR))).start()
    back = bytearray()
    while more := s.recv(65536): back += more
    print('same\\n' if back == sent else 'other\\n', end='')
for t in [threading.Thread(target=talk, args=(i,)) for i in range(3)]: t.start()
" >"$WORK/echoed.log" 2>&1
check_eq "a server sends back three streams from the frames in which they came" "$(sort "$WORK/echoed.log" | uniq -c | xargs)" \
	"3 same"
finish echo 60
read -r connections _ zero _ _ _ _ copies _ < <(said echo | tr -d ,)
check_eq "and knows each byte" "$connections $((zero + copies))" "3 6000003"
check_num "most without a copy" "$zero" -gt 3000000

check_num "few segments were the kernel's" $(($(snmp b Tcp InSegs) - before)) -le 50

talk fork fork $size
check_eq "a callback forks, and the child comes back from it" "$(said fork)" "bytes $size sum $size each 1 wrong 0"
done_testing
