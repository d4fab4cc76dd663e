#!/usr/bin/env bash
# A file of 1 GB by nginx and curl, byte-exact: tcp_programs.sh once more, nginx only.
# seconds: 60
# test-all: three gigabytes are made, sent and summed
PROGRAMS=nginx
HUGE=$((1 << 30))
. "$(dirname "$0")/tcp_programs.sh"
