#!/usr/bin/env bash
# Socket activation: systemd-socket-activate polls a listener, and becomes the server when the first client comes, or
# executes one for each connection. Other programs poll, and start one that accepts, often with an environment of its
# own, which does not name the library. Each client gets its bytes back, the first one too.
# seconds: 30
. "$(dirname "$0")/../lib_programs.sh"
net_pair
cat >"$WORK/server.py" <<'PY'
import os, socket, threading

def answer(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)

assert os.environ["LISTEN_FDS"] == "1", os.environ
listener = socket.socket(fileno=3)
listener.setblocking(True)
print("serving", flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
PY
# Accepts one connection, and ends when that has ended.
cat >"$WORK/once.py" <<'PY'
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
listener.settimeout(15)
connection, _ = listener.accept()
connection.settimeout(15)
while data := connection.recv(65536):
    connection.sendall(data)
PY
# poller.py HOW ADDRESS PORT PROGRAM: never accepts itself.
cat >"$WORK/poller.py" <<'PY'
import os, select, socket, subprocess, sys
how, address, port, program = sys.argv[1:]
listener = socket.create_server((address, int(port)), backlog=64)
number = 0 if how == "zero" else 10
if number:
    os.dup2(listener.fileno(), number)
environment = {"PATH": os.environ["PATH"], "VMA_TRACELEVEL": os.environ.get("VMA_TRACELEVEL", "WARNING")}
command = [sys.executable, program, str(number)]
poll = select.poll()
poll.register(listener, select.POLLIN)
while True:
    poll.poll()
    if how in ("fork", "zero"):
        child = os.fork()
        if child == 0:
            os.dup2(listener.fileno(), number)
            os.execve(command[0], command, environment)
        os.waitpid(child, 0)
    elif how == "posix_spawn":
        os.waitpid(os.posix_spawn(command[0], command, environment), 0)
    else:
        subprocess.run(command, env=environment, pass_fds=[10])
PY
cat >"$WORK/ask.py" <<'PY'
# ask.py ADDRESS PORT CLIENTS BYTES: each sends BYTES, and gets as many back, which are the same.
import os, socket, sys, threading
address, port, clients, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
wrong = []

def ask():
    try:
        want, got = os.urandom(size), b""
        with socket.create_connection((address, port), timeout=20) as s:
            s.settimeout(20)
            sender = threading.Thread(target=lambda: (s.sendall(want), s.shutdown(socket.SHUT_WR)))
            sender.start()
            while piece := s.recv(65536):
                got += piece
            sender.join()
        if got != want:
            wrong.append(f"{len(got)} bytes of {size}, or others")
    except OSError as error:
        wrong.append(repr(error))

threads = [threading.Thread(target=ask) for _ in range(clients)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(wrong), "wrong", wrong[:3])
sys.exit(bool(wrong))
PY

asks() { # PORT CLIENTS BYTES
	client python3 "$WORK/ask.py" "$IP_B" "$@"
}

activated() { # SENTENCE PORT OPTIONS... COMMAND...
	# shellcheck disable=SC2154 # where: lib_programs.sh
	local s="$1, $where offloaded" port=$2
	shift 2
	serve "activated_$port" systemd-socket-activate -l "$IP_B:$port" -E VMA_TRACELEVEL ${server_with:+-E LD_PRELOAD} "$@"
	check "$s: it listens" wait_for 20 listens "$port"
	check "$s: the first client gets its bytes back" asks "$port" 1 100
	check "$s: so do the next ones, one after the other" asks_in_turn "$port" 10
	check "$s: and 20 at the same time" asks "$port" 20 200000
	check "$s: it still runs" alive "activated_$port" || note "$(tail -n 20 "$WORK/activated_$port.log")"
	stop "activated_$port"
}
started() { # HOW PORT
	# shellcheck disable=SC2154 # where: lib_programs.sh
	local s="a program that is started by $1 with an environment of its own, $where offloaded"
	serve "started_$2" python3 "$WORK/poller.py" "$1" "$IP_B" "$2" "$WORK/once.py"
	check "$s: its parent listens" wait_for 20 listens "$2"
	check "$s: offloaded" wait_for 5 has_xdp b "$IF_B"
	check "$s: the first client gets its bytes back" asks "$2" 1 100
	check "$s: so do the next ones, one after the other" asks_in_turn "$2" 3
	check "$s: and 8 at the same time" asks "$2" 8 20000
	check "$s: the parent still runs" alive "started_$2" || note "$(tail -n 20 "$WORK/started_$2.log")"
	stop "started_$2"
}
asks_in_turn() { # PORT TIMES
	local i
	for ((i = 0; i < $2; i++)); do asks "$1" 1 3000 || return; done
}

port=7300
for who in server both; do
	combination $who || continue
	activated "a server that systemd-socket-activate becomes" $port python3 "$WORK/server.py"
	activated "a program for each connection" $((port + 1)) --accept --inetd cat
	for how in fork zero posix_spawn subprocess; do
		port=$((port + 1))
		started $how $port
	done
	port=$((port + 2))
done
done_testing
