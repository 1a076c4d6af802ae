/*
 * tools/convert/megatron_dist/write.c - lays out a checkpoint that Megatron-Core's
 * dist_checkpointing loads: arrays with their layers and experts stacked, the optimizer fully
 * reshardable, objects, common.pt, and metadata.json as commit marker.
 */
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/dcp/output.h"
#include "tools/convert/megatron_dist/arrays.h"
#include "tools/convert/megatron_dist/megatron.h"
#include "tools/convert/megatron/names.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/megatron/settings.h"
#include "tools/convert/megatron/state.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/pickle/write.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/torch/refs.h"
#include "tools/convert/megatron/dist_names.h"
#include "tools/convert/torch/output.h"

static cairn_err
read_value(const struct cairn_checkpoint *source, uint32_t tensor, struct cairn_pickle *tree,
           struct cairn_pickle_node **value)
{
    return cairn_opaque_read(source, cairn_layout_tensor(source->layout, tensor)->name,
                             CAIRN_MDIST_OBJECT_BYTES_MAX, tree, value);
}

/* Whether opaque state is a pickle all of whose tensors are the source's. CAIRN_NOMEM, errors of
 * reading. */
static cairn_err
common_fits(const struct cairn_checkpoint *source, const struct cairn_output_options *options,
            uint32_t tensor, bool *fits)
{
    struct cairn_torch_refs refs = {0};
    struct cairn_pickle_node *value = NULL;
    struct cairn_pickle tree;
    cairn_err err = CAIRN_OK;

    *fits = false;
    if (cairn_layout_tensor(source->layout, tensor)->shape[0] > CAIRN_MDIST_OBJECT_BYTES_MAX)
        return CAIRN_OK;
    cairn_pickle_init(&tree, CAIRN_DCP_TREE_BYTES_MAX);
    err = read_value(source, tensor, &tree, &value);
    if (!err)
        err = cairn_torch_refs_find(source, options, &tree, value, &refs);
    *fits = err == CAIRN_OK;
    if (err == CAIRN_CORRUPT || err == CAIRN_NOT_FOUND || err == CAIRN_INVAL)
        err = CAIRN_OK;
    cairn_torch_refs_fini(&refs);
    cairn_pickle_fini(&tree);
    return err;
}

/* Adds the file: values[count] fit, and are in the order of the dict, behind them made[made_count].
 * Sets inside[tensor] for tensors that lie in it and nowhere else. *out is for the caller to finish
 * and to end in any case. */
static cairn_err
common_add(const struct cairn_checkpoint *source, const struct cairn_output_options *options,
           const uint32_t *values, uint32_t count, const struct cairn_mdist_made *made,
           uint32_t made_count, bool *inside, struct cairn_output *output,
           struct cairn_torch_output *out)
{
    char key[CAIRN_NAME_BYTES_MAX];
    struct cairn_pickle tree;
    struct cairn_pickle_node *root, *value = NULL;
    cairn_err err = CAIRN_OK;

    cairn_pickle_init(&tree, CAIRN_DCP_TREE_BYTES_MAX);
    root = cairn_pickle_dict(&tree);
    for (uint32_t i = 0; i < count && !err; i++) {
        const char *name = cairn_layout_tensor(source->layout, values[i])->name;

        err = read_value(source, values[i], &tree, &value);
        if (err)
            break;
        memcpy(key, name, strlen(name) + 1);
        key[strlen(name) - strlen(".pickle")] = '\0';
        cairn_pickle_set(&tree, root, key, value);
        err = cairn_output_add_carried(output, values[i]);
    }
    for (uint32_t i = 0; i < made_count && !err; i++) {
        err = cairn_pickle_read(&tree, made[i].name, made[i].bytes, made[i].bytes_len, &value,
                                source->complaint);
        if (!err)
            cairn_pickle_set(&tree, root, made[i].name, value);
    }
    if (!err)
        err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_torch_refs_add(source, options, NULL, &tree, root, output, CAIRN_MDIST_COMMON,
                                   out);
    for (uint32_t i = 0; i < out->storage_count && !err; i++) {
        uint32_t tensor = out->storages[i].identity;

        if (cairn_layout_tensor(source->layout, tensor)->kind == CAIRN_BUFFER)
            inside[tensor] = true; /* what the model has is an array as well */
    }
    cairn_pickle_fini(&tree);
    return err;
}

