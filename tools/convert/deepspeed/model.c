/* tools/convert/deepspeed/model.c - a rank's model_states: what they say of the job (ranks, step,
 * groups of parameters, how tensor parallelism cuts them), the module, and all that is not an
 * optimizer's. */
#include "tools/convert/deepspeed/make.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/core/name_set.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/state/param_groups.h"

struct reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_deepspeed_state *state;
    struct cairn_torch_source source;
    uint32_t rank;
};

static cairn_err
refuse(const struct reading *reading, const char *why)
{
    return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_CORRUPT, "%s", why);
}

static cairn_err
refuse_tensor(const struct reading *reading, const char *why)
{
    return cairn_refuse_file(
        reading->checkpoint, reading->source.path, CAIRN_VERSION,
        "is of a job with tensor parallelism, and %s; merge it with the framework that wrote it",
        why);
}

/* ---- the job ---- */

/* How tensor parallelism cut the parameters, where it alone made the parts. */
static cairn_err
read_cuts(struct reading *reading, const struct cairn_pickle_node *root, uint64_t tensor)
{
    const struct cairn_pickle_node *info = cairn_pickle_get(root, "universal_checkpoint_info");
    struct cairn_deepspeed_state *state = reading->state;
    char name[CAIRN_NAME_BYTES_MAX];
    const char *why = NULL;
    cairn_err err;

    if (!info || info->kind == CAIRN_PICKLE_NONE)
        return refuse_tensor(
            reading,
            "does not say how its parameters are cut (it has no universal_checkpoint_info)");
    if (state->layers.count > 0)
        return refuse_tensor(reading,
                             "with DeepSpeed's MoE layers too, which are not read together");
    if (tensor != state->part_count || state->has_layers)
        return refuse_tensor(reading, "with pipeline parallelism too, which is not read together");
    state->cut = true;
    err = cairn_deepspeed_cuts_read(info, &state->cuts, &why);
    if (err)
        return err == CAIRN_VERSION ? refuse_tensor(reading, why) : err;
    if (!cairn_deepspeed_cuts_agree(&state->cuts, info, state->part_count, state->part, name))
        return cairn_refuse_file(
            reading->checkpoint, reading->source.path, CAIRN_VERSION,
            "affine_map says of %s that it is cut otherwise than in equal parts along one "
            "dimension, which is not read; merge it with the framework that wrote it",
            name);
    return CAIRN_OK;
}

/* As many parts as the job had, and how they were made. */
static cairn_err
check_degrees(struct reading *reading, const struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *dimensions =
        cairn_pickle_get(root, "checkpoint_parallel_dimensions");
    const struct cairn_deepspeed_state *state = reading->state;
    uint64_t degree, tensor;

    if (cairn_pickle_u64(cairn_pickle_get(root, "mp_world_size"), &degree) &&
        degree != state->part_count)
        return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_CORRUPT,
                                 "is of a job with model parallelism of %" PRIu64
                                 ", and there are model_states of %" PRIu32
                                 "; copy the others from the nodes that wrote them",
                                 degree, state->part_count);
    if (!cairn_pickle_u64(cairn_pickle_get(dimensions, "tp_degree"), &tensor))
        tensor = state->has_layers ? 1 : state->part_count;
    return tensor == 1 ? CAIRN_OK : read_cuts(reading, root, tensor);
}

/* Experts that DeepSpeed itself spread over ranks: their parameters have the same names on each. */
static cairn_err
check_experts(const struct reading *reading, const struct cairn_pickle_node *root)
{
    static const char *const keys[] = {"ds_autoep_layers", "autoep_layers", "folding"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        const struct cairn_pickle_node *said = cairn_pickle_get(root, keys[i]);

        if (said && said->kind != CAIRN_PICKLE_NONE &&
            !(said->kind == CAIRN_PICKLE_LIST && said->count == 0))
            return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_VERSION,
                                     "is of a job with expert parallelism (%s), which is not read; "
                                     "merge it with the framework that wrote it",
                                     keys[i]);
    }
    return CAIRN_OK;
}

