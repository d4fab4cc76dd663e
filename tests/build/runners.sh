#!/usr/bin/env bash
# The runners count what is wrong with a test program, whatever way it goes wrong, and mk/tally adds it up.
. "$(dirname "$0")/../lib.sh"
unset TALLY T
export TEST_TIMEOUT=1

program() { # NAME BODY
	printf '#!/usr/bin/env bash\n%s\n' "$2" >"$WORK/$1"
	chmod +x "$WORK/$1"
}
closing() { # COMMAND...: its last line and exit status
	local out rc
	out=$("$@" 2>&1)
	rc=$?
	echo "$(tail -n 1 <<<"$out") ($rc)"
}
runner() { # NAME
	closing "$ROOT/mk/run-tests" "$WORK/$1"
}

program good 'echo 1..2; echo "ok 1 - a"; echo "ok 2 - b"'
check_eq "passed cases are counted" "$(runner good)" "2 passed, 0 failed, 0 skipped (0)"
program bad 'echo 1..3; echo "ok 1 - a"; echo "not ok 2 - b"; echo "not ok 3 # SKIP c"; exit 1'
check_eq "failed and skipped cases are told apart" "$(runner bad)" "1 passed, 1 failed, 1 skipped (1)"
program crash 'echo 1..2; echo "ok 1 - a"; kill -SEGV $$'
check_eq "a crash is a failure" "$(runner crash)" "1 passed, 1 failed, 0 skipped (1)"
program hang 'echo 1..2; echo "ok 1 - a"; exec sleep 60'
check_eq "a hang is a failure" "$(runner hang)" "1 passed, 1 failed, 0 skipped (1)"
program short 'echo 1..2; echo "ok 1 - a"'
check_eq "an early exit is a failure" "$(runner short)" "1 passed, 1 failed, 0 skipped (1)"
program silent 'true'
check_eq "a program without output is a failure" "$(runner silent)" "0 passed, 1 failed, 0 skipped (1)"
program empty 'echo 1..0'
check_eq "a program without cases is a failure" "$(runner empty)" "0 passed, 1 failed, 0 skipped (1)"
check_eq "no program at all is a failure" "$(closing "$ROOT/mk/run-tests")" "0 passed, 1 failed, 0 skipped (1)"
program late 'echo 1..1; echo "ok 1 - a"; exit 3'
check_eq "a failure at exit is a failure" "$(runner late)" "1 passed, 1 failed, 0 skipped (1)"
check_eq "a pattern that matches nothing is a failure" "$(T='*none*' closing "$ROOT/mk/run-tests" "$WORK/empty")" \
	"0 passed, 1 failed, 0 skipped (1)"

program impossible.sh 'echo "1..0 # SKIP cannot run: not here"'
check_eq "an end-to-end script that cannot run is a failure" "$(UNPRIVILEGED=0 closing "$ROOT/tests/run" "$WORK/impossible.sh")" \
	"0 passed, 1 failed, 0 skipped (1)"
check_eq "unless that is accepted" "$(UNPRIVILEGED=1 closing "$ROOT/tests/run" "$WORK/impossible.sh")" \
	"0 passed, 0 failed, 1 skipped (0)"

cat >"$WORK/Makefile" <<END
one:
	@$ROOT/mk/run-tests $WORK/good
two:
	@$ROOT/mk/run-tests $WORK/bad
three:
	@false
END
cd "$WORK" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS
check_eq "the steps of a run are added up" "$(closing "$ROOT/mk/tally" one one)" "4 passed, 0 failed, 0 skipped (0)"
check_eq "a step that cannot be made is a failure, the others run" "$(closing "$ROOT/mk/tally" three two one)" \
	"3 passed, 2 failed, 1 skipped (1)"
check_eq "what failed is said once more at the end" "$("$ROOT/mk/tally" two one | sed -n "s|^failed: .*/||p")" \
	"bad: not ok 2 - b"
program long 'echo 1..400; for i in {1..400}; do [ $i = 200 ] && echo -n "not "; echo "ok $i - c"; [ $i = 200 ] && echo "# why"; done; exit 1'
check_eq "a long log keeps the lines that say what failed, and why" \
	"$("$ROOT/mk/run-tests" "$WORK/long" | grep -A 1 '^not ok 200' | tail -n 1)" "# why"
done_testing
