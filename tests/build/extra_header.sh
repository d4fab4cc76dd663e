#!/usr/bin/env bash
# The public header of the Extra API: the field's numbers and layouts in C and in C++, for programs of any standard.
# seconds: 5
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1
printf '#include "components/extra/test/abi.h"\nint main(void) { return vma_get_api() != 0; }\n' >"$WORK/abi.c"
cp "$WORK/abi.c" "$WORK/abi.cc"

for compiler in "gcc -std=gnu99" "gcc -std=c11" "gcc -std=gnu17" "clang -std=gnu11"; do
	check "as C: $compiler" $compiler -Wall -Wextra -Werror -D_GNU_SOURCE -I. -Iinclude -fsyntax-only "$WORK/abi.c"
done
for compiler in "g++ -std=c++11" "g++ -std=c++20" "clang++ -std=c++17"; do
	check "as C++: $compiler" $compiler -Wall -Wextra -Werror -I. -Iinclude -fsyntax-only "$WORK/abi.cc"
done

# The test sees a wrong layout.
sed 's/uint32_t user_id;/uint64_t user_id;/' include/mellanox/vma_extra.h >"$WORK/vma_extra.h"
mkdir -p "$WORK/mellanox"
mv "$WORK/vma_extra.h" "$WORK/mellanox/"
check "a changed layout is noticed" \
	eval "! gcc -D_GNU_SOURCE -I. -I'$WORK' -fsyntax-only '$WORK/abi.c' 2>/dev/null"
done_testing
