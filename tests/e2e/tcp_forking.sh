#!/usr/bin/env bash
# Servers that fork for each connection, and two hundred clients at once: every byte comes back, no client has to ask for
# its connection again, and a listener whose connections are all used by children becomes the kernel's; one that serves
# some itself does not. One client after the other has to repeat nothing. As root, and as a user whom vmad serves
# (--allow-user), who has no capability of his own.
#
# Data of two hundred at once may have to be repeated, but not because of a hand-over: with an XDP program at a veth each
# segment takes the kernel a page, so its own connections' buffers are soon full, and it drops (TcpExtPruneCalled).
# seconds: 17
# test-all: hundreds of processes are forked
. "$(dirname "$0")/../lib_programs.sh"
net_pair
clients=200 bytes=65536
[ -z "$SAN" ] || clients=40

cat >"$WORK/forking.py" <<'PY'
import os, resource, signal, socket, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=512)
serves_itself = int(sys.argv[3])  # every so many connections, 0: none
print("listening", flush=True)
limited = len(sys.argv) > 4  # no byte into any file
if limited:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
n = 0
while True:
    connection, _ = listener.accept()
    n += 1
    if serves_itself and n % serves_itself == 0:
        connection.sendall(connection.recv(100))
        connection.close()
        continue
    if limited:
        time.sleep(0.2)  # bytes have come
    if os.fork() == 0:
        listener.close()
        while data := connection.recv(65536):
            connection.sendall(data)
        os._exit(0)
    connection.close()
PY

