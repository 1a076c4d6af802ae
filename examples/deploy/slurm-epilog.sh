#!/bin/sh
# Slurm's Epilog: ends the agent that slurm-prolog.sh started, then the keeper of its memory.
run=${CAIRN_RUN:-/run/cairn}/job-$SLURM_JOB_ID

# Whether a process is of this job. It may have ended long ago, and its number be another's now.
ours() {
    tr '\0' '\n' 2> /dev/null < "/proc/$1/cmdline" | grep -qF "$run/"
}

agent=$(cat "$run/agent.pid" 2> /dev/null) || exit 0
ours "$agent" && kill "$agent" 2> /dev/null
tries=100
while ours "$agent"; do
    tries=$((tries - 1))
    [ "$tries" -eq 0 ] && kill -9 "$agent" # it hangs, and the node is to be free
    [ "$tries" -lt -50 ] && break          # in the kernel: Slurm, too, could only wait
    sleep 0.1
done
keeper=$(sed -n 's/^pid //p' "$run/state/keeper.sock.lock" 2> /dev/null)
[ -n "$keeper" ] && ours "$keeper" && kill "$keeper" 2> /dev/null
rm -rf "$run"
exit 0
