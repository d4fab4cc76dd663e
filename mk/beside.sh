# shellcheck shell=bash
# Jobs side by side, shared by the runners mk/run-tests and tests/run. Sourced.
#
# A runner names its jobs with job_add and calls jobs_run. That calls the runner's job_ended for each job, in the order
# in which they end, with the job's output in one piece; what is printed there is not mixed with other jobs' output.
# At most AT_ONCE jobs run at once (default: three for each core, as most of them wait most of the time), longest
# first. Those marked alone follow, one after the other, when nothing else runs.
#
# A job's source may carry marks, each a line of its head comment (the first 30 lines), behind "# ", "/* " or " * ":
#
#   alone: REASON        it measures time, or needs the machine: it runs when nothing else does
#   seconds: N           about how long it takes; unmarked jobs count as 3. It may take 300 s (TEST_TIMEOUT), and at least
#                        four times N
#   parts: N             tests/run starts it N times, with PART=0 to N-1 and PARTS=N: each takes its share of the cases
#   test-all: REASON     it is long for a good reason, and part of `make test-all` only
#
# If job_ended returns JOB_AGAIN, the job runs once more, behind those marked alone.
#
# INT, TERM and HUP end all jobs, by TERM; so does the end of the runner, whatever ends it.
_job_name=() _job_command=() _job_seconds=() _job_alone=() _job_limit=()
declare -A _job_running=()
_jobs_again=()
JOB_AGAIN=75
_jobs_folder=

mark() { # SOURCE NAME: what follows the mark in the source; fails without
	local found
	found=$(sed -nE "1,30s,^(#|/\\*| \\*) $2: *([^*]*).*,\\2,p" "$1" 2>/dev/null | head -n 1)
	[ -n "$found" ] && echo "$found"
}

job_add() { # NAME SOURCE COMMAND...
	local seconds limit=${TEST_TIMEOUT:-300}
	seconds=$(mark "$2" seconds) || seconds=0
	[ $((seconds * 4)) -le "$limit" ] || limit=$((seconds * 4))
	[ "$seconds" -gt 0 ] || seconds=3
	_job_name+=("$1")
	_job_seconds+=("$seconds")
	_job_limit+=("$limit")
	_job_alone+=("$(mark "$2" alone)")
	shift 2
	_job_command+=("$(printf '%q ' "$@")")
}

# What runs in the background of a script ignores INT and QUIT, and so would all that a job starts. timeout gives each job
# a process group and passes signals on to it.
_job_start() { # INDEX
	local command
	eval "command=(${_job_command[$1]})"
	setpriv --pdeathsig TERM env --default-signal=INT --default-signal=QUIT timeout -k 10 "${_job_limit[$1]}" "${command[@]}" \
		>"$_jobs_folder/$1" 2>&1 </dev/null &
	_job_running[$!]="$1 $EPOCHSECONDS"
}

_jobs_wait() { # AT_MOST: until no more than so many run
	local pid status index begun
	while [ ${#_job_running[@]} -gt "$1" ]; do
		{ wait -n -p pid "${!_job_running[@]}"; } 2>/dev/null # of a crash the runner speaks
		status=$?
		[ -n "${pid:-}" ] || continue
		read -r index begun <<<"${_job_running[$pid]}"
		unset "_job_running[$pid]"
		job_ended "${_job_name[$index]}" "$(tr -d '\0' <"$_jobs_folder/$index")" $status $((EPOCHSECONDS - begun)) \
			"${_job_limit[$index]}"
		[ $? -ne $JOB_AGAIN ] || _jobs_again+=("$index")
	done
}

_jobs_end() { # EXIT_STATUS
	local pid
	trap '' INT TERM HUP
	for pid in "${!_job_running[@]}"; do kill -TERM "$pid" 2>/dev/null; done
	for pid in "${!_job_running[@]}"; do wait "$pid" 2>/dev/null; done
	[ "$(type -t jobs_swept)" != function ] || jobs_swept
	echo "(ended by a signal)"
	exit "$1"
}

jobs_run() {
	local index at_once=${AT_ONCE:-$((3 * $(nproc)))} together alone
	_jobs_folder=$(mktemp -d)
	trap 'rm -rf "$_jobs_folder"' EXIT
	trap '_jobs_end 130' INT
	trap '_jobs_end 143' TERM HUP
	together=$(for index in "${!_job_name[@]}"; do [ -n "${_job_alone[$index]}" ] || echo "${_job_seconds[$index]} $index"; done |
		sort -k 1,1nr -k 2,2n)
	alone=$(for index in "${!_job_name[@]}"; do [ -z "${_job_alone[$index]}" ] || echo "$index"; done)
	while read -r _ index; do
		[ -n "$index" ] || continue
		_jobs_wait $((at_once - 1))
		_job_start "$index"
	done <<<"$together"
	_jobs_wait 0
	for index in $alone; do
		_job_start "$index"
		_jobs_wait 0
	done
	while [ ${#_jobs_again[@]} -gt 0 ]; do
		index=${_jobs_again[0]}
		_jobs_again=("${_jobs_again[@]:1}")
		_job_start "$index"
		_jobs_wait 0
	done
	trap - INT TERM HUP
}
