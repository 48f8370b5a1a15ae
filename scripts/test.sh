#!/usr/bin/env bash
# The whole test suite. Its last line is `N passed, N failed, N skipped`; with CI=true a skipped test is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh || echo "test: going on without; tests that need these packages will fail" >&2

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The whole-program tests try the program that people run.
cargo build --release -p weir-cli
WEIR_BIN=${WEIR_BIN:-$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/weir}
export WEIR_BIN
status=0
cargo test --workspace --no-fail-fast 2>&1 | tee "$log" || status=$?
# Threads stopped between any two steps of the hand-off: the bounded part of what `make verify` does at length.
if ! cargo run --release -p weir-ring --features preempt --example stress -- --handoffs 10000000 --seed 1; then
    echo "test: the stress of the hand-off failed" >&2
    status=1
fi

read -r passed failed skipped < <(
    awk '/^test result: / { for (i = 1; i < NF; i++) {
             if ($(i + 1) ~ /^passed/) passed += $i
             if ($(i + 1) ~ /^failed/) failed += $i
             if ($(i + 1) ~ /^ignored/) skipped += $i } }
         END { print passed + 0, failed + 0, skipped + 0 }' "$log"
)
grep -E '^test .* \.\.\. (FAILED|skipped)' "$log" || true
if [[ $status -eq 0 && ${CI:-} == true && $skipped -gt 0 ]]; then
    echo "test: nothing may be skipped here" >&2
    status=1
fi
if [[ $status -ne 0 && $failed -eq 0 && $skipped -eq 0 ]]; then
    echo "test: the tests could not be built or run" >&2
fi
echo "$passed passed, $failed failed, $skipped skipped"
exit "$status"
