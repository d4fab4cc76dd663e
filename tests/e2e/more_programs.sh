#!/usr/bin/env bash
# More unmodified programs over offloaded sockets, beside those of tcp_programs.sh: dnsmasq and dig over UDP and TCP,
# socat over UDP, rsync both ways, openssl's TLS server and client; and what a server that is killed leaves to those who
# come next.
# shellcheck disable=SC2154 # where: lib_programs.sh
# seconds: 30
# test-all: it has programs beside the usual ones, which are in udp_programs.sh and tcp_programs.sh
. "$(dirname "$0")/../lib_programs.sh"
if [ "$SAN" = address ]; then
	skip "more programs" "some of them hang in setlocale with AddressSanitizer's runtime alone"
	done_testing
fi
net_pair

has_all() { # SENTENCE PROGRAM...
	local program
	for program in "${@:2}"; do
		command -v "$program" >/dev/null || { skip "$1" "no $program here" && return 1; }
	done
}

# dig binds to port 0 and then connects: 400 connections rest in TIME_WAIT, and none of their ports may be chosen again.
# dnsmasq has a child for each of them, which asks for it while its parent closes it.
names() {
	local s="dnsmasq and dig, $where offloaded"
	has_all "$s" dnsmasq dig || return 0
	seq 1 400 | awk '{ printf "10.1.%d.%d h%d.test\n", $1 / 250, $1 % 250, $1 }' >"$WORK/hosts"
	awk '{ print $2 }' "$WORK/hosts" >"$WORK/questions"
	serve names dnsmasq -k -p 5353 --listen-address="$IP_B" --bind-interfaces --no-resolv --no-hosts \
		--addn-hosts="$WORK/hosts" --user=root --pid-file="$WORK/names.pid"
	check "$s: the server starts" wait_for 20 listens 5353
	check "$s: 400 names over UDP" answered
	check "$s: 400 names over TCP" answered +tcp
	check "$s: the server still runs" alive names
	stop names
}
answered() { # OPTION...
	client dig "@$IP_B" -p 5353 -f "$WORK/questions" +short +tries=1 +time=20 "$@" >"$WORK/answers"
	awk '{ print $1 }' "$WORK/hosts" | diff - "$WORK/answers"
}

# A process for each client, whose first datagram its parent has only peeked at.
echoes() {
	local s="socat's UDP-LISTEN with fork, $where offloaded" i
	has_all "$s" socat || return 0
	serve echoes socat "UDP-LISTEN:7007,bind=$IP_B,fork,reuseaddr" EXEC:cat
	check "$s: the server starts" wait_for 20 in_ns b sh -c "ss -Hlun 'sport = :7007' | grep -q ."
	for i in 1 2 3 4 5; do
		check_eq "$s: the first datagram of client $i is answered" "$(asked "$i")" "$i"
	done
	check "$s: the server still runs" alive echoes
	stop echoes
}

# Ends with the answer, for which it has 20 seconds.
asked() { # QUESTION
	rm -f "$WORK/answer"
	client socat -t 0.01 -T 20 "UDP:$IP_B:7007" "SYSTEM:echo $1; read -r answer; echo \$answer >'$WORK/answer'"
	cat "$WORK/answer"
}

files() {
	local s="rsync, $where offloaded" i
	has_all "$s" rsync || return 0
	[ -e "$WORK/tree/1" ] || {
		mkdir -p "$WORK/tree"
		for i in $(seq 100); do head -c $((i * 1000)) "$(payload $((1 << 20)))" >"$WORK/tree/$i"; done
	}
	printf 'use chroot = no\nuid = root\ngid = root\n[tree]\npath = %s\n[put]\npath = %s\nread only = no\n' \
		"$WORK/tree" "$WORK/put" >"$WORK/rsyncd.conf"
	rm -rf "$WORK/put" "$WORK/taken"
	mkdir "$WORK/put"
	serve files rsync --daemon --no-detach --address="$IP_B" --port=8730 --config="$WORK/rsyncd.conf"
	check "$s: the server starts" wait_for 20 listens 8730
	check "$s: a tree of 100 files is taken" client rsync -a "rsync://$IP_B:8730/tree/" "$WORK/taken"
	check "$s: and is the same" diff -r "$WORK/tree" "$WORK/taken"
	check "$s: a tree is put there" client rsync -a "$WORK/tree/" "rsync://$IP_B:8730/put"
	check "$s: and is the same there" diff -r "$WORK/tree" "$WORK/put"
	stop files
}

