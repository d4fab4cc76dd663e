#!/usr/bin/env bash
# What a forked child can do with the right to be a client of vmad that its parent has passed on: be a client of this
# interface, as the parent's user, or as any if the parent says so, until it breaks vmad's protocol. Nothing else.
# seconds: 7
. "$(dirname "$0")/../lib_programs.sh"
net_pair
start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"
check "vmad owns the interface" wait_for 5 log_has vmad owns
start right b "$BUILD/components/nic/test/priv_right" "$IF_B"
finish right 30
check_eq "the children's answers" "$(cat "$WORK/right.log")" \
	"a child of the same user without capabilities: ok
a child that became nobody: Operation not permitted
it makes the right good for all: Operation not permitted
it marks a socket of its own: Operation not permitted
a child that became nobody, with a right for all: ok
with a right of another interface: Operation not permitted
a child that breaks the protocol, at first: ok
it shows its right again: Operation not permitted
a child that became nobody, with a right for all: Operation not permitted"
check "vmad says whom it has refused, and what would let them in" log_has vmad \
	'user 65534 refused.*VMA_CHILDREN_ANY_USER.*--allow-user'
check "vmad lives" alive vmad

# A worker that changes its user after the fork makes a right of its own before: with a new vmad, too, it is a client.
. "$ROOT/tests/lib_servers.sh"
combination server
echo hello >"$WWW/hello"
serve_nginx 2
n="nginx, as www-data"
check "$n: it starts" wait_for 20 listens 8080
answers_past_the_kernel() {
	local segments
	segments=$(snmp b Tcp InSegs)
	[ "$(client curl -sS "http://$IP_B:8080/hello")" = hello ] && [ $(($(snmp b Tcp InSegs) - segments)) -eq 0 ]
}
check "$n: it answers, past the kernel" wait_for 10 answers_past_the_kernel
start vmad b "$BUILD/bin/vmad" --replace --foreground "$IF_B"
check "$n: a new vmad owns the interface" wait_for 10 log_has vmad owns
check "$n: it answers past the kernel again" wait_for 10 answers_past_the_kernel
check "$n: nobody was refused" eval '! log_has vmad refused'
done_testing
