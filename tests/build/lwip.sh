#!/usr/bin/env bash
# lwIP, adapted: only what it was meant for is changed, little of it is thread-local, nothing of it leaves the library.
# seconds: 12
# test-all: the sources are adapted anew for each fault
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS TALLY
adapt=components/tcp/lwip/adapt
copy=$WORK/lwip
mkdir "$copy"
cp -R build/sources/lwip/src build/sources/lwip/test "$copy/"
chmod -R u+w "$copy"

check "the pinned source is adapted" $adapt "$copy" "$WORK/out"
touch -d '1 hour ago' "$WORK/stamp"
find "$WORK/out" -type f -exec touch -d '2 hours ago' {} +
check "and once more" $adapt "$copy" "$WORK/out"
check_eq "which replaces no file" "$(find "$WORK/out" -type f -newer "$WORK/stamp")" ""
check_eq "and leaves nothing behind" "$(find "$WORK/out" -name 'new.*')" ""

$adapt "$copy" "$WORK/both" &
first=$!
$adapt "$copy" "$WORK/both" &
check "two at the same time do not disturb each other" eval "wait $first && wait $!"
check_eq "and make the same" "$(diff -r "$WORK/out" "$WORK/both")" ""

# refuses SENTENCE FILE SED-SCRIPT: a copy changed so is not adapted, by name, and what was made before stays.
refuses() {
	local out rc
	cp "$copy/src/$2" "$WORK/saved"
	sed -i "$3" "$copy/src/$2"
	out=$($adapt "$copy" "$WORK/out" 2>&1)
	rc=$?
	mv "$WORK/saved" "$copy/src/$2"
	if [ $rc -ne 0 ] && grep -q "^$2: .*found\|^$2: .* lines" <<<"$out" && diff -r "$WORK/out" "$WORK/both" >/dev/null; then
		ok "$1"
	else
		not_ok "$1" "$out"
	fi
}
refuses "a text that has gone stops it" core/tcp_in.c 's/^static u8_t recv_flags;/static u16_t recv_flags;/'
refuses "a text that is there twice stops it" core/tcp_out.c 's/^  useg = pcb->unacked;/&\n&/'
refuses "a call that has moved stops it" core/tcp_in.c 's/  tcp_rexmit_fast(pcb);/  tcp_rexmit_quickly(pcb);/'
refuses "a field that has gone from a header stops it" include/lwip/tcp.h '/^  struct tcp_seg \*unacked;/d'

# Another tree, as it is: make LWIP_DIR=.
check "another tree is taken with LWIP_DIR" make --no-print-directory BUILD="$WORK/build" tcp_LWIP="$WORK/adapted" \
	LWIP_DIR="$copy" "$WORK/build/obj/lwip/tcp_in.o"
sed -i 's/^static u8_t recv_flags;/static u16_t recv_flags;/' "$copy/src/core/tcp_in.c"
touch "$copy/src/core/tcp.c"
check "and one that is not lwIP 2.1.3 stops the build" eval "! make --no-print-directory BUILD='$WORK/build' \
	tcp_LWIP='$WORK/adapted' LWIP_DIR='$copy' '$WORK/build/obj/lwip/tcp_in.o' >'$WORK/log' 2>&1"
check "which says so" grep -q 'is not the lwIP that this port is for' "$WORK/log"

tls=0
for object in "$BUILD"/obj/lwip/*.o "$BUILD"/obj/components/tcp/lwip/*.o; do
	tls=$((tls + $(readelf -SW "$object" 2>/dev/null | awk '$2 ~ /^\.t(bss|data)$/ { print "0x" $6 }
		$3 ~ /^\.t(bss|data)$/ { print "0x" $7 }' | head -n 1 | grep . || echo 0)))
done
note "$tls bytes of thread-local storage"
check_num "its thread-local storage is there" $tls -gt 100
check_num "and below 400 bytes, so that dlopen can load the library" $tls -lt 400
check_eq "it is reached without a call" "$(readelf -rW "$BUILD"/obj/lwip/*.o "$BUILD"/obj/components/tcp/lwip/*.o |
	grep -oE 'R_X86_64_(TLSGD|TLSLD|GOTPC32_TLSDESC)' | sort -u)" ""
# Whose name lwIP defines, and the library exports.
nm -g --defined-only "$BUILD"/obj/lwip/*.o 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$WORK/names"
nm -D --defined-only "$BUILD/libvma.so" | awk 'NF == 3 { print $3 }' | sed 's/@.*//' | sort -u >"$WORK/exported"
check "lwIP has names" grep -qx tcp_input "$WORK/names"
check "the library exports something" test -s "$WORK/exported"
check_eq "but nothing of lwIP" "$(comm -12 "$WORK/names" "$WORK/exported")" ""
done_testing
