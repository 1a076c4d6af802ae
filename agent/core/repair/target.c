/*
 * agent/core/repair/target.c - taking part in a repair as target: a lost part gets its seals, then
 * its memory, then its blocks; a damaged one gets the blocks that are bad. See repair.h.
 *
 * Every data block is compared with its member's seal before it is kept, and a mended parity block
 * with the checksum that was stored for it, so a wrong decode is never taken. A rebuilt parity
 * block's checksum is the one that was made where it was decoded, and was compared on arrival.
 *
 * A payload may arrive in the part itself (target_place), so it may be damaged there. Only missing
 * blocks are such places. A block that is not missing any more is never written again.
 */
#include "agent/core/repair/repair.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { REPORTS = 8 }; /* of progress, on the way of one part */

/* Blocks that the parity takes: m slots as long as the longest. */
static uint64_t
parity_room(const struct part *part)
{
    uint64_t longest = 0;

    for (uint32_t slot = 0; slot < part->geometry.m; slot++)
        longest = max_u64(longest, part_slot_blocks(part, slot));
    return longest * part->geometry.m;
}

void
target_end(struct part *part)
{
    free(part->mending.missing);
    part->mending.missing = NULL;
    part->mending.missing_count = 0;
}

static cairn_err
prepare_missing(struct part *part)
{
    target_end(part);
    part->mending.missing = calloc(part_blocks(part) / 64 + 1, sizeof(uint64_t));
    part->mending.written_blocks = 0;
    return part->mending.missing ? CAIRN_OK : CAIRN_NOMEM;
}

static void
add_missing(struct part *part, uint64_t block)
{
    if (cairn_bitset_has(part->mending.missing, (uint32_t)block))
        return;
    cairn_bitset_add(part->mending.missing, (uint32_t)block);
    part->mending.missing_count++;
}

/* Marks the bad blocks of a part that this agent holds. */
static cairn_err
mend(struct part *part)
{
    uint64_t data_blocks = part->stripes.shard_blocks[part->position];
    uint64_t total = part_blocks(part);

    if (part->checked.bad_count > BAD_BLOCKS_MAX)
        return CAIRN_AGAIN; /* not all are listed: the part counts as lost */
    if (prepare_missing(part) != CAIRN_OK)
        return CAIRN_NOMEM;
    for (uint64_t i = 0; i < part->checked.bad_count; i++) {
        const struct cairn_bad_block *bad = &part->checked.bad[i];
        uint64_t start = bad->area == CAIRN_AREA_PARITY ? data_blocks : 0;

        if (bad->block < total - start)
            add_missing(part, start + bad->block);
    }
    return CAIRN_OK;
}

/* ---- what comes next ---- */

/* Once the seals are here the lengths are known, and memory can be had. */
static cairn_err
ask_for_memory(struct env *env, struct part *part)
{
    uint64_t data_blocks = part->stripes.shard_blocks[part->position];
    uint64_t total = part_blocks(part);
    struct cairn_action *opened;

    if (prepare_missing(part) != CAIRN_OK || part_make_parity_crcs(part) != CAIRN_OK)
        return CAIRN_NOMEM;
    for (uint64_t i = 0; i < total; i++)
        add_missing(part, i);
    if (data_blocks > env->options->slot_blocks || parity_room(part) > env->options->parity_blocks)
        part->mending.memory_ready = false; /* an own slot is too small */
    if (part->mending.memory_ready)
        return CAIRN_OK;
    opened = part_ask(env, part, CAIRN_ACTION_OPEN);
    opened->as.part.blocks = data_blocks;
    opened->as.part.parity_blocks = parity_room(part);
    part->request = opened->as.part.request;
    return CAIRN_OK;
}

/* Drops a part that cannot be written here. */
static void
give_up(struct env *env, struct repair *repair, struct part *part, cairn_err err)
{
    uint32_t member = part->member;

    part_drop(env, part, false);
    repair_fail(env, repair, member, err, false);
}

static void
complete_when_written(struct env *env, struct repair *repair, struct part *part)
{
    cairn_err err;

    if (!part->mending.memory_ready || part->mending.missing_count > 0)
        return;
    err = part_complete(env, part);
    if (err) {
        give_up(env, repair, part, err);
        return;
    }
    target_end(part);
    repair_report(env, repair, part);
}

/* Asks the first holder of the group for the missing seals. Each piece that arrives is answered,
 * and that asks for the next. */
static void
ask_for_seals(struct env *env, const struct repair *repair, const struct part *part)
{
    const struct plan *plan = &repair->plan;
    const struct cairn_roster_group *group = cairn_roster_group_of(plan->roster, part->member);
    uint32_t holder = UINT32_MAX;

    for (uint32_t p = group->count; p-- > 0;)
        if (plan->holders[group->members[p]] != UINT32_MAX)
            holder = plan->holders[group->members[p]];
    for (uint32_t p = 0; holder != UINT32_MAX && p < part->geometry.n; p++) {
        struct cairn_message message = epoch_message(env, CAIRN_MSG_RECEIVED);

        if (part->seals[p].whole)
            continue;
        message.as.received = (struct cairn_message_received){.generation = part->generation,
                                                              .member = group->members[p],
                                                              .for_member = part->member,
                                                              .row = CAIRN_ROW_SEAL,
                                                              .attempt = repair->attempt,
                                                              .count = part->seals[p].received,
                                                              .again = 1};
        env_send(env, holder, &message);
    }
}

