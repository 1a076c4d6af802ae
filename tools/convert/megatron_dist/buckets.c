/*
 * tools/convert/megatron_dist/buckets.c - the optimizer's state as Megatron-Core's distributed
 * optimizer holds it (dp_reshardable): flat buckets of parameters that no key names.
 *
 * A bucket is an array of one dimension with the key (here in two lines)
 *
 *   optimizer.distributed.dp_group_idx_<group>.gbuf_idx_<buffer>.dtype_<dtypes>.
 *   bucket_idx_<bucket>.<state>
 *
 * A group is a pair of tensor and pipeline rank.
 *
 * What is known of the order (Megatron-Core 0.15 and 0.16): a buffer has the parameters of one
 * dtype of a rank in the reverse order of the module, each from a multiple of 64 elements on. A
 * bucket ends behind a parameter, and its array has no padding at its end. The module's order is
 * that of the model's arrays in .metadata, layer by layer; how a parameter is cut among tensor
 * ranks is told by the chunks of its array. The chunks of a bucket begin and end where parameters
 * do, which is held against what was found.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/text.h"
#include "snapshot/box.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/torch/dtype.h"
#include "tools/convert/megatron_dist/mdist.h"

struct parameter {
    uint32_t entry;                          /* of the model's array */
    uint64_t numbers[CAIRN_MDIST_STARS_MAX]; /* which of the tensors in it */
    bool tied; /* the output layer of a last stage that shares the embedding */
};

/* Where numbers stand in an array's name: as one of its dimensions, or as themselves. */
struct place {
    uint32_t dimension[2]; /* of layer and expert; UINT32_MAX: none */
    uint64_t number[2];    /* where there is no dimension; UINT64_MAX: it has none at all */
};

struct finding {
    struct cairn_mdist_reading *reading;
    struct bucket *buckets;
    uint32_t bucket_count;
    struct place *places; /* [entry_count] */
    uint32_t *model;      /* entries of parameters, in order */
    uint32_t model_count;
    uint64_t layers, experts;
    struct parameter *parameters;
    size_t parameter_count;
};

/* Where a rank stands, by its numbers in the groups. */
struct rank {
    uint64_t tensor_rank, tensor_ranks;
    uint64_t stage, stages;
    uint64_t expert_begin, expert_end; /* which experts it has */
    bool dense, expert;                /* which kinds of parameters its buffers hold */
};

/* Complains that the order cannot be told; CAIRN_INVAL. */
static cairn_err
refuse(const struct finding *finding, const char *why)
{
    return cairn_refuse(
        finding->reading->checkpoint, CAIRN_INVAL,
        "the optimizer is dp_reshardable, and which parameter lies where is unknown: %s; load it "
        "with Megatron-Core and save it with --dist-ckpt-optim-fully-reshardable",
        why);
}

static bool
find_place(const struct cairn_mdist_array *array, struct place *place)
{
    struct cairn_mdist_name full;
    uint64_t numbers[CAIRN_MDIST_STARS_MAX];
    uint32_t dimension = 0, star = 0;

    *place = (struct place){{UINT32_MAX, UINT32_MAX}, {UINT64_MAX, UINT64_MAX}};
    if (!cairn_mdist_pattern_of(array->name.pattern, 0, &full, numbers))
        return false;
    for (const char *at = strchr(full.pattern, '*'); at; at = strchr(at + 1, '*'), star++) {
        size_t before = (size_t)(at - full.pattern);
        bool expert = before >= 14 && strncmp(at - 14, "local_experts.", 14) == 0;

        if ((!expert && (before != 15 || strncmp(full.pattern, "decoder.layers.", 15) != 0)) ||
            place->dimension[expert] != UINT32_MAX || place->number[expert] != UINT64_MAX)
            return false;
        if (numbers[star] == CAIRN_MDIST_DIMENSION)
            place->dimension[expert] = dimension++;
        else
            place->number[expert] = numbers[star];
    }
    return true;
}

