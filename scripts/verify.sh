#!/usr/bin/env bash
# What tests cannot show: every interleaving of the rings (loom), undefined behaviour (Miri), races and bad memory
# (sanitizers), odd input (fuzzing); and the simulator's random runs, WEIR_SIM_TIMES as many. Bounded: VERIFY_SECONDS for
# each fuzz target, loom by preemptions.
#
# Needs a nightly toolchain with miri and rust-src, and cargo-fuzz for fuzzing; says what it cannot run, and then fails.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=${VERIFY_SECONDS:-60}
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}
failures=()

step() {
    local name=$1
    shift
    echo "== $name" >&2
    "$@" || failures+=("$name")
}

has_nightly() {
    rustup +nightly component list --installed 2>/dev/null | grep -q "^$1"
}

loom() {
    # Three preemptions find every known bug of this kind; more take hours.
    LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3} RUSTFLAGS='--cfg loom' \
        cargo test --release -p weir-ring --lib --target-dir "$target/loom"
}

miri() {
    has_nightly miri || { echo "verify: rustup +nightly component add miri rust-src" >&2; return 1; }
    # Property tests seed themselves from the clock and write down what fails: both are outside Miri's world.
    MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-strict-provenance' PROPTEST_CASES=8 \
        cargo +nightly miri test -p weir-ring --lib --target-dir "$target/miri"
}

sanitizer() {
    has_nightly rust-src || { echo "verify: rustup +nightly component add rust-src" >&2; return 1; }
    RUSTFLAGS="-Zsanitizer=$1" cargo +nightly test -Zbuild-std --target "$host" -p weir-ring --lib --tests \
        --target-dir "$target/sanitizer-$1"
}

fuzz() {
    cargo fuzz --version >/dev/null 2>&1 || { echo "verify: cargo install cargo-fuzz" >&2; return 1; }
    cargo +nightly fuzz run "$1" -- -max_total_time="$seconds"
}

simulator() {
    WEIR_SIM_TIMES=${WEIR_SIM_TIMES:-10} cargo test --release -p weir-sim
}

step loom loom
step miri miri
step thread-sanitizer sanitizer thread
step address-sanitizer sanitizer address
step simulator simulator
for file in fuzz/fuzz_targets/*.rs; do
    [[ -f $file ]] || continue
    name=$(basename "$file" .rs)
    step "fuzz $name" fuzz "$name"
done

if [[ ${#failures[@]} -gt 0 ]]; then
    echo "verify: failed: ${failures[*]}" >&2
    exit 1
fi
