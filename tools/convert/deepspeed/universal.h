/* tools/convert/deepspeed/universal.h - reading and writing the folder of DeepSpeed's universal
 * checkpoint; see deepspeed/universal_format.c. */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_UNIVERSAL_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_UNIVERSAL_H

#include "tools/convert/deepspeed/target.h"

/* A folder that is being read. */
struct cairn_ds_universal_reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_deepspeed_state state;
    char folder[CAIRN_NAME_BYTES_MAX];
    struct cairn_deepspeed_keys keys; /* of all parameters */
    bool keys_known;
};

/* Reads zero/optimizer_state.pt, after the parameters: the optimizer's object as it is carried, and
 * the steps where they are nowhere else. Complained about. */
CAIRN_MUST_CHECK cairn_err
cairn_ds_universal_read_state(struct cairn_ds_universal_reading *reading);

/* As `plan` of struct cairn_format. */
CAIRN_MUST_CHECK cairn_err cairn_ds_universal_plan(const struct cairn_checkpoint *checkpoint,
                                                   const struct cairn_output_options *options,
                                                   struct cairn_output *output);

#endif
