/*
 * agent/core/save.c - takes one generation from capture to its owners of parity.
 *
 *   open      at the local trainer's begin, or at the first message of a group member that is ahead
 *   capture   blocks arrive in order per rank; each is sent at once to the m parity owners of its
 *             stripe
 *   seal      when all local ranks are done: checksums and manifest go to every member of the group
 *   finish    parity.c, which also keeps the parity for the others
 *
 * A flow is one chunk on its way to one parity owner: go-back-N with a window, resent from what was
 * acknowledged. An agent that adopts a complete holding after a crash restarts all its flows; an
 * owner that has the blocks says so in its first answer.
 *
 * A generation that cannot be finished here is given up by one no, before anything else is done
 * with its slot. So is a generation without progress for rebuild_timeout: a slot that waits for
 * ever would end all protection.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool
save_own_part(const struct cairn_core *core, const struct holding *holding)
{
    return holding->state != CAIRN_HOLDING_FREE && holding->member == core->self_member &&
           holding->generation.epoch == core->active;
}

bool
save_sends(const struct cairn_core *core, const struct holding *holding)
{
    return save_own_part(core, holding) && holding->state != CAIRN_HOLDING_REBUILDING &&
           holding->captured && cairn_generation_compare(holding->generation, core->committed) > 0;
}

bool
save_may_vote(const struct cairn_core *core, struct cairn_generation generation)
{
    return !core->frozen && core->self_member != UINT32_MAX && generation.epoch == core->active &&
           generation.step != 0 && cairn_generation_compare(generation, core->committed) > 0 &&
           !facts_vetoed(core, generation);
}

/* The local trainers are past it, so it cannot be captured here any more. */
bool
save_passed(const struct cairn_core *core, struct cairn_generation generation)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (save_own_part(core, &core->holdings[i]) &&
            core->holdings[i].generation.step > generation.step)
            return true;
    if (core->own_ranks == 0 || generation.step >= core->last_step)
        return false;
    for (uint32_t r = 0; r < core->own_ranks; r++)
        if (core->pending[r].waiting && core->pending[r].step == generation.step)
            return false;
    return true;
}

static cairn_err
prepare_capture(struct cairn_core *core, struct holding *holding)
{
    uint64_t blocks = core->own_blocks;

    holding->captured = calloc(blocks / 64 + 1, sizeof(uint64_t));
    holding->crcs = calloc(blocks + 1, sizeof(uint64_t));
    if (!holding->captured || !holding->crcs)
        return CAIRN_NOMEM;
    holding->data_blocks = blocks;
    holding->world = core->own_world;
    holding->progress_ns = core->now_ns;
    return CAIRN_OK;
}

void
save_resume(struct cairn_core *core, struct holding *holding)
{
    const struct seal *seal = &holding->seals[holding->position];
    uint64_t words = seal->shard_blocks / 64 + 1;

    if (holding->captured || !seal->whole)
        return;
    holding->captured = malloc(words * sizeof(uint64_t));
    holding->crcs = malloc((seal->shard_blocks + 1) * sizeof(uint64_t));
    if (!holding->captured || !holding->crcs) {
        core->actions->failed = true;
        return;
    }
    memset(holding->captured, 0xff, words * sizeof(uint64_t));
    memcpy(holding->crcs, seal->crcs, seal->shard_blocks * sizeof(uint64_t));
}

bool
save_parity_fits(const struct cairn_core *core, const struct cairn_roster_group *group,
                 uint64_t part_blocks)
{
    uint64_t m = group->parity, k = group->count - m;

    return m * ((part_blocks + k - 1) / k) <= core->options.parity_blocks;
}

/* This node's part needs more parity than its group has memory for: nobody could ever finish it. */
static bool
too_large(struct cairn_core *core)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(core->table, core->self_member);

    if (save_parity_fits(core, group, core->own_blocks))
        return false;
    if (core->said_too_large != core->active)
        CAIRN_LOG_AT(WARN,
                     "save: nothing is protected: this node's part of %" PRIu64
                     " blocks needs more parity than %u+%u nodes have reserved memory for: bring "
                     "nodes back and "
                     "run cairn restore, or start the agents with a larger state_bytes",
                     core->own_blocks, group->count - group->parity, group->parity);
    core->said_too_large = core->active;
    return true;
}

