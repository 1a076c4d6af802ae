/*
 * agent/core/repair/plan.c - a repair's plan, and the reports to its coordinator; see repair.h.
 *
 * Packed (little-endian): the roster, per member u32 holder and u32 target, u32 count of bad
 * blocks, per bad block u32 member, u8 area, u64 block in the area.
 */
#include "agent/core/repair/repair.h"

#include <stdlib.h>
#include <string.h>

enum { BAD_BYTES = 4 + 1 + 8 };

void
plan_fini(struct plan *plan)
{
    cairn_roster_drop(plan->roster);
    free(plan->holders);
    free(plan->targets);
    free(plan->bad);
    memset(plan, 0, sizeof *plan);
}

static void
code_plan(struct cairn_codec *codec, void *value)
{
    struct plan *plan = value;
    uint32_t count;

    cairn_roster_code(codec, &plan->roster);
    count = plan->roster ? plan->roster->member_count : 0;
    plan->holders = cairn_codec_array(codec, plan->holders, count, sizeof *plan->holders);
    plan->targets = cairn_codec_array(codec, plan->targets, count, sizeof *plan->targets);
    for (uint32_t m = 0; plan->targets && m < count; m++) {
        cairn_codec_u32(codec, &plan->holders[m]);
        cairn_codec_u32(codec, &plan->targets[m]);
    }
    cairn_codec_count(codec, &plan->bad_count, UINT32_MAX, BAD_BYTES);
    plan->bad = cairn_codec_array(codec, plan->bad, plan->bad_count, sizeof *plan->bad);
    for (uint32_t i = 0; plan->bad && i < plan->bad_count; i++) {
        cairn_codec_u32(codec, &plan->bad[i].position);
        cairn_codec_check(codec, plan->bad[i].position < count);
        cairn_bad_block_code(codec, &plan->bad[i]);
    }
}

cairn_err
plan_pack(const struct plan *plan, uint8_t **bytes, size_t *len)
{
    return cairn_codec_pack(code_plan, plan, bytes, len);
}

static bool
agent_or_none(uint32_t agent, uint32_t agent_count)
{
    return agent < agent_count || agent == UINT32_MAX;
}

cairn_err
plan_read(const void *bytes, size_t len, uint32_t agent_count, struct plan *out)
{
    struct plan plan = {0};
    cairn_err err = cairn_codec_unpack(code_plan, &plan, bytes, len);

    for (uint32_t m = 0; !err && m < plan.roster->member_count; m++)
        if (!agent_or_none(plan.holders[m], agent_count) ||
            !agent_or_none(plan.targets[m], agent_count))
            err = CAIRN_CORRUPT;
    if (err)
        plan_fini(&plan);
    else
        *out = plan;
    return err;
}

bool
plan_has_work(const struct plan *plan, uint32_t member)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(plan->roster, member);

    for (uint32_t p = 0; p < group->count; p++)
        if (plan->targets[group->members[p]] != UINT32_MAX)
            return true;
    return false;
}

bool
crcs_match(const uint64_t *crcs, uint32_t count, const uint8_t *packed)
{
    for (uint32_t i = 0; i < count; i++)
        if (cairn_little_get(packed + 8 * (size_t)i, 8) != crcs[i])
            return false;
    return true;
}

void
repair_report(struct env *env, const struct repair *repair, const struct part *part)
{
    struct cairn_message message = epoch_message(env, CAIRN_MSG_REBUILT);

    message.as.rebuilt = (struct cairn_message_rebuilt){
        .attempt = repair->attempt,
        .member = part->member,
        .finished = part->state == CAIRN_PART_COMPLETE && !part->mending.missing,
        .blocks = part->mending.written_blocks};
    env_send(env, repair->coordinator, &message);
}

void
repair_fail(struct env *env, struct repair *repair, uint32_t member, cairn_err err, bool proved)
{
    struct cairn_message message = epoch_message(env, CAIRN_MSG_REBUILT);

    if (repair->failed)
        return; /* it knows */
    message.as.rebuilt = (struct cairn_message_rebuilt){
        .attempt = repair->attempt, .member = member, .proved = proved, .err = (uint32_t)err};
    env_send(env, repair->coordinator, &message);
    repair->failed = true;
}
