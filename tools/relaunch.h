/*
 * tools/relaunch.h - `cairn run --relaunch`: a command that starts again on the remaining nodes.
 *
 * relaunch_plan.h decides; here the decisions are carried out: exchange notes and views over one
 * session with this node's agent, ask for restores and snapshots, fill in the words of the command,
 * start and end it.
 *
 * Each launcher has a *door*: a port at which its host answers while it lives. A node with a silent
 * agent is asked there, since a dead agent alone must not end a job.
 */
#ifndef CAIRN_TOOLS_RELAUNCH_H
#define CAIRN_TOOLS_RELAUNCH_H

#include "tools/run_command.h"

struct cairn_relaunch_options {
    uint64_t budget;      /* relaunches at most; 0: the command is not relaunched at all */
    uint64_t least, most; /* nodes of a round; most 0: as many as the job has without spares */
    uint64_t wait_ns;     /* in which a round must begin */
    bool resumes;         /* the first round restores, too */
    bool batch_may_change;
};

/* "1:3" or "2"; false for all but 1 ≤ least ≤ most ≤ CAIRN_NODES_MAX. */
bool cairn_relaunch_parse_nodes(const char *text, uint64_t *least, uint64_t *most);

/* Checks the words of the command. False: the errors are printed, *exit_code is the command's. */
bool cairn_relaunch_check(char *const *command, int *exit_code);

/* Runs the command until it has ended for good; the exit code. `attachment` has an agent. */
int cairn_relaunch_run(char **command, struct cairn_run_attachment *attachment,
                       const struct cairn_relaunch_options *options);

#endif
