# shellcheck shell=bash
# Measurements of unmodified programs, on kernel sockets and with the library preloaded; after lib.sh. HOW is one of
#
#   kernel    the program as it is               lib       LD_PRELOAD, defaults
#   spin      the same, sockets non-blocking     latency   LD_PRELOAD, VMA_SPEC=latency: one kick per message
#
# Both ends run the same way, the near one on core 0, the far one on core 1 unless CORES says otherwise.
LIBRARY=$(realpath "$BUILD")/libvma.so
PORT=11111
IP_A=10.9.0.1 IP_B=10.9.0.2 # as fresh_net gives them
NET_SHARED=

# The command that runs a program HOW, and sockperf's options for it.
how_runs() { # HOW
	case $1 in
	lib) echo "env LD_PRELOAD=$LIBRARY VMA_TRACELEVEL=WARN" ;;
	latency) echo "env LD_PRELOAD=$LIBRARY VMA_SPEC=latency VMA_TRACELEVEL=WARN" ;;
	twin) echo "env LD_PRELOAD=$BUILD/bench/spin.so" ;;
	*) echo env ;;
	esac
}

how_polls() { # HOW
	[ "$1" != spin ] || echo --nonblocked
}

is_preloaded() { # HOW
	[ "$1" = lib ] || [ "$1" = latency ]
}

# One pair of namespaces for all cases until drop_shared_net: neither kernel sockets nor the library leave anything in
# them. (libxdp's program stays, which is why cases of raw_xdp have a pair each.)
share_net() {
	fresh_net && NET_SHARED=yes
}

drop_shared_net() {
	[ -z "$NET_SHARED" ] || drop_net
	NET_SHARED=
}

own_net() {
	[ -n "$NET_SHARED" ] || fresh_net
}

drop_own_net() {
	[ -n "$NET_SHARED" ] || drop_net
}

have_library() {
	[ -e "$LIBRARY" ]
}

# A fresh pair of namespaces, with a vmad each for the library; the far end is running when it returns.
open_case() { # HOW COMMAND...: of the far end
	local how=$1
	shift
	own_net || return
	if is_preloaded "$how"; then start_vmads || { say "vmad does not start"; return 1; }; fi
	# shellcheck disable=SC2046
	start far b taskset -c "${CORES:-1}" $(how_runs "$how") "$@"
}

near() { # HOW COMMAND...: output in near.log, CPU seconds in near.cpu
	local rc
	watch_cores
	near_unwatched "$@"
	rc=$?
	unwatch_cores
	return $rc
}

near_unwatched() {
	local how=$1 TIMEFORMAT="%U %S"
	shift
	# shellcheck disable=SC2046
	{ time in_ns a taskset -c "${CORES:-0}" $(how_runs "$how") "$@" >"$WORK/near.log" 2>&1; } 2>"$WORK/near.cpu"
}

cpu_of() { # PID: seconds so far, its threads included
	awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) / hz }' "/proc/$1/stat" 2>/dev/null
}

close_case() { # [SIGNAL]: ends the far end and the namespaces
	stop far "${1:-TERM}"
	local rc=$?
	stop vmad_a
	stop vmad_b
	drop_own_net
	return $rc
}

failed_case() { # RUN CASE
	say "$2 failed in run $1:"
	tail -n 5 "$WORK/near.log" "$WORK/far.log" >&2
	return 1
}

facts() { # RUN CASE: from stdin
	sed "s|^|$1 $2 |" >>"$RESULTS"
}

# ---- sockperf ----

start_server() { # HOW OPTIONS...
	local how=$1
	shift
	# shellcheck disable=SC2046
	open_case "$how" sockperf sr -i "$IP_B" -p $PORT $(how_polls "$how") "$@" || return
	wait_for 10 log_has far 'Warmup stage|to block on socket' || return
	sleep 0.2 # it says so before it binds
}

# Ping-pong of 64 bytes; half round trips.
sockperf_pp() { # RUN CASE HOW SECONDS [OPTIONS...]
	local run=$1 name=$2 how=$3 seconds=$4 before after rc polls
	polls=$(how_polls "$how")
	shift 4
	start_server "$how" && before=$(counters) &&
		near "$how" sockperf pp -i "$IP_B" -p $PORT -m 64 -t "$seconds" --full-log "$WORK/full.csv" \
			$polls "$@"
	rc=$?
	after=$(counters)
	close_case INT
	[ $rc -eq 0 ] && grep -q 'percentile 50.000' "$WORK/near.log" || { failed_case "$run" "$name"; return 1; }
	{
		proof "$before" "$after"
		sed 's/\x1b\[[0-9;]*m//g' "$WORK/near.log" | awk '
			/percentile 50.000/ { p50 = $NF } /percentile 99.000/ { p99 = $NF } /percentile 99.900/ { p999 = $NF }
			/<MAX> observation/ { max = $NF }
			/Valid Duration/ { split($0, part, /[=; ]+/); for (i in part) {
				if (part[i] == "RunTime") sec = part[i + 1]; if (part[i] == "ReceivedMessages") n = part[i + 1] } }
			/dropped messages/ { split($0, part, /[=;]/); lost = part[2] + 0 }
			END { printf "near_p50_ns %.0f\nnear_p99_ns %.0f\nnear_p99.9_ns %.0f\nnear_max_ns %.0f\nlost %d\n",
				p50 * 1000, p99 * 1000, p999 * 1000, max * 1000, lost
				printf "messages_per_sec %.0f\n", (sec > 0 ? n / sec : 0) }'
		# Steps of 2 % for the picture.
		awk -F', *' '$1 ~ /^[0-9]+$/ && $4 > 0 { bucket[int(log($4 * 1000) / log(1.02))]++ }
			END { for (b in bucket) printf "hist %.1f %.1f %d\n", exp(b * log(1.02)), exp((b + 1) * log(1.02)), bucket[b] }' \
			"$WORK/full.csv"
	} | facts "$run" "$name"
	rm -f "$WORK/full.csv"
}

