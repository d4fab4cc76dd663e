#!/usr/bin/env bash
# A client of vmad that is hostile (an admitted nobody) beside a server that runs as root: the server and vmad live, and
# serve honest clients, which compare each byte.
#
#   a (honest clients) -- veth -- [ m: middlebox ] -- veth -- b: vmad, server (root), attacker (nobody)
# alone: it compares how neighbours are served
# seconds: 78
. "$(dirname "$0")/../lib_programs.sh"
network_with_middlebox || cannot_run "the namespaces cannot be joined"
combination server
chmod 755 "$WORK"
cp "$BUILD/tests/servers/process_mix" "$BUILD/components/nic/test/priv_hostile" "$WORK/" # where nobody may execute them
ATTACK_SECONDS=${ATTACK_SECONDS:-4}
PORT=7900

path() { # OPTIONS...
	start middlebox m "$BUILD/tests/middlebox/middlebox" veth_m21 veth_m22 --seed 7 "$@"
	wait_for 5 log_has middlebox forwarding
}
ask() { # SECONDS SEED
	in_ns a timeout -k 1 60 "$WORK/process_mix" ask "$IP_B" $PORT "$1" 8 "$2" s
}
attack() { # NAME [SECONDS]
	in_ns b timeout -k 1 30 setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
		"$WORK/priv_hostile" "$IF_B" "$@" >"$WORK/attack.log" 2>&1
}
begin() { # MIDDLEBOX-OPTIONS...: a vmad and a server of their own for each attack
	path "$@"
	start vmad b "$BUILD/bin/vmad" --foreground --allow-user nobody "$IF_B"
	wait_for 5 log_has vmad owns || return
	PORT=$((PORT + 1))
	serve mix "$WORK/process_mix" serve "$IP_B" $PORT 0
	wait_for 20 log_has mix listening && ask 1 1 >/dev/null
}
end() {
	stop mix
	stop vmad
	stop middlebox
	wait_for 5 no_xdp b "$IF_B"
}

a="while all frames are written over and segments are lost"
check "$a: the server starts" begin --delay-us 200
stop middlebox
path --delay-us 200 --loss 20000
ask $((ATTACK_SECONDS + 1)) 2 >"$WORK/asked" 2>&1 & asker=$! # what the attacker writes into is wrong, and no matter here
attack frames "$ATTACK_SECONDS"
check_eq "$a: the attacker was a client" "$(head -n 1 "$WORK/attack.log")" in
wait $asker
check "$a: the server lives" alive mix
check "$a: vmad lives" alive vmad
stop middlebox
path --delay-us 0
check "$a: and afterwards, without loss, all is right" ask 2 3
end

for what in locks stay; do
	case $what in
	locks) a="after locks were left to nobody" ;;
	stay) a="while the client that left the locks lives" ;;
	esac
	check "$a: the server starts" begin --delay-us 0
	attack $what "$ATTACK_SECONDS" & attacker=$!
	check "$a: the attacker was a client" wait_for 5 grep -qx in "$WORK/attack.log"
	segments=$(snmp b Tcp InSegs)
	check "$a: each byte is right" ask "$ATTACK_SECONDS" 4
	note "$(tail -n 2 "$WORK/check.out")"
	check_num "$a: and all is offloaded" $(($(snmp b Tcp InSegs) - segments)) -le 20
	wait $attacker
	check "$a: the server lives" alive mix
	check "$a: vmad lives" alive vmad
	check "$a: it is told" log_has vmad "left a lock"
	check "$a: and afterwards all is right" ask 1 5
	end
done

a="while a client takes all places and queue pairs that it is given"
path --delay-us 0
start vmad b "$BUILD/bin/vmad" --foreground --allow-user nobody "$IF_B"
check "$a: vmad starts" wait_for 5 log_has vmad owns
attack greedy $((ATTACK_SECONDS + 8)) & attacker=$!
check "$a: it has what it is given" wait_for 15 grep -q "^queue pairs" "$WORK/attack.log"
got() { sed -n "s/^$1 //p" "$WORK/attack.log"; }
check_num "$a: not more than half of the places" "$(got places)" -le 64
check_num "$a: nor of the queue pairs" "$(got 'queue pairs')" -le 32
note "$(tail -n 2 "$WORK/attack.log" | tr '\n' ' ')"
PORT=$((PORT + 1))
serve mix "$WORK/process_mix" serve "$IP_B" $PORT 0
check "$a: a server of root's starts" wait_for 20 log_has mix listening
segments=$(snmp b Tcp InSegs)
check "$a: each byte is right" ask 2 7
check_num "$a: and all is offloaded" $(($(snmp b Tcp InSegs) - segments)) -le 20
wait $attacker
end

# The kernel keeps the pages that it has, others see new ones: nothing is received until a vmad takes over nothing (--anew).
a="after a client has cut holes into the packet memory"
check "$a: the server starts" begin --delay-us 0
attack holes 1
check_eq "$a: the attacker was a client" "$(head -n 1 "$WORK/attack.log")" in
check "$a: the server lives" alive mix
check "$a: vmad lives" alive vmad
stop vmad
start vmad b "$BUILD/bin/vmad" --foreground --replace --anew --allow-user nobody "$IF_B"
wait_for 5 log_has vmad owns
sleep 1
check "$a: with new memory all is right" ask 2 8
end

# Who writes over the record of frames takes them from the others. vmad does not believe what cannot be, and a new one
# that takes all that over lives; with memory of its own it begins anew.
for what in records dead; do
	case $what in
	records) a="after a client has written over the records, and died" ;;
	dead) a="while a client writes over the records, and another dies" ;;
	esac
	check "$a: the server starts" begin --delay-us 0
	attack $what 2
	check_eq "$a: the attacker was a client" "$(head -n 1 "$WORK/attack.log")" in
	check "$a: vmad does not believe it" wait_for 3 log_has vmad "written over the record"
	check "$a: the server lives" alive mix
	check "$a: vmad lives" alive vmad
	stop vmad
	start successor b "$BUILD/bin/vmad" --foreground --replace --allow-user nobody "$IF_B" # the server may have started one
	check "$a: a new vmad goes on" wait_for 5 log_has successor "goes on where another vmad has ended"
	check "$a: and lives, as the server does" eval 'sleep 1; alive successor && alive mix'
	start vmad b "$BUILD/bin/vmad" --foreground --replace --anew --allow-user nobody "$IF_B"
	wait_for 5 log_has vmad owns
	finish successor 5
	sleep 1
	check "$a: with a new vmad all is right" ask 2 6
	end
done
done_testing
