/*
 * tools/convert/maps/instance.c - one rule applied to the tensors that it is about: all are there,
 * their shapes give the sizes, the sizes give the targets' shapes, and the boxes of each part
 * become pieces.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/maps/instance.h"
#include "snapshot/box.h"
#include "tools/convert/maps/sizes.h"

enum { STACKED_MAX = 1 << 20 };

/* ---- gathering ---- */

/* The only symbol in the names of one side that those of the other lack. */
static uint32_t
lone_capture(const struct cairn_map_side *side, const struct cairn_map_side *other)
{
    const struct cairn_map_name *name = &side->tensors[0].name;

    for (uint32_t i = 0; i < name->capture_count; i++)
        if (!cairn_map_name_has(&other->tensors[0].name, name->captures[i]))
            return name->captures[i];
    return CAIRN_MAP_NO_SYMBOL;
}

static cairn_err
say_missing(struct cairn_map_instance *instance, const struct cairn_map_name *pattern,
            uint32_t there)
{
    char missing[CAIRN_NAME_BYTES_MAX];

    if (!cairn_map_name_make(pattern, instance->key, instance->captures, missing))
        (void)strcpy(missing, pattern->text);
    return cairn_refuse(instance->stage->checkpoint, CAIRN_CORRUPT,
                        "%s is there, but %s, which belongs to it by the map (%s, line %" PRIu32
                        "), is missing; are files of the checkpoint missing?",
                        cairn_layout_tensor(instance->stage->from, there)->name, missing,
                        instance->rule->file, instance->rule->line);
}

/* Counts how many there are along the capture of the source alone. */
static void
count_stack(struct cairn_map_instance *instance)
{
    instance->stack = 1;
    if (instance->gathered == CAIRN_MAP_NO_SYMBOL)
        return;
    for (instance->stack = 0; instance->stack < STACKED_MAX; instance->stack++) {
        instance->captures[instance->gathered] = instance->stack;
        if (cairn_map_source_find(instance->stage, &instance->source->tensors[0].name,
                                  instance->key, instance->captures) == UINT32_MAX)
            break;
    }
}

static cairn_err
gather(struct cairn_map_instance *instance, uint32_t first)
{
    struct cairn_map_stage *stage = instance->stage;
    uint64_t last = 0;

    if (instance->gathered != CAIRN_MAP_NO_SYMBOL)
        last = instance->captures[instance->gathered];
    count_stack(instance);
    if (last >= instance->stack) { /* a gap: what follows must not be lost */
        instance->captures[instance->gathered] = instance->stack;
        return say_missing(instance, &instance->source->tensors[0].name, first);
    }
    instance->sources =
        malloc((size_t)instance->source->count * instance->stack * sizeof(*instance->sources));
    if (!instance->sources)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < instance->source->count; i++)
        for (uint32_t e = 0; e < instance->stack; e++) {
            uint32_t *found = &instance->sources[i * instance->stack + e];

            if (instance->gathered != CAIRN_MAP_NO_SYMBOL)
                instance->captures[instance->gathered] = e;
            *found = cairn_map_source_find(stage, &instance->source->tensors[i].name, instance->key,
                                           instance->captures);
            if (*found == UINT32_MAX)
                return say_missing(instance, &instance->source->tensors[i].name, first);
            if (stage->used[*found])
                return cairn_refuse(stage->checkpoint, CAIRN_CORRUPT,
                                    "two rules of the map match tensor %s (%s, line %" PRIu32
                                    " is the second)",
                                    cairn_layout_tensor(stage->from, *found)->name,
                                    instance->rule->file, instance->rule->line);
        }
    return CAIRN_OK;
}

/* Parts of one tensor have one type. */
static cairn_err
check_alike(const struct cairn_map_instance *instance)
{
    const struct cairn_layout *from = instance->stage->from;
    const struct cairn_tensor *first = cairn_layout_tensor(from, instance->sources[0]);

    for (uint32_t i = 1; i < instance->source->count * instance->stack; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(from, instance->sources[i]);

        if (tensor->dtype != first->dtype || tensor->kind != first->kind)
            return cairn_complain(
                instance->stage->checkpoint->complaint, CAIRN_INVAL,
                "%s: has type %s and %s type %s; parts that the map joins (%s, line %" PRIu32
                ") must have one type",
                first->name, cairn_dtype_name(first->dtype), tensor->name,
                cairn_dtype_name(tensor->dtype), instance->rule->file, instance->rule->line);
    }
    return CAIRN_OK;
}

