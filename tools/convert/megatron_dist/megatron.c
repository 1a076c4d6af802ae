/* tools/convert/megatron_dist/megatron.c - see megatron_dist/megatron.h. */
#include "tools/convert/megatron_dist/megatron.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/megatron/settings.h"
#include "tools/convert/megatron/plain.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/pickle/compare.h"
#include "tools/convert/pickle/write.h"
#include "tools/convert/state/opaque_tree.h"

#define RNG_KEY "rng_state"

/* The object of a rank. */
struct object {
    struct cairn_megatron_rank rank;
    uint32_t tensor;
    struct cairn_pickle tree;
    struct cairn_pickle_node *root;
};

void
cairn_mdist_megatron_fini(struct cairn_mdist_megatron *made)
{
    for (uint32_t i = 0; i < made->value_count; i++)
        free(made->values[i].bytes);
    for (uint32_t i = 0; i < made->object_count; i++)
        free(made->objects[i].bytes);
    free(made->values);
    free(made->objects);
    free(made->dissolved);
    memset(made, 0, sizeof(*made));
}

static cairn_err
add_made(struct cairn_mdist_made **list, uint32_t *count, const char *name,
         const struct cairn_pickle *tree, const struct cairn_pickle_node *node)
{
    struct cairn_mdist_made *added;
    cairn_err err = cairn_pickle_done(tree);

    if (err)
        return err;
    if (!cairn_array_grow(list, *count, sizeof(**list)))
        return CAIRN_NOMEM;
    added = &(*list)[(*count)++];
    memset(added, 0, sizeof(*added));
    (void)snprintf(added->name, sizeof(added->name), "%s", name);
    return cairn_pickle_write(tree, node, &added->bytes, &added->bytes_len, NULL);
}

/* ---- objects of ranks ---- */

static cairn_err
load_object(const struct cairn_mdist_megatron *made, struct object *object)
{
    const char *name = cairn_layout_tensor(made->source->layout, object->tensor)->name;
    cairn_err err;

    cairn_pickle_init(&object->tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    err = cairn_opaque_read(made->source, name, CAIRN_CONVERT_METADATA_BYTES_MAX, &object->tree,
                            &object->root);
    if (!err && !cairn_pickle_pairs(object->root))
        err = cairn_refuse(made->source, CAIRN_CORRUPT, "%s: expected a dict", name);
    return err;
}

static int
compare_objects(const void *left, const void *right)
{
    const struct cairn_megatron_rank *a = &((const struct object *)left)->rank;
    const struct cairn_megatron_rank *b = &((const struct object *)right)->rank;

    return CAIRN_COMPARE(a->pp, b->pp) ?: CAIRN_COMPARE(a->tp, b->tp) ?:
           CAIRN_COMPARE(a->ep, b->ep);
}

/* All carried objects, by stage, tensor- and expert-parallel rank; the caller frees *objects. */
static cairn_err
list_objects(const struct cairn_mdist_megatron *made, struct object **objects, uint32_t *count)
{
    const struct cairn_layout *layout = made->source->layout;
    uint32_t tensors = cairn_layout_tensor_count(layout);

    *count = 0;
    *objects = calloc((size_t)tensors + 1, sizeof(**objects));
    if (!*objects)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < tensors; i++) {
        struct object *object = &(*objects)[*count];
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        struct cairn_megatron_rank rank = {0};
        const char *at = tensor->name;

        if (tensor->kind != CAIRN_OPAQUE)
            continue;
        if (strcmp(at, CAIRN_MEGATRON_COMMON) != 0 &&
            (!cairn_number_after(&at, "rank", &rank.tp) ||
             !cairn_number_after(&at, "_", &rank.pp) || !cairn_number_after(&at, "_", &rank.ep) ||
             strcmp(at, "/" CAIRN_MEGATRON_COMMON) != 0))
            continue;
        object->rank = rank;
        object->tensor = i;
        (*count)++;
    }
    qsort(*objects, *count, sizeof(**objects), compare_objects);
    return CAIRN_OK;
}

/* "model", "model<chunk>", and what an earlier conversion added: the reader has taken it out. */
static bool
is_empty_key(const char *key)
{
    return strcmp(key, CAIRN_MEGATRON_CARRIED) == 0 || strcmp(key, CAIRN_MEGATRON_SIZES) == 0 ||
           (strncmp(key, "model", 5) == 0 && key[5 + strspn(key + 5, "0123456789")] == '\0');
}

/* ---- values of common.pt ---- */

static bool
has_experts(const struct cairn_layout *layout)
{
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
        if (strstr(cairn_layout_tensor(layout, i)->name, ".local_experts."))
            return true;
    return false;
}

