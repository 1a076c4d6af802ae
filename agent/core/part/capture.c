/*
 * agent/core/part/capture.c - the own part of a generation on its way from the local trainers: the
 * blocks that they have copied, and the seal; see save.h.
 */
#include "agent/core/part/outflow.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>

cairn_err
save_prepare(const struct env *env, struct part *part, uint64_t blocks)
{
    struct capture *capture = &part->capture;

    capture->captured = calloc(blocks / 64 + 1, sizeof(uint64_t));
    capture->crcs = calloc(blocks + 1, sizeof(uint64_t));
    if (!capture->captured || !capture->crcs)
        return CAIRN_NOMEM;
    capture->blocks = blocks;
    outflow_prepare(env, part);
    part->progress_ns = env->now_ns;
    return CAIRN_OK;
}

bool
save_parity_fits(const struct cairn_core_options *options, const struct cairn_roster_group *group,
                 uint64_t blocks)
{
    uint64_t m = group->parity, k = group->count - m;

    return m * ((blocks + k - 1) / k) <= options->parity_blocks;
}

void
save_blocks(struct env *env, struct part *part, const struct cairn_event_blocks *blocks)
{
    struct capture *capture = &part->capture;

    if (!part_captures(part) || blocks->first_block > capture->blocks ||
        blocks->count > capture->blocks - blocks->first_block)
        return;
    for (uint64_t i = 0; i < blocks->count; i++) {
        cairn_bitset_add(capture->captured, (uint32_t)(blocks->first_block + i));
        capture->crcs[blocks->first_block + i] = blocks->crcs[i];
    }
    part->progress_ns = env->now_ns;
    outflow_send(env, part, FLOW_DATA);
}

enum cairn_abort
save_captured(struct env *env, struct part *part, uint32_t rank, uint64_t everyone)
{
    struct capture *capture = &part->capture;
    struct cairn_action *action;

    if (!part_captures(part))
        return 0;
    if (rank < CAIRN_RANKS_PER_NODE_MAX)
        capture->done |= UINT64_C(1) << rank;
    part->progress_ns = env->now_ns;
    if (capture->done != everyone)
        return 0;
    if (cairn_bitset_count(capture->captured, (uint32_t)capture->blocks) != capture->blocks)
        return CAIRN_ABORT_CANCELLED; /* the ranks are done, but blocks are missing */
    action = part_ask(env, part, CAIRN_ACTION_SEAL);
    action->as.part.blocks = capture->blocks;
    action->as.part.crcs = env_keep(env, action, capture->crcs, 8 * capture->blocks);
    part->request = action->as.part.request;
    return 0;
}

enum cairn_abort
save_sealed(struct env *env, struct part *part, const struct cairn_event_answer *answer)
{
    struct cairn_shard_seal *seal = &part->seals[part->position];
    cairn_err err = answer->err;

    if (part->state != CAIRN_PART_OPEN || part_captures(part) || answer->request != part->request ||
        seal->whole)
        return 0;
    if (!err)
        err = cairn_shard_seal_pack(part->generation, part->member, part->capture.blocks,
                                    part->capture.crcs, answer->bytes, answer->bytes_len, seal);
    if (err) {
        CAIRN_LOG_AT(WARN, "save: step %" PRIu64 " cannot be sealed: %s", part->generation.step,
                     cairn_err_text(err));
        return CAIRN_ABORT_MEMORY;
    }
    part->progress_ns = env->now_ns;
    outflow_send(env, part, FLOW_SEAL);
    return save_try_finish(env, part);
}
