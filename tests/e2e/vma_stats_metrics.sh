#!/usr/bin/env bash
# vma_stats --openmetrics and --listen: the text is what strict readers take, its counts are those of the programs, sums
# do not fall when sockets are closed; the server answers many clients, whatever slow ones do; the dashboard asks for
# nothing that is not there.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server, watched; vma_stats --listen) b
# seconds: 20
# test-all: it is read for a long time by tools that take theirs
. "$(dirname "$0")/../lib_sockperf.sh"
CHECK="python3 $ROOT/tests/e2e/openmetrics_check.py"
TRAFFIC="python3 $ROOT/tests/e2e/stats_traffic.py"
DASHBOARD=$ROOT/share/grafana/libvma.json
DIR=$WORK/stats
mkdir "$DIR"
export VMA_STATS_SHMEM_DIR=$DIR

stats() { # ARGUMENTS...
	timeout -k 1 20 env -u LD_PRELOAD "$BUILD/bin/vma_stats" -k "$DIR" "$@"
}

begin() { # LABEL NAMESPACE ROLE...: a program of stats_traffic.py, preloaded
	local label=$1 name=$2
	shift 2
	# shellcheck disable=SC2086 # two words
	start "$label" "$name" env "$with" $TRAFFIC "$@"
	check "$1 starts" wait_for 20 log_has "$label" "^(ready|asked)"
}

value() { # FILE SERIES: of a scrape
	awk -v series="$2" 'index($0, series " ") == 1 { print $NF }' "$1"
}

listen() { # LABEL ARGUMENTS...: in b; $port is the port that it has got
	local label=$1
	shift
	start "$label" b env -u LD_PRELOAD "$BUILD/bin/vma_stats" -k "$DIR" --listen "$@"
	wait_for 10 log_has "$label" 'serving metrics at' || return
	port=$(sed -nE 's|.*http://.*:([0-9]+)/metrics$|\1|p' "$WORK/$label.log")
}

get() { # CURL'S ARGUMENTS...
	in_ns b curl -s -m 10 "$@"
}

status() { # CURL'S ARGUMENTS...
	get -o /dev/null -w '%{http_code}' "$@"
}

# ---- once ----

check_eq "without a process there is an empty answer" "$(stats --openmetrics | grep -v '^#')" \
	$'vma_processes 0\nvma_processes_unreadable 0\nvma_processes_put_off 0\nvma_processes_summed 0'
check_eq "a process that was named, and is not there, is an error" \
	"$(stats --openmetrics -p 1 2>&1; echo $?)" $'vmastat: Failed to identify process...\n1'

begin server b udp "$IP_B" 7001 1000000000
begin asker a ask "$IP_B" 7001 500
wait "${PID[asker]}" 2>/dev/null
unset "PID[asker]"
me="pid=\"${PID[server]}\",comm=\"python3\""
stats --openmetrics >"$WORK/once"
# shellcheck disable=SC2086 # two words
check "it is OpenMetrics" $CHECK "$WORK/once"
check_eq "what the program has received is counted to the packet" \
	"$(value "$WORK/once" "vma_socket_rx_packets_total{$me}") $(value "$WORK/once" "vma_socket_rx_bytes_total{$me}")" "500 100000"
check_eq "so is what it has sent" "$(value "$WORK/once" "vma_socket_tx_packets_total{$me}")" 500
check_eq "its socket is offloaded" "$(value "$WORK/once" "vma_sockets{$me,proto=\"udp\",offloaded=\"yes\"}")" 1
check_eq "no process has more series with more sockets: none is of a socket" "$(grep -c 'fd="' "$WORK/once")" 0
fd=$(sed -n 's/^ready //p' "$WORK/server.log")
stats --openmetrics --per-socket >"$WORK/each"
# shellcheck disable=SC2086
check "with a series for each socket it is OpenMetrics, too" $CHECK "$WORK/each"
check_eq "the socket has its own" "$(value "$WORK/each" "vma_socket_rx_packets_total{$me,fd=\"$fd\",proto=\"udp\"}")" 500
check "so has the ring" grep -qE "^vma_ring_rx_packets_total\{$me,ring=\"$IF_B#0\"\} [1-9]" "$WORK/each"
check "of another user there is nothing" bash -c '"$@" >"$0"' "$WORK/foreign" \
	setpriv --reuid 65534 --regid 65534 --clear-groups "$BUILD/bin/vma_stats" -k "$DIR" --openmetrics