/* The optimizer's settings, for the expert parallelism that was asked for. */
static struct cairn_pickle_node *
settle(const struct cairn_mdist_megatron *made, struct cairn_pickle *tree,
       struct cairn_pickle_node *settings)
{
    uint32_t ep = made->options->parallelism.ep;

    if (ep > 0)
        settings = cairn_megatron_settings_for(tree, settings,
                                               ep > 1 && has_experts(made->source->layout));
    return cairn_megatron_settings_reshardable(tree, settings);
}

/* Whether settings are of state by parameter; other encodings stay as they were. */
static bool
is_reshardable(const struct cairn_pickle_node *settings)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(settings);
    bool all = pairs && pairs->count > 0;
    uint64_t number;

    if (!all || !cairn_pickle_u64(pairs->items[0], &number))
        return cairn_pickle_is_text(cairn_pickle_get(settings, CAIRN_MEGATRON_SETTINGS_TYPE),
                                    CAIRN_MEGATRON_RESHARDABLE);
    for (uint32_t i = 0; i < pairs->count; i++)
        all = all && cairn_pickle_is_text(
                         cairn_pickle_get(pairs->items[2 * i + 1], CAIRN_MEGATRON_SETTINGS_TYPE),
                         CAIRN_MEGATRON_RESHARDABLE);
    return all;
}

/* Those of a distributed checkpoint, if expert parallelism changes. */
static cairn_err
retake_settings(struct cairn_mdist_megatron *made)
{
    struct object object = {.tensor =
                                cairn_layout_tensor_find(made->source->layout, "optimizer.pickle")};
    struct cairn_pickle_node *settings;
    cairn_err err;

    if (object.tensor == UINT32_MAX || made->options->parallelism.ep == 0)
        return CAIRN_OK;
    err = load_object(made, &object);
    if (!err && is_reshardable(object.root)) {
        settings =
            settle(made, &object.tree, cairn_megatron_settings_plain(&object.tree, object.root));
        err = add_made(&made->values, &made->value_count, "optimizer", &object.tree, settings);
        made->dissolved[object.tensor] = true;
    }
    cairn_pickle_fini(&object.tree);
    return err;
}

static cairn_err
take_value(struct cairn_mdist_megatron *made, struct object *first, const char *key,
           struct cairn_pickle_node *value)
{
    char name[CAIRN_NAME_BYTES_MAX + sizeof(".pickle")];

    (void)snprintf(name, sizeof(name), "%s.pickle", key);
    if (strchr(key, '/') || cairn_layout_tensor_find(made->source->layout, name) != UINT32_MAX)
        return cairn_refuse(made->source, CAIRN_INVAL,
                            "%s of the first rank's object cannot be a value of " CAIRN_MDIST_COMMON
                            "; leave it out with --drop",
                            key);
    if (strcmp(key, "optimizer") == 0)
        value = settle(made, &first->tree, value);
    return add_made(&made->values, &made->value_count, key, &first->tree, value);
}

static cairn_err
take_values(struct cairn_mdist_megatron *made, struct object *first)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(first->root);
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < pairs->count && !err; i++) {
        char key[CAIRN_NAME_BYTES_MAX - sizeof(".pickle")];

        if (!cairn_pickle_copy_text(pairs->items[2 * i], key, sizeof(key)))
            return cairn_refuse(made->source, CAIRN_CORRUPT,
                                "the first rank's object has a key that is not a text (a %s)",
                                cairn_pickle_kind_name(pairs->items[2 * i]));
        if (!is_empty_key(key) && strcmp(key, RNG_KEY) != 0)
            err = take_value(made, first, key, pairs->items[2 * i + 1]);
    }
    if (!err && cairn_pickle_get(first->root, "optimizer") &&
        !cairn_megatron_plain(cairn_pickle_get(first->root, "optimizer")) &&
        !cairn_pickle_get(first->root, CAIRN_MEGATRON_CONTENT))
        err = add_made(&made->values, &made->value_count, CAIRN_MEGATRON_CONTENT, &first->tree,
                       cairn_megatron_settings_content(&first->tree));
    return err;
}

/* ---- RNG states ---- */

/* A copy of an object without models, RNG states, and what its args say of the one process. */
static struct cairn_pickle_node *
rest_of(struct object *object)
{
    static const char *const own[] = {"rank", "local_rank"};
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(object->root);
    struct cairn_pickle_node *args = cairn_pickle_get(object->root, "args");
    struct cairn_pickle_node *copy = cairn_pickle_dict(&object->tree);

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        cairn_megatron_args_set(args, own[i], cairn_pickle_none(&object->tree));
    for (uint32_t i = 0; i < pairs->count; i++) {
        char key[CAIRN_NAME_BYTES_MAX];

        if (!cairn_pickle_copy_text(pairs->items[2 * i], key, sizeof(key)) ||
            (!is_empty_key(key) && strcmp(key, RNG_KEY) != 0))
            cairn_pickle_put(&object->tree, copy, pairs->items[2 * i], pairs->items[2 * i + 1]);
    }
    return copy;
}

