/* tools/convert/megatron/model.c - a rank's model_optim_rng.pt: its part of the model, and what is
 * carried. */
#include "tools/convert/megatron/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/megatron/plain.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/torch/carry.h"
#include "snapshot/box.h"

void
cairn_megatron_state_fini(struct cairn_megatron_state *state)
{
    free(state->first_layer);
    if (state->keys)
        (void)fclose(state->keys);
    free(state->key_text);
    free(state->parts);
    memset(state, 0, sizeof(*state));
}

void
cairn_megatron_chunk_key(uint32_t vpp, uint32_t chunk, char key[16])
{
    (void)snprintf(key, 16, vpp > 1 ? "model%" PRIu32 : "model", chunk);
}

struct cairn_pickle_node *
cairn_megatron_chunk(const struct cairn_megatron_state *state, const struct cairn_pickle_node *root,
                     uint32_t chunk)
{
    char key[16];

    cairn_megatron_chunk_key(state->vpp, chunk, key);
    return cairn_pickle_get(root, key);
}

cairn_err
cairn_megatron_add_part(struct cairn_checkpoint *checkpoint, const struct cairn_megatron_part *part,
                        const char *name, enum cairn_kind kind, enum cairn_dtype dtype,
                        uint32_t container, uint64_t offset_bytes, const uint64_t *stride_bytes)
{
    struct cairn_megatron_box boxes[2];
    uint64_t row_major[CAIRN_DIMS_MAX];
    uint32_t count = cairn_megatron_part_boxes(part, boxes), index = 0;
    cairn_err err;

    cairn_shape_strides(part->dims, part->shape, cairn_dtype_bytes(dtype), row_major);
    if (!stride_bytes)
        stride_bytes = row_major;
    err = cairn_checkpoint_add_tensor(checkpoint, name, dtype, kind, part->dims, part->whole_shape,
                                      &index);
    for (uint32_t i = 0; i < count && !err; i++)
        err = cairn_checkpoint_add_box(
            checkpoint, index, container, boxes[i].start, boxes[i].extent,
            offset_bytes + (part->dims > 0 ? boxes[i].row * stride_bytes[0] : 0), stride_bytes);
    return err;
}

struct reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_megatron_state *state;
    struct cairn_torch_source *source;
    const struct cairn_megatron_rank *rank;
    uint32_t chunk;
    uint32_t local_experts; /* that each expert-parallel rank has of a layer */
    const struct cairn_pickle_node *model;
    bool seen_layer;
};

static cairn_err
refuse(const struct reading *reading, cairn_err err, const char *key, const char *why)
{
    return cairn_refuse_file(reading->checkpoint, reading->source->path, err, "%s %s", key, why);
}

/* ---- names ---- */

static cairn_err
note_key(struct reading *reading, const struct cairn_megatron_name *name)
{
    struct cairn_megatron_state *state = reading->state;
    char text[CAIRN_NAME_BYTES_MAX];
    bool first = reading->chunk == 0 && reading->rank->pp == 0;
    char class = name->has_layer ? 'L' : first && !reading->seen_layer ? 'B' : 'A';

    if (reading->rank->tp != 0 || reading->rank->ep != 0 ||
        (name->has_expert && name->expert != 0) || !cairn_megatron_name_print(name, true, text))
        return CAIRN_OK;
    return fprintf(state->keys, "%c %s\n", class, text) > 0 ? CAIRN_OK : CAIRN_NOMEM;
}

/* A key of the state dict with both numbers made global. */
static cairn_err
name_of(struct reading *reading, const struct cairn_pickle_node *key,
        struct cairn_megatron_name *name, char canonical[CAIRN_NAME_BYTES_MAX])
{
    const struct cairn_megatron_state *state = reading->state;
    char text[CAIRN_NAME_BYTES_MAX];

    if (!cairn_pickle_copy_text(key, text, sizeof(text)) || !cairn_megatron_name_parse(text, name))
        return refuse(
            reading, CAIRN_CORRUPT, "a key of the model",
            "is not a text of at most 255 bytes with numbers of layers and experts in it");
    if (name->has_layer) {
        name->layer += state->first_layer[reading->chunk * state->sizes.pp + reading->rank->pp];
        reading->seen_layer = true;
    }
    if (name->has_expert)
        name->expert += reading->rank->ep * reading->local_experts;
    return cairn_megatron_name_print(name, false, canonical)
               ? CAIRN_OK
               : refuse(reading, CAIRN_VERSION, text, "its name is too long with global numbers");
}