check_eq "but an answer" "$(value "$WORK/foreign" vma_processes)" 0
check_eq "a process of another version is counted, and does no harm" \
	"$(flock -x "$DIR/vmastat.4194305" "$BUILD/bin/vma_stats" -k "$DIR" --openmetrics | grep -v '^#' | head -n 2)" \
	$'vma_processes 1\nvma_processes_unreadable 1'

# ---- sums do not fall ----

cat >"$WORK/brief.py" <<'END'
# brief.py IP PORT: a socket for each of 200 questions, then "asked"
import socket, sys, time
print("ready", flush=True)
for _ in range(200):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((sys.argv[1], int(sys.argv[2])))
        s.send(bytes(50))
        s.recv(100)
print("asked", flush=True)
time.sleep(1000)
END
start brief a env "$with" python3 "$WORK/brief.py" "$IP_B" 7001
brief="pid=\"${PID[brief]}\",comm=\"python3\""
asked() { log_has brief "^asked"; }
has_brief() { stats --openmetrics >"$WORK/before" && [ -n "$(value "$WORK/before" "vma_socket_rx_packets_total{$brief}")" ]; }
check "a program that opens a socket for each question is seen" wait_for 20 has_brief
fallen=0 scrapes=0
until [ $fallen -ne 0 ] || { asked && [ $scrapes -gt 2 ]; } || [ $scrapes -gt 1000 ]; do
	stats --openmetrics >"$WORK/after"
	# shellcheck disable=SC2086
	$CHECK --grows "$WORK/before" "$WORK/after" >"$WORK/fallen" || fallen=1
	mv "$WORK/after" "$WORK/before"
	scrapes=$((scrapes + 1))
done
check_eq "no counter falls while sockets are closed" "$fallen $(cat "$WORK/fallen")" "0 "
# A socket that lives for a question may be the kernel's.
sum_of() { # FILE rx_packets|rx_bytes
	echo $(($(value "$1" "vma_socket_$2_total{$brief}") + $(value "$1" "vma_socket_${2/rx_/rx_os_}_total{$brief}")))
}
stats --openmetrics >"$WORK/after"
check_eq "what closed sockets have received is in the sum" \
	"$(sum_of "$WORK/after" rx_packets) $(sum_of "$WORK/after" rx_bytes)" "200 10000"
check_num "and most of them are closed: their sum is of few sockets" \
	"$(stats --openmetrics --per-socket | grep -cE "^vma_socket_rx_packets_total\{$brief,fd=\"[0-9]+\"")" -lt 200

# Connections that their peer does not end live on for a minute, which is no reason not to count the next ones.
cat >"$WORK/keep.py" <<'END'
# keep.py IP PORT: a TCP server that ends no connection
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=500)
print("ready", flush=True)
kept = []
while True:
    kept.append(listener.accept()[0])
END
cat >"$WORK/leave.py" <<'END'
# leave.py IP PORT: 200 connections one after the other, with 50 bytes in each, then "left"
import socket, sys, time
for _ in range(200):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as s:
        s.send(bytes(50))
print("left", flush=True)
time.sleep(1000)
END
start keep b python3 "$WORK/keep.py" "$IP_B" 7008
wait_for 20 log_has keep "^ready"
start leave a env "$with" python3 "$WORK/leave.py" "$IP_B" 7008
check "200 connections are closed here, and not there" wait_for 60 log_has leave "^left"
leave="pid=\"${PID[leave]}\",comm=\"python3\""
stats --openmetrics >"$WORK/left"
check_eq "each of them was counted, with room for 100" \
	"$(value "$WORK/left" "vma_process_sockets_unseen_total{$leave}") $(value "$WORK/left" "vma_socket_tx_packets_total{$leave}")" "0 200"
stop leave
stop keep

# ---- served ----

