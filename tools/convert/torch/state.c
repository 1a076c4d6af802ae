/* tools/convert/torch/state.c - see torch/state.h. */
#include "tools/convert/torch/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/pickle/read.h"

/* Containers may hold themselves, many times over. */
enum { STEPS_MAX = 1 << 26, LIST_STEPS_MAX = 1 << 20 };

/* A container that is being followed. */
struct step {
    struct cairn_pickle_node *pairs; /* a dict's; NULL: `list` is followed */
    struct cairn_pickle_node *list;
    uint32_t at;
    uint32_t groups; /* the leaf that stands for this list, UINT32_MAX: none */
};

/* The pairs of a plain dict, OrderedDict or defaultdict whose keys are all texts or numbers. */
static struct cairn_pickle_node *
followed_pairs(struct cairn_pickle_node *node)
{
    struct cairn_pickle_node *pairs = NULL;
    uint64_t number;

    if (node->kind == CAIRN_PICKLE_DICT)
        pairs = node;
    else if (cairn_pickle_is_call(node, "collections", "OrderedDict") ||
             cairn_pickle_is_call(node, "collections", "defaultdict"))
        pairs = node->object->pairs;
    for (uint32_t i = 0; pairs && i < pairs->count; i++)
        if ((pairs->items[2 * i]->kind != CAIRN_PICKLE_TEXT || pairs->items[2 * i]->count == 0) &&
            !cairn_pickle_u64(pairs->items[2 * i], &number))
            return NULL;
    return pairs;
}

/* Whether a list holds what is followed. Lists within lists count down to a depth that no state
 * dict reaches. */
static bool
followed_list(struct cairn_pickle_node *list)
{
    struct {
        struct cairn_pickle_node *list;
        uint32_t at;
    } stack[CAIRN_STATE_KEYS_MAX];
    uint32_t depth = 0, taken = 0;

    stack[depth].list = list;
    stack[depth++].at = 0;
    while (depth > 0 && taken++ < LIST_STEPS_MAX) {
        struct cairn_pickle_node *item;

        if (stack[depth - 1].at == stack[depth - 1].list->count) {
            depth--;
            continue;
        }
        item = stack[depth - 1].list->items[stack[depth - 1].at++];
        if (cairn_torch_is_tensor(item) || item->kind == CAIRN_PICKLE_PERSISTENT ||
            followed_pairs(item))
            return true;
        if (item->kind == CAIRN_PICKLE_LIST && depth < CAIRN_STATE_KEYS_MAX) {
            stack[depth].list = item;
            stack[depth++].at = 0;
        }
    }
    return false;
}

static const char *
key_text(struct cairn_pickle *pickle, const struct cairn_pickle_node *key, uint32_t at)
{
    size_t room = key && key->kind == CAIRN_PICKLE_TEXT ? (size_t)key->count + 1 : 24;
    char *text = cairn_pickle_alloc(pickle, room);
    uint64_t number = at;

    if (!text)
        return NULL;
    if (key && key->kind == CAIRN_PICKLE_TEXT)
        return cairn_pickle_copy_text(key, text, room) ? text : NULL;
    if (key && !cairn_pickle_u64(key, &number))
        return NULL;
    (void)snprintf(text, room, "%" PRIu64, number);
    return text;
}

static cairn_err
add_leaf(struct cairn_torch_file *file, struct cairn_torch_leaves *leaves,
         const struct cairn_state_path *path, struct cairn_pickle_node **slot, bool groups)
{
    struct cairn_state_key *keys;

    if (leaves->count == CAIRN_TORCH_LEAVES_MAX)
        return CAIRN_CORRUPT;
    if (!cairn_array_grow(&leaves->leaves, leaves->count, sizeof(*leaves->leaves)))
        return CAIRN_NOMEM;
    keys = cairn_pickle_alloc(&file->names, (path->count + 1) * sizeof(*keys));
    if (!keys)
        return CAIRN_NOMEM;
    memcpy(keys, path->keys, path->count * sizeof(*keys));
    leaves->leaves[leaves->count++] = (struct cairn_torch_leaf){
        .keys = keys, .key_count = path->count, .groups = groups, .node = *slot, .slot = slot};
    return CAIRN_OK;
}