struct holding *
save_open(struct cairn_core *core, struct cairn_generation generation)
{
    struct holding *holding;

    if (!save_may_vote(core, generation))
        return NULL;
    if (save_passed(core, generation)) {
        facts_vote(core, generation, false);
        return NULL;
    }
    if (core->own_ranks == 0)
        return NULL;
    if (too_large(core)) {
        facts_vote(core, generation, false);
        return NULL;
    }
    holding = holding_open(core, generation, core->self_member, core->table, CAIRN_HOLDING_OPEN);
    if (!holding)
        return NULL;
    if (prepare_capture(core, holding) != CAIRN_OK) {
        holding_drop(core, holding, false);
        return NULL;
    }
    again_opened(core, holding);
    return holding;
}

void
save_give_up(struct cairn_core *core, struct cairn_generation generation, const char *why)
{
    struct holding *holding = holding_find(core, generation, core->self_member);

    if (holding && holding->state == CAIRN_HOLDING_COMPLETE)
        return; /* the yes was said */
    CAIRN_LOG_AT(DEBUG, "save: give up step=%" PRIu64 " why=%s", generation.step, why);
    if (CAIRN_PLANTED(core, BUG_NO_VETO)) {
        facts_vote(core, generation, true);
        return;
    }
    facts_vote(core, generation, false);
    holding = holding_find(core, generation, core->self_member);
    if (holding)
        holding_drop(core, holding, true);
    save_grant_pending(core);
}

/*
 * Up to where the trainers that are gone may have begun, of whom this agent knows its own alone.
 * Steps are begun in lockstep, so the others may be at the next one, and it may be whole in other
 * groups, by a yes that nobody here has heard. The own group cannot have it without this part.
 * Where steps are left out, the next one may have any number: what is whole elsewhere is heard of
 * long before there are other trainers.
 */
static uint64_t
begun_before(const struct cairn_core *core)
{
    if (core->last_step == 0 || core->table->group_count == 1)
        return core->last_step;
    return max_u64(core->last_step + 1, save_newest_whole(core, false));
}

/*
 * What trainers have captured goes on without them, and is mostly committed before others are here.
 * With others it ends: a member whose trainers died before they began that step would capture it of
 * the new ones, and where it was committed late, these would be taken to be behind it.
 */
void
save_ranks(struct cairn_core *core, const struct cairn_event *event)
{
    bool others = core->own_ranks == 0 && event->count > 0;

    if (event->blocks != core->own_blocks || event->count != core->own_ranks)
        for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
            if (save_own_part(core, &core->holdings[i]) &&
                core->holdings[i].state == CAIRN_HOLDING_OPEN &&
                (others || !core->holdings[i].seal_asked))
                save_give_up(core, core->holdings[i].generation, "the trainers changed");
    if (core->own_ranks == 0)
        core->began_anew = false;
    if (core->own_ranks == 0) /* new trainers: what they begin again is not what the old ones had */
        core->passed_step =
            max_u64(core->passed_step, event->same_trainers ? core->last_step : begun_before(core));
    core->tiling.refused = (struct cairn_generation){0, 0}; /* they may fit together now */
    if (event->count == 0)
        core->tiling.refusal[0] = '\0';
    core->own_blocks = event->blocks;
    core->own_ranks = (uint32_t)min_u64(event->count, CAIRN_RANKS_PER_NODE_MAX);
    core->own_world = event->world;
    memset(core->pending, 0, sizeof core->pending);
}

/* ---- sending ---- */

