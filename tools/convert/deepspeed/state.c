/* tools/convert/deepspeed/state.c - what the readers of DeepSpeed's files share. */
#include "tools/convert/deepspeed/make.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/deepspeed/subgroups.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/pickle/write.h"
#include "base/assert.h"

void
cairn_deepspeed_state_fini(struct cairn_deepspeed_state *state)
{
    cairn_deepspeed_groups_fini(&state->groups);
    cairn_deepspeed_cuts_fini(&state->cuts);
    free(state->cut_of);
    free(state->carried[0]);
    free(state->carried[1]);
    free(state->scalars);
    memset(state, 0, sizeof(*state));
}

void
cairn_deepspeed_scoped(uint32_t part, uint32_t rank, const char *what,
                       char name[CAIRN_NAME_BYTES_MAX])
{
    char scope[64] = "";

    if (part > 0)
        (void)snprintf(scope, sizeof(scope), "part%" PRIu32 "/", part);
    if (rank > 0)
        (void)snprintf(scope + strlen(scope), sizeof(scope) - strlen(scope), "rank%" PRIu32 "/",
                       rank);
    (void)snprintf(name, CAIRN_NAME_BYTES_MAX, "%s%s", scope, what);
}

cairn_err
cairn_deepspeed_buffer_names(const struct cairn_pickle_node *model, struct cairn_name_set *names)
{
    const struct cairn_pickle_node *list = cairn_pickle_get(model, "buffer_names");
    char name[CAIRN_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; cairn_pickle_is_list(list) && i < list->count && !err; i++)
        if (cairn_pickle_copy_text(list->items[i], name,
                                   sizeof(name))) /* else it is none of ours */
            err = cairn_name_set_add(names, name);
    return err;
}

struct cairn_pickle_node *
cairn_deepspeed_mark(struct cairn_pickle *tree, const char *word, const char *key, uint32_t group)
{
    char name[CAIRN_DEEPSPEED_KEY_BYTES_MAX + 16];

    (void)snprintf(name, sizeof(name), "%s/%" PRIu32, key, group);
    return cairn_pickle_named(tree, word, name);
}

struct cairn_pickle_node *
cairn_deepspeed_masters(struct cairn_pickle *tree, uint32_t group_count)
{
    struct cairn_pickle_node *list = cairn_pickle_list(tree);

    for (uint32_t g = 0; g < group_count; g++)
        cairn_pickle_append(tree, list, cairn_deepspeed_mark(tree, "flat", "fp32", g));
    return list;
}

void
cairn_deepspeed_set_ranks(struct cairn_pickle *tree, struct cairn_pickle_node *dict,
                          const char *key, uint32_t ranks)
{
    const struct cairn_pickle_node *known = cairn_pickle_get(dict, key);
    struct cairn_pickle_node *made = cairn_pickle_int(tree, ranks);

    if (cairn_pickle_is_list(known)) {
        struct cairn_pickle_node *list = cairn_pickle_list(tree);

        for (uint32_t i = 0; i < known->count; i++)
            cairn_pickle_append(tree, list, made);
        made = list;
    }
    cairn_torch_carry_replace(dict, key, made);
}

bool
cairn_deepspeed_takes_turns(const struct cairn_pickle_node *model)
{
    const struct cairn_pickle_node *zero =
        cairn_pickle_get(cairn_pickle_get(model, "ds_config"), "zero_optimization");
    const struct cairn_pickle_node *turns = cairn_pickle_get(zero, "round_robin_gradients");

    return cairn_pickle_is_true(turns);
}

bool
cairn_deepspeed_stage(const struct cairn_pickle_node *node, uint32_t *stage)
{
    static const char *const names[] = {"disabled", "optimizer_states", "gradients", "weights"};
    uint64_t number;

    if (node && node->kind == CAIRN_PICKLE_OBJECT) {
        /* getattr(class, name) */
        const struct cairn_pickle_node *member = cairn_pickle_arg(node, 1);

        for (uint32_t i = 0; i < 4; i++)
            if (cairn_pickle_is_text(member, names[i])) {
                *stage = i;
                return true;
            }
        node = cairn_pickle_arg(node, 0); /* class(value) */
    }
    if (!cairn_pickle_u64(node, &number) || number > 3)
        return false;
    *stage = (uint32_t)number;
    return true;
}

