#!/usr/bin/env bash
# A public type has a name of its own in the product crates, so that a reader who meets one knows which it is.
set -euo pipefail
cd "$(dirname "$0")/.."

# NAME FILE for each public type, without what is compiled for tests alone; two in one file are one for each way of building.
types() {
    local file
    git ls-files --cached --others --exclude-standard 'crates/*.rs' | while read -r file; do
        [[ -f $file && $file == crates/*/src/* && $file != crates/weir-sim/* && $file != *tests.rs ]] || continue
        awk -v file="$file" '
            # A module of tests in the file itself is the end; one in another file is not.
            is_test && /^(pub(\([a-z]+\))? )?mod .*\{$/ { exit }
            { is_test = /^#\[cfg\((all\()?test/ }
            match($0, /^ *pub (struct|enum|trait|type|union) [A-Za-z0-9]+/) {
                split(substr($0, RSTART, RLENGTH), words, " +")
                for (i in words) if (words[i] ~ /^(struct|enum|trait|type|union)$/) print words[i + 1], file
            }' "$file"
    done | LC_ALL=C sort -u
}

all=$(types)
faults=0
for name in $(awk '{ print $1 }' <<<"$all" | uniq -d); do
    echo "names: $name is in several files; give one of the types another name:" >&2
    awk -v name="$name" '$1 == name { print "    " $2 }' <<<"$all" >&2
    faults=1
done
exit "$faults"
