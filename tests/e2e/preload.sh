#!/usr/bin/env bash
# A program and the preloaded library: it starts at no cost, sees nothing that it would not see without, and its
# sockets work through everything that programs do with descriptors, streams, processes and handlers.
#
#   a (the program, preloaded)  veth  (plain sockets that echo) b
# seconds: 42
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
PROBE_SECONDS=${SAN:+60}
PROBE_SECONDS=${PROBE_SECONDS:-20}
PROBE=$BUILD/tests/preload/preload_probe LIBRARY=$BUILD/libvma.so PORT=7000
export VMA_TRACELEVEL=WARNING
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1}
case $SAN in
address) PRELOAD="$(gcc -print-file-name=libasan.so) $LIBRARY" ;;
thread) PRELOAD="$(gcc -print-file-name=libtsan.so) $LIBRARY" ;;
*) PRELOAD=$LIBRARY ;;
esac
start echo b "$PROBE" echo "$IP_B" $PORT
wait_for 5 log_has echo listening || cannot_run "the peer does not start"

probe() { # CASE [ENVIRONMENT...]
	local name=$1
	shift
	in_ns a timeout -k 1 "$PROBE_SECONDS" env "LD_PRELOAD=$PRELOAD" "$@" "$PROBE" "$name" "$IP_B" $PORT
}

# ---- what the library shows and what it costs ----

# The list that users are told of (docs/preload.md) and the library agree.
exported() {
	diff <(sed -n '/^<!-- exports -->/,/^<!-- end -->/p' "$ROOT/docs/preload.md" | grep -oE '`[A-Za-z_0-9]+`' | tr -d '`' | sort) \
		<(nm -D --defined-only "$1" | awk '{ print $3 }' | sort)
}
if [ -z "$SAN" ]; then
	check "it exports what docs/preload.md lists, and nothing else" exported "$LIBRARY"
	check_eq "it needs the C library and no other" \
		"$(readelf -d "$LIBRARY" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(libc\.so|ld-linux)')" ""
	starts_later() {
		local said
		said=$("$BUILD/tests/preload/preload_startup" "$LIBRARY" 20 /bin/true) && read -r later faults <<<"$said"
	}
	# On a busy machine the difference of two medians may be that large by chance.
	remeasure 5 "microseconds that /bin/true starts later" later -lt 5000 starts_later
	check_num "/bin/true starts and ends at most 5 ms later (microseconds)" "$later" -lt 5000
	check_num "with at most 50 page faults more" "$faults" -le 50
	read -r later faults < <("$BUILD/tests/preload/preload_startup" "$LIBRARY" 20 /bin/sh -c '(:); (:); (:); (:); (:); (:); (:); (:); (:); (:)')
	check_num "ten forks of a program that has no sockets have at most 15 page faults more each" "$faults" -le $((50 + 10 * 15))
fi

# ---- programs that have no use for it ----

same() { # COMMAND...: the same words and status with the library and without
	local with without
	without=$("$@" 2>&1 </dev/null)$'\n'$?
	with=$(LD_PRELOAD=$PRELOAD "$@" 2>&1 </dev/null)$'\n'$?
	diff <(echo "$without") <(echo "$with")
}
if [ "$SAN" != thread ] && [ "$SAN" != address ]; then # whose runtimes do not start in all of them
	check "bash: pipes, children, redirections" same bash -c 'echo a | tr a b; (exit 3); echo $? >&2; exec 5</dev/null; read -r x <&5; echo $(</proc/self/comm)'
	check "python3: subprocesses, threads, event loop" same python3 -c '
