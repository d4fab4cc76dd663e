#!/usr/bin/env bash
# bench/forks.sh [RUNS]: what a fork, an executed program and a process for each connection cost: without the library, with
# the library preloaded, and with sockets that it carries; in turn, RUNS times each (5). Prints medians, in
# microseconds, and how many page faults are among that.
. "$(dirname "$0")/lib.sh"
LIBRARY=$BUILD/libvma.so
RUNS=${1:-5}
RESULTS=$WORK/forks.tsv
need_machine
export VMA_TRACELEVEL=WARNING
[ -e "$LIBRARY" ] || { say "$LIBRARY is not built"; exit 1; }
: >"$RESULTS"

note() { # NAME HOW: the figure of what has run
	awk -v name="$1" -v how="$2" '$1 == "usec_each" { print name "\t" how "\t" $2 }
		$1 == "faults_each" { print name ": page faults\t" how "\t" $2 }' "$WORK/figure" >>"$RESULTS"
}
in_b() { # HOW COMMAND...
	local preload=
	[ "$1" = kernel ] || preload=LD_PRELOAD=$LIBRARY
	shift
	in_ns b env $preload "$BUILD/bench/forks" "$@" >"$WORK/figure"
}
children() { # NAME HOW MODE OPTION...
	local name=$1 how=$2
	shift 2
	[ "$how" != sockets ] || set -- "$@" --sockets --local "$IP_B"
	in_b "$how" "$@" || { say "$name, $how: it failed"; return 1; }
	[ "$how" != sockets ] || grep -qx 'offloaded 2' "$WORK/figure" || say "$name: its sockets are not offloaded"
	note "$name" "$how"
}
connections() { # NAME HOW OPTION...
	local name=$1 how=$2 preload=
	shift 2
	[ "$how" = kernel ] || preload=LD_PRELOAD=$LIBRARY
	start server b env $preload "$BUILD/bench/forks" serve --local "$IP_B" "$@"
	wait_for 5 log_has server ready || { say "$name, $how: the server does not start"; return 1; }
	in_ns a "$BUILD/bench/forks" load --peer "$IP_B" --msec "$MSEC" >"$WORK/figure" || say "$name, $how: it failed"
	stop server
	note "$name" "$how"
}

busy=$(warn_if_busy)
fresh_net
for ((run = 1; run <= RUNS; run++)); do
	say "run $run of $RUNS"
	for how in kernel preloaded sockets; do
		children "fork, 1 MB" $how fork --mb 1
		children "fork, 32 MB" $how fork --mb 32 --rounds 500
		children "fork, exec of true" $how exec --mb 1 --rounds 500
	done
	for how in kernel sockets; do
		connections "process per connection, 1 MB" $how --mb 1
		connections "process per connection, 32 MB" $how --mb 32
	done
done
drop_net
mkdir -p "$BUILD/bench"
awk -F'\t' '
	function median(list,   part, n, i, j, t) {
		n = split(list, part, " ")
		for (i = 2; i <= n; i++) for (j = i; j > 1 && part[j] + 0 < part[j - 1] + 0; j--) { t = part[j]; part[j] = part[j - 1]; part[j - 1] = t }
		return n % 2 ? part[(n + 1) / 2] : (part[n / 2] + part[n / 2 + 1]) / 2
	}
	function shown(name, how) { return list[name, how] == "" ? "-" : sprintf("%.0f", median(list[name, how])) }
	!($1 in seen) { order[++rows] = $1; seen[$1] = 1 }
	{ list[$1, $2] = list[$1, $2] " " $3 }
	END {
		printf "%-36s %10s %10s %10s\n", "us", "kernel", "preloaded", "offloaded"
		for (i = 1; i <= rows; i++)
			printf "%-36s %10s %10s %10s\n", order[i], shown(order[i], "kernel"), shown(order[i], "preloaded"), shown(order[i], "sockets")
	}' "$RESULTS" | tee "$BUILD/bench/forks.txt"
[ -z "$busy" ] || echo "$busy" | tee -a "$BUILD/bench/forks.txt"
