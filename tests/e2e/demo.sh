#!/usr/bin/env bash
# `make demo`: its table, who it says has carried the packets, and that nothing is left of it, also after Ctrl-C.
# seconds: 35
# test-all: it is a demonstration of half a minute, twice
. "$(dirname "$0")/../lib.sh"
need_xdp
command -v sockperf >/dev/null || cannot_run "sockperf is not installed"
[ "$(nproc)" -ge 2 ] || cannot_run "two cores are needed"

if [ -n "$SAN" ]; then # the demo preloads the library alone
	skip "make demo" "it shows the plain build"
	done_testing
fi

left_of_demo() { # namespaces and folders of the demo that had this pid
	ip netns list | grep -o "^vma-${PID[demo]}-[a-z]*"
	ls -d "${TMPDIR:-/tmp}/vma-e2e-${PID[demo]}."* 2>/dev/null
}
at_work() {
	left_of_demo | grep -q '^vma-'
}
nothing_left() {
	[ -z "$(left_of_demo)" ]
}
demo() { # in a process group of its own, as from a terminal
	set -m
	env -u RUN_ID RUNS=1 "HOWS=kernel latency" "BUILD=$BUILD" "$ROOT/bench/demo.sh" >"$WORK/demo.log" 2>&1 </dev/null &
	PID[demo]=$!
	set +m
}

demo
check "the demo is at work" wait_for 20 at_work
sleep 1.5
kill -INT -- "-${PID[demo]}"
check "Ctrl-C ends it" wait_for 10 gone "${PID[demo]}"
check "nothing is left of it" wait_for 5 nothing_left

demo
began=$SECONDS
check "the demo runs to its end" finish demo 120
note "it took $((SECONDS - began)) s"
check "nothing is left of it then" wait_for 5 nothing_left
line() { # TEXT: how many lines of the table begin so and have figures
	sed 's/\x1b\[[0-9;]*m//g' "$WORK/demo.log" | grep -cE "^  $1 +[0-9]+\.[0-9]+ +[0-9]+\.[0-9]+ +[0-9]+\.[0-9]+ +[0-9]+"
}
for row in "kernel sockets, blocking" "libvma.so, VMA_SPEC=latency"; do
	check_eq "$row: over UDP and over TCP" "$(line "$row")" 2
done
for of in pp tcp-pp; do
	check "$of/latency bypassed the kernel" \
		grep -qE "^  $of/latency +[0-9]+ packets through the interfaces, +[0-9]+ counted by the kernel: +(100\.000|99\.[0-9]+) % bypassed" "$WORK/demo.log"
done
check "the picture" grep -q '^ *us  latency' "$WORK/demo.log"
done_testing
