#!/usr/bin/env bash
# A million datagrams without a copy (COUNT=10000000: ten), each whole and in order, 64 held at any time: no memory is
# needed for them that was not needed for the first tenth.
# seconds: 15
# test-all: it is a million
#
#   a: extra_udp pump (the kernel's sockets) ---- veth ---- b: extra_udp volume, preloaded
EXTRA_PROGRAM=extra_udp
. "$(dirname "$0")/../lib_extra.sh"
count=${COUNT:-1000000}
[ -z "$SAN" ] || count=100000
before=$(snmp b Udp InDatagrams)
start volume b env "$preload" "$program" volume "$IP_B" 7300 "$count"
wait_for 30 log_has volume '^ready'
check "they are sent, 32 at a time" in_ns a "$program" pump "$IP_B" 7300 "$count"
finish volume 60
read -r _ packets _ grown _ wrong < <(said volume)
check_eq "each comes, and is whole" "$packets ${wrong:-none}" "$count 0"
check_num "the process has not grown by 1 MB" "${grown:-9999}" -lt 1024
check_eq "the kernel of b saw none of them" "$(snmp b Udp InDatagrams)" "$before"
done_testing
