#!/usr/bin/env bash
# verbs_pyverbs: pyverbs, by the authors of libibverbs, on the network card made of software: devices, memory, completion
# queues in both forms, channels, rules, queue pairs, and calls that have to fail. Then rdma-core's own tests of it.
# seconds: 25
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
cards_end

# ---- rdma-core's own tests, which Debian and Fedora install as documentation ----

UPSTREAM=/usr/share/doc/rdma-core/tests
if [ ! -d "$UPSTREAM" ]; then
	skip "rdma-core's own tests" "no $UPSTREAM: documentation was not installed"
	done_testing
fi

# They send from one queue pair of a device to another, so its wire gives each frame back.
ns_add a && card_start a 0 10.9.0.1 --plug || cannot_run "a card with a plug does not start"
mkdir "$WORK/tests"
for file in "$UPSTREAM"/*; do
	case $file in
	*.gz) gunzip -c "$file" >"$WORK/tests/$(basename "$file" .gz)" ;;
	*) cp "$file" "$WORK/tests" ;;
	esac
done
cp "$ROOT/tests/verbs/pyverbs_raw.py" "$WORK/tests/test_vmasoft_raw.py"

# A test of what the card has not skips itself, by what the card says. So each module has a number of tests that have to
# pass: without it the module could skip all. Fewer than in that list may not; more may, with a newer rdma-core.
LAST=$WORK/upstream.out
upstream() { # LEAST_PASSED RULES_BROKEN MODULE...: the runner's numbers are what counts
	local least=$1 broken=$2 ran skipped seen
	shift 2
	in_ns a "${with_cards[@]}" timeout 120 $python "$WORK/tests/run_tests.py" --dev vmasoft0 -v "${@/#/tests.}" \
		>"$LAST" 2>&1 || { tail -n 60 "$LAST" && return 1; }
	ran=$(sed -n 's/^Ran \([0-9]*\) tests\? in .*/\1/p' "$LAST")
	skipped=$(sed -n 's/^OK.*skipped=\([0-9]*\).*/\1/p' "$LAST")
	seen=$(grep -c 'vmasoft: rule broken' "$LAST")
	echo "ran $ran, skipped ${skipped:-0}, wanted $least that pass; rules of the verbs broken: $seen, wanted $broken"
	[ $((ran - ${skipped:-0})) -ge "$least" ] && [ "$seen" -eq "$broken" ] || { cat "$LAST" && return 1; }
}

declare -A LEAST=([cq]=3 [cqex]=2 [device]=13 [flow]=5 [fork]=1 [mlx5_timestamp]=1 [mr]=1 [pd]=4 [qp]=5)
for name in cq cqex device flow fork mlx5_timestamp mr pd qp; do
	check "rdma-core's test_$name: ${LEAST[$name]} tests pass" upstream "${LEAST[$name]}" 0 "test_$name"
done
check "... raw packets with extended queues, events, both ways to send, and calls that have to fail" \
	upstream 7 3 test_vmasoft_raw

# The tests of these modules skip themselves, but for:
#   test_mlx5_* test_efa*   they are of other devices, and say so
#   test_cuda_dmabuf        it is about graphics cards
#   test_rdmacm             it is about another library
#   test_rss_traffic        it makes a work queue without asking whether there are any: the card has none
others=()
for file in "$WORK"/tests/test_*.py; do
	name=$(basename "$file" .py)
	case $name in test_mlx5_* | test_efa* | test_cuda* | test_rdmacm | test_rss_traffic | test_vmasoft_raw) ;;
	*) [ -n "${LEAST[${name#test_}]:-}" ] || others+=("$name") ;;
	esac
done
check "none of rdma-core's other tests fails" upstream 0 0 "${others[@]}"
check_eq "the card has seen no rule broken that the driver has not" "$(card_count a violations)" 0
check "the card ran through all of it" alive card_a
done_testing
