#!/usr/bin/env bash
# The tests of limits under the kernel of a Debian release, in a virtual machine: what Weir says of older kernels, tried.
#
#   scripts/debian_kernel.sh [TEST-FILE...]    all files of limits, unless some are named
#   scripts/debian_kernel.sh -- COMMAND...     one command there instead, `weir` among its programs
#
# DEBIAN_SUITE names the release: bookworm (6.1, unless another is named) or bullseye (5.10). The machine has this machine's files as they
# are, read through 9p below a tmpfs that takes what is written; no network; 2 processors. So nothing is installed in it, and nothing is left
# of it. Kept is target/debian-kernel: the kernel's package, its modules, and what the last machine said.
#
# Installs, where they are missing: Debian's QEMU without its windows, busybox, cpio, kmod (scripts/setup.sh --kernel). The exit status is the
# tests'; DEBIAN_KERNEL_SECONDS bounds their time. Where no such kernel can be booted, one sentence that begins with "left out" says so, and
# the status is 77. Without a KVM that works the processor is emulated, and only tests of what Weir does are run, not of how fast;
# WEIR_TESTS names others, by words of their names.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/rust.sh

suite=${DEBIAN_SUITE:-bookworm}
bound_seconds=${DEBIAN_KERNEL_SECONDS:-3600}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
cache=$target/debian-kernel/$suite
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=http://deb.debian.org/debian

left_out() {
    echo "left out: the kernel of Debian $suite: $1" >&2
    exit 77
}

