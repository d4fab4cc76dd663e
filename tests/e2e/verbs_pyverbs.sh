#!/usr/bin/env bash
# verbs_pyverbs: pyverbs, by the authors of libibverbs, on the network card made of software: devices, memory, completion
# queues in both forms, channels, rules, queue pairs, and calls that have to fail.
# seconds: 15
# test-all: it runs rdma-core's own tests
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
python=/usr/bin/python3 # the distribution's, as the module is
$python -c 'import pyverbs.device' 2>/dev/null || cannot_run "no pyverbs"
# Python keeps what it has.
export VMASOFT_RULES=error ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
cards_pair
CASES_PY=$ROOT/tests/verbs/pyverbs_cases.py

while IFS=: read -r name sentence; do
	check "${sentence# }" in_ns a "${with_cards[@]}" timeout 60 $python "$CASES_PY" "$name"
done < <($python "$CASES_PY")
check "the cards ran through all of it" alive card_a
check "... both" alive card_b
done_testing
