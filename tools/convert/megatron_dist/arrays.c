/* tools/convert/megatron_dist/arrays.c - see megatron_dist/arrays.h. */
#include "tools/convert/megatron_dist/arrays.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "snapshot/box.h"
#include "tools/convert/core/format.h"
#include "tools/convert/megatron/names.h"

/* ---- members by pattern ---- */

struct named {
    struct cairn_mdist_name *name;
    struct cairn_mdist_member member;
};

static int
compare_names(const struct cairn_mdist_name *a, const struct cairn_mdist_name *b)
{
    return strcmp(a->pattern, b->pattern) ?: strcmp(a->state, b->state);
}

static int
compare_named(const void *left, const void *right)
{
    const struct named *a = left, *b = right;

    return compare_names(a->name, b->name) ?: CAIRN_COMPARE(a->member.tensor, b->member.tensor);
}

/* Sorts by the numbers whose bits are set, then by the others. */
static int
compare_members(const void *left, const void *right, void *bits)
{
    const struct cairn_mdist_member *a = left, *b = right;
    uint32_t first = *(const uint32_t *)bits;

    for (int round = 0; round < 2; round++)
        for (uint32_t d = 0; d < CAIRN_MDIST_STARS_MAX; d++)
            if (((first >> d & 1) == 0) == round && a->numbers[d] != b->numbers[d])
                return a->numbers[d] < b->numbers[d] ? -1 : 1;
    return 0;
}

bool
cairn_mdist_same_numbers(const struct cairn_mdist_member *a, const struct cairn_mdist_member *b,
                         uint32_t bits)
{
    for (uint32_t d = 0; d < CAIRN_MDIST_STARS_MAX; d++)
        if ((bits >> d & 1) && a->numbers[d] != b->numbers[d])
            return false;
    return true;
}

static cairn_err
name_member(const struct cairn_checkpoint *source, uint32_t tensor, struct named *named)
{
    const struct cairn_tensor *known = cairn_layout_tensor(source->layout, tensor);
    const char *dot = strchr(known->name, '.');
    uint32_t state_bytes =
        known->kind == CAIRN_OPTIMIZER && dot ? (uint32_t)(dot - known->name) : 0;
    struct cairn_megatron_name parts;

    /* of grouped modules, as files of ranks have them: no job looks for such a key here */
    if (strcmp(source->format->name, "megatron-dist") != 0 &&
        cairn_megatron_name_parse(known->name, &parts) && parts.has_layer && parts.grouped)
        return cairn_complain(
            source->complaint, CAIRN_INVAL,
            "tensor %s: is an expert under the name of grouped modules, which a checkpoint of "
            "Megatron-Core does not have; map with --set expert_modules=local",
            known->name);
    named->member.tensor = tensor;
    named->name = malloc(sizeof(*named->name));
    if (!named->name)
        return CAIRN_NOMEM;
    if (!strchr(known->name, '*') &&
        cairn_mdist_pattern_of(known->name, state_bytes, named->name, named->member.numbers))
        return CAIRN_OK;
    return cairn_complain(source->complaint, CAIRN_INVAL,
                          "tensor %s: has a name that no checkpoint of Megatron-Core can have",
                          known->name);
}

static cairn_err
group_members(struct cairn_mdist_arrays *arrays, struct named *named)
{
    for (size_t i = 0; i < arrays->member_count; i++) {
        struct cairn_mdist_pattern *last =
            arrays->pattern_count > 0 ? &arrays->patterns[arrays->pattern_count - 1] : NULL;

        if (!last || compare_names(last->name, named[i].name) != 0) {
            if (!cairn_array_grow(&arrays->patterns, arrays->pattern_count,
                                  sizeof(*arrays->patterns)))
                return CAIRN_NOMEM;
            last = &arrays->patterns[arrays->pattern_count++];
            *last = (struct cairn_mdist_pattern){.name = named[i].name, .first = i};
            named[i].name = NULL;
        }
        last->count++;
        arrays->members[i] = named[i].member;
        arrays->members[i].pattern = arrays->pattern_count - 1;
    }
    return CAIRN_OK;
}

static cairn_err
find_patterns(const struct cairn_checkpoint *source, const bool *take,
              struct cairn_mdist_arrays *arrays)
{
    uint32_t count = cairn_layout_tensor_count(source->layout);
    struct named *named = calloc((size_t)count + 1, sizeof(*named));
    cairn_err err = CAIRN_OK;

    arrays->members = calloc((size_t)count + 1, sizeof(*arrays->members));
    if (!named || !arrays->members)
        err = CAIRN_NOMEM;
    for (uint32_t i = 0; i < count && !err; i++)
        if (take[i])
            err = name_member(source, i, &named[arrays->member_count++]);
    if (!err) {
        qsort(named, arrays->member_count, sizeof(*named), compare_named);
        err = group_members(arrays, named);
    }
    for (uint32_t i = 0; named && i < count; i++)
        free(named[i].name);
    free(named);
    return err;
}

/* ---- what can be stacked ---- */