[[ $(uname -m) == x86_64 ]] || left_out "only tried on x86_64"
[[ $(id -u) -eq 0 ]] || left_out "its tests need root, and the machine reads this one's files"
command -v apt-get >/dev/null && [[ -f $keyring ]] || left_out "it is fetched by Debian's apt, which is not here"
scripts/setup.sh --kernel || left_out "a virtual machine needs packages that could not be installed"
mkdir -p "$cache"
scratch=$(mktemp -d)
running=
reader=
finish() {
    # The machine, if this was interrupted; and what shows its words, once all are shown.
    [[ -z $running ]] || kill "$running" 2>/dev/null || true
    [[ -z $reader ]] || { sleep 1.5; kill "$reader" 2>/dev/null; } || true
    rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP
# A QEMU that cannot use the host's KVM aborts.
ulimit -c 0

apt_of_suite() {
    local tool=$1
    shift
    "$tool" -qq -o Dir::Etc::SourceList="$scratch/apt/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State="$scratch/apt" \
        -o Dir::State::Status=/dev/null -o Dir::Cache="$scratch/apt" -o Acquire::Languages=none -o APT::Architecture=amd64 \
        -o APT::Sandbox::User=root "$@"
}

# Through lists of its own: the release's kernel, whatever this machine's sources are; signatures are checked.
fetch_kernel() {
    local package
    mkdir -p "$scratch"/apt/{lists/partial,archives/partial}
    echo "deb [signed-by=$keyring target=Packages] $mirror $suite main" >"$scratch/apt/sources.list"
    apt_of_suite apt-get update
    package=$(apt_of_suite apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[^ ]*\).*/\1/p' | head -n 1)
    [[ -n $package ]]
    echo "debian-kernel: fetching $package" >&2
    (cd "$scratch" && apt_of_suite apt-get download "$package" && dpkg-deb -x "$package"_*.deb unpacked)
    # Where /lib is a link to /usr/lib, as in the machine, or both are folders: the same path.
    depmod -b "$scratch/unpacked" "${package#linux-image-}"
    rm -rf "$cache/kernel"
    mv "$scratch/unpacked" "$cache/kernel"
    echo "${package#linux-image-}" >"$cache/version"
}

[[ -s $cache/version ]] || fetch_kernel || left_out "its package could not be fetched from $mirror"
version=$(cat "$cache/version")
script=$cache/tests.sh

# What is run there: a script among this machine's files. Without KVM only the tests of what Weir does, not of how fast.
plain_tests=(
    small_and_large_ everything_comes_back what_is_taken_away_ a_priority_ what_cannot_be_limited_ a_burst_
    wrong_files_ a_far_end_ others_stay_
    a_queue_that_ a_move_ it_stays_ what_passes_the_ filters_of_others_
    large_datagrams_ a_raised_mtu_ segments_that_ all_of_a_datagram_
)
write_script() {
    local file binary picks=${WEIR_TESTS:-}
    [[ -n $picks || $by == kvm ]] || picks=${plain_tests[*]}
    printf '#!/bin/bash\ncd %q\nstatus=0\n' "$PWD"
    [[ -n ${WEIR_BIN:-} ]] || { cargo build --release -p weir-cli -p weir-lab >&2; WEIR_BIN=$target/release/weir; }
    printf 'export WEIR_BIN=%q WEIR_ROUNDS=%q\n' "$(realpath "$WEIR_BIN")" "${WEIR_ROUNDS:-1}"
    if [[ ${1:-} == -- ]]; then
        shift
        printf 'PATH=%q:$PATH\n' "$(dirname "$WEIR_BIN")"
        printf '%q ' "$@"
        printf '|| status=$?\n'
    else
        if [[ $# -eq 0 ]]; then
            for file in tests/tests/limit*.rs; do
                file=${file##*/}
                set -- "$@" "${file%.rs}"
            done
        fi
        # As `make test` builds them: with the features of the whole workspace.
        cargo test --workspace --no-run "${@/#/--test=}" --message-format=json 2>"$scratch/build" |
            sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' >"$scratch/binaries" || { cat "$scratch/build" >&2; return 1; }
        for file in "$@"; do
            binary=$(grep "/$file-[0-9a-f]*$" "$scratch/binaries")
            printf 'echo "== %s"\n%q %s || status=1\n' "$file" "$binary" "$picks"
        done
    fi
    printf 'exit $status\n'
}

# The first files: a shell, the modules that reach this machine's files, and a first process.
make_initramfs() {
    local root=$scratch/initramfs module
    mkdir -p "$root"/{bin,modules,lower,upper,root,proc}
    cp "$(command -v busybox)" "$root/bin/busybox"
    : >"$root/modules/order"
    for module in virtio_pci 9pnet_virtio 9p overlay; do
        modprobe -d "$cache/kernel" -S "$version" --show-depends "$module"
    done | sed -n 's/^insmod \(.*\.ko[^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
        cp "$module" "$root/modules/"
        basename "$module" >>"$root/modules/order"
    done
    cat >"$root/init" <<INIT
#!/bin/busybox sh
b=/bin/busybox
while read -r module; do \$b insmod /modules/\$module; done </modules/order
\$b mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144,ro files /lower
\$b mount -t tmpfs -o size=1g tmpfs /upper
\$b mkdir /upper/files /upper/work
\$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root
exec \$b switch_root /root /bin/bash $(printf %q "$cache/machine.sh")
INIT
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$scratch/initramfs.gz"
}

# The first process of the machine, once it has its files.
cat >"$cache/machine.sh" <<EOF_MACHINE
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /lib/modules/$version
mount -t devpts devpts /dev/pts
for place in /dev/shm /run /tmp; do mount -t tmpfs tmpfs \$place; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount --bind $(printf %q "$cache/kernel/lib/modules/$version") /lib/modules/$version
# Elsewhere udev knows that /dev/net/tun is this.
modprobe tun
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
exec </dev/null >/dev/ttyS1 2>&1
stty raw -F /dev/ttyS1
ip link set lo up
echo "debian-kernel: Linux \$(uname -r)"
bash $(printf %q "$script")
echo "debian-kernel: status \$?"
sync
echo o >/proc/sysrq-trigger
sleep 60
EOF_MACHINE

# machine SECONDS QEMU-OPTION...
machine() {
    timeout "$1" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -machine q35 -smp 2 -m 3072 \
        -net none -kernel "$cache/kernel/boot/vmlinuz-$version" -append "console=ttyS0 quiet panic=-1 mitigations=off" "${@:2}" \
        </dev/null 2>>"$scratch/qemu" &
    running=$!
    wait "$running" 2>/dev/null || true
    running=
}

# There are hosts that make a virtual processor and never let it run, and such that lack registers QEMU asks for.
runs_by_kvm() {
    [[ -w /dev/kvm ]] || return 1
    machine 10 "${by_kvm[@]}" -append "console=ttyS0 panic=-1" -serial file:"$scratch/first-words"
    [[ -s $scratch/first-words ]]
}

by_kvm=(-accel kvm -cpu host)
if runs_by_kvm; then
    by=kvm
    processor=("${by_kvm[@]}")
else
    by=emulation
    processor=(-accel tcg,thread=multi -cpu max)
    echo "debian-kernel: no KVM that runs here: by emulation, some 20 times slower, so no tests of time and speed" >&2
fi
write_script "$@" >"$script"
make_initramfs
said=$cache/said
: >"$said"
tail -f -n +1 --pid $$ "$said" &
reader=$!
machine "$bound_seconds" "${processor[@]}" -initrd "$scratch/initramfs.gz" \
    -virtfs local,path=/,mount_tag=files,security_model=none,readonly=on,multidevs=remap \
    -serial file:"$cache/console" -serial file:"$said"
grep -q '^debian-kernel: Linux' "$said" || {
    cat "$scratch/qemu" >&2
    tail -n 5 "$cache/console" >&2
    left_out "it does not boot here"
}
status=$(sed -n 's/^debian-kernel: status //p' "$said")
if [[ -z $status ]]; then
    tail -n 20 "$cache/console" >&2
    echo "debian-kernel: the machine did not end its tests within $bound_seconds s: $said and $cache/console are all it said" >&2
    exit 1
fi
exit "$status"
