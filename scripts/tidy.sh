#!/usr/bin/env bash
# What no compiler checks: file headers, file length, leftovers, white space, crates without threads and system calls, names (names.sh), the
# walk of ARCHITECTURE.md (walk.sh), the tests that PROMISES.md names (promised.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

# Longer than this without its tests, a file holds more than one idea.
lines_max=500
# What weir-core and weir-path do without: threads, system calls. Addresses of std::net are data.
calls='\b(thread|fs|process|env)::|\bstd::(thread|fs|process|env)\b|\bstd::\{.*\b(thread|fs|process|env)\b|\b(Tcp|Udp)(Listener|Stream|Socket)\b'

mapfile -t files < <(git ls-files --cached --others --exclude-standard)
[[ ${#files[@]} -gt 0 ]] || { echo "tidy: git lists no file here" >&2; exit 1; }
faults=0
fault() {
    echo "tidy: $1" >&2
    faults=$((faults + 1))
}

for file in "${files[@]}"; do
    [[ -f $file ]] || continue
    case $file in
        *.rs)
            grep -m 1 -v -E '^#!\[' "$file" | grep -q '^//!' || fault "$file: opens without a //! header"
            lines=$(awk 'is_test && /^(pub(\([a-z]+\))? )?mod .*\{$/ { exit }
                { n++; is_test = /^#\[cfg\((all\()?test/ } END { print n + 0 }' "$file")
            [[ $lines -le $lines_max || $file == *tests.rs ]] ||
                fault "$file: $lines lines before its tests, $lines_max at most"
            if [[ $file == crates/weir-@(core|path)/src/* ]] && grep -n -E "$calls" "$file"; then
                fault "$file: a thread or a system call, which are weir-run's and weir-port's"
            fi
            ;;
        *.sh | .ci/run)
            bash -n "$file" || fault "$file: does not parse"
            [[ -x $file ]] || fault "$file: is not executable"
            ;;
        *.toml | *.md | Makefile) ;;
        *) continue ;;
    esac
    if grep -n -E '[[:space:]]+$' "$file"; then
        fault "$file: white space at the end of a line"
    fi
    # Only a random generator has a seed: a published thread is named as docs/origins.md names it.
    if grep -n -i -E "seed"' `|the seed'"'"'s|heading: "''seed' "$file"; then
        fault "$file: a thread that no stranger knows by this name"
    fi
    # Split so that this file is not its own first finding.
    if grep -n -w -E 'TO''DO|FIX''ME|XX''X|HA''CK' "$file"; then
        fault "$file: something is left to do"
    fi
done

scripts/names.sh || faults=$((faults + 1))
scripts/walk.sh || faults=$((faults + 1))
scripts/promised.sh || faults=$((faults + 1))

[[ $faults -eq 0 ]] || { echo "tidy: $faults faults" >&2; exit 1; }
