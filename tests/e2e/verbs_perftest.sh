#!/usr/bin/env bash
# verbs_perftest: perftest's programs for raw frames, unmodified, between two cards made of software: nothing is lost on
# the wire, no rule of the verbs is broken, and the kernels see nothing of it.
# seconds: 25
# test-all: its programs keep both cores busy
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v raw_ethernet_lat >/dev/null || cannot_run "no perftest"
# They do not free everything.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
cards_pair

serve() { # PROGRAM ARGUMENTS...
	local program=$1
	shift
	start server b "${with_cards[@]}" "$program" -F --server -d vmasoft1 -B "$MAC_B" -E "$MAC_A" "$@"
	wait_for 20 has_rule
}
has_rule() {
	card b rules | grep -q "^rule "
}
load() { # PROGRAM ARGUMENTS...
	local program=$1
	shift
	in_ns a "${with_cards[@]}" timeout 60 "$program" -F --client -d vmasoft0 -B "$MAC_A" -E "$MAC_B" "$@"
}

# A ping-pong: each frame has to arrive. The client begins when the server's rule is there.
for size in 64 1000; do
	check "raw_ethernet_lat: the server is ready ($size bytes)" serve raw_ethernet_lat -s $size -n 1000
	check "... 1000 rounds" load raw_ethernet_lat -s $size -n 1000
	check "... the server counted them, too" finish server 20
done
check_eq "... every frame is in the other card's queue" "$(card_count b rx_copies)" "$(card_count a tx_frames)"

# With addresses and ports it makes a rule for UDP. Both sides are told those of the client's frames.
udp=(-J 10.9.0.2 -j 10.9.0.1 -K 7000 -k 7001)
check "raw_ethernet_lat with a rule for UDP: the server is ready" serve raw_ethernet_lat -s 200 -n 500 "${udp[@]}"
check "... 500 rounds" load raw_ethernet_lat -s 200 -n 500 "${udp[@]}"
check "... the server counted them, too" finish server 20

# Every way to send and to be found. (-e is not among them: these programs wait for an event before they ask for one.)
rounds() { # SENTENCE ARGUMENTS...
	local sentence=$1
	shift
	check "raw_ethernet_lat, $sentence: the server is ready" serve raw_ethernet_lat -s 64 -n 300 "$@"
	check "... 300 rounds" load raw_ethernet_lat -s 64 -n 300 "$@"
	check "... the server counted them, too" finish server 20
}
rounds "inline data" -I 128
rounds "a rule for TCP" --tcp "${udp[@]}"
rounds "a rule for all frames" --promiscuous

new_rules() {
	in_ns a "${with_cards[@]}" timeout 60 raw_ethernet_fs_rate -F --server -d vmasoft0 -B "$MAC_A" -E "$MAC_B" -n 100
}
check "raw_ethernet_fs_rate makes a hundred rules" new_rules
check_eq "... and takes them back" "$(card a rules)" ""

# A stream that nothing holds back: what finds no receive posted is lost there and nowhere else.
before=$(card_count b rx_copies)
check "raw_ethernet_bw: the server is ready" serve raw_ethernet_bw -s 1000 -D 2
check "... two seconds" load raw_ethernet_bw -s 1000 -D 2
check "... the server ends" finish server 20
check_num "... frames arrived" "$(($(card_count b rx_copies) - before))" -gt 1000
check_eq "... no frame was lost between the cards" "$(card_count b rx_frames)" "$(card_count a tx_frames)"
check_eq "... nor anywhere else than for want of a buffer" \
	"$(($(card_count b rx_copies) + $(card_count b rx_no_buffer) + $(card_count b rx_not_ready)))" \
	"$(card_count b rx_matched)"

for with in "-l 8" "-q 4" -b; do # lists of entries; four queue pairs; both ways
	read -ra with <<<"$with"
	check "raw_ethernet_bw ${with[*]}: the server is ready" serve raw_ethernet_bw -s 200 -D 1 "${with[@]}"
	check "... one second" load raw_ethernet_bw -s 200 -D 1 "${with[@]}"
	check "... the server ends" finish server 20
done

check_eq "no rule of the verbs was broken" "$(card_count a violations) $(card_count b violations)" "0 0"
done_testing
