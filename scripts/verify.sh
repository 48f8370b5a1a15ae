#!/usr/bin/env bash
# What tests cannot show: every interleaving of the rings (loom), undefined behaviour (Miri), races and bad memory
# (sanitizers), odd input (fuzzing), threads stopped between any two steps (stress), the kernel of Debian 12 (a virtual
# machine), weir, weir-lab and weir-memcache as they are released; and the simulator's random runs, WEIR_SIM_TIMES as many. Half an hour
# without the stress of 10^9 hand-offs, which takes ten minutes of two idle cores, the 10^7 inputs of each fuzz target, which
# take as long together, and ten rounds of the limits' matrix, which take an hour; VERIFY_HANDOFFS, VERIFY_INPUTS and WEIR_ROUNDS set other numbers. Prints how long each
# step took and what it cannot see. With a word behind it, only the steps whose names have that word.
#
# Needs root, for network namespaces, and a nightly toolchain with miri and rust-src; says what it cannot run, and then fails. The kernel of
# Debian 12 alone is left out, and said so, where no virtual machine can be made.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/rust.sh

only=${1:-}
inputs=${VERIFY_INPUTS:-10000000}
handoffs=${VERIFY_HANDOFFS:-1000000000}
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}
failures=()
times=()

# step NAME BLIND-SPOTS COMMAND...
step() {
    local name=$1 blind=$2 begin=$SECONDS answer=passed
    [[ $name == *"$only"* ]] || return 0
    shift 2
    echo "== $name" >&2
    # A script that cannot do its part here has said so, and ends with 77.
    "$@" || case $? in
        77) answer='left out' ;;
        *) failures+=("$name"); answer=FAILED ;;
    esac
    times+=("$(printf '%-18s %8s %5d s  does not see: %s' "$name" "$answer" $((SECONDS - begin)) "$blind")")
}

is_root() {
    [[ $(id -u) -eq 0 ]] || { echo "verify: this step makes network namespaces: run it as root" >&2; return 1; }
}

has_nightly() {
    rustup +nightly component list --installed 2>/dev/null | grep -q "^$1"
}

loom() {
    # Each test sets its own bound; what has none is exhausted.
    RUSTFLAGS='--cfg loom' cargo test --release -p weir-ring --tests --target-dir "$target/loom"
}

stress() {
    # In segments with a seed each, so that a failure names a short one.
    local segment=$((handoffs < 100000000 ? handoffs : 100000000)) seed=0 done=0
    while ((done < handoffs)); do
        cargo run --release -p weir-ring --features preempt --example stress -- \
            --handoffs "$segment" --seed $((seed += 1)) || return 1
        ((done += segment))
    done
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

# With every check that a debug build makes, and fast. A target that finds something says how to show it again.
fuzz() {
    WEIR_FUZZ_INPUTS=$inputs cargo test --config profile.dev.opt-level=3 -p weir-fuzz --test targets -- --exact "$1" --nocapture
}

simulator() {
    WEIR_SIM_TIMES=${WEIR_SIM_TIMES:-10} cargo test --release -p weir-sim
}

plain_pairs() {
    is_root && cargo build --release -p weir-cli -p weir-lab &&
        WEIR_ROUNDS=${WEIR_ROUNDS:-10} WEIR_BIN="$(realpath "$target")/release/weir" \
            scripts/awake.sh cargo test -p weir-tests --test plain_pair --test live --test changes --test flood --test quiet --test chaos
}

limits() {
    is_root && cargo build --release -p weir-cli -p weir-lab &&
        WEIR_ROUNDS=${WEIR_ROUNDS:-10} WEIR_BIN="$(realpath "$target")/release/weir" \
            scripts/awake.sh cargo test -p weir-tests --test limit --test limit_classes --test limit_matrix --test limit_places --test limit_tree --test topology
}

topologies() {
    is_root && cargo build --release -p weir-cli -p weir-lab &&
        WEIR_ROUNDS=1 WEIR_BIN="$(realpath "$target")/release/weir" \
            scripts/awake.sh cargo test -p weir-tests --test up --test apply_topology --test port_gone --test bed
}

# `make test` tries those that cargo builds with the tests.
programs() {
    is_root && cargo build --release -p weir-cli -p weir-lab -p weir-memcache &&
        WEIR_BIN="$(realpath "$target")/release/weir" scripts/awake.sh cargo test -p weir-tests --test lab --test memcache
}

properties() {
    local seed=${VERIFY_SEED:-$(date +%s)}
    echo "verify: PROPTEST_RNG_SEED=$seed" >&2
    PROPTEST_RNG_SEED=$seed PROPTEST_CASES=${PROPTEST_CASES:-2000} cargo test --release -p weir-core -p weir-simd --lib
}

step loom "more threads and elements than the tests' own; SeqCst accesses (none are used); the kernel" loom
step stress "weaker memory than this machine's" stress
step miri "other schedules than those it ran; system calls" miri
step thread-sanitizer "order made by fences alone" sanitizer thread
step address-sanitizer "code no test runs" sanitizer address
step plain-pairs "other kernels, more processors" plain_pairs
step limits "other kernels, more processors" limits
step topologies "other kernels, more processors" topologies
step programs "other kernels, more processors" programs
step debian-kernel "speed, unless KVM works here; wires, which that kernel is too old for" scripts/debian_kernel.sh
step properties "sequences longer than they draw" properties
step simulator "memory order; graphs of more than 6 stages" simulator
for name in $(sed -n 's/^    \([a-z_]*\): targets::.*/\1/p' fuzz/tests/targets.rs); do
    step "fuzz $name" "what random changes of its corpus do not reach" fuzz "$name"
done

[[ ${#times[@]} -gt 0 ]] || { echo "verify: no step has the word \"${1:-}\" in its name" >&2; exit 2; }
printf '%s\n' "${times[@]}" >&2
if [[ ${#failures[@]} -gt 0 ]]; then
    echo "verify: failed: ${failures[*]}" >&2
    exit 1
fi
