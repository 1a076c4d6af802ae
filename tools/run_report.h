/*
 * tools/run_report.h - `cairn run`'s reports about a job: what protects it and where, who runs it
 * already, and what was kept at the end.
 */
#ifndef CAIRN_TOOLS_RUN_REPORT_H
#define CAIRN_TOOLS_RUN_REPORT_H

#include "agent/process/config.h"

/* A node's trainer that holds a rank. */
struct cairn_run_holder {
    uint64_t node, rank, pid, for_ms;
};

/* What the agents of a job report about it. */
struct cairn_run_look {
    bool answered;                        /* else all is unknown */
    char job[CAIRN_CONFIG_JOB_BYTES_MAX]; /* that the agent serves */
    uint64_t attached;                    /* trainers of this node since its agent's start */
    uint64_t ranks, world;                /* attached now, of so many; world 0: unknown */
    uint64_t own_ranks;                   /* of them on this node */
    struct cairn_run_holder holder;       /* of the lowest rank that is known */
};

struct cairn_run_look cairn_run_look(const char *socket_path, uint32_t timeout_ms);

/* True if all ranks of the job are attached, some of them here: another launch has no place. */
bool cairn_run_is_taken(const struct cairn_run_look *look);

/* True if all ranks of the job are attached, on other nodes. This node may be joining: then its
 * trainers are refused until those end. */
bool cairn_run_is_elsewhere(const struct cairn_run_look *look);

/* Reports on stderr that another launch runs the job, and which one; `so` follows. */
void cairn_run_say_taken(const struct cairn_run_look *look, const char *so);

/* One line on stderr: what protects the job and where. verbose: problems too. */
void cairn_run_say_protection(const char *socket_path, uint32_t timeout_ms, bool verbose);

/* One line on stderr: the newest generation, and the command that continues with it. `named`: the
 * socket that the user gave, or NULL; `relaunch`: how often it is relaunched, or NULL. Silent if
 * the agent does not answer. */
void cairn_run_say_kept(const char *socket_path, uint32_t timeout_ms, const char *named,
                        const char *relaunch, char *const *command);

#endif
