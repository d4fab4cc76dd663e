#!/usr/bin/env bash
# The runners count what is wrong with a test program, whatever way it goes wrong, and mk/tally adds it up.
# test-all: it waits for runs that are interrupted
# seconds: 20
. "$(dirname "$0")/../lib.sh"
unset TALLY T TEST_AGAIN
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
program differs 'echo 1..2; echo "not ok 1 - test_one"; echo "# 0x1 != 0x2"; echo "ok 2 - test_two"; exit 1'
check_eq "a run ends with what failed, what was seen, and the command that runs it alone" \
	"$("$ROOT/mk/run-tests" "$WORK/good" "$WORK/differs" | sed -n '/^failed:/,$p' | sed "s|$WORK|.|g")" \
	"failed: ./differs: not ok 1 - test_one
        # 0x1 != 0x2
        alone: T='test_one' ./differs
3 passed, 1 failed, 0 skipped"
program known.sh 'echo 1..1; echo "not ok 1 - a"; echo "# alone: CASES=a me"; exit 1'
check_eq "and a script may know a shorter one" "$("$ROOT/tests/run" "$WORK/known.sh" | sed -n 's/^ *alone: //p')" "CASES=a me"
program dies.sh 'echo "ok 1 - a"; echo "last words" >&2; kill -SEGV $$'
check_eq "of a crash they are its last lines" "$("$ROOT/tests/run" "$WORK/dies.sh" | sed -n '/^failed:/,$p' | sed -n 3p)" \
	"        last words"
program telling.sh 'echo 1..1; echo "ok 1 - a"; echo "# told: twice"'
check_eq "what a script tells is shown though nothing failed" "$("$ROOT/tests/run" "$WORK/telling.sh" | grep -c '^ *twice')" 1
program slow 'echo 1..1; echo "# flaky: it took 3 ms, then 1"; echo "ok 1 - a"'
check_eq "what was measured again is said at the end of the run" "$("$ROOT/mk/run-tests" "$WORK/slow" | sed -n '/^flaky:/,$p' | sed "s|$WORK|.|g")" \
	"flaky: ./slow: it took 3 ms, then 1
1 passed, 0 failed, 0 skipped"

# ---- once more ----

# Fails the first time.
flaky() { # NAME
	program "$1" "echo 1..1; [ -e $WORK/$1.ran ] && echo 'ok 1 - a' && exit; touch $WORK/$1.ran; echo 'not ok 1 - a'; echo '# why'; exit 1"
}
again() { # N PROGRAM...
	TEST_AGAIN=$1 closing "$ROOT/mk/run-tests" "${@:2}"
}
flaky once
check_eq "a program that fails does not run again unasked" "$(runner once)" "0 passed, 1 failed, 0 skipped (1)"
flaky once2
check_eq "if asked to, it does, and success there counts" "$(again 1 "$WORK/once2" "$WORK/good")" "3 passed, 0 failed, 0 skipped (0)"
flaky once3
check_eq "and the run says that it is flaky, and what failed" \
	"$(TEST_AGAIN=1 "$ROOT/mk/run-tests" "$WORK/once3" | sed -n '/^flaky:/,$p' | sed "s|$WORK|.|g")" \
	"flaky: ./once3: not ok 1 - a
        # why
1 passed, 0 failed, 0 skipped"
check_eq "what fails twice has failed" "$(again 1 "$WORK/bad")" "1 passed, 1 failed, 1 skipped (1)"
flaky once4
flaky once5
check_eq "more than so many do not run again" "$(AT_ONCE=1 again 1 "$WORK/once4" "$WORK/once5")" "1 passed, 1 failed, 0 skipped (1)"
program two "[ -e $WORK/two.ran ] && { echo 1..2; echo 'ok 1 - a'; echo 'ok 2 - b'; exit; }; touch $WORK/two.ran; echo 1..2; echo 'not ok 1 - a'; echo 'not ok 2 - b'; exit 2"
check_eq "a program whose exit status is how many cases failed does" "$(again 1 "$WORK/two")" "2 passed, 0 failed, 0 skipped (0)"
program three "[ -e $WORK/three.ran ] && { echo 1..1; echo 'ok 1 - a'; exit; }; touch $WORK/three.ran; echo 1..1; echo 'not ok 1 - a'; exit 3"
check_eq "one that ends with another does not" "$(again 1 "$WORK/three")" "0 passed, 1 failed, 0 skipped (1)"
program crash2 "[ -e $WORK/crashed ] && { echo 1..1; echo 'ok 1 - a'; exit; }; touch $WORK/crashed; kill -SEGV \$\$"
check_eq "nor does what crashed" "$(again 1 "$WORK/crash2")" "0 passed, 1 failed, 0 skipped (1)"
program leak "[ -e $WORK/leaked ] && { echo 1..1; echo 'ok 1 - a'; exit; }; touch $WORK/leaked; echo 1..1; echo 'ok 1 - a'; echo 'ERROR: LeakSanitizer: detected memory leaks'; exit 1"
check_eq "nor what a sanitizer has reported" "$(again 1 "$WORK/leak")" "1 passed, 1 failed, 0 skipped (1)"
flaky script.sh
check_eq "scripts do" "$(TEST_AGAIN=1 closing "$ROOT/tests/run" "$WORK/script.sh")" "1 passed, 0 failed, 0 skipped (0)"
flaky stepped
sed -i "s|^one:|four:\n\t@$ROOT/mk/run-tests $WORK/stepped\none:|" "$WORK/Makefile"
check_eq "the end of the whole run says so, too" "$(TEST_AGAIN=1 "$ROOT/mk/tally" four one | sed -n "s|^flaky: .*/||p")" \
	"stepped: not ok 1 - a"
