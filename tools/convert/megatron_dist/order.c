/* tools/convert/megatron_dist/order.c - see megatron_dist/order.h. */
#include "tools/convert/megatron_dist/order.h"

#include <string.h>

#include "base/array.h"
cairn_err
cairn_mdist_order_refuse(const struct cairn_mdist_order *order, const char *why)
{
    return cairn_refuse(order->reading->checkpoint, CAIRN_INVAL,
                        "the optimizer is dp_reshardable, and which parameter lies where in its "
                        "buckets is unknown: %s; load it once with Megatron-Core and save it with "
                        "--dist-ckpt-optim-fully-reshardable",
                        why);
}

static bool
find_place(const struct cairn_mdist_array *array, struct cairn_mdist_place *place)
{
    struct cairn_mdist_name full;
    uint64_t numbers[CAIRN_MDIST_STARS_MAX];
    uint32_t dimension = 0, star = 0;

    *place = (struct cairn_mdist_place){{UINT32_MAX, UINT32_MAX}, {UINT64_MAX, UINT64_MAX}};
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

cairn_err
cairn_mdist_order_model(struct cairn_mdist_order *order)
{
    struct cairn_mdist_reading *reading = order->reading;
    uint32_t tensors;

    for (uint32_t i = 0; i < reading->metadata.entry_count; i++) {
        const struct cairn_mdist_array *array = &reading->arrays[i];
        uint64_t *counts[2] = {&order->layers, &order->experts};
        const char *name = array->name.pattern;
        size_t bytes = strlen(name);

        if (!array->known || array->name.state[0] || array->half == CAIRN_MDIST_UP ||
            cairn_layout_tensor(reading->checkpoint->layout, array->first)->kind != CAIRN_PARAM ||
            (bytes > 12 && strcmp(name + bytes - 12, ".expert_bias") == 0)) /* a buffer */
            continue;
        if (!find_place(array, &order->places[i]))
            return cairn_mdist_order_refuse(order, "it has layers outside of the decoder");
        for (int n = 0; n < 2; n++) {
            uint64_t count = order->places[i].dimension[n] != UINT32_MAX
                                 ? array->shape[order->places[i].dimension[n]]
                                 : order->places[i].number[n] + 1; /* none: 0 */

            if (count > *counts[n])
                *counts[n] = count;
        }
        order->model[order->model_count++] = i;
    }
    tensors = cairn_layout_tensor_count(reading->checkpoint->layout);
    if (order->layers > tensors || order->experts > tensors)
        return cairn_mdist_order_refuse(order, "it has numbers of layers without a layer");
    return order->layers > 0 ? CAIRN_OK : cairn_mdist_order_refuse(order, "it has no layers");
}

static bool
has_number(const struct cairn_mdist_order *order, uint32_t entry, int which, uint64_t number)
{
    const struct cairn_mdist_place *place = &order->places[entry];

    if (place->dimension[which] != UINT32_MAX)
        return number < order->reading->arrays[entry].shape[place->dimension[which]];
    return place->number[which] == number;
}

static bool
is_numbered(const struct cairn_mdist_order *order, uint32_t entry, int which)
{
    return order->places[entry].dimension[which] != UINT32_MAX ||
           order->places[entry].number[which] != UINT64_MAX;
}

static cairn_err
add_parameter(struct cairn_mdist_order *order, uint32_t entry, uint64_t layer, uint64_t expert,
              bool tied)
{
    const struct cairn_mdist_place *place = &order->places[entry];
    struct cairn_mdist_parameter *parameter;

    if (!cairn_array_grow(&order->parameters, order->parameter_count, sizeof(*order->parameters)))
        return CAIRN_NOMEM;
    parameter = &order->parameters[order->parameter_count++];
    *parameter = (struct cairn_mdist_parameter){.entry = entry, .tied = tied};
    if (place->dimension[0] != UINT32_MAX)
        parameter->numbers[place->dimension[0]] = layer;
    if (place->dimension[1] != UINT32_MAX)
        parameter->numbers[place->dimension[1]] = expert;
    return CAIRN_OK;
}

/* Experts one after the other; or, where they are multiplied together (moe_grouped_gemm), first
 * all of one weight and then all of the next. */
static cairn_err
add_experts(struct cairn_mdist_order *order, const struct cairn_mdist_rank *rank, uint64_t layer)
{
    uint64_t experts = rank->expert_end - rank->expert_begin;
    uint64_t count = experts * order->model_count;
    cairn_err err = CAIRN_OK;

    for (uint64_t i = 0; i < count && !err; i++) {
        bool grouped = order->reading->args.grouped_experts;
        uint64_t at = grouped ? i / experts : i % order->model_count;
        uint64_t expert = rank->expert_begin + (grouped ? i % experts : i / order->model_count);
        uint32_t entry = order->model[at];

        if (is_numbered(order, entry, 1) && has_number(order, entry, 0, layer) &&
            has_number(order, entry, 1, expert))
            err = add_parameter(order, entry, layer, expert, false);
    }
    return err;
}

static cairn_err
add_layer(struct cairn_mdist_order *order, const struct cairn_mdist_rank *rank, uint64_t layer)
{
    bool experts_added = false;
    cairn_err err = CAIRN_OK;

    for (uint32_t m = 0; m < order->model_count && !err; m++) {
        uint32_t entry = order->model[m];

        if (!is_numbered(order, entry, 0) || !has_number(order, entry, 0, layer))
            continue;
        if (!is_numbered(order, entry, 1)) {
            if (rank->dense)
                err = add_parameter(order, entry, layer, 0, false);
            continue;
        }
        if (!rank->expert || experts_added)
            continue;
        experts_added = true;
        err = add_experts(order, rank, layer);
    }
    return err;
}

cairn_err
cairn_mdist_order_rank(struct cairn_mdist_order *order, const struct cairn_mdist_rank *rank)
{
    uint64_t layers = order->layers / rank->stages;
    uint32_t embedding = UINT32_MAX;
    bool behind = false, output = false;
    cairn_err err = CAIRN_OK;

    order->parameter_count = 0;
    for (uint32_t m = 0; m < order->model_count && !err; m++) {
        uint32_t entry = order->model[m];
        const char *name = order->reading->arrays[entry].name.pattern;

        if (is_numbered(order, entry, 0)) {
            for (uint64_t i = 0; i < layers && !behind && !err; i++)
                err = add_layer(order, rank, rank->stage * layers + i);
            behind = true;
            continue;
        }
        embedding = strcmp(name, "embedding.word_embeddings.weight") == 0 ? entry : embedding;
        output = output || strcmp(name, "output_layer.weight") == 0;
        if (rank->dense && rank->stage == (behind ? rank->stages - 1 : 0))
            err = add_parameter(order, entry, 0, 0, false);
    }
    if (!err && rank->dense && !output && embedding != UINT32_MAX && rank->stages > 1 &&
        rank->stage == rank->stages - 1)
        err = add_parameter(order, embedding, 0, 0, true);
    return err;
}
