/* agent/core/run/gather.c - see gather.h. */
#include "agent/core/run/gather.h"

#include "agent/core/epoch/tree.h"

#include <stdlib.h>
#include <string.h>

cairn_err
gather_init(struct gather *gather, uint32_t count)
{
    memset(gather, 0, sizeof *gather);
    gather->count = count;
    gather->done = calloc(cairn_bitset_words(count) + 1, sizeof(uint64_t));
    return gather->done ? CAIRN_OK : CAIRN_NOMEM;
}

void
gather_fini(struct gather *gather)
{
    free(gather->done);
    memset(gather, 0, sizeof *gather);
}

void
gather_clear(struct gather *gather)
{
    memset(gather->done, 0, cairn_bitset_words(gather->count) * sizeof(uint64_t));
    gather->generation = (struct cairn_generation_id){0};
    gather->begun = 0;
}

bool
gather_is_full(const struct env *env, const struct gather *gather, uint32_t member)
{
    uint32_t missing = !cairn_bitset_has(gather->done, member);

    for (uint32_t child = tree_next_child(member, gather->count, UINT32_MAX); child != UINT32_MAX;
         child = tree_next_child(member, gather->count, child))
        missing += !cairn_bitset_has(gather->done, child);
    return gather->generation.step != 0 &&
           missing <= (uint32_t)(CAIRN_PLANTED(env, BUG_COUNT_ONE_LESS) && member == 0);
}

bool
gather_add(const struct env *env, struct gather *gather, uint32_t member, uint32_t child,
           struct cairn_generation_id generation, uint64_t begun)
{
    if (cairn_generation_later(gather->generation, generation))
        return false;
    if (cairn_generation_later(generation, gather->generation)) {
        gather_clear(gather);
        gather->generation = generation;
    }
    cairn_bitset_add(gather->done, child);
    gather->begun = max_u64(gather->begun, begun);
    return gather_is_full(env, gather, member);
}
