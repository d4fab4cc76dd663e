#!/usr/bin/env bash
# The same answers as the kernel on AF_INET6 sockets that serve IPv4: every case of tests/parity once more, with mapped
# addresses (tests/parity/mapped.c). Options and variables are those of parity.sh.
# parts: 4
# test-all: it is parity.sh once more
# seconds: 50
export PARITY_MAPPED=1
. "$(dirname "$0")/parity.sh"
