#!/usr/bin/env bash
# Installs what building, the labs and the tests need and what is not there yet: Debian packages, and the Rust of
# rust-toolchain.toml. Says what it installs; says nothing, and asks for nothing, when all is there. Removes no package: one that would
# remove others, as Debian's runc does with Docker's, is told and not installed. With --bench it also installs the peers of the benchmarks,
# with --kernel what boots another kernel.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
    busybox-static # httpd; the first process of a virtual machine
    ethtool        # what is left of offloads, after Weir
    gcc libc6-dev  # the linker behind rustc
    iperf iperf3   # the floods, TCP
    iproute2       # namespaces, veth, the kernel's own limits
    iputils-ping   # round trips beside the floods
    libmemcached-tools # memccapable, memcaslap: key-value clients
    make
    nftables       # masquerading of `weir run`
    runc           # a container to limit
)
if [[ ${1:-} == --bench ]]; then
    packages+=(
        dpdk-dev    # dpdk-testpmd
        jq          # figures of two revisions, from their reports
        libdpdk-dev # rte_ring, rte_thash
        memcached   # the key-value server; Debian starts it as a service, too
        nginx       # the web server behind the bed; Debian starts it as a service, too
        pkg-config
    )
elif [[ ${1:-} == --kernel ]]; then
    packages+=(
        cpio            # its first files
        kmod            # which modules it needs
        qemu-system-x86 # the machine
    )
fi

as_root=()
[[ $(id -u) -eq 0 ]] || as_root=(sudo)

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Programs that other packages may bring, each with the package that is installed otherwise.
declare -A programs=([runc]=runc)
# A virtual machine needs the static one.
[[ ${1:-} == --kernel ]] || programs[busybox-static]=busybox

missing_of() {
    local package status
    for package in "$@"; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [[ $status == installed ]] || command -v "${programs[$package]:-none}" >/dev/null || echo "$package"
    done
}

fetch() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends --no-remove "$@" >"$log" 2>&1
}

# The package lists may be fresh already; they are fetched only if the first try fails.
install_packages() {
    local missing
    mapfile -t missing < <(missing_of "$@")
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if [[ ${#as_root[@]} -gt 0 ]] && ! command -v sudo >/dev/null; then
        echo "setup: these packages are missing, and only root can install them: ${missing[*]}" >&2
        return 1
    fi
    echo "setup: installing ${missing[*]}" >&2
    fetch "${missing[@]}" && return 0
    "${as_root[@]}" apt-get update -qq >"$log" 2>&1 && fetch "${missing[@]}" && return 0
    cat "$log" >&2
    return 1
}

has_rust() {
    . scripts/rust.sh
    rust_is_right_in . && cargo --version >/dev/null
}

# Debian's rustup where it has one, else rustup's own installer, as its site says; each for this user alone.
install_rust() {
    . scripts/rust.sh
    if ! command -v rustup >/dev/null; then
        # Debian's would remove its own Rust where that is.
        if ! { LC_ALL=C apt-cache policy rustup 2>/dev/null | grep -q 'Candidate: [0-9]' && install_packages rustup; }; then
            install_packages ca-certificates curl
            # What https://sh.rustup.rs gives, from the host that the toolchain comes from too.
            local installer=https://static.rust-lang.org/rustup/rustup-init.sh
            echo "setup: installing rustup into ${RUSTUP_HOME:-$HOME/.rustup} by $installer" >&2
            curl --proto '=https' --tlsv1.2 -sSf "$installer" |
                sh -s -- -y -q --no-modify-path --profile minimal --default-toolchain "$rust_version"
        fi
    fi
    echo "setup: installing Rust $rust_version with rustfmt and clippy by rustup" >&2
    rustup toolchain install "$rust_version" --profile minimal --component rustfmt --component clippy
}

install_packages "${packages[@]}"
if ! (has_rust); then
    install_rust
    (has_rust) || { echo "setup: Rust $rust_version is still not there: see https://rustup.rs" >&2; exit 1; }
fi
