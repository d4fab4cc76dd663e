#!/usr/bin/env bash
# Socket activation: systemd-socket-activate polls a listener, and becomes the server when the first client comes, or
# executes one for each connection. Each client gets its bytes back, the first one too.
# seconds: 15
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
asks_in_turn() { # PORT TIMES
	local i
	for ((i = 0; i < $2; i++)); do asks "$1" 1 3000 || return; done
}

port=7300
for who in server both; do
	combination $who || continue
	activated "a server that systemd-socket-activate becomes" $port python3 "$WORK/server.py"
	activated "a program for each connection" $((port + 1)) --accept --inetd cat
	port=$((port + 2))
done
done_testing