/* Lists the model's arrays; `places` and `model` have room for all entries. Complained about. */
static cairn_err
order_model(struct finding *finding)
{
    struct cairn_mdist_reading *reading = finding->reading;
    uint32_t tensors;

    for (uint32_t i = 0; i < reading->metadata.entry_count; i++) {
        const struct cairn_mdist_array *array = &reading->arrays[i];
        uint64_t *counts[2] = {&finding->layers, &finding->experts};
        const char *name = array->name.pattern;

        if (!array->known || array->name.state[0] || array->half == CAIRN_MDIST_UP ||
            cairn_layout_tensor(reading->checkpoint->layout, array->first)->kind != CAIRN_PARAM ||
            cairn_text_ends(name, ".expert_bias")) /* a buffer */
            continue;
        if (!find_place(array, &finding->places[i]))
            return refuse(finding, "it has layers outside of the decoder");
        for (int n = 0; n < 2; n++) {
            uint64_t count = finding->places[i].dimension[n] != UINT32_MAX
                                 ? array->shape[finding->places[i].dimension[n]]
                                 : finding->places[i].number[n] + 1; /* none: 0 */

            if (count > *counts[n])
                *counts[n] = count;
        }
        finding->model[finding->model_count++] = i;
    }
    tensors = cairn_layout_tensor_count(reading->checkpoint->layout);
    if (finding->layers > tensors || finding->experts > tensors)
        return refuse(finding, "it has numbers of layers without a layer");
    return finding->layers > 0 ? CAIRN_OK : refuse(finding, "it has no layers");
}

static bool
has_number(const struct finding *finding, uint32_t entry, int which, uint64_t number)
{
    const struct place *place = &finding->places[entry];

    if (place->dimension[which] != UINT32_MAX)
        return number < finding->reading->arrays[entry].shape[place->dimension[which]];
    return place->number[which] == number;
}

static bool
is_numbered(const struct finding *finding, uint32_t entry, int which)
{
    return finding->places[entry].dimension[which] != UINT32_MAX ||
           finding->places[entry].number[which] != UINT64_MAX;
}

static cairn_err
add_parameter(struct finding *finding, uint32_t entry, uint64_t layer, uint64_t expert, bool tied)
{
    const struct place *place = &finding->places[entry];
    struct parameter *parameter;

    if (!cairn_array_grow(&finding->parameters, finding->parameter_count,
                          sizeof(*finding->parameters)))
        return CAIRN_NOMEM;
    parameter = &finding->parameters[finding->parameter_count++];
    *parameter = (struct parameter){.entry = entry, .tied = tied};
    if (place->dimension[0] != UINT32_MAX)
        parameter->numbers[place->dimension[0]] = layer;
    if (place->dimension[1] != UINT32_MAX)
        parameter->numbers[place->dimension[1]] = expert;
    return CAIRN_OK;
}

/* Experts one after the other; or, where they are multiplied together (moe_grouped_gemm), first
 * all of one weight and then all of the next. */
static cairn_err
add_experts(struct finding *finding, const struct rank *rank, uint64_t layer)
{
    uint64_t experts = rank->expert_end - rank->expert_begin;
    uint64_t count = experts * finding->model_count;
    cairn_err err = CAIRN_OK;

    for (uint64_t i = 0; i < count && !err; i++) {
        bool grouped = finding->reading->args.grouped_experts;
        uint64_t at = grouped ? i / experts : i % finding->model_count;
        uint64_t expert = rank->expert_begin + (grouped ? i % experts : i / finding->model_count);
        uint32_t entry = finding->model[at];

        if (is_numbered(finding, entry, 1) && has_number(finding, entry, 0, layer) &&
            has_number(finding, entry, 1, expert))
            err = add_parameter(finding, entry, layer, expert, false);
    }
    return err;
}

static cairn_err
add_layer(struct finding *finding, const struct rank *rank, uint64_t layer)
{
    bool experts_added = false;
    cairn_err err = CAIRN_OK;

    for (uint32_t m = 0; m < finding->model_count && !err; m++) {
        uint32_t entry = finding->model[m];

        if (!is_numbered(finding, entry, 0) || !has_number(finding, entry, 0, layer))
            continue;
        if (!is_numbered(finding, entry, 1)) {
            if (rank->dense)
                err = add_parameter(finding, entry, layer, 0, false);
            continue;
        }
        if (!rank->expert || experts_added)
            continue;
        experts_added = true;
        err = add_experts(finding, rank, layer);
    }
    return err;
}

