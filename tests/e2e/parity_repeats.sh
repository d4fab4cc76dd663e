#!/usr/bin/env bash
# The parity suite runs a case again only if both runs ended normally and differ in nothing but times, and says how often.
# Its cases are replaced by a script, whose first run differs from all later ones.
# seconds: 10
. "$(dirname "$0")/../lib.sh"
need_xdp
fake=$WORK/build
mkdir -p "$fake/tests/parity" "$fake/runs"
ln -s "$(realpath "$BUILD")"/* "$fake/" 2>/dev/null
ln -s "$(realpath "$BUILD")/tests/parity/parity_peer" "$fake/tests/parity/"
cat >"$fake/tests/parity/parity" <<END
#!/usr/bin/env bash
# parity --list | CASE
first() { # of the preloaded runs of this case
	[ -n "\${PARITY_PRELOAD:-}" ] && mkdir "$fake/runs/\$name" 2>/dev/null
}
END
cat >>"$fake/tests/parity/parity" <<'END'
name=$1
case $name in
--list) printf '%s a case\n' late always_late crashes_late fails_late differs_late crashes other ;;
late) if first; then echo "recv: after 400 ms, which is not about 100"; else echo "recv: after about 100 ms"; fi ;;
always_late) if [ -n "${PARITY_PRELOAD:-}" ]; then echo "recv: after 400 ms, which is not about 100"; else echo "recv: after about 100 ms"; fi ;;
crashes_late)
	if first; then echo "recv: after 400 ms, which is not about 100" && kill -SEGV $$; fi
	echo "recv: after about 100 ms"
	;;
fails_late)
	if first; then echo "recv: after 400 ms, which is not about 100" && exit 1; fi
	echo "recv: after about 100 ms"
	;;
differs_late)
	if first; then echo "recv: after 400 ms, which is not about 100" && echo "bytes: 5"; fi
	echo "recv: after about 100 ms"
	;;
crashes)
	echo "recv: after about 100 ms"
	! first || kill -SEGV $$
	;;
other) if first; then echo "bytes: 5"; else echo "bytes: 6"; fi ;;
*) exit 1 ;;
esac
END
chmod +x "$fake/tests/parity/parity"
outcome() { # CASE: ok, or not ok, how often it ran again, and exit statuses that are told
	awk -v name="$1" '
		$0 ~ "^(not )?ok [0-9]+ - " name ": " { said = $1 == "ok" ? "ok" : "not ok"; of_case = 1; next }
		/^(not )?ok / { of_case = 0 }
		$0 == "# " name ": the machine was too busy for times: run again" { again++ }
		of_case && /^# preloaded: exit/ { status = ", exit " $NF }
		END { print said ", " again + 0 " times again" status }' "$WORK/said"
}
BUILD=$fake RUN_ID=$RUN_ID-parity bash "$ROOT/tests/e2e/parity.sh" >"$WORK/said" 2>&1
check_eq "the suite has failed" $? 1
check_eq "a run that was only late is run again" "$(outcome late)" "ok, 1 times again"
check_eq "one that is always late fails at last" "$(outcome always_late)" "not ok, 4 times again"
check_eq "one that was late and crashed is not" "$(outcome crashes_late)" "not ok, 0 times again, exit 139"
check_eq "nor one that was late and failed" "$(outcome fails_late)" "not ok, 0 times again, exit 1"
check_eq "nor one that was late and said something else" "$(outcome differs_late)" "not ok, 0 times again"
check_eq "nor one that crashed" "$(outcome crashes)" "not ok, 0 times again, exit 139"
check_eq "nor one that said something else" "$(outcome other)" "not ok, 0 times again"
check_eq "how often it was, and which cases, is told" "$(grep '^# flaky:' "$WORK/said")" \
	"# flaky: 5 times a case was run again, as only times differed: late always_late always_late always_late always_late"
[ $_failed -eq 0 ] || note "$(cat "$WORK/said")"
done_testing
