/*
 * tools/convert/dcp/write.c - lays out a distributed checkpoint that dcp.load of PyTorch reads:
 * what each tensor and object is called in it. Its files are dcp/output.h's.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/state/kept_names.h"
#include "tools/convert/dcp/output.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/state.h"

struct planning {
    const struct cairn_checkpoint *source;
    struct cairn_output *output;
    struct cairn_dcp_output dcp;
    struct cairn_kept_names names;
    bool tree, numbered; /* names are those of a file of torch.save; its optimizer's parameters have
                            numbers */
};

/* ---- the keys of a file of torch.save ---- */

/* The next tensor that shares `of`'s elements and has no path yet: a tree names what it holds twice
 * only once. UINT32_MAX: none. */
static uint32_t
next_alias(const struct cairn_checkpoint *source, uint32_t of, const bool *named)
{
    of = cairn_checkpoint_past_alias(source, of);
    for (uint32_t i = 0; i < source->alias_count; i++)
        if (source->aliases[i].of == of && !named[source->aliases[i].tensor])
            return source->aliases[i].tensor;
    return UINT32_MAX;
}

static cairn_err
take_leaf(struct planning *planning, struct cairn_torch_leaf *leaf, bool again, bool *named)
{
    const struct cairn_layout *layout = planning->source->layout;
    struct cairn_state_path path = cairn_torch_leaf_path(leaf);
    char joined[CAIRN_STATE_NAME_BYTES_MAX], name[CAIRN_NAME_BYTES_MAX];
    char word[CAIRN_PICKLE_WORD_BYTES_MAX];
    uint32_t tensor;

    if (leaf->groups || path.count == 0 || !cairn_pickle_read_named(leaf->node, word, name) ||
        strcmp(word, "carried") == 0 || !cairn_state_join(&path, joined, sizeof(joined)))
        return CAIRN_OK;
    tensor = cairn_layout_tensor_find(layout, name);
    if (tensor == UINT32_MAX || named[tensor] != again)
        return CAIRN_OK;
    if (again)
        tensor = next_alias(planning->source, tensor, named);
    if (tensor == UINT32_MAX)
        return CAIRN_OK;
    named[tensor] = true;
    leaf->node = NULL; /* done */
    if (strcmp(name, CAIRN_PARAM_GROUPS_NAME) == 0) {
        path.count--;
        joined[0] = '\0';
    }
    if (path.count >= 3 && !leaf->keys[path.count - 2].number &&
        cairn_layout_tensor(layout, tensor)->kind == CAIRN_OPTIMIZER &&
        strcmp(path.keys[path.count - 3].text, "state") == 0)
        planning->numbered |= strspn(path.keys[path.count - 2].text, "0123456789") ==
                              strlen(path.keys[path.count - 2].text);
    return cairn_kept_names_add(&planning->names, cairn_layout_tensor(layout, tensor)->name, joined,
                                &path);
}

/* What a source came from as a file of torch.save keeps its keys, unless it was a distributed
 * checkpoint before. */
static cairn_err
take_tree(struct planning *planning)
{
    struct cairn_torch_leaves leaves = {0};
    struct cairn_torch_file file = {0};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    bool *named = calloc((size_t)cairn_layout_tensor_count(planning->source->layout) + 1, 1);
    cairn_err err =
        named ? cairn_checkpoint_load_opaque(planning->source, CAIRN_TORCH_TREE,
                                             CAIRN_TORCH_OBJECT_BYTES_MAX, &bytes, &bytes_len)
              : CAIRN_NOMEM;

    if (!err)
        err = cairn_torch_leaves_of_kept(bytes, bytes_len, &file, &leaves);
    planning->tree = !err;
    for (int again = 0; again < 2; again++)
        for (uint32_t i = 0; i < leaves.count && !err; i++)
            err = take_leaf(planning, &leaves.leaves[i], again, named);
    cairn_kept_names_sort(&planning->names);
    cairn_torch_leaves_fini(&leaves);
    cairn_torch_close(&file);
    free(bytes);
    free(named);
    return err == CAIRN_NOT_FOUND || err == CAIRN_CORRUPT || err == CAIRN_INVAL ? CAIRN_OK : err;
}

static cairn_err
load_names(struct planning *planning, const struct cairn_output_options *options)
{
    cairn_err err;

    if (options->canonical_names)
        return CAIRN_OK;
    err = cairn_kept_names_load(planning->source, &planning->names);
    return err || planning->names.kept_count > 0 ? err : take_tree(planning);
}

