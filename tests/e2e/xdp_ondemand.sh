#!/usr/bin/env bash
# vmad started by an arbitrary program: the program does not notice, and the daemon keeps nothing of it.
#
#   a (kernel sockets: ping) ---- veth ---- b: clients that start vmad
# seconds: 20
# test-all: vmads start and end by themselves, after seconds
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
client=$BUILD/components/nic/test/priv_xdp_client
vmad=$BUILD/bin/vmad
export TSAN_OPTIONS=die_after_fork=0${TSAN_OPTIONS:+:$TSAN_OPTIONS}

vmad_pid() {
	local pid
	for pid in $(ip netns pids "$(ns b)"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != vmad ] || echo "$pid"
	done
}

no_vmad() {
	[ -z "$(vmad_pid)" ]
}

field() { # NAME: of vmad's status
	awk -v name="$1:" '$1 == name { print $2 }' "/proc/$daemon/status"
}

# ---- the program ----

cd "$WORK" || exit
for how in self vmad; do
	owner=(shadow)
	pinned=()
	# Of vmad's processors below. With one only, what a thread of the program does is rarely seen by the others.
	[ $how = self ] || { owner+=(vmad "start=$vmad") && pinned=(taskset -c 0); }
	start guest b setsid "${pinned[@]}" env LD_BIND_NOW=1 MARK=inherited "$client" serve "$IF_B" "$IP_B" 7001 \
		"${owner[@]}" guest
	wait_for 10 log_has guest '^ready 7001'
	check "$how: the program has no child" log_has guest '^no child 7001: ok'
	check "$how: it got no signal, and its mask is as it was" log_has guest '^no signal 7001: ok'
	check "$how: the lowest free descriptor is the one that it would be" log_has guest '^lowest number 7001: ok'
	check "$how: every descriptor of ours is 1000 or above" log_has guest '^high numbers 7001: ok'
	[ $how = vmad ] || stop guest
done

# ---- the daemon ----

daemon=$(vmad_pid)
check "there is one vmad" test -n "$daemon"
check_eq "its session is its own" "$(awk '{ print $6 }' "/proc/$daemon/stat")" "$daemon"
check_eq "it has no terminal" "$(awk '{ print $7 }' "/proc/$daemon/stat")" 0
check_eq "its working directory is /" "$(readlink "/proc/$daemon/cwd")" /
check "its environment is not the program's" sh -c "! tr '\\0' '\\n' <'/proc/$daemon/environ' | grep -q 'MARK\|LD_'"
check_eq "its stdin is nobody's" "$(readlink "/proc/$daemon/fd/0")" /dev/null
check_eq "so is its stdout" "$(readlink "/proc/$daemon/fd/1")" /dev/null
check "it let go of the program's stderr" sh -c "! readlink '/proc/$daemon/fd/2' | grep -q '$WORK'"
# What it has opened itself has numbers from 1000 on, and one pipe is among it.
check "it has none of the program's pipes" sh -c "! readlink '/proc/$daemon'/fd/? '/proc/$daemon'/fd/?? '/proc/$daemon'/fd/??? |
	grep -q '^pipe:'"
check_eq "no signal is ignored but SIGPIPE" "$(field SigIgn)" 0000000000001000
check_eq "and none blocked but the three that end it" "$(field SigBlk)" 0000000000004003
check_eq "it may run on every core" "$(field Cpus_allowed_list)" "$(awk '/^Cpus_allowed_list/ { print $2 }' /proc/$$/status)"
kill -INT "-${PID[guest]}" 2>/dev/null # as ^C does: the whole foreground group
sleep 0.3
check "^C in the program's terminal does not reach it" kill -0 "$daemon"
stop guest KILL
check "it ends when its last client has gone" wait_for 5 no_vmad

# ---- programs without standard descriptors ----

wait_for 5 no_vmad
for how in "closed 2" "by-exec 0 1 2" "closed 1 2" "closed 0 1 2"; do
	[ -z "$SAN" ] || continue # the preloaded runtime would be missed
	rm -f "$WORK/state"
	# shellcheck disable=SC2086 # a list
	in_ns b env "LD_PRELOAD=$BUILD/libvma.so" timeout 20 \
		python3 "$ROOT/tests/e2e/standard_descriptors.py" "$IP_B" "$WORK/state" $how 2>/dev/null
	check_eq "a program with standard descriptors $how starts one, and is offloaded" "$(cat "$WORK/state")" "1 1"
	wait_for 5 no_vmad
