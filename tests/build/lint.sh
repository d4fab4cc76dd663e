#!/usr/bin/env bash
# make lint finds each kind of fault when it is put into a copy of the tree.
# test-all: it puts a fault into a copy of the tree for each check, and runs that check
# seconds: 30
. "$(dirname "$0")/../lib.sh"
cd "$ROOT" || exit 1
unset TALLY
copy=$WORK/copy
mkdir "$copy"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy" 2>/dev/null
cd "$copy" || exit 1
git init -q .
mkdir -p build/lib build/obj
cp "$ROOT"/build/lib/libvma-*.a build/lib/

# lint CHECK must say something that matches WANTED about FILE with TEXT appended; FILE is put back.
finds() { # SENTENCE CHECK WANTED FILE TEXT
	local existed=1 out
	[ -e "$4" ] || existed=0
	mkdir -p "$(dirname "$4")"
	[ $existed -eq 0 ] || cp -p "$4" "$WORK/saved"
	printf '%s\n' "$5" >>"$4"
	git add -A
	out=$(mk/lint "$2" 2>&1)
	if grep -qE -- "$3" <<<"$out" && grep -qx '0 passed, 1 failed, 0 skipped' <<<"$out"; then
		ok "$1"
	else
		not_ok "$1" "$out"
	fi
	if [ $existed -eq 1 ]; then cp -p "$WORK/saved" "$4"; else rm "$4"; fi
}

finds "an include that points up" directions 'log must not include <vma/ring.h>' components/log/log.c '#include <vma/ring.h>'
finds "a private header of a neighbour" directions 'private headers stay' components/ring/ring.c '#include "../nic/xdp/xdp.h"'
finds "a folder that must not know another" directions 'nic/client must not include owner/' components/nic/client/client.c '#include "../owner/owner.h"'
finds "a folder's header at the component's top" directions 'the top of nic must not include wire/' components/nic/nic.c '#include "wire/wire.h"'
finds "a folder that is not built" components_whole 'components/nic/loose has sources' components/nic/loose/loose.c 'int vma_loose;'
finds "a dependency that points up" directions 'log must not depend on ring' components/log/Makefile 'DEPS := ring'
finds "a component without tests" components_whole 'components/empty' components/empty/Makefile 'NAME := empty'
finds "a path of the machine" clean_text 'docs/note.md' docs/note.md "see /$(printf home)/me"
finds "a parameter that nothing reads" parameters 'nobody is of class effect' components/conf/include/vma/conf_params.h '	X(INT, nobody, "VMA_NOBODY", "Nobody", 0, SAME, SAME, 0, 1, PLAIN, "")'
finds "a parameter that claims no effect, and is read" parameters 'rx_wre is read' components/conf/include/vma/conf_params.h '	Y(SUPERSEDED, INT, rx_wre, "VMA_RX_WRE", "Rx QP WRE", 0, SAME, SAME, 0, 1, PLAIN, "")'

# The checks that compile or parse each file: of one component, since a fault shows in a small tree as well.
git ls-files -z ':!mk' ':!Makefile' ':!.clang-format' ':!components/log' | xargs -0 rm
finds "bad format" format 'log\.c:[0-9]+' components/log/log.c 'int   x ;'
finds "a header that needs another" headers_alone 'alone \(gcc\)' components/log/include/vma/log.h 'extern struct timespec vma_x;
	static inline int vma_y(void) { return sizeof(struct nowhere); }'
finds "a function that nobody defines" defined 'nowhere: vma_log_nobody' components/log/include/vma/log.h 'int vma_log_nobody(int x);'
finds "a broken script" scripts 'tests/broken.sh' tests/broken.sh '#!/usr/bin/env bash
if true; then'
finds "what cppcheck knows" cppcheck 'log\.c' components/log/log.c 'int vma_fault(void); int vma_fault(void) { int a[2]; a[2] = 1; return a[0]; }'
done_testing