static cairn_err
refuse_cut(const struct reading *reading, const char *path, const char *why)
{
    return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_VERSION,
                             "how %s is cut by tensor parallelism: %s", path, why);
}

static cairn_err
cut_parameters(struct reading *reading)
{
    struct cairn_deepspeed_state *state = reading->state;

    state->cut_of = calloc((size_t)state->groups.parameter_count + 1, sizeof(*state->cut_of));
    if (!state->cut_of)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < state->groups.parameter_count; i++) {
        const struct cairn_deepspeed_parameter *parameter = &state->groups.parameters[i];
        const char *why =
            cairn_deepspeed_cut(&state->cuts, parameter->path, parameter->dims, parameter->shape,
                                state->part_count, state->part, &state->cut_of[i]);

        if (why)
            return refuse_cut(reading, parameter->path, why);
    }
    return CAIRN_OK;
}

/* Of a part's first rank: ranks, step, groups, cuts, into reading->state. CAIRN_CORRUPT,
 * CAIRN_VERSION for what is not read, CAIRN_NOMEM; complained about. */
static cairn_err
read_facts(struct reading *reading, const struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *shapes = cairn_pickle_get(root, "param_shapes");
    struct cairn_deepspeed_state *state = reading->state;
    const char *why = NULL;
    uint64_t ranks, step;
    cairn_err err;

    if (!cairn_pickle_pairs(root))
        return refuse(reading, "it is not a dict, as DeepSpeed's model_states are");
    if (!cairn_pickle_u64(cairn_pickle_get(root, "dp_world_size"), &ranks) || ranks == 0 ||
        ranks > UINT32_MAX)
        return refuse(reading, "it has no dp_world_size");
    err = check_degrees(reading, root);
    if (!err)
        err = check_experts(reading, root);
    if (err)
        return err;
    state->ranks = (uint32_t)ranks;
    step = reading->checkpoint->step;
    reading->checkpoint->step_known =
        cairn_pickle_u64(cairn_pickle_get(root, "global_steps"), &reading->checkpoint->step);
    if (state->part > 0 && step != reading->checkpoint->step)
        return refuse(reading, "its global_steps is not that of mp_rank_00's file, so they are of "
                               "different checkpoints; take all of one");
    (void)cairn_pickle_copy_text(cairn_pickle_get(root, "ds_version"), state->version,
                                 sizeof(state->version));
    state->has_groups = shapes && shapes->kind != CAIRN_PICKLE_NONE;
    if (!state->has_groups)
        return CAIRN_OK;
    err = cairn_deepspeed_groups_read(shapes, &state->groups, &why);
    if (err)
        return err == CAIRN_CORRUPT ? refuse(reading, why) : err;
    err = cairn_deepspeed_experts_in_model(reading->checkpoint, state, root, reading->source.path);
    return !err && state->cut ? cut_parameters(reading) : err;
}

/* Of another rank: whether its step is the same. CAIRN_CORRUPT, complained about. */
static cairn_err
compare_facts(const struct reading *reading, const struct cairn_pickle_node *root)
{
    uint64_t ranks, step;

    if (!cairn_pickle_u64(cairn_pickle_get(root, "dp_world_size"), &ranks) ||
        ranks != reading->state->ranks)
        return refuse(reading, "its dp_world_size is not that of rank 0's file");
    if (reading->checkpoint->step_known &&
        (!cairn_pickle_u64(cairn_pickle_get(root, "global_steps"), &step) ||
         step != reading->checkpoint->step))
        return refuse(reading, "its global_steps is not that of rank 0's file, so they are of "
                               "different checkpoints; take all of one");
    return CAIRN_OK;
}

/* ---- the module ---- */

/* The tensor that a node of the module was in the file, carried out or not. */
static const struct cairn_torch_tensor *
tensor_at(const struct reading *reading, const struct cairn_pickle_node *node)
{
    const struct cairn_torch_source *source = &reading->source;

    if (!node || node->index >= source->node_count || source->tensor_of[node->index] == 0)
        return NULL;
    return &source->torch.tensors[source->tensor_of[node->index] - 1];
}

