#!/bin/sh
# Slurm's Prolog: writes the agent's configuration and starts the agent, as the job's user, on each
# node of a job. If that fails, training runs without Cairn; this script never drains a node.
# In slurm.conf: Prolog=…/slurm-prolog.sh, Epilog=…/slurm-epilog.sh, PrologFlags=Alloc
#
# CAIRN_ETC: the site's folder. It contains site.key (16 to 4096 random bytes, mode 0600, the same
# on all nodes) and agent.yaml.in (all options except job, node, nodes, socket, dir and key_file).
# CAIRN_RUN: gets one folder per job, in which only `agent` is the user's.
# CAIRN_SHARED: a folder that all nodes see and root alone may write to. It gets one file per job,
# with the order of its nodes: a requeued job keeps the numbers of the nodes that it keeps, and a
# new node gets that of a lost one. Without it a job resumes from memory on the same nodes only.
set -u
umask 022 # no user may write beside the job's files
PATH=/usr/local/bin:$PATH
etc=${CAIRN_ETC:-/etc/cairn}
base=${CAIRN_RUN:-/run/cairn}
run=$base/job-$SLURM_JOB_ID
shared=${CAIRN_SHARED:-$run}
user=${SLURM_JOB_USER:-root}
mkdir -p "$run" "$shared" "$run/agent" || exit 0
chown "$user" "$run/agent" && chmod 0700 "$run/agent" && rm -f "$run/agent.pid" || exit 0

# Folders of earlier jobs whose agents and keepers have ended.
for other in "$base"/job-*; do
    [ -e "$other/agent.pid" ] && ! pgrep -f "$other/" > /dev/null && rm -rf "$other"
done

# The job's key. It reveals neither the site's key nor another job's.
[ -s "$etc/site.key" ] || { echo "$etc/site.key is missing or empty" >> "$run/agent.log"; exit 0; }
rm -f "$run/job.key"
(
    umask 077
    { cat "$etc/site.key"; echo "slurm-$SLURM_JOB_ID"; cat "$etc/site.key"; } | sha256sum |
        cut -c 1-64 > "$run/job.key"
)
chown "$user" "$run/job.key"

# The hosts in the order of their numbers. All nodes of the job do this at about the same time. A
# node that reads the order after another has written it writes the same again.
order=$shared/job-$SLURM_JOB_ID.nodes
touch "$order"
scontrol show hostnames "$SLURM_NODELIST" > "$run/allocated"
awk 'NR == FNR { now[NR] = $1; here[$1] = 1; count = NR; next }
     { was[FNR] = $1; known[$1] = 1; had = FNR }
     END {
         next_new = 1
         for (i = 1; i <= had || next_new <= count; i++) {
             while (next_new <= count && now[next_new] in known)
                 next_new++
             if (i <= had && (was[i] in here || next_new > count))
                 print was[i]
             else if (next_new <= count)
                 print now[next_new++]
         }
     }' "$run/allocated" "$order" > "$run/nodes"
cp "$run/nodes" "$order.$SLURMD_NODENAME" && mv "$order.$SLURMD_NODENAME" "$order"

{
    echo "job: slurm-$SLURM_JOB_ID"
    echo "socket: $run/agent/agent.sock"
    echo "dir: $run/agent/state"
    echo "key_file: $run/job.key"
    cat "$etc/agent.yaml.in"
    echo "node: $(($(grep -nxF "$SLURMD_NODENAME" "$run/nodes" | cut -d: -f1) - 1))"
    echo "nodes:"
    sed "s/.*/  - {address: \"&:${CAIRN_PORT:-7431}\"}/" "$run/nodes"
} > "$run/agent.yaml"

as_user() {
    exec setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups "$@"
}
(as_user cairn agent --check --config "$run/agent.yaml") >> "$run/agent.log" 2>&1 || exit 0
# The agent must be in a session of its own before this script ends: slurmd then kills the script's
# process group.
start='echo $$ >&3 && exec cairn agent --config "$1" 3>&-'
(
    as_user setsid sh -c "$start" agent "$run/agent.yaml"
) >> "$run/agent.log" 2>&1 < /dev/null 3> "$run/agent.pid" &
tries=100
while [ ! -s "$run/agent.pid" ] && [ "$tries" -gt 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
exit 0