void
target_peer_up(struct env *env, const struct repair *repair)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (env->parts->list[i].state == CAIRN_PART_REBUILDING)
            ask_for_seals(env, repair, &env->parts->list[i]);
}

/* Tells the workers of the group that blocks are taken from now on. */
static void
ask_for_blocks(struct env *env, const struct repair *repair, const struct part *part)
{
    const struct plan *plan = &repair->plan;
    const struct cairn_roster_group *group = cairn_roster_group_of(plan->roster, part->member);
    struct cairn_message message = epoch_message(env, CAIRN_MSG_WRITTEN);

    message.as.written = (struct cairn_message_written){.member = part->member, .again = 1};
    for (uint32_t p = 0; p < group->count; p++)
        if (plan->holders[group->members[p]] != UINT32_MAX)
            env_send(env, plan->holders[group->members[p]], &message);
}

static bool
takes_blocks(const struct part *part)
{
    return part->mending.missing && part->mending.memory_ready && part->lengths_known;
}

static bool
has_all_seals(const struct part *part)
{
    for (uint32_t p = 0; p < part->geometry.n; p++)
        if (!part->seals[p].whole)
            return false;
    return true;
}

/* Does what comes next for a part, and tells the group what it may send. */
static void
advance(struct env *env, struct repair *repair, struct part *part)
{
    cairn_err err = CAIRN_OK;

    if (!has_all_seals(part)) {
        ask_for_seals(env, repair, part);
        return;
    }
    if (!part_lengths(part))
        err = CAIRN_CORRUPT; /* lengths that no group can have */
    else if (!part->mending.missing)
        err = ask_for_memory(env, part);
    if (err) {
        repair_fail(env, repair, part->member, err, false);
        return;
    }
    if (takes_blocks(part))
        ask_for_blocks(env, repair, part);
    if (part->state == CAIRN_PART_REBUILDING)
        complete_when_written(env, repair, part);
}

cairn_err
target_open(struct env *env, struct repair *repair, uint32_t member)
{
    struct cairn_roster *roster = repair->plan.roster;
    struct part *part = parts_find(env->parts, repair->generation, member);
    bool own = roster->members[member].agent == env->options->self ||
               cairn_roster_member_of(roster, env->options->self) == UINT32_MAX;
    bool complete = part && part->state == CAIRN_PART_COMPLETE;
    cairn_err err = CAIRN_OK;

    if (complete && part->checked.bad_count == 0)
        return CAIRN_AGAIN; /* neither lost nor damaged any more: what only this plan's reads would
                             * compare would not be compared */
    if (repair->plan.holders[member] == env->options->self) {
        err = complete ? mend(part) : CAIRN_AGAIN;
    } else {
        if (part) /* too damaged to be counted */
            part_drop(env, part, false);
        part = part_open(env, repair->generation, member, roster, CAIRN_PART_REBUILDING, own);
        err = part ? CAIRN_OK : CAIRN_NOMEM;
    }
    if (!err)
        advance(env, repair, part);
    return err;
}

void
repair_opened(struct env *env, struct repair *repair, struct part *part,
              const struct cairn_event_answer *answer)
{
    if (answer->request != part->request || part->mending.memory_ready)
        return;
    if (answer->err) {
        give_up(env, repair, part, CAIRN_NOMEM);
        return;
    }
    part->mending.memory_ready = true;
    part->request = 0;
    advance(env, repair, part);
}

/* ---- seals and blocks ---- */

/* The part of this repair that a member of its group is sent something for. */
static struct part *
part_for(const struct env *env, const struct repair *repair, struct cairn_generation_id generation,
         uint32_t member, uint64_t attempt)
{
    if (attempt != repair->attempt || !cairn_generation_is(generation, repair->generation))
        return NULL;
    return parts_find(env->parts, generation, member);
}

void
target_seal(struct env *env, struct repair *repair, const struct cairn_message *message)
{
    const struct cairn_message_seal *piece = &message->as.seal;
    struct part *part = part_for(env, repair, piece->generation, piece->for_member, piece->attempt);
    bool had_all, damaged;

    if (!part || (part->state != CAIRN_PART_REBUILDING && part->state != CAIRN_PART_COMPLETE) ||
        piece->member >= part->roster->member_count ||
        part->roster->members[piece->member].group != part->roster->members[part->member].group)
        return;
    had_all = has_all_seals(part);
    (void)save_take_seal(env, part, message, &damaged);
    if (!had_all && has_all_seals(part))
        advance(env, repair, part);
}