/* Lists the parameters of a rank again. CAIRN_NOMEM. */
static cairn_err
order_rank(struct finding *finding, const struct rank *rank)
{
    uint64_t layers = finding->layers / rank->stages;
    uint32_t embedding = UINT32_MAX;
    bool behind = false, output = false;
    cairn_err err = CAIRN_OK;

    finding->parameter_count = 0;
    for (uint32_t m = 0; m < finding->model_count && !err; m++) {
        uint32_t entry = finding->model[m];
        const char *name = finding->reading->arrays[entry].name.pattern;

        if (is_numbered(finding, entry, 0)) {
            for (uint64_t i = 0; i < layers && !behind && !err; i++)
                err = add_layer(finding, rank, rank->stage * layers + i);
            behind = true;
            continue;
        }
        embedding = strcmp(name, "embedding.word_embeddings.weight") == 0 ? entry : embedding;
        output = output || strcmp(name, "output_layer.weight") == 0;
        if (rank->dense && rank->stage == (behind ? rank->stages - 1 : 0))
            err = add_parameter(finding, entry, 0, 0, false);
    }
    if (!err && rank->dense && !output && embedding != UINT32_MAX && rank->stages > 1 &&
        rank->stage == rank->stages - 1)
        err = add_parameter(finding, embedding, 0, 0, true);
    return err;
}

enum { PARAM_ALIGN_ELEMENTS = 64 };

cairn_err
cairn_mdist_buckets_note(struct cairn_mdist_reading *reading, uint32_t entry, uint32_t container,
                         const struct cairn_dcp_chunk *chunk)
{
    if (!cairn_array_grow(&reading->bucket_chunks, reading->bucket_chunk_count,
                          sizeof(*reading->bucket_chunks)))
        return CAIRN_NOMEM;
    reading->bucket_chunks[reading->bucket_chunk_count++] =
        (struct cairn_mdist_bucket_chunk){.entry = entry,
                                          .container = container,
                                          .begin = chunk->start[0],
                                          .end = chunk->start[0] + chunk->extent[0],
                                          .at = chunk->at};
    return CAIRN_OK;
}

/* ---- buckets ---- */

struct bucket {
    uint32_t entry;
    uint32_t chained, group, buffer, number;
    char dtype[32]; /* of the parameters: "torch.bfloat16" */
    char state[64];
    size_t first, count; /* of its chunks */
};

static bool
parse_bucket(const char *key, struct bucket *out)
{
    int used = 0;

    if (!cairn_mdist_take_group(&key, &out->chained, &out->group) ||
        !cairn_number_after(&key, ".gbuf_idx_", &out->buffer) ||
        sscanf(key, ".dtype_(%31[a-z0-9_.], %*31[a-z0-9_.])%n", out->dtype, &used) != 1 ||
        used == 0)
        return false;
    key += used;
    used = 0;
    return cairn_number_after(&key, ".bucket_idx_", &out->number) &&
           sscanf(key, ".%63[a-z0-9_]%n", out->state, &used) == 1 && key[used] == '\0';
}

/* Buckets of a buffer come one after the other, states apart. */
static int
compare_buckets(const void *left, const void *right)
{
    const struct bucket *a = left, *b = right;

    return CAIRN_COMPARE(a->chained, b->chained) ?: CAIRN_COMPARE(a->group, b->group) ?:
           CAIRN_COMPARE(a->buffer, b->buffer) ?: strcmp(a->state, b->state) ?:
           CAIRN_COMPARE(a->number, b->number);
}

static int
compare_chunks(const void *left, const void *right)
{
    const struct cairn_mdist_bucket_chunk *a = left, *b = right;

    return CAIRN_COMPARE(a->entry, b->entry) ?: CAIRN_COMPARE(a->begin, b->begin);
}

/* A box of a logical tensor, row-major in the buffer. */
struct box {
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX];
    uint64_t elements;
};

/* ---- how a parameter is cut among tensor ranks ---- */

