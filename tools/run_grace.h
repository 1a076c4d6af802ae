/*
 * tools/run_grace.h - the end of a job that is preempted: a last snapshot, and what it takes to
 * find it again.
 *
 *   SIGTERM ─► SNAPSHOT ─ committed ─► END ─ command ended ─► KEEP ─ on the disks ─► exit 75
 *
 * SNAPSHOT asks for one at the next step, for at most half of the grace. END sends the command
 * SIGTERM, and SIGKILL after three quarters: with this rank gone nothing later is committed. KEEP
 * has all agents write what is committed to local_dir and spill_dir, where there are such.
 */
#ifndef CAIRN_TOOLS_RUN_GRACE_H
#define CAIRN_TOOLS_RUN_GRACE_H

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

/* Goes through all of it, within grace_ns, and returns when the command has ended: *status is what
 * waitpid gave. SIGCHLD is among the blocked signals `held`. */
void cairn_run_preempt(const char *socket_path, pid_t child, const sigset_t *held,
                       uint64_t grace_ns, int *status);

#endif
