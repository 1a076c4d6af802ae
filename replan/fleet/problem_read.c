/* replan/fleet/problem_read.c - problem files: JSON with every key known, every number in its
 * range. */
#include "replan/fleet/problem.h"

#include "base/array.h"

#include "replan/fleet/field.h"
#include "replan/fleet/plan.h"
#include "replan/fleet/preset.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 32, NAME_BYTES = 64, PRESET_TP = 8, PRESET_TOKENS_MAX = 1 << 24 };
#define TIME_MS_MAX 1e9
#define RATE_MAX 1e6
#define RATE_MIN 1e-6
#define LAYERS_WEIGHT_MAX 1e6
#define GBPS_MAX 1e9

static const char *const keys[] = {
    "layers",  "layer_ms",  "embed_layers", "head_layers",      "microbatches",
    "tp",      "tp_cost",   "layer_bytes",  "activation_bytes", "reserved_bytes",
    "devices", "link_gbps", "current",      "preset",           "slow_links"};
enum key {
    LAYERS,
    LAYER_MS,
    EMBED_LAYERS,
    HEAD_LAYERS,
    MICROBATCHES,
    TP,
    TP_COST,
    LAYER_BYTES,
    ACTIVATION_BYTES,
    RESERVED_BYTES,
    DEVICES,
    LINK_GBPS,
    CURRENT,
    PRESET,
    SLOW_LINKS,
    KEY_COUNT
};
/* What a problem must say; the others are 0, or nothing, where they are left out. */
static const uint32_t required = 1u << LAYERS | 1u << LAYER_MS | 1u << MICROBATCHES |
                                 1u << TP_COST | 1u << LAYER_BYTES | 1u << DEVICES;
/* What a preset says where the problem does not. */
static const uint32_t preset_says = 1u << LAYERS | 1u << LAYER_MS | 1u << EMBED_LAYERS |
                                    1u << HEAD_LAYERS | 1u << TP | 1u << TP_COST |
                                    1u << LAYER_BYTES | 1u << ACTIVATION_BYTES |
                                    1u << RESERVED_BYTES | 1u << LINK_GBPS;

static double
read_milliseconds(struct cairn_json_reader *reader)
{
    return cairn_field_number(reader, 1e-9, TIME_MS_MAX,
                              "a time must be above 0 ms and at most 1e9 ms");
}

static uint32_t
read_count(struct cairn_json_reader *reader, uint32_t high, const char *why)
{
    uint64_t value = cairn_json_read_u64(reader, UINT64_MAX);

    if (value < 1 || value > high)
        cairn_json_reader_fail(reader, why);
    return (uint32_t)value;
}

static uint64_t
read_bytes(struct cairn_json_reader *reader)
{
    uint64_t value = cairn_json_read_u64(reader, UINT64_MAX);

    if (value > CAIRN_PROBLEM_BYTES_MAX)
        cairn_json_reader_fail(reader, "bytes must be at most 2^50");
    return value;
}

static void
read_sizes(struct cairn_json_reader *reader, struct cairn_problem *problem)
{
    char key[KEY_BYTES];

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        char *end = key;
        unsigned long size = key[0] >= '1' && key[0] <= '9' ? strtoul(key, &end, 10) : 0;
        uint32_t at = problem->size_count;

        if (size < 1 || size > CAIRN_PROBLEM_GROUP_MAX || *end != '\0')
            cairn_json_reader_fail(reader,
                                   "a size of groups must be a whole number from 1 to 1024");
        else if (at == CAIRN_PROBLEM_SIZES_MAX)
            cairn_json_reader_fail(reader, "there are more than 16 sizes of groups");
        else if (cairn_json_reader_failed(reader))
            return;
        else {
            for (; at > 0 && problem->sizes[at - 1].size >= size; at--) {
                if (problem->sizes[at - 1].size == size)
                    cairn_json_reader_fail(reader, "a duplicate size of groups");
                problem->sizes[at] = problem->sizes[at - 1];
            }
            problem->sizes[at].size = (uint32_t)size;
            problem->sizes[at].cost =
                cairn_field_number(reader, 1e-6, 1e6, "a tp_cost must be from 1e-6 to 1e6");
            problem->size_count++;
        }
    }
    if (problem->size_count == 0)
        cairn_json_reader_fail(reader, "tp_cost names no size of groups");
}