# All connect at once, say `bytes` each, and compare what comes back.
cat >"$WORK/clients.py" <<'PY'
import os, selectors, socket, sys, time
address, port, n, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
ready = selectors.DefaultSelector()
class Client:
    def __init__(self):
        self.bytes, self.sent, self.got = os.urandom(size), 0, bytearray()
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex((address, port))
        ready.register(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
    def step(self, events):
        if events & selectors.EVENT_WRITE and self.sent < size:
            self.sent += self.socket.send(self.bytes[self.sent:self.sent + 65536])
            if self.sent == size:
                self.socket.shutdown(socket.SHUT_WR)
                ready.modify(self.socket, selectors.EVENT_READ, self)
        if events & selectors.EVENT_READ:
            data = self.socket.recv(65536)
            self.got += data
            return not data
        return False
clients = [Client() for _ in range(n)]
left, wrong, end = n, 0, time.monotonic() + 40
while left and time.monotonic() < end:
    for key, events in ready.select(1):
        client = key.data
        try:
            over = client.step(events)
        except BlockingIOError:
            over = False
        except OSError as error:
            print(error)
            over = True
        if over:
            ready.unregister(client.socket)
            client.socket.close()
            left -= 1
            wrong += bytes(client.got) != client.bytes
print(f"{left} hang, {wrong} wrong")
sys.exit(left + wrong != 0)
PY

one_by_one() { # PORT N
	local i
	for ((i = 0; i < $2; i++)); do
		[ "$(echo "hello $i" | client /usr/bin/socat -t 20 - "TCP:$IP_B:$1")" = "hello $i" ] || return 1
	done
}
all_at_once() { # PORT
	in_ns a timeout 60 python3 "$WORK/clients.py" "$IP_B" "$1" $clients $bytes
}

tcp_ext() { # NAMESPACE COUNTER
	in_ns "$1" awk -v name="$2" '
		$1 == "TcpExt:" && !column { for (i = 2; i <= NF; i++) if ($i == name) column = i; next }
		$1 == "TcpExt:" { print $column; exit }' /proc/net/netstat
}
# How often somebody has waited for a timeout: the clients (of them for the answer to their SYN), the kernel's servers.
waits() {
	echo "$(tcp_ext a TCPTimeouts) $(tcp_ext a TCPSynRetrans) $(tcp_ext b TCPTimeouts)"
}
waited() { # BEFORE: of each how often since
	local all syns servers all_now syns_now servers_now
	read -r all syns servers <<<"$1"
	read -r all_now syns_now servers_now <<<"$(waits)"
	echo "$((all_now - all)) $((syns_now - syns)) $((servers_now - servers))"
}

server_as() { # USER SERVES_ITSELF PORT LABEL [limited]: by root, or by nobody
	local as=()
	[ "$1" = root ] || as=(setpriv --reuid 65534 --clear-groups)
	start "$4" b "${as[@]}" env ${server_with:+"$server_with"} VMA_TRACELEVEL=INFO python3 "$WORK/forking.py" "$IP_B" "$3" "$2" \
		"${@:5}"
}

no_repairs() { # but for those of others, in other namespaces
	local pid
	for pid in $(ip netns pids "$(ns b)"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != vmad-repair ] || gone "$pid" || return 1
	done
}

listener_is_learned() { # USER
	local s="a server that forks, of $1" opens before syns servers
	# On a busy machine some wait for a core for so long: a second server, and a third, if there were many.
	for _ in 1 2 3; do
		server_as "$1" 0 7201 forking
		check "$s: it starts" wait_for 20 log_has forking listening
		before=$(waits)
		check "$s: $clients clients at once get their bytes" all_at_once 7201
		read -r _ syns servers <<<"$(waited "$before")"
		[ -z "$SAN" ] && [ $((syns > clients / 10 || servers > clients / 10)) -eq 1 ] || break
		flaky "$s: $syns clients have asked twice, $servers connections have waited, wanted $((clients / 10))"
		stop forking
	done
	[ -n "${PID[forking]:-}" ] || server_as "$1" 0 7201 forking
	if [ -z "$SAN" ]; then
		# What comes in the moment in which the listener's rule goes is dropped.
		check_num "$s: hardly a client has asked for its connection twice" "$syns" -le $((clients / 10))
		check_num "$s: and hardly a connection that was handed over has waited" "$servers" -le $((clients / 10))
	fi
	check "$s: 20 more do" one_by_one 7201 20
	check "$s: a line says that the listener is the kernel's" wait_for 5 log_has forking "7201 is the kernel's from now on: .* handed over"
	check_eq "$s: the line is said once" "$(grep -c "kernel's from now on" "$WORK/forking.log")" 1
	opens=$(snmp b Tcp PassiveOpens)
	check "$s: the next ones are served, too" one_by_one 7201 3
	check_eq "$s: by the kernel" $(($(snmp b Tcp PassiveOpens) - opens)) 3
	check "$s: $clients clients at once once more" all_at_once 7201
	check "$s: it still runs" alive forking
	stop forking
}

learned_after_eight() { # USER
	local s="a server that forks, of $1, and one client after the other" opens
	server_as "$1" 0 7206 eight
	check "$s: it starts" wait_for 20 log_has eight listening
	opens=$(snmp b Tcp PassiveOpens)
	check "$s: eight are served" one_by_one 7206 8
	check_eq "$s: none of which connected to the kernel" $(($(snmp b Tcp PassiveOpens) - opens)) 0
	check "$s: a line says that the listener is the kernel's" wait_for 5 log_has eight "7206 is the kernel's from now on: .* 8 connections"
	check "$s: three more are served" one_by_one 7206 3
	check_eq "$s: by the kernel" $(($(snmp b Tcp PassiveOpens) - opens)) 3
	stop eight
}

listener_that_serves_stays() { # USER
	local s="a server that forks for most connections, of $1" opens before all syns servers
	server_as "$1" 8 7202 mixed
	check "$s: it starts" wait_for 20 log_has mixed listening
	for _ in 1 2 3; do # a processor that was taken away for 200 ms is a timeout, too
		before=$(waits)
		check "$s: 40 clients are served" one_by_one 7202 40
		opens=$(snmp b Tcp PassiveOpens)
		check "$s: 8 more are" one_by_one 7202 8
		check_eq "$s: none of which connected to the kernel" $(($(snmp b Tcp PassiveOpens) - opens)) 0
		read -r all syns servers <<<"$(waited "$before")"
		[ -z "$SAN" ] && [ $((all + syns + servers)) -gt 2 ] || break
		flaky "$s: $((all + syns + servers)) retransmissions, wanted 2 at most"
	done
	[ -n "$SAN" ] ||
		check_num "$s: and nobody has waited for a retransmission (more than twice)" $((all + syns + servers)) -le 2
	check "$s: no line says otherwise" sh -c "! grep 'from now on' '$WORK/mixed.log'"
	stop mixed
}

# Twenty copies at once by scp, in processes of sshd's.
sshd_serves() {
	local s="sshd" dir=$WORK/ssh i pids=() wrong=0
	local options=(-q -P 2222 -i "$dir/key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null)
	if [ ! -x /usr/sbin/sshd ] || [ -n "$SAN" ]; then
		skip "$s" "there is no sshd, or its sandbox forbids what a sanitizer needs"
		return
	fi
	mkdir -p "$dir" /run/sshd && chmod 700 "$dir"
	ssh-keygen -q -t ed25519 -N '' -f "$dir/host" && ssh-keygen -q -t ed25519 -N '' -f "$dir/key"
	cat >"$dir/conf" <<-CONF
		Port 2222
		HostKey $dir/host
		AuthorizedKeysFile $dir/key.pub
		StrictModes no
		UsePAM no
		MaxStartups 200
		PermitRootLogin yes
		PidFile none
		Subsystem sftp /usr/lib/openssh/sftp-server
	CONF
	start sshd b env ${server_with:+"$server_with"} VMA_TRACELEVEL=INFO /usr/sbin/sshd -D -e -f "$dir/conf"
	check "$s: it listens" wait_for 20 log_has sshd "listening on 0.0.0.0"
	for ((i = 0; i < 20; i++)); do
		in_ns a timeout 60 scp "${options[@]}" "$(payload 1000000)" "root@$IP_B:$dir/got.$i" &
		pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" || wrong=$((wrong + 1)); done
	check_eq "$s: twenty clients at once copy a file" $wrong 0
	for ((i = 0; i < 20; i++)); do cmp -s "$(payload 1000000)" "$dir/got.$i" || wrong=$((wrong + 1)); done
	check_eq "$s: all bytes are right" $wrong 0
	check "$s: a line says that the listener is the kernel's" wait_for 5 log_has sshd "2222 is the kernel's from now on"
	stop sshd
}

# Whom vmad serves, and who may not hand a connection over himself.
vmad_for_nobody() {
	if [ -z "${PID[vmad]:-}" ] || ! alive vmad; then
		start vmad b "$BUILD/bin/vmad" --foreground --allow-user nobody "$IF_B"
	fi
	log_has vmad "owns $IF_B"
}

# One call that blocks says all its bytes, also if the connection is handed over while it waits for room.
cat >"$WORK/writing.py" <<'PY'
import socket, sys, threading, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
connection, _ = listener.accept()
writer = threading.Thread(target=lambda: print("said", connection.sendmsg([b"x" * 3000000, b"y" * 5000000]), flush=True))
reader = threading.Thread(target=lambda: print("heard", len(connection.recv(2000, socket.MSG_WAITALL)), flush=True))
writer.start()
reader.start()
time.sleep(0.3)
ends = socket.socketpair()
socket.send_fds(ends[0], [b"x"], [connection.fileno()])
writer.join()
reader.join()
connection.close()
PY
write_goes_on() {
	local s="a thread writes while another one passes the connection on"
	start writing b env ${server_with:+"$server_with"} VMA_TRACELEVEL=INFO python3 "$WORK/writing.py" "$IP_B" 7205
	check "$s: it starts" wait_for 20 log_has writing listening
	check_eq "$s: all bytes come" "$(in_ns a timeout 30 python3 -c "
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7205))
s.send(bytes(1000))
time.sleep(0.6)
s.send(bytes(1000))
got = bytearray()
while data := s.recv(1 << 20):
    got += data
print(got == b'x' * 3000000 + b'y' * 5000000, len(got))" "$IP_B")" "True 8000000"
	check "$s: by one call" wait_for 5 log_has writing "said 8000000"
	check "$s: one that waits for all bytes (MSG_WAITALL) gets them" wait_for 5 log_has writing "heard 2000"
	stop writing
}

