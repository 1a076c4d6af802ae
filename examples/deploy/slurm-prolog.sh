#!/bin/sh
# Slurm's Prolog: writes the agent's configuration and starts the agent, as root, on each node of a
# job. If that fails, training runs without Cairn; this script never drains a node.
# In slurm.conf: Prolog=…/slurm-prolog.sh, Epilog=…/slurm-epilog.sh
#
# CAIRN_ETC: the site's folder. It contains job.key (16 to 4096 random bytes, mode 0600, the same on
# all nodes) and agent.yaml.in (all options except job, node, nodes, socket, dir and key_file).
# CAIRN_RUN: gets one folder per job.
set -u
PATH=/usr/local/bin:$PATH
etc=${CAIRN_ETC:-/etc/cairn}
run=${CAIRN_RUN:-/run/cairn}/job-$SLURM_JOB_ID
umask 077
mkdir -p "$run" || exit 0
{
    echo "job: slurm-$SLURM_JOB_ID"
    echo "socket: $run/agent.sock"
    echo "dir: $run/state"
    echo "key_file: $etc/job.key"
    cat "$etc/agent.yaml.in"
    echo "nodes:"
    number=0
    for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        echo "  - {address: \"$host:${CAIRN_PORT:-7431}\"}"
        [ "$host" = "$SLURMD_NODENAME" ] && echo "$number" > "$run/node"
        number=$((number + 1))
    done
    echo "node: $(cat "$run/node")"
} > "$run/agent.yaml"
cairn agent --check --config "$run/agent.yaml" > "$run/agent.log" 2>&1 || exit 0
setsid cairn agent --config "$run/agent.yaml" >> "$run/agent.log" 2>&1 < /dev/null &
echo $! > "$run/agent.pid"
exit 0
