#!/usr/bin/env bash
# vma_stats --top, in a terminal of tmux: real traffic with the rates that programs count themselves, keys, sizes, programs
# and files that come and go, names that mean harm, and no terminal at all.
#
#   a (clients)  10.9.0.1 ---- veth ---- 10.9.0.2  (servers) b
# test-all: screens are drawn for a minute
# seconds: 40
. "$(dirname "$0")/../lib_sockperf.sh"
command -v tmux >/dev/null || cannot_run "no tmux"
DIR=$WORK/stats
mkdir "$DIR"
export VMA_STATS_SHMEM_DIR=$DIR

# ---- the terminal: a server of tmux that is this run's own ----

tm() { # ARGUMENTS...: of tmux
	env -u LD_PRELOAD -u TMUX TMUX_TMPDIR="$WORK" LC_ALL=C.UTF-8 tmux -u -L "vma-$RUN_ID" -f "$WORK/tmux.conf" "$@"
}
cat >"$WORK/tmux.conf" <<'END'
set -g status off
set -g default-terminal screen
set -g escape-time 0
END

end_tmux() {
	[ "$BASHPID" = $$ ] || return
	tm kill-server 2>/dev/null
	_cleanup
}
trap end_tmux EXIT

# The last line of the screen has the exit status, when it has ended.
top_in() { # SESSION COLUMNS LINES ARGUMENTS...: "NAME=VALUE... -- ..." sets the environment, "..." are vma_stats's
	local session=$1 columns=$2 lines=$3 environment=()
	shift 3
	while [ "${1:-}" != -- ]; do
		environment+=("$1")
		shift
	done
	shift
	tm new-session -d -s "$session" -x "$columns" -y "$lines" \
		"env ${environment[*]} '$BUILD/bin/vma_stats' -k '$DIR' --top $*; echo ended \$?; exec sleep 1000"
}

screen() { # SESSION
	tm capture-pane -p -t "$1"
}

shows() { # SESSION REGEX
	screen "$1" | grep -qE -- "$2"
}

shows_not() { # SESSION REGEX
	! shows "$@"
}

keys() { # SESSION KEYS...: as tmux names them
	local session=$1
	shift
	tm send-keys -t "$session" "$@"
}

pids() { # SESSION: of its lines, from the top
	screen "$1" | awk 'heading && $1 ~ /^[0-9]+$/ { print $1 } $1 == "PID" { heading = 1 }'
}

cell() { # SESSION LABEL COLUMN: of the line of the label's socket; all columns have to be there
	screen "$1" | awk -v pid="${PID[$2]}" -v fd="$(fd_of "$2")" -v column="$3" '$1 == pid && $3 == fd { print $column }'
}

# ---- programs ----

fd_of() { # LABEL
	sed -n 's/^ready //p' "$WORK/$1.log"
}

begin() { # LABEL NAMESPACE ROLE...: of stats_traffic.py, preloaded
	local label=$1 name=$2
	shift 2
	start "$label" "$name" env "$with" python3 "$ROOT/tests/e2e/stats_traffic.py" "$@"
	check "$label starts" wait_for 20 log_has "$label" "^ready"
}

# ---- traffic ----

check "without programs there is a screen" top_in top 200 50 LC_ALL=C.UTF-8 --
check "it says so" wait_for 20 shows top '^vma_stats, every 1 s: processes 0; sockets offloaded 0, kernel 0, undecided 0$'
begin server b udp "$IP_B" 7001 1000000000
begin listener b listen "$IP_B" 7003
begin client a pace "$IP_B" 7001 udp 200
begin stream a pace "$IP_B" 7003 tcp 100
check "programs that begin later are there" wait_for 20 shows top "processes 4; sockets offloaded 5, kernel 0, undecided 0$"

