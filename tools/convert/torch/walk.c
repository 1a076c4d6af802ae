/* tools/convert/torch/walk.c - every way down a tree of torch.save. */
#include <string.h>

#include "tools/convert/torch/parts.h"

static uint64_t
sequence_count(const struct cairn_pickle_node *node)
{
    return node ? node->count : 0;
}

/* Of an object: the callable, the arguments, those by name, items, pairs, state. */
static bool
next_of_object(const struct cairn_pickle_object *object, uint64_t slot,
               struct cairn_torch_child *child)
{
    const struct cairn_pickle_node *args =
        object->args->kind == CAIRN_PICKLE_TUPLE ? object->args : NULL;

    if (slot-- == 0) {
        child->node = object->callable;
        child->argument = true;
        return true;
    }
    child->argument = true;
    if (slot < sequence_count(args)) {
        child->node = args->items[slot];
        child->index = (uint32_t)slot;
        return true;
    }
    slot -= sequence_count(args);
    if (slot < sequence_count(object->kwargs)) {
        child->node = object->kwargs->items[2 * slot + 1];
        child->key = object->kwargs->items[2 * slot];
        return true;
    }
    slot -= sequence_count(object->kwargs);
    child->argument = false;
    if (slot < sequence_count(object->items)) {
        child->node = object->items->items[slot];
        child->index = (uint32_t)slot;
        return true;
    }
    slot -= sequence_count(object->items);
    if (slot < sequence_count(object->pairs)) {
        child->node = object->pairs->items[2 * slot + 1];
        child->key = object->pairs->items[2 * slot];
        child->index = (uint32_t)slot;
        return true;
    }
    slot -= sequence_count(object->pairs);
    child->silent = true;
    child->node = object->state;
    return slot == 0 && object->state != NULL;
}

bool
cairn_torch_next_child(const struct cairn_pickle_node *node, uint64_t *slot,
                       struct cairn_torch_child *child)
{
    memset(child, 0, sizeof(*child));
    switch (node->kind) {
    case CAIRN_PICKLE_LIST:
    case CAIRN_PICKLE_TUPLE:
    case CAIRN_PICKLE_SET:
    case CAIRN_PICKLE_FROZENSET:
        if (*slot >= node->count)
            return false;
        child->node = node->items[*slot];
        child->index = (uint32_t)*slot;
        return true;
    case CAIRN_PICKLE_DICT:
        if (*slot >= node->count)
            return false;
        child->node = node->items[2 * *slot + 1];
        child->key = node->items[2 * *slot];
        child->index = (uint32_t)*slot;
        return true;
    case CAIRN_PICKLE_OBJECT:
        return next_of_object(node->object, *slot, child);
    default:
        return false;
    }
}
