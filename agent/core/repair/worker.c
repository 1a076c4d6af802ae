/*
 * agent/core/repair/worker.c - taking part in a repair as worker: reads the sources of its items,
 * decodes, writes; see repair.h.
 *
 * An item is READ from its holders, decoded, and written to its targets until each has answered.
 * Its scratch is used again only when the answer to its DECODE has come, even if the repair has
 * ended meanwhile.
 */
#include "agent/core/repair/repair.h"

#include <stdlib.h>
#include <string.h>

static uint64_t
bit(uint32_t position)
{
    return UINT64_C(1) << position;
}

static const struct cairn_roster_group *
group_of(const struct repair *repair, const struct repair_worker *worker)
{
    return cairn_roster_group_of(repair->plan.roster, worker->member);
}

/* Which positions of the group are intact, and which must be rebuilt. */
static struct cairn_repair_request
group_request(const struct plan *plan, uint32_t group_index, struct repair_worker *worker)
{
    const struct cairn_roster_group *group = &plan->roster->groups[group_index];
    struct cairn_repair_request request = {.stripes = &worker->stripes, .bad = worker->bad};

    for (uint32_t p = 0; p < group->count; p++) {
        uint32_t member = group->members[p];

        if (plan->holders[member] != UINT32_MAX) {
            request.intact |= bit(p);
        } else if (plan->targets[member] != UINT32_MAX) {
            request.rebuild_data |= bit(p);
            request.rebuild_parity |= bit(p);
        }
    }
    for (uint32_t i = 0; i < plan->bad_count; i++) {
        const struct cairn_roster_member *of = &plan->roster->members[plan->bad[i].position];

        if (of->group != group_index)
            continue;
        worker->bad[request.bad_count] = plan->bad[i];
        worker->bad[request.bad_count++].position = of->position;
    }
    return request;
}

cairn_err
worker_add(const struct env *env, struct repair *repair, struct part *part)
{
    const struct plan *plan = &repair->plan;
    struct repair_worker *worker = &repair->workers[repair->worker_count];
    uint32_t group_index = plan->roster->members[part->member].group;
    const struct cairn_roster_group *group = &plan->roster->groups[group_index];
    const struct cairn_roster_group *known = cairn_roster_group_of(part->roster, part->member);
    struct cairn_repair_request request;

    if (!part_lengths(part) || group->count != known->count || group->parity != known->parity ||
        memcmp(group->members, known->members, group->count * sizeof *group->members) != 0)
        return CAIRN_CORRUPT; /* another roster than that of the generation */
    memset(worker, 0, sizeof *worker);
    worker->part = part_index(env, part);
    worker->member = part->member;
    worker->stripes = part->stripes;
    worker->bad = calloc(plan->bad_count + (size_t)1, sizeof *worker->bad);
    if (!worker->bad)
        return CAIRN_NOMEM;
    repair->worker_count++;
    part->working = true;
    request = group_request(plan, group_index, worker);
    return cairn_repair_init(&request, NULL, NULL, &worker->schedule);
}

static void
release(struct env *env, struct repair *repair, uint32_t index)
{
    env_act(env, CAIRN_ACTION_RELEASE)->as.decode.item = index;
    repair->items[index].used = false;
}

void
worker_stop(struct env *env, struct repair *repair)
{
    for (uint32_t i = 0; i < REPAIR_ITEMS_MAX; i++)
        if (repair->items[i].used)
            release(env, repair, i);
    for (uint32_t w = 0; w < repair->worker_count; w++)
        free(repair->workers[w].bad);
    memset(repair->workers, 0, sizeof repair->workers);
    repair->worker_count = 0;
}

/* ---- items ---- */

/* A position's blocks of an item. */
static struct cairn_message_read
blocks_of(const struct repair *repair, const struct repair_item *item, uint32_t position)
{
    const struct repair_worker *worker = &repair->workers[item->worker];

    return (struct cairn_message_read){.request = item->request,
                                       .generation = repair->generation,
                                       .member = group_of(repair, worker)->members[position],
                                       .stripe = item->plan.stripe,
                                       .line = item->plan.line_first,
                                       .count = item->plan.line_count};
}

/* The position of a member in the group of an item; CAIRN_SHARDS_MAX: it is in another group. */
static uint32_t
position_of(const struct repair *repair, const struct repair_item *item, uint32_t member)
{
    const struct cairn_roster *roster = repair->plan.roster;
    uint32_t of = repair->workers[item->worker].member;

    return member < roster->member_count &&
                   roster->members[member].group == roster->members[of].group
               ? roster->members[member].position
               : CAIRN_SHARDS_MAX;
}