#define ENDING CAIRN_MDIST_EXTRA_ENDING
enum { VALUE_BYTES_MAX = 1 << 26 };

/* Whether this parameter is the weight of a module that has such an object. */
static bool
extra_of(const char *parameter)
{
    const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(parameter);
    const char *last = strrchr(parameter, '.');

    /* Megatron-Core leaves that of the output layer out, for older checkpoints have none */
    return rule && rule->extra_state && strcmp(last, ".weight") == 0 &&
           strcmp(parameter, CAIRN_MEGATRON_OUTPUT) != 0;
}

/* Whether the source was saved by Megatron-Core's dist_checkpointing, and has its objects. */
static bool
extra_there(const struct cairn_checkpoint *source)
{
    return cairn_layout_tensor_find(source->layout, "args.pickle") != UINT32_MAX ||
           cairn_layout_tensor_find(source->layout, CAIRN_MEGATRON_CONTENT ".pickle") != UINT32_MAX;
}

/* Notes what Megatron-LM's own files had of modules, as far as it will be in such objects: tensors
 * in dcp->inside, pickles in dissolved[tensors of the source]. */
static void
extra_claim(struct cairn_dcp_output *dcp, bool *dissolved)
{
    const struct cairn_layout *layout = dcp->source->layout;
    char name[CAIRN_NAME_BYTES_MAX];

    if (extra_there(dcp->source))
        return;
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        const char *state = tensor->name + strlen(CAIRN_MEGATRON_EXTRA), *end;

        if (strncmp(tensor->name, CAIRN_MEGATRON_EXTRA, strlen(CAIRN_MEGATRON_EXTRA)) != 0)
            continue;
        end = strstr(state, ENDING);
        if (!end ||
            snprintf(name, sizeof(name), "%.*s.weight", (int)(end - state), state) >=
                (int)sizeof(name) ||
            cairn_layout_tensor_find(layout, name) == UINT32_MAX || !extra_of(name))
            continue;
        if (tensor->kind != CAIRN_OPAQUE && strcmp(end, ENDING) == 0)
            dcp->inside[i] = true;
        else if (tensor->kind == CAIRN_OPAQUE && strcmp(end, ENDING ".pickle") == 0)
            dissolved[i] = true;
    }
}

/* What is kept of a module under its name in Megatron-LM's own files; None. */
static cairn_err
find_value(const struct cairn_dcp_output *dcp, const char *state, struct cairn_pickle *tree,
           struct cairn_pickle_node **value)
{
    char name[CAIRN_NAME_BYTES_MAX + sizeof(CAIRN_MEGATRON_EXTRA) + sizeof(".pickle")];
    cairn_err err;

    (void)snprintf(name, sizeof(name), CAIRN_MEGATRON_EXTRA "%s", state);
    if (cairn_layout_tensor_find(dcp->source->layout, name) != UINT32_MAX) {
        *value = cairn_pickle_tensor(tree, name);
        return CAIRN_OK;
    }
    (void)snprintf(name, sizeof(name), CAIRN_MEGATRON_EXTRA "%s.pickle", state);
    err = cairn_opaque_read(dcp->source, name, VALUE_BYTES_MAX, tree, value);
    if (err != CAIRN_NOT_FOUND)
        return err;
    *value = cairn_pickle_none(tree);
    return CAIRN_OK;
}

/* Adds the object of a parameter's module: what Megatron-LM's own files had, else None. */
static cairn_err
extra_add(struct cairn_dcp_output *dcp, const char *parameter, uint32_t stacked,
          const uint64_t *extents)
{
    static const struct cairn_state_path no_path;
    char name[CAIRN_NAME_BYTES_MAX], state[CAIRN_NAME_BYTES_MAX];
    struct cairn_pickle_node *value = NULL, *root;
    struct cairn_pickle tree;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    if (!cairn_mdist_extra_state(parameter, state) ||
        !cairn_mdist_extra_key(parameter, stacked, extents, name))
        return cairn_refuse(dcp->source, CAIRN_INVAL,
                            "the name of %s is too long for the extra state of its module",
                            parameter);
    cairn_pickle_init(&tree, 4 * (uint64_t)VALUE_BYTES_MAX);
    err = find_value(dcp, state, &tree, &value);
    root = err ? NULL : cairn_pickle_sequence(&tree, CAIRN_PICKLE_LIST, &value, 1);
    if (!err)
        err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_pickle_write(&tree, root, &bytes, &bytes_len, dcp->source->complaint);
    if (!err)
        err = cairn_dcp_output_made(dcp, bytes, bytes_len, name, &no_path);
    cairn_pickle_fini(&tree);
    free(bytes);
    return err;
}

