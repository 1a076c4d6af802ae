/* tools/convert/deepspeed/objects.h - what the objects of DeepSpeed's files are made with, for a
 * checkpoint that did not come from it; for deepspeed/objects.c and deepspeed/optim_object.c. */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_OBJECTS_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_OBJECTS_H

#include "tools/convert/deepspeed/make.h"

/* Whose files these are in form; DeepSpeed refuses what says no version. */
#define CAIRN_DEEPSPEED_FORM_VERSION "0.19.8"

struct cairn_deepspeed_objects {
    struct cairn_deepspeed_make *make;
    struct cairn_pickle tree;
    struct cairn_torch_builder builder;
};

/* A copy of what a tree of plain data holds: nodes of two trees are not mixed. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_objects_copy(struct cairn_deepspeed_objects *objects,
                                                        const struct cairn_pickle *from,
                                                        const struct cairn_pickle_node *node,
                                                        struct cairn_pickle_node **out);

/* The object of optim_states. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_objects_optim(struct cairn_deepspeed_objects *objects,
                                                         struct cairn_pickle_node **root);

#endif
