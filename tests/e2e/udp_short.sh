#!/usr/bin/env bash
# Sockets that live for a question: a program that opens one for each pays no more system calls than without the library,
# and none for vmad; those that live a little longer take their port by themselves. Two processes at once, vmad killed
# meanwhile, forked children: each question has its own answer.
# seconds: 10
. "$(dirname "$0")/../lib_programs.sh"
# shellcheck disable=SC2154 # preload is of lib_programs.sh
PORT=7000 COUNT=400

cat >"$WORK/short.py" <<'END'
# short.py echo ADDRESS PORT
# short.py ask ADDRESS PORT COUNT EXCHANGES: so many sockets with so many questions each; then, after "asked", it waits
# to be told to go on by a line, and asks once more, for as many; "wrong N" at each end, and "again N":
# what had no answer within a second is asked again.
# short.py fork ADDRESS PORT COUNT: as ask with 4, and each fourth socket is used by a child as well
import os, signal, socket, struct, sys
role, to = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
if role == "echo":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(to)
    print("listening", flush=True)
    while True:
        data, peer = s.recvfrom(100)
        s.sendto(data, peer)
signal.alarm(100)
wrong = again = 0
def exchange(s, number, connected):
    global again
    question = struct.pack("!II", os.getpid(), number)
    for _ in range(5):
        if connected:
            s.send(question)
        else:
            s.sendto(question, to)
        try:
            while True:
                answer = s.recv(100)
                if answer == question:
                    return 0
                if again == 0: # else it may be a late one
                    return 1
        except BlockingIOError:
            again += 1
    return 1
def ask(count, exchanges):
    global wrong
    for i in range(count):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1, 0))
            if i % 2:
                s.connect(to)
            for n in range(exchanges):
                wrong += exchange(s, i * exchanges + n, i % 2)
            if role == "fork" and i % 4 < 2:
                child = os.fork()
                if child == 0:
                    os._exit(exchange(s, i, i % 2))
                wrong += os.waitpid(child, 0)[1] != 0
                wrong += exchange(s, i, i % 2)
    print("wrong", wrong, flush=True)
    print("again", again, flush=True)
exchanges = int(sys.argv[5]) if role == "ask" else 4
ask(int(sys.argv[4]), exchanges)
if len(sys.argv) > 6:
    print("asked", flush=True)
    open(sys.argv[6]).readline()
    ask(int(sys.argv[4]), exchanges)
    open(sys.argv[6]).readline()
END

short() { # WHAT...: preloaded
	in_ns a timeout 120 env "$preload" /usr/bin/python3 "$WORK/short.py" "$@" | grep '^wrong 0$'
}

traced() { # HOW EXCHANGES [VARIABLE=VALUE]: $WORK/HOW.calls
	in_ns a env "${@:3}" strace -c -o "$WORK/$1.calls" \
		/usr/bin/python3 "$WORK/short.py" ask "$IP_B" $PORT $COUNT "$2" >"$WORK/$1.out" && grep -q '^wrong 0$' "$WORK/$1.out"
}

calls() { # HOW CALL: per hundred sockets
	awk -v call="$2" -v n=$COUNT '$NF == call { count = $4 } END { printf "%d\n", count * 100 / n }' "$WORK/$1.calls"
}

looks() { # per hundred sockets
	echo $(($(calls ours recvmsg) + $(calls ours recvfrom)))
}

traced_ours() {
	check "and with it" traced ours 1 "$preload" && looked=$(looks)
}

net_pair
start echo b /usr/bin/python3 "$WORK/short.py" echo "$IP_B" $PORT
wait_for 10 log_has echo listening
start vmad a "$BUILD/bin/vmad" --foreground "$IF_A" # else strace would follow it
check "vmad starts" wait_for 5 log_has vmad owns

if [ -n "$SAN" ] || ! command -v strace >/dev/null; then
	skip "calls of short-lived sockets" "no strace, or a sanitizer's runtime makes its own"
else
	check "a question for each socket, without the library" traced kernel 1 VMA_OFF=1
	# If answers come late, it looks again while it waits.
	remeasure 3 "looks for a hundred answers" looked -lt 150 traced_ours
	check_num "it sends nothing but the questions" $(($(calls ours sendmsg) + $(calls ours sendto))) -lt 120
	check_num "it looks for nothing but the answers" "$looked" -lt 150
	for call in getsockname getpeername bind epoll_ctl fstat ppoll; do
		check_num "$call: not once for each socket" "$(calls ours $call)" -lt $(($(calls kernel $call) + 60))
	done
	check "four questions for each socket" traced four 4 "$preload"
	check_num "and vmad is not asked" "$(calls four sendmsg)" -lt 200
	note "$(cat "$WORK/ours.calls" "$WORK/four.calls")"
fi

for n in 1 2; do
	start together$n a env "$preload" /usr/bin/python3 "$WORK/short.py" ask "$IP_B" $PORT $((COUNT * 5)) $((n * 2))
done
for n in 1 2; do
	check "two processes at once: process $n" finish together$n 100
	check "and each answer was its own" log_has together$n '^wrong 0$'
	check "and none was lost" log_has together$n '^again 0$'
done
check "sockets that children use as well" short fork "$IP_B" $PORT 40

mkfifo "$WORK/go"
start lives a env "$preload" /usr/bin/python3 "$WORK/short.py" ask "$IP_B" $PORT $COUNT 4 "$WORK/go"
check "a process asks" wait_for 30 log_has lives asked
check "the program stays while nobody asks for a moment" has_xdp a "$IF_A"
check "and goes with the last socket" wait_for 6 no_xdp a "$IF_A"
check "and the process lives" alive lives
exec 9>"$WORK/go"
echo go >&9
start killed a env "$preload" /usr/bin/python3 "$WORK/short.py" ask "$IP_B" $PORT $((COUNT * 20)) 4
sleep 0.3
stop vmad KILL
check "vmad is killed while a process asks: all is answered" finish killed 100
check "each by its own" log_has killed '^wrong 0$'
check "and hardly any twice" log_has killed '^again [0-3]$'
check "also of who was there before" wait_for 60 sh -c "[ \$(grep -c '^wrong 0$' '$WORK/lives.log') = 2 ]"
exec 9>&-
check "who ends well" finish lives 20
check "no program is left" wait_for 10 no_xdp a "$IF_A"
done_testing
