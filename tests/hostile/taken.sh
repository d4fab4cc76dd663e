#!/usr/bin/env bash
# An offloaded connection, and processes that want it by the way of pidfd_getfd, or are in the way: another user floods its
# owner with questions, root asks without having the socket, another user has bound the owner's name. The connection goes
# on past the kernel, nobody hangs, and a process that has it gets it also while others flood.
#
# seconds: 35
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server
chmod 755 "$WORK"
cp "$ROOT/tests/hostile/taken.py" "$WORK/"
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)

begin() { # PORT [COMMAND...]: a server without sockets, started by a command that forks it
	local port=$1
	shift
	rm -f "$WORK/go" "$WORK/server.log" "$WORK/ping.log" "$WORK/take.log" # what is waited for below is this case's
	serve server "$@" python3 "$WORK/taken.py" serve "$IP_B" "$port" "$WORK/go"
	check "$case: the server starts" wait_for 20 log_has server '^pid'
	pid=$(sed -n 's/^pid //p' "$WORK/server.log")
	[ $# -eq 0 ] || pid=$(cat "/proc/${PID[server]}/task/${PID[server]}/children")
}
connect() { # PORT SECONDS: its connection, on which something is said for so long, and again when `say` is closed
	touch "$WORK/go"
	check "$case: the server listens" wait_for 20 log_has server '^listens'
	rm -f "$WORK/say"
	mkfifo "$WORK/say"
	start ping a sh -c "exec /usr/bin/python3 '$WORK/taken.py' ping $IP_B $1 $2 <'$WORK/say'"
	exec 7>"$WORK/say"
	check "$case: it has a connection" wait_for 10 log_has server '^socket'
	read -r fd cookie < <(sed -n 's/^socket //p' "$WORK/server.log")
}
say_again() {
	exec 7>&-
	check "$case: the connection goes on" wait_for 20 log_has ping '^still'
	stop ping
}
as() { # COMMAND...: in the server's network namespace, without the library
	in_ns b timeout -k 1 30 "$@"
}

case="another user's flood"
begin 7961
count_from
connect 7961 5
before=$(ls "/proc/$pid/fd" | wc -l)
for i in 1 2 3; do
	start flood$i b "${nobody[@]}" /usr/bin/python3 "$WORK/taken.py" flood "$pid" "$fd" "$cookie" 3
	check "$case: it begins ($i)" wait_for 10 log_has flood$i flooding
done
check "$case: the connection is talked on meanwhile" wait_for 20 log_has ping '^rounds'
for i in 1 2 3; do
	check "$case: it ends ($i)" wait_for 20 log_has flood$i answered
	check "$case: it is refused ($i)" log_has flood$i '^answered 0 refused [1-9]'
	note "$(tail -n 1 "$WORK/flood$i.log")"
done
note "$(tail -n 1 "$WORK/ping.log")"
check_num "$case: the owner has no more descriptors" "$(ls "/proc/$pid/fd" | wc -l)" -le "$before"

case="root without the socket"
check_eq "$case: it is not handed over" "$(as python3 "$WORK/taken.py" ask "$pid" "$fd" "$cookie" | tr '\n' ' ')" \
	"1 0 0 0 0 0 0 "
say_again
still "$case, and the flood"

case="taken during a flood"
stop server
begin 7962
connect 7962 1
start flood b "${nobody[@]}" /usr/bin/python3 "$WORK/taken.py" flood "$pid" "$fd" "$cookie" 8
check "$case: it begins" wait_for 10 log_has flood flooding
start take b env "$preload" python3 "$WORK/taken.py" take "$pid" "$fd" 8
check "$case: the taker is connected" wait_for 10 log_has take '^connected'
check "$case: meanwhile" eval '! log_has flood answered'
say_again
stop take
stop flood
stop server

case="an owner in a pid namespace of its own"
begin 7964 unshare --pid --fork --kill-child
check_eq "$case: it has another pid there" "$(sed -n 's/^pid //p' "$WORK/server.log")" 1
connect 7964 1
start take b env "$preload" python3 "$WORK/taken.py" take "$pid" "$fd" 1
check "$case: the taker is connected" wait_for 10 log_has take '^connected'
say_again
stop take
stop server

case="a name that is another's"
begin 7963
start squat b "${nobody[@]}" /usr/bin/python3 "$WORK/taken.py" squat "$pid" 8
check "$case: it is bound" wait_for 10 log_has squat bound
connect 7963 1
check "$case: it is served" wait_for 20 log_has ping '^rounds'
start take b env "$preload" python3 "$WORK/taken.py" take "$pid" "$fd" 1
check "$case: the taker asks" wait_for 10 log_has squat asked
check "$case: it does not believe the answer" wait_for 10 log_has take 'not connected'
check "$case: and is told so" log_has take 'pidfd_getfd has taken an unconnected TCP socket'
check "$case: the server lives" alive server
say_again
check "$case: the other has got nothing" wait_for 20 log_has squat '^got 0 descriptors'
done_testing