static void
send_read(struct env *env, const struct repair *repair, const struct repair_item *item,
          uint32_t position)
{
    struct cairn_message message = epoch_message(env, CAIRN_MSG_READ);

    message.as.read = blocks_of(repair, item, position);
    env_send(env, repair->plan.holders[message.as.read.member], &message);
}

static void
send_write(struct env *env, const struct repair *repair, uint32_t index, uint32_t position)
{
    const struct repair_item *item = &repair->items[index];
    const struct repair_worker *worker = &repair->workers[item->worker];
    struct cairn_message message = epoch_message(env, CAIRN_MSG_WRITE);
    struct cairn_message_read read = blocks_of(repair, item, position);
    struct cairn_blocks blocks = {
        .count = read.count,
        .area = CAIRN_AREA_SCRATCH,
        .item = index,
        .shard = cairn_stripe_shard(&worker->stripes.geometry, item->plan.stripe, position)};

    message.as.write = (struct cairn_message_write){.request = read.request,
                                                    .generation = read.generation,
                                                    .member = read.member,
                                                    .stripe = read.stripe,
                                                    .line = read.line,
                                                    .count = read.count,
                                                    .attempt = repair->attempt};
    env_send_blocks(env, repair->plan.targets[read.member], &message, &blocks);
}

static void
decode_when_staged(struct env *env, struct repair *repair, uint32_t index)
{
    struct repair_item *item = &repair->items[index];
    const struct cairn_geometry *geometry = &repair->workers[item->worker].stripes.geometry;

    if (item->needed != 0)
        return;
    repair->decoding[index] = true;
    env_act(env, CAIRN_ACTION_DECODE)->as.decode = (struct cairn_action_decode){
        .item = index,
        .request = item->request,
        .lost = cairn_stripe_shards_of(geometry, item->plan.stripe, item->plan.rebuild),
        .sources = cairn_stripe_shards_of(geometry, item->plan.stripe, item->plan.sources),
        .data_shards = geometry->k,
        .parity_shards = geometry->m,
        .count = item->plan.line_count};
}

static void
begin_item(struct env *env, struct repair *repair, uint32_t index, uint32_t worker,
           const struct cairn_repair_item *plan)
{
    struct repair_item *item = &repair->items[index];

    *item = (struct repair_item){.used = true,
                                 .worker = worker,
                                 .request = env_request(env),
                                 .plan = *plan,
                                 .needed = plan->reads, /* the own part's too: all are compared with
                                                         * their checksums on the way */
                                 .unwritten = plan->rebuild};
    for (uint32_t p = 0; p < CAIRN_SHARDS_MAX; p++)
        if (item->needed & bit(p))
            send_read(env, repair, item, p);
    decode_when_staged(env, repair, index);
}

/* The next item of a worker's schedule that is its own; false: there is none left. */
static bool
next_item(struct repair_worker *worker, uint32_t position, struct cairn_repair_item *out)
{
    while (cairn_repair_next(&worker->schedule, out))
        if (out->worker == position)
            return true;
    return false;
}

void
worker_run(struct env *env, struct repair *repair)
{
    for (uint32_t i = 0; i < REPAIR_ITEMS_MAX && !repair->failed; i++)
        for (uint32_t w = 0; w < repair->worker_count; w++) {
            struct repair_worker *worker = &repair->workers[w];
            struct cairn_repair_item item;

            if (repair->items[i].used || repair->decoding[i])
                break;
            if (next_item(worker, env->parts->list[worker->part].position, &item))
                begin_item(env, repair, i, w, &item);
        }
}

static struct repair_item *
find_item(struct repair *repair, uint64_t request)
{
    for (uint32_t i = 0; i < REPAIR_ITEMS_MAX; i++)
        if (repair->items[i].used && repair->items[i].request == request)
            return &repair->items[i];
    return NULL;
}

/* Something arrived damaged and is sent again, unless it happens again and again: then it is
 * damaged where it lies, and its holder must look again. */
static bool
may_try_again(struct env *env, struct repair *repair, struct repair_item *item, uint32_t member)
{
    if (++item->refused < CORRUPT_DATA_MAX)
        return true;
    repair_fail(env, repair, member, CAIRN_AGAIN, false);
    return false;
}

/* True if an answer has the blocks that the own seal of their member describes. Parity is not in
 * the seals: a wrong decode shows at the target. */