import asyncio, os, socket, subprocess, threading
print(subprocess.run(["sh", "-c", "echo child; exit 4"], capture_output=True))
print(subprocess.check_output("echo shell", shell=True, close_fds=True), os.popen("echo popen").read())
a, b = socket.socketpair()
t = threading.Thread(target=lambda: b.sendall(b"thread")); t.start(); t.join()
print(a.recv(10), asyncio.run(asyncio.wait_for(asyncio.sleep(0.01, "slept"), 5)))'
	check "perl: backticks, fork, signals" same perl -e 'print `echo tick`; $SIG{USR1} = sub { print "usr1\n" }; kill "USR1", $$;
		if (fork == 0) { exit 5 } wait; print $? >> 8, "\n"; open(F, "|cat"); print F "to cat\n"; close F'
	check "ssh" same ssh -V
	check "curl" same curl --version
	in_gdb() {
		in_ns a timeout 20 gdb -batch -ex "set exec-wrapper env LD_PRELOAD=$PRELOAD" -ex run --args "$PROBE" one_socket "$IP_B" $PORT \
			>"$WORK/gdb.log" 2>&1
		grep -q 'exited normally' "$WORK/gdb.log" || { cat "$WORK/gdb.log" && false; }
	}
	if [ -n "$SAN" ] || ! command -v gdb >/dev/null; then
		skip "a program under gdb has its sockets offloaded" "no gdb, or a sanitizer"
	else
		check "a program under gdb has its sockets offloaded" in_gdb
	fi
fi

# ---- one case of preload_probe each ----

check_probe() { # CASE SENTENCE [ENVIRONMENT...]
	local name=$1 sentence=$2
	shift 2
	check "$sentence" probe "$name" "$@"
}

check_probe untouched "a program that makes no UDP socket gets no thread, descriptor or file"
check_probe one_socket "a socket is offloaded and works"
check_probe numbers "descriptors have the numbers that they have without the library"
check_probe before_main "a constructor uses a socket before main" "PROBE_EARLY=$IP_B:$PORT"
check_probe table_of_a_billion "numbers beyond the table's array work"
[ -n "$SAN" ] || check_probe limited_addresses "a limit of address space is the program's: what the library holds is not counted"
check_probe exit_among_threads "exit while threads use sockets is orderly"
check_probe without_rings "io_uring_setup fails with ENOSYS, before the first socket and after it"
check_probe with_rings "with VMA_IO_URING=1 it does not, and the program's sockets are the kernel's" VMA_IO_URING=1
arrived() { # CASE
	local wanted
	wanted=$(($(snmp b Udp InDatagrams) + 21))
	probe "$1" && wait_for 5 has_got $wanted || { echo "$((wanted - $(snmp b Udp InDatagrams))) of 21 have not arrived" && false; }
}
has_got() { # DATAGRAMS
	[ "$(snmp b Udp InDatagrams)" -ge "$1" ]
}
check "what was sent in a row before exit has all arrived" arrived last_words
check "so it has before _exit" arrived last_words_at_once
check "and before exec, whose arguments are passed on" arrived last_words_before_exec

check_probe copies_share "copies share the socket, and the last one ends it"
check_probe put_over "dup2 over a socket ends it, and of a socket shares it"
check_probe ranges "close_range and closefrom close the program's descriptors and not the library's"
check_probe close_all "a program that closes all numbers leaves the library its own"
check_probe reused_after_raw_close "a number closed by a raw system call and given out anew, a thousand times"
check_probe idle_after_raw_close_of_all "if a raw system call closes all descriptors, the library's among them, its threads do not spin"

check_probe reused_after_fclose "a number closed by fclose and given out anew, a thousand times"
check_probe reopened "freopen puts a file in a socket's place"
check_probe written "fprintf and dprintf send, answers come offloaded"
check_probe read_by_stream "a socket that a stream reads from is the kernel's"
check_probe spliced "splice and sendfile, from and to a socket"
check_probe splice_cancelled "a splice that is cancelled leaves nothing of its socket behind" "VMA_STATS_FILE=$WORK/spliced"

check_probe commands "system, popen and posix_spawn leave sockets alone"
if [ "$SAN" = thread ]; then
	skip "what a vfork child closes, and handlers that it resets, are its own" "the sanitizer makes vfork a fork"
else
	check_probe vfork_child_tidies_up "what a vfork child closes, and handlers that it resets, are its own"
fi
if [ "$SAN" = address ] || [ "$SAN" = thread ]; then
	skip "children use what they inherit" "a sanitizer's allocator and threads do not survive the fork of a process with threads"
