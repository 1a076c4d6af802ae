/* tools/convert/deepspeed/facts.h - a rank's model_states while they are read, and what they say of
 * the job; for deepspeed/facts.c and deepspeed/model.c. */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_FACTS_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_FACTS_H

#include "tools/convert/deepspeed/make.h"

struct cairn_deepspeed_reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_deepspeed_state *state;
    struct cairn_torch_source source;
    uint32_t rank;
    char where[CAIRN_NAME_BYTES_MAX]; /* the file, for messages */
};

/* Complain of the file: CAIRN_CORRUPT; CAIRN_VERSION. */
CAIRN_MUST_CHECK cairn_err
cairn_deepspeed_reading_refuse(const struct cairn_deepspeed_reading *reading, const char *why);
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_reading_refuse_cut(
    const struct cairn_deepspeed_reading *reading, const char *path, const char *why);

/* Of a part's first rank: ranks, step, groups, cuts, into reading->state. CAIRN_CORRUPT,
 * CAIRN_VERSION for what is not read, CAIRN_NOMEM; complained about. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_facts_read(struct cairn_deepspeed_reading *reading,
                                                      const struct cairn_pickle_node *root);

/* Of another rank: whether it is of the same checkpoint, which the step tells. CAIRN_CORRUPT,
 * complained about. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_facts_compare(
    const struct cairn_deepspeed_reading *reading, const struct cairn_pickle_node *root);

#endif