/* Whether a tensor of the module is what shared_params says another one is. */
static bool
is_shared(const struct reading *reading, const struct cairn_pickle_node *root, const char *path,
          const struct cairn_torch_tensor *tensor)
{
    const struct cairn_pickle_node *stored =
        cairn_pickle_get(cairn_pickle_get(root, "shared_params"), path);
    const struct cairn_torch_tensor *of;
    char name[CAIRN_NAME_BYTES_MAX];

    if (!cairn_pickle_copy_text(stored, name, sizeof(name)))
        return false;
    of = tensor_at(reading, cairn_pickle_get(cairn_pickle_get(root, "module"), name));
    return of && of->at == tensor->at && of->bytes == tensor->bytes;
}

/* ZeRO 3 leaves nothing of a parameter in the module but its name and dtype. */
static bool
is_placeholder(const struct reading *reading, const struct cairn_torch_tensor *tensor, bool buffer)
{
    return reading->state->stage3 && !buffer && tensor->view.dims == 1 &&
           tensor->view.shape[0] == 0;
}

/* One tensor object under a second name of the module. */
static cairn_err
add_twin(struct reading *reading, const struct cairn_pickle_node *node, const char *name)
{
    char first[CAIRN_NAME_BYTES_MAX];
    uint32_t of;

    if (reading->rank > 0 || !cairn_pickle_tensor_name(node, first))
        return CAIRN_OK;
    of = cairn_layout_tensor_find(reading->checkpoint->layout, first);
    if (of == UINT32_MAX || strcmp(first, name) == 0)
        return CAIRN_OK;
    return cairn_checkpoint_add_alias(reading->checkpoint, name, of);
}

/* Whether the first part, which alone has shared names, ties this name to another. */
static bool
is_tied(const struct reading *reading, const char *name)
{
    const struct cairn_checkpoint *checkpoint = reading->checkpoint;
    uint32_t tensor = reading->state->cut && reading->state->first
                          ? cairn_layout_tensor_find(checkpoint->layout, name)
                          : UINT32_MAX;

    return cairn_checkpoint_past_alias(checkpoint, tensor) != tensor;
}

/* A tensor of the module, whole or a part of it. */
static cairn_err
add_tensor(struct reading *reading, const struct cairn_torch_tensor *tensor, const char *path,
           enum cairn_kind kind)
{
    const struct cairn_torch_view *view = &tensor->view;
    const char *name = cairn_deepspeed_canonical(path), *why;
    uint64_t strides[CAIRN_DIMS_MAX];
    struct cairn_deepspeed_cut cut;
    uint32_t index = 0;
    cairn_err err;

    if (is_tied(reading, name)) {
        /* the tree is this source's own to change, as below */
        cairn_torch_carry_out(&reading->source.torch.tree, tensor->node, "tensor", name);
        return CAIRN_OK;
    }
    if (!reading->state->cut || kind == CAIRN_BUFFER || view->dtype->dtype == 0 ||
        view->conjugate || view->negate)
        return cairn_torch_source_add(reading->checkpoint, &reading->source, tensor, name, kind);
    why = cairn_deepspeed_cut(&reading->state->cuts, path, view->dims, view->shape,
                              reading->state->part_count, reading->state->part, &cut);
    if (why)
        return refuse_cut(reading, path, why);
    cairn_torch_view_strides(view, strides);
    err = cairn_checkpoint_add_tensor(reading->checkpoint, name, view->dtype->dtype, kind,
                                      view->dims, cut.shape, &index);
    for (uint32_t b = 0; b < cut.box_count && !err; b++)
        err = cairn_checkpoint_add_box(
            reading->checkpoint, index, reading->source.container, cut.boxes[b].start,
            cut.boxes[b].extent, tensor->at + (view->dims > 0 ? cut.boxes[b].row * strides[0] : 0),
            strides);
    if (!err) /* the tree is this source's own to change, only its walkers have no need to */
        cairn_torch_carry_out(&reading->source.torch.tree, tensor->node, "tensor", name);
    return err;
}