served_past_kernel() { # PORT
	local opens
	opens=$(snmp b Tcp PassiveOpens)
	one_by_one "$1" 1 && [ "$(snmp b Tcp PassiveOpens)" = "$opens" ]
}

# The channel to the process that hands connections over ends with the vmad that has started it.
new_vmad_hands_over() {
	local s="a server of nobody, and a new vmad"
	server_as nobody 2 7203 renewed
	check "$s: it starts" wait_for 20 log_has renewed listening
	check "$s: 4 clients are served" one_by_one 7203 4
	stop vmad KILL
	check "$s: the new one is there" wait_for 20 vmad_for_nobody
	check "$s: it serves the server" wait_for 20 served_past_kernel 7203
	check "$s: 4 clients are served again" one_by_one 7203 4
	check "$s: all connections of children were handed over" sh -c "! grep 'handed over to the kernel:' '$WORK/renewed.log'"
	stop renewed
}

# What vmad is to put into the socket goes to it in a file.
limit_of_files_is_kept() {
	local s="a server of nobody that may write no file"
	server_as nobody 0 7204 limited limited
	check "$s: it starts" wait_for 20 log_has limited listening
	echo hello | client /usr/bin/socat -t 2 - "TCP:$IP_B:7204" >/dev/null 2>&1
	check "$s: it still runs" alive limited
	stop limited
}

combination server
listener_is_learned root
learned_after_eight root
listener_that_serves_stays root
write_goes_on
sshd_serves
if [ "$NIC" = verbs ]; then # which has no vmad: the rest is of users for whom it acts
	done_testing
fi
chmod a+rx "$WORK"
check "vmad for nobody is there, once the one that the servers have started is gone" wait_for 20 vmad_for_nobody
listener_is_learned nobody
listener_that_serves_stays nobody
new_vmad_hands_over
limit_of_files_is_kept
wait_for 20 no_repairs
check "no process of vmad's is left for servers that have ended" no_repairs
stop vmad
done_testing
