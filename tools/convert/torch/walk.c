/* tools/convert/torch/walk.c - every way down a tree of torch.save, and a walk over all of them. */
#include <stdlib.h>
#include <string.h>

#include "tools/convert/torch/carry.h"
#include "tools/convert/torch/parts.h"

static bool
is_sequence(const struct cairn_pickle_node *node)
{
    return node->kind == CAIRN_PICKLE_LIST || node->kind == CAIRN_PICKLE_TUPLE ||
           node->kind == CAIRN_PICKLE_SET || node->kind == CAIRN_PICKLE_FROZENSET;
}

/* The way number `slot` of a sequence or a dict, which has it. */
static void
take_child(const struct cairn_pickle_node *node, uint64_t slot, struct cairn_torch_child *child)
{
    bool dict = node->kind == CAIRN_PICKLE_DICT;

    child->index = (uint32_t)slot;
    child->node = node->items[dict ? 2 * slot + 1 : slot];
    child->key = dict ? node->items[2 * slot] : NULL;
}

/* Of an object: the callable, the arguments, those by name, items, pairs, state. */
static bool
next_of_object(const struct cairn_pickle_object *object, uint64_t slot,
               struct cairn_torch_child *child)
{
    const struct cairn_pickle_node *parts[] = {
        object->args->kind == CAIRN_PICKLE_TUPLE ? object->args : NULL, object->kwargs,
        object->items, object->pairs};

    child->argument = slot == 0;
    child->node = object->callable;
    if (slot-- == 0)
        return true;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        uint64_t count = parts[i] ? parts[i]->count : 0;

        if (slot < count) {
            child->argument = i < 2;
            take_child(parts[i], slot, child);
            return true;
        }
        slot -= count;
    }
    child->silent = true;
    child->node = object->state;
    return slot == 0 && object->state != NULL;
}

bool
cairn_torch_next_child(const struct cairn_pickle_node *node, uint64_t slot,
                       struct cairn_torch_child *child)
{
    memset(child, 0, sizeof(*child));
    if (node->kind == CAIRN_PICKLE_OBJECT)
        return next_of_object(node->object, slot, child);
    if ((!is_sequence(node) && node->kind != CAIRN_PICKLE_DICT) || slot >= node->count)
        return false;
    take_child(node, slot, child);
    return true;
}

struct step {
    const struct cairn_pickle_node *node;
    uint64_t slot; /* the way down that is taken next */
};

cairn_err
cairn_torch_visit_persistent(const struct cairn_pickle *tree, const struct cairn_pickle_node *root,
                             cairn_torch_visit_fn *visit, void *context)
{
    struct step *steps = calloc(CAIRN_PICKLE_DEPTH_MAX, sizeof(*steps));
    uint32_t node_count = tree->node_count; /* what a visit makes is not visited */
    uint8_t *seen = calloc((size_t)node_count + 1, 1);
    struct cairn_torch_child child;
    size_t depth = 0;
    cairn_err err = steps && seen ? CAIRN_OK : CAIRN_NOMEM;

    if (!err && root->kind == CAIRN_PICKLE_PERSISTENT) /* the arena's, and so ours to change */
        err = visit(context, (struct cairn_pickle_node *)(uintptr_t)root);
    else if (!err)
        steps[depth++] = (struct step){root, 0};
    while (depth > 0 && !err) {
        struct step *step = &steps[depth - 1];

        if (!cairn_torch_next_child(step->node, step->slot++, &child)) {
            depth--;
            continue;
        }
        if (!child.node || child.node->index >= node_count || seen[child.node->index])
            continue;
        seen[child.node->index] = 1;
        if (child.node->kind == CAIRN_PICKLE_PERSISTENT)
            err = visit(context, child.node);
        else if (depth == CAIRN_PICKLE_DEPTH_MAX)
            err = CAIRN_CORRUPT;
        else
            steps[depth++] = (struct step){child.node, 0};
    }
    free(steps);
    free(seen);
    return err;
}