static bool
all_aliases(const struct cairn_map_instance *instance)
{
    for (uint32_t i = 0; i < instance->source->count * instance->stack; i++)
        if (cairn_checkpoint_past_alias(instance->stage->checkpoint, instance->sources[i]) ==
            instance->sources[i])
            return false;
    return true;
}

/* Whether the optimizer keeps one number for the whole parameter. */
static bool
is_scalar(const struct cairn_tensor *tensor)
{
    return tensor->kind == CAIRN_OPTIMIZER &&
           (tensor->dims == 0 || (tensor->dims == 1 && tensor->shape[0] == 1));
}

static bool
all_scalars(const struct cairn_map_instance *instance)
{
    for (uint32_t i = 0; i < instance->source->count * instance->stack; i++)
        if (!is_scalar(cairn_layout_tensor(instance->stage->from, instance->sources[i])))
            return false;
    return true;
}

/* ---- targets ---- */

/* Whether the pieces in `scratch` are those of a tensor that was made. */
static bool
same_pieces(const struct cairn_map_stage *stage, uint32_t tensor)
{
    bool last = tensor + 1 == cairn_layout_tensor_count(stage->to);
    size_t begin = stage->piece_first[tensor];
    size_t end = last ? cairn_layout_piece_count(stage->to) : stage->piece_first[tensor + 1];

    if (end - begin != stage->scratch.count)
        return false;
    for (size_t i = begin; i < end; i++) {
        struct cairn_piece piece = stage->scratch.pieces[i - begin];

        piece.tensor = tensor;
        if (memcmp(&piece, cairn_layout_piece(stage->to, i), sizeof(piece)) != 0)
            return false;
    }
    return true;
}

/* What a target tensor of aliases ties to: what its part's original became, if that is equal. */
static uint32_t
alias_of(const struct cairn_map_instance *instance, uint32_t ordinal, uint32_t dims,
         const uint64_t *shape)
{
    const struct cairn_map_stage *stage = instance->stage;
    uint32_t original = cairn_checkpoint_past_alias(stage->checkpoint, instance->sources[0]);
    uint32_t candidate;
    const struct cairn_tensor *like = cairn_layout_tensor(stage->from, instance->sources[0]);
    const struct cairn_tensor *made;

    if (!all_aliases(instance) || ordinal >= stage->target_count[original])
        return UINT32_MAX;
    candidate = stage->target_first[original] + ordinal;
    made = cairn_layout_tensor(stage->to, candidate);
    if (!cairn_shape_equal(made->dims, made->shape, dims, shape) || made->dtype != like->dtype)
        return UINT32_MAX;
    return same_pieces(stage, candidate) ? candidate : UINT32_MAX;
}

static cairn_err
add_target(struct cairn_map_instance *instance, const struct cairn_map_tensor *target,
           uint32_t *ordinal, uint32_t dims, const uint64_t *shape)
{
    struct cairn_map_stage *stage = instance->stage;
    const struct cairn_tensor *like = cairn_layout_tensor(stage->from, instance->sources[0]);
    char name[CAIRN_NAME_BYTES_MAX];

    if (!cairn_map_name_make(&target->name, instance->key, instance->captures, name))
        return cairn_complain(stage->checkpoint->complaint, CAIRN_INVAL,
                              "%s: its new name has more than %d bytes", like->name,
                              CAIRN_NAME_BYTES_MAX - 1);
    return cairn_map_target_add(stage, name, like, dims, shape,
                                alias_of(instance, (*ordinal)++, dims, shape));
}

