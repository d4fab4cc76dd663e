#!/usr/bin/env bash
# apply.sh [GROUP...]: in a clone, on a clean tree: renames static functions, then the groups of words, one commit each.
# Log: what it could not do, and drawn comment lines that it touched, in the file LOG (words.log beside the clone).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$(git rev-parse --show-toplevel)"
log=${LOG:-$(pwd).words.log}
[ -z "$(git status --porcelain --untracked-files=no)" ] || { echo "the tree is not clean" >&2; exit 1; }
[ $# -gt 0 ] || : >"$log"
export PYTHONDONTWRITEBYTECODE=1

format() { git diff --name-only --diff-filter=d HEAD -- '*.c' '*.h' | xargs -r clang-format -i; }
commit() {
	format
	git add -u
	git diff --cached --quiet || git -c core.hooksPath= commit -qm "$1"
}

if [ $# -eq 0 ]; then
	python3 "$here/statics.py" "$here/statics.tsv" | tee -a "$log" | tail -n 1
	commit "components, interpose, tools: a static function's name says what it acts on, and is the only one of its name"
	if [ -z "${NO_TESTS:-}" ]; then
		python3 "$here/statics.py" "$here/statics-tests.tsv" | tee -a "$log" | tail -n 1
		commit "tests, bench, examples: a static function's name begins with its file's topic, and is the only one of its name"
	fi
	mapfile -t groups < <(python3 "$here/words.py" --list)
else
	groups=("$@")
fi
for group in "${groups[@]}"; do
	python3 "$here/words.py" "$group" >>"$log"
	commit "$(python3 "$here/words.py" --message "$group")"
	echo "$group: $(git show --stat --format= | tail -n 1)"
done
