#!/usr/bin/env bash
# What `make bench` says about measurements, from facts that are made up here.
# seconds: 3
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1

watched() { # RUN CASE LOW MEDIAN HIGH P50
	printf "$1 $2 %s\n" "line_looks 10" "line_low_ns $3" "line_ns $4" "line_high_ns $5" "near_p50_ns $6"
}
part() { # to $WORK/close and $WORK/apart, what it says to $WORK/said
	rm -f "$WORK/close" "$WORK/apart"
	awk -v out="$WORK" -f bench/distances.awk "$WORK/facts" >"$WORK/said"
}
p50() { # FILE: RUN CASE and figure of what there is
	awk '$3 == "near_p50_ns" { printf "%s%s/%s=%s", sep, $1, $2, $4; sep = " " }' "$WORK/$1"
}

{
	watched 1 ping/raw 44 45 49 560
	watched 2 ping/raw 190 195 201 1560
	watched 3 ping/raw 45 190 199 900
	echo "3 ping/none line_looks 0"
	echo "3 ping/none near_p50_ns 1"
	echo "1 idle/lib recv_percent 0.5"
} >"$WORK/facts"
part
check_eq "two distances are told apart" "$(cat "$WORK/said")" $'close 45 1 3\napart 195 1 3'
check_eq "what was measured with the cores close" "$(p50 close)" 1/ping/raw=560
check_eq "what was measured with the cores apart" "$(p50 apart)" 2/ping/raw=1560
check_eq "what nobody watched belongs to both" "$(cat "$WORK/close" "$WORK/apart" | grep -c recv_percent)" 2

{
	watched 1 ping/raw 60 70 90 1000
	watched 2 ping/raw 61 80 99 1100
	watched 3 ping/raw 62 90 300 1200
} >"$WORK/facts"
part
check_eq "a machine whose cores stay where they are has one distance" "$(cat "$WORK/said")" "close 80 3 3"
check_eq "and all of its measurements count" "$(p50 close)" "1/ping/raw=1000 2/ping/raw=1100 3/ping/raw=1200"

{
	for run in 1 2 3; do
		echo "$run ping/raw near_p50_ns $((400 + run))"
		echo "$run ping/kernel-spin near_p50_ns 1000"
		echo "$run tcp-pp/kernel near_p50_ns 6000"
		echo "$run tcp-pp/spin near_p50_ns 1500"
		echo "$run tcp-pp/latency interface_packets 1000"
	done
	echo "1 tcp-pp/latency near_p50_ns 500"
	echo "2 tcp-pp/latency near_p50_ns 800"
} >"$WORK/facts"
report() {
	awk -f bench/report_figures.awk -f bench/report_tcp.awk "$WORK/facts"
}
verdict() { # WORDS: what is said of that bar
	report | sed -nE "s/^ +$1 +//p" | tr -s ' '
}
check_eq "a ratio is one of medians, and says of how many measurements" \
	"$(verdict 'latency profile, times raw AF_XDP')" "1.62 <= 1.5 NOT held of 2"
check_eq "a bar that holds" "$(verdict 'latency profile, times better than spinning kernel sockets')" "2.31 >= 2 held of 2"
check "little room beside the kernel is said in capitals" grep -q 'NONE OF THESE RUNS COUNTS' <(report)
sed -i 's/\(kernel-spin near_p50_ns\) 1000/\1 1010/' "$WORK/facts"
check "enough room is not" grep -q "takes 0.40 of the spinning kernel's time\.$" <(report)
echo "1 tcp-pp/latency kernel_packets 500" >>"$WORK/facts"
check_eq "a figure that the kernel made is none of ours" "$(verdict 'latency profile, times raw AF_XDP')" "not measured"

"$BUILD/bench/cacheline" watch >"$WORK/watch" &
PID[watch]=$!
sleep 1
check "the watch ends when it is told to" stop watch
if [ "$(nproc)" -lt 2 ]; then
	skip "it has looked at the cores" "one core"
else
	check_num "it has looked at the cores" "$(sed -n 's/^line_looks \([0-9]*\).*/\1/p' "$WORK/watch")" -ge 1
fi
done_testing