static void
pump_data_flow(struct cairn_core *core, struct holding *holding, uint32_t chunk, uint32_t row)
{
    const struct cairn_geometry *geometry = &holding->geometry;
    struct flow *flow = &holding->data_flows[chunk * geometry->m + row];
    uint64_t start = chunk * cairn_shard_chunk_blocks(geometry, holding->data_blocks);
    uint64_t length = cairn_chunk_blocks(geometry, holding->data_blocks, chunk);
    uint32_t stripe = cairn_chunk_stripe(geometry, holding->position, chunk);
    uint32_t owner = cairn_roster_group_of(holding->table, holding->member)
                         ->members[cairn_stripe_parity_position(geometry, stripe, row)];

    while (flow->next < length && flow->next - flow->acked < WINDOW_BLOCKS) {
        struct cairn_message message = message_new(core, CAIRN_MSG_DATA, core->active);
        uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
        struct cairn_writer writer;
        struct cairn_action *action;
        uint32_t count = 0;

        cairn_writer_init(&writer, crcs, sizeof crcs);
        while (count < CAIRN_MESSAGE_BLOCKS_MAX && flow->next + count < length &&
               cairn_bitset_has(holding->captured, (uint32_t)(start + flow->next + count))) {
            cairn_write_u64(&writer, holding->crcs[start + flow->next + count]);
            count++;
        }
        if (count == 0)
            return;
        message.generation = holding->generation;
        message.member = holding->member;
        message.area = CAIRN_AREA_DATA;
        message.stripe = stripe;
        message.row = row;
        message.first_block = start + flow->next;
        message.offset = flow->next; /* line in the chunk */
        message.block_count = count;
        message.bytes = crcs;
        message.bytes_len = 8 * count;
        action = send_message(core, holding->table->members[owner].agent, &message);
        if (!action)
            return;
        action->holding = holding_index(core, holding);
        action->area = CAIRN_AREA_DATA;
        action->first_block = message.first_block;
        action->count = count;
        flow->next += count;
        flow->progress_ns = core->now_ns;
    }
}

static void
pump_data(struct cairn_core *core, struct holding *holding)
{
    if (!holding->captured)
        return;
    for (uint32_t chunk = 0; chunk < holding->geometry.k; chunk++)
        for (uint32_t row = 0; row < holding->geometry.m; row++)
            pump_data_flow(core, holding, chunk, row);
}

void
save_pump_seals(struct cairn_core *core, struct holding *holding, bool resend)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(holding->table, holding->member);

    if (!holding->seals[holding->position].whole)
        return;
    for (uint32_t p = 0; p < group->count; p++) {
        struct seal_route route = {
            holding->generation, core->active,
            holding->member,     holding->table->members[group->members[p]].agent,
            group->members[p],   0};
        struct flow *flow = &holding->seal_flows[p];

        if (p != holding->position)
            seal_pump(core, &route, &holding->seals[holding->position], flow,
                      resend && core->now_ns - flow->progress_ns >= core->options.resend_after_ns);
    }
}

void
save_pump(struct cairn_core *core, struct holding *holding)
{
    pump_data(core, holding);
    save_pump_seals(core, holding, false);
}

void
save_tick(struct cairn_core *core)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];

        if (!save_sends(core, holding))
            continue;
        for (uint32_t f = 0; f < holding->geometry.k * holding->geometry.m; f++) {
            struct flow *flow = &holding->data_flows[f];

            if (flow->next > flow->acked &&
                core->now_ns - flow->progress_ns >= core->options.resend_after_ns)
                flow->next = flow->acked;
        }
        pump_data(core, holding);
        save_pump_seals(core, holding, true);
        if (holding->state == CAIRN_HOLDING_OPEN &&
            core->now_ns - holding->progress_ns > core->options.rebuild_timeout_ns)
            save_give_up(core, holding->generation, "it makes no progress");
    }
}

/* ---- the local trainers ---- */

void
save_blocks(struct cairn_core *core, const struct cairn_event *event)
{
    struct holding *holding = holding_find(core, event->generation, core->self_member);

    if (!holding || holding->state != CAIRN_HOLDING_OPEN || holding->seal_asked ||
        event->first_block > holding->data_blocks ||
        event->count > holding->data_blocks - event->first_block)
        return;
    for (uint64_t i = 0; i < event->count; i++) {
        cairn_bitset_add(holding->captured, (uint32_t)(event->first_block + i));
        holding->crcs[event->first_block + i] = event->crcs[i];
    }
    holding->progress_ns = core->now_ns;
    pump_data(core, holding);
}

