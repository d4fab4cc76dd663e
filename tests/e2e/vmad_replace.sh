#!/usr/bin/env bash
# A vmad that lingers is replaced on request, and only one that may be; in a user namespace the message says so.
# seconds: 8
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
vmad=$BUILD/bin/vmad
client=$BUILD/components/nic/test/priv_xdp_client

start first b "$vmad" --foreground "$IF_B"
check "the first vmad owns the interface" wait_for 10 log_has first "owns $IF_B"
start second b "$vmad" --foreground "$IF_B"
finish second 10
check_eq "a second one ends" $? 1
check "and says what helps" log_has second "has a vmad already .--replace ends it"

start served b "$client" serve "$IF_B" "$IP_B" 7001 vmad
check "a client works with the first" wait_for 10 log_has served "^ready 7001 "
start second b "$vmad" --foreground --replace "$IF_B"
check "with --replace it owns the interface" wait_for 15 log_has second "owns $IF_B"
finish first 5
check_eq "the first has ended in good order" $? 0
served_again() {
	in_ns a "$client" ping "$IP_B" 0.2 7001 >"$WORK/ping.log" 2>&1
	awk '$1 == 7001 && $3 > 0 && $3 == $5 { ok = 1 } END { exit !ok }' "$WORK/ping.log"
}
check "the client works with the second" wait_for 20 served_again
# One that is stopped does not hear SIGTERM.
kill -STOP "${PID[second]}"
begun=$(date +%s)
start third b "$vmad" --foreground --replace "$IF_B"
check "one that is stopped is replaced" wait_for 15 log_has third "owns $IF_B"
check_num "after five seconds" $(($(date +%s) - begun)) -ge 5
check "which is said" log_has third "process ${PID[second]} of user 0, which has the interface, does not end, and is killed"
finish second 5
check_eq "it was killed" $? 137
check "the next one goes on where it was" log_has third "goes on where another vmad has ended, with 1 queue pairs"
check "the client works with the third" wait_for 20 served_again
stop served
stop third

start third b "$vmad" --foreground --replace "$IF_B"
check "without another one --replace changes nothing" wait_for 10 log_has third "owns $IF_B"
stop third

ifindex=$(in_ns b cat "/sys/class/net/$IF_B/ifindex")
cat >"$WORK/squatter.py" <<-'PY'
	import socket, sys, time
	s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
	s.bind("\0vma/vmad/" + sys.argv[1])
	s.listen()
	print("there", flush=True)
	time.sleep(60)
PY
chmod 755 "$WORK" && chmod 644 "$WORK/squatter.py"
start squatter b setpriv --reuid 65534 --clear-groups /usr/bin/python3 "$WORK/squatter.py" "$ifindex"
wait_for 10 log_has squatter there
# It has no folder of its own: /run cannot be written.
start fourth b unshare -m sh -c 'mount -t tmpfs -o ro none /run && exec "$@"' sh "$vmad" --foreground --replace "$IF_B"
finish fourth 10
check_eq "who only holds the name is not ended by it" $? 1
check "which is said" log_has fourth "process ${PID[squatter]} of user 65534, neither root nor this user"
check "and lives" alive squatter
stop squatter

# A user namespace in which root of outside is nobody's number.
start fifth b "$vmad" --foreground "$IF_B"
wait_for 10 log_has fifth "owns $IF_B"
inside() {
	in_ns b setpriv --reuid 1000 --regid 1000 --clear-groups unshare -Ur "$@"
}
if [ -z "$SAN" ] && inside true 2>/dev/null; then
	inside "$vmad" --foreground --replace "$IF_B" >"$WORK/inside.log" 2>&1
	check_num "from inside a user namespace it cannot be replaced" $? -ne 0
	check "it lives" alive fifth
	cat >"$WORK/bind.py" <<-PY
		import socket
		s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
		s.bind(("$IP_B", 7000))
	PY
	chmod 644 "$WORK/bind.py"
	inside env LD_PRELOAD="$BUILD/libvma.so" /usr/bin/python3 "$WORK/bind.py" >"$WORK/inside.log" 2>&1
	check "a program there is told where its vmad runs" log_has inside "its vmad runs outside of this user namespace"
else
	skip "from inside a user namespace" "none can be made here"
fi
stop fifth
done_testing
