# shellcheck shell=bash
# Counting, shared by the runners mk/run-tests, tests/run, mk/fuzz and mk/tally. Sourced.
#
# A runner calls, for each program, tap_count (or sets passed, failed and skipped itself) and tally_report; at the end
# tally_close prints the closing line and, when TALLY names a file, adds the numbers to it: mk/tally sums that. A program
# that failed leaves there, each behind "! ", the lines that say in what, and the first of what they say of it: mk/tally
# closes with them.
total_passed=0 total_failed=0 total_skipped=0
passed=0 failed=0 skipped=0

# For awk: whether a line of TAP says that a case failed.
TAP_FAILURE='function failure(line) { return line ~ /^not ok / && line !~ /# *[Ss][Kk][Ii][Pp]/ }'

# Counts TAP. A program that died, printed no plan, or printed fewer or more results than it planned has failed once
# at least. (cmocka says "not ok N # SKIP" of a skipped case, and prints a plan for each of its groups.)
tap_count() { # OUTPUT EXIT_STATUS
	local planned
	exit_status=$2
	read -r passed failed skipped planned < <(awk '
		/^(not )?ok .*# *[Ss][Kk][Ii][Pp]/ { skipped++; next }
		/^ok / { passed++ }
		/^not ok / { failed++ }
		/^1\.\.[0-9]+/ { split($1, plan, /\.\./); planned += plan[2]; plans++ }
		END { print passed + 0, failed + 0, skipped + 0, plans ? planned : -1 }' <<<"$1")
	if [ "$failed" -eq 0 ] && { [ "$2" -ne 0 ] || [ $((passed + skipped)) -ne "$planned" ]; }; then
		failed=1
	fi
}

tally_report() { # NAME OUTPUT
	local mark='  ok  '
	[ "$failed" -eq 0 ] || mark='  FAIL'
	printf '%s %s: %d passed, %d failed, %d skipped\n' "$mark" "$1" "$passed" "$failed" "$skipped"
	if [ "$failed" -ne 0 ]; then
		awk '{ line[NR] = $0 }
			END {
				for (i = 1; i <= NR; i++) {
					shown = failure(line[i]) || (shown && line[i] ~ /^#/) # with what it says of itself
					if (NR <= 200 || i <= 120 || i > NR - 80 || shown) print line[i]
					if (i == 120 && NR > 200) print "[... of " NR - 200 " lines what failed:]"
				}
			}
			'"$TAP_FAILURE" <<<"$2"
		case ${exit_status:-0} in
		0) [ -n "$2" ] || echo "(no output)" ;;
		124 | 137) echo "(exit $exit_status: killed, perhaps because it took longer than ${TEST_TIMEOUT:-300} s)" ;;
		*) echo "(exit $exit_status)" ;;
		esac
		[ -z "${TALLY:-}" ] || awk -v name="$1" -v status="${exit_status:-0}" '
			failure($0) { print "! " name ": " $0; told = 1; details = 12 }
			!/^#/ { details = failure($0) ? details : 0 }
			/^#/ && details-- > 0 { print "! " name ": " $0 }
			END { if (!told) print "! " name ": exit " status }
			'"$TAP_FAILURE" <<<"$2" >>"$TALLY"
	elif [ "$skipped" -ne 0 ]; then
		grep -iE '# *skip' <<<"$2" | sed 's/^/         /'
	fi
	total_passed=$((total_passed + passed)) total_failed=$((total_failed + failed))
	total_skipped=$((total_skipped + skipped))
	passed=0 failed=0 skipped=0
}

tally_close() {
	[ -z "${TALLY:-}" ] || echo "$total_passed $total_failed $total_skipped" >>"$TALLY"
	echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
	[ "$total_failed" -eq 0 ]
}
