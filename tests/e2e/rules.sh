#!/usr/bin/env bash
# Transport rules (libvma.conf): for each role, what a rule leaves to the kernel is the kernel's, and what none does is
# offloaded. vma_get_socket_state names the rule, and the kernel's counters show who carried the bytes.
# seconds: 15
. "$(dirname "$0")/../lib.sh"
need_xdp
if [ -n "$SAN" ]; then
	skip "rules decide which sockets are offloaded" "the plain library is enough"
	done_testing
fi
net_pair
conf=$WORK/rules.conf
rules() { # CASE ENVIRONMENT...: what the program prints; the log in CASE.err
	local case=$1
	shift
	in_ns b timeout 30 env LD_PRELOAD="$BUILD/libvma.so" "$@" python3 "$ROOT/tests/e2e/rules.py" "$case" "$IP_A" "$IP_B" \
		2>"$WORK/$case.err"
}
count() { grep -c -- "$2" "$WORK/$1"; } # FILE PATTERN
python=$(python3 -c 'import sys; print(sys.executable)') # not a script around it
start peer a python3 "$ROOT/tests/e2e/rules.py" peer "$IP_A" "$IP_B"
wait_for 10 log_has peer ready

# ---- every role ----

printf '\xef\xbb\xbf# the line of each rule is what the cases expect\r\n' >"$conf"
cat >>"$conf" <<-END
	use os tcp_server *:6001
	use os tcp_server ${IP_B%.*}.0/24:6002
	use os tcp_server *:6003-6004
	use vma tcp_server *:6005
	use os tcp_server *:6005-6007
	use os tcp_client *:7001
	use os tcp_client ${IP_A%.*}.0/28:7002
	use os tcp_client *:7003-7004:*:*
	use xlio tcp_client $IP_A/32:7005
	use os tcp_client *:7005
	use os tcp_client *:7006:$IP_B:*
	use os tcp_client *:7007:*:17007
	use os udp_receiver *:8001
	use os udp_receiver $IP_B/31:8002
	use os udp_receiver *:8003-8004
	use vma udp_receiver *:8005
	use os udp_receiver *:8005-8007
	use os udp_connect *:9001
	use os udp_connect ${IP_A%.*}.0/24:9002
	use os udp_connect *:9003-9004
	use vma udp_connect *:9005
	use os udp_connect *:9005-9006
	use os udp_connect *:9007:*:19007
	use os udp_sender *:9011
	use os udp_sender ${IP_A%.*}.0/24:9012
	use os udp_sender *:9013-9014
	use vma udp_sender *:9015
	use os udp_sender *:9015-9016
	log min-level 9
	use os tcp_server nonsense
	application-id other-program *
	use os tcp_server *:*
	use os tcp_client *:*
	application-id python* other-id
	use os udp_receiver *:*
END
printf 'use os udp_connect *:*' >>"$conf" # no end of line
rules roles VMA_CONFIG_FILE="$conf" VMA_TRACELEVEL=INFO >"$WORK/roles.out"
while IFS=: read -r name expected; do
	check_eq "$name:$expected" "$(grep "^$name: " "$WORK/roles.out")" "$name:$expected"
done <<-END
	tcp_server wildcard: 0 line 2, accepted 0, by the kernel
	tcp_server prefix: 0 line 3, accepted 0, by the kernel
	tcp_server range: 0 line 4, accepted 0, by the kernel
	tcp_server first match: 1 no line, accepted 1, past the kernel
	tcp_server second match: 0 line 6, accepted 0, by the kernel
	tcp_server mapped: 0 line 6, accepted 0, by the kernel
	tcp_server no match: 1 no line, accepted 1, past the kernel
	tcp_client wildcard: 0 line 7, by the kernel
	tcp_client prefix: 0 line 8, by the kernel
	tcp_client range: 0 line 9, by the kernel
	tcp_client first match: 1 no line, past the kernel
	tcp_client local address: 0 line 12, by the kernel
	tcp_client local port: 0 line 13, by the kernel
	tcp_client other local port: 1 no line, past the kernel
	tcp_client mapped: 0 line 7, by the kernel
	tcp_client no match: 1 no line, past the kernel
	udp_receiver wildcard: 0 line 14, by the kernel
	udp_receiver prefix: 0 line 15, by the kernel
	udp_receiver range: 0 line 16, by the kernel
	udp_receiver first match: 1 no line, past the kernel
	udp_receiver mapped: 0 line 18, by the kernel
	udp_receiver no match: 1 no line, past the kernel
	udp_connect wildcard: 0 line 19, by the kernel
	udp_connect prefix: 0 line 20, by the kernel
	udp_connect range: 0 line 21, by the kernel
	udp_connect first match: 1 no line, past the kernel
	udp_connect local port: 0 line 24, by the kernel
	udp_connect mapped: 0 line 19, by the kernel
	udp_connect no match: 1 no line, past the kernel
	udp_sender wildcard: 1 line 25, by the kernel
	udp_sender prefix: 1 line 26, by the kernel
	udp_sender range: 1 line 27, by the kernel
	udp_sender first match: 1 no line, past the kernel
	udp_sender mapped: 1 line 25, by the kernel
	udp_sender no match: 1 no line, past the kernel
	udp_sender no match, others do: 1 line 26, past the kernel
END

# ---- what the log says ----

check_eq "a statement that is wrong is warned of, with its place" \
	"$(count roles.err "WARNING: $conf:31:19: an address is missing.*; the statement is left out")" 1