check "a server starts" listen listen 0
url=http://127.0.0.1:$port/metrics
check_eq "it answers" "$(get -D "$WORK/heads" -o "$WORK/served" -w '%{http_code}' "$url")" 200
check "with the type of OpenMetrics" grep -qi '^content-type: application/openmetrics-text; version=1.0.0; charset=utf-8' "$WORK/heads"
# shellcheck disable=SC2086
check "it is OpenMetrics" $CHECK "$WORK/served"
# shellcheck disable=SC2086
check "later no counter is less, and no series has gone" bash -c '$0 --grows "$1" <("${@:2}")' "$CHECK" "$WORK/served" \
	ip netns exec "$(ns b)" curl -s -m 10 "$url"
get -H 'Accept: text/plain' "$url" >"$WORK/text"
check "who asks for plain text has it" grep -q '^# TYPE vma_socket_rx_packets_total counter$' "$WORK/text"
if command -v promtool >/dev/null; then
	check_eq "promtool has nothing to say" "$(promtool check metrics <"$WORK/text" 2>&1)" ""
else
	skip "promtool has nothing to say" "there is no promtool (package prometheus, mk/packages-all.txt)"
fi
check_eq "another path is not found" "$(status "http://127.0.0.1:$port/") $(status "${url}x")" "404 404"
get -I "$url" >"$WORK/heads"
check "HEAD has the length" grep -qiE '^content-length: [1-9][0-9]{3,}' "$WORK/heads"
check_eq "POST is refused, with what is allowed" \
	"$(get -D "$WORK/heads" -o /dev/null -w '%{http_code}' -d x=y "$url") $(tr -d '\r' <"$WORK/heads" | sed -n 's/^[Aa]llow: //p')" \
	"405 GET, HEAD"
check_eq "so are DELETE and a method that there is not" "$(status -X DELETE "$url") $(status -X FOO "$url")" "405 405"
check_eq "a body of GET does no harm" "$(status -X GET -d x=y "$url")" 200
check_eq "a connection serves several requests" \
	"$(get -o /dev/null -o /dev/null -w '%{http_code} %{num_connects} ' "$url" "$url")" "200 1 200 0 "

cat >"$WORK/slow.py" <<'END'
# slow.py PORT COUNT: so many clients that do not end their request; the last one asks, and does not read
import socket, sys, time
clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
for client in clients[:-1]:
    client.send(b"GET /met")
clients[-1].send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
print("slow", flush=True)
time.sleep(1000)
END
start slow b python3 "$WORK/slow.py" "$port" 31
check "31 slow clients" wait_for 10 log_has slow slow
check_eq "another one has its answer" "$(status "$url")" 200
stop slow
start slow b python3 "$WORK/slow.py" "$port" 100
check "100 slow clients" wait_for 10 log_has slow slow
connections() { find "/proc/${PID[listen]}/fd" -lname 'socket:*' 2>/dev/null | wc -l; }
full() { [ "$(connections)" -eq 33 ]; } # and the one that listens
check "32 connections are open, and no more" wait_for 10 full
stop slow
answers() { [ "$(status "$url")" = 200 ]; }
check "who comes later has an answer" wait_for 20 answers
for ((i = 0; i < 40; i++)); do
	ip netns exec "$(ns b)" curl -s -m 20 -o "$WORK/many.$i" -w '%{http_code}\n' "$url" >>"$WORK/many" &
	many[i]=$!
done
wait "${many[@]}"
check_eq "40 clients at once have theirs" "$(sort "$WORK/many" | uniq -c | xargs)" "40 200"
cut=0
for ((i = 0; i < 40; i++)); do [ "$(tail -n 1 "$WORK/many.$i")" = "# EOF" ] || cut=$((cut + 1)); done
check_eq "each of them whole" $cut 0

# ---- the dashboard ----

cat >"$WORK/expressions.py" <<'END'
import json, sys
board = json.load(open(sys.argv[1]))
for panel in board["panels"]:
    for target in panel["targets"]:
        print(target["expr"])
for variable in board["templating"]["list"]:
    print(variable["query"])
