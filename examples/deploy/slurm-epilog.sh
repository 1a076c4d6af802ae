#!/bin/sh
# Slurm's Epilog: ends the agent that slurm-prolog.sh started, then the keeper that holds its memory.
run=${CAIRN_RUN:-/run/cairn}/job-$SLURM_JOB_ID
agent=$(cat "$run/agent.pid" 2> /dev/null) || exit 0
kill "$agent" 2> /dev/null
tries=100
while kill -0 "$agent" 2> /dev/null; do
    tries=$((tries - 1))
    [ "$tries" -eq 0 ] && kill -9 "$agent" # it hangs, and the node is to be free
    sleep 0.1
done
keeper=$(sed -n 's/^pid //p' "$run/state/keeper.sock.lock" 2> /dev/null)
[ -n "$keeper" ] && kill "$keeper" 2> /dev/null
rm -rf "$run"
exit 0
