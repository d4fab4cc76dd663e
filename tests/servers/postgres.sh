#!/usr/bin/env bash
# PostgreSQL, which has a process for each connection: pgbench with a connection for each transaction, and with
# connections that stay. No transaction fails, and the sums in the tables are right afterwards. The server is no root:
# a vmad that admits its user offloads its listener and makes the hand-overs, until eight in a row were in vain.
#
# seconds: 13
export VMA_TRACELEVEL=INFO
. "$(dirname "$0")/../lib_programs.sh"
. "$(dirname "$0")/../lib_servers.sh"
net_pair
with_ipv6
combination server
BIN=$(postgres_bin)

answers() {
	"$BIN/pg_isready" -q -h "$IP_B" -p 5432
}
bench() { # OPTION...
	client "$BIN/pgbench" -h "$IP_B" -U postgres "$@" postgres
}
no_failure() { # OPTION...
	bench "$@" || return
	! bench "$@" 2>&1 | grep -E 'aborted|failed: [1-9]|could not'
}
# What pgbench adds to accounts, tellers and branches is the same.
balanced() {
	client "$BIN/psql" -h "$IP_B" -U postgres -Atc 'select (select sum(abalance) from pgbench_accounts) =
		(select sum(tbalance) from pgbench_tellers) and (select sum(tbalance) from pgbench_tellers) =
		(select sum(bbalance) from pgbench_branches)' postgres | grep -qx t
}

start vmad b "$BUILD/bin/vmad" --foreground --allow-user postgres "$IF_B"
check "vmad owns the interface" wait_for 5 log_has vmad "owns"
serve_postgres
check "the server starts" wait_for 30 in_ns a "$BIN/pg_isready" -q -h "$IP_B"
opens=$(snmp b Tcp PassiveOpens)
check "a connection is answered" client "$BIN/psql" -h "$IP_B" -U postgres -Atc 'select 1' postgres
check_num "which the kernel has not accepted" $(($(snmp b Tcp PassiveOpens) - opens)) -eq 0
check "tables are made" bench -i -q
check "300 transactions, a connection for each, 10 clients" no_failure -n -C -c 10 -j 2 -t 30
check "its listener is the kernel's by then, and it says so" wait_for 5 log_has postgres "were all handed over to other processes"
check "2000 transactions on 20 connections" no_failure -n -c 20 -j 2 -t 100
check "the sums agree" balanced
check "the server still runs" alive postgres
stop postgres INT
done_testing
