#!/usr/bin/env bash
# Sets weir-memcache beside memcached, by turns: one worker thread each, on one end of a veth pair, and memcaslap with 8 TCP connections (nine
# gets to a set) on the other. Prints operations a second, their mean time, the power of two that 99 of 100 are below, the time of the
# slowest, and the machine's busy time, of all processors. Then the ratio of operations a second, the median of the turns, which must be 1.0,
# and in how many turns the 99th percentile was no worse. Leaves out, and says so, where a program is missing.
#
#   sudo scripts/compare_memcached.sh [TURNS [FOLDER]]      three unless said otherwise, of the programs in that folder, or target/release.
#
# Needs: cargo build --release -p weir-memcache -p weir-cli; apt-get install memcached libmemcached-tools
set -euo pipefail
cd "$(dirname "$0")/.."
turns=${1:-3}
for program in memcached memcaslap; do
    [ -n "$(command -v "$program")" ] || { echo "compare_memcached: $program is not installed: left out"; exit 0; }
done
log=$(mktemp)
release=$(realpath -m "${2:-target/release}")
client=weir-kvc-$$
server=weir-kvs-$$
process=

clean() {
    [ -z "$process" ] || { kill "$process" && wait "$process"; } 2>/dev/null || true
    process=
    ip netns del "$client" 2>/dev/null || true
    ip netns del "$server" 2>/dev/null || true
}
trap 'clean; rm -f "$log"' EXIT

busy_ticks() { awk '/^cpu /{print $2 + $4 + $7 + $8}' /proc/stat; }

turn() {
    clean
    ip netns add "$client"
    ip netns add "$server"
    ip link add eth0 netns "$client" type veth peer name veth-a netns "$server"
    ip -n "$server" link set veth-a up
    ip -n "$client" link set eth0 up
    ip -n "$client" address add 192.0.2.1/24 dev eth0
    if [ "$1" = memcached ]; then
        ip -n "$server" address add 192.0.2.2/24 dev veth-a
        ip netns exec "$server" memcached -u nobody -t 1 -l 192.0.2.2 &
    else
        ip netns exec "$server" "$release/weir-memcache" veth-a 192.0.2.2/24 -t 1 --weir "$release/weir" > /dev/null &
    fi
    process=$!
    for _ in $(seq 100); do
        ip netns exec "$client" bash -c 'exec 3<>/dev/tcp/192.0.2.2/11211' 2> /dev/null && break
        sleep 0.1
    done
    local before line
    before=$(busy_ticks)
    line=$(ip netns exec "$client" timeout 30 memcaslap -s 192.0.2.2:11211 -t 4s -T 1 -c 8 -S 4s |
        awk -v name="$1" '
            # The distribution of the whole run: each row says which power of two its first count begins at, in microseconds.
            /^Total Statistics \(/ { total = 1; events = substr($3, 2) }
            total && /Avg:/ { mean = $2 }
            total && /Max:/ { most = $2 }
            total && p99 == 0 && /^ +[0-9]+:( +[0-9]+)+$/ {
                for (i = 2; i <= NF && p99 == 0; i++) if ((seen += $i) >= 0.99 * events) p99 = 2 ^ ($1 + i - 1)
            }
            /^Run time/ { printf "%-13s %7d operations/s, mean %d us, 99 %% below %d us, slowest %d us", name, $7, mean, p99, most }')
    echo "$line, busy $(($(busy_ticks) - before)) ticks" | tee -a "$log"
}

for _ in $(seq "$turns"); do
    turn weir-memcache
    turn memcached
done
awk '
    { p99 = $0; sub(/.*99 % below /, "", p99); sub(/ .*/, "", p99) }
    $1 == "weir-memcache" { ours = $2; ours99 = p99 + 0 }
    $1 == "memcached" { ratio[++n] = ours / $2; no_worse += (ours99 <= p99 + 0) }
    END {
        for (i = 2; i <= n; i++) for (j = i; j > 1 && ratio[j] < ratio[j - 1]; j--) { t = ratio[j]; ratio[j] = ratio[j - 1]; ratio[j - 1] = t }
        median = ratio[int((n + 1) / 2)]
        printf "99 %% in the same or a lower power of two in %d of %d turns\n", no_worse, n
        printf "floor: weir-memcache / memcached, operations a second (%.2f to %.2f): %.2f, at least 1.00: %s\n", ratio[1], ratio[n], median,
            (median >= 1 ? "held" : "MISSED")
        exit (median < 1)
    }' "$log"