check_eq "that is the only warning" "$(count roles.err WARNING)" 1
check_eq "log is skipped, in one line" "$(count roles.err "INFO: $conf:30:1: log is skipped")" 1
check_eq "a listener's rule is named once" \
	"$(count roles.err "TCP port 6001, bound to 0.0.0.0, is the kernel's: a rule leaves it to the kernel ($conf:2)")" 1
check_eq "so is a client's, of two sockets" "$(count roles.err "a rule leaves it to the kernel ($conf:7)")" 1
check_eq "and a sender's, of three" "$(count roles.err "the kernel sends what UDP sockets send to names of a rule ($conf:25)")" 1

# ---- programs and IDs ----

only() { # RULE LINES...: the state of a client that connects to port 7001
	printf '%s\n' "$@" >"$conf"
	rules one "${env[@]}" VMA_TRACELEVEL=INFO
}
os="client: 0 line 2, by the kernel" vma="client: 1 no line, past the kernel"
env=(VMA_CONFIG_FILE="$conf" VMA_APPLICATION_ID=B1)
check_eq "rules of this program and ID hold" "$(only 'application-id pyth?n* B1' 'use os tcp_client *:*')" "$os"
check_eq "those of another ID do not" "$(only 'application-id * B2' 'use os tcp_client *:*')" "$vma"
check_eq "quotes do not belong to the ID" "$(only 'application-id "python3" "B1"' 'use os tcp_client *:*')" "$os"
check_eq "rules after a wrong application-id hold for nobody" "$(only 'application-id B1' 'use os tcp_client *:*')" "$vma"
env=(XLIO_CONFIG_FILE="$conf" XLIO_APPLICATION_ID=X1)
check_eq "XLIO's names of both variables hold" "$(only 'application-id * X1' 'use os tcp_client *:*')" "$os"
env=(VMA_CONFIG_FILE= XLIO_CONFIG_FILE="$conf")
check_eq "an empty VMA_CONFIG_FILE means no rules" "$(only '' 'use os tcp_client *:*')" "$vma"
printf '%s\n' 'application-id a-program-with-a-long-name *' 'use os tcp_client *:*' >"$conf"
check_eq "program names are not cut at 15 characters" \
	"$(in_ns b timeout 30 env LD_PRELOAD="$BUILD/libvma.so" VMA_CONFIG_FILE="$conf" bash -c 'exec -a a-program-with-a-long-name "$@"' \
		bash "$python" "$ROOT/tests/e2e/rules.py" one "$IP_A" "$IP_B" 2>"$WORK/long.err")" "$os"

# ---- files that have no rules, and other processes ----

env=(VMA_CONFIG_FILE="$conf")
for kind in missing directory fifo huge; do
	rm -rf "$conf"
	case $kind in
	directory) mkdir "$conf" && why='Is a directory' ;;
	fifo) mkfifo "$conf" && why='it is no regular file' ;;
	huge) truncate -s 1048577 "$conf" && why='it has more than 1048576 bytes' ;;
	missing) why='No such file or directory' ;;
	esac
	check_eq "$kind: the program runs, without rules" "$(rules one "${env[@]}")" "$vma"
	check_eq "$kind: a warning names the file and the error" \
		"$(count one.err "WARNING: VMA_CONFIG_FILE: $conf is not read: $why: none of its rules has an effect")" 1
done
rm -rf "$conf"
printf '%s\n' '' 'use os tcp_client *:7001' >"$conf"
check_eq "a forked child has its parent's rules, and an executed program reads the file anew" \
	"$(rules fork "${env[@]}" | tr '\n' ' ')" "${os/client/child} $vma "
printf '%s\n' '' 'use os udp_connect *:9001' >"$conf"
check_eq "a bound socket is the kernel's once it connects to a peer of a rule" "$(rules late "${env[@]}" | tr '\n' ' ')" \
	"before: 1 no line after: 0 line 2 "

# ---- the default files ----

cp -a /etc "$WORK/etc"
default() { # FILE...: the client's state if these files of /etc have a rule
	local file
	for file; do printf '%s\n' '' 'use os tcp_client *:7001' >"$WORK/etc/$file"; done
	in_ns b unshare -m sh -c 'mount --bind "$0" /etc && exec timeout 30 "$@"' "$WORK/etc" env LD_PRELOAD="$BUILD/libvma.so" \
		"$python" "$ROOT/tests/e2e/rules.py" one "$IP_A" "$IP_B" 2>"$WORK/default.err"
	rm -rf "$WORK"/etc/lib{vma,xlio}.conf
}
rm -rf "$WORK"/etc/lib{vma,xlio}.conf
check_eq "without any file all is offloaded" "$(default)" "$vma"
check_eq "and nothing is said of files" "$(count default.err conf)" 0
check_eq "/etc/libvma.conf is read without being named" "$(default libvma.conf)" "${os/2/2 of libvma}"
check_eq "if it is not there, /etc/libxlio.conf" "$(default libxlio.conf)" "${os/2/2 of libxlio}"
check_eq "the first one wins" "$(default libvma.conf libxlio.conf)" "${os/2/2 of libvma}"
mkdir "$WORK/etc/libvma.conf"
check_eq "one that is there and no file does not let the other one in" "$(default libxlio.conf)" "$vma"
check_eq "a warning says so" "$(count default.err "WARNING: /etc/libvma.conf is not read: Is a directory")" 1
done_testing