#define MARKER_TEXT                                                                                \
    "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "                       \
    "\"common_backend\": \"torch\", \"common_backend_version\": 1}"

/* Each chunk is an archive: with a thousand ranks, those of a norm would hold a number each. So
 * their count is bounded by tensors and bytes, not by ranks. */
enum { CHUNK_BYTES_MIN = 1 << 20 };

static const struct cairn_state_path no_path;

/* What is kept between plan and finish. */
struct state {
    struct cairn_dcp_kept *kept;
    struct cairn_torch_output common;
};

/* A key that is not the one by default. */
struct other_key {
    const char *by_default, *key;
};

struct planning {
    const struct cairn_checkpoint *source;
    const struct cairn_output_options *options;
    struct cairn_output *output;
    struct cairn_dcp_output dcp;
    struct cairn_mdist_arrays arrays;
    struct cairn_mdist_megatron megatron; /* what is made of Megatron-LM's own objects */
    struct cairn_opaque_tree kept;        /* what the source kept of its keys */
    struct other_key *others;             /* sorted */
    uint32_t other_count;
    const char **apart;
    uint32_t apart_count;
    bool halves;
    bool norms; /* they were modules of their own there, and so they stay */
};

void
cairn_mdist_release(void *pointer)
{
    struct state *state = pointer;

    if (!state)
        return;
    cairn_dcp_kept_end(state->kept);
    cairn_torch_output_fini(&state->common);
    free(state);
}

/* ---- what the source kept ---- */

static int
compare_others(const void *left, const void *right)
{
    const struct other_key *a = left, *b = right;

    return strcmp(a->by_default, b->by_default);
}

static const char *
keep_text(struct planning *planning, const struct cairn_pickle_node *node)
{
    char *text = node->kind == CAIRN_PICKLE_TEXT
                     ? cairn_pickle_alloc(&planning->kept.tree, (uint64_t)node->count + 1)
                     : NULL;

    return text && cairn_pickle_copy_text(node, text, (size_t)node->count + 1) ? text : NULL;
}

/* Anything but such a list counts as nothing. */
static cairn_err
load_keys(struct planning *planning)
{
    const struct cairn_pickle_node *list;
    cairn_err err = cairn_opaque_tree_open(planning->source, CAIRN_MDIST_KEYS, &planning->kept);

    if (err)
        return err == CAIRN_NOT_FOUND || (planning->kept.loaded && err != CAIRN_NOMEM) ? CAIRN_OK
                                                                                       : err;
    list = planning->kept.root;
    if (list->kind != CAIRN_PICKLE_LIST)
        return CAIRN_OK;
    planning->others = calloc((size_t)list->count + 1, sizeof(*planning->others));
    planning->apart = calloc((size_t)list->count + 1, sizeof(*planning->apart));
    if (!planning->others || !planning->apart)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct cairn_pickle_node *line = list->items[i];
        const char *word, *text;

        if (line->kind != CAIRN_PICKLE_TUPLE || line->count != 2)
            continue;
        word = keep_text(planning, line->items[0]);
        text = keep_text(planning, line->items[1]);
        if (!word || !text)
            continue;
        if (strcmp(word, "halves") == 0)
            planning->halves = true;
        else if (strcmp(word, "norms") == 0)
            planning->norms = true;
        else if (strcmp(word, "apart") == 0)
            planning->apart[planning->apart_count++] = text;
        else
            planning->others[planning->other_count++] = (struct other_key){word, text};
    }
    qsort(planning->others, planning->other_count, sizeof(*planning->others), compare_others);
    return CAIRN_OK;
}

/* ---- arrays ---- */

/* Whether a layer has a tensor; `layer` is what its names begin with. */
static bool
layer_has(const struct planning *planning, const char *layer, int layer_bytes, const char *what)
{
    char name[CAIRN_NAME_BYTES_MAX];

    return snprintf(name, sizeof(name), "%.*s%s", layer_bytes, layer, what) < (int)sizeof(name) &&
           cairn_layout_tensor_find(planning->source->layout, name) != UINT32_MAX;
}

