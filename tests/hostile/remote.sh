#!/usr/bin/env bash
# A remote peer that is hostile: connections that send single bytes behind holes, segments of nobody, requests that are
# never completed. Honest clients beside it are served, and each of their bytes is right.
#
#   a (attacker by raw frames, honest clients) ---- veth ---- b (server)
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server
ATTACK_SECONDS=${ATTACK_SECONDS:-6}
mac=$(ip -n "$(ns b)" -o link show "$IF_B" | sed -n 's/.*link\/ether \([^ ]*\).*/\1/p')

ask() { # SECONDS SEED
	in_ns a timeout -k 1 60 "$BUILD/tests/servers/process_mix" ask "$IP_B" 7800 "$1" 8 "$2" s
}
rss() {
	awk '/^RssAnon/ { print $2 }' "/proc/${PID[mix]}/status"
}
serve mix "$BUILD/tests/servers/process_mix" serve "$IP_B" 7800 0
check "the server starts" wait_for 20 log_has mix listening
check "honest clients are served" ask 2 1
note "$(tail -n 2 "$WORK/check.out" | head -n 1)"
before=$(rss)
for attack in holes acks syns; do
	in_ns a timeout -k 1 60 python3 "$ROOT/tests/hostile/remote.py" "$IF_A" "$mac" "$IP_B" 7800 $attack "$ATTACK_SECONDS" \
		>"$WORK/attack.log" 2>&1 &
	attacker=$!
	check "$attack: the attack begins" wait_for 50 grep -q ^connected "$WORK/attack.log"
	[ $attack != holes ] || check_num "$attack: its connections are made" "$(sed -n 's/connected //p' "$WORK/attack.log")" -ge 35
	check "$attack: honest clients are served meanwhile" ask $((ATTACK_SECONDS - 2)) 2
	note "$(tail -n 2 "$WORK/check.out" | head -n 1)"
	check_num "$attack: the server's memory (KB more)" $(($(rss) - before)) -lt 40000
	wait $attacker
	check_eq "$attack: it goes on to its end" "$(tail -n 1 "$WORK/attack.log")" "done"
	check "$attack: honest clients are served afterwards" ask 2 3
	check "$attack: the server lives" alive mix
done
done_testing