secrets() {
	local s="openssl s_server and s_client, $where offloaded"
	[ -e "$WORK/key.pem" ] || openssl req -x509 -newkey rsa:2048 -nodes -keyout "$WORK/key.pem" \
		-out "$WORK/cert.pem" -days 2 -subj /CN=test 2>/dev/null
	file=$(payload $((16 << 20)))
	serve secrets sh -c "cd '$WORK' && exec openssl s_server -accept $IP_B:4433 -cert cert.pem -key key.pem -WWW -quiet"
	check "$s: the server starts" wait_for 20 listens 4433
	count_from
	check "$s: a file of 16 MB comes, and is the same" fetch_secret
	still "$s"
	stop secrets
}
fetch_secret() {
	printf 'GET /%s HTTP/1.0\r\n\r\n' "$(basename "$file")" |
		client openssl s_client -quiet -connect "$IP_B:4433" 2>/dev/null | tail -c $((16 << 20)) | cmp - "$file"
}

# The port of a server that had many connections and was killed refuses at once, as the kernel's, as soon as vmad has seen
# the end: a SYN that comes before is lost with its process, and comes again a second later.
killed() {
	local s="a server with 2000 connections behind it, $where offloaded" link
	serve killed python3 -m http.server --bind "$IP_B" --directory "$WORK/empty" 8000
	check "$s: it starts" wait_for 20 listens 8000
	check "$s: 2000 requests are answered" client python3 "$WORK/requests.py" "$IP_B" 8000 2000
	rm -f "$WORK/go"
	start late a env ${client_with:+"$client_with"} python3 "$WORK/requests.py" "$IP_B" 8000 1 "$WORK/go"
	check "$s: another client waits" wait_for 20 log_has late waits
	link=$(link_to_vmad "${PID[killed]}")
	[ "$where" = client ] || check "$s: vmad knows the server" test -n "$link"
	stop killed KILL
	[ "$where" = client ] || check "$s: vmad sees its end" wait_for 5 closed_by_vmad "$link"
	touch "$WORK/go"
	check "$s: who comes after its end is refused" wait_for 20 log_has late refused
	[ -n "$SAN" ] || check "$s: at its first SYN" log_has late "refused within a second"
	stop late
}
# vmad closes a client's connection when it has taken back all that the client had: the inode of vmad's end.
link_to_vmad() { # PID
	in_ns b ss -xpH state connected | awk -v pid="pid=$1," 'index($0, pid) && /vma/ && /vmad/ { print $(NF - 1) }' | head -n 1
}
closed_by_vmad() { # INODE
	! in_ns b awk '{ print $7 }' /proc/net/unix | grep -qx "$1"
}
mkdir "$WORK/empty"
cat >"$WORK/requests.py" <<-'PY'
	import os, socket, sys, time
	# requests.py ADDRESS PORT COUNT [FILE]: as soon as FILE is there
	if len(sys.argv) > 4:
	    print("waits", flush=True)
	    while not os.path.exists(sys.argv[4]):
	        time.sleep(0.01)
	def seconds(): # those in which a core was to be had
	    with open("/proc/thread-self/schedstat") as ran:
	        return time.monotonic() - int(ran.read().split()[1]) / 1e9
	for _ in range(int(sys.argv[3])):
	    begun = seconds()
	    try:
	        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as connection:
	            connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
	            answer = b""
	            while data := connection.recv(65536):
	                answer += data
	            assert answer.startswith(b"HTTP/1.0 200"), answer
	    except ConnectionRefusedError:
	        # A second SYN goes a second after the first one.
	        took = seconds() - begun
	        print("refused within a second" if took < 1 else "refused after %.3f s" % took, flush=True)
PY

for combination in both server client; do
	combination $combination || continue
	for program in names echoes files secrets killed; do
		# shellcheck disable=SC2053 # PROGRAMS is a pattern
		[[ $program == ${PROGRAMS:-*} ]] && $program
	done
done
done_testing