/* Where it goes by name; false complained about. */
static cairn_err
choose_name(struct planning *planning, uint32_t tensor, char text[CAIRN_STATE_NAME_BYTES_MAX],
            char name[CAIRN_STATE_NAME_BYTES_MAX], struct cairn_state_path *path)
{
    if (cairn_kept_names_choose(&planning->names, planning->source, tensor, text, name, path))
        return CAIRN_OK;
    return cairn_complain(planning->source->complaint, CAIRN_INVAL,
                          "tensor %s: its name is too long for a distributed checkpoint",
                          cairn_layout_tensor(planning->source->layout, tensor)->name);
}

static cairn_err
add_tensor(struct planning *planning, uint32_t tensor)
{
    char text[CAIRN_STATE_NAME_BYTES_MAX], name[CAIRN_STATE_NAME_BYTES_MAX];
    struct cairn_state_path path;
    cairn_err err = choose_name(planning, tensor, text, name, &path);

    return err ? err : cairn_dcp_output_tensor(&planning->dcp, tensor, name, &path);
}

/* ---- objects ---- */

/* Gives parameters their numbers again, counted through all groups. */
static cairn_err
number_members(struct cairn_opaque_tree *groups)
{
    int64_t position = 0;

    for (uint32_t g = 0; g < groups->root->count; g++) {
        struct cairn_pickle_node *members = cairn_pickle_get(groups->root->items[g], "params");

        for (uint32_t i = 0; cairn_pickle_is_list(members) && i < members->count; i++, position++)
            if (members->items[i]->kind == CAIRN_PICKLE_TEXT)
                members->items[i] = cairn_pickle_int(&groups->tree, position);
    }
    return cairn_pickle_done(&groups->tree);
}

/* Parameter groups, each hyperparameter an object of its own, as get_state_dict has them. */
static cairn_err
add_groups(struct planning *planning, struct cairn_opaque_tree *groups)
{
    const struct cairn_kept_name *kept =
        cairn_kept_names_find(&planning->names, CAIRN_PARAM_GROUPS_NAME);
    bool flat = kept && strcmp(kept->name, "flat") == 0;
    struct cairn_state_path path;
    char number[16], text[CAIRN_STATE_NAME_BYTES_MAX], name[CAIRN_STATE_NAME_BYTES_MAX],
        key[CAIRN_STATE_NAME_BYTES_MAX];
    char member[CAIRN_STATE_NAME_BYTES_MAX], joined[2 * CAIRN_STATE_NAME_BYTES_MAX + 16];
    uint32_t prefix_count;
    cairn_err err = planning->numbered ? number_members(groups) : CAIRN_OK;

    if (err)
        return err;
    if (kept)
        path = cairn_kept_name_path(kept);
    else
        cairn_state_default_prefix(planning->source, text, &path);
    if (path.count + 3 > CAIRN_STATE_KEYS_MAX)
        return CAIRN_INVAL;
    prefix_count = path.count;
    for (uint32_t g = 0; g < groups->root->count; g++) {
        const struct cairn_pickle_node *dict = groups->root->items[g];
        const struct cairn_pickle_node *said = cairn_pickle_get(dict, "params");
        const struct cairn_pickle_node *members = cairn_pickle_is_list(said) ? said : NULL;
        uint32_t member_count = flat && members ? members->count : 1;

        if (flat && !members)
            return CAIRN_INVAL;
        for (uint32_t m = 0; m < member_count; m++) {
            for (uint32_t k = 0; k < dict->count && !err; k++) {
                if (!cairn_pickle_copy_text(dict->items[2 * k], key, sizeof(key)))
                    return CAIRN_INVAL;
                if (cairn_pickle_tensor_name(dict->items[2 * k + 1], NULL) ||
                    (flat && strcmp(key, "params") == 0))
                    continue; /* a tensor has an item of its own */
                path.count = prefix_count;
                if (flat) {
                    if (!cairn_pickle_copy_text(members->items[m], member, sizeof(member)))
                        return CAIRN_INVAL;
                    (void)snprintf(joined, sizeof(joined), "param_groups.%s.%s", member, key);
                    path.keys[path.count++] = (struct cairn_state_key){joined, false};
                } else {
                    (void)snprintf(number, sizeof(number), "%" PRIu32, g);
                    path.keys[path.count++] = (struct cairn_state_key){"param_groups", false};
                    path.keys[path.count++] = (struct cairn_state_key){number, true};
                    path.keys[path.count++] = (struct cairn_state_key){key, false};
                }
                if (!cairn_state_join(&path, name, sizeof(name)))
                    return CAIRN_INVAL;
                err = cairn_dcp_output_literal(&planning->dcp, name, &path, &groups->tree,
                                               dict->items[2 * k + 1]);
            }
            if (err)
                return err;
        }
    }
    return CAIRN_OK;
}