END
check "the dashboard is JSON" python3 "$WORK/expressions.py" "$DASHBOARD"
python3 "$WORK/expressions.py" "$DASHBOARD" >"$WORK/expressions"
grep -oE '\bvma_[a-z0-9_]+' "$WORK/expressions" | sort -u >"$WORK/asked"
check_num "it asks for metrics" "$(wc -l <"$WORK/asked")" -gt 20
check_eq "each of them is there" "$(grep -oE '^vma_[a-z0-9_]+' "$WORK/served" | sort -u | comm -23 "$WORK/asked" -)" ""
if command -v prometheus >/dev/null; then
	cat >"$WORK/prometheus.yml" <<-END
		global: {scrape_interval: 1s}
		scrape_configs: [{job_name: libvma, static_configs: [{targets: ["127.0.0.1:$port"]}]}]
	END
	start prometheus b prometheus --config.file="$WORK/prometheus.yml" --storage.tsdb.path="$WORK/tsdb" \
		--web.listen-address=127.0.0.1:9090
	query() { # EXPRESSION
		get --data-urlencode "query=$1" http://127.0.0.1:9090/api/v1/query
	}
	scraped() { query "count(vma_socket_rx_packets_total)" | grep -q '"value":\[[0-9.]*,"2"\]'; }
	check "Prometheus scrapes it" wait_for 60 scraped
	check "without a complaint" bash -c '"$@" | grep -q "\"lastError\":\"\".*\"health\":\"up\""' - \
		ip netns exec "$(ns b)" curl -s -m 10 http://127.0.0.1:9090/api/v1/targets
	check_eq "it has the counts" "$(query "vma_socket_rx_bytes_total{$me}" | grep -oE '"[0-9]+"\]')" \
		"\"$(value "$WORK/served" "vma_socket_rx_bytes_total{$me}")\"]"
	sed -i '/^label_values\|^prometheus$/d; s/\$\(comm\|pid\)/.*/g; s/\$__rate_interval/1m/g' "$WORK/expressions"
	refused=''
	while IFS= read -r expression; do
		query "$expression" | grep -q '"status":"success"' || refused+="$expression "
	done <"$WORK/expressions"
	check_eq "it evaluates all that the dashboard asks ($(wc -l <"$WORK/expressions"))" "$refused" ""
	stop prometheus
else
	skip "Prometheus scrapes it" "there is no prometheus (mk/packages-all.txt)"
fi

# ---- programs come and go ----

shown() { get "$url" | sed -n 's/^vma_processes //p'; }
check_eq "two programs are shown" "$(shown)" 2
stop server
check_eq "one has ended" "$(shown)" 1
begin server b udp "$IP_B" 7001 1000000000
check_eq "and another one has come" "$(shown)" 2
check_eq "under its own pid" "$(get "$url" | grep -c "^vma_socket_rx_packets_total{pid=\"${PID[server]}\",comm=\"python3\"} 0$")" 1

# ---- what cannot be ----

check_eq "a port that is in use is named" "$(in_ns b env -u LD_PRELOAD "$BUILD/bin/vma_stats" --listen "$port" 2>&1; echo $?)" \
	"vmastat: cannot listen on $port: Address already in use"$'\n1'
check_eq "so is an address that is not here" \
	"$(in_ns b env -u LD_PRELOAD "$BUILD/bin/vma_stats" --listen 10.77.0.1:9464 2>&1; echo $?)" \
	"vmastat: cannot listen on 10.77.0.1:9464: Cannot assign requested address"$'\n1'
check_eq "and what is none" "$(stats --listen localhost 2>&1; echo $?)" \
	"vmastat: 'localhost' is no value of --listen: try vma_stats --help"$'\n64'
check_eq "an output that takes nothing is told" "$(stats --openmetrics 2>&1 >/dev/full; echo $?)" \
	"vmastat: the metrics cannot be written: No space left on device"$'\n1'
check "on all addresses: from another host" listen everywhere 0.0.0.0:0
check_eq "it answers there" "$(in_ns a curl -s -m 10 -o /dev/null -w '%{http_code}' "http://$IP_B:$port/metrics")" 200
done_testing