/* Experts that this rank has of a layer. */
static uint32_t
count_experts(const struct cairn_pickle_node *model)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < model->count; i++) {
        struct cairn_megatron_name name;
        char text[CAIRN_NAME_BYTES_MAX];

        if (cairn_pickle_copy_text(model->items[2 * i], text, sizeof(text)) &&
            cairn_megatron_name_parse(text, &name) && name.has_expert && name.expert >= count)
            count = name.expert + 1;
    }
    return count;
}

/* ---- how a tensor is split ---- */

/* linear_fc1 of a gated linear unit has twice the rows that linear_fc2 has columns. */
static cairn_err
find_glu(struct reading *reading, const struct cairn_pickle_node *model, const char *key,
         const struct cairn_torch_tensor *first)
{
    struct cairn_megatron_state *state = reading->state;
    const struct cairn_torch_tensor *second;
    char other[CAIRN_NAME_BYTES_MAX], *at;

    if (state->glu_known)
        return CAIRN_OK;
    (void)snprintf(other, sizeof(other), "%s", key);
    at = strstr(other, "linear_fc1.");
    at[strlen("linear_fc")] = '2';
    at = strstr(at, "bias");
    if (at) { /* "bias3" becomes "weight3" */
        char number[16];

        (void)snprintf(number, sizeof(number), "%s", at + strlen("bias"));
        (void)snprintf(at, sizeof(other) - (size_t)(at - other), "weight%s", number);
    }
    second = cairn_torch_source_tensor(reading->source, cairn_pickle_get(model, other));
    if (!second || second->view.dims != 2 || first->view.dims == 0)
        return refuse(reading, CAIRN_CORRUPT, key, "has no linear_fc2 beside it");
    state->glu_known = true;
    state->glu = first->view.shape[0] == 2 * second->view.shape[1];
    return CAIRN_OK;
}

/* The true rows of the vocabulary, where args say them and they fit. */
static cairn_err
find_vocabulary(struct reading *reading, uint64_t padded)
{
    struct cairn_megatron_state *state = reading->state;
    uint64_t multiple = state->args.vocabulary_multiple * state->sizes.tp;
    uint64_t rows = state->args.vocabulary;

    if (state->vocabulary_said)
        return CAIRN_OK;
    state->vocabulary_said = true;
    if (rows > 0 && rows <= padded && padded - rows < multiple) {
        state->vocabulary = rows;
        return CAIRN_OK;
    }
    return cairn_checkpoint_warn(reading->checkpoint,
                                 "args do not say the true size of the vocabulary, so its %" PRIu64
                                 " rows are kept with what pads them",
                                 padded);
}

static cairn_err
split_of(struct reading *reading, const struct cairn_pickle_node *model, const char *key,
         const struct cairn_torch_tensor *tensor, const struct cairn_megatron_name *name,
         struct cairn_megatron_part *part)
{
    const struct cairn_megatron_state *state = reading->state;
    const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(part->name);
    cairn_err err = CAIRN_OK;

    part->split = rule ? rule->split : CAIRN_MEGATRON_REPLICATED;
    part->buffer = rule && rule->buffer;
    part->expert = name->has_expert && state->sizes.ep > 1;
    part->count = name->has_expert ? state->sizes.etp : state->sizes.tp;
    part->index = reading->rank->tp % part->count;
    if (part->split == CAIRN_MEGATRON_UNREADABLE)
        return refuse(reading, CAIRN_VERSION, key,
                      "packs all experts into one transposed matrix, which is not read; save the "
                      "checkpoint with --moe-use-legacy-grouped-gemm off");
    if (strstr(part->name, ".linear_fc1.") && part->split == CAIRN_MEGATRON_ROWS && part->count > 1)
        err = find_glu(reading, model, key, tensor);
    if (!err && strstr(part->name, ".linear_fc1.") && part->split == CAIRN_MEGATRON_ROWS &&
        state->glu)
        part->split = CAIRN_MEGATRON_HALVES;
    if (!err && part->split == CAIRN_MEGATRON_VOCABULARY)
        err = find_vocabulary(reading, tensor->view.dims ? tensor->view.shape[0] * part->count : 0);
    if (err)
        return err;
    part->dims = tensor->view.dims;
    memcpy(part->shape, tensor->view.shape, sizeof(part->shape));
    if (!cairn_megatron_part_join(part, state->vocabulary))
        return refuse(reading, CAIRN_CORRUPT, key,
                      "has dimensions that tensor parallelism cannot split");
    return CAIRN_OK;
}