/* How many blocks from `at` on are missing. */
static uint32_t
missing_of(const struct part *part, uint64_t at, uint32_t count)
{
    uint32_t missing = 0;

    for (uint64_t block = at; block < at + count; block++)
        missing += cairn_bitset_has(part->mending.missing, (uint32_t)block);
    return missing;
}

/* True for an agent that works for the group of a member, and so may write the member's blocks. */
static bool
may_write(const struct plan *plan, uint32_t member, uint32_t agent)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(plan->roster, member);

    for (uint32_t p = 0; p < group->count; p++)
        if (plan->holders[group->members[p]] == agent)
            return true;
    return false;
}

static struct cairn_action_place
place_of(const struct env *env, const struct part *part, const struct span *span, uint32_t count)
{
    return (struct cairn_action_place){.part = part_index(env, part),
                                       .area = span->area,
                                       .row = span->slot,
                                       .first_block = span->first_block,
                                       .count = count};
}

bool
target_place(const struct env *env, const struct repair *repair, uint32_t from, uint64_t place,
             uint32_t count, struct cairn_action_place *out)
{
    struct cairn_message_write write;
    struct part *part;
    struct span span;

    if (!repair->active || !cairn_place_is_write(place))
        return false;
    cairn_place_read(place, &write);
    part = parts_find(env->parts, repair->generation, write.member);
    if (!part || part->state != CAIRN_PART_REBUILDING || !takes_blocks(part) ||
        !may_write(&repair->plan, write.member, from) ||
        !part_span(part, write.stripe, write.line, count, &span))
        return false;
    if (missing_of(part, span.index, count) < count && !CAIRN_PLANTED(env, BUG_PLACE_WRITTEN))
        return false;
    *out = place_of(env, part, &span, count);
    return true;
}

/* Removes blocks from `missing`; true if it is time to report. */
static bool
note_written(struct part *part, uint64_t at, uint32_t count)
{
    struct mending *mending = &part->mending;
    uint64_t total = mending->missing_count + mending->written_blocks;
    uint64_t before = mending->written_blocks;

    for (uint64_t block = at; block < at + count; block++) {
        if (!cairn_bitset_has(mending->missing, (uint32_t)block))
            continue;
        cairn_bitset_remove(mending->missing, (uint32_t)block);
        mending->missing_count--;
        mending->written_blocks++;
    }
    return mending->missing_count > 0 &&
           REPORTS * mending->written_blocks / total > REPORTS * before / total;
}

/* All damaged blocks of a complete part are good again. */
static void
mended(struct env *env, struct repair *repair, struct part *part)
{
    target_end(part);
    free(part->checked.bad);
    part->checked.bad = NULL;
    part->checked.bad_count = 0;
    repair_report(env, repair, part);
}

void
target_write(struct env *env, struct repair *repair, const struct cairn_message *message,
             bool payload_ok)
{
    const struct cairn_message_write *write = &message->as.write;
    struct part *part = part_for(env, repair, write->generation, write->member, write->attempt);
    struct cairn_message answer = epoch_message(env, CAIRN_MSG_WRITTEN);
    bool unverified = CAIRN_PLANTED(env, BUG_REBUILD_UNVERIFIED), is_known;
    struct span span;

    answer.as.written =
        (struct cairn_message_written){.request = write->request, .member = write->member};
    if (part && part->state == CAIRN_PART_COMPLETE && !part->mending.missing) {
        env_send(env, message->from, &answer); /* a repeat of what is done */
        return;
    }
    if (!part || !takes_blocks(part)) /* ask_for_blocks comes */
        return;
    if (!may_write(&repair->plan, write->member, message->from) ||
        !part_span(part, write->stripe, write->line, write->count, &span))
        return;
    if (missing_of(part, span.index, write->count) == 0) {
        env_send(env, message->from, &answer); /* a repeat */
        return;
    }
    if (!payload_ok && !unverified) {
        answer.as.written.again = 1;
        env_send(env, message->from, &answer);
        return;
    }
    /* What a damaged parity block was is known; a lost part's is not. */
    is_known = span.area == CAIRN_AREA_DATA || part->state == CAIRN_PART_COMPLETE;
    if (is_known && !crcs_match(span.crcs, write->count, message->bytes) && !unverified) {
        CAIRN_LOG_AT(ERROR, "repair: wrong bytes from agent %u for member %u step=%" PRIu64,
                     message->from, part->member, part->generation.step);
        repair_fail(env, repair, part->member, CAIRN_CORRUPT, false);
        return;
    }
    for (uint32_t i = 0; !is_known && i < write->count; i++)
        part->parity_crcs[span.slot][span.first_block + i] =
            cairn_little_get(message->bytes + 8 * (size_t)i, 8);
    env_act(env, CAIRN_ACTION_WRITE)->as.place = place_of(env, part, &span, write->count);
    part->progress_ns = env->now_ns;
    if (note_written(part, span.index, write->count))
        repair_report(env, repair, part);
    env_send(env, message->from, &answer);
    if (part->mending.missing_count > 0)
        return;
    if (part->state == CAIRN_PART_COMPLETE)
        mended(env, repair, part);
    else
        complete_when_written(env, repair, part);
}
