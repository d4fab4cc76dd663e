# shellcheck shell=bash
# Counting, shared by the runners mk/run-tests, tests/run, mk/fuzz and mk/tally. Sourced.
#
# A runner calls, for each program, tap_count (or sets passed, failed and skipped itself) and tally_report; at the end
# tally_close prints the closing line and, when TALLY names a file, adds the numbers to it: mk/tally sums that. The lines
# that say what failed, what was expected and seen, and how to run it alone stand before the closing line of a run, or
# go to that file, each behind "! ": mk/tally closes with them. So do the lines "# flaky: TEXT" of a program that has
# measured something again. $took, where a runner sets it, is how many seconds the program ran; $limit, how many it had.
total_passed=0 total_failed=0 total_skipped=0
passed=0 failed=0 skipped=0
_tally_told=
declare -A _tally_first=()

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

# With 0 or 1, or, as cmocka's programs do, with how many cases failed. 124 and more: it took too long, or a signal came.
_tally_ended_by_itself() {
	[ "${exit_status:-0}" -le 1 ] || { [ "$exit_status" -eq "$failed" ] && [ "$exit_status" -lt 124 ]; }
}

# TEST_AGAIN=N: of the programs of a run that fail, the first N run once more at its end, when nothing else runs. Success
# there counts, and the run says at its end that the program is flaky, with what failed the first time. A program that
# was ended by a signal, took too long, or has a sanitizer's report does not run again: no neighbour is to blame for that.
# True: run it again, and its output has been shown. Call it after tap_count.
tally_again() { # NAME OUTPUT
	[ "$failed" -ne 0 ] && _tally_ended_by_itself && [ -z "${_tally_first[$1]:-}" ] &&
		[ ${#_tally_first[@]} -lt "${TEST_AGAIN:-0}" ] && ! grep -q 'Sanitizer\|runtime error' <<<"$2" || return 1
	_tally_first[$1]=$(_tally_failures "$1" "$2" "" | sed 's/^failed:/flaky:/')
	printf '   again %s: %d passed, %d failed, %d skipped\n%s\n' "$1" "$passed" "$failed" "$skipped" "$2"
	passed=0 failed=0 skipped=0
}

# What a failed program says of its failures, for the end of a run: of each the line of TAP, the first lines of what it
# says of itself, and the command that runs it alone. In COMMAND, CASE stands for the case's name. A script that knows a
# shorter command prints it there: "# alone: COMMAND". Of a program that failed otherwise it is the last lines.
_tally_failures() { # NAME OUTPUT COMMAND
	awk -v name="$1" -v status="${exit_status:-0}" -v command="$3" '
		function close_case() {
			if (open && command != "") print "        alone: " command_of(title)
			open = 0
		}
		function command_of(title,    text) {
			text = command
			gsub(/CASE/, title, text)
			return text
		}
		{ last[NR % 6] = $0 }
		failure($0) {
			close_case()
			print "failed: " name ": " $0
			title = $0
			sub(/^not ok [0-9]* *(- )?/, "", title)
			told = open = 1
			details = 16
			next
		}
		open && /^# alone: / { print "        alone: " substr($0, 10); open = 0; next }
		open && /^#/ { if (details-- > 0) print "        " $0; next }
		{ close_case() }
		END {
			close_case()
			if (!told || (status != 0 && status != 1)) {
				print "failed: " name ": exit " status
				for (i = NR - 5; i <= NR; i++) if (i > 0) print "        " last[i % 6]
				if (command != "") print "        alone: " command_of("*")
			}
		}
		'"$TAP_FAILURE" <<<"$2"
}

tally_report() { # NAME OUTPUT [COMMAND that runs it alone]
	local mark='  ok  '
	[ "$failed" -eq 0 ] || mark='  FAIL'
	printf '%s %s: %d passed, %d failed, %d skipped%s\n' "$mark" "$1" "$passed" "$failed" "$skipped" "${took:+, $took s}"
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
		124 | 137) echo "(exit $exit_status: killed, perhaps because it took longer than ${limit:-${TEST_TIMEOUT:-300}} s)" ;;
		*) echo "(exit $exit_status)" ;;
		esac
		_tally_told+=$(_tally_failures "$1" "$2" "${3:-}")$'\n'
	elif [ "$skipped" -ne 0 ]; then
		grep -iE '# *skip' <<<"$2" | sed 's/^/         /'
	fi
	[ "$failed" -ne 0 ] || [ -z "${_tally_first[$1]:-}" ] || _tally_told+=${_tally_first[$1]}$'\n'
	sed -n 's/^# told: /         /p' <<<"$2"
	_tally_told+=$(sed -n "s|^# flaky: |flaky: $1: |p" <<<"$2" && echo .)
	_tally_told=${_tally_told%.}
	total_passed=$((total_passed + passed)) total_failed=$((total_failed + failed))
	total_skipped=$((total_skipped + skipped))
	passed=0 failed=0 skipped=0
}

# Runs on their own say at the end once more what failed; those of mk/tally leave that to it.
tally_close() {
	if [ -n "${TALLY:-}" ]; then
		[ -z "$_tally_told" ] || sed 's/^/! /' <<<"${_tally_told%$'\n'}" >>"$TALLY"
		echo "$total_passed $total_failed $total_skipped" >>"$TALLY"
	elif [ -n "$_tally_told" ]; then
		printf '\n%s' "$_tally_told"
	fi
	echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
	[ "$total_failed" -eq 0 ]
}