/* With tied embeddings the last stage has a copy, and both are in buckets of their own. */
static void
tie(const struct reading *reading, struct cairn_megatron_part *part)
{
    const struct cairn_megatron_state *state = reading->state;
    uint32_t last = state->sizes.pp - 1;
    bool first_stage = reading->chunk == 0 && reading->rank->pp == 0;
    bool last_stage = reading->chunk == state->vpp - 1 && reading->rank->pp == last;

    if (!state->args.tied || state->sizes.pp == 1)
        return;
    if (first_stage && strcmp(part->name, CAIRN_MEGATRON_EMBEDDING) == 0)
        part->shared_bucket = true;
    if (last_stage && strcmp(part->name, CAIRN_MEGATRON_OUTPUT) == 0) {
        part->shared_bucket = true;
        (void)snprintf(part->name, sizeof(part->name), "%s", CAIRN_MEGATRON_EMBEDDING);
    }
}

static cairn_err
next_part(struct cairn_megatron_state *state, struct cairn_megatron_part **part)
{
    if (!cairn_array_grow(&state->parts, state->part_count, sizeof(*state->parts)))
        return CAIRN_NOMEM;
    *part = &state->parts[state->part_count++];
    memset(*part, 0, sizeof(**part));
    return CAIRN_OK;
}

static cairn_err
read_tensor(struct reading *reading, const struct cairn_pickle_node *model, const char *key,
            const struct cairn_torch_tensor *tensor, const struct cairn_megatron_name *name,
            const char *canonical)
{
    const struct cairn_torch_view *view = &tensor->view;
    struct cairn_megatron_part *part;
    uint64_t strides[CAIRN_DIMS_MAX];
    cairn_err err = next_part(reading->state, &part);

    if (err)
        return err;
    if (view->dtype->dtype == 0 || view->conjugate || view->negate)
        return refuse(reading, CAIRN_VERSION, key, "is of a dtype that is not converted");
    memcpy(part->name, canonical, strlen(canonical) + 1);
    part->dtype = view->dtype->dtype;
    part->chunk = reading->chunk;
    err = split_of(reading, model, key, tensor, name, part);
    if (err)
        return err;
    tie(reading, part);
    cairn_torch_view_strides(view, strides);
    err = cairn_megatron_add_part(reading->checkpoint, part, part->name,
                                  part->buffer ? CAIRN_BUFFER : CAIRN_PARAM, part->dtype,
                                  reading->source->container, tensor->at, strides);
    if (!err) /* the tree is this source's own to change, only its walkers have no need to */
        cairn_torch_carry_out(&reading->source->torch.tree, tensor->node, "tensor", part->name);
    return err;
}

/* State that a module keeps, such as the history of FP8 scales: of tensor-parallel rank 0. */
static cairn_err
read_extra(struct reading *reading, struct cairn_pickle_node *node, const char *canonical)
{
    const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(reading->source, node);
    char name[CAIRN_NAME_BYTES_MAX + 32];
    cairn_err err;

    if (node->kind == CAIRN_PICKLE_NONE)
        return CAIRN_OK;
    (void)snprintf(name, sizeof(name), CAIRN_MEGATRON_EXTRA "%s%s", canonical,
                   tensor ? "" : ".pickle");
    if (strlen(name) >= CAIRN_NAME_BYTES_MAX)
        return refuse(reading, CAIRN_VERSION, canonical, "its name is too long to be carried");
    if (cairn_layout_tensor_find(reading->checkpoint->layout, name) != UINT32_MAX) {
        if (tensor)
            cairn_torch_carry_out(&reading->source->torch.tree, node, "tensor", name);
        return CAIRN_OK;
    }
    if (tensor)
        return cairn_torch_source_add(reading->checkpoint, reading->source, tensor, name,
                                      CAIRN_BUFFER);
    err = cairn_opaque_add(reading->checkpoint, name, &reading->source->torch.tree, node);
    return err ? refuse(reading, err, canonical, "cannot be carried") : CAIRN_OK;
}

