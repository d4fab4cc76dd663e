#!/usr/bin/env bash
# A program that waits for offloaded sockets and for the OS's at once, as a proxy with a backend on loopback does, makes
# for the OS's the calls that it makes without the library: counted for each request, beside the kernel's. And of many
# downloads at once through it no ACK is lost for want of room.
# seconds: 12
. "$(dirname "$0")/../lib_programs.sh"
net_pair
REQUESTS=4000 # so that what a program calls when it starts is a small part

# Two of them: files of 600 bytes on loopback, and who asks there anew for each request.
configure() { # NAME LISTEN LOCATION
	mkdir -p "$WORK/$1"
	cat >"$WORK/$1.conf" <<-CONF
		daemon off; master_process off; error_log stderr warn; pid $WORK/$1/pid;
		events { worker_connections 1000; }
		http {
			access_log off; keepalive_requests 1000000; sendfile on;
			client_body_temp_path $WORK/$1; proxy_temp_path $WORK/$1; fastcgi_temp_path $WORK/$1;
			uwsgi_temp_path $WORK/$1; scgi_temp_path $WORK/$1;
			server { listen $2; location / { $3 } }
		}
	CONF
}

# strace ignores SIGTERM while it follows: the program itself is its only child. The number of connections is fixed, too:
# what a program calls for each of them is the same small part however slow the machine is. The internal thread is not
# followed: its calls are so many for each second, not for each request.
traced() { # HOW [VARIABLE=VALUE]: $WORK/HOW.calls
	local how=$1
	shift
	start proxy b env "$@" strace -c -o "$WORK/$how.calls" /usr/sbin/nginx -c "$WORK/proxy.conf" -e stderr
	wait_for 20 listens 8080 || return
	in_ns a timeout 60 ab -q -k -c 20 -n $REQUESTS "http://$IP_B:8080/small" >"$WORK/$how.ab" || return
	kill "$(cat "/proc/${PID[proxy]}/task/${PID[proxy]}/children")"
	finish proxy 10
	grep -Eq '^Failed requests: +0$' "$WORK/$how.ab" && grep -Eq "^Keep-Alive requests: +$REQUESTS$" "$WORK/$how.ab"
}

calls() { # HOW CALL: in thousandths per request
	awk -v call="$2" -v n=$REQUESTS '$NF == call { count = $4 } END { printf "%d\n", count * 1000 / n }' "$WORK/$1.calls"
}

no_more_than_the_kernel() { # CALL
	check_num "$1: no more of them than without the library" "$(calls ours "$1")" -le $(($(calls kernel "$1") + 100))
}

# Packets for which the receive queue had no room, so far.
refused() {
	in_ns b ethtool -S "$IF_B" | awk '$1 == "rx_queue_0_drops:" { print $2 }'
}

# Most of the ACKs come in while the proxy sends.
downloads() { # COUNT: of 1 MB each, at once
	local i wanted
	wanted=$(sum_of "$WORK/www/much")
	in_ns a timeout 60 curl -sS --no-progress-meter --parallel --parallel-immediate --parallel-max "$1" \
		"http://$IP_B:8080/much?[1-$1]" -o "$WORK/got.#1" || return
	for ((i = 1; i <= $1; i++)); do
		[ "$(sum_of "$WORK/got.$i")" = "$wanted" ] || return
	done
}

if [ -n "$SAN" ]; then
	skip "calls of a proxy" "a sanitizer's runtime makes its own"
elif ! command -v strace >/dev/null || ! command -v ab >/dev/null; then
	skip "calls of a proxy" "no strace or ab"
else
	mkdir -p "$WORK/www"
	head -c 600 /dev/zero >"$WORK/www/small"
	cp "$(payload 1000000)" "$WORK/www/much"
	chmod 755 "$WORK" "$WORK/www"
	configure backend 127.0.0.1:9000 "root $WORK/www;"
	configure proxy "$IP_B:8080" "proxy_pass http://127.0.0.1:9000;"
	start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"
	start backend b /usr/sbin/nginx -c "$WORK/backend.conf" -e stderr
	check "the backend starts" wait_for 20 listens 9000
	check "vmad starts" wait_for 5 log_has vmad owns
	check "a proxy without the library" traced kernel VMA_OFF=1
	check "a proxy with it" traced ours "$preload"
	check_num "its clients are offloaded: nothing is written to them by the kernel" "$(calls ours writev)" -lt 1100
	for call in socket connect close getsockopt ioctl epoll_ctl recvfrom readv recvmsg sendmsg rt_sigprocmask geteuid; do
		no_more_than_the_kernel $call
	done
	start proxy b env "$preload" /usr/sbin/nginx -c "$WORK/proxy.conf" -e stderr
	check "the proxy starts once more" wait_for 10 listens 8080
	refused_in_downloads() {
		local before
		before=$(refused)
		check "50 downloads at once are whole" downloads 50 && more=$(($(refused) - before))
	}
	# A proxy that has no core for a while takes nothing out of the queue.
	remeasure 3 "ACKs that found the receive queue full" more -le 100 refused_in_downloads
	check_num "and of some 20,000 ACKs none found the receive queue full" "$more" -le 100
	stop proxy
	check "the backend still runs" alive backend
	note "$(cat "$WORK/ours.calls")"
	stop backend
	stop vmad
fi
done_testing