/* The name that Megatron-Core's local spec gives a norm in a distributed checkpoint. With latent
 * attention, which has no linear_qkv, it keeps the one it has. */
static bool
is_local_norm(const struct planning *planning, const struct cairn_mdist_name *name,
              const char *example, struct cairn_mdist_name *saved)
{
    const char *layer = example + (name->state[0] ? strlen(name->state) + 1 : 0), *at;
    char other[CAIRN_NAME_BYTES_MAX];
    int bytes;

    *saved = *name;
    if (planning->norms ||
        !cairn_megatron_norm_rename(name->pattern, true, saved->pattern, sizeof(saved->pattern)) ||
        !cairn_megatron_norm_rename(example, true, other, sizeof(other)))
        return false;
    at = strstr(layer, ".input_layernorm.");
    if (!at)
        at = strstr(layer, ".pre_mlp_layernorm.");
    bytes = at ? (int)(at - layer) + 1 : 0;
    return cairn_layout_tensor_find(planning->source->layout, other) == UINT32_MAX &&
           layer_has(planning, layer, bytes, "input_layernorm.weight") &&
           layer_has(planning, layer, bytes, "self_attention.linear_qkv.weight") &&
           !layer_has(planning, layer, bytes, "self_attention.linear_qkv.layer_norm_weight");
}

/* The key of an array; the reader must find in it what is put there. */
static cairn_err
choose_key(struct planning *planning, const struct cairn_mdist_name *name, const char *example,
           char key[CAIRN_MDIST_NAME_BYTES_MAX])
{
    struct cairn_mdist_name read, saved;
    struct other_key wanted = {.by_default = key};
    const struct other_key *other;

    if (is_local_norm(planning, name, example, &saved))
        name = &saved;
    if (!cairn_mdist_key_of(name, key) || !cairn_mdist_name_of_key(key, &read) ||
        read.stars != name->stars || strcmp(read.pattern, name->pattern) != 0 ||
        strcmp(read.state, name->state) != 0 || cairn_text_ends(key, "_w") ||
        cairn_text_ends(key, "_v") ||
        strncmp(key, CAIRN_MDIST_CARRIED, strlen(CAIRN_MDIST_CARRIED)) == 0)
        return cairn_refuse(planning->source, CAIRN_INVAL,
                            "tensor %s has a name that means something else in a checkpoint of "
                            "Megatron-Core (as %.200s); map it to another name, or drop it",
                            example, key);
    other = planning->other_count > 0 ? bsearch(&wanted, planning->others, planning->other_count,
                                                sizeof(wanted), compare_others)
                                      : NULL;
    if (other && strlen(other->key) < CAIRN_MDIST_NAME_BYTES_MAX)
        (void)snprintf(key, CAIRN_MDIST_NAME_BYTES_MAX, "%s", other->key);
    return CAIRN_OK;
}

/* members[count] make an array, or the half of one that begins at row `from`. */
static cairn_err
add_array(struct planning *planning, const char *key, const struct cairn_mdist_pattern *pattern,
          const struct cairn_mdist_member *members, size_t count, uint64_t from, uint64_t rows)
{
    const struct cairn_tensor *first =
        cairn_layout_tensor(planning->source->layout, members[0].tensor);
    struct cairn_dcp_part part = {.from = from, .rows = rows};
    uint64_t shape[CAIRN_DIMS_MAX];
    uint32_t dims = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t d = 0; d < pattern->name->stars; d++)
        if (pattern->stacked >> d & 1)
            shape[dims++] = pattern->extents[d];
    part.ahead = dims;
    memcpy(shape + dims, first->shape, first->dims * sizeof(*shape));
    if (rows > 0)
        shape[dims] = rows;
    cairn_dcp_output_array(&planning->dcp, key, &no_path,
                           cairn_output_dtype(planning->options, first), dims + first->dims, shape);
    for (size_t i = 0; i < count && !err; i++) {
        uint32_t at = 0;

        part.tensor = members[i].tensor;
        for (uint32_t d = 0; d < pattern->name->stars; d++)
            if (pattern->stacked >> d & 1)
                part.at[at++] = members[i].numbers[d];
        err = cairn_dcp_output_part(&planning->dcp, &part);
    }
    return err;
}

