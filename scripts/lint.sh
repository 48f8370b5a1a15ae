#!/usr/bin/env bash
# Formatting, clippy, documentation and tidiness, all with warnings as errors.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/rust.sh

cargo fmt --all --check
cargo clippy --workspace --all-targets --quiet -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --quiet
scripts/tidy.sh
