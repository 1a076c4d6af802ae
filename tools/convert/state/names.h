/*
 * tools/convert/state/names.h - what a nested state dict holds where (parameters, optimizer state
 * by parameter, parameter groups, the rest), and its canonical names (core/checkpoint.h).
 *
 * A state dict comes flattened into paths of keys, as torch.distributed.checkpoint flattens it:
 * dicts by their keys, and lists that hold tensors or dicts by index. Only two prefixes have a
 * meaning, and the first one found of each counts:
 *
 *   model      "model", "module", "state_dict" or "model_state_dict", alone or below one more key.
 *              What follows is the name of a parameter or buffer. Without such a key the whole path
 *              is the name.
 *   optimizer  what stands before "state", a parameter and a key ("exp_avg"), or before
 *              "param_groups", a number and a key. torch can flatten parameter and key into one:
 *              "state.<parameter>.exp_avg", "param_groups.<parameter>.lr".
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_NAMES_H
#define CAIRN_TOOLS_CONVERT_STATE_NAMES_H

#include "cairn/types.h"
#include "tools/convert/core/name_set.h"

enum { CAIRN_STATE_KEYS_MAX = 128, CAIRN_STATE_NAME_BYTES_MAX = 1024 };

struct cairn_state_key {
    const char *text; /* borrowed; ends with NUL; decimal where it is a number */
    bool number;
};

struct cairn_state_path {
    uint32_t count;
    struct cairn_state_key keys[CAIRN_STATE_KEYS_MAX];
};

enum cairn_state_class {
    CAIRN_STATE_MODEL = 1, /* `parameter` is the name in the module */
    CAIRN_STATE_MOMENT,    /* `key` of `parameter`, which may be its number in the optimizer */
    CAIRN_STATE_GROUP,     /* `key` of group number `group`, or (flat) of `parameter` */
    CAIRN_STATE_OTHER
};

struct cairn_state_place {
    enum cairn_state_class class;
    bool flat;     /* parameter and key were one key */
    bool in_model; /* below the model's prefix, or there is none */
    uint32_t group;
    char parameter[CAIRN_STATE_NAME_BYTES_MAX];
    char key[CAIRN_STATE_NAME_BYTES_MAX];
};

/* All zero is the empty value. Paths that it borrows outlive it. */
struct cairn_state_roots {
    bool model_known, optimizer_known;
    struct cairn_state_path model;     /* its prefix */
    struct cairn_state_path optimizer; /* its prefix, without "state" and "param_groups" */
    bool flat;                         /* the optimizer's parameters and keys are one key */
};

/* Looks for prefixes in a path: call it for all paths of tensors, in order, before the next one. */
void cairn_state_roots_see(struct cairn_state_roots *roots, const struct cairn_state_path *path);

/* What is at a path. False: one of its names is too long. */
bool cairn_state_classify(const struct cairn_state_roots *roots,
                          const struct cairn_state_path *path, struct cairn_state_place *place);

/* Whether a model's tensor of this dtype can be a parameter: floating or complex. */
bool cairn_state_is_parameter_dtype(enum cairn_dtype dtype);

/* The keys joined by dots; false where they do not fit, and then the first of them. */
bool cairn_state_join(const struct cairn_state_path *path, char *out, size_t out_bytes);

/* Removes what wrappers put into a parameter's name: "module." in front, "_orig_mod.",
 * "_fsdp_wrapped_module." and "_checkpoint_wrapped_module." anywhere. */
void cairn_state_unwrap(char *name);

/*
 * Which names are whole paths. A canonical name leaves out keys: the model's prefix, a wrapper,
 * what leads to optimizer state. If another tensor's whole path is that name, the tensor must keep
 * its own whole path: {"model": {"step": a}, "step": b} has the tensors "model.step" and "step".
 */

/* Notes a tensor's path if its canonical name is that path. Paths that are too long are skipped.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_whole_names_add(struct cairn_name_set *whole,
                                                 const struct cairn_state_roots *roots,
                                                 const struct cairn_state_path *path);

#endif