/* The shape of a target tensor: padded where the padded length is known. */
static cairn_err
shape_target(const struct cairn_map_instance *instance, const struct cairn_map_tensor *target,
             uint64_t *shape)
{
    for (uint32_t d = 0; d < target->dims; d++) {
        const struct cairn_map_dim *dim = &target->dim[d];
        uint64_t padded;

        if (!cairn_map_length(dim, instance->values, &shape[d]))
            return cairn_complain(instance->stage->checkpoint->complaint, CAIRN_INVAL,
                                  "%s: a dimension would be too long (%s, line %" PRIu32 ")",
                                  target->name.text, instance->rule->file, instance->rule->line);
        if (dim->padded_to == CAIRN_MAP_NONE ||
            instance->stage->settings.values[dim->padded_to] == 0)
            continue;
        padded = instance->stage->settings.values[dim->padded_to];
        if (padded < shape[d])
            return cairn_complain(
                instance->stage->checkpoint->complaint, CAIRN_INVAL,
                "%s: needs %" PRIu64 " in dimension %" PRIu32 ", and %s is %" PRIu64
                " (%s, line %" PRIu32 "); give the right number with --set",
                target->name.text, shape[d], d, instance->stage->map->symbols[dim->padded_to].name,
                padded, instance->rule->file, instance->rule->line);
        shape[d] = padded;
    }
    return CAIRN_OK;
}

/* One target tensor: all its parts, from all source tensors that have parts. */
static cairn_err
make_target(struct cairn_map_instance *instance, uint32_t index, uint32_t *ordinal)
{
    const struct cairn_map_tensor *target = &instance->target->tensors[index];
    uint64_t shape[CAIRN_DIMS_MAX] = {0};
    cairn_err err;

    instance->stage->scratch.count = 0;
    err = shape_target(instance, target, shape);
    for (uint32_t part = 0; part < instance->rule->parts && !err; part++) {
        uint32_t from = instance->source->count > 1 ? part : 0;

        if (instance->target->count > 1 && part != index)
            continue;
        for (uint32_t e = 0; e < instance->stack && !err; e++) {
            if (instance->gathered != CAIRN_MAP_NO_SYMBOL)
                instance->captures[instance->gathered] = e;
            err = cairn_map_part_add(instance, part, instance->sources[from * instance->stack + e],
                                     target);
        }
    }
    if (!err)
        err = cairn_map_padding_add(instance, target, shape);
    if (err)
        return err;
    cairn_map_places_note(instance, target->dims);
    return add_target(instance, target, ordinal, target->dims, shape);
}

/* Names alone change: the pieces stay what they are. A scalar goes to every target; those of
 * several parts are replicas of one. */
static cairn_err
make_copy(struct cairn_map_instance *instance, uint32_t index, uint32_t *ordinal)
{
    struct cairn_map_stage *stage = instance->stage;
    const struct cairn_tensor *like = cairn_layout_tensor(stage->from, instance->sources[0]);
    cairn_err err = CAIRN_OK;

    stage->scratch.count = 0;
    for (uint32_t i = 0; i < instance->source->count * instance->stack && !err; i++)
        err = cairn_map_scratch_copy(stage, instance->sources[i]);
    return err ? err
               : add_target(instance, &instance->target->tensors[index], ordinal, like->dims,
                            like->shape);
}

/* A number is the whole model's: all tensors' shapes must agree on it. */
static void
keep_numbers(struct cairn_map_stage *stage, const uint64_t *values)
{
    for (uint32_t n = 0; n < stage->map->number_count; n++) {
        uint32_t symbol = stage->map->numbers[n].symbol;

        if (stage->settings.values[symbol] == 0)
            stage->settings.values[symbol] = values[symbol];
    }
}

/* The sizes of all axes, from the sources' shapes. */
static cairn_err
find_sizes(struct cairn_map_instance *instance)
{
    uint32_t count = instance->source->count * instance->stack;
    struct cairn_map_shape *shapes = malloc(count * sizeof(*shapes));
    cairn_err err;

    if (!shapes)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_tensor *tensor =
            cairn_layout_tensor(instance->stage->from, instance->sources[i]);

        shapes[i] = (struct cairn_map_shape){&instance->source->tensors[i / instance->stack],
                                             tensor->name, tensor->dims, tensor->shape};
    }
    if (instance->gathered != CAIRN_MAP_NO_SYMBOL)
        instance->values[instance->gathered] = instance->stack;
    err = cairn_map_sizes_find(instance->stage->map, instance->rule, shapes, count,
                               instance->values, instance->stage->checkpoint->complaint);
    if (!err)
        keep_numbers(instance->stage, instance->values);
    free(shapes);
    return err;
}

