/* tools/convert/deepspeed/groups.c - the arithmetic of DeepSpeed's flat buffers. */
#include "snapshot/box.h"
#include "tools/convert/deepspeed/groups.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGN_ELEMENTS = 2, /* per rank: what keeps each part of 16-bit elements on 4 bytes */
    GAP_ELEMENTS_MAX = 1024
};

/* so that bytes and sums of two do not overflow */
static const uint64_t ELEMENTS_MAX = INT64_MAX / 16;

uint32_t
cairn_deepspeed_keys_index(struct cairn_deepspeed_keys *keys, const char *key, size_t bytes,
                           bool add)
{
    for (uint32_t i = 0; i < keys->count; i++)
        if (strncmp(keys->keys[i], key, bytes) == 0 && keys->keys[i][bytes] == '\0')
            return i;
    if (!add || keys->count == CAIRN_DEEPSPEED_KEYS_MAX || bytes >= CAIRN_DEEPSPEED_KEY_BYTES_MAX)
        return UINT32_MAX;
    memcpy(keys->keys[keys->count], key, bytes);
    keys->keys[keys->count][bytes] = '\0';
    return keys->count++;
}

const char *
cairn_deepspeed_canonical(const char *path)
{
    static const char *const wrappers[] = {"module.", "_orig_mod."};
    bool found = true;

    while (found) {
        found = false;
        for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++) {
            size_t bytes = strlen(wrappers[i]);

            if (strncmp(path, wrappers[i], bytes) == 0 && path[bytes] != '\0') {
                path += bytes;
                found = true;
            }
        }
    }
    return path;
}

static cairn_err
read_parameter(const struct cairn_pickle_node *key, const struct cairn_pickle_node *size,
               struct cairn_deepspeed_parameter *parameter, const char **why)
{
    char path[CAIRN_NAME_BYTES_MAX];

    if (!cairn_pickle_copy_text(key, path, sizeof(path)) || !path[0]) {
        *why = "a name in param_shapes is not a text of at most 255 bytes";
        return CAIRN_CORRUPT;
    }
    if (!cairn_torch_read_size(size, parameter->shape, &parameter->dims)) {
        *why = "a shape in param_shapes is not a list of numbers";
        return CAIRN_CORRUPT;
    }
    if (!cairn_shape_bounded(parameter->dims, parameter->shape, ELEMENTS_MAX,
                             &parameter->elements)) {
        *why = "a shape in param_shapes has too many elements";
        return CAIRN_CORRUPT;
    }
    parameter->path = strdup(path);
    parameter->name = strdup(cairn_deepspeed_canonical(path));
    return parameter->path && parameter->name ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
read_group(const struct cairn_pickle_node *shapes, struct cairn_deepspeed_groups *out,
           struct cairn_deepspeed_group *group, const char **why)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(shapes);

    group->first = out->parameter_count;
    group->spread = 1;
    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        struct cairn_deepspeed_parameter *parameter = &out->parameters[out->parameter_count++];
        cairn_err err =
            read_parameter(pairs->items[2 * i], pairs->items[2 * i + 1], parameter, why);

        if (err)
            return err;
        parameter->begin = group->elements;
        group->elements += parameter->elements;
        if (group->elements > ELEMENTS_MAX) {
            *why = "param_shapes adds up to too many elements";
            return CAIRN_CORRUPT;
        }
        group->count++;
    }
    return CAIRN_OK;
}

cairn_err
cairn_deepspeed_groups_read(const struct cairn_pickle_node *shapes,
                            struct cairn_deepspeed_groups *out, const char **why)
{
    uint64_t total = 0;

    memset(out, 0, sizeof(*out));
    *why = "param_shapes is not a list of dicts";
    if (!cairn_pickle_is_list(shapes))
        return CAIRN_CORRUPT;
    for (uint32_t i = 0; i < shapes->count; i++) {
        const struct cairn_pickle_node *pairs = cairn_pickle_pairs(shapes->items[i]);

        if (!pairs && shapes->items[i]->kind != CAIRN_PICKLE_OBJECT)
            return CAIRN_CORRUPT;
        total += pairs ? pairs->count : 0; /* an empty OrderedDict has no pairs */
    }
    out->parameters = calloc(total + 1, sizeof(*out->parameters));
    out->groups = calloc((size_t)shapes->count + 1, sizeof(*out->groups));
    if (!out->parameters || !out->groups)
        return CAIRN_NOMEM;
    out->group_count = shapes->count;
    for (uint32_t i = 0; i < shapes->count; i++) {
        cairn_err err = read_group(shapes->items[i], out, &out->groups[i], why);

        if (err)
            return err;
    }
    return CAIRN_OK;
}

bool
cairn_deepspeed_groups_set_gaps(struct cairn_deepspeed_groups *groups, uint32_t group,
                                const struct cairn_pickle_node *gaps)
{
    struct cairn_deepspeed_group *known = &groups->groups[group];
    uint64_t elements = 0, gap;

    if (gaps->kind != CAIRN_PICKLE_LIST || gaps->count != known->count)
        return false;
    for (uint32_t i = 0; i < known->count; i++) {
        struct cairn_deepspeed_parameter *parameter = &groups->parameters[known->first + i];

        if (!cairn_pickle_u64(gaps->items[i], &gap) || gap > GAP_ELEMENTS_MAX)
            return false;
        parameter->begin = elements;
        elements += parameter->elements + gap;
    }
    if (elements > ELEMENTS_MAX)
        return false;
    known->elements = elements;
    return true;
}

void
cairn_deepspeed_groups_fini(struct cairn_deepspeed_groups *groups)
{
    for (uint32_t i = 0; i < groups->parameter_count; i++) {
        free(groups->parameters[i].name);
        free(groups->parameters[i].path);
    }
    free(groups->parameters);
    free(groups->groups);
    memset(groups, 0, sizeof(*groups));
}

uint64_t
cairn_deepspeed_evenly(uint64_t elements, uint64_t ranks)
{
    return elements / ranks + (elements % ranks != 0);
}

uint64_t
cairn_deepspeed_partition(const struct cairn_deepspeed_groups *groups, uint32_t group, bool stage3,
                          uint32_t ranks)
{
    const struct cairn_deepspeed_group *known = &groups->groups[group];
    uint64_t elements = 0;

    ranks /= known->spread;
    if (!stage3)
        return cairn_deepspeed_evenly(known->elements, (uint64_t)ALIGN_ELEMENTS * ranks) *
               ALIGN_ELEMENTS;
    for (uint32_t i = 0; i < known->count; i++)
        elements += cairn_deepspeed_evenly(groups->parameters[known->first + i].elements, ranks);
    return elements;
}

void
cairn_deepspeed_part(const struct cairn_deepspeed_parameter *parameter, bool stage3, uint32_t ranks,
                     uint32_t rank, uint64_t partition, uint64_t *begin, uint64_t *end,
                     uint64_t *at)
{
    uint64_t first, last;

    *begin = *end = *at = 0;
    if (stage3) {
        uint64_t part = cairn_deepspeed_evenly(parameter->elements, ranks);

        first = part * rank;
        last = first + part;
    } else {
        uint64_t part_begin = partition * rank, part_end = part_begin + partition;

        if (parameter->begin >= part_end || parameter->begin + parameter->elements <= part_begin)
            return;
        first = part_begin > parameter->begin ? part_begin - parameter->begin : 0;
        last = part_end - parameter->begin;
        *at = parameter->begin + first - part_begin;
    }
    if (first >= parameter->elements)
        return;
    *begin = first;
    *end = last < parameter->elements ? last : parameter->elements;
}
