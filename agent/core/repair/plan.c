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

void
plan_write(const struct plan *plan, struct cairn_writer *writer)
{
    cairn_roster_write(plan->roster, writer);
    for (uint32_t m = 0; m < plan->roster->member_count; m++) {
        cairn_write_u32(writer, plan->holders[m]);
        cairn_write_u32(writer, plan->targets[m]);
    }
    cairn_write_u32(writer, plan->bad_count);
    for (uint32_t i = 0; i < plan->bad_count; i++) {
        cairn_write_u32(writer, plan->bad[i].position);
        cairn_write_u8(writer, (uint8_t)plan->bad[i].area);
        cairn_write_u64(writer, plan->bad[i].block);
    }
}

static bool
agent_or_none(uint32_t agent, uint32_t agent_count)
{
    return agent < agent_count || agent == UINT32_MAX;
}

static cairn_err
read_bad(struct cairn_reader *reader, struct plan *plan)
{
    uint32_t count = cairn_read_u32(reader);

    if (count > cairn_reader_left(reader) / BAD_BYTES)
        return CAIRN_CORRUPT;
    plan->bad = calloc(count + (size_t)1, sizeof *plan->bad);
    if (!plan->bad)
        return CAIRN_NOMEM;
    plan->bad_count = count;
    for (uint32_t i = 0; i < count; i++) {
        plan->bad[i].position = cairn_read_u32(reader);
        plan->bad[i].area = (enum cairn_area)cairn_read_u8(reader);
        plan->bad[i].block = cairn_read_u64(reader);
        if (plan->bad[i].position >= plan->roster->member_count ||
            plan->bad[i].area > CAIRN_AREA_PARITY)
            return CAIRN_CORRUPT;
    }
    return cairn_reader_done(reader);
}

static cairn_err
read_members(struct cairn_reader *reader, uint32_t agent_count, struct plan *plan)
{
    uint32_t count = plan->roster->member_count;

    plan->holders = calloc(count, sizeof(uint32_t));
    plan->targets = calloc(count, sizeof(uint32_t));
    if (!plan->holders || !plan->targets)
        return CAIRN_NOMEM;
    for (uint32_t m = 0; m < count; m++) {
        plan->holders[m] = cairn_read_u32(reader);
        plan->targets[m] = cairn_read_u32(reader);
        if (!agent_or_none(plan->holders[m], agent_count) ||
            !agent_or_none(plan->targets[m], agent_count))
            return CAIRN_CORRUPT;
    }
    return CAIRN_OK;
}

cairn_err
plan_read(struct cairn_reader *reader, uint32_t agent_count, struct plan *out)
{
    struct plan plan = {0};
    cairn_err err = cairn_roster_read(reader, &plan.roster);

    if (!err)
        err = read_members(reader, agent_count, &plan);
    if (!err)
        err = read_bad(reader, &plan);
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

void
repair_report(struct env *env, const struct repair *repair, const struct part *part)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_REBUILT, repair->epoch);

    message.as.rebuilt = (struct cairn_message_rebuilt){
        .attempt = repair->attempt,
        .plan = repair->number,
        .member = part->member,
        .finished = part->state == CAIRN_PART_COMPLETE && !part->mending.missing,
        .blocks = part->mending.written_blocks};
    env_send(env, repair->coordinator, &message);
}

void
repair_fail(struct env *env, struct repair *repair, uint32_t member, cairn_err err, bool proved)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_REBUILT, repair->epoch);

    if (repair->failed)
        return; /* it knows */
    message.as.rebuilt = (struct cairn_message_rebuilt){.attempt = repair->attempt,
                                                        .plan = repair->number,
                                                        .member = member,
                                                        .proved = proved,
                                                        .err = (uint32_t)err};
    env_send(env, repair->coordinator, &message);
    repair->failed = true;
}