void
save_done(struct cairn_core *core, const struct cairn_event *event)
{
    struct holding *holding = holding_find(core, event->generation, core->self_member);
    struct cairn_action *action;
    uint64_t everyone = core->own_ranks >= 64 ? UINT64_MAX : (UINT64_C(1) << core->own_ranks) - 1;

    if (!holding || holding->state != CAIRN_HOLDING_OPEN || event->rank >= core->own_ranks)
        return;
    holding->done |= UINT64_C(1) << event->rank;
    if (holding->done != everyone || holding->seal_asked)
        return;
    if (cairn_bitset_count(holding->captured, (uint32_t)holding->data_blocks) !=
        holding->data_blocks) {
        save_give_up(core, holding->generation, "blocks are missing though the ranks are done");
        return;
    }
    holding->seal_asked = true;
    holding->asked = ++core->next_request;
    action = action_add(core, CAIRN_ACTION_SEAL);
    if (!action)
        return;
    action->request = holding->asked;
    action->holding = holding_index(core, holding);
    action->generation = holding->generation;
    action->member = holding->member;
    action->blocks = holding->data_blocks;
    action_bytes(core, action, holding->crcs, 8 * holding->data_blocks);
}

void
save_cancel(struct cairn_core *core, const struct cairn_event *event)
{
    struct cairn_generation generation = {core->active, event->step};
    struct holding *holding;
    bool waited;

    if (event->rank >= core->own_ranks || core->frozen || core->self_member == UINT32_MAX)
        return;
    waited = core->pending[event->rank].waiting && core->pending[event->rank].step == event->step;
    if (waited)
        core->pending[event->rank].waiting = false;
    holding = holding_find(core, generation, core->self_member);
    if (!waited && !holding && !facts_find(core, generation))
        return; /* it was not due, which the trainer had not heard yet: there is nothing to vote
                 * about */
    if (holding && (holding->done & (UINT64_C(1) << event->rank)))
        return;
    if (cairn_generation_compare(generation, core->committed) > 0)
        save_give_up(core, generation, "the trainer gave it up");
}

void
save_sealed(struct cairn_core *core, const struct cairn_event *event)
{
    struct holding *holding =
        event->holding < CAIRN_HOLDINGS_MAX ? &core->holdings[event->holding] : NULL;
    uint64_t tiling_sum = 0;
    cairn_err err;

    if (!holding || holding->state != CAIRN_HOLDING_OPEN || !holding->seal_asked ||
        !answer_is(event->request, holding->asked) ||
        !generation_is(holding->generation, event->generation) ||
        holding->seals[holding->position].whole)
        return;
    err = event->err;
    if (!err)
        err = tiling_sum_of(core, event->bytes, event->bytes_len, &tiling_sum);
    if (!err)
        err = seal_pack(holding->generation, holding->member,
                        (struct seal_ranks){(uint32_t)__builtin_popcountll(holding->done),
                                            holding->world, tiling_sum},
                        holding->data_blocks, holding->crcs, event->bytes, event->bytes_len,
                        &holding->seals[holding->position]);
    if (err) {
        save_give_up(core, holding->generation, cairn_err_text(err));
        return;
    }
    save_pump_seals(core, holding, false);
    parity_try_finish(core, holding);
}

void
save_data_ack(struct cairn_core *core, const struct cairn_message *message)
{
    struct holding *holding;
    struct flow *flow;
    uint32_t chunk;

    if (message->epoch != core->active || message->member != core->self_member)
        return;
    holding = holding_find(core, message->generation, core->self_member);
    if (!holding || !holding->captured || message->stripe >= holding->geometry.n ||
        message->row >= holding->geometry.m)
        return;
    chunk = cairn_stripe_chunk(&holding->geometry, message->stripe, holding->position);
    if (chunk == CAIRN_STRIPE_NONE ||
        message->offset > cairn_chunk_blocks(&holding->geometry, holding->data_blocks, chunk))
        return;
    flow = &holding->data_flows[chunk * holding->geometry.m + message->row];
    if (message->offset > flow->acked)
        flow->progress_ns = core->now_ns;
    else if (message->offset < flow->acked) /* the owner has restarted and needs it again */
        flow->next = message->offset;
    flow->acked = message->offset;
    if (flow->next < flow->acked)
        flow->next = flow->acked;
    pump_data_flow(core, holding, chunk, message->row);
}
