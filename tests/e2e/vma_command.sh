#!/usr/bin/env bash
# The command vma: it becomes the program, which is offloaded; and `vma --check` tells who can be.
#
#   a (10.9.0.1, veth_a) ---- (veth_b, 10.9.0.2) b; in b also a dummy without an address, and one that is down
# seconds: 8
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
chmod 755 "$WORK"
# A process that is not dumpable cannot be searched for leaks.
export ASAN_OPTIONS=detect_leaks=0
vma=$BUILD/bin/vma
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
in_ns b ip link add dummy_b type veth peer name dummy_c
in_ns b ip link set dummy_b up

# ---- vma --check ----
checks() { # LABEL [COMMAND...]: the report of b in $WORK/LABEL.out; its exit status
	local label=$1
	shift
	in_ns b "$@" "$vma" --check >"$WORK/$label.out" 2>&1
}
says() { # LABEL STATE WHAT REGEX
	grep -qE "^$2 +$3 +.*$4" "$WORK/$1.out" || { cat "$WORK/$1.out" && return 1; }
}
version=$(sed -n 's/^#define VMA_VERSION "\(.*\)"/\1/p' "$ROOT/components/conf/include/vma/conf_version.h")

checks root
check_eq "root can be offloaded: exit status 0" $? 0
check_num "in ten lines at most" "$(wc -l <"$WORK/root.out")" -le 10
check "it names the library and its version" says root ok library "$(realpath "$BUILD")/libvma\.so, version $version"
check "root has the capabilities" says root ok capabilities 'CAP_NET_RAW CAP_BPF CAP_PERFMON CAP_NET_ADMIN'
check "the kernel has what it takes" says root ok kernel "$(uname -r), with AF_XDP"
check "an interface could have a vmad" says root ok interfaces "$IF_B \(a program starts vmad\)"
check "loopback is named with its reason" says root note others 'lo \(it is the loopback interface\)'
check "so is an interface without an address" says root note others 'dummy_b \(it has no IPv4 address\)'
check "so is one that is down" says root note others 'dummy_c \(it is down\)'
check "asking has started no vmad" no_xdp b "$IF_B"
check_eq "nor has it left a process" "$(ip netns pids "$(ns b)")" ""
checks no_nic env VMA_NIC=none
check_eq "with VMA_NIC=none nothing can be offloaded: exit status 1" $? 1
check "and the reason is said" says no_nic note others "$IF_B \(VMA_NIC is none\)"

checks nobody "${nobody[@]}"
check_eq "nobody cannot be offloaded without a vmad: exit status 1" $? 1
check "capabilities are missing" says nobody missing capabilities 'without CAP_NET_RAW CAP_BPF CAP_PERFMON CAP_NET_ADMIN'
check "the interface has the library's reason" says nobody note others \
	"$IF_B \(no vmad runs for this interface, and to start one this process lacks CAP_NET_RAW"
check_num "in ten lines at most" "$(wc -l <"$WORK/nobody.out")" -le 10

cat >"$WORK/squat.py" <<-'PY'
	import os, socket, sys, time
	os.setuid(65533)
	s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
	s.bind("\0vma/vmad/" + sys.argv[1])
	s.listen()
	print("listening", flush=True)
	time.sleep(60)
PY
start squatter b python3 "$WORK/squat.py" "$(in_ns b cat "/sys/class/net/$IF_B/ifindex")"
wait_for 5 log_has squatter listening
checks squatted "${nobody[@]}"
check "who has taken vmad's name is named" says squatted note others \
	"$IF_B \(what answers in vmad's place is process ${PID[squatter]} of user 65533"
stop squatter

start vmad b "$BUILD/bin/vmad" --foreground --allow-user 65534 "$IF_B"
wait_for 5 log_has vmad owns
checks allowed "${nobody[@]}"
check_eq "nobody can be offloaded by a vmad that allows it: exit status 0" $? 0
check "the vmad is said to take this user" says allowed ok interfaces "$IF_B \(its vmad takes this user\)"
check "what the user lacks is only a note" says allowed note capabilities 'without CAP_NET_RAW.*\(a vmad has them\)'
checks other setpriv --reuid 65533 --regid 65533 --clear-groups
check_eq "another user cannot: exit status 1" $? 1
check "for vmad's own reason" says other note others "$IF_B \(vmad does not accept this process"
checks rootless unshare -U
check "a user namespace of its own is noticed" says rootless missing user 'in a user namespace of its own'
"$vma" --library /nonexistent/libvma.so --check >"$WORK/no_library.out" 2>&1
check_eq "without a library nothing can be offloaded: exit status 1" $? 1
check "and that is the first line" says no_library missing library 'no libvma.so'