done
for how in '2>&-' '0<&- 1>&- 2>&-'; do
	check "vmad started with $how owns the interface" in_ns b sh -c "exec '$vmad' --exit-when-idle '$IF_B' $how"
	start guest b "$client" serve "$IF_B" "$IP_B" 7011 vmad
	check "and serves" wait_for 10 log_has guest '^ready 7011'
	stop guest
	wait_for 5 no_vmad
done

# ---- programs that may not ----

refused() { # LABEL CAPABILITIES...: runs the client without these, waits for its end
	local label=$1 drop
	shift
	drop=$(IFS=,; echo "$*")
	start "$label" b capsh "--drop=$drop" -- -c "exec $client serve $IF_B $IP_B 7002 vmad start=$vmad"
	finish "$label" 10
}

refused raw cap_net_raw
check "without CAP_NET_RAW no vmad is started" log_has raw '^open 7002: Operation not permitted'
check_eq "with one line, and the warning that users know in a frame" \
	"$(grep -c VMA "$WORK/raw.log") $(grep -c 'VMA WARNING: \*' "$WORK/raw.log")" "6 5"
check "that names it" log_has raw "no vmad runs.*lacks CAP_NET_RAW$"
refused bpf cap_bpf cap_sys_admin
check "without CAP_BPF neither" log_has bpf "lacks CAP_BPF$"
refused perfmon cap_perfmon cap_sys_admin
check "nor without CAP_PERFMON, which the program's arithmetic takes" log_has perfmon "lacks CAP_PERFMON$"
refused admin cap_net_admin cap_net_raw
check "all that is missing is named" log_has admin 'lacks CAP_NET_RAW CAP_NET_ADMIN$'
check "no vmad was left behind by any of them" no_vmad
start away b "$client" serve "$IF_B" "$IP_B" 7003 vmad start=/nowhere/vmad
finish away 10
check "a vmad that is not there is named" log_has away '/nowhere/vmad cannot be started: No such file'
check_eq "in one line" "$(grep -c VMA "$WORK/away.log")" 1

# ---- by hand, as a daemon ----

wait_for 5 no_vmad
check "it returns when it owns the interface" in_ns b "$vmad" --exit-when-idle --log-file "$WORK/daemon.log" "$IF_B"
check "which clients find at once" in_ns b grep -q "@vma/vmad/" /proc/net/unix
check_fails() { ! in_ns b "$vmad" "$@" >"$WORK/second.log" 2>&1; }
check "a second one fails" check_fails "$IF_B"
check "and so does one for an interface that is not there" check_fails nosuchif
check "which it names" grep -q 'nosuchif: No such device' "$WORK/second.log"
start guest b "$client" serve "$IF_B" "$IP_B" 7006 vmad
check "its first client is served" wait_for 10 log_has guest '^ready 7006'
stop guest
check "and it ends with the last" wait_for 5 no_vmad

# ---- a pipe ----

captured() { # as $(program 2>&1) does: waits until nobody has the pipe any more
	in_ns b timeout 1 "$client" serve "$IF_B" "$IP_B" 7004 vmad start="$vmad" 2>&1 | cat >"$WORK/captured.log"
}

start holder b "$client" serve "$IF_B" "$IP_B" 7005 vmad start="$vmad"
wait_for 10 log_has holder '^ready 7005'
stop holder
wait_for 5 no_vmad
captured &
waiting=$!
wait_for 5 grep -q '^ready 7004' "$WORK/captured.log"
start holder b "$client" serve "$IF_B" "$IP_B" 7005 vmad start="$vmad"
wait_for 10 log_has holder '^ready 7005'
check "who reads a program's output is not kept waiting by the vmad that it started" wait_for 3 gone $waiting
check "which goes on for others" kill -0 "$(vmad_pid)"
stop holder
done_testing