else
	check_probe forked "a forked child uses inherited and new sockets, the parent goes on"
	check_probe fork_and_leave "a child takes its parent's socket over"
	check_probe raw_clone "a copy of the process that nobody announced finds its own way"
	check_probe cloned "so does one made by clone()"
	check_probe daemonized "a daemon goes on with the socket it had"
	# On one processor: the child may not have run yet when its parent is the new program.
	mkdir "$WORK/stats_forked"
	executed() { # ROUNDS
		in_ns a timeout -k 1 "$PROBE_SECONDS" taskset -c 0 env "LD_PRELOAD=$PRELOAD" PROBE_ROUNDS="$1" \
			"VMA_STATS_SHMEM_DIR=$WORK/stats_forked" "$PROBE" forked_then_executed "$IP_B" $PORT >"$WORK/executed.log" 2>&1
	}
	check "a process that has a child becomes another program, 30 times" executed 30
	check_eq "which finds the name of its statistics free, and has nothing else to say" "$(cat "$WORK/executed.log")" ""
	check_eq "none is left" "$(ls "$WORK/stats_forked")" ""
fi

if [ "$SAN" = thread ]; then
	skip "sigaction, signal and the like" "the sanitizer has its own"
else
	check_probe calls "sigaction, signal, sigset, sysv_signal and siginterrupt show the program its own handlers"
fi
if [ "$SAN" = thread ]; then
	skip "a handler sends on the socket that the program is using" "the sanitizer's runtime cannot be interrupted in its own calls"
else
	check_probe handler_sends "a handler sends on the socket that the program is using"
fi
if [ "$SAN" = address ]; then
	skip "a thread is cancelled in recv, and the socket works on" "the sanitizer takes the frames that it leaves for a fault"
else
	check_probe cancelled "a thread is cancelled in recv, and the socket works on"
fi

# ---- opened by name ----

if [ -z "$SAN" ]; then # a sanitizer's runtime wants to be first
	by_name() { # CASE [ENVIRONMENT...]
		local name=$1
		shift
		in_ns a timeout 20 env "PROBE_LIBRARY=$(realpath "$LIBRARY")" "$@" "$PROBE" "$name" "$IP_B" $PORT
	}
	check "a program that opens the library by name uses its sockets, and cannot unload it" by_name by_name
	check "its own handlers end a receive, or do not, as they were installed" by_name interrupted_by_name
	check "so they do one that sleeps at once" by_name interrupted_by_name VMA_RX_POLL=0
	check "and one that never sleeps" by_name interrupted_by_name VMA_RX_POLL=-1
	load_vma() {
		in_ns a timeout 20 sockperf ping-pong -i "$IP_B" -p 7100 -t 1 --load-vma="$(realpath "$LIBRARY")" >"$WORK/load.log" 2>&1 &&
			grep -q 'Summary: Latency' "$WORK/load.log" || { cat "$WORK/load.log" && return 1; }
	}
	start server b sockperf server -i "$IP_B" -p 7100
	wait_for 5 log_has server 'to block on socket'
	before=$(snmp a Udp OutDatagrams)
	check "sockperf --load-vma" load_vma
	check_num "its datagrams do not come from a's kernel" $(($(snmp a Udp OutDatagrams) - before)) -lt 100
	stop server
	start server a sockperf server -i "$IP_A" -p 7101 --load-vma="$(realpath "$LIBRARY")"
	wait_for 5 log_has server 'to block on socket'
	kill -INT "${PID[server]}"
	check "SIGINT ends sockperf's server --load-vma" finish server 5
	stop server KILL
fi

# ---- what a killed program leaves ----