static int
compare_boxes(const void *left, const void *right)
{
    const struct box *a = left, *b = right;

    for (uint32_t d = 0; d < CAIRN_DIMS_MAX; d++)
        if (a->start[d] != b->start[d])
            return a->start[d] < b->start[d] ? -1 : 1;
    return 0;
}

/* The chunks of an array in one of its tensors, by place; the caller frees *boxes. */
static cairn_err
list_boxes(const struct finding *finding, const struct parameter *parameter, uint32_t entry,
           struct box **boxes, size_t *count)
{
    const struct cairn_mdist_array *array = &finding->reading->arrays[entry];
    const struct cairn_dcp_entry *said = &finding->reading->metadata.entries[entry];
    uint32_t stars = array->name.stars, dims = array->dims - stars;
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX];

    *count = 0;
    *boxes = calloc((size_t)said->chunks->count + 1, sizeof(**boxes));
    if (!*boxes)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < said->chunks->count; i++) {
        struct box *box = &(*boxes)[*count];
        bool here = cairn_dcp_chunk_box(said, i, start, extent);

        for (uint32_t d = 0; d < stars && here; d++)
            here = parameter->numbers[d] - start[d] < extent[d];
        if (!here)
            continue;
        memcpy(box->start, start + stars, dims * sizeof(*start));
        memcpy(box->extent, extent + stars, dims * sizeof(*extent));
        box->elements = cairn_shape_elements(dims, box->extent);
        *count += box->elements > 0;
    }
    qsort(*boxes, *count, sizeof(**boxes), compare_boxes);
    return CAIRN_OK;
}

/* What a tensor rank holds of a parameter: one box, or gates and ups. */
static cairn_err
find_parts(const struct finding *finding, const struct parameter *parameter,
           const struct rank *rank, struct box parts[2], uint32_t *part_count)
{
    const struct cairn_mdist_array *array = &finding->reading->arrays[parameter->entry];
    uint64_t ranks = rank->tensor_ranks, at = rank->tensor_rank;
    bool gate = array->half == CAIRN_MDIST_GATE, whole, halves;
    struct box *boxes = NULL;
    size_t count = 0;
    cairn_err err;

    err = list_boxes(finding, parameter, parameter->entry, &boxes, &count);
    whole = count == 1 || count == ranks;
    halves = !whole && count == 2 * ranks && !gate && strstr(array->name.pattern, "linear_fc1.");
    if (!err && !whole && !halves)
        err = refuse(finding, "a parameter is cut in another way than by tensor ranks");
    if (!err) {
        parts[0] = boxes[count == 1 ? 0 : at];
        parts[1] = halves ? boxes[ranks + at] : parts[0];
        parts[1].start[0] += gate ? array->rows / 2 : 0;
        *part_count = gate || halves ? 2 : 1;
    }
    free(boxes);
    return err;
}

/* ---- state ---- */

/* Elements [begin, end) of a bucket are a part of a tensor. */
static cairn_err
add_part(struct finding *finding, const struct bucket *bucket, uint32_t tensor, uint64_t rows,
         const struct box *box, uint64_t begin)
{
    const struct cairn_mdist_reading *reading = finding->reading;
    const struct cairn_tensor *known = cairn_layout_tensor(reading->checkpoint->layout, tensor);
    struct box clipped = *box;
    uint64_t end;
    cairn_err err = CAIRN_OK;

    if (known->dims > 0 && box->start[0] >= rows)
        return CAIRN_OK; /* padding of the vocabulary */
    if (known->dims > 0 && box->extent[0] > rows - box->start[0]) {
        clipped.extent[0] = rows - box->start[0];
        clipped.elements = box->elements / box->extent[0] * clipped.extent[0];
    }
    end = begin + clipped.elements;
    for (size_t i = bucket->first; i < bucket->first + bucket->count && !err; i++) {
        const struct cairn_mdist_bucket_chunk *chunk = &reading->bucket_chunks[i];
        uint64_t from = chunk->begin > begin ? chunk->begin : begin;
        uint64_t to = chunk->end < end ? chunk->end : end;

        if (from < to)
            err = cairn_checkpoint_add_flat(reading->checkpoint, tensor, chunk->container,
                                            clipped.start, clipped.extent, from - begin, to - begin,
                                            chunk->at + (from - chunk->begin) *
                                                            cairn_dtype_bytes(known->dtype));
    }
    return err;
}