cairn_err
cairn_deepspeed_add_scalar(struct cairn_checkpoint *checkpoint,
                           const struct cairn_torch_source *source,
                           const struct cairn_torch_tensor *tensor, const char *name,
                           uint32_t *first)
{
    CAIRN_ASSERT(tensor->view.dims == 0);
    return *first != UINT32_MAX ? cairn_checkpoint_add_alias(checkpoint, name, *first)
                                : cairn_torch_add_view(checkpoint, source->container, tensor, name,
                                                       CAIRN_OPTIMIZER, first);
}

cairn_err
cairn_deepspeed_agree(struct cairn_deepspeed_state *state, const char *where, uint32_t rank,
                      const struct cairn_deepspeed_scalar *scalar,
                      struct cairn_complaint *complaint)
{
    for (uint32_t i = 0; i < state->scalar_count; i++) {
        const struct cairn_deepspeed_scalar *known = &state->scalars[i];

        if (known->group != scalar->group || strcmp(known->key, scalar->key) != 0)
            continue;
        if (memcmp(known->value, scalar->value, sizeof(known->value)) == 0)
            return CAIRN_OK;
        return cairn_complain(
            complaint, CAIRN_CORRUPT,
            "%s: rank %" PRIu32 " has another %s of group %" PRIu32
            " than rank 0, so the files are of different checkpoints; take all of one",
            where, rank, scalar->key, scalar->group);
    }
    if (rank != 0)
        return cairn_complain(
            complaint, CAIRN_CORRUPT,
            "%s: rank %" PRIu32 " has a %s of group %" PRIu32
            " and rank 0 has none, so the files are of different checkpoints; take all of one",
            where, rank, scalar->key, scalar->group);
    if (!cairn_array_grow(&state->scalars, state->scalar_count, sizeof(*state->scalars)))
        return CAIRN_NOMEM;
    state->scalars[state->scalar_count++] = *scalar;
    return CAIRN_OK;
}

/* What rank 0 alone knows; where objects are compared, that is left out. */
static void
leave_out_own(struct cairn_torch_source *source)
{
    struct cairn_pickle_node *shared = cairn_pickle_get(source->torch.root, "shared_params");

    if (shared && shared->kind == CAIRN_PICKLE_DICT)
        shared->count = 0;
    cairn_torch_carry_replace(source->torch.root, CAIRN_DEEPSPEED_CARRIED, NULL);
}

cairn_err
cairn_deepspeed_carry(struct cairn_checkpoint *checkpoint, struct cairn_deepspeed_state *state,
                      struct cairn_torch_source *source, int which, uint32_t rank)
{
    const char *name = which == 0 ? CAIRN_DEEPSPEED_MODEL : CAIRN_DEEPSPEED_OPTIM;
    /* an object is carried only if this part's first rank, or the first part, has another */
    const struct cairn_deepspeed_state *like = rank > 0 ? state : state->cut ? state->first : NULL;
    char scope[CAIRN_NAME_BYTES_MAX], own[CAIRN_NAME_BYTES_MAX];
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    cairn_deepspeed_scoped(state->part, rank, CAIRN_DEEPSPEED_SCOPE, scope);
    cairn_deepspeed_scoped(state->part, rank, name, own);
    if (like)
        leave_out_own(source);
    err = cairn_torch_source_carry(checkpoint, source, scope, &bytes, &bytes_len);
    if (!err && (!like || bytes_len != like->carried_bytes[which] ||
                 memcmp(bytes, like->carried[which], bytes_len) != 0))
        err = cairn_checkpoint_add_opaque(checkpoint, own, bytes, bytes_len);
    free(bytes);
    if (err || rank > 0)
        return err;
    leave_out_own(source);
    return cairn_pickle_write(&source->torch.tree, source->torch.root, &state->carried[which],
                              &state->carried_bytes[which], NULL);
}

/* ---- the end ---- */