sed -i "s|^one:|five:\n\t@$ROOT/mk/run-tests $WORK/slow\none:|" "$WORK/Makefile"
check_eq "and what was measured again" "$("$ROOT/mk/tally" five one | sed -n "s|^flaky: .*/||p")" \
	"slow: it took 3 ms, then 1"

# ---- side by side ----

cat >"$WORK/span" <<-'END'
	#!/usr/bin/env bash
	# Says in the file beside it when it begins and ends. It ends no sooner than TOGETHER have begun, if they do in 20 s.
	spans=$(dirname "$0")/spans
	echo "+ ${0##*/} ${PART:-}" >>"$spans"
	for ((i = 0; i < 400 && $(grep -c '^+' "$spans") < ${TOGETHER:-0}; i++)); do sleep 0.05; done
	sleep 0.5
	echo "- ${0##*/} ${PART:-}" >>"$(dirname "$0")/spans"
	echo "1..1"
	echo "ok 1 - $0"
END
chmod +x "$WORK/span"
spanning() { # NAME [MARK]
	sed "2s|.*|# ${2:-no mark}|" "$WORK/span" >"$WORK/$1"
	chmod +x "$WORK/$1"
}
most_at_once() {
	awk '$1 == "+" { n++ } $1 == "-" { n-- } n > most { most = n } END { print most }' "$WORK/spans"
}
for i in 1 2 3 4 5 6; do spanning "s$i.sh"; done
spanning s5.sh "seconds: 50"
TOGETHER=3 AT_ONCE=3 "$ROOT/tests/run" "$WORK"/s[1-6].sh >"$WORK/run.out"
check_eq "so many run at once as may, and no more" "$(most_at_once)" 3
check_eq "the longest is among the first" "$(head -n 3 "$WORK/spans" | grep -c '+ s5')" 1
check_eq "each is counted" "$(tail -n 1 "$WORK/run.out")" "6 passed, 0 failed, 0 skipped"
rm "$WORK/spans"
for i in 1 2; do spanning "s$i.sh" "alone: it measures"; done
AT_ONCE=6 "$ROOT/tests/run" "$WORK"/s[1-4].sh >"$WORK/run.out"
check_eq "those marked alone run when nothing else does" "$(tail -n 4 "$WORK/spans" | tr -d '\n')" "+ s1.sh - s1.sh + s2.sh - s2.sh "
rm "$WORK/spans"
spanning s1.sh "parts: 3"
check_eq "a script in parts counts once for each" "$(AT_ONCE=3 closing "$ROOT/tests/run" "$WORK/s1.sh")" "3 passed, 0 failed, 0 skipped (0)"
check_eq "and they run side by side, each with its number" "$(sort "$WORK/spans" | head -n 3 | tr -d '\n')" "+ s1.sh 0+ s1.sh 1+ s1.sh 2"
program forks.sh 'sleep 100 & echo $! >"$(dirname "$0")/child"; echo $$ >"$(dirname "$0")/self"; wait'
for signal in TERM KILL; do
	rm -f "$WORK/child" "$WORK/self"
	TEST_TIMEOUT=50 "$ROOT/tests/run" "$WORK/forks.sh" >"$WORK/run.out" &
	runner=$!
	wait_for 5 test -s "$WORK/self"
	kill -$signal $runner
	wait $runner 2>/dev/null
	check_eq "a runner that ends by SIG$signal says so" $? "$([ $signal = TERM ] && echo 143 || echo 137)"
	check "what it has started ends with it" wait_for 5 gone "$(cat "$WORK/self")"
	check "and what that has started" wait_for 5 gone "$(cat "$WORK/child")"
done
done_testing