static cairn_err
add_state(struct finding *finding, const struct bucket *bucket, const struct parameter *parameter,
          const struct box *parts, uint32_t part_count, uint64_t begin)
{
    struct cairn_mdist_reading *reading = finding->reading;
    const struct cairn_mdist_array *array = &reading->arrays[parameter->entry];
    const struct cairn_layout *layout = reading->checkpoint->layout;
    uint64_t index = 0, end = begin;
    char name[CAIRN_NAME_BYTES_MAX];
    const struct cairn_tensor *model;
    bool begins = false, ends = false;
    uint32_t tensor;
    cairn_err err;

    for (uint32_t d = 0; d < array->name.stars; d++)
        index = index * array->shape[d] + parameter->numbers[d];
    model = cairn_layout_tensor(layout, array->first + (uint32_t)index);
    if (snprintf(name, sizeof(name), "%s.%s",
                 strcmp(bucket->state, "param") == 0 ? "fp32" : bucket->state,
                 model->name) >= (int)sizeof(name))
        return refuse(finding, "a name is too long");
    for (uint32_t i = 0; i < part_count; i++)
        end += parts[i].elements;
    for (size_t i = bucket->first; i < bucket->first + bucket->count; i++) {
        begins = begins || reading->bucket_chunks[i].begin == begin;
        ends = ends || reading->bucket_chunks[i].end == end;
    }
    if (!begins || !ends)
        return refuse(finding, "parameters do not begin and end where the parts of a bucket do");
    if (parameter->tied)
        return CAIRN_OK; /* the first stage has it */
    err = cairn_checkpoint_add_tensor(reading->checkpoint, name,
                                      reading->metadata.entries[bucket->entry].dtype,
                                      CAIRN_OPTIMIZER, model->dims, model->shape, &tensor);
    for (uint32_t i = 0; i < part_count && !err; i++) {
        err = add_part(finding, bucket, tensor, array->rows, &parts[i], begin);
        begin += parts[i].elements;
    }
    return err;
}

/* The buckets of one buffer and state: each parameter lies behind the one before it. */
static cairn_err
fill_buffer(struct finding *finding, const struct bucket *buckets, uint32_t count,
            const struct rank *rank)
{
    const struct cairn_mdist_reading *reading = finding->reading;
    uint64_t cursor = 0;
    uint32_t at = 0;
    cairn_err err = CAIRN_OK;

    for (size_t i = finding->parameter_count; i-- > 0 && !err;) {
        const struct parameter *parameter = &finding->parameters[i];
        const struct cairn_torch_dtype *dtype =
            cairn_torch_dtype_of(reading->metadata.entries[parameter->entry].dtype);
        struct box parts[2];
        uint32_t part_count = 0;
        uint64_t begin, end;

        if (strncmp(buckets->dtype, "torch.", 6) != 0 ||
            strcmp(buckets->dtype + 6, dtype->name) != 0)
            continue;
        err = find_parts(finding, parameter, rank, parts, &part_count);
        if (err)
            break;
        if (at < count && cursor == reading->metadata.entries[buckets[at].entry].shape[0]) {
            at++;
            cursor = 0;
        }
        begin = (cursor + PARAM_ALIGN_ELEMENTS - 1) / PARAM_ALIGN_ELEMENTS * PARAM_ALIGN_ELEMENTS;
        end = begin;
        for (uint32_t p = 0; p < part_count; p++)
            end += parts[p].elements;
        if (at == count || buckets[at].number != at ||
            end > reading->metadata.entries[buckets[at].entry].shape[0])
            return refuse(finding, "its parameters are more than its buckets");
        err = add_state(finding, &buckets[at], parameter, parts, part_count, begin);
        cursor = end;
    }
    if (!err &&
        (at + 1 != count || cursor != reading->metadata.entries[buckets[at].entry].shape[0]))
        err = refuse(finding, "its buckets are more than its parameters");
    return err;
}

