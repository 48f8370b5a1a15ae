#!/usr/bin/env bash
# Every benchmark beside its peers in the same run. Fails when a floor is missed; ends with what was left out and what was missed.
# Those that make network namespaces run as root, by sudo if need be; they are built before, as who calls this.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh --bench || echo "bench: going on without the peers that could not be installed" >&2
. scripts/rust.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=()

bench() {
    local name=$1
    shift
    echo "== $name" | tee -a "$log"
    scripts/awake.sh "$@" 2>&1 | tee -a "$log" || failures+=("$name")
}

runner=()
[[ $(id -u) -eq 0 ]] || runner=(--config "target.'cfg(unix)'.runner=['sudo']")

cargo build --release -p weir-cli -p weir-lab -p weir-memcache
bench forward cargo "${runner[@]}" bench -p weir-lab --bench forward
bench htb cargo "${runner[@]}" bench -p weir-lab --bench htb
# It has loops of its own.
WEIR_AWAKE=0 bench limit cargo "${runner[@]}" bench -p weir-lab --bench limit
bench path cargo bench -p weir-lab --bench path
bench ipsec cargo bench -p weir-lab --bench ipsec
as_root=()
[[ $(id -u) -eq 0 ]] || as_root=(sudo)
bench memcached "${as_root[@]}" scripts/compare_memcached.sh 3 "${CARGO_TARGET_DIR:-target}/release"
bench handoff_bench cargo run --release -p weir-ring --example handoff_bench
for example in shaper_bench steer_bench; do
    bench "$example" cargo run --release -p weir-core --example "$example"
done

grep -F 'left out' "$log" || echo 'nothing was left out'
if grep -q '^floor: ' "$log"; then
    echo "floors: $(grep -c '^floor: .* held$' "$log") held, $(grep -c '^floor: .* MISSED$' "$log" || true) missed"
    grep '^floor: .* MISSED$' "$log" || true
fi
if [[ ${#failures[@]} -gt 0 ]]; then
    echo "bench: failed: ${failures[*]}" >&2
    exit 1
fi