static void
read_device(struct cairn_json_reader *reader, struct cairn_device *device)
{
    static const char *const names[] = {"id", "node", "rate", "memory_bytes"};
    char key[KEY_BYTES];
    uint32_t seen = 0;

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        switch (cairn_field_key(reader, key, names, 4, &seen)) {
        case 0:
            device->id = cairn_json_read_u64(reader, UINT64_MAX);
            break;
        case 1:
            device->node = cairn_json_read_u64(reader, UINT64_MAX);
            break;
        case 2:
            if (!cairn_json_read_null(reader))
                device->rate = cairn_field_number(
                    reader, RATE_MIN, RATE_MAX,
                    "a rate must be from 1e-6 to 1e6, or null for a dead device");
            break;
        case 3:
            device->memory_bytes = read_bytes(reader);
            break;
        default:
            break;
        }
    }
    if (seen != 15)
        cairn_json_reader_fail(reader, "a device must have id, node, rate and memory_bytes");
}

static cairn_err
read_devices(struct cairn_json_reader *reader, struct cairn_problem *problem)
{
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        if (problem->device_count == CAIRN_PROBLEM_DEVICES_MAX) {
            cairn_json_reader_fail(reader, "there are more than 65536 devices");
            return CAIRN_OK;
        }
        if (!cairn_array_grow(&problem->devices, problem->device_count, sizeof(*problem->devices)))
            return CAIRN_NOMEM;
        problem->devices[problem->device_count] = (struct cairn_device){0};
        read_device(reader, &problem->devices[problem->device_count++]);
    }
    return CAIRN_OK;
}

static void
read_links(struct cairn_json_reader *reader, struct cairn_problem *problem)
{
    static const char *const names[] = {"intra", "inter"};
    char key[KEY_BYTES];
    uint32_t seen = 0;

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        uint32_t which = cairn_field_key(reader, key, names, 2, &seen);
        double gbps = cairn_field_number(reader, 1e-6, GBPS_MAX, "gbps must be from 1e-6 to 1e9");

        if (which == 0)
            problem->intra_gbps = gbps;
        else if (which == 1)
            problem->inter_gbps = gbps;
    }
    if (seen != 3)
        cairn_json_reader_fail(reader, "link_gbps must have intra and inter");
}

/* {"nodes": [0, 5], "gbps": 25} */
static void
read_slow_link(struct cairn_json_reader *reader, struct cairn_slow_link *link)
{
    static const char *const names[] = {"nodes", "gbps"};
    char key[KEY_BYTES];
    uint32_t seen = 0, nodes = 0;

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        uint32_t which = cairn_field_key(reader, key, names, 2, &seen);

        if (which == 0) {
            cairn_json_array_begin(reader);
            for (; cairn_json_array_next(reader); nodes++) {
                uint64_t node = cairn_json_read_u64(reader, UINT64_MAX);

                if (nodes < 2)
                    link->nodes[nodes] = node;
                else
                    cairn_json_reader_fail(reader, "a slow link joins two nodes");
            }
        } else if (which == 1) {
            link->gbps =
                cairn_field_number(reader, 1e-6, GBPS_MAX, "gbps must be from 1e-6 to 1e9");
        }
    }
    if (seen != 3)
        cairn_json_reader_fail(reader, "a slow link must have nodes and gbps");
    else if (nodes != 2 || link->nodes[0] == link->nodes[1])
        cairn_json_reader_fail(reader, "a slow link joins two nodes");
}

static cairn_err
read_slow_links(struct cairn_json_reader *reader, struct cairn_problem *problem)
{
    free(problem->slow_links); /* a key that stands twice is refused in the end */
    problem->slow_link_count = 0;
    problem->slow_links = calloc(CAIRN_PROBLEM_SLOW_LINKS_MAX, sizeof(*problem->slow_links));
    if (!problem->slow_links)
        return CAIRN_NOMEM;
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        if (problem->slow_link_count == CAIRN_PROBLEM_SLOW_LINKS_MAX) {
            cairn_json_reader_fail(reader, "there are more than 256 slow links");
            break;
        }
        read_slow_link(reader, &problem->slow_links[problem->slow_link_count++]);
    }
    return CAIRN_OK;
}

/* {"model": "llama3-70b", "gpu": "h100-sxm", "sequence_tokens": 8192, "reached": 0.4}; the last may
 * be left out. */
