#!/usr/bin/env bash
# Whether what PROMISES.md names as holding a promise is there: a function, module, file or folder of that name. A name that ends in `...` is
# the beginning of one; a bare word is a file of whole-program tests.
set -euo pipefail
cd "$(dirname "$0")/.."

# The last column but one, without what stands in brackets: that is fields and steps.
held_by() {
    awk -F ' [|] ' '/^\| / { gsub(/ \([^)]*\)/, "", $(NF - 1)); print $(NF - 1) }' PROMISES.md
}

mapfile -t files < <(git ls-files --cached --others --exclude-standard | while read -r file; do [[ -f $file ]] && echo "$file"; done)
[[ ${#files[@]} -gt 0 ]] || { echo "promised: git lists no file here" >&2; exit 1; }
there=$(
    { grep -hoE '\b(fn|mod) [a-z0-9_]+' $(printf '%s\n' "${files[@]}" | grep '\.rs$') | cut -d ' ' -f 2
      printf '%s\n' "${files[@]}" | tr / '\n' | sed 's/\.rs$//'; } | LC_ALL=C sort -u
)

faults=0
fault() {
    echo "promised: PROMISES.md names \`$1\`, and there is no $2 of that name" >&2
    faults=1
}
for name in $(held_by | grep -oE '`[a-z0-9_:]+(\.\.\.)?`' | tr -d '`' | sort -u); do
    # Of a path within a crate, the last part.
    last=${name%::}
    last=${last##*::}
    case $last in
        *...) grep -q "^${last%...}" <<<"$there" || fault "$name" test ;;
        *) grep -qx "$last" <<<"$there" || fault "$name" test ;;
    esac
done
for name in $(held_by | sed 's/; */\n/g' | grep -oE '^`[a-z0-9_]+`($|[^:])' | grep -oE '[a-z0-9_]+' | sort -u); do
    [[ -f tests/tests/$name.rs ]] || fault "$name" "file of whole-program tests"
done
exit "$faults"
