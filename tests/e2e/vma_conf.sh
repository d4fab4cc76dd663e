#!/usr/bin/env bash
# vma_conf: what is wrong with a file of rules, and which line decides.
# seconds: 1
. "$(dirname "$0")/../lib.sh"
conf=$WORK/libvma.conf
run() { # WORD...: what it prints; its exit status is the last word
	"$BUILD/bin/vma_conf" "$@" 2>"$WORK/err" | tr '\n' ' '
	echo "${PIPESTATUS[0]}"
}
printf '%s\n' 'use vma tcp_client 192.168.1.0/24:*:*:*' 'use os tcp_client *:*' 'application-id tcp-lat B1' \
	'use os tcp_server *:5001' >"$conf"
check_eq "a good file has nothing to say" "$(run "$conf") $(wc -c <"$WORK/err")" "0 0"
check_eq "the first line that matches decides" "$(run "$conf" any '*' tcp_client 192.168.1.9:80)" \
	"vma: $conf:1: use vma tcp_client 192.168.1.0/24:*:*:* 0"
check_eq "else a later one" "$(run "$conf" any '*' tcp_client 192.168.2.9:80 10.0.0.1:1)" \
	"os: $conf:2: use os tcp_client *:* 0"
check_eq "the lines of a program hold for it" "$(run "$conf" tcp-lat B1 tcp_server 0.0.0.0:5001)" \
	"os: $conf:4: use os tcp_server *:5001 0"
check_eq "and for no other" "$(run "$conf" tcp-lat B2 tcp_server 0.0.0.0:5001)" "vma: no line decides 0"
printf 'use os tcp_server *:x\r\nuse os tcp_server *:5001\r\nlog' >"$conf"
check_eq "an error has its place and its exit status" "$(run "$conf") $(head -n 1 "$WORK/err")" \
	"1 $conf:1:21: error: a port is missing: a number from 0 to 65536"
check_eq "what is skipped is no error" "$(tail -n +2 "$WORK/err")" \
	"$conf:3:1: log is skipped: VMA_TRACELEVEL and VMA_LOG_FILE say what is logged"
check_eq "the other lines still decide" "$(run "$conf" p '*' tcp_server 10.0.0.1:5001)" "os: $conf:2: use os tcp_server *:5001 1"
: >"$conf"
check_eq "an empty file is a good file" "$(run "$conf" p '*' udp_sender 10.0.0.1)" "vma: no line decides 0"
check_eq "a directory is not read" "$(run "$WORK") $(cat "$WORK/err")" "2 vma_conf: $WORK: Is a directory"
mkfifo "$WORK/fifo"
check_eq "nor is a FIFO waited for" "$(run "$WORK/fifo") $(cat "$WORK/err")" "2 vma_conf: $WORK/fifo: it is no regular file"
check_eq "half a question is none" "$(run "$conf" p '*' tcp_server)" "64"
check_eq "nor is one with an unknown role" "$(run "$conf" p '*' server 10.0.0.1)" "64"
check_eq "nor with a name too many" "$(run "$conf" p '*' tcp_server 10.0.0.1 10.0.0.2)" "64"
done_testing
