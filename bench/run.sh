#!/usr/bin/env bash
# bench/run.sh [RUNS]: every measurement RUNS times (5), interleaved, each in namespaces of its own; the facts go to
# build/bench/results.tsv, one per line: RUN CASE KEY VALUE... distances.awk parts them by how far the two cores were
# from each other meanwhile; for each distance the report*.awk and histogram.awk make of them the tables, and the
# pictures as text and as SVG.
#
# PARTS: "ring" (the packet path), "sockets" and "tcp" (unmodified programs over UDP and TCP, with and without the
# library); all by default.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sockets.sh"
. "$(dirname "$0")/tcp.sh"
PARTS=${PARTS:-ring sockets tcp}
RUNS=${1:-5}
RESULTS=$BUILD/bench/results.tsv
need_machine

rates() { # RUN CASE PROGRAM DEVICE OPTIONS...: every size and burst
	local run=$1 name=$2 program=$3 device=$4 bytes burst
	shift 4
	for bytes in 64 1514; do
		for burst in 1 64; do
			steady measure "$run" "rate-$bytes-$burst/$name" send "$program" "$device" --bytes $bytes --burst $burst "$@"
		done
	done
}

ring_run() { # RUN: the rest, after the two that all are compared with
	local run=$1
	watch_cores
	"$BUILD/bench/cacheline" | sed 's/^/near_/; s/^near_hist/hist/' >"$WORK/near.log"
	unwatch_cores
	cat "$WORK/cores" "$WORK/near.log" | sed "s|^|$run ping/cacheline |" >>"$RESULTS"
	steady measure "$run" ping/ring ping ring_udp xdp --owner self
	steady measure "$run" ping/ring-vmad ping ring_udp xdp --owner vmad
	steady measure "$run" ping/wire ping ring_udp wire
	ROUNDS=$((ROUNDS / 10)) steady measure "$run" ping/kernel-block ping kernel_udp veth
	rates "$run" raw raw_xdp veth
	rates "$run" ring ring_udp xdp --owner self
	rates "$run" ring-vmad ring_udp xdp --owner vmad
	steady measure "$run" rate-64-1/wire send ring_udp wire --bytes 64 --burst 1
	steady measure "$run" rate-64-64/wire send ring_udp wire --bytes 64 --burst 64
	steady measure "$run" rate-64-1/kernel-spin send kernel_udp veth --bytes 64 --spin
	steady measure "$run" rate-1514-1/kernel-spin send kernel_udp veth --bytes 1514 --spin
	threads_run "$run"
}

# Threads with a ring and a link each, of one process: a wire in memory, or a veth whose ends are in one namespace.
threads_run() { # RUN
	local run=$1 threads how i links=() given
	ns_add a || return
	for i in 0 1; do
		in_ns a ip link add "near$i" type veth peer name "far$i" &&
			in_ns a ip addr add "10.9.$i.1/24" dev "near$i" && in_ns a ip addr add "10.9.$i.2/24" dev "far$i" &&
			in_ns a ip link set "near$i" up && in_ns a ip link set "far$i" up || return
		links+=(--link "near$i,far$i")
	done
	for threads in 1 2; do
		for how in wire xdp; do
			[ $how = wire ] && given=() || given=("${links[@]}")
			in_ns a "$BUILD/bench/ring_threads" --threads $threads --msec "$MSEC" "${given[@]}" >"$WORK/threads.log" 2>&1 ||
				{ say "threads-$threads/$how failed in run $run: $(cat "$WORK/threads.log")"; continue; }
			sed "s|^|$run threads-$threads/$how |" "$WORK/threads.log" >>"$RESULTS"
		done
	done
	ns_del a
}

sockets_run() { # RUN
	local run=$1 how bytes
	share_net || return
	for how in kernel spin lib latency; do
		steady sockperf_pp "$run" "pp/$how" $how 1
		steady sockperf_pp "$run" "cold/$how" $how 1 --mps 1000
	done
	for bytes in 64 1472; do
		for how in kernel latency lib; do
			steady sockperf_tp "$run" "tp-$bytes/$how" $how 1 $bytes
		done
	done
	for how in kernel lib; do
		steady threads_case "$run" "threads-flood/$how" $how send 1
		steady threads_case "$run" "threads-ping/$how" $how ping 1
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
for ((run = 1; run <= RUNS; run++)); do
	say "run $run of $RUNS"
	steady measure $run ping/raw ping raw_xdp veth
	steady measure $run ping/kernel-spin ping kernel_udp veth --spin
	case " $PARTS " in *" ring "*) ring_run $run ;; esac
	case " $PARTS " in *" sockets "*) sockets_run $run ;; esac
	case " $PARTS " in *" tcp "*) tcp_run $run ;; esac
done

here=$(dirname "$0")
tables() { # FILE OF THE PICTURES' SUFFIX
	awk -f "$here/report_figures.awk" -f "$here/report.awk" "$1"
	awk -f "$here/report_figures.awk" -f "$here/report_sockets.awk" "$1"
	awk -f "$here/report_figures.awk" -f "$here/report_tcp.awk" "$1"
	case " $PARTS " in *" ring "*) awk -v svg="$BUILD/bench/latency$2.svg" -f "$here/histogram.awk" "$1" ;; esac
	case " $PARTS " in *" sockets "*)
		awk -v svg="$BUILD/bench/sockperf$2.svg" -v cases="ping/raw pp/latency pp/spin pp/kernel" \
			-v texts="raw AF_XDP|latency profile|kernel, spinning|kernel, blocking" -f "$here/histogram.awk" "$1" ;;
	esac
}

rm -f "$BUILD"/bench/latency*.svg "$BUILD"/bench/sockperf*.svg
awk -v out="$WORK" -f "$here/distances.awk" "$RESULTS" >"$WORK/distances"
while read -r distance nsec taken all; do
	suffix=
	if [ "$(wc -l <"$WORK/distances")" -gt 1 ]; then suffix=-$distance; fi
	printf '\n==== Cores %s: a cache line takes %.0f ns from one to the other; %d of %d measurements ====\n' \
		"$(if [ "$distance" = apart ]; then echo "apart from each other"; else echo "close to each other"; fi)" \
		"$nsec" "$taken" "$all"
	tables "$WORK/$distance" "$suffix"
done <"$WORK/distances" | tee "$BUILD/bench/report.txt"
[ -z "$busy" ] || echo "$busy" | tee -a "$BUILD/bench/report.txt"
echo
echo "Also in $BUILD/bench: report.txt, results.tsv $(find "$BUILD/bench" -name '*.svg' -printf '%f ')"
