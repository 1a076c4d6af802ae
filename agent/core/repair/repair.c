/* agent/core/repair/repair.c - begins and ends this agent's part in a repair; see repair.h. */
#include "agent/core/repair/repair.h"

#include "agent/core/part/outflow.h"

#include <stdlib.h>
#include <string.h>

void
repair_stop(struct env *env, struct repair *repair)
{
    worker_stop(env, repair);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct part *part = &env->parts->list[i];

        part->working = false;
        if (part->state == CAIRN_PART_REBUILDING)
            part_drop(env, part, false);
        else
            target_end(part);
    }
    plan_fini(&repair->plan);
    repair->active = false;
    repair->failed = false;
}

void
repair_end(struct env *env, struct repair *repair, uint32_t coordinator)
{
    if (repair->active && repair->coordinator == coordinator)
        repair_stop(env, repair);
}

/* Opens the parts that this agent gets, and makes workers of those that it holds. */
static cairn_err
take_roles(struct env *env, struct repair *repair, uint32_t *member)
{
    const struct plan *plan = &repair->plan;
    uint32_t self = env->options->self;

    for (uint32_t m = 0; m < plan->roster->member_count; m++) {
        cairn_err err = CAIRN_OK;

        *member = m;
        if (!plan_has_work(plan, m))
            continue;
        if (plan->targets[m] == self)
            err = target_open(env, repair, m);
        if (!err && plan->holders[m] == self) {
            struct part *part = parts_find(env->parts, repair->generation, m);

            err = part && part->state == CAIRN_PART_COMPLETE
                      ? worker_add(env, repair, part)
                      : CAIRN_AGAIN; /* it is no longer what the plan was made for */
        }
        if (err)
            return err;
    }
    return CAIRN_OK;
}

/* Wants sessions with all that take part in the groups of this agent. */
static void
connect(struct env *env, const struct plan *plan)
{
    for (uint32_t m = 0; m < plan->roster->member_count; m++) {
        const struct cairn_roster_group *group = cairn_roster_group_of(plan->roster, m);

        if (plan->holders[m] != env->options->self && plan->targets[m] != env->options->self)
            continue;
        for (uint32_t p = 0; plan_has_work(plan, m) && p < group->count; p++) {
            uint32_t other = group->members[p];

            if (plan->holders[other] != UINT32_MAX)
                env_connect(env, plan->holders[other]);
            if (plan->targets[other] != UINT32_MAX)
                env_connect(env, plan->targets[other]);
        }
    }
}

void
repair_begin(struct env *env, struct repair *repair, const struct cairn_message *message)
{
    struct plan plan = {0};
    uint32_t member = UINT32_MAX;
    cairn_err err;

    err = plan_read(message->bytes, message->bytes_len, env->options->agent_count, &plan);
    if (!err && message->as.rebuild.generation.step == 0) {
        plan_fini(&plan);
        err = CAIRN_CORRUPT; /* no generation */
    }
    repair_stop(env, repair);
    repair->coordinator = message->from;
    repair->attempt = message->as.rebuild.attempt;
    repair->generation = message->as.rebuild.generation;
    if (err) {
        repair_fail(env, repair, member, err, false);
        return;
    }
    repair->active = true;
    repair->plan = plan;
    connect(env, &repair->plan);
    err = take_roles(env, repair, &member);
    if (err)
        repair_fail(env, repair, member, err, err == CAIRN_LOST);
    else
        worker_run(env, repair);
}

/* Answers READ of any complete part. */
static void
answer_read(struct env *env, const struct cairn_message *message)
{
    const struct cairn_message_read *read = &message->as.read;
    struct part *part = parts_find(env->parts, read->generation, read->member);
    struct cairn_message answer = env_message(env, CAIRN_MSG_BLOCKS, message->epoch);
    struct cairn_blocks blocks = {0};
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_writer writer;
    struct span span;

    answer.as.blocks = (struct cairn_message_blocks){.request = read->request,
                                                     .generation = read->generation,
                                                     .member = read->member,
                                                     .stripe = read->stripe,
                                                     .line = read->line,
                                                     .err = CAIRN_NOT_FOUND};
    if (part && part->state == CAIRN_PART_COMPLETE &&
        part_span(part, read->stripe, read->line, read->count, &span)) {
        cairn_writer_init(&writer, crcs, sizeof crcs);
        for (uint32_t i = 0; i < read->count; i++)
            cairn_write_u64(&writer, span.crcs[i]);
        answer.as.blocks.count = read->count;
        answer.as.blocks.err = CAIRN_OK;
        answer.bytes = crcs;
        answer.bytes_len = (uint32_t)writer.used_bytes;
        blocks = (struct cairn_blocks){.count = read->count,
                                       .area = span.area,
                                       .part = part_index(env, part),
                                       .row = span.slot,
                                       .first_block = span.first_block};
    }
    env_send_blocks(env, message->from, &answer, &blocks);
}

/* A complete part here of a member's group. */
static const struct part *
parts_of_group(const struct parts *parts, struct cairn_generation_id generation, uint32_t member)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        const struct part *part = &parts->list[i];

        if (part->state == CAIRN_PART_COMPLETE &&
            cairn_generation_is(part->generation, generation) &&
            member < part->roster->member_count &&
            part->roster->members[member].group == part->roster->members[part->member].group)
            return part;
    }
    return NULL;
}

/* Answers RECEIVED of a target with the next piece of the seal. */
static void
answer_received(struct env *env, const struct cairn_message *message)
{
    const struct cairn_message_received *received = &message->as.received;
    const struct part *part = parts_of_group(env->parts, received->generation, received->member);

    if (part)
        (void)outflow_send_seal(env, part, message->from,
                                (struct cairn_message_seal){.member = received->member,
                                                            .for_member = received->for_member,
                                                            .attempt = received->attempt,
                                                            .offset = received->count});
}

void
repair_message(struct env *env, struct repair *repair, const struct cairn_message *message,
               bool payload_ok)
{
    if (message->kind == CAIRN_MSG_READ)
        answer_read(env, message);
    else if (message->kind == CAIRN_MSG_RECEIVED)
        answer_received(env, message);
    if (!repair->active)
        return;
    switch (message->kind) {
    case CAIRN_MSG_BLOCKS:
        worker_blocks(env, repair, message, payload_ok);
        break;
    case CAIRN_MSG_WRITTEN:
        worker_written(env, repair, message);
        break;
    case CAIRN_MSG_WRITE:
        target_write(env, repair, message, payload_ok);
        break;
    case CAIRN_MSG_SEAL:
        target_seal(env, repair, message);
        break;
    default:
        break;
    }
}

void
repair_peer_up(struct env *env, struct repair *repair, uint32_t agent)
{
    if (!repair->active)
        return;
    worker_peer_up(env, repair, agent);
    target_peer_up(env, repair);
}
