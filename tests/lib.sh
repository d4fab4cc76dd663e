# shellcheck shell=bash
# What every end-to-end test starts with. A script of tests/e2e is one area of behaviour and prints TAP:
#
#   #!/usr/bin/env bash
#   # udp_echo over xdp: the application gets every packet, the kernel none.
#   . "$(dirname "$0")/../lib.sh"
#   need_xdp                                     root, namespaces, BPF, AF_XDP; else everything is skipped
#   net_pair                                     a (10.9.0.1, veth_a) ---- veth ---- (veth_b, 10.9.0.2) b
#   before=$(snmp b Udp InDatagrams)
#   start echo b "$BUILD/examples/udp_echo" "xdp:$IF_B" "$IP_B" 7000
#   wait_for 5 log_has echo listening
#   check "every byte comes back" in_ns a "$BUILD/examples/udp_ping" "xdp:$IF_A" "$IP_B" 7000
#   check_eq "the kernel of b saw no datagram" "$(snmp b Udp InDatagrams)" "$before"
#   stop echo
#   check "no program is left on veth_b" no_xdp b "$IF_B"
#   done_testing
#
# Each run has namespaces and a folder ($WORK) of its own, named after the run; addresses exist inside the namespaces
# only. They go away at the end, also after a failure, INT or TERM; so do the processes begun with `start` (by pid,
# and no others). A script that does not reach done_testing counts as failed: see tests/run.
#
# ROOT  the tree             BUILD  what is tested: build/ or the build of a sanitizer
# SAN   address, undefined, thread, or empty: for limits of time that a sanitizer needs wider
# WORK  folder for files     IF_A MAC_A IP_A, IF_B ...  what net_pair and ns_join have made
# LIBRARY  what LD_PRELOAD is set to
#
# NIC=verbs: links are made of cards (tests/verbs) in place of veth pairs, and programs see those as InfiniBand devices.

