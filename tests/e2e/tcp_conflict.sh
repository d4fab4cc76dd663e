#!/usr/bin/env bash
# A process on kernel sockets listens on the port of an offloaded listener, while clients come and go: the port goes back
# to the kernel, which gives both processes their share, and no client notices; also where the kernel answers SYNs by
# cookies, and so has no socket for who it has let in.
#
#   a: clients on kernel sockets      veth      b: a server, preloaded; later one on kernel sockets
# seconds: 9
# test-all: listeners come and go, and each look for them is waited for
. "$(dirname "$0")/../lib_programs.sh"
net_pair
PORT=7000

cat >"$WORK/server.py" <<'END'
# server.py IP PORT: speaks first, then says all words again.
import socket, sys, threading
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(1024)
print("listening", flush=True)

def serve(c):
    with c:
        c.sendall(b"hello")
        while data := c.recv(4096):
            c.sendall(data)

while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
END

cat >"$WORK/clients.py" <<'END'
# clients.py IP PORT END: two that say one word per connection, two that say a hundred, until the file END is there. Who
# failed, and when.
import os, socket, sys, threading, time
begin = time.monotonic()
served, failures = [], []

def client(words):
    while not os.path.exists(sys.argv[3]) and time.monotonic() - begin < 60:
        try:
            with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2.5) as c:
                assert c.recv(100) == b"hello"
                for _ in range(words):
                    c.sendall(b"word")
                    assert c.recv(100) == b"word"
                    time.sleep(0.002)
            served.append(words)
        except (OSError, AssertionError) as error:
            failures.append("%.3f s, %d words: %r" % (time.monotonic() - begin, words, error))

threads = [threading.Thread(target=client, args=(words,)) for words in (1, 1, 100, 100)]
for thread in threads:
    thread.start()
print("started", flush=True)
for thread in threads:
    thread.join()
print("served", len(served), "failed", len(failures), *failures, sep="\n", flush=True)
sys.exit(bool(failures) or not served)
END

kernel_had_more() { # THAN
	[ "$(snmp b Tcp PassiveOpens)" -gt "$1" ]
}

combination server
for cookies in 1 2; do
	server=server$cookies clients=clients$cookies
	in_ns b sh -c "echo $cookies >/proc/sys/net/ipv4/tcp_syncookies"
	serve "$server" python3 "$WORK/server.py" "$IP_B" $PORT
	check "the server listens, net.ipv4.tcp_syncookies=$cookies" wait_for 20 log_has "$server" listening
	passive=$(snmp b Tcp PassiveOpens)
	start "$clients" a python3 "$WORK/clients.py" "$IP_B" $PORT "$WORK/end.$cookies"
	check "clients come" wait_for 20 log_has "$clients" started
	sleep 0.5
	[ -n "$kernel" ] || check_eq "and are not the kernel's" "$(snmp b Tcp PassiveOpens)" "$passive"
	start other b python3 "$WORK/server.py" "$IP_B" $PORT
	[ -n "$kernel" ] || check "another process listens, and the port is the kernel's again" \
		wait_for 20 log_has "$server" "the kernel has TCP port $PORT"
	passive=$(snmp b Tcp PassiveOpens)
	check "and the kernel has some of the clients" wait_for 20 kernel_had_more "$passive"
	sleep 1
	touch "$WORK/end.$cookies"
	check "no client has noticed" finish "$clients" 20
	stop other
	stop "$server"
done
done_testing
