#!/usr/bin/env bash
# TCP through a network that loses, delays and reorders: streams arrive byte-exact in both directions, between the
# library and the kernel and between two libraries, around the kernel of the offloaded side.
#
#   a (client)  10.9.0.1 -- veth -- [ m: middlebox ] -- veth -- 10.9.0.2  (server) b
# seconds: 17
. "$(dirname "$0")/../lib_programs.sh"
MIDDLEBOX=$BUILD/tests/middlebox/middlebox
network_with_middlebox || cannot_run "the namespaces cannot be joined"

transfer() { # SENTENCE BYTES
	local file
	file=$(payload "$2")
	rm -f "$WORK/there"
	serve sink /usr/bin/socat -t 30 -b 4096 -r "$WORK/there" "TCP-LISTEN:7100,bind=$IP_B,reuseaddr" PIPE
	check "$1: the server starts" wait_for 20 listens 7100
	count_from
	check "$1: $2 bytes go there and come back" there_and_back "$file"
	check_eq "$1: they arrive as they were sent" "$(sum_of "$WORK/there")" "$(sum_of "$file")"
	check_eq "$1: and come back so" "$(sum_of "$WORK/back")" "$(sum_of "$file")"
	still "$1"
	stop sink
}
there_and_back() {
	client socat -t 30 - "TCP:$IP_B:7100" <"$1" >"$WORK/back"
}

path() { # OPTIONS...
	start middlebox m "$MIDDLEBOX" veth_m21 veth_m22 --seed 7 "$@"
	wait_for 5 log_has middlebox forwarding
}

each() { # LOSS_PPM DELAY_US REORDER_PPM DUPLICATE_PPM BYTES
	local text="loss $(($1 / 10000)).$(($1 / 1000 % 10)) %, $(($2 * 2)) us, $where offloaded"
	check "$text: the middlebox works" path --loss "$1" --delay-us "$2" --reorder "$3" --duplicate "$4" || return
	transfer "$text" "$5"
	stop middlebox
	note "$(cat "$WORK/middlebox.log")"
}

for who in both server client; do
	# What still comes at the end of the last one has a way.
	path --delay-us 100
	combination $who
	wanted=$?
	stop middlebox
	[ $wanted = 0 ] || continue
	each 0 100 0 0 $((4 << 20))
	each 1000 100 0 0 $((4 << 20))
	each 10000 100 1000 1000 $((2 << 20))
	each 50000 100 10000 1000 $((1 << 20))
	each 0 10000 20000 0 $((1 << 20))
	each 10000 10000 1000 1000 $((512 << 10))
	each 50000 10000 1000 1000 $((128 << 10))
done
done_testing