static void
read_preset(struct cairn_json_reader *reader, struct cairn_preset *preset)
{
    static const char *const names[] = {"model", "gpu", "sequence_tokens", "reached"};
    char key[KEY_BYTES], name[NAME_BYTES] = "";
    uint32_t seen = 0;

    preset->reached = 0.4; /* usual for large models */
    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        switch (cairn_field_key(reader, key, names, 4, &seen)) {
        case 0:
            cairn_json_read_string(reader, name, sizeof(name));
            preset->model = cairn_model_shape_find(name);
            if (!preset->model)
                cairn_json_reader_fail(
                    reader, "no model of that name is known: docs/PLANNER.md lists them");
            break;
        case 1:
            cairn_json_read_string(reader, name, sizeof(name));
            preset->device = cairn_device_sheet_find(name);
            if (!preset->device)
                cairn_json_reader_fail(reader,
                                       "no gpu of that name is known: docs/PLANNER.md lists them");
            break;
        case 2:
            preset->sequence_tokens =
                read_count(reader, PRESET_TOKENS_MAX, "sequence_tokens must be from 1 to 2^24");
            break;
        case 3:
            preset->reached =
                cairn_field_number(reader, 1e-3, 1, "reached must be from 0.001 to 1");
            break;
        default:
            break;
        }
    }
    if ((seen & 7) != 7)
        cairn_json_reader_fail(reader, "a preset must have model, gpu and sequence_tokens");
}

/* Takes from a preset what the problem does not say itself. */
static cairn_err
apply_preset(const struct cairn_preset *preset, uint32_t *seen, struct cairn_problem *problem,
             struct cairn_fault *fault)
{
    struct cairn_problem said = {0};
    uint32_t tp = *seen >> TP & 1 ? problem->tp : PRESET_TP;

    if ((tp & (tp - 1)) != 0) {
        (void)snprintf(fault->text, sizeof(fault->text),
                       "a preset needs a tp that is a power of two, not %" PRIu32, tp);
        return CAIRN_CORRUPT;
    }
    cairn_preset_apply(preset, tp, &said);
    problem->layers = *seen >> LAYERS & 1 ? problem->layers : said.layers;
    problem->layer_ms = *seen >> LAYER_MS & 1 ? problem->layer_ms : said.layer_ms;
    problem->embed_layers = *seen >> EMBED_LAYERS & 1 ? problem->embed_layers : said.embed_layers;
    problem->head_layers = *seen >> HEAD_LAYERS & 1 ? problem->head_layers : said.head_layers;
    problem->tp = tp;
    if (!(*seen >> TP_COST & 1)) {
        memcpy(problem->sizes, said.sizes, sizeof(said.sizes));
        problem->size_count = said.size_count;
    }
    problem->layer_bytes = *seen >> LAYER_BYTES & 1 ? problem->layer_bytes : said.layer_bytes;
    problem->activation_bytes =
        *seen >> ACTIVATION_BYTES & 1 ? problem->activation_bytes : said.activation_bytes;
    problem->reserved_bytes =
        *seen >> RESERVED_BYTES & 1 ? problem->reserved_bytes : said.reserved_bytes;
    if (!(*seen >> LINK_GBPS & 1)) {
        problem->intra_gbps = said.intra_gbps;
        problem->inter_gbps = said.inter_gbps;
    }
    *seen |= preset_says;
    return CAIRN_OK;
}

static cairn_err
read_field(struct cairn_json_reader *reader, uint32_t key, struct cairn_problem *problem,
           struct cairn_preset *preset)
{
    static const char weight[] = "the vocabulary's weight must be from 0 to 1e6 layers";

    switch (key) {
    case LAYERS:
        problem->layers =
            read_count(reader, CAIRN_PROBLEM_LAYERS_MAX, "layers must be from 1 to 10000");
        break;
    case LAYER_MS:
        problem->layer_ms = read_milliseconds(reader);
        break;
    case EMBED_LAYERS:
        problem->embed_layers = cairn_field_number(reader, 0, LAYERS_WEIGHT_MAX, weight);
        break;
    case HEAD_LAYERS:
        problem->head_layers = cairn_field_number(reader, 0, LAYERS_WEIGHT_MAX, weight);
        break;
    case MICROBATCHES:
        problem->microbatches = read_count(reader, CAIRN_PROBLEM_MICROBATCHES_MAX,
                                           "microbatches must be from 1 to 1000000");
        break;
    case TP:
        problem->tp = read_count(reader, CAIRN_PROBLEM_GROUP_MAX, "tp must be from 1 to 1024");
        break;
    case TP_COST:
        read_sizes(reader, problem);
        break;
    case LAYER_BYTES:
        problem->layer_bytes = read_bytes(reader);
        break;
    case ACTIVATION_BYTES:
        problem->activation_bytes = read_bytes(reader);
        break;
    case RESERVED_BYTES:
        problem->reserved_bytes = read_bytes(reader);
        break;
    case DEVICES:
        return read_devices(reader, problem);
    case LINK_GBPS:
        read_links(reader, problem);
        break;
    case CURRENT:
        return cairn_json_read_null(reader) ? CAIRN_OK : cairn_plan_read(reader, &problem->current);
    case SLOW_LINKS:
        return read_slow_links(reader, problem);
    case PRESET:
        read_preset(reader, preset);
        break;
    default:
        break;
    }
    return CAIRN_OK;
}

