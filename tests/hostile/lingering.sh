#!/usr/bin/env bash
# Processes pass vmad sockets whose last close waits for a peer that does not read, in every way in which they can have
# vmad close them. It answers others all the time, and lets go of them.
#
# seconds: 32
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
client=$BUILD/components/nic/test/priv_xdp_client
ifindex=$(in_ns b cat "/sys/class/net/$IF_B/ifindex")
chmod 755 "$WORK"
cp "$ROOT/tests/hostile/lingering.py" "$WORK/"
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/python3 "$WORK/lingering.py")
start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"
check "vmad owns the interface" wait_for 10 log_has vmad "owns $IF_B"
start served b "$client" serve "$IF_B" "$IP_B" 7001 vmad
check "a client is served" wait_for 10 log_has served "^ready 7001 "
stop served
in_ns b timeout 20 "${nobody[@]}" probe "$ifindex" 2 >"$WORK/probe.log" 2>&1
alone_ms=$(sed -n 's/^longest //p' "$WORK/probe.log") # how long an answer takes while nobody attacks
threads() {
	find "/proc/${PID[vmad]}/task" -mindepth 1 -maxdepth 1 | wc -l
}
open_sockets() {
	find "/proc/${PID[vmad]}/fd" -lname 'socket:*' | wc -l
}
before=$(open_sockets)
has_let_go() { [ "$(open_sockets)" -le "$before" ]; }

attack() { # LABEL KIND
	local who=("${nobody[@]}")
	[ "$2" != file ] || who=(/usr/bin/python3 "$WORK/lingering.py")
	mkdir -p "$WORK/$1"
	start "$1" b "${who[@]}" attack "$ifindex" "$2" "$WORK/$1"
	wait_for 20 log_has "$1" sent
}

for kind in passed queued crowd file; do
	if [ $kind = file ] && ! attack attack0 file; then
		skip "file" "$(cat "$WORK/attack0.log")"
		continue
	fi
	# vmad hears the message when the sender has closed its own.
	kill -STOP "${PID[vmad]}"
	for i in 1 2 3; do check "$kind: sent ($i)" attack "attack$i" $kind; done
	kill -CONT "${PID[vmad]}"
	in_ns b timeout 90 "${nobody[@]}" probe "$ifindex" 3 >"$WORK/probe.log" 2>&1
	check_eq "$kind: others are answered" $? 0
	check_num "$kind: at once (milliseconds)" "$(sed -n 's/^longest //p' "$WORK/probe.log")" -lt $((500 + 2 * alone_ms))
	start served b "$client" serve "$IF_B" "$IP_B" 7001 vmad
	check "$kind: a client can begin" wait_for 10 log_has served "^ready 7001 "
	stop served
	check_num "$kind: threads of vmad" "$(threads)" -le 16
	# Nothing but its own end ends a file system.
	[ $kind != file ] || for i in 0 1 2 3; do stop "attack$i" KILL; done
	check "$kind: vmad lets go of what was passed" wait_for 15 has_let_go
	[ $kind = file ] || for i in 1 2 3; do stop "attack$i" KILL; done
done
check "vmad lives" alive vmad
stop vmad
check_eq "it ends in good order" $? 0
done_testing