/* Follows what hangs at *slot, or lists it as a leaf. */
static cairn_err
enter(struct cairn_torch_file *file, struct cairn_torch_leaves *leaves,
      struct cairn_pickle_node **slot, const struct cairn_state_path *path, struct step *steps,
      uint32_t *depth)
{
    struct step step = {.groups = UINT32_MAX};
    cairn_err err = CAIRN_OK;

    if (*depth < CAIRN_STATE_KEYS_MAX) {
        step.pairs = followed_pairs(*slot);
        if (!step.pairs && (*slot)->kind == CAIRN_PICKLE_LIST && followed_list(*slot))
            step.list = *slot;
    }
    if (!step.pairs && !step.list)
        return add_leaf(file, leaves, path, slot, false);
    if (step.list && path->count > 0 &&
        strcmp(path->keys[path->count - 1].text, "param_groups") == 0) {
        step.groups = leaves->count;
        err = add_leaf(file, leaves, path, slot, true);
    }
    steps[(*depth)++] = step;
    return err;
}

cairn_err
cairn_torch_leaves_list(struct cairn_torch_file *file, struct cairn_torch_leaves *leaves)
{
    struct step steps[CAIRN_STATE_KEYS_MAX];
    struct cairn_state_path path = {0};
    uint32_t depth = 0, taken = 0;
    cairn_err err;

    memset(leaves, 0, sizeof(*leaves));
    err = enter(file, leaves, &file->root, &path, steps, &depth);
    while (depth > 0 && !err) {
        struct step *step = &steps[depth - 1];
        struct cairn_pickle_node *from = step->pairs ? step->pairs : step->list, **slot;
        struct cairn_state_key *key = &path.keys[depth - 1];

        path.count = depth;
        if (taken++ == STEPS_MAX)
            return CAIRN_CORRUPT;
        if (step->at == from->count) {
            if (step->groups != UINT32_MAX)
                leaves->leaves[step->groups].group_end = leaves->count;
            depth--;
            continue;
        }
        key->number = !step->pairs;
        key->text =
            key_text(&file->names, step->pairs ? from->items[2 * step->at] : NULL, step->at);
        slot = step->pairs ? &from->items[2 * step->at + 1] : &from->items[step->at];
        step->at++;
        if (!key->text) {
            path.count--;
            leaves->refused = path;
            return cairn_pickle_done(&file->names) ? CAIRN_NOMEM : CAIRN_INVAL;
        }
        err = enter(file, leaves, slot, &path, steps, &depth);
    }
    return err;
}

cairn_err
cairn_torch_leaves_of_kept(const uint8_t *bytes, size_t bytes_len, struct cairn_torch_file *file,
                           struct cairn_torch_leaves *leaves)
{
    cairn_err err;

    memset(file, 0, sizeof(*file));
    memset(leaves, 0, sizeof(*leaves));
    cairn_pickle_init(&file->tree, CAIRN_TORCH_OBJECT_BYTES_MAX);
    cairn_pickle_init(&file->names, CAIRN_TORCH_OBJECT_BYTES_MAX);
    err = cairn_pickle_read(&file->tree, CAIRN_TORCH_TREE, bytes, bytes_len, &file->root, NULL);
    return err ? err : cairn_torch_leaves_list(file, leaves);
}

void
cairn_torch_leaves_fini(struct cairn_torch_leaves *leaves)
{
    free(leaves->leaves);
    memset(leaves, 0, sizeof(*leaves));
}

struct cairn_state_path
cairn_torch_leaf_path(const struct cairn_torch_leaf *leaf)
{
    struct cairn_state_path path = {.count = leaf->key_count};

    memcpy(path.keys, leaf->keys, leaf->key_count * sizeof(*leaf->keys));
    return path;
}
