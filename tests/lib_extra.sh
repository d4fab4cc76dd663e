# shellcheck shell=bash
# For the scripts of the Extra API: `program` (EXTRA_PROGRAM, of tests/extra) runs in b, preloaded by `preload`. Sourced.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_xdp
if [ "$SAN" = thread ]; then
	skip "the Extra API" "the race detector's runtime starts in instrumented programs only"
	done_testing
fi
# shellcheck disable=SC2034 # for who sources this
program=$BUILD/tests/extra/$EXTRA_PROGRAM
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1}
runtime=
[ "$SAN" != address ] || runtime=$(gcc -print-file-name=libasan.so)
# shellcheck disable=SC2034
preload="LD_PRELOAD=$runtime${runtime:+ }$BUILD/libvma.so"
net_pair
in_ns a ping -c 1 -W 5 "$IP_B" >/dev/null

said() { # LABEL: the last line
	tail -n 1 "$WORK/$1.log"
}