if [ -z "$SAN" ]; then # whose programs take their time
	no_vmad() {
		! in_ns a grep -q "@vma/vmad/" /proc/net/unix
	}
	files() {
		(cd "$WORK/stats" && echo vmastat.*)
	}
	wait_for 5 no_vmad # the one that the programs before have started sweeps elsewhere
	mkdir "$WORK/stats"
	for label in killed living; do
		start $label a env "LD_PRELOAD=$PRELOAD" "VMA_STATS_SHMEM_DIR=$WORK/stats" \
			sockperf server -i "$IP_A" -p $((PORT + 2 + ${#PID[@]}))
		wait_for 5 log_has $label 'to block on socket'
	done
	only_the_living() {
		[ "$(files)" = "vmastat.${PID[living]}" ]
	}
	check_eq "two programs have files of statistics" "$(files | wc -w)" 2
	kill -KILL "${PID[killed]}"
	check "the file of a killed program goes, that of a living one stays" wait_for 5 only_the_living
	stop killed KILL
	stop living
fi

# ---- who may not ----

if [ -z "$SAN" ]; then # whose runtimes need files that such a user cannot read
	chmod 755 "$WORK"
	mkdir "$WORK/pub" && cp "$LIBRARY" "$PROBE" "$WORK/pub/" && chmod -R a+rX "$WORK/pub"
	unprivileged() {
		in_ns a timeout 20 setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
			env "LD_PRELOAD=$WORK/pub/libvma.so" VMA_TRACELEVEL=WARNING PROBE_KERNEL=1 "$WORK/pub/preload_probe" one_socket "$IP_B" $PORT \
			>"$WORK/unprivileged.log" 2>&1
	}
	check "a program without any capability works" unprivileged
	check_eq "and is told once what is missing" "$(grep -c VMA "$WORK/unprivileged.log")" 1
	# The loader of a program with raised privileges takes no path, and by name only a library that is set-user-ID itself
	# and lies where the system's lie: here in another's place, which nobody else sees.
	stand_in=$(ls /lib/*/libmemusage.so /usr/lib/*/libmemusage.so 2>/dev/null | head -n 1)
	raised() { # OWNER LIBRARY [ENVIRONMENT...]
		local owner=$1 library=$2 mount=true
		shift 2
		chown "$owner" "$WORK/pub/preload_probe" && chmod u+s "$WORK/pub/preload_probe" || return
		[[ $library == */* ]] || mount="mount --bind '$WORK/pub/libvma.so' '$stand_in'"
		in_ns a timeout 20 unshare --mount sh -c "$mount && exec \"\$@\"" sh \
			setpriv --reuid 65533 --regid 65533 --clear-groups env "LD_PRELOAD=$library" VMA_TRACELEVEL=WARNING "$@" \
			"$WORK/pub/preload_probe" one_socket "$IP_B" $PORT >"$WORK/raised.log" 2>&1
	}
	offloads_nothing() { # OWNER LIBRARY: and without the library what works is the kernel's
		raised "$@" PROBE_KERNEL=1 && ! raised "$@"
	}
	for owner in 65534 0; do
		check "a program set-user-ID to $owner runs, without the library" offloads_nothing $owner "$WORK/pub/libvma.so"
		check_eq "which is not even loaded" "$(grep -c VMA "$WORK/raised.log")" 0
	done
	if [ -z "$stand_in" ]; then
		skip "a library that is set-user-ID itself" "no place for it among the system's"
	else
		library=$(basename "$stand_in")
		check "a library among the system's that is not set-user-ID is not taken either" offloads_nothing 0 "$library"
		chmod u+s "$WORK/pub/libvma.so"
		check "one that is set-user-ID offloads" raised 0 "$library" VMA_TRACELEVEL=DEBUG "VMA_LOG_FILE=$WORK/pub/told"
		check "and takes no file's name from who has called it" test ! -e "$WORK/pub/told"
		wait_for 5 no_vmad
		check "set-user-ID to somebody without rights it works" raised 65534 "$library" PROBE_KERNEL=1
		check_eq "and is told once what is missing" "$(grep VMA "$WORK/raised.log" | sed 's/.*: no vmad runs.*/no vmad/')" "no vmad"
		start liar a setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind("\0vma/vmad/" + sys.argv[1]); s.listen(); print("bound", flush=True)
while True: s.accept()[0].recv(1)' "$(in_ns a cat "/sys/class/net/$IF_A/ifindex")"
		check "another process of that user takes vmad's place" wait_for 10 log_has liar bound
		check "and is not believed" raised 65534 "$library" PROBE_KERNEL=1
		check "which is said" grep -q "user 65534, neither root nor this user without raised privileges" "$WORK/raised.log"
		stop liar
		check "nothing of that is seen elsewhere" test ! -u "$stand_in"
	fi
	no_nic() {
		ns_add n && in_ns n timeout 20 env "LD_PRELOAD=$PRELOAD" python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", 0))
s.sendto(b"here", s.getsockname()); assert s.recv(10) == b"here"'
	}
	check "a namespace without any interface" no_nic
fi

# ---- what is not there ----

lines() { # FILE
	grep -c VMA "$1"
}
if [ -z "$SAN" ]; then
	lacking() { # WHAT ERROR COMMAND...
		in_ns a timeout 20 "$BUILD/tests/preload/lacking" "$@" >"$WORK/lacking.log" 2>&1
	}
	wait_for 5 no_vmad
	for case in "af_xdp EAFNOSUPPORT" "af_xdp EPERM" "bpf EPERM" "bpf ENOSYS" "memfd EPERM"; do
		case $case in af*) call='socket\(AF_XDP\)' ;; memfd*) call='memfd_create\(\)' ;; *) call='bpf\(\)' ;; esac
		begun=$(date +%s%3N)
		# shellcheck disable=SC2086 # two words
		lacking $case env PROBE_KERNEL=1 "$PROBE" one_socket "$IP_B" $PORT # the machine's own time for that
		alone=$(($(date +%s%3N) - begun)) begun=$(date +%s%3N)
		# shellcheck disable=SC2086 # two words
		check "without $case a program works" lacking $case env "LD_PRELOAD=$PRELOAD" PROBE_KERNEL=1 "$PROBE" one_socket "$IP_B" $PORT
		check_num "and does not wait (milliseconds)" $(($(date +%s%3N) - begun)) -lt $((1000 + 4 * alone))
		check_eq "and is told once" "$(lines "$WORK/lacking.log")" 1
		check "what is missing" log_has lacking "$call"
		# shellcheck disable=SC2086
		! lacking $case "$BUILD/bin/vmad" --foreground "$IF_A"
		check_eq "so is who starts vmad" "$(lines "$WORK/lacking.log"), $(grep -cE "$call" "$WORK/lacking.log")" "1, 1"
	done
	# Without CAP_IPC_LOCK and the like; a device is asked for again after two seconds.
	wait_for 5 no_vmad
	for limit in 0 65536; do
		in_ns a timeout 20 prlimit "--memlock=$limit:$limit" setpriv --bounding-set=-sys_admin,-ipc_lock,-sys_resource \
			env "LD_PRELOAD=$PRELOAD" python3 -c '
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 0))
time.sleep(6)' "$IP_A" >"$WORK/locked.log" 2>&1
		check_eq "RLIMIT_MEMLOCK of $limit is told of once" "$(grep -c 'RLIMIT_MEMLOCK.*CAP_IPC_LOCK' "$WORK/locked.log")" 1
		check_num "with one line more for the socket, beside the warning of the field" \
			"$(grep -cvE 'WARNING: (\*\*\*|Your current max locked memory|Set this user)' "$WORK/locked.log")" -le 2
	done
	few() { # DESCRIPTORS [ENVIRONMENT...]
		in_ns a timeout 20 prlimit --nofile="$1:$1" env "LD_PRELOAD=$PRELOAD" "${@:2}" "$PROBE" one_socket "$IP_B" $PORT >"$WORK/few.log" 2>&1
	}
	check "with 64 descriptors a program's sockets are offloaded" few 64
	check_eq "without a word" "$(lines "$WORK/few.log")" 0
	for n in 12 15 16 18 20 22; do
		wait_for 5 no_vmad
		check "with $n it works" few $n PROBE_KERNEL=1
		check_eq "by the kernel, and is told once why" "$(grep -c 'VMA.*Too many open files' "$WORK/few.log")" 1
	done
fi
done_testing
