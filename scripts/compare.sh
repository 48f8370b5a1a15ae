#!/usr/bin/env bash
# Compares the rows of another revision's labs and benches with this tree's, in turns: before after, after before, and so on.
#
#   scripts/compare.sh REVISION [PAIRS [ROW...]]      ten pairs of every row if not said; rows: path steer epair netisr quiet forward
#
# Prints the median of after / before over the pairs (of throughput; of cost or delay it is before / after), with the second least and
# the second greatest, between which the true median lies in 98 of 100 comparisons of ten pairs. Fails where the median is below 0.98, where
# a row has lost its figures in this tree or neither tree tells any, and where a program of this tree fails.
# Limits: both revisions are built here, by the toolchain of this tree. A row that the other one does not have is left out, and said.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -n ${COMPARE_AWAKE:-} ]] || COMPARE_AWAKE=1 exec scripts/awake.sh scripts/compare.sh "$@"
revision=$(git rev-parse --short "${1:?give a revision}^{commit}")
pairs=${2:-10}
rows=("${@:3}")
[[ ${#rows[@]} -gt 0 ]] || rows=(path steer epair netisr quiet forward)
known=' path steer epair netisr quiet forward '
for row in "${rows[@]}"; do
    [[ $known == *" $row "* ]] || { echo "compare: there is no row $row: give some of$known" >&2; exit 2; }
done
[[ $pairs =~ ^[0-9]+$ && $pairs -ge 3 ]] || { echo "compare: 3 pairs or more, not $pairs" >&2; exit 2; }
if [[ " ${rows[*]} " == *" forward "* && $(id -u) -ne 0 ]]; then
    echo "compare: forward makes network namespaces: run it as root, or name other rows" >&2
    exit 2
fi
command -v jq >/dev/null || scripts/setup.sh --bench
. scripts/rust.sh
# In the other tree rustup would take what that one asks for.
export RUSTUP_TOOLCHAIN=${RUSTUP_TOOLCHAIN:-$rust_version}

least=0.98
before=$PWD/target/compare/$revision
after=$PWD
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# Builds what the rows need in the tree `$1`, with everything that cargo says only if it fails.
build() {
    echo "== build $1"
    (
        cd "$1"
        CARGO_TARGET_DIR=$1/target
        export CARGO_TARGET_DIR
        cargo build --quiet --release -p weir-cli -p weir-lab
        cargo build --quiet --release -p weir-core --example steer_bench
        cargo bench --quiet --no-run -p weir-lab --bench path
        cargo test --quiet --no-run -p weir-tests --test quiet
    )
}

# The newest program that cargo built in the folder `$1` with a name that begins with `$2`.
newest() {
    find "$1" -maxdepth 1 -type f -executable -name "$2-*" -printf '%T@ %p\n' | sort -rn | head -n 1 | cut -d ' ' -f 2-
}

# `weir lab` of the tree `$1`, which once was no program of its own.
lab() {
    local json status=0
    json=$(mktemp)
    "$1/target/release/weir" lab "${@:2}" --json "$json" >/dev/null || status=$?
    cat "$json"
    rm -f "$json"
    return "$status"
}

# Each prints `name figure` for the tree `$1`, of which more is better.
row_path() {
    "$(newest "$1/target/release/deps" path)" --bench bridge testbed-1 testbed-2 |
        awk '$1 ~ /^(bridge|testbed-[12])$/ && NF == 3 { print "path-" $1, $2 }'
}
row_steer() { # cycles
    # Its own floors are no matter here, and on some processors it misses them.
    { "$1/target/release/examples/steer_bench" || true; } | awk '/\[[0-9.]+-[0-9.]+\]/ && / weir/ {
        name = $0; sub(/ +[0-9.]+ +\[.*/, "", name); gsub(/ +/, "-", name); print "steer-" name, 1 / $(NF - 1) }'
}
row_epair() {
    lab "$1" epair --systems weir --seconds 0.3 |
        jq -r '.rows[] | select(.cpu_mpps // .mpps) | "epair-\(.case | gsub(" "; "-")) \(.cpu_mpps // .mpps)"'
}
row_netisr() {
    lab "$1" netisr --systems direct,hybrid,deferred --cases 100,150,150-long --seconds 0.3 |
        jq -r '.rows[] | select(.kpps) | "netisr-\(.system)-\(.case | gsub(" "; "-")) \(.kpps)"'
}
row_quiet() { # milliseconds
    # The last try of each test, by its name.
    WEIR_ROUNDS=1 "$(newest "$1/target/debug/deps" quiet)" |
        awk '/p99 [0-9.]+ ms/ { ms = $(NF - 1) } /^test .* \.\.\. / { if (ms) print "quiet-" $2, 1 / ms; ms = 0 }'
}

build "$after"
if [[ ! -e $before/Cargo.toml ]]; then
    # Only a whole tree has the name of one.
    rm -rf "$before" "$before.new"
    mkdir -p "$before.new"
    git archive "$revision" | tar -x -C "$before.new"
    mv "$before.new" "$before"
fi
build "$before"

for row in "${rows[@]}"; do
    [[ $row != forward ]] || continue # takes turns of its own
    echo "== $row"
    for ((pair = 0; pair < pairs; pair++)); do
        order=(before after)
        ((pair % 2 == 0)) || order=(after before)
        for side in "${order[@]}"; do
            (WEIR_BIN=${!side}/target/release/weir "row_$row" "${!side}") | sed "s/^/$pair $side /" >>"$results" || {
                echo "compare: $row $side, pair $pair: failed, and its figures count as far as it has told them" >&2
                [[ $side == before ]] || failed=1
            }
        done
    done
    grep -q "^[0-9]* [a-z]* $row-" "$results" || { echo "$row: neither tree has told a figure" >&2; failed=1; }
done

awk -v least="$least" '
    { figure[$3, $1, $2] = $4; pairs = $1 > pairs ? $1 : pairs; if (!($3 in seen)) { seen[$3] = 1; names[++count] = $3 } }
    END {
        for (i = 1; i <= count; i++) {
            name = names[i]; n = lost = 0
            for (pair = 0; pair <= pairs; pair++)
                if (figure[name, pair, "before"] > 0) {
                    if (figure[name, pair, "after"] > 0) ratios[++n] = figure[name, pair, "after"] / figure[name, pair, "before"]
                    else lost++
                }
            if (n < 3 && lost) { printf "floor: %-44s no figure of this tree in %d pairs: MISSED\n", name, lost; missed++; continue }
            if (n < 3) { printf "%-44s left out: %d pairs\n", name, n; continue }
            for (a = 2; a <= n; a++)
                for (b = a; b > 1 && ratios[b - 1] > ratios[b]; b--) { t = ratios[b]; ratios[b] = ratios[b - 1]; ratios[b - 1] = t }
            median = n % 2 ? ratios[(n + 1) / 2] : (ratios[n / 2] + ratios[n / 2 + 1]) / 2
            held = median >= least
            printf "floor: %-44s %.3f [%.3f-%.3f] of %d pairs, at least %s: %s\n", name, median, ratios[2], ratios[n - 1], n, least, held ? "held" : "MISSED"
            missed += !held
        }
        exit missed > 0
    }' "$results" || failed=1

if [[ " ${rows[*]} " == *" forward "* ]]; then
    echo "== forward"
    CARGO_TARGET_DIR=$after/target WEIR_BEFORE=$before/target/release/weir cargo bench -p weir-lab --bench forward || failed=1
fi
exit "${failed:-0}"