static cairn_err
add_members(struct planning *planning, const struct cairn_mdist_pattern *pattern,
            const struct cairn_mdist_member *members, size_t count)
{
    const struct cairn_tensor *first =
        cairn_layout_tensor(planning->source->layout, members[0].tensor);
    char key[CAIRN_MDIST_NAME_BYTES_MAX], half[CAIRN_MDIST_NAME_BYTES_MAX + 2];
    struct cairn_mdist_name name;
    uint64_t rows;
    cairn_err err;

    if (!cairn_mdist_fix(pattern->name, members[0].numbers, pattern->stacked, &name))
        return CAIRN_INVAL;
    err = choose_key(planning, &name, first->name, key);
    if (err)
        return err;
    rows = first->dims > 0 && first->shape[0] % 2 == 0 ? first->shape[0] / 2 : 0;
    if (!planning->halves || rows == 0 ||
        (!cairn_text_ends(name.pattern, "linear_fc1.weight") &&
         !cairn_text_ends(name.pattern, "linear_fc1.bias")))
        return add_array(planning, key, pattern, members, count, 0, 0);
    (void)snprintf(half, sizeof(half), "%s_w", key);
    err = add_array(planning, half, pattern, members, count, 0, rows);
    (void)snprintf(half, sizeof(half), "%s_v", key);
    return err ? err : add_array(planning, half, pattern, members, count, rows, rows);
}

/* Extra states of modules, for a source that Megatron-Core did not save. */
static cairn_err
add_extra_states(struct planning *planning, const struct cairn_mdist_pattern *pattern)
{
    const struct cairn_layout *layout = planning->source->layout;
    cairn_err err = CAIRN_OK;

    if (pattern->name->state[0] || !extra_of(pattern->name->pattern) ||
        extra_there(planning->source))
        return CAIRN_OK;
    for (size_t i = pattern->first; i < pattern->first + pattern->count && !err; i++)
        err = extra_add(&planning->dcp,
                        cairn_layout_tensor(layout, planning->arrays.members[i].tensor)->name,
                        pattern->stacked, pattern->extents);
    return err;
}

static cairn_err
add_arrays(struct planning *planning, const bool *take)
{
    struct cairn_mdist_apart apart = {(const char *const *)planning->apart, planning->apart_count};
    cairn_err err;

    err = cairn_mdist_arrays_find(planning->source, take, &apart, &planning->arrays);
    for (uint32_t i = 0; i < planning->arrays.pattern_count && !err; i++) {
        const struct cairn_mdist_pattern *pattern = &planning->arrays.patterns[i];
        const struct cairn_mdist_member *members = planning->arrays.members + pattern->first;
        size_t from = 0;

        for (size_t to = 1; to <= pattern->count && !err; to++)
            if (to == pattern->count ||
                !cairn_mdist_same_numbers(&members[from], &members[to], ~pattern->stacked)) {
                err = add_members(planning, pattern, members + from, to - from);
                from = to;
            }
        if (!err)
            err = add_extra_states(planning, pattern);
    }
    return err;
}

/* ---- opaque state ---- */

/* A ShardedObject: "<key>/shard_<…>.pickle". */
static cairn_err
add_object(struct planning *planning, uint32_t tensor, bool *done)
{
    const struct cairn_tensor *known = cairn_layout_tensor(planning->source->layout, tensor);
    char name[CAIRN_NAME_BYTES_MAX];
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    if (!strstr(known->name, "/shard_") || !cairn_text_ends(known->name, ".pickle") ||
        known->shape[0] > CAIRN_MDIST_OBJECT_BYTES_MAX)
        return CAIRN_OK;
    (void)snprintf(name, sizeof(name), "%.*s", (int)(strlen(known->name) - strlen(".pickle")),
                   known->name);
    err = cairn_checkpoint_load_opaque(planning->source, known->name, CAIRN_MDIST_OBJECT_BYTES_MAX,
                                       &bytes, &bytes_len);
    if (!err)
        err =
            cairn_dcp_output_object(&planning->dcp, tensor, bytes, bytes_len, name, &no_path, done);
    free(bytes);
    return err;
}

static cairn_err
add_carried(struct planning *planning, uint32_t tensor)
{
    char name[CAIRN_NAME_BYTES_MAX + 16];

    (void)snprintf(name, sizeof(name), CAIRN_MDIST_CARRIED "%s",
                   cairn_layout_tensor(planning->source->layout, tensor)->name);
    return cairn_dcp_output_tensor(&planning->dcp, tensor, name, &no_path);
}