/* The RNG states of a pair of stage and tensor-parallel rank, as Megatron-Core shards them. */
static cairn_err
take_states(struct cairn_mdist_megatron *made, struct object *object,
            const struct cairn_parallelism *sizes)
{
    struct cairn_pickle_node *states = cairn_pickle_get(object->root, RNG_KEY);
    char name[64];

    if (!states || states->kind == CAIRN_PICKLE_NONE)
        return CAIRN_OK;
    (void)snprintf(name, sizeof(name),
                   RNG_KEY "/shard_%" PRIu32 ".%" PRIu32 "_%" PRIu32 ".%" PRIu32, object->rank.pp,
                   object->rank.tp, sizes->pp, sizes->tp);
    return add_made(&made->objects, &made->object_count, name, &object->tree,
                    cairn_pickle_sequence(&object->tree, CAIRN_PICKLE_LIST, &states, 1));
}

/* What a rank says beside its RNG states is written where the first does not say the same. */
static cairn_err
take_rest(struct cairn_mdist_megatron *made, struct object *object,
          const struct cairn_pickle_node *first)
{
    struct cairn_pickle_node *rest = rest_of(object);
    char name[96], path[1];
    bool same = false;
    cairn_err err = cairn_pickle_done(&object->tree);

    if (!err)
        err = cairn_pickle_compare(&object->tree, rest, first, true, path, sizeof(path), &same);
    if (err || same)
        return err;
    (void)snprintf(name, sizeof(name),
                   "rank%" PRIu32 "_%" PRIu32 "_%" PRIu32 "/megatron/common/shard_0_1",
                   object->rank.tp, object->rank.pp, object->rank.ep);
    return add_made(&made->objects, &made->object_count, name, &object->tree, rest);
}

static cairn_err
take_ranks(struct cairn_mdist_megatron *made, struct object *objects, uint32_t count,
           struct object *first)
{
    struct cairn_megatron_args args;
    struct cairn_parallelism sizes;
    struct cairn_pickle_node *rest;
    cairn_err err;

    cairn_megatron_args_read(cairn_pickle_get(first->root, "args"), &args);
    sizes = args.sizes;
    for (uint32_t i = 0; i < count; i++) {
        if (objects[i].rank.tp >= sizes.tp)
            sizes.tp = objects[i].rank.tp + 1;
        if (objects[i].rank.pp >= sizes.pp)
            sizes.pp = objects[i].rank.pp + 1;
    }
    err = take_states(made, first, &sizes);
    rest = rest_of(first);
    if (!err)
        err = cairn_pickle_done(&first->tree);
    for (uint32_t i = 1; i < count && !err; i++) {
        if (objects[i].rank.pp == objects[i - 1].rank.pp &&
            objects[i].rank.tp == objects[i - 1].rank.tp)
            continue; /* of another expert-parallel rank, whose states have no place: carried */
        err = load_object(made, &objects[i]);
        if (!err)
            err = take_states(made, &objects[i], &sizes);
        if (!err)
            err = take_rest(made, &objects[i], rest);
        cairn_pickle_fini(&objects[i].tree);
        made->dissolved[objects[i].tensor] = true;
    }
    return err;
}

/* ---- the whole ---- */

cairn_err
cairn_mdist_megatron_take(const struct cairn_checkpoint *source,
                          const struct cairn_output_options *options,
                          struct cairn_mdist_megatron *out)
{
    struct object *objects = NULL;
    uint32_t count = 0;
    cairn_err err;

    *out = (struct cairn_mdist_megatron){.source = source, .options = options};
    out->dissolved =
        calloc((size_t)cairn_layout_tensor_count(source->layout) + 1, sizeof(*out->dissolved));
    if (!out->dissolved)
        return CAIRN_NOMEM;
    if (cairn_layout_tensor_find(source->layout, CAIRN_MEGATRON_COMMON) == UINT32_MAX ||
        cairn_layout_tensor_find(source->layout, "args.pickle") != UINT32_MAX)
        return retake_settings(out);
    err = list_objects(out, &objects, &count);
    if (!err)
        err = load_object(out, &objects[0]); /* ranks (0, 0, 0) sort first */
    if (!err)
        err = take_values(out, &objects[0]);
    if (!err)
        err = take_ranks(out, objects, count, &objects[0]);
    if (!err)
        out->dissolved[objects[0].tensor] = true;
    if (count > 0)
        cairn_pickle_fini(&objects[0].tree);
    free(objects);
    return err;
}
