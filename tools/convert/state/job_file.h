/*
 * tools/convert/state/job_file.h - the job that will load what another framework saved: what the
 * source says about it, and what the user says in a file (--job), in JSON:
 *
 *   {"param_groups": [{"params": ["up.weight", …], "lr": 0.001, …}, …],
 *    "frozen": ["…"],
 *    "buffers": ["…"],
 *    "shared": {"head.weight": "embed.weight"},
 *    "lr_scheduler": {…},
 *    "global_steps": 1000,
 *    "universal_checkpoint_info": {…}}
 *
 *   param_groups                as the optimizer has them, with parameters by name
 *   frozen, buffers             which of the other tensors are parameters, and which are buffers
 *   shared                      tied parameters, and the name that the first has
 *   universal_checkpoint_info   how tensor parallelism cuts parameters, as DeepSpeed has it: lists
 *                               of patterns
 *
 * A key may be omitted if the source says the same. A group without hyperparameters gets those of
 * the source's group that holds its first parameter.
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_JOB_FILE_H
#define CAIRN_TOOLS_CONVERT_STATE_JOB_FILE_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/pickle/pickle.h"

enum { CAIRN_JOB_FILE_BYTES_MAX = 1 << 28 };

/* All zero is the empty value. */
struct cairn_job_file {
    struct cairn_pickle tree;               /* holds all nodes below */
    uint8_t *text;                          /* what the tree borrows from */
    const struct cairn_pickle_node *own;    /* groups of the source, a list of dicts; NULL: it has
                                             * none */
    const struct cairn_pickle_node *groups; /* list of dicts; "params" are lists of names */
    /* NULL: not said */
    const struct cairn_pickle_node *frozen, *buffers, *shared, *lr_scheduler, *cuts;
    bool step_known;
    uint64_t step;
};

/* `path` NULL: there is no file. CAIRN_INVAL where neither says what is needed, CAIRN_CORRUPT for
 * any other file; complained about. The caller ends *job with cairn_job_file_fini in any case. */
CAIRN_MUST_CHECK cairn_err cairn_job_file_open(const struct cairn_checkpoint *checkpoint,
                                               const char *path, struct cairn_job_file *job);
void cairn_job_file_fini(struct cairn_job_file *job);

/* Whether a list of names has this one; false where it was not said. */
bool cairn_job_file_lists(const struct cairn_pickle_node *list, const char *name);

#endif
