#!/usr/bin/env bash
# The test suite, but for tests of a kind with others, which `make verify` runs. Its last line is `N passed, N failed, N skipped`, and before
# it `unjudged: N (names)`: tests whose figure of time or speed was short while the host took the processors away. With CI=true a skipped
# test is a failure, and so is an unjudged one in a file whose run was quiet on the whole.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh || echo "test: going on without; tests that need these packages will fail" >&2
. scripts/rust.sh

folder=$(mktemp -d)
log=$folder/log
# Puts a setting of the machine back, if it was changed below.
backlog=/proc/sys/net/core/netdev_max_backlog
backlog_at_start=$(cat "$backlog" || true)
backlog_before=
restore_backlog() {
    [[ -z $backlog_before ]] || echo "$backlog_before" >"$backlog" || true
    backlog_before=
}
trap 'restore_backlog; rm -rf "$folder"; jobs -p | xargs -r kill 2>/dev/null || true' EXIT

# Not the examples, which are benchmarks: `make lint` builds them.
kinds=(--lib --bins --tests)
# The whole-program tests try `weir` as people run it. It is built beside the tests: cargo has a folder and a lock for each of the two
# profiles, and the end of a program's optimisation keeps one processor busy for a minute. `weir-lab` and `weir-memcache`, which judge no
# speed here, are those that cargo builds with the tests; `make verify` tries them optimised.
cargo build --release --quiet -p weir-cli &
program=$!
# Tests that cannot be built are told again, and counted, where they are run.
cargo test --workspace --no-run "${kinds[@]}" --message-format json-render-diagnostics |
    sed -nE '/#weir-tests@.*"kind":\["test"\]/s/.*"executable":"([^"]+)".*/\1/p' >"$folder/files" || true
status=0
# The tests of the crates judge no time and no speed, and need no program: they run while the last programs are optimised, without those
# of whole programs.
WEIR_TESTS=none cargo test --workspace --no-fail-fast "${kinds[@]}" 2>&1 | tee -a "$log" || status=$?
# So do the examples of the documentation,
cargo test --workspace --no-fail-fast --doc 2>&1 | tee -a "$log" || status=$?
# and threads stopped between any two steps of the hand-off: the bounded part of what `make verify` does at length.
if ! cargo run -p weir-ring --features preempt --example stress -- --handoffs 1000000 --seed 1; then
    echo "test: the stress of the hand-off failed" >&2
    status=1
fi
if ! wait "$program"; then
    echo "test: weir could not be built, so the whole-program tests are left out" >&2
    status=1
    : >"$folder/files"
elif [[ -z ${WEIR_BIN:-} ]]; then
    target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    # Programs find each other in the folder in which they are.
    mkdir -p "$target/tried"
    cp -f --link "$target"/release/weir "$target"/debug/weir-{lab,memcache} "$target/tried"
    WEIR_BIN=$target/tried/weir
fi
export WEIR_BIN
seed=${PROPTEST_RNG_SEED:-$(sed -n 's/^PROPTEST_RNG_SEED = "\(.*\)"/\1/p' .cargo/config.toml)}
# The files that take longest come first, so that none is left over at the end.
awk -v longest='/(guardian|run|ipsec|ownership|attackers|down|limit_tree|plain_pair)-[0-9a-f]+$' \
    '$0 ~ longest { print; next } { others = others $0 "\n" } END { printf "%s", others }' "$folder/files" >"$folder/ordered"
mv "$folder/ordered" "$folder/files"
# Whole-program tests that bear others beside them, as their cases say (`.together()`, `.flooding()`), so many files at once. What a file
# says is told when all have ended.
whole_programs() {
    # Packets that have left limits wait in lists that all files share, and the limits of one file cannot see those of another, for which a
    # command would make room: so there is room from the start. Tests that run alone have the machine's own setting.
    if [[ -w $backlog && $(<"$backlog") -lt 10000 ]]; then
        backlog_before=$(<"$backlog")
        echo 10000 >"$backlog"
    fi
    for part in together:6 flooding:2; do
        mkdir "$folder/${part%:*}"
        # shellcheck disable=SC2016
        WEIR_TESTS=${part%:*} scripts/awake.sh xargs -r -P "${part#*:}" -I '{}' \
            sh -c '"$1" >"$0/$(basename "$1")" 2>&1' "$folder/${part%:*}" '{}' <"$folder/files" || status=1
        for said in "$folder/${part%:*}"/*; do
            [[ ! -s $said ]] || { echo "     Running ${said##*/}, ${part%:*}" && cat "$said"; }
        done | tee -a "$log"
    done
    restore_backlog
    # The others, one file after another.
    mapfile -t files <"$folder/files"
    # shellcheck disable=SC2016
    WEIR_TESTS=alone scripts/awake.sh sh -c 'for file do echo "     Running ${file##*/}, alone"; "$file" || status=1; done; exit ${status:-0}' \
        alone "${files[@]}" 2>&1 | tee -a "$log" || status=1
}
if [[ -s $folder/files ]]; then
    whole_programs
else
    echo "test: there are no whole-program tests" >&2
    status=1
fi
if [[ $(cat "$backlog" || true) != "$backlog_at_start" ]]; then
    echo "test: $backlog was $backlog_at_start, and is not as before" >&2
    status=1
fi

read -r passed failed skipped unjudged < <(
    awk '/^test result: / { for (i = 1; i < NF; i++) {
             if ($(i + 1) ~ /^passed/) passed += $i
             if ($(i + 1) ~ /^failed/) failed += $i
             if ($(i + 1) ~ /^ignored/) skipped += $i
             if ($(i + 1) ~ /^unjudged/) unjudged += $i } }
         END { print passed + 0, failed + 0, skipped + 0, unjudged + 0 }' "$log"
)
echo "test: property tests drew from PROPTEST_RNG_SEED=$seed"
echo "test: the slowest: $(sed -nE 's/^test ([^ ]+) \.\.\. [A-Za-z]+ \(([0-9.]+) s\)$/\2 s \1/p' "$log" |
    sort -rn | head -8 | paste -sd, | sed 's/,/, /g')"
# With what a failed test said, which is far above by now.
awk '/^test .* \.\.\. (FAILED|skipped|unjudged)/ { print; told = 12; next } /^    / && told-- > 0 { print; next } { told = 0 }' "$log"
if [[ $status -eq 0 && ${CI:-} == true && $skipped -gt 0 ]]; then
    echo "test: nothing may be skipped here" >&2
    status=1
fi
if [[ $status -ne 0 && $failed -eq 0 && $skipped -eq 0 && $unjudged -eq 0 ]]; then
    echo "test: the tests could not be built or run" >&2
fi
names=$(sed -nE 's/^test ([^ ]+) \.\.\. unjudged .*/\1/p' "$log" | paste -sd, | sed 's/,/, /g')
echo "unjudged: $unjudged${names:+ ($names)}"
echo "$passed passed, $failed failed, $skipped skipped"
exit "$status"
