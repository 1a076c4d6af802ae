#!/bin/sh
# Slurm's Epilog: ends the agent that slurm-prolog.sh started. The keeper and its memory stay for
# `keeper_linger_s`, because a job that lost a node is requeued, and Slurm does not tell an epilog
# that it will be: the exit code is 0 then, too. A job that is over says so, in its script's last
# lines, by the file `over` beside its agent's socket; then memory and folder go at once.
run=${CAIRN_RUN:-/run/cairn}/job-$SLURM_JOB_ID

# Whether a process is of this job. It may have ended long ago, and its number be another's now.
ours() {
    tr '\0' '\n' 2> /dev/null < "/proc/$1/cmdline" | grep -qF "$run/"
}

# Ends a process of this job, and waits until it has: the node is free when this script ends.
end() {
    ours "$1" && kill "$1" 2> /dev/null
    tries=100
    while ours "$1"; do
        tries=$((tries - 1))
        [ "$tries" -eq 0 ] && kill -9 "$1" # it hangs
        [ "$tries" -lt -50 ] && break      # in the kernel: Slurm, too, could only wait
        sleep 0.1
    done
}

agent=$(cat "$run/agent.pid" 2> /dev/null) || exit 0
end "$agent"
[ -e "$run/agent/over" ] || exit 0
keeper=$(sed -n 's/^pid //p' "$run/agent/state/keeper.sock.lock" 2> /dev/null)
[ -n "$keeper" ] && end "$keeper"
rm -rf "$run" "${CAIRN_SHARED:-$run}/job-$SLURM_JOB_ID.nodes"
exit 0