static cairn_err
add_opaque(struct planning *planning, const uint32_t *opaque, uint32_t count, struct state *state)
{
    uint32_t *values = calloc((size_t)count + 1, sizeof(*values)), value_count = 0;
    cairn_err err = values ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t i = 0; i < count && !err; i++) {
        const char *name = cairn_layout_tensor(planning->source->layout, opaque[i])->name;
        bool done = false;

        if (strcmp(name, CAIRN_MDIST_KEYS) == 0 || planning->megatron.dissolved[opaque[i]]) {
            err = cairn_output_add_carried(planning->output, opaque[i]);
            continue;
        }
        if (cairn_text_ends(name, ".pickle") && !strchr(name, '/'))
            err = common_fits(planning->source, planning->options, opaque[i], &done);
        if (done) {
            values[value_count++] = opaque[i];
            continue;
        }
        if (!err)
            err = add_object(planning, opaque[i], &done);
        if (!err && !done)
            err = add_carried(planning, opaque[i]);
    }
    for (uint32_t i = 0; i < planning->megatron.object_count && !err; i++) {
        const struct cairn_mdist_made *made = &planning->megatron.objects[i];

        err = cairn_dcp_output_made(&planning->dcp, made->bytes, made->bytes_len, made->name,
                                    &no_path);
    }
    if (!err)
        err = common_add(planning->source, planning->options, values, value_count,
                         planning->megatron.values, planning->megatron.value_count,
                         planning->dcp.inside, planning->output, &state->common);
    free(values);
    return err;
}

/* ---- the whole ---- */

static cairn_err
plan_all(struct planning *planning, struct state *state)
{
    const struct cairn_layout *layout = planning->source->layout;
    uint32_t count = cairn_layout_tensor_count(layout), opaque_count = 0;
    uint32_t *opaque = calloc((size_t)count + 1, sizeof(*opaque));
    bool *take = calloc((size_t)count + 1, sizeof(*take));
    cairn_err err = opaque && take ? load_keys(planning) : CAIRN_NOMEM;

    if (!err)
        err = cairn_mdist_megatron_take(planning->source, planning->options, &planning->megatron);
    if (!err)
        extra_claim(&planning->dcp, planning->megatron.dissolved);
    for (uint32_t i = 0; i < count && !err; i++)
        if (cairn_layout_tensor(layout, i)->kind == CAIRN_OPAQUE)
            opaque[opaque_count++] = i;
    if (!err) {
        cairn_checkpoint_sort(planning->source->layout, opaque, opaque_count);
        err = add_opaque(planning, opaque, opaque_count, state);
    }
    for (uint32_t i = 0; i < count && !err; i++)
        take[i] = cairn_layout_tensor(layout, i)->kind != CAIRN_OPAQUE && !planning->dcp.inside[i];
    if (!err)
        err = add_arrays(planning, take);
    free(opaque);
    free(take);
    return err;
}

cairn_err
cairn_mdist_plan(const struct cairn_checkpoint *checkpoint,
                 const struct cairn_output_options *options, struct cairn_output *output)
{
    struct planning planning = {.source = checkpoint, .options = options, .output = output};
    struct state *state = calloc(1, sizeof(*state));
    cairn_err err = state ? CAIRN_OK : CAIRN_NOMEM;

    output->state = state;
    if (!err)
        err = cairn_dcp_output_init(&planning.dcp, checkpoint, options, output, &state->kept);
    planning.dcp.chunk_bytes_min = CHUNK_BYTES_MIN;
    if (!err)
        err = plan_all(&planning, state);
    if (!err)
        err = cairn_dcp_output_end(&planning.dcp);
    cairn_dcp_output_fini(&planning.dcp);
    cairn_mdist_arrays_fini(&planning.arrays);
    cairn_mdist_megatron_fini(&planning.megatron);
    cairn_opaque_tree_close(&planning.kept);
    free(planning.others);
    free(planning.apart);
    return err;
}

cairn_err
cairn_mdist_finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output)
{
    struct state *state = output->state;
    cairn_err err = cairn_dcp_kept_finish(state->kept, output);

    if (!err)
        err = cairn_torch_output_finish(output, &state->common);
    if (!err)
        err = cairn_output_add_text(output, CAIRN_MDIST_MARKER, MARKER_TEXT);
    return cairn_complain_failed(checkpoint->complaint, err, "%s: the archives around the tensors",
                                 checkpoint->place.path);
}
