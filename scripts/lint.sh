#!/usr/bin/env bash
# Formatting, clippy, documentation and tidiness, all with warnings as errors.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/rust.sh

cargo fmt --all --check
# Beside the others: it needs no build.
scripts/tidy.sh &
tidy=$!
trap 'kill "$tidy" 2>/dev/null || true' EXIT
cargo clippy --workspace --all-targets --quiet -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --quiet
wait "$tidy"