/* Opaque state that is a pickle; *done stays false where it is none that torch would read. */
static cairn_err
add_object(struct planning *planning, uint32_t tensor, bool *done)
{
    const struct cairn_tensor *known = cairn_layout_tensor(planning->source->layout, tensor);
    char text[CAIRN_STATE_NAME_BYTES_MAX], name[CAIRN_STATE_NAME_BYTES_MAX];
    struct cairn_opaque_tree groups = {.root = NULL};
    struct cairn_state_path path;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    /* What belongs to a scope is not a key of a state dict. */
    if (strchr(known->name, '/') || known->shape[0] > CAIRN_DCP_OBJECT_BYTES_MAX)
        return CAIRN_OK;
    err = cairn_checkpoint_load_opaque(planning->source, known->name, CAIRN_DCP_OBJECT_BYTES_MAX,
                                       &bytes, &bytes_len);
    if (!err)
        err = choose_name(planning, tensor, text, name, &path);
    if (!err && strcmp(known->name, CAIRN_PARAM_GROUPS_NAME) == 0 &&
        cairn_param_groups_open(planning->source, &groups) == CAIRN_OK) {
        err = add_groups(planning, &groups);
        if (!err && planning->tree) /* with the parameters' names */
            err = cairn_dcp_output_tensor(
                &planning->dcp, tensor, CAIRN_CARRIED_KEY "." CAIRN_PARAM_GROUPS_NAME,
                &(struct cairn_state_path){
                    2, {{CAIRN_CARRIED_KEY, false}, {CAIRN_PARAM_GROUPS_NAME, false}}});
        else if (!err)
            err = cairn_output_add_carried(planning->output, tensor);
        *done = true;
    } else if (!err) {
        err = cairn_dcp_output_object(&planning->dcp, tensor, bytes, bytes_len, name, &path, done);
    }
    cairn_opaque_tree_close(&groups);
    free(bytes);
    return err;
}

/* ---- the whole ---- */

static cairn_err
plan_all(struct planning *planning)
{
    const struct cairn_layout *layout = planning->source->layout;
    uint32_t count = cairn_layout_tensor_count(layout);
    bool *inside = planning->dcp.inside;
    cairn_err err = CAIRN_OK;

    /* Objects first: they say which tensors lie in them. */
    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        bool done = false;

        if (tensor->kind != CAIRN_OPAQUE)
            continue;
        if (strcmp(tensor->name, CAIRN_DCP_NAMES) == 0) {
            err = cairn_output_add_carried(planning->output, i);
            continue;
        }
        err = add_object(planning, i, &done);
        inside[i] = done;
    }
    for (uint32_t i = 0; i < count && !err; i++)
        if (!inside[i] && strcmp(cairn_layout_tensor(layout, i)->name, CAIRN_DCP_NAMES) != 0)
            err = add_tensor(planning, i);
    return err;
}

cairn_err
cairn_dcp_plan(const struct cairn_checkpoint *checkpoint,
               const struct cairn_output_options *options, struct cairn_output *output)
{
    struct planning planning = {.source = checkpoint, .output = output};
    struct cairn_dcp_kept *kept = NULL;
    cairn_err err;

    err = cairn_dcp_output_init(&planning.dcp, checkpoint, options, output, &kept);
    output->state = kept;
    if (!err)
        err = load_names(&planning, options);
    if (!err)
        err = plan_all(&planning);
    if (!err)
        err = cairn_dcp_output_end(&planning.dcp);
    cairn_kept_names_fini(&planning.names);
    cairn_dcp_output_fini(&planning.dcp);
    return cairn_complain_failed(checkpoint->complaint, err,
                                 "%s: cannot be laid out as a distributed checkpoint",
                                 checkpoint->place.path);
}

cairn_err
cairn_dcp_finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output)
{
    cairn_err err = cairn_dcp_kept_finish(output->state, output);

    return cairn_complain_failed(checkpoint->complaint, err, "%s: the archives around the tensors",
                                 checkpoint->place.path);
}