static cairn_err
read_module(struct reading *reading, struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(cairn_pickle_get(root, "module"));
    struct cairn_pickle *tree = &reading->source.torch.tree;
    struct cairn_name_set buffers = {0};
    uint32_t seen_buffers = 0;
    cairn_err err;

    err = cairn_deepspeed_buffer_names(root, &buffers);
    cairn_name_set_sort(&buffers);
    for (uint32_t i = 0; !err && pairs && i < pairs->count; i++) {
        struct cairn_pickle_node *node = pairs->items[2 * i + 1];
        const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(&reading->source, node);
        char path[CAIRN_NAME_BYTES_MAX];
        bool buffer;

        if (!tensor_at(reading, node))
            continue; /* extra state of a module, which is carried as it is */
        if (!cairn_pickle_copy_text(pairs->items[2 * i], path, sizeof(path)) || !path[0]) {
            err = refuse(reading, "a tensor of the module has no name of at most 255 bytes");
            break;
        }
        if (!tensor) {
            err = add_twin(reading, node, cairn_deepspeed_canonical(path));
            continue;
        }
        buffer = cairn_name_set_has(&buffers, path);
        seen_buffers += buffer;
        if (is_placeholder(reading, tensor, buffer))
            cairn_torch_carry_out(tree, node, "empty", tensor->view.dtype->name);
        else if (!buffer && is_shared(reading, root, path, tensor))
            cairn_torch_carry_out(tree, node, "tensor", cairn_deepspeed_canonical(path));
        else if (reading->rank == 0)
            err = add_tensor(reading, tensor, path, buffer ? CAIRN_BUFFER : CAIRN_PARAM);
        else /* the first rank's is the job's; see the warning */
            cairn_torch_carry_out(tree, node, "tensor", cairn_deepspeed_canonical(path));
    }
    cairn_name_set_fini(&buffers);
    if (!err && reading->rank == 1 && seen_buffers > 0)
        err = cairn_checkpoint_warn(reading->checkpoint,
                                    "each rank has its own buffers; rank 0's are read");
    return err;
}

/* ---- frozen parameters ---- */

static cairn_err
add_fragment(struct reading *reading, struct cairn_pickle_node *node, const char *path,
             const struct cairn_pickle_node *size)
{
    struct cairn_deepspeed_parameter frozen = {0};
    const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(&reading->source, node);
    const char *name = cairn_deepspeed_canonical(path), *why;
    struct cairn_deepspeed_cut cut;
    uint64_t begin, end, at, part;
    uint32_t index = 0;
    cairn_err err;

    if (!tensor || !tensor->contiguous || tensor->view.dims != 1 ||
        !cairn_torch_read_size(size, frozen.shape, &frozen.dims))
        return refuse(reading, "a frozen parameter has no shape, or no flat part of it");
    if (!cairn_shape_bounded(frozen.dims, frozen.shape, INT64_MAX / 16, &frozen.elements))
        return refuse(reading, "a frozen parameter is too large");
    part = cairn_deepspeed_evenly(frozen.elements, reading->state->ranks);
    if (tensor->view.shape[0] != part)
        return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_CORRUPT,
                                 "frozen parameter %s has a part of %" PRIu64
                                 " elements, and its shape in %" PRIu32 " ranks makes %" PRIu64,
                                 path, tensor->view.shape[0], reading->state->ranks, part);
    cairn_deepspeed_part(&frozen, true, reading->state->ranks, reading->rank, 0, &begin, &end, &at);
    if (reading->state->cut) {
        why = cairn_deepspeed_cut(&reading->state->cuts, path, frozen.dims, frozen.shape,
                                  reading->state->part_count, reading->state->part, &cut);
        if (!why && memcmp(cut.shape, frozen.shape, frozen.dims * sizeof(*frozen.shape)) != 0)
            why = "it is frozen, and with ZeRO 3 only its first part could be read";
        if (why)
            return refuse_cut(reading, path, why);
    }
    err = cairn_checkpoint_add_tensor(reading->checkpoint, name, tensor->view.dtype->dtype,
                                      CAIRN_PARAM, frozen.dims, frozen.shape, &index);
    if (!err)
        err = cairn_checkpoint_add_flat(reading->checkpoint, index, reading->source.container, NULL,
                                        NULL, begin, end, tensor->at);
    if (!err)
        cairn_torch_carry_out(&reading->source.torch.tree, node, "fragment", name);
    return err;
}

