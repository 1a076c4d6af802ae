#!/bin/sh
# The command of an agent's container: writes this node's configuration and runs its agent.
#   CAIRN_NODE         the number of this node, or the first word of its line in nodes
#   CAIRN_ETC/nodes    name, address and domain of each node, a line each, in the order of numbers
#   CAIRN_ETC/options  the agent's other options
#   CAIRN_ETC/key      the job's key
#
# Started again here, an agent takes its memory over from its keeper. When the container ends, the
# keeper ends with it, and the other nodes rebuild what it held.
set -eu
etc=${CAIRN_ETC:-/etc/cairn}
run=${CAIRN_RUN:-/run/cairn}
state=${CAIRN_STATE:-/var/lib/cairn}
umask 077
mkdir -p "$run" "$state"

case $CAIRN_NODE in
*[!0-9]*) number=$(awk -v name="$CAIRN_NODE" '$1 == name { print NR - 1; exit }' "$etc/nodes") ;;
*) number=$CAIRN_NODE ;;
esac
[ -n "$number" ] || { echo "start.sh: no node $CAIRN_NODE in $etc/nodes" >&2; exit 78; }

# A mounted Secret is a link to a file that others may read; the agent refuses such a key.
cat "$etc/key" > "$run/agent.key"
{
    cat "$etc/options"
    echo "node: $number"
    echo "socket: $run/agent.sock"
    echo "dir: $state"
    echo "key_file: $run/agent.key"
    echo "nodes:"
    awk '{ printf "  - {address: \"%s\"%s}\n", $2, $3 ? ", domain: \"" $3 "\"" : "" }' "$etc/nodes"
} > "$run/agent.yaml"

agent=
trap 'ending=1; [ -n "$agent" ] && kill -TERM "$agent"' TERM INT
while [ -z "${ending:-}" ]; do
    cairn agent --config "$run/agent.yaml" &
    agent=$!
    code=0
    wait "$agent" || code=$?
    [ -n "${ending:-}" ] && { wait "$agent" || true; break; }
    case $code in
    64 | 65 | 77 | 78) exit "$code" ;; # a wrong configuration: the pod's status shows it
    esac
    sleep 1
done
