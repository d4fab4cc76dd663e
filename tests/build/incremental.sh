#!/usr/bin/env bash
# make builds what is needed and nothing else.
# seconds: 10
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS TALLY
mk() {
	make --no-print-directory BUILD="$WORK/build" "$@"
}
header=components/log/include/vma/log.h
includers=$(grep -lE '#include (<vma/log.h>|"log_priv.h")' components/log/*.c | wc -l)

check "after make programs, all of it is up to date" make -q programs
check "DEPS=no is about packages, not about what components use" make -n DEPS=no test-programs
check "an archive builds in a fresh folder" mk lib-log
check "what is built is up to date" mk -q lib-log
check_eq "a header rebuilds what includes it" "$(mk -n -W $header lib-log | grep -c -- ' -c -o ')" "$includers"
check_eq "the commands are not shown" "$(mk -W $header lib-log | grep -c -- ' -c -o ')" 0
check_eq "V=1 shows the commands" "$(mk -W $header V=1 lib-log | grep -c -- ' -c -o ')" "$includers"
check_num "other flags rebuild everything" "$(mk -n CFLAGS=-DOTHER lib-log | grep -c -- ' -c -o .*components/log/')" -ge "$includers"
check "sanitizers, variants and compilers have folders of their own" test "$(
	for variant in V=0 SAN=address SAN=undefined SAN=thread VARIANT=debug VARIANT=fuzz CC=clang 'CC=clang SAN=thread'; do
		# shellcheck disable=SC2086 # a list of words
		make --no-print-directory $variant show-build
	done | sort -u | wc -l)" -eq 8
done_testing