# Both are of a second, but not of the same one.
agrees() { # SESSION LABEL: a rate of the screen and the one that the program has said last, to a quarter
	local own shown
	own=$(sed -n 's/^rate //p' "$WORK/$2.log" | tail -n 1)
	for shown in "$(cell "$1" "$2" 8)" "$(cell "$1" "$2" 9)"; do
		echo "shown $shown, counted $own"
		[ "${own:-0}" -gt 0 ] && [ "${shown:-0}" -gt 0 ] &&
			[ $((shown * 4)) -ge $((own * 3)) ] && [ $((shown * 4)) -le $((own * 5)) ] || return
	done
}
check "the rates of UDP are those that the program counts" wait_for 30 agrees top client
check "so are those of TCP" wait_for 30 agrees top stream
check_eq "a line has program, type and addresses" "$(screen top | awk -v pid="${PID[client]}" '$1 == pid { print $2, $4, $6, $7 }')" \
	"python3 udp $IP_B:7001 yes"
check "and megabytes" grep -qE '^0\.0[0-9]+ 0\.0[0-9]+$' <<<"$(cell top client 10) $(cell top client 11)"
check "its trend is of blocks" wait_for 20 shows top "^ *${PID[client]} .*[▁▂▃▄▅▆▇█]{3}$"
check "the head has the sums" shows top '^rx [1-9][0-9]*/s, 0\.[0-9]+ MB/s   tx [1-9][0-9]*/s, 0\.[0-9]+ MB/s   drops 0/s$'

# ---- keys ----

in_order() { # SESSION SORT-OPTIONS HEAD
	local seen
	seen=$(pids "$1")
	shows "$1" "^sort $3" && [ "$(wc -l <<<"$seen")" -ge 5 ] && [ "$seen" = "$(sort "$2" <<<"$seen")" ]
}
keys top '>'
check "it is sorted by pid" wait_for 20 in_order top -n "PID, rising"
keys top r
check "and the other way round" wait_for 20 in_order top -rn "PID, falling"
keys top '<'
check "and by packets again" wait_for 20 shows top "^sort PACKETS, rising"
keys top r
keys top Home
only_process() { [ "$(pids top | sort -u | wc -l)" -eq 1 ] && shows top "process $(pids top | head -n 1) only"; }
keys top Enter
check "one process only" wait_for 20 only_process
keys top Escape
check "and all again" wait_for 20 shows top "processes 4;"
keys top h
check "there is help" wait_for 20 shows top "^< +> +sort by the column"
keys top x
check "a key leaves it" wait_for 20 shows top "^ +PID PROGRAM"
keys top d 2 Enter
check "the interval is typed" wait_for 20 shows top "every 2 s:"
keys top -
check "and made shorter" wait_for 20 shows top "every 1 s:"

# ---- names ----

cat >"$WORK/named.py" <<'END'
# named.py IP PORT: its name has what terminals obey
import ctypes, socket, time
ctypes.CDLL(None).prctl(15, b"\x1b[31mevil\x07\xc3\xa9", 0, 0, 0)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 7009))
print("ready", s.fileno(), flush=True)
time.sleep(1000)
END
start named b env "$with" python3 "$WORK/named.py"
check "a program with a name that means harm is shown, harmlessly" wait_for 20 shows top "^ *${PID[named]} [?]\[31mevil[?]{3} "
keys top / e v i l Enter
filtered() { [ "$(pids top | sort -u)" = "${PID[named]}" ] && shows top "processes 1;.*" && shows top "programs with 'evil'"; }
check "a filter leaves it alone" wait_for 20 filtered
keys top / Enter
check "none leaves all" wait_for 20 shows top "processes 5;"

# ---- programs that end; pause ----

pid=${PID[named]}
stop named
check "a program that ends disappears" wait_for 20 shows_not top "^ *$pid "
keys top p
check "it pauses" wait_for 20 shows top "; paused"
pid=${PID[client]}
stop client
check "what it has shown stays" shows top "^ *$pid python3"
keys top p
check "and it goes on" wait_for 20 shows_not top "^ *$pid python3"

# ---- files that are none ----

