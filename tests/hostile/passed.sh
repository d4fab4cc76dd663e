#!/usr/bin/env bash
# A listener is passed on by SCM_RIGHTS, and a process of nobody's that does not have it answers for it: it is not
# believed, nobody hangs, and who has got the listener serves it. And such a process that asks for the listener gets nothing.
#
# seconds: 5
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server
chmod 755 "$WORK"
cp "$ROOT/tests/hostile/passed.py" "$WORK/"
port=7950
for kind in few pipe; do
	port=$((port + 1))
	serve server python3 "$WORK/passed.py" serve "$IP_B" $port
	check "$kind: the server listens" wait_for 20 log_has server cookie
	start liar b setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/python3 "$WORK/passed.py" answer \
		"$(sed -n 's/^cookie //p' "$WORK/server.log")" $kind
	check "$kind: another answers for it" wait_for 20 log_has liar bound
	kill -USR1 "${PID[server]}"
	check "$kind: it is passed on" wait_for 10 log_has server taken
	check "$kind: the other was asked" wait_for 5 log_has liar answered
	check "$kind: who has it serves it" client python3 "$WORK/passed.py" ask "$IP_B" $port 20
	check "$kind: the server lives" alive server
	stop liar
	stop server
done

rm -f "$WORK/server.log"
serve server python3 "$WORK/passed.py" serve "$IP_B" 7953 keep
check "beg: the server listens" wait_for 20 log_has server cookie
kill -USR1 "${PID[server]}"
check "beg: it is passed on" wait_for 10 log_has server taken
cookie=$(sed -n 's/^cookie //p' "$WORK/server.log")
beg() { # COMMAND...
	in_ns b timeout 30 "$@" /usr/bin/python3 "$WORK/passed.py" beg "$cookie"
}
check_eq "beg: root is answered" "$(beg env)" "got 3 descriptors"
check_eq "beg: another user is not" "$(beg setpriv --reuid 65534 --regid 65534 --clear-groups)" "got 0 descriptors"
check "beg: who has it serves it" client python3 "$WORK/passed.py" ask "$IP_B" 7953 20
stop server
done_testing