set -u
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=${BUILD:-$ROOT/build}
# shellcheck disable=SC2034 # for the scripts
SAN=$(basename "$BUILD" | grep -oxE '(clang-)?(address|undefined|thread)' | sed 's/clang-//')
RUN_ID=${RUN_ID:-$$}
# Other users' programs work in there, too, and paths of unix sockets are short.
WORK=${TMPDIR:-/tmp}
if [ ${#WORK} -gt 40 ] || ! setpriv --reuid 65534 --clear-groups test -x "$WORK" 2>/dev/null; then WORK=/tmp; fi
WORK=$(mktemp -d "$WORK/vma-e2e-$RUN_ID.XXXXXX")
# What is tested counts its descriptors: none is inherited but the first three. (This shell reads the script from one.)
for fd in /proc/$$/fd/*; do
	[ "${fd##*/}" -le 2 ] || [ "$fd" -ef "$0" ] || eval "exec ${fd##*/}>&-"
done
unset fd
# As in mk/run-tests; what is to work with fewer says so.
[ "$(ulimit -Sn)" = unlimited ] || [ "$(ulimit -Sn)" -ge 4096 ] || ulimit -Sn 4096 2>/dev/null
declare -A PID=()
_namespaces=() _count=0 _failed=0 _bad_ends=()

LIBRARY=$BUILD/libvma.so
NIC=${NIC:-xdp}
if [ "$NIC" = verbs ]; then
	export VMA_NIC=verbs VERBS_CARD=$BUILD/tests/verbs/card BUILD VMA_TSO=${VMA_TSO:-1}
	# shellcheck disable=SC2034 # for the scripts
	LIBRARY="$BUILD/tests/verbs/libvmasoft-channel.so $LIBRARY"
fi

# ---- results: TAP ----

ok() { # SENTENCE
	_count=$((_count + 1))
	echo "ok $_count - $1"
}

not_ok() { # SENTENCE [WHY]
	_count=$((_count + 1)) _failed=$((_failed + 1))
	echo "not ok $_count - $1"
	[ $# -lt 2 ] || note "$2"
}

skip() { # SENTENCE WHY: for what this machine cannot show, never for what is broken
	_count=$((_count + 1))
	echo "ok $_count - $1 # SKIP $2"
}

note() { # TEXT: shown when the script fails
	local line
	while IFS= read -r line; do echo "# $line"; done <<<"$*"
}

tell() { # TEXT: one line that the run shows in any case, for what is no failure but should not become a habit
	echo "# told: $*"
}

flaky() { # TEXT: the script counts as flaky, and the end of the run says so, though nothing has failed
	echo "# flaky: $*"
}

check() { # SENTENCE COMMAND...: passes when the command does; its output is shown when it fails
	local sentence=$1 rc
	shift
	"$@" >"$WORK/check.out" 2>&1 # no subshell: the command may be `finish`, which waits for a child of this shell
	rc=$?
	if [ $rc -eq 0 ]; then ok "$sentence"; else not_ok "$sentence" "$* (exit $rc)"$'\n'"$(tail -n 50 "$WORK/check.out")"; fi
	return $rc
}

check_eq() { # SENTENCE GOT WANTED
	if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "got '$2', wanted '$3'" && return 1; fi
}

check_num() { # SENTENCE GOT -lt|-le|-eq|-ge|-gt LIMIT (integers)
	if test "$2" "$3" "$4"; then ok "$1"; else not_ok "$1" "got $2, wanted $3 $4"; fi
}

# A measurement that missed for want of a core may be made again, but never silently: the script counts as flaky, and all
# the values that were seen are told. The check of the last one follows. A measurement that fails is not made again.
remeasure() { # TIMES SENTENCE VARIABLE -lt|-le|-eq|-ge|-gt LIMIT COMMAND...: which sets VARIABLE; at most TIMES in all
	local _times=$1 _sentence=$2 _variable=$3 _operator=$4 _limit=$5 _seen=() _rc
	shift 5
	while :; do
		"$@"
		_rc=$?
		if [ $_rc -ne 0 ]; then
			printf -v "$_variable" ''
			not_ok "$_sentence: it is measured" "$* (exit $_rc)"
			return 1
		fi
		_seen+=("${!_variable}")
		! test "${!_variable}" "$_operator" "$_limit" && [ ${#_seen[@]} -lt "$_times" ] || break
	done
	[ ${#_seen[@]} -eq 1 ] || flaky "$_sentence: ${_seen[*]} in ${#_seen[@]} measurements, wanted $_operator $_limit"
}

done_testing() {
	local name end
	! any_card || [ "$NIC" != verbs ] || cards_check
	for name in "${!PID[@]}"; do ! gone "${PID[$name]}" || stop "$name"; done
	for end in "${_bad_ends[@]}"; do not_ok "${end%%$'\n'*}" "${end#*$'\n'}"; done
	if [ $_failed -gt 0 ]; then
		for name in "${!PID[@]}"; do
			note "--- $name: $(tail -n 20 "$WORK/$name.log" 2>/dev/null)"
		done
	fi
	echo "1..$_count"
	exit $((_failed > 0))
}

# The whole script is impossible here: tests/run makes that a failure unless UNPRIVILEGED=1.
cannot_run() { # WHY
	echo "1..0 # SKIP cannot run: $1"
	exit 0
}

# ---- what the machine can do ----

need_net() {
	[ "$(id -u)" -eq 0 ] || cannot_run "not root"
	command -v ip >/dev/null || cannot_run "no ip command"
	ns_add probe 2>/dev/null || cannot_run "no network namespaces"
	ip -n "$(ns probe)" link add probe0 type veth peer name probe1 2>/dev/null || cannot_run "no veth"
	ns_del probe
}

need_xdp() {
	if [ "$NIC" = verbs ]; then
		need_cards
		return
	fi
	need_net
	grep -qw '^XDP' /proc/net/protocols || cannot_run "no AF_XDP in this kernel"
	"$(command -v bpftool || echo /usr/sbin/bpftool)" prog show >/dev/null 2>&1 || cannot_run "no bpf(2)"
}

# ---- namespaces; short names (a, b, ...) stand for names with the run's number ----

ns() { # NAME: its full name
	echo "vma-$RUN_ID-$1"
}

ns_add() { # NAME
	ip netns add "$(ns "$1")" || return
	_namespaces+=("$1")
	# IPv6 off: its neighbour discovery would move the counters that tests read.
	in_ns "$1" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6' 2>/dev/null
	ip -n "$(ns "$1")" link set lo up
}

# Whatever still runs there was started by this test, or by a program of it that forked.
ns_end() { # NAME
	local pids label
	pids=$(ip netns pids "$(ns "$1")" 2>/dev/null | tr '\n' ' ')
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || kill -KILL $pids 2>/dev/null
	for label in "${!PID[@]}"; do [[ " $pids" != *" ${PID[$label]} "* ]] || reap "$label" KILL; done
	ip netns del "$(ns "$1")"
}

ns_del() { # NAME
	local left=() name
	[ "$NIC" != verbs ] || cards_look
	ns_end "$1"
	for name in "${_namespaces[@]}"; do [ "$name" = "$1" ] || left+=("$name"); done
	_namespaces=("${left[@]}")
}

in_ns() { # NAME COMMAND...: in the foreground
	local name=$1
	shift
	see_cards "$@"
	ip netns exec "$(ns "$name")" "${seeing[@]}" "$@"
}

# NIC=verbs: sets `seeing` to what goes before a command that is preloaded, so that it sees the cards.
seeing=()
_cards=0
see_cards() { # COMMAND...
	seeing=()
	case "$_cards:$*" in 0:*) ;; *LD_PRELOAD=*) seeing=("$ROOT/tests/verbs/with_card" "$WORK/tree") ;; esac
}

need_cards() {
	need_net
	[ -c /dev/net/tun ] || cannot_run "no /dev/net/tun"
	command -v ibv_devinfo >/dev/null || cannot_run "no ibv_devinfo"
	if [ -d /sys/class/infiniband ]; then
		skip "cards made of software" "this kernel has InfiniBand, and libibverbs asks it for its devices"
		done_testing
	fi
	if [ "$SAN" = thread ]; then
		skip "cards made of software" "the race detector's runtime starts in instrumented programs only"
		done_testing
	fi
}

any_card() { # that runs
	local label
	for label in "${!PID[@]}"; do
		if [[ $label == card_* ]] && alive "$label"; then return 0; fi
	done
	return 1
}

# As ns_join, but each end is a card, whose interface for the kernel has the name that the end of a veth pair would have.
cards_join() { # NAMESPACE INTERFACE NAMESPACE INTERFACE MTU
	local i wire
	# Those of namespaces that have gone are in the tree still, with the same interfaces.
	any_card || { rm -rf "$WORK/tree" "$WORK"/card_* "$WORK"/wire.* && _cards=0; }
	wire=$WORK/wire.$_cards
	mkdir -p "$WORK/tree"
	for i in 1 2; do
		local card=card_$2 wire_option
		[ $i = 1 ] && wire_option=--wire-listen || wire_option=--wire
		: >"$WORK/$card.log"
		ip netns exec "$(ns "$1")" "$VERBS_CARD" --socket "$WORK/$card" --sysfs "$WORK/tree" --tap "$2" \
			--name "vmasoft$_cards" --index "$_cards" $wire_option "$wire" >"$WORK/$card.log" 2>&1 </dev/null &
		PID[$card]=$!
		wait_for 10 log_has "$card" "is ready" || return
		_cards=$((_cards + 1))
		ip -n "$(ns "$1")" link set "$2" mtu "$5"
		set -- "$3" "$4" "$1" "$2" "$5"
	done
}

# Those that run and answer: they have kept the rules of the verbs; and how many frames the cards' rules took, in all.
_cards_matched=0
cards_look() {
	local card count
	for card in "${!PID[@]}"; do
		[[ $card == card_* ]] && alive "$card" && count=$("$VERBS_CARD" --control "$WORK/$card" show 2>/dev/null) || continue
		_cards_matched=$((_cards_matched + $(awk '$1 == "rx_matched" { print $2 }' <<<"$count")))
		check_eq "no rule of the verbs is broken ($card)" "$(awk '$1 == "violations" { print $2 }' <<<"$count")" 0
	done
}
# At the end: programs were not the kernel's.
cards_check() {
	cards_look
	check_num "rules of the cards took frames" $_cards_matched -gt 0
}

# Joins two namespaces: interfaces veth_A and veth_B with QUEUES device queues each, addresses in one /24, each other's
# address resolved. Sets IF_x, MAC_x, IP_x for x = A and B in upper case.
ns_join() { # A ADDRESS_A B ADDRESS_B [QUEUES] [MTU]
	local a=$1 ip_a=$2 b=$3 ip_b=$4 queues=${5:-1} mtu=${6:-1500} x
	local if_a="veth_$a${ip_a##*.}" if_b="veth_$b${ip_b##*.}" mac_a mac_b
	local options=(numrxqueues "$queues" numtxqueues "$queues" mtu "$mtu")
	if [ "$NIC" = verbs ]; then
		cards_join "$a" "$if_a" "$b" "$if_b" "$mtu" || return
	else
		# Two indexes: with the carrier of a pair whose ends have the same one the kernel takes a second.
		ip link add "$if_a" index $((100 + ${ip_a##*.})) "${options[@]}" netns "$(ns "$a")" type veth \
			peer name "$if_b" index $((100 + ${ip_b##*.})) "${options[@]}" netns "$(ns "$b")" || return
	fi
	ip -n "$(ns "$a")" addr add "$ip_a/24" dev "$if_a"
	ip -n "$(ns "$b")" addr add "$ip_b/24" dev "$if_b"
	ip -n "$(ns "$a")" link set "$if_a" up
	ip -n "$(ns "$b")" link set "$if_b" up
	mac_a=$(in_ns "$a" cat "/sys/class/net/$if_a/address")
	mac_b=$(in_ns "$b" cat "/sys/class/net/$if_b/address")
	ip -n "$(ns "$a")" neigh replace "$ip_b" lladdr "$mac_b" dev "$if_a" nud permanent
	ip -n "$(ns "$b")" neigh replace "$ip_a" lladdr "$mac_a" dev "$if_b" nud permanent
	for x in a b; do
		local upper
		if [ $x = a ]; then upper=${a^^}; else upper=${b^^}; fi
		declare -g "IF_$upper"="$(eval echo "\$if_$x")" "MAC_$upper"="$(eval echo "\$mac_$x")" \
			"IP_$upper"="$(eval echo "\$ip_$x")"
	done
	[ "$NIC" = verbs ] || { wait_for 5 link_up "$a" "$if_a" && wait_for 5 link_up "$b" "$if_b"; }
}

link_up() { # NAME INTERFACE
	[ "$(in_ns "$1" cat "/sys/class/net/$2/operstate")" = up ]
}

net_pair() { # [QUEUES] [MTU]: the usual two namespaces
	ns_add a && ns_add b && ns_join a 10.9.0.1 b 10.9.0.2 "${1:-1}" "${2:-1500}" ||
		cannot_run "the namespaces cannot be joined"
}

# a and b through m, whose two interfaces a middlebox joins. Nothing is cut or summed later than in a and b themselves.
network_with_middlebox() {
	local name
	ns_add a && ns_add b && ns_add m && ns_join a 10.9.0.1 m 10.9.9.21 && ns_join b 10.9.0.2 m 10.9.9.22 || return
	for name in a b; do
		in_ns $name ethtool -K "$(ip -n "$(ns $name)" -br link | sed -n 's/^\(veth_[^@]*\)@.*/\1/p')" \
			tx off tso off gso off gro off >/dev/null
	done
	for name in 21 22; do
		in_ns m ethtool -K veth_m$name tx off tso off gso off gro off >/dev/null
		ip -n "$(ns m)" addr flush dev veth_m$name
	done
	in_ns m sh -c 'echo 0 >/proc/sys/net/ipv4/ip_forward'
	ip -n "$(ns a)" neigh replace 10.9.0.2 lladdr "$MAC_B" dev "$IF_A" nud permanent
	ip -n "$(ns b)" neigh replace 10.9.0.1 lladdr "$MAC_A" dev "$IF_B" nud permanent
}

# ---- processes ----

start() { # LABEL NAMESPACE COMMAND...: in the background; ${PID[LABEL]}, output in $WORK/LABEL.log
	local label=$1 name=$2
	shift 2
	: >"$WORK/$label.log"
	see_cards "$@"
	# ip netns exec becomes the command, so the pid is the command's own.
	ip netns exec "$(ns "$name")" "${seeing[@]}" "$@" >>"$WORK/$label.log" 2>&1 </dev/null &
	PID[$label]=$!
}

alive() { # LABEL
	kill -0 "${PID[$1]}" 2>/dev/null
}

log_has() { # LABEL REGEX
	grep -qE -- "$2" "$WORK/$1.log"
}

# Ends a process and gives its exit status; one that does not end within 5 s is killed (status 137). The script fails if
# the status is neither 0 nor the signal's: the process has crashed or given up, then or before. If the end of a process
# is not what is tested, and may be anything, `reap` ends it.
stop() { # LABEL [SIGNAL]
	local pid=${PID[$1]:-} signal=${2:-TERM} when rc
	[ -n "$pid" ] || return 0
	when="after SIG$signal"
	! gone "$pid" || when="before it was stopped"
	reap "$1" "$signal"
	rc=$?
	[ $rc -eq 0 ] || [ $rc -eq $((128 + $(kill -l "$signal"))) ] || _note_bad_end "$1" "$when" $rc
	return $rc
}

# Told by done_testing: here the output may be a file of `check`.
_note_bad_end() { # LABEL WHEN STATUS
	local status=$3 at=0
	while [ "${BASH_SOURCE[at]##*/}" = lib.sh ] && [ $at -lt $((${#BASH_SOURCE[@]} - 1)) ]; do at=$((at + 1)); done
	[ "$3" -le 128 ] || status="$3, SIG$(kill -l "$3" 2>/dev/null)"
	_bad_ends+=("$1, of line ${BASH_LINENO[at - 1]}, ends by its stop"$'\n'"status $status $2"$'\n'"$(tail -n 20 "$WORK/$1.log" 2>&1)")
}

reap() { # LABEL [SIGNAL]: as stop, but that any end is as good
	local pid=${PID[$1]:-} rc
	[ -n "$pid" ] || return 0
	wait_for 5 _has_begun "$pid" # until then it is a copy of this shell, which may lose the signal
	kill "-${2:-TERM}" "$pid" 2>/dev/null
	wait_for 5 gone "$pid" || kill -KILL "$pid" 2>/dev/null
	wait "$pid" 2>/dev/null
	rc=$?
	unset "PID[$1]"
	return $rc
}

# Waits up to SECONDS for a process to end by itself; gives its exit status, 124 when it still runs.
finish() { # LABEL SECONDS
	local pid=${PID[$1]} rc
	wait_for "$2" gone "$pid" || return 124
	wait "$pid" 2>/dev/null
	rc=$?
	unset "PID[$1]"
	[ $rc -eq 0 ] || tail -n 20 "$WORK/$1.log"
	return $rc
}

_has_begun() { # PID: of a child of this shell, which becomes its command
	! cmp -s "/proc/$1/cmdline" "/proc/$$/cmdline"
}

gone() { # PID: ended (perhaps not yet waited for)
	local state
	state=$(awk '/^State:/ { print $2 }' "/proc/$1/status" 2>/dev/null)
	[ -z "$state" ] || [ "$state" = Z ]
}

# A machine that is so busy that it looks fewer than ten times a second gets more time, four times as much at most.
wait_for() { # SECONDS COMMAND...: until the command succeeds; fails after SECONDS
	local usec begun=${EPOCHREALTIME/./} looks=0 passed
	usec=$(LC_ALL=C printf '%.0f' "${1}e6")
	shift
	until "$@" >/dev/null 2>&1; do
		looks=$((looks + 1)) passed=$((${EPOCHREALTIME/./} - begun))
		[ $passed -lt "$usec" ] || [ $((looks * 100000)) -lt "$usec" ] && [ $passed -lt $((usec * 4)) ] || return 1
		sleep 0.02
	done
}

# ---- the kernel's view ----

snmp() { # NAMESPACE Udp|Tcp|Ip|Icmp COUNTER: snmp b Udp InDatagrams, snmp b Tcp InSegs
	in_ns "$1" awk -v group="$2:" -v name="$3" '
		$1 == group && !column { for (i = 2; i <= NF; i++) if ($i == name) column = i; next }
		$1 == group { print $column; found = 1; exit }
		END { exit !found }' /proc/net/snmp
}

if_counter() { # NAMESPACE INTERFACE COUNTER: rx_packets, tx_bytes, rx_dropped, ...
	in_ns "$1" cat "/sys/class/net/$2/statistics/$3"
}

no_xdp() { # NAMESPACE INTERFACE: no XDP program is attached
	[ "$NIC" = verbs ] || ! ip -n "$(ns "$1")" -d link show "$2" | grep -q 'prog/xdp'
}

has_xdp() { # NAMESPACE INTERFACE
	[ "$NIC" = verbs ] || ip -n "$(ns "$1")" -d link show "$2" | grep -q 'prog/xdp'
}

# ---- the end ----

_cleanup() {
	local label name
	# A child that gets a signal between its fork and its exec still has this trap: the things are not its own.
	[ "$BASHPID" = $$ ] || return
	trap '' INT TERM
	for label in "${!PID[@]}"; do kill "${PID[$label]}" 2>/dev/null; done
	for label in "${!PID[@]}"; do reap "$label"; done
	for name in "${_namespaces[@]}"; do ns_end "$name" 2>/dev/null; done
	rm -rf "$WORK"
}
trap _cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