# What the server has counted, of what the client says it has sent; what was really on the wire.
sockperf_tp() { # RUN CASE HOW SECONDS BYTES [OPTIONS...]
	local run=$1 name=$2 how=$3 seconds=$4 bytes=$5 before after wire rc cpu polls
	polls=$(how_polls "$how")
	shift 5
	start_server "$how" && before=$(counters) && wire=$(if_counter b "$IF_B" rx_packets) && cpu=$(cpu_of "${PID[far]}") &&
		near "$how" sockperf tp -i "$IP_B" -p $PORT -m "$bytes" -t "$seconds" $polls "$@"
	rc=$?
	sleep 0.2 # for what is still queued
	after=$(counters)
	wire=$(($(if_counter b "$IF_B" rx_packets) - ${wire:-0}))
	cpu="${cpu:-0} $(cpu_of "${PID[far]}")"
	close_case INT
	[ $rc -eq 0 ] || { failed_case "$run" "$name"; return 1; }
	{
		proof "$before" "$after"
		echo "wire $wire"
		cat "$WORK/near.log" "$WORK/far.log" | sed 's/\x1b\[[0-9;]*m//g' | awk -v cpu="$cpu $(cat "$WORK/near.cpu")" '
			/Total of .* messages sent in/ { for (i = 1; i < NF; i++) { if ($i == "of") sent = $(i + 1); if ($i == "in") sec = $(i + 1) } }
			/messages received and handled/ { for (i = 1; i < NF; i++) if ($i == "Total") received = $(i + 1) }
			END {
				split(cpu, c, " ")
				printf "sent %d\nreceived %d\nfar_pps %.0f\n", sent, received, (sec > 0 ? received / sec : 0)
				if (received > 0) printf "cpu_sec_per_million %.3f\n", (c[2] - c[1] + c[3] + c[4]) / received * 1e6
			}'
	} | facts "$run" "$name"
}

# ---- many threads; idle; one socket ----

threads_case() { # RUN CASE HOW send|ping SECONDS: eight receiving threads, both ends on both cores
	local run=$1 name=$2 how=$3 role=$4 seconds=$5 before after rc CORES=0,1 echo=
	[ "$role" = send ] || echo=--echo
	open_case "$how" "$BUILD/bench/recv_threads" recv --local "$IP_B" $echo && wait_for 10 log_has far ready &&
		before=$(counters) &&
		near "$how" "$BUILD/bench/recv_threads" "$role" --local "$IP_A" --peer "$IP_B" --msec $((seconds * 1000))
	rc=$?
	sleep 0.2
	after=$(counters)
	close_case TERM || rc=1
	[ $rc -eq 0 ] || { failed_case "$run" "$name"; return 1; }
	{
		proof "$before" "$after"
		sed 's/^/near_/; /^near_hist/d' "$WORK/near.log"
		sed 's/^/far_/; /ready/d' "$WORK/far.log"
		cat "$WORK/near.log" "$WORK/far.log" | awk '$1 == "sec" { sec = $2 } $1 == "received" { n = $2 }
			END { printf "rate %.0f\n", (sec > 0 ? n / sec : 0) }'
	} | grep -v VMA | facts "$run" "$name"
}

idle_case() { # RUN CASE HOW: four processes at a time, each waits in another call
	local run=$1 name=$2 way call port=7300 pids=()
	way=$(how_runs "$3")
	own_net && { ! is_preloaded "$3" || start_vmads; } || return
	for call in recv select poll epoll; do
		port=$((port + 1))
		# shellcheck disable=SC2086
		in_ns a $way "$BUILD/bench/recv_threads" idle --local "$IP_A" --port $port --how $call --msec 1500 \
			>"$WORK/idle-$call.log" 2>&1 &
		pids+=($!)
	done
	wait "${pids[@]}"
	stop vmad_a; stop vmad_b; drop_own_net
	for call in recv select poll epoll; do
		sed -n "s/^idle_percent/$call&/p" "$WORK/idle-$call.log"
	done | sed 's/^\([a-z]*\)idle/\1/' | facts "$run" "$name"
}

one_case() { # RUN HOW: wall time of a program with one socket, the least of five; its memory
	local begin best=999999999 took i
	own_net && { ! is_preloaded "$2" || start_vmads; } || return
	for i in 1 2 3 4 5; do
		begin=${EPOCHREALTIME/./}
		near_unwatched "$2" "$BUILD/bench/recv_threads" one --local "$IP_A" || break
		took=$((${EPOCHREALTIME/./} - begin))
		[ $took -ge $best ] || best=$took
	done
	stop vmad_a; stop vmad_b; drop_own_net
	[ "$i" -eq 5 ] || { failed_case "$1" "one/$2"; return 1; }
	{ echo "start_usec $best"; grep -v VMA "$WORK/near.log"; } | facts "$1" "one/$2"
}
