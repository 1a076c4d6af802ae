/*
 * tools/convert/deepspeed/make.h - makes what DeepSpeed's files hold beside tensors, for a
 * checkpoint that did not come from DeepSpeed.
 *
 * The checkpoint gets what it would carry if DeepSpeed had saved it (deepspeed/state.h), and a
 * master for each trained parameter. A source that trained in float32 has no masters:
 * "fp32.<parameter>" is then an alias of the parameter. After that it is written like any other
 * checkpoint. What ZeRO has no place for (EMA weights, state of loaders) lies under
 * CAIRN_DEEPSPEED_CARRIED in the first rank's model_states. DeepSpeed returns it when loading, as
 * part of the client state.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_MAKE_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_MAKE_H

#include "tools/convert/core/output.h"
#include "tools/convert/state/job_file.h"
#include "tools/convert/deepspeed/state.h"

/* {"opaque": {name: bytes as a tensor}, "buffer": {name: tensor}, "optimizer": …, "param": …} */
#define CAIRN_DEEPSPEED_CARRIED "cairn_carried"

/* What a tensor of the source is to the job. */
enum cairn_deepspeed_role {
    CAIRN_DEEPSPEED_BESIDE, /* of neither the module nor the optimizer */
    CAIRN_DEEPSPEED_TRAINED,
    CAIRN_DEEPSPEED_FROZEN,
    CAIRN_DEEPSPEED_SHARED, /* another name of a parameter */
    CAIRN_DEEPSPEED_BUFFER,
    CAIRN_DEEPSPEED_MOMENT /* master weights among them */
};

struct cairn_deepspeed_key {
    char name[CAIRN_DEEPSPEED_KEY_BYTES_MAX];
    bool scalar;
    enum cairn_dtype dtype;
};

enum { CAIRN_DEEPSPEED_STATE_KEYS_MAX = 16 };

/* All zero is the empty value. */
struct cairn_deepspeed_make {
    struct cairn_checkpoint *checkpoint;
    const struct cairn_output_options *options;
    struct cairn_job_file job;
    uint32_t stage;      /* 1 to 3 */
    bool bf16_optimizer; /* BF16_Optimizer, which says no stage */
    bool scaled;         /* float16, with a loss scale */
    uint32_t ranks;
    uint32_t tensor_count; /* before masters were added */
    uint8_t *roles;        /* [tensor_count] of enum cairn_deepspeed_role */
    uint32_t *order;       /* [tensor_count]: by name, so that the same state makes the same
                            * files */

    struct cairn_deepspeed_groups groups; /* of trained parameters; of each one buffer or, with
                                           * ZeRO 3, several */
    uint32_t *members;                    /* [groups.parameter_count]: of the source */
    uint32_t *setting_of;                 /* [groups.group_count]: of job.groups */
    struct cairn_deepspeed_key keys[CAIRN_DEEPSPEED_STATE_KEYS_MAX];
    uint32_t key_count;
    bool has_step;                      /* among the keys */
    uint64_t step;                      /* of the optimizer, where it is not */
    struct cairn_torch_builder builder; /* of job.tree, in which the objects are made */
};

/* As `prepare` of struct cairn_format. Does nothing if the source came from DeepSpeed. CAIRN_INVAL
 * if a flag is missing; CAIRN_CORRUPT, with its name, for what ZeRO needs and the source lacks. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_prepare(struct cairn_checkpoint *checkpoint,
                                                   const struct cairn_output_options *options);

/* Whether opaque state belongs to these formats, which then write or refuse it themselves. */
bool cairn_deepspeed_is_own(const char *name);

/* Puts opaque state that is not DeepSpeed's into a model_states object. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_carried_put(const struct cairn_checkpoint *checkpoint,
                                                       struct cairn_pickle *tree,
                                                       struct cairn_pickle_node *root);
/* Adds the objects to the checkpoint: deepspeed/objects.c. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_make_objects(struct cairn_deepspeed_make *make);

#endif
