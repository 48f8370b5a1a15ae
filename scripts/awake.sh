#!/usr/bin/env bash
# Runs a command while the processors of this virtual machine do not halt: awake.sh COMMAND [ARGUMENT...]
#
# A host gives a processor that halts to other guests, and gives it back late. What sleeps and wakes ten thousand times a second, as
# floods behind a limit do, then waits for the host most of the time: up to 60 % of the busy time was seen stolen, and below 5 % with
# this. So a loop of the lowest scheduling class runs on each processor until the command ends; whatever else wants the processor has it
# at once. On a machine of its own nothing is started. WEIR_AWAKE=0 leaves it out.
#
# Source: sched(7), "SCHED_IDLE" and "The autogroup feature".
set -uo pipefail

loops=()
if [[ ${WEIR_AWAKE:-1} != 0 ]] && grep -qm1 '^flags.* hypervisor' /proc/cpuinfo && command -v chrt setsid taskset >/dev/null; then
    # Processors by their numbers, as this process may use them.
    for processor in $(taskset -cp $$ | sed 's/.*: //' | tr , '\n' | awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); i++) print i }'); do
        # Ends by itself when this script is gone, however that ended.
        setsid nice -n 19 taskset -c "$processor" chrt --idle 0 bash -c '
            echo 19 2>/dev/null >/proc/self/autogroup
            while kill -0 "$1" 2>/dev/null; do for ((i = 0; i < 20000; i++)); do :; done; done' awake $$ &
        loops+=($!)
    done
    echo "awake: ${#loops[@]} processors of a virtual machine are kept from halting" >&2
fi
"$@"
status=$?
[[ ${#loops[@]} -eq 0 ]] || kill "${loops[@]}" 2>/dev/null
exit $status
