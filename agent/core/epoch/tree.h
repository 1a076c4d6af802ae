/*
 * agent/core/epoch/tree.h - the tree along which decisions go down and answers go up.
 *
 * Up to TREE_FLAT_MAX members talk to the leader (member 0) directly. With more, the members are
 * cut into blocks of ⌈√n⌉, and the first of each block, its head, collects and passes on. So no
 * member has more than 2 ⌈√n⌉ neighbours. Pure.
 */
#ifndef CAIRN_AGENT_CORE_EPOCH_TREE_H
#define CAIRN_AGENT_CORE_EPOCH_TREE_H

#include <stdbool.h>
#include <stdint.h>

enum { TREE_FLAT_MAX = 32 };

/* The member above; UINT32_MAX for the leader. */
uint32_t tree_parent(uint32_t member, uint32_t count);
/* The first child after `after` (UINT32_MAX: the first of all); UINT32_MAX: none. */
uint32_t tree_next_child(uint32_t member, uint32_t count, uint32_t after);
/* The neighbour of `member` on the way down to `target`, which is below it. */
uint32_t tree_towards(uint32_t member, uint32_t count, uint32_t target);
/* True if `member` is `target` or above it. */
bool tree_is_above(uint32_t member, uint32_t count, uint32_t target);

#endif