static int
by_id(const void *left, const void *right)
{
    const struct cairn_device *a = left, *b = right;

    return a->id < b->id ? -1 : a->id > b->id;
}

static bool
has_node(const struct cairn_problem *problem, uint64_t node)
{
    for (uint32_t i = 0; i < problem->device_count; i++)
        if (problem->devices[i].node == node)
            return true;
    return false;
}

static bool
join_the_same(const struct cairn_slow_link *left, const struct cairn_slow_link *right)
{
    return (left->nodes[0] == right->nodes[0] && left->nodes[1] == right->nodes[1]) ||
           (left->nodes[0] == right->nodes[1] && left->nodes[1] == right->nodes[0]);
}

/* Each of nodes that there are, and once. */
static cairn_err
check_slow_links(const struct cairn_problem *problem, struct cairn_fault *fault)
{
    for (uint32_t i = 0; i < 2 * problem->slow_link_count; i++)
        if (!has_node(problem, problem->slow_links[i / 2].nodes[i % 2])) {
            (void)snprintf(fault->text, sizeof(fault->text),
                           "slow_links names node %" PRIu64 ", which no device is of",
                           problem->slow_links[i / 2].nodes[i % 2]);
            return CAIRN_CORRUPT;
        }
    for (uint32_t i = 0; i < problem->slow_link_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (join_the_same(&problem->slow_links[i], &problem->slow_links[j])) {
                (void)snprintf(fault->text, sizeof(fault->text),
                               "slow_links names the link of nodes %" PRIu64 " and %" PRIu64
                               " twice",
                               problem->slow_links[i].nodes[0], problem->slow_links[i].nodes[1]);
                return CAIRN_CORRUPT;
            }
    return CAIRN_OK;
}

/* What no single field can tell. */
static cairn_err
check(struct cairn_problem *problem, uint32_t seen, struct cairn_fault *fault)
{
    for (uint32_t i = 0; i < KEY_COUNT; i++)
        if ((required & ~seen) >> i & 1) {
            (void)snprintf(fault->text, sizeof(fault->text), "the problem has no \"%s\"", keys[i]);
            return CAIRN_CORRUPT;
        }
    if (problem->device_count > 0)
        qsort(problem->devices, problem->device_count, sizeof(*problem->devices), by_id);
    for (uint32_t i = 1; i < problem->device_count; i++)
        if (problem->devices[i].id == problem->devices[i - 1].id) {
            (void)snprintf(fault->text, sizeof(fault->text),
                           "two devices have the id %" PRIu64 "; give each its own",
                           problem->devices[i].id);
            return CAIRN_CORRUPT;
        }
    return check_slow_links(problem, fault);
}

cairn_err
cairn_problem_read(const void *text, size_t text_bytes, struct cairn_problem *out,
                   struct cairn_fault *fault)
{
    struct cairn_problem problem = {0};
    struct cairn_preset preset = {0};
    struct cairn_json_reader reader;
    char key[KEY_BYTES];
    uint32_t seen = 0;
    cairn_err err = CAIRN_OK;

    cairn_json_reader_init(&reader, text, text_bytes);
    cairn_json_object_begin(&reader);
    while (!err && cairn_json_object_next(&reader, key, sizeof(key)))
        err = read_field(&reader, cairn_field_key(&reader, key, keys, KEY_COUNT, &seen), &problem,
                         &preset);
    if (!err)
        err = cairn_json_reader_done(&reader);
    if (err == CAIRN_CORRUPT)
        cairn_fault_from_reader(&reader, fault);
    if (!err && seen >> PRESET & 1)
        err = apply_preset(&preset, &seen, &problem, fault);
    if (!err)
        err = check(&problem, seen, fault);
    if (err)
        cairn_problem_fini(&problem);
    else
        *out = problem;
    return err;
}
