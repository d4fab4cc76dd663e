#!/usr/bin/env bash
# A server that gives its connections away in every way (fork, exec, spawn, SCM_RIGHTS, another user, kill -9), under
# clients that compare every byte: no byte is lost, nothing hangs, and nothing is left over (descriptors, flows, frames,
# processes that repair sockets). Each of the servers is asked for MIX_SECONDS (10; a soak takes 300); MIX_SEED says what
# comes.
#
# seconds: 50
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server
mix=$BUILD/tests/servers/process_mix
chmod 755 "$WORK"
cp "$mix" "$WORK/process_mix" # where other users may execute it, too
MIX_SECONDS=${MIX_SECONDS:-10} MIX_SEED=${MIX_SEED:-1}
fds() { # PID
	find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l
}
# Connections and listeners of the kernel in b that are neither in TIME_WAIT nor the server's own listener.
kernel_sockets_left() {
	in_ns b ss -Htan state all | grep -vE '^(TIME-WAIT|LISTEN)' | wc -l
}
no_kernel_sockets_left() {
	[ "$(kernel_sockets_left)" -eq 0 ]
}
few_fds() { # PID MOST
	[ "$(fds "$1")" -le "$2" ]
}
few_fds_each() { # PARENT MOST
	local pid
	for pid in $(pgrep -P "$1"); do
		few_fds "$pid" "$2" || return
	done
}
repairs() { # NUMBER: so many processes of vmad's repair sockets
	[ "$(pgrep -cP "${PID[vmad]}" vmad-repair)" -eq "$1" ]
}

comes_back() { # SECONDS SEED MODES
	in_ns a timeout -k 1 $(($1 + 60)) "$WORK/process_mix" ask "$IP_B" "$port" "$1" 16 "$2" "$3"
}

if [ -z "$kernel" ]; then
	start vmad b "$BUILD/bin/vmad" --foreground --allow-user nobody "$IF_B"
	check "vmad owns the interface" wait_for 5 log_has vmad "owns"
fi
port=7776

# WORKERS MODES [COMMAND...]: more of what one process does alone, or all alike; by the command, as another user.
mix_of() {
	# A port of its own: the kernel's TIME_WAIT of the server before would take connections to it.
	local s="a server with $1 workers${3:+ as nobody}, $2" workers=$1 modes=$2 server_fds vmad_fds segments packets
	shift 2
	port=$((port + 1))
	serve mix "$@" "$WORK/process_mix" serve "$IP_B" "$port" "$workers"
	check "$s: it starts" wait_for 20 log_has mix listening
	sleep 1 # processes that have a listener by fork ask for it a second later
	# First: where a connection was handed over the kernel keeps its TIME_WAIT, and takes the next one of the same ports.
	segments=$(snmp b Tcp InSegs)
	check "$s: two seconds of connections that stay where they are" \
		comes_back 2 "$((MIX_SEED + 2000))" s
	[ -n "$kernel" ] || check_num "$s: they are offloaded" $(($(snmp b Tcp InSegs) - segments)) -le 20
	# What a process opens once is open after this.
	check "$s: two seconds, to begin with" comes_back 2 "$((MIX_SEED + 1000))" "$modes"
	sleep 1
	server_fds=$(fds "${PID[mix]}")
	[ -n "$kernel" ] || vmad_fds=$(fds "${PID[vmad]}")
	segments=$(snmp b Tcp InSegs) packets=$(if_counter b "$IF_B" rx_packets)
	check "$s: for $MIX_SECONDS s each byte came back, nothing hung, no datagram was lost" \
		comes_back "$MIX_SECONDS" "$MIX_SEED" "$modes"
	segments=$(($(snmp b Tcp InSegs) - segments)) packets=$(($(if_counter b "$IF_B" rx_packets) - packets))
	note "$(tail -n 13 "$WORK/check.out")"
	! grep -qE '^(process_mix|VMA)' "$WORK/mix.log" || note "$(grep -E '^(process_mix|VMA)' "$WORK/mix.log" | tail -n 8)"
	note "$segments segments of $packets packets were the kernel's"
	check "$s: it still runs" alive mix
	# A thread that has slept leaves an event descriptor to the next one: as many as there are threads at the same time.
	check "$s: its descriptors do not grow with its connections" wait_for 10 few_fds "${PID[mix]}" $((server_fds + 48))
	check "$s: nor do a worker's" wait_for 10 few_fds_each "${PID[mix]}" $((server_fds + 48))
	check "$s: the kernel has no connection left" wait_for 15 no_kernel_sockets_left
	[ -n "$kernel" ] ||
		check "$s: vmad has no more than four descriptors more" wait_for 10 few_fds "${PID[vmad]}" $((vmad_fds + 4))
	stop mix
	[ -n "$kernel" ] || check "$s: no process repairs sockets after its end" wait_for 5 repairs 0
}

mix_of 0 sssssssssfedumxprRk
# As nobody before any worker is killed. Repairs are vmad's then, which runs as root. It can change to no other user.
mix_of 0 sssssssssfedmxprRk setpriv --reuid 65534 --regid 65534 --clear-groups
# Of so many that are handed over a listener would soon become the kernel's: half of them stay.
mix_of 2 ssssssssssfedumxprRkq
# vmad answers for the connections of ended processes for up to a minute after the last of them.
if [ -z "$kernel" ]; then
	check "after the servers' end no program is attached" wait_for 70 no_xdp b "$IF_B"
	stop vmad
	check "and vmad has nothing left: $(grep 'queue pairs' "$WORK/vmad.log")" log_has vmad \
		'queue pairs: 0; flows: 0; connections of ended processes: 0; receive frames missing: 0 of'
fi
done_testing
