#!/usr/bin/env bash
# Sets weir-memcache beside memcached, by turns: one worker thread each, on one end of a veth pair, and memcaslap with 8 TCP connections (nine
# gets to a set) on the other. Prints operations a second, their mean time and that of the slowest, and the machine's busy time, of all
# processors.
#
#   sudo scripts/compare_memcached.sh [TURNS]       needs: cargo build --release -p weir-memcache -p weir-cli; apt-get install memcached libmemcached-tools
set -euo pipefail
cd "$(dirname "$0")/.."
turns=${1:-3}
release=$PWD/target/release
client=weir-kvc-$$
server=weir-kvs-$$
process=

clean() {
    [ -z "$process" ] || { kill "$process" && wait "$process"; } 2>/dev/null || true
    process=
    ip netns del "$client" 2>/dev/null || true
    ip netns del "$server" 2>/dev/null || true
}
trap clean EXIT

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
    local before
    before=$(busy_ticks)
    ip netns exec "$client" timeout 30 memcaslap -s 192.0.2.2:11211 -t 4s -T 1 -c 8 -S 4s |
        awk -v name="$1" '/Total Statistics/ { total = 1 } total && /Avg:/ { mean = $2 } total && /Max:/ { most = $2 }
            /^Run time/ { printf "%-13s %7d operations/s, mean %d us, slowest %d us", name, $7, mean, most }'
    printf ', busy %s ticks\n' $(($(busy_ticks) - before))
}

for _ in $(seq "$turns"); do
    turn weir-memcache
    turn memcached
done
