#!/usr/bin/env bash
# Installs the Debian packages that the labs and the tests use and that are not there yet. Says nothing, and asks for
# nothing, when all of them are.
set -euo pipefail

packages=(
    ethtool       # what is left of offloads, after Weir
    gcc libc6-dev # the linker behind rustc
    iperf iperf3  # the floods, TCP
    iproute2      # namespaces, veth, the kernel's own limits
    iputils-ping  # round trips beside the floods
    make
    nftables      # masquerading of `weir run`
)

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: these packages are missing, and only root can install them: ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

fetch() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "setup: installing ${missing[*]}" >&2
# The package lists may be fresh already; fetch them only if the first try fails.
if ! fetch; then
    if ! "${as_root[@]}" apt-get update -qq >"$log" 2>&1 || ! fetch; then
        cat "$log" >&2
        exit 1
    fi
fi