static cairn_err
place_rank(const struct finding *finding, const struct bucket *bucket, struct rank *rank)
{
    const struct cairn_parallelism *parallel = &finding->reading->checkpoint->parallelism;
    uint64_t tp = parallel->tp ? parallel->tp : 1, pp = parallel->pp ? parallel->pp : 1;
    uint64_t ep = parallel->ep ? parallel->ep : 1, etp = parallel->etp ? parallel->etp : tp;

    *rank = (struct rank){.stages = pp, .tensor_ranks = tp};
    if (parallel->vpp > 1)
        return refuse(finding, "virtual pipeline stages are not known here");
    if (bucket->chained > 1 && bucket->chained != UINT32_MAX)
        return refuse(finding, "it has more than two optimizers");
    rank->dense = bucket->chained != 1;
    rank->expert = bucket->chained != 0; /* one optimizer has all */
    if (rank->dense) {
        rank->tensor_rank = bucket->group % tp;
        rank->stage = bucket->group / tp;
        rank->expert_end = finding->experts;
    } else {
        rank->tensor_ranks = etp;
        rank->tensor_rank = bucket->group % etp;
        rank->stage = bucket->group / etp / ep;
        rank->expert_begin = bucket->group / etp % ep * (finding->experts / ep);
        rank->expert_end = rank->expert_begin + finding->experts / ep;
    }
    if (rank->stage >= pp || finding->layers % pp != 0 || finding->experts % ep != 0)
        return refuse(finding, "layers, experts and ranks do not divide evenly, as the arguments "
                               "in common.pt have them");
    return CAIRN_OK;
}

static cairn_err
list_buckets(struct finding *finding)
{
    struct cairn_mdist_reading *reading = finding->reading;
    size_t at = 0;

    qsort(reading->bucket_chunks, reading->bucket_chunk_count, sizeof(*reading->bucket_chunks),
          compare_chunks);
    while (at < reading->bucket_chunk_count) {
        struct bucket *bucket = &finding->buckets[finding->bucket_count++];

        bucket->entry = reading->bucket_chunks[at].entry;
        bucket->first = at;
        if (reading->metadata.entries[bucket->entry].dims != 1 ||
            !parse_bucket(reading->metadata.entries[bucket->entry].name, bucket))
            return refuse(finding, "its buckets have other names than Megatron-Core's");
        for (;
             at < reading->bucket_chunk_count && reading->bucket_chunks[at].entry == bucket->entry;
             at++)
            bucket->count++;
    }
    qsort(finding->buckets, finding->bucket_count, sizeof(*finding->buckets), compare_buckets);
    return CAIRN_OK;
}

static bool
same_buffer(const struct bucket *a, const struct bucket *b)
{
    return a->chained == b->chained && a->group == b->group && a->buffer == b->buffer &&
           strcmp(a->state, b->state) == 0;
}

cairn_err
cairn_mdist_buckets_add(struct cairn_mdist_reading *reading)
{
    uint32_t entries = reading->metadata.entry_count;
    struct finding finding = {.reading = reading};
    cairn_err err;

    if (reading->bucket_chunk_count == 0)
        return CAIRN_OK;
    finding.places = calloc((size_t)entries + 1, sizeof(*finding.places));
    finding.model = calloc((size_t)entries + 1, sizeof(*finding.model));
    finding.buckets = calloc((size_t)entries + 1, sizeof(*finding.buckets));
    err = finding.places && finding.model && finding.buckets ? order_model(&finding) : CAIRN_NOMEM;
    if (!err)
        err = list_buckets(&finding);
    for (uint32_t from = 0, to; from < finding.bucket_count && !err; from = to) {
        struct rank rank;

        for (to = from + 1; to < finding.bucket_count &&
                            same_buffer(&finding.buckets[from], &finding.buckets[to]);)
            to++;
        err = place_rank(&finding, &finding.buckets[from], &rank);
        if (!err)
            err = order_rank(&finding, &rank);
        if (!err)
            err = fill_buffer(&finding, &finding.buckets[from], to - from, &rank);
    }
    free(finding.places);
    free(finding.model);
    free(finding.buckets);
    free(finding.parameters);
    return err;
}