static bool
are_right(const struct part *part, const struct repair_item *item, uint32_t position,
          const struct cairn_message *message)
{
    uint64_t first;

    return cairn_stripes_area(&part->stripes, item->plan.stripe, position, &first) ==
               CAIRN_AREA_PARITY ||
           crcs_match(part->seals[position].crcs + first + item->plan.line_first,
                      item->plan.line_count, message->bytes);
}

void
worker_blocks(struct env *env, struct repair *repair, const struct cairn_message *message,
              bool payload_ok)
{
    const struct cairn_message_blocks *blocks = &message->as.blocks;
    struct repair_item *item = find_item(repair, blocks->request);
    uint32_t position = item ? position_of(repair, item, blocks->member) : CAIRN_SHARDS_MAX;
    const struct part *part;

    if (position == CAIRN_SHARDS_MAX || !(item->needed & bit(position)) ||
        message->from != repair->plan.holders[blocks->member])
        return;
    if (blocks->count != item->plan.line_count) {
        repair_fail(env, repair, blocks->member, CAIRN_AGAIN, false); /* the plan is out of date */
        return;
    }
    part = &env->parts->list[repair->workers[item->worker].part];
    if ((!payload_ok || !are_right(part, item, position, message)) &&
        !CAIRN_PLANTED(env, BUG_REBUILD_UNVERIFIED)) {
        if (may_try_again(env, repair, item, blocks->member))
            send_read(env, repair, item, position);
        return;
    }
    item->refused = 0;
    env_act(env, CAIRN_ACTION_STAGE)->as.place = (struct cairn_action_place){
        .item = (uint32_t)(item - repair->items),
        .source = cairn_stripe_shard(&part->geometry, item->plan.stripe, position),
        .count = blocks->count};
    item->needed &= ~bit(position);
    decode_when_staged(env, repair, (uint32_t)(item - repair->items));
}

void
repair_decoded(struct env *env, struct repair *repair, const struct cairn_event_decoded *decoded)
{
    uint32_t index = decoded->item;
    struct repair_item *item = index < REPAIR_ITEMS_MAX ? &repair->items[index] : NULL;

    if (!item)
        return;
    repair->decoding[index] = false;
    if (item->used && !item->decoded && item->request == decoded->request) {
        item->decoded = true;
        for (uint32_t p = 0; p < CAIRN_SHARDS_MAX; p++)
            if (item->unwritten & bit(p))
                send_write(env, repair, index, p);
    } else if (repair->active) {
        worker_run(env, repair); /* its item is gone, its scratch is free now */
    }
}

/* Sends the decoded blocks that an agent has not answered. */
static void
write_again(struct env *env, const struct repair *repair, uint32_t agent)
{
    for (uint32_t i = 0; i < REPAIR_ITEMS_MAX; i++) {
        const struct repair_item *item = &repair->items[i];

        for (uint32_t p = 0; item->used && item->decoded && p < CAIRN_SHARDS_MAX; p++)
            if ((item->unwritten & bit(p)) &&
                repair->plan.targets[blocks_of(repair, item, p).member] == agent)
                send_write(env, repair, i, p);
    }
}

void
worker_written(struct env *env, struct repair *repair, const struct cairn_message *message)
{
    const struct cairn_message_written *written = &message->as.written;
    struct repair_item *item = find_item(repair, written->request);
    uint32_t position = item ? position_of(repair, item, written->member) : CAIRN_SHARDS_MAX;
    uint32_t index = (uint32_t)(item ? item - repair->items : 0);

    if (written->request == 0 && written->again)
        write_again(env, repair, message->from);
    if (position == CAIRN_SHARDS_MAX || !item->decoded || !(item->unwritten & bit(position)) ||
        repair->plan.targets[written->member] != message->from)
        return;
    if (written->again) {
        if (may_try_again(env, repair, item, written->member))
            send_write(env, repair, index, position);
        return;
    }
    item->unwritten &= ~bit(position);
    if (item->unwritten)
        return;
    release(env, repair, index);
    worker_run(env, repair);
}

void
worker_peer_up(struct env *env, struct repair *repair, uint32_t agent)
{
    const struct plan *plan = &repair->plan;

    for (uint32_t i = 0; i < REPAIR_ITEMS_MAX; i++) {
        const struct repair_item *item = &repair->items[i];

        for (uint32_t p = 0; item->used && p < CAIRN_SHARDS_MAX; p++)
            if ((item->needed & bit(p)) &&
                plan->holders[blocks_of(repair, item, p).member] == agent)
                send_read(env, repair, item, p);
    }
    write_again(env, repair, agent);
}
