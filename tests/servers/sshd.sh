#!/usr/bin/env bash
# sshd as shipped, a process for each connection: twenty files are copied at the same time by scp, there and back.
#
# seconds: 6
. "$(dirname "$0")/../lib_programs.sh"
. "$(dirname "$0")/../lib_servers.sh"
net_pair
with_ipv6
combination server
FILES=20

copy() { # SCP-ARGUMENTS...
	client scp -q -P 2222 -i "$WORK/ssh/user" -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
		-o LogLevel=ERROR "$@"
}
copy_all() { # there|back
	local i pids=() bad=0
	for i in $(seq $FILES); do
		if [ "$1" = there ]; then copy "$file" "root@$IP_B:$WORK/there.$i"; else copy "root@$IP_B:$file" "$WORK/back.$i"; fi &
		pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" || bad=$((bad + 1)); done
	for i in $(seq $FILES); do cmp "$file" "$WORK/$1.$i" || bad=$((bad + 1)); done
	rm -f "$WORK/$1".*
	[ $bad -eq 0 ]
}

file=$(payload $((4 << 20)))
serve_sshd
check "the server starts" wait_for 20 listens 2222
check "$FILES files of 4 MB go there at the same time" copy_all there
check "$FILES files of 4 MB come back at the same time" copy_all back
check "the server still runs" alive sshd
stop sshd
done_testing