# ---- vma PROGRAM ----
if [ -n "$SAN" ]; then
	skip "a program runs by vma" "the plain library is enough"
	done_testing
fi
cat >"$WORK/state.py" <<-'PY'
	import ctypes, os, socket
	state = ctypes.CDLL(None).vma_get_socket_state
	s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
	s.bind(("10.9.0.2", 7000))
	print(state(s.fileno(), None), os.environ.get("VMA_SPEC"), os.environ.get("TOLD"))
PY
check_eq "its socket is offloaded, with the profile and the variables" \
	"$(in_ns b "${nobody[@]}" "$vma" --profile latency TOLD=so python3 "$WORK/state.py" 2>/dev/null)" "1 latency so"
start sleeper b "$vma" sleep 60
sleeper_is_sleep() { [ "/proc/${PID[sleeper]}/exe" -ef "$(type -P sleep)" ]; }
wait_for 5 sleeper_is_sleep
check "no process stands between: the command has become the program" sleeper_is_sleep
stop sleeper TERM
check_eq "which a signal ends" $? 143
"$vma" sh -c 'exit 7'
check_eq "its exit status is the program's" $? 7
check_eq "arguments arrive as they are" "$("$vma" printf '[%s]' 'a b' '' '*' --check -l)" "[a b][][*][--check][-l]"
check_eq "what was preloaded stays, in front" \
	"$(LD_PRELOAD=libm.so.6 "$vma" sh -c 'echo "$LD_PRELOAD"')" "libm.so.6:$(realpath "$BUILD")/libvma.so"
check_eq "an assignment may say what was" \
	"$("$vma" LD_PRELOAD=libm.so.6:/x/libvma.so sh -c 'echo "$LD_PRELOAD"' 2>/dev/null)" \
	"libm.so.6:$(realpath "$BUILD")/libvma.so"
cp "$BUILD/libvma.so" "$WORK/libvma-debug.so"
check_eq "another library may be named" \
	"$("$vma" --library "$WORK/libvma-debug.so" sh -c 'echo "$LD_PRELOAD"')" "$(realpath "$WORK")/libvma-debug.so"
"$vma" /nonexistent/program 2>/dev/null
check_eq "127: there is no such program" $? 127
"$vma" /etc/passwd 2>/dev/null
check_eq "126: it cannot be executed" $? 126
"$vma" --profile fast true 2>/dev/null
check_eq "125: there is no such profile" $? 125
"$vma" --library /nonexistent/libvma.so true 2>/dev/null
check_eq "125: there is no such library" $? 125
"$vma" A=1 2>/dev/null
check_eq "125: there is no program" $? 125

warns() { # REGEX COMMAND...: as nobody
	local regex=$1
	shift
	"${nobody[@]}" "$vma" "$@" >"$WORK/warns.out" 2>&1
	grep -qE -- "$regex" "$WORK/warns.out" || { cat "$WORK/warns.out" && return 1; }
}
cp "$(type -P true)" "$WORK/raised" && chmod u+s "$WORK/raised"
check "a set-user-ID program is warned of" warns '^vma: .*/raised is set-user-ID: nothing is preloaded' "$WORK/raised"
check "also if it is found by PATH" warns '^vma: .*/raised is set-user-ID' "PATH=$WORK" raised
cp "$(type -P true)" "$WORK/capable" && setcap cap_net_raw+ep "$WORK/capable"
check "so is one with file capabilities" warns '^vma: .*/capable has file capabilities' "$WORK/capable"
echo 'int main(void) { return 0; }' | gcc -static -o "$WORK/static" -x c -
check "so is one that is linked statically" warns '^vma: .*/static is linked statically' "$WORK/static"
"${nobody[@]}" "$vma" true >"$WORK/plain.out" 2>&1
check_eq "of an ordinary program nothing is said" "$(cat "$WORK/plain.out")" ""
done_testing