head -c 100000 /dev/urandom >"$DIR/vmastat.1"
start lock b flock -x "$DIR/vmastat.1" sleep 1000
check "nonsense is counted" wait_for 20 shows top "processes not readable: 1"
cp "$DIR/vmastat.${PID[server]}" "$WORK/whole"
truncate -s 0 "$DIR/vmastat.${PID[server]}"
check "so is a file that is cut short" wait_for 20 shows top "processes not readable: 2"
check "its process is not shown" shows_not top "^ *${PID[server]} python3"
cat "$WORK/whole" >"$DIR/vmastat.${PID[server]}"
check "until it is whole again" wait_for 20 shows top "^ *${PID[server]} python3"
stop lock

# ---- sizes ----

resize() { # COLUMNS LINES
	tm resize-window -t top -x "$1" -y "$2"
}
narrow() { # COLUMNS LINES: the headings are there, and nothing is wrapped
	screen top | awk -v columns="$1" -v lines="$2" 'length($0) > columns { exit 1 } /^ *PID/ { found = 1 }
		END { exit !found || NR > lines }'
}
resize 80 24
check "80x24 has the address and rates" wait_for 20 shows top "^ +PID PROGRAM +FD TYPE LOCAL +OFFLOAD +RX/s +TX/s RXMB/s TXMB/s DROP/s"
keys top Right
check "a column gives way to the next one" wait_for 20 shows top "^ +PID PROGRAM +FD TYPE PEER +OFFLOAD +RX/s"
keys top Left
resize 40 10
check "40x10 has what fits" wait_for 20 shows_not top "OFFLOAD"
check "and nothing is wrapped" narrow 40 10
keys top End Down PPage NPage h h / x Escape
resize 12 2
check "12x2 is drawn" wait_for 20 narrow 12 2
resize 1 1
resize 200 50
check "and all is back" wait_for 20 shows top "^ +PID PROGRAM +FD TYPE LOCAL +PEER +OFFLOAD .* PACKETS$"

# ---- the end ----

keys top q
check "q ends it well" wait_for 20 shows top "^ended 0$"
top_in cycles 80 24 LC_ALL=C -- -c 2
check "-c 2 ends it, too" wait_for 20 shows cycles "^ended 0$"
top_in ascii 200 50 LC_ALL=C -- -i 1 -p "${PID[stream]}"
check "without UTF-8 the trend is ASCII" wait_for 20 shows ascii "^ *${PID[stream]} .*[-.:=+*#]{3}$"
check "and so is the screen" bash -c '! grep -q "[^ -~]" <<<"$1"' - "$(screen ascii)"
check "-p has the lines of one process" bash -c '[ "$1" = "$2" ]' - "$(pids ascii | sort -u)" "${PID[stream]}"
keys ascii C-c
check "Ctrl-C ends it well, too" wait_for 20 shows ascii "^ended 0$"

# ---- no terminal ----

"$BUILD/bin/vma_stats" -k "$DIR" --top >"$WORK/out" 2>"$WORK/wrong" </dev/null
check_eq "a pipe is no terminal" "$? $(cat "$WORK/out" "$WORK/wrong")" \
	"64 vmastat: --top needs a terminal: standard output is none"
top_in input 80 24 LC_ALL=C -- "</dev/null"
check "nor is an input of nothing" wait_for 20 shows input "^ended 64$"
check "it says so" shows input "^vmastat: --top needs a terminal: standard input is none$"
for kind in nonsense dumb; do
	top_in $kind 120 24 TERM=$kind --
	check "TERM=$kind is refused" wait_for 20 shows $kind "^ended 64$"
	check "with the reason" shows $kind "^vmastat: .*TERM is '$kind'$"
done
for arguments in "-v 1" "-d 2" "--json" "-t" "-z" "--openmetrics" "--assert-offloaded"; do
	# shellcheck disable=SC2086 # words
	"$BUILD/bin/vma_stats" --top $arguments >"$WORK/out" 2>&1
	check_eq "--top $arguments: no" "$?" 64
done
stop stream
stop listener
stop server
done_testing
