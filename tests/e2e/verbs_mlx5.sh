#!/usr/bin/env bash
# VMA_MLX5_DIRECT over two cards made of software, whose queues have the rings of an mlx5 card (tests/verbs/mlx5.c): the
# conformance suite, programs that are preloaded, a queue that fails under traffic, and rings that cannot be had.
#
#   a (10.9.0.1, 10.77.0.1) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, 10.77.0.2) b
# test-all: whole programs; the unit tests show the rings themselves
# seconds: 33
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v sockperf >/dev/null || cannot_run "no sockperf"
export VMASOFT_MLX5=1 VMA_MLX5_DIRECT=1 VMA_TRACELEVEL=DEBUG VMA_NIC=verbs
cards_pair
ip -n "$(ns a)" addr add 10.77.0.1/24 dev "$IF_A" # the addresses of the unit tests' frames
ip -n "$(ns b)" addr add 10.77.0.2/24 dev "$IF_B"

both_ends() { # PROGRAM: its cases of cmocka
	env -u VMA_TRACELEVEL VMA_CONFORMANCE="verbs:$IF_A verbs:$IF_B" VMA_CONFORMANCE_MLX5=1 CMOCKA_MESSAGE_OUTPUT=TAP \
		VMA_CONFORMANCE_NETNS="/run/netns/$(ns a) /run/netns/$(ns b)" "${with_cards[@]}" "$1"
}
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")

# ---- the backend ----

check "the conformance suite holds" both_ends "$BUILD/test/nic/test/test_conformance"
ip -n "$(ns a)" link set "$IF_A" mtu 9000
ip -n "$(ns b)" link set "$IF_B" mtu 9000
check "... and with packets of several buffers" both_ends "$BUILD/test/nic/test/test_conformance"
ip -n "$(ns a)" link set "$IF_A" mtu 1500
ip -n "$(ns b)" link set "$IF_B" mtu 1500
for name in a b; do check_eq "... and broke no rule of the verbs ($name)" "$(card_count $name violations)" 0; done

# ---- preloaded programs ----

received() { # what the kernel of b counted of UDP and TCP
	echo "$(snmp b Udp InDatagrams) $(snmp b Tcp InSegs)"
}
sockperf_runs() { # ARGUMENTS...: both sides preloaded
	local rc
	start server b "${preloaded[@]}" sockperf server -i "$IP_B" "$@"
	wait_for 20 log_has server "to block on socket"
	before=$(received)
	in_ns a "${preloaded[@]}" sockperf ping-pong -i "$IP_B" "$@" -t 1 --msg-size 200 >"$WORK/client.log" 2>&1
	rc=$?
	after=$(received)
	stop server
	[ $rc -eq 0 ] && grep -q "# dropped messages = 0; # duplicated messages = 0" "$WORK/client.log"
}
check "unmodified programs exchange datagrams" sockperf_runs
check_eq "... and the kernel saw none of them" "$after" "$before"
check "... over the rings, at one end" log_has server "RDMA device vmasoft1: its rings are driven directly"
check "... and at the other" grep -q "RDMA device vmasoft0: its rings are driven directly" "$WORK/client.log"
export VMA_RX_POLL=0
check "threads that sleep are woken by the card" sockperf_runs
check_eq "... and the kernel saw nothing" "$after" "$before"
unset VMA_RX_POLL
check "unmodified programs have a connection" sockperf_runs --tcp
check_eq "... and the kernel saw none of its segments" "$after" "$before"

# ---- a queue that fails ----

start server b "${preloaded[@]}" sockperf server -i "$IP_B"
wait_for 20 log_has server "to block on socket"
start client a sockperf under-load -i "$IP_B" -t 6 --mps 1000 --reply-every 1
sleep 1
for fault in receives sends; do
	card b "$fault fail 1" >/dev/null
	times=$((${times:-0} + 1))
	ring_is_back() { [ "$(grep -c 'offloaded again' "$WORK/server.log")" -eq $times ]; }
	check "a queue whose $fault fail is made anew" wait_for 20 ring_is_back
done
sleep 1
before=$(received)
sleep 1
check_eq "... and its datagrams are not the kernel's" "$(received)" "$before"
check_eq "... and each has its rings driven again" \
	"$(grep -c 'RDMA device vmasoft1: its rings are driven directly' "$WORK/server.log")" 3
finish client 20
stop server
for name in a b; do check_eq "... and no rule of the verbs was broken ($name)" "$(card_count $name violations)" 0; done

# ---- rings that cannot be had; its completion channels tell nothing, so all threads look ----

export VMASOFT_MLX5_REFUSES=1 VMA_RX_POLL=-1
check "without rings the queue is driven by libibverbs" sockperf_runs
check_eq "... and the kernel saw none of the datagrams" "$after" "$before"
check "... and one line says why" log_has server \
	"VMA_MLX5_DIRECT has no effect on RDMA device vmasoft1: mlx5dv_init_obj has failed"
done_testing
