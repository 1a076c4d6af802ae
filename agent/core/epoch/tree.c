/* agent/core/epoch/tree.c - see tree.h. */
#include "agent/core/epoch/tree.h"

/* Members of one block: ⌈√count⌉; of a flat tree all of them. */
static uint32_t
block_size(uint32_t count)
{
    uint32_t size = 1;

    if (count <= TREE_FLAT_MAX)
        return count;
    while (size * size < count)
        size++;
    return size;
}

uint32_t
tree_parent(uint32_t member, uint32_t count)
{
    uint32_t size = block_size(count);

    if (member == 0 || member >= count)
        return UINT32_MAX;
    return member % size == 0 ? 0 : member - member % size;
}

uint32_t
tree_next_child(uint32_t member, uint32_t count, uint32_t after)
{
    uint32_t size = block_size(count);
    uint32_t next = after == UINT32_MAX ? member + 1 : after + 1;

    if (member >= count || member % size != 0)
        return UINT32_MAX;
    if (next >= member + size) { /* end of its own block; the leader goes on with the heads */
        if (member != 0)
            return UINT32_MAX;
        next += (size - next % size) % size;
    }
    return next < count ? next : UINT32_MAX;
}

uint32_t
tree_towards(uint32_t member, uint32_t count, uint32_t target)
{
    uint32_t above = tree_parent(target, count);

    if (above == member || above == UINT32_MAX)
        return target;
    return above;
}

bool
tree_is_above(uint32_t member, uint32_t count, uint32_t target)
{
    while (target < count && target != member)
        target = tree_parent(target, count);
    return target == member && target < count;
}
