#!/bin/sh
# Puts the Rust of rust-toolchain.toml on PATH; to be read by a shell at the top of the tree: `. scripts/rust.sh`. What is on PATH
# already goes first if it is that Rust, otherwise what rustup put into the home directory. A toolchain of that version under another name is
# as good.

rust_version=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
export PATH

# Whether `rustc` is of the right version in the folder `$1`, whatever rustup must ask for that.
rust_is_right_in() {
    [ "$( (cd "$1" && RUSTUP_AUTO_INSTALL=0 rustc --version) 2>/dev/null | cut -d ' ' -f 2)" = "$rust_version" ]
}

# Debian's Rust may be another.
if ! rust_is_right_in . && ! rust_is_right_in /; then
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi
if ! rust_is_right_in . && rust_is_right_in /; then
    RUSTUP_TOOLCHAIN=$(cd / && rustup show active-toolchain | cut -d ' ' -f 1)
    export RUSTUP_TOOLCHAIN
fi
