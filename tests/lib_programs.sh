# shellcheck shell=bash
# Real programs over TCP, unmodified, for the scripts of tests/e2e: a server in b, clients in a, payloads compared by
# checksum, and the kernels' TCP counters of the offloaded sides, which must stand still.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server) b
#
# WHERE='*both*' picks who is offloaded: both, server, client. PROGRAMS_KERNEL=1 runs all on kernel sockets, to see what
# the tests themselves need.
# shellcheck disable=SC2034 # for the scripts
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_xdp
if [ "$SAN" = thread ]; then
	skip "programs" "the race detector's runtime starts in instrumented programs only"
	done_testing
fi
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING}
# The programs do not free everything, and a fault in them is their own.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1}
case $SAN in
address) runtime=$(gcc -print-file-name=libasan.so) ;;
*) runtime= ;;
esac
preload="LD_PRELOAD=$runtime${runtime:+ }$LIBRARY" kernel=
[ "${PROGRAMS_KERNEL:-0}" = 0 ] || { preload="" && kernel=1; }

# ---- who is offloaded ----

server_with='' client_with='' offloaded='' where=''
# One after the other: what ends late in one would be counted in the next, whose kernel is to see nothing.
ran=''
combination() { # both|server|client
	where=$1 server_with='' client_with=''
	case $where in both | server) server_with=$preload ;; esac
	case $where in both | client) client_with=$preload ;; esac
	case $where in both) offloaded="a b" ;; server) offloaded=b ;; client) offloaded=a ;; esac
	# shellcheck disable=SC2053 # WHERE is a pattern
	[[ $where == ${WHERE:-*} ]] || return
	[ -z "$ran" ] || settle
	ran=$where
}

serve() { # LABEL COMMAND...
	local label=$1
	shift
	start "$label" b env ${server_with:+"$server_with"} "$@"
}

client() { # COMMAND...: in the foreground, a minute at most
	in_ns a timeout -k 1 "${CLIENT_SECONDS:-60}" env ${client_with:+"$client_with"} "$@"
}

# A TCP connection of the kernel's own, to see whether somebody listens; from b itself, so that it moves no counter of a.
listens() { # PORT
	in_ns b sh -c "ss -Hltn 'sport = :$1' | grep -q ."
}

# ---- what the kernels counted ----

# Of each side: connections that were the kernel's, and segments it has received.
segments() {
	local side refused
	for side in a b; do
		refused=0
		[ "$NIC" != verbs ] || refused=$(snmp $side Tcp OutRsts)
		echo "$(($(snmp $side Tcp ActiveOpens) + $(snmp $side Tcp PassiveOpens))) $(($(snmp $side Tcp InSegs) - refused))"
	done
}
count_from() { before=$(segments); }
# What the combination before has left: a connection of the kernel's is told its end late (acknowledgements of what came
# twice, when it is over there, by RST), and the peers of a killed process are told it again 0.6 s later.
settle() {
	local seen
	for _ in 1 2 3 4 5; do
		seen=$(segments)
		sleep 1
		[ "$(segments)" != "$seen" ] || return 0
	done
}
# Since count_from no connection of the offloaded sides was the kernel's, and it has seen no segment; but for those of
# connections that ended with their process, or were reset: what comes when nobody is there is the kernel's to answer,
# one segment each, or what was on its way to one that was reset (UNMATCHED: at most so many). A listener that was closed
# after its connections (or with its process) leaves a connection of the kernel's in TIME_WAIT: three segments.
# Over verbs there is no vmad that answers for a process that has ended: the kernel has what comes for it still. What it
# refuses by RST is not counted; the rest is little beside thousands of segments.
over_verbs=0
[ "$NIC" != verbs ] || over_verbs=100
still() { # SENTENCE [UNMATCHED]
	[ -z "$kernel" ] || return 0
	seen_by_kernel
	set -- "$1" $((${2:-0} + over_verbs))
	[ "$2" != 0 ] || set -- "$1"
	check_eq "$1: the kernel of the offloaded side made no connection" $opens 0
	check_num "$1: and saw no segment${2:+ but of up to $2 that came too late, or of the end of a listener}" $segs -le "${2:-0}"
}
is_still() { # [UNMATCHED]: the same as a question
	seen_by_kernel
	[ $opens -eq 0 ] && [ $segs -le "${1:-0}" ]
}
seen_by_kernel() { # sets `opens` and `segs`: since count_from, of the offloaded sides
	local opens_before segs_before opens_now segs_now side
	opens=0 segs=0
	for side in $offloaded; do
		case $side in a) side=1 ;; b) side=2 ;; esac
		read -r opens_before segs_before < <(sed -n ${side}p <<<"$before")
		read -r opens_now segs_now < <(segments | sed -n ${side}p)
		opens=$((opens + opens_now - opens_before)) segs=$((segs + segs_now - segs_before))
	done
}

# ---- payloads ----

# Bytes that differ at every place and compress badly: a keystream, made once per size.
payload() { # BYTES: the file's name
	local file=$WORK/payload.$1
	[ -e "$file" ] || head -c "$1" /dev/zero |
		openssl enc -aes-128-ctr -nosalt -K 000102030405060708090a0b0c0d0e0f -iv 00000000000000000000000000000000 >"$file"
	echo "$file"
}
# Four times as fast as sha256sum; both write the same.
sum() {
	openssl dgst -sha256 -r | cut -d' ' -f1
}
sum_of() { # FILE
	sum <"$1"
}