/* ZeRO 2 saves frozen parameters whole, beside the module's; ZeRO 3 a part of each per rank. */
static cairn_err
read_frozen(struct reading *reading, struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *shapes = cairn_pickle_get(root, "frozen_param_shapes");
    const struct cairn_pickle_node *pairs =
        cairn_pickle_pairs(cairn_pickle_get(root, "frozen_param_fragments"));
    const struct cairn_pickle_node *sizes = cairn_pickle_pairs(shapes);
    struct cairn_deepspeed_expert expert;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; pairs && i < pairs->count && !err; i++) {
        struct cairn_pickle_node *node = pairs->items[2 * i + 1];
        const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(&reading->source, node);
        char path[CAIRN_NAME_BYTES_MAX];

        if (!cairn_pickle_copy_text(pairs->items[2 * i], path, sizeof(path)) || !sizes ||
            i >= sizes->count || !cairn_pickle_is_text(sizes->items[2 * i], path))
            return refuse(reading, "frozen_param_fragments does not fit frozen_param_shapes");
        if (cairn_deepspeed_expert_in(cairn_deepspeed_canonical(path), &expert))
            return cairn_refuse_file(
                reading->checkpoint, reading->source.path, CAIRN_VERSION,
                "%s is a frozen parameter of an expert; ZeRO 2 saves only the first rank's alone; "
                "save with exclude_frozen_parameters, or with ZeRO 1",
                path);
        if (reading->state->stage3)
            err = add_fragment(reading, node, path, sizes->items[2 * i + 1]);
        else if (tensor)
            err = add_tensor(reading, tensor, path, CAIRN_PARAM);
    }
    return err;
}

/* ---- tensor parallelism ---- */

/* Shapes of whole parameters for those of parts; a name that cannot be cut keeps its own. */
static struct cairn_pickle_node *
whole_shapes(struct cairn_deepspeed_state *state, struct cairn_pickle *tree,
             const struct cairn_pickle_node *shapes)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(shapes);
    struct cairn_torch_builder builder;
    struct cairn_pickle_node *made;

    cairn_torch_builder_init(&builder, tree);
    made = cairn_torch_ordered_dict(&builder);
    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        struct cairn_pickle_node *size = pairs->items[2 * i + 1];
        uint64_t shape[CAIRN_DIMS_MAX];
        struct cairn_deepspeed_cut cut;
        char path[CAIRN_NAME_BYTES_MAX];
        uint32_t dims = 0;

        if (cairn_pickle_copy_text(pairs->items[2 * i], path, sizeof(path)) &&
            cairn_torch_read_size(size, shape, &dims) &&
            !cairn_deepspeed_cut(&state->cuts, path, dims, shape, state->part_count, state->part,
                                 &cut))
            size = cairn_torch_size(&builder, cut.shape, dims);
        cairn_pickle_put(tree, made, pairs->items[2 * i], size);
    }
    return made;
}

static void
gather_groups(struct cairn_deepspeed_state *state, struct cairn_pickle *tree,
              struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *groups = cairn_pickle_get(root, "param_shapes");
    struct cairn_pickle_node *list;

    if (!cairn_pickle_is_list(groups))
        return;
    list = cairn_pickle_list(tree);
    for (uint32_t i = 0; i < groups->count; i++)
        cairn_pickle_append(tree, list, whole_shapes(state, tree, groups->items[i]));
    cairn_torch_carry_replace(root, "param_shapes", list);
}

/* The object becomes that of a job without tensor parallelism. Failures are the tree's. */
static void
gather_parts(struct cairn_deepspeed_state *state, struct cairn_pickle *tree,
             struct cairn_pickle_node *root)
{
    struct cairn_pickle_node *frozen = cairn_pickle_get(root, "frozen_param_shapes");

