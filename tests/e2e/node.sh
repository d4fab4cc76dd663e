#!/usr/bin/env bash
# node, whose event loop closes by syscall(SYS_close) and would use io_uring: the peer of an offloaded connection hears
# of each end as from the kernel, and the loop hears of what its peers do.
# shellcheck disable=SC2154 # where: lib_programs.sh
# seconds: 20
# test-all: it starts node many times
. "$(dirname "$0")/../lib_programs.sh"
if [ -n "$SAN" ]; then
	skip "node" "its own allocator and a sanitizer's do not get on"
	done_testing
fi
if ! command -v node >/dev/null; then
	skip "node" "no node here"
	done_testing
fi
net_pair

# Answers each line by what the line asks for; "leave" ends the process at once.
cat >"$WORK/server.js" <<'JS'
const net = require('net');
net.createServer(socket => {
	socket.on('error', () => {});
	socket.on('data', data => {
		const word = data.toString().trim();
		if (word === 'end') socket.end('bye\n');
		else if (word === 'destroy') socket.destroy();
		else if (word === 'reset') socket.resetAndDestroy();
		else if (word === 'leave') process.exit(0);
		else socket.write(word + '\n');
	});
}).listen(7100, process.argv[2]);
JS
# Says what it reads and how the connection ends; ends it itself after the first line, if told so.
cat >"$WORK/client.js" <<'JS'
const net = require('net');
const [, , host, port, word] = process.argv;
const socket = net.connect(+port, host, () => socket.write('hello\n'));
socket.on('data', data => {
	console.log('data', data.toString().trim());
	if (word === 'end') socket.end();
	if (word === 'destroy') socket.destroy();
});
socket.on('end', () => console.log('end'));
socket.on('error', error => console.log(error.code));
socket.on('close', () => { console.log('close'); setTimeout(() => process.exit(0), +process.argv[5] || 0); });
JS
# A peer on kernel sockets: `ask` sends words and says what comes and how it ends; `serve` the same of one client.
cat >"$WORK/peer.py" <<'PY'
import socket, sys
def story(s):
    said = ''
    s.settimeout(3)
    try:
        while True:
            data = s.recv(1000)
            if not data:
                return said + 'FIN'
            said += data.decode().strip() + ' '
    except ConnectionResetError:
        return said + 'RST'
    except TimeoutError:
        return said + 'nothing'
host, port = sys.argv[2], int(sys.argv[3])
if sys.argv[1] == 'ask':
    s = socket.create_connection((host, port), 3)
    s.sendall(b'echo\n')
    assert s.recv(100) == b'echo\n'
    s.sendall(sys.argv[4].encode() + b'\n')
    print(story(s))
else:
    listener = socket.create_server((host, port))
    print('listening', flush=True)
    s = listener.accept()[0]
    s.sendall(s.recv(100))
    if sys.argv[4] == 'ends':
        s.shutdown(socket.SHUT_WR)
    print(story(s), flush=True)
PY

ask() { # WORD
	in_ns a timeout 20 python3 "$WORK/peer.py" ask "$IP_B" 7100 "$1"
}

server() { # LABEL [ENVIRONMENT...]
	local s="node's server$1" opens
	shift
	start server b env "$@" ${preload:+"$preload"} node "$WORK/server.js" "$IP_B"
	check "$s starts" wait_for 30 listens 7100
	opens=$(snmp b Tcp PassiveOpens)
	check_eq "$s ends a connection: its peer reads all, then the end" "$(ask end)" "bye FIN"
	check_eq "$s destroys a socket: its peer hears the end" "$(ask destroy)" "FIN"
	check_eq "$s resets a connection: its peer hears of it" "$(ask reset)" "RST"
	[ -n "$kernel" ] || check_eq "$s had them offloaded" "$(snmp b Tcp PassiveOpens)" "$opens"
	check_eq "$s exits: its peer hears the end" "$(ask leave)" "FIN"
	check "$s has ended" finish server 10
}

client_ends() { # WORD, of the peer or of the client; WANTED from the peer; WANTED from the client; ENVIRONMENT...
	local s="node's client, $1" opens=0 word=$1
	start peer b python3 "$WORK/peer.py" serve "$IP_B" 7101 "$1"
	wait_for 10 log_has peer listening
	opens=$(snmp a Tcp ActiveOpens)
	# It stays a while after the end, which is heard of now, and not when the process ends.
	check_eq "$s: it hears what its peer does" "$(in_ns a timeout 20 env "${@:4}" ${preload:+"$preload"} node \
		"$WORK/client.js" "$IP_B" 7101 "$word" 4000 | tr '\n' ' ')" "$3"
	check "$s: the peer has ended" finish peer 10
	check_eq "$s: the peer hears the end" "$(tail -n 1 "$WORK/peer.log")" "$2"
	[ -n "$kernel" ] || check_eq "$s: it was offloaded" "$(snmp a Tcp ActiveOpens)" "$opens"
}

server ""
server " with UV_USE_IO_URING=1" UV_USE_IO_URING=1
client_ends end FIN "data hello end close "
client_ends destroy FIN "data hello close "
client_ends ends FIN "data hello end close "
client_ends end FIN "data hello end close " UV_USE_IO_URING=1
done_testing
