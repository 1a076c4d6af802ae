/*
 * tools/convert/deepspeed/job.h - the job of DeepSpeed that shall load what another framework
 * saved: what the source says of it, and what the user says in a file (--job), in JSON:
 *
 *     {"param_groups": [{"params": ["up.weight", …], "lr": 0.001, …}, …],   as the optimizer has
 *     them, by name
 *      "frozen": ["…"], "buffers": ["…"],      which of the others are parameters and which buffers
 *      "shared": {"head.weight": "embed.weight"},   tied parameters and the name that the first has
 *      "lr_scheduler": {…}, "global_steps": 1000,
 *      "universal_checkpoint_info": {…}}      how tensor parallelism cuts parameters, as DeepSpeed
 *                                             has it: lists of patterns
 *
 * All keys may be left out where the source says the same. A group without hyperparameters has
 * those of the source's group that its first parameter is in.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_JOB_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_JOB_H

#include "tools/convert/core/format.h"
#include "tools/convert/pickle/pickle.h"

enum { CAIRN_DEEPSPEED_JOB_BYTES_MAX = 1 << 28 };

/* All zero is the empty value. */
struct cairn_deepspeed_job {
    struct cairn_pickle tree;               /* all nodes below are of it */
    uint8_t *text, *groups_bytes;           /* what the tree borrows from */
    const struct cairn_pickle_node *own;    /* groups of the source, a list of dicts; NULL: it has
                                             * none */
    const struct cairn_pickle_node *groups; /* list of dicts; "params" are lists of names */
    /* NULL: not said */
    const struct cairn_pickle_node *frozen, *buffers, *shared, *lr_scheduler, *cuts;
    bool step_known;
    uint64_t step;
};

/* `path` NULL: there is no file. CAIRN_INVAL where neither says what is needed, CAIRN_CORRUPT for
 * what is no such file; complained about. The caller ends *job with cairn_deepspeed_job_fini in any
 * case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_job_open(const struct cairn_checkpoint *checkpoint,
                                                    const char *path,
                                                    struct cairn_deepspeed_job *job,
                                                    struct cairn_complaint *complaint);
void cairn_deepspeed_job_fini(struct cairn_deepspeed_job *job);

/* Whether a list of names has this one; false where it was not said. */
bool cairn_deepspeed_job_lists(const struct cairn_pickle_node *list, const char *name);

#endif