    gather_groups(state, tree, root);
    if (cairn_pickle_pairs(frozen))
        cairn_torch_carry_replace(root, "frozen_param_shapes", whole_shapes(state, tree, frozen));
    cairn_torch_carry_replace(root, "mp_world_size", cairn_pickle_int(tree, 1));
    cairn_torch_carry_replace(cairn_pickle_get(root, "checkpoint_parallel_dimensions"), "tp_degree",
                              cairn_pickle_int(tree, 1));
    cairn_torch_carry_replace(cairn_pickle_get(root, "universal_checkpoint_info"), "affine_map",
                              NULL);
}

/* Carries CAIRN_DEEPSPEED_VOCABULARY_ROWS where there is padding. */
static cairn_err
add_rows(struct cairn_checkpoint *checkpoint, const struct cairn_deepspeed_state *state)
{
    uint64_t rows = 0;

    for (uint32_t i = 0; i < state->groups.parameter_count; i++)
        rows = state->cut_of[i].padded_rows > rows ? state->cut_of[i].padded_rows : rows;
    return rows == 0 ? CAIRN_OK
                     : cairn_numbers_add(checkpoint, CAIRN_DEEPSPEED_VOCABULARY_ROWS, &rows, 1);
}

/* Adds to the checkpoint what an earlier conversion put there, which had no place. */
static cairn_err
take_carried(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source)
{
    struct cairn_pickle_node *carried =
        cairn_pickle_get(source->torch.root, CAIRN_DEEPSPEED_CARRIED);
    cairn_err err = cairn_torch_carried_take(checkpoint, source, CAIRN_DEEPSPEED_CARRIED,
                                             cairn_deepspeed_is_own);

    cairn_torch_carry_replace(carried, "opaque", NULL); /* found again by what it is */
    if (carried && (!cairn_pickle_pairs(carried) || cairn_pickle_pairs(carried)->count == 0))
        cairn_torch_carry_replace(source->torch.root, CAIRN_DEEPSPEED_CARRIED, NULL);
    return err;
}

/* A pattern for nothing was meant for something, which is then cut as what is in no pattern. */
static cairn_err
tell_unmet(const struct reading *reading)
{
    const char *unmet = reading->state->cut && reading->rank == 0 && reading->state->part == 0
                            ? cairn_deepspeed_patterns_unmet(&reading->state->cuts.patterns)
                            : NULL;

    return unmet
               ? cairn_checkpoint_warn(
                     reading->checkpoint,
                     "universal_checkpoint_info has the pattern %s, and no parameter has this name",
                     unmet)
               : CAIRN_OK;
}

cairn_err
cairn_deepspeed_model_read(struct cairn_checkpoint *checkpoint, struct cairn_deepspeed_state *state,
                           const char *path, uint32_t rank)
{
    struct reading reading = {.checkpoint = checkpoint, .state = state, .rank = rank};
    struct cairn_pickle_node *root;
    cairn_err err = cairn_torch_source_open(checkpoint, path, &reading.source);

    root = reading.source.torch.root;
    if (!err)
        err = rank == 0 ? read_facts(&reading, root) : compare_facts(&reading, root);
    if (!err)
        err = read_module(&reading, root);
    if (!err)
        err = read_frozen(&reading, root);
    if (!err)
        err = tell_unmet(&reading);
    if (!err && rank == 0 && state->part == 0)
        err = take_carried(checkpoint, &reading.source);
    if (!err && rank > 0)
        cairn_torch_carry_replace(root, CAIRN_DEEPSPEED_CARRIED, NULL);
    if (!err && state->layers.count > 0 && state->has_groups)
        err = cairn_deepspeed_experts_gather(checkpoint, state, &reading.source.torch.tree, root,
                                             path);
    if (!err && state->cut && rank == 0 && state->part == 0)
        err = add_rows(checkpoint, state);
    if (!err && state->cut)
        gather_parts(state, &reading.source.torch.tree, root);
    if (!err)
        cairn_deepspeed_set_ranks(&reading.source.torch.tree, root, "dp_world_size", 1);
    if (!err)
        err = cairn_deepspeed_carry(checkpoint, state, &reading.source, 0, rank);
    cairn_torch_source_close(&reading.source);
    return err;
}