/* How many targets the sizes make of each pattern. */
static cairn_err
count_spread(const struct cairn_map_instance *instance, uint64_t *count)
{
    *count = instance->spread == CAIRN_MAP_NO_SYMBOL ? 1 : instance->values[instance->spread];
    if (*count <= STACKED_MAX)
        return CAIRN_OK;
    return cairn_complain(instance->stage->checkpoint->complaint, CAIRN_INVAL,
                          "%s: would become more than %d tensors",
                          cairn_layout_tensor(instance->stage->from, instance->sources[0])->name,
                          STACKED_MAX);
}

/* A scalar of stacked parts says nothing of their number; their parameter does. */
static cairn_err
spread_of_parameter(struct cairn_map_instance *instance, uint64_t *count)
{
    struct cairn_map_instance parameter = *instance;
    cairn_err err = CAIRN_OK;

    *count = 1;
    if (instance->spread == CAIRN_MAP_NO_SYMBOL)
        return CAIRN_OK;
    parameter.key = "";
    parameter.stack = 1;
    parameter.sources = malloc(instance->source->count * sizeof(*parameter.sources));
    if (!parameter.sources)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < instance->source->count && !err; i++) {
        parameter.sources[i] = cairn_map_source_find(
            instance->stage, &instance->source->tensors[i].name, "", instance->captures);
        if (parameter.sources[i] == UINT32_MAX)
            err = say_missing(&parameter, &instance->source->tensors[i].name, instance->sources[0]);
    }
    if (!err)
        err = find_sizes(&parameter);
    if (!err)
        err = count_spread(&parameter, count);
    free(parameter.sources);
    return err;
}

cairn_err
cairn_map_instance_make(struct cairn_map_stage *stage, const struct cairn_map_rule *rule,
                        const char *key, const uint64_t *captures, uint32_t first, bool aliases)
{
    struct cairn_map_instance instance = {.stage = stage,
                                          .rule = rule,
                                          .source = &rule->sides[stage->side],
                                          .target = &rule->sides[1 - stage->side],
                                          .key = key};
    uint32_t target_first = cairn_layout_tensor_count(stage->to), ordinal = 0;
    uint64_t spread_count = 1;
    bool copies;
    cairn_err err;

    memcpy(instance.captures, captures, sizeof(instance.captures));
    memcpy(instance.values, stage->settings.values, sizeof(instance.values));
    instance.gathered = lone_capture(instance.source, instance.target);
    instance.spread = lone_capture(instance.target, instance.source);
    err = gather(&instance, first);
    if (!err)
        err = check_alike(&instance);
    if (err || (!aliases && all_aliases(&instance))) {
        free(instance.sources);
        return err;
    }
    copies = !instance.source->tensors[0].shaped || all_scalars(&instance);
    if (!copies)
        err = find_sizes(&instance);
    if (!err)
        err = copies ? spread_of_parameter(&instance, &spread_count)
                     : count_spread(&instance, &spread_count);
    for (uint32_t k = 0; k < instance.target->count; k++)
        for (uint64_t c = 0; c < spread_count && !err; c++) {
            if (instance.spread != CAIRN_MAP_NO_SYMBOL)
                instance.captures[instance.spread] = c;
            err = copies ? make_copy(&instance, k, &ordinal) : make_target(&instance, k, &ordinal);
        }
    if (!err && !copies)
        err = cairn_map_places_check(&instance);
    for (uint32_t i = 0; !err && i < instance.source->count * instance.stack; i++) {
        stage->used[instance.sources[i]] = true;
        stage->target_first[instance.sources[i]] = target_first;
        stage->target_count[instance.sources[i]] = ordinal;
        stage->report->mapped++;
    }
    stage->report->made += ordinal;
    free(instance.sources);
    return err;
}