/* With ZeRO 3 a parameter is what its fp32 master is. */
static cairn_err
add_parameters(struct cairn_checkpoint *checkpoint, const struct cairn_deepspeed_state *state)
{
    char name[CAIRN_NAME_BYTES_MAX + 8];

    for (uint32_t i = 0; i < state->groups.parameter_count; i++) {
        const struct cairn_deepspeed_parameter *parameter = &state->groups.parameters[i];
        uint32_t master;
        cairn_err err;

        (void)snprintf(name, sizeof(name), "fp32.%s", parameter->name);
        master = cairn_layout_tensor_find(checkpoint->layout, name);
        if (master == UINT32_MAX ||
            cairn_layout_tensor_find(checkpoint->layout, parameter->name) != UINT32_MAX)
            continue;
        err = cairn_checkpoint_add_alias_as(checkpoint, parameter->name, CAIRN_PARAM, master);
        if (err)
            return err;
    }
    return CAIRN_OK;
}

static cairn_err
add_shared(struct cairn_checkpoint *checkpoint, const struct cairn_pickle_node *shared)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(shared);

    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        char alias[CAIRN_NAME_BYTES_MAX], stored[CAIRN_NAME_BYTES_MAX];
        uint32_t of;
        cairn_err err;

        if (!cairn_pickle_copy_text(pairs->items[2 * i], alias, sizeof(alias)) ||
            !cairn_pickle_copy_text(pairs->items[2 * i + 1], stored, sizeof(stored)))
            return cairn_refuse(checkpoint, CAIRN_CORRUPT, "shared_params must map names to names");
        of = cairn_layout_tensor_find(checkpoint->layout, cairn_deepspeed_canonical(stored));
        if (of == UINT32_MAX)
            return cairn_refuse(checkpoint, CAIRN_CORRUPT, "%s is shared with %s, which is missing",
                                alias, stored);
        if (cairn_layout_tensor_find(checkpoint->layout, cairn_deepspeed_canonical(alias)) !=
            UINT32_MAX)
            continue; /* it was stored on its own */
        err =
            cairn_checkpoint_add_alias_as(checkpoint, cairn_deepspeed_canonical(alias), CAIRN_PARAM,
                                          cairn_checkpoint_past_alias(checkpoint, of));
        if (err)
            return err;
    }
    return CAIRN_OK;
}

/* What other formats do not say: how many ranks DeepSpeed had may not be how many wrote theirs. */
static cairn_err
add_order(struct cairn_checkpoint *checkpoint, const struct cairn_deepspeed_state *state,
          const struct cairn_pickle_node *model)
{
    uint64_t ranks = state->ranks;

    if (state->first || state->stage3 || !cairn_deepspeed_takes_turns(model))
        return CAIRN_OK;
    return cairn_numbers_add(checkpoint, CAIRN_DEEPSPEED_ORDER_RANKS, &ranks, 1);
}

cairn_err
cairn_deepspeed_state_end(struct cairn_checkpoint *checkpoint, struct cairn_deepspeed_state *state)
{
    struct cairn_opaque_tree model;
    char name[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    if (state->cut && state->first)
        return CAIRN_OK; /* the first part has all of it */
    cairn_deepspeed_scoped(state->part, 0, CAIRN_DEEPSPEED_MODEL, name);
    err = cairn_opaque_tree_open(checkpoint, name, &model);
    if (!err && state->stage3)
        err = add_parameters(checkpoint, state);
    if (!err)
        err = add_shared(checkpoint, cairn_pickle_get(model.root, "shared_params"));
    if (!err)
        err = add_order(checkpoint, state, model.root);
    if (!err)
        err = cairn_deepspeed_subgroups_note(checkpoint, state, model.root);
    cairn_opaque_tree_close(&model);
    checkpoint->parallelism = (struct cairn_parallelism){.tp = state->cut ? state->part_count : 1,
                                                         .pp = state->cut ? 1 : state->part_count,
                                                         .dp = state->ranks,
                                                         .ep = 1};
    (void)snprintf(checkpoint->framework, sizeof(checkpoint->framework), "DeepSpeed%s%s",
                   state->version[0] ? " " : "", state->version);
    if (state->stage_known) {
        size_t used = strlen(checkpoint->framework);

        (void)snprintf(checkpoint->framework + used, sizeof(checkpoint->framework) - used,
                       ", ZeRO %" PRIu32, state->stage);
    }
    return err;
}
