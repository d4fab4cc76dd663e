#!/usr/bin/env bash
# run.sh [--guess]: all of it, in the git tree at hand; nothing is committed. Read stderr, build, test, commit.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$(git rev-parse --show-toplevel)"
"$here/move.py" "$@"
"$here/edits.py"
git add -A -- . ':!scripts-layout'
git diff --cached --name-only --diff-filter=d -- '*.c' '*.h' | xargs clang-format -i
git add -A -- . ':!scripts-layout'