static cairn_err
read_chunk(struct reading *reading, const struct cairn_pickle_node *model)
{
    reading->local_experts = count_experts(model);
    reading->seen_layer = false;
    for (uint32_t i = 0; i < model->count; i++) {
        struct cairn_pickle_node *value = model->items[2 * i + 1];
        char canonical[CAIRN_NAME_BYTES_MAX], key[CAIRN_NAME_BYTES_MAX];
        struct cairn_megatron_name name;
        const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(reading->source, value);
        cairn_err err = name_of(reading, model->items[2 * i], &name, canonical);

        if (!err)
            err = note_key(reading, &name);
        if (err)
            return err;
        (void)cairn_pickle_copy_text(model->items[2 * i], key, sizeof(key)); /* name_of has */
        if (cairn_megatron_is_extra(key))
            err = read_extra(reading, value, canonical);
        else if (tensor)
            err = read_tensor(reading, model, key, tensor, &name, canonical);
        else
            err = refuse(reading, CAIRN_CORRUPT, key, "is not a tensor");
        if (err)
            return err;
    }
    return CAIRN_OK;
}

/* ---- what is carried ---- */

/* All that is left of the object, without the model. */
static cairn_err
carry(struct reading *reading, struct cairn_pickle_node *root)
{
    const struct cairn_megatron_rank *rank = reading->rank;
    struct cairn_pickle *tree = &reading->source->torch.tree;
    struct cairn_pickle_node *nothing = cairn_pickle_none(tree);
    char scope[64] = CAIRN_MEGATRON_SCOPE, name[96];
    bool first = rank->tp == 0 && rank->pp == 0 && rank->ep == 0;

    for (uint32_t i = 0; i < reading->state->vpp; i++) {
        char key[16];

        cairn_megatron_chunk_key(reading->state->vpp, i, key);
        cairn_torch_carry_replace(root, key, nothing);
    }
    cairn_torch_carry_replace(root, CAIRN_MEGATRON_CARRIED, NULL);
    if (!first)
        (void)snprintf(scope, sizeof(scope),
                       "rank%" PRIu32 "_%" PRIu32 "_%" PRIu32 "/" CAIRN_MEGATRON_SCOPE, rank->tp,
                       rank->pp, rank->ep);
    (void)snprintf(name, sizeof(name), "%scommon.pickle", scope);
    return cairn_torch_source_carry_as(reading->checkpoint, reading->source, scope, name);
}

cairn_err
cairn_megatron_model_read(struct cairn_checkpoint *checkpoint, struct cairn_megatron_state *state,
                          struct cairn_torch_source *source, const struct cairn_megatron_rank *rank)
{
    struct reading reading = {
        .checkpoint = checkpoint, .state = state, .source = source, .rank = rank};
    struct cairn_pickle_node *root = source->torch.root;
    cairn_err err = CAIRN_OK;
    uint64_t iteration;

    if (checkpoint->step_known &&
        (!cairn_pickle_u64(cairn_pickle_get(root, "iteration"), &iteration) ||
         iteration != checkpoint->step))
        return refuse(&reading, CAIRN_CORRUPT, "iteration",
                      "is not that of the first rank's file, so they are of different checkpoints; "
                      "take all of one");
    state->part_count = 0;
    for (uint32_t i = 0; i < state->vpp && !err; i++) {
        const struct cairn_pickle_node *model =
            cairn_pickle_pairs(cairn_megatron_chunk(state, root, i));

        reading.chunk = i;
        err = model
                  ? read_chunk(&reading, model)
                  : refuse(&reading, CAIRN_CORRUPT, state->vpp > 1 ? "one of its models" : "model",
                           "is missing, or no state dict");
    }
    if (!err)
        err = cairn_torch_carried_take(checkpoint, source, CAIRN_MEGATRON_CARRIED, NULL);
    if (!err)
        err = cairn_megatron_plain_read(checkpoint, state, source,
                                        cairn_pickle_get(root, "optimizer"));
    return err ? err : carry(&reading, root);
}