static bool
all_alike(const struct cairn_checkpoint *source, const struct cairn_mdist_member *members,
          size_t count)
{
    const struct cairn_tensor *first = cairn_layout_tensor(source->layout, members[0].tensor);

    for (size_t i = 1; i < count; i++) {
        const struct cairn_tensor *other = cairn_layout_tensor(source->layout, members[i].tensor);

        if (other->dtype != first->dtype || other->kind != first->kind ||
            !cairn_shape_equal(other->dims, other->shape, first->dims, first->shape))
            return false;
    }
    return true;
}

/* Whether each number of star d is there, for each combination of the others. */
static bool
is_regular(struct cairn_mdist_member *members, size_t count, uint32_t stars, uint32_t d,
           uint64_t extent)
{
    uint32_t others = ((1U << stars) - 1) & ~(1U << d);
    size_t combinations = 1;

    qsort_r(members, count, sizeof(*members), compare_members, &others);
    for (size_t i = 1; i < count; i++)
        combinations += !cairn_mdist_same_numbers(&members[i - 1], &members[i], others);
    return extent <= count && combinations * extent == count;
}

static void
measure(const struct cairn_checkpoint *source, struct cairn_mdist_arrays *arrays,
        struct cairn_mdist_pattern *pattern)
{
    struct cairn_mdist_member *members = arrays->members + pattern->first;
    uint32_t stars = pattern->name->stars;
    const struct cairn_tensor *first = cairn_layout_tensor(source->layout, members[0].tensor);

    for (size_t i = 0; i < pattern->count; i++)
        for (uint32_t d = 0; d < stars; d++)
            if (members[i].numbers[d] >= pattern->extents[d])
                pattern->extents[d] = members[i].numbers[d] + 1;
    if (stars + first->dims > CAIRN_DIMS_MAX || !all_alike(source, members, pattern->count))
        return;
    for (uint32_t d = 0; d < stars; d++)
        if (is_regular(members, pattern->count, stars, d, pattern->extents[d]))
            pattern->regular |= 1U << d;
}

/* What stands before a number, in all patterns that have it: all are stacked, or none. */
struct root {
    const char *text;
    size_t bytes;
    uint64_t extent;
    bool stacked;
};

static const char *
star_at(const struct cairn_mdist_pattern *pattern, uint32_t star)
{
    const char *at = strchr(pattern->name->pattern, '*');

    while (at && star-- > 0)
        at = strchr(at + 1, '*');
    return at;
}

static struct root *
find_root(struct root *roots, uint32_t *count, const struct cairn_mdist_pattern *pattern,
          uint32_t star, const struct cairn_mdist_apart *apart)
{
    const char *text = pattern->name->pattern;
    struct root made = {text, (size_t)(star_at(pattern, star) - text), 0, true};

    for (uint32_t i = 0; i < *count; i++)
        if (roots[i].bytes == made.bytes && memcmp(roots[i].text, text, made.bytes) == 0)
            return &roots[i];
    for (uint32_t a = 0; a < apart->count; a++)
        if (strlen(apart->roots[a]) == made.bytes && memcmp(apart->roots[a], text, made.bytes) == 0)
            made.stacked = false;
    roots[*count] = made;
    return &roots[(*count)++];
}

static cairn_err
choose_stacks(struct cairn_mdist_arrays *arrays, const struct cairn_mdist_apart *apart)
{
    struct root *roots =
        calloc((size_t)arrays->pattern_count * CAIRN_MDIST_STARS_MAX + 1, sizeof(*roots));
    uint32_t count = 0;

    if (!roots)
        return CAIRN_NOMEM;
    for (int round = 0; round < 3; round++) /* the extents of all, what can be stacked, what is */
        for (uint32_t i = 0; i < arrays->pattern_count; i++)
            for (uint32_t d = 0; d < arrays->patterns[i].name->stars; d++) {
                struct cairn_mdist_pattern *pattern = &arrays->patterns[i];
                struct root *root = find_root(roots, &count, pattern, d, apart);

                if (round == 0 && pattern->extents[d] > root->extent)
                    root->extent = pattern->extents[d];
                else if (round == 1)
                    root->stacked = root->stacked && (pattern->regular >> d & 1) &&
                                    pattern->extents[d] == root->extent;
                else if (round == 2 && root->stacked)
                    pattern->stacked |= 1U << d;
            }
    free(roots);
    return CAIRN_OK;
}

/* ---- the whole ---- */

cairn_err
cairn_mdist_arrays_find(const struct cairn_checkpoint *source, const bool *take,
                        const struct cairn_mdist_apart *apart, struct cairn_mdist_arrays *out)
{
    cairn_err err;

    memset(out, 0, sizeof(*out));
    err = find_patterns(source, take, out);
    for (uint32_t i = 0; i < out->pattern_count && !err; i++)
        measure(source, out, &out->patterns[i]);
    if (!err)
        err = choose_stacks(out, apart);
    for (uint32_t i = 0; i < out->pattern_count && !err; i++) {
        uint32_t fixed = ~out->patterns[i].stacked;

        qsort_r(out->members + out->patterns[i].first, out->patterns[i].count,
                sizeof(*out->members), compare_members, &fixed);
    }
    return err;
}

void
cairn_mdist_arrays_fini(struct cairn_mdist_arrays *arrays)
{
    for (uint32_t i = 0; i < arrays->pattern_count; i++)
        free(arrays->patterns[i].name);
    free(arrays->patterns);
    free(arrays->members);
    memset(arrays, 0, sizeof(*arrays));
}
