/*
 * tools/run_grace.h - the end of a preempted job: a last snapshot, and the files to find it again.
 *
 *   SIGTERM ─► SNAPSHOT ─ committed ─► END ─ command ended ─► KEEP ─ on the disks ─► exit 75
 *
 * SNAPSHOT asks for one at the next step, for at most half of the grace. END sends the command
 * SIGTERM, and SIGKILL after three quarters: without this rank nothing later is committed. KEEP has
 * all agents write the committed generation to local_dir and spill_dir, if they have them.
 */
#ifndef CAIRN_TOOLS_RUN_GRACE_H
#define CAIRN_TOOLS_RUN_GRACE_H

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

/* Goes through all states, within grace_ns, and returns when the command has ended: *status is from
 * waitpid. SIGCHLD is among the blocked signals `held`. */
void cairn_run_preempt(const char *socket_path, pid_t child, const sigset_t *held,
                       uint64_t grace_ns, int *status);

#endif
