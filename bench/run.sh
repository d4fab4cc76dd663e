#!/usr/bin/env bash
# bench/run.sh [RUNS]: every measurement RUNS times (5), interleaved, each in namespaces of its own; the facts go to
# build/bench/results.tsv, one per line: RUN CASE KEY VALUE... report.awk and histogram.awk make of them
# the tables, and the pictures as text and as build/bench/latency.svg and sockperf.svg.
#
# A run counts if the raw ping-pong takes at most 0.4 of the spinning kernel's: it begins with these two, and when they
# say otherwise (the machine is busy), it begins anew, at most 2 x RUNS times in all; then it goes on and is marked.
#
# PARTS: "ring" (the packet path), "sockets" and "tcp" (unmodified programs over UDP and TCP, with and without the
# library); all by default.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sockets.sh"
. "$(dirname "$0")/tcp.sh"
PARTS=${PARTS:-ring sockets tcp}
RUNS=${1:-5}
VALID=0.4
RESULTS=$BUILD/bench/results.tsv
need_machine

is_valid() { # RUN
	awk -v raw="$(value "$1" ping/raw near_p50_ns)" -v spin="$(value "$1" ping/kernel-spin near_p50_ns)" -v limit=$VALID \
		'BEGIN { exit !(raw > 0 && raw <= limit * spin) }'
}

forget() { # RUN
	sed -i "/^$1 /d" "$RESULTS"
}

rates() { # RUN CASE PROGRAM DEVICE OPTIONS...: every size and burst
	local run=$1 name=$2 program=$3 device=$4 bytes burst
	shift 4
	for bytes in 64 1514; do
		for burst in 1 64; do
			measure "$run" "rate-$bytes-$burst/$name" send "$program" "$device" --bytes $bytes --burst $burst "$@"
		done
	done
}

ring_run() { # RUN: the rest, after the two that decide
	local run=$1
	"$BUILD/bench/cacheline" | sed "s|^|$run ping/cacheline near_|; s/near_hist/hist/" >>"$RESULTS"
	measure "$run" ping/ring ping ring_udp xdp --owner self
	measure "$run" ping/ring-vmad ping ring_udp xdp --owner vmad
	measure "$run" ping/wire ping ring_udp wire
	ROUNDS=$((ROUNDS / 10)) measure "$run" ping/kernel-block ping kernel_udp veth
	rates "$run" raw raw_xdp veth
	rates "$run" ring ring_udp xdp --owner self
	rates "$run" ring-vmad ring_udp xdp --owner vmad
	measure "$run" rate-64-1/wire send ring_udp wire --bytes 64 --burst 1
	measure "$run" rate-64-64/wire send ring_udp wire --bytes 64 --burst 64
	measure "$run" rate-64-1/kernel-spin send kernel_udp veth --bytes 64 --spin
	measure "$run" rate-1514-1/kernel-spin send kernel_udp veth --bytes 1514 --spin
}

sockets_run() { # RUN
	local run=$1 how bytes
	share_net || return
	for how in kernel spin lib latency; do
		sockperf_pp "$run" "pp/$how" $how 1
		sockperf_pp "$run" "cold/$how" $how 1 --mps 1000
	done
	for bytes in 64 1472; do
		for how in kernel latency lib; do
			sockperf_tp "$run" "tp-$bytes/$how" $how 1 $bytes
		done
	done
	for how in kernel lib; do
		threads_case "$run" "threads-flood/$how" $how send 1
		threads_case "$run" "threads-ping/$how" $how ping 1
		idle_case "$run" "idle/$how" $how
	done
	for how in kernel lib latency; do
		one_case "$run" $how
	done
	drop_shared_net
}

case " $PARTS " in *" sockets "* | *" tcp "*)
	command -v sockperf >/dev/null || { say "sockperf is not installed"; exit 1; }
	have_library || { say "$LIBRARY is not built"; exit 1; } ;;
esac
busy=$(warn_if_busy)
mkdir -p "$(dirname "$RESULTS")"
: >"$RESULTS"
attempts=0
for ((run = 1; run <= RUNS; run++)); do
	say "run $run of $RUNS"
	while :; do
		measure $run ping/raw ping raw_xdp veth
		measure $run ping/kernel-spin ping kernel_udp veth --spin
		attempts=$((attempts + 1))
		is_valid $run && { echo "$run valid valid 1" >>"$RESULTS"; break; }
		say "run $run does not count: raw $(value $run ping/raw near_p50_ns) ns," \
			"spinning kernel $(value $run ping/kernel-spin near_p50_ns) ns, more than $VALID of it"
		[ $attempts -lt $((2 * RUNS)) ] || break
		forget $run
	done
	case " $PARTS " in *" ring "*) ring_run $run ;; esac
	case " $PARTS " in *" sockets "*) sockets_run $run ;; esac
	case " $PARTS " in *" tcp "*) tcp_run $run ;; esac
done

here=$(dirname "$0")
awk -f "$here/report.awk" "$RESULTS" | tee "$BUILD/bench/report.txt"
awk -f "$here/report_figures.awk" -f "$here/report_sockets.awk" "$RESULTS" | tee -a "$BUILD/bench/report.txt"
awk -f "$here/report_figures.awk" -f "$here/report_tcp.awk" "$RESULTS" | tee -a "$BUILD/bench/report.txt"
case " $PARTS " in *" ring "*)
	awk -v svg="$BUILD/bench/latency.svg" -f "$here/histogram.awk" "$RESULTS" | tee -a "$BUILD/bench/report.txt" ;;
esac
case " $PARTS " in *" sockets "*)
	awk -v svg="$BUILD/bench/sockperf.svg" -v cases="ping/raw pp/latency pp/spin pp/kernel" \
		-v texts="raw AF_XDP|latency profile|kernel, spinning|kernel, blocking" -f "$here/histogram.awk" "$RESULTS" |
		tee -a "$BUILD/bench/report.txt" ;;
esac
[ -z "$busy" ] || echo "$busy" | tee -a "$BUILD/bench/report.txt"
echo
echo "Also in $BUILD/bench: report.txt, results.tsv, latency.svg (packet path), sockperf.svg"
