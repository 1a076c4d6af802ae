/*
 * tests/explore/trainer.c - the training job: one rank per agent, steps in lockstep, and who starts
 * it again.
 *
 * What rank a holds at a step is a function of (life, a, step). `life` counts the starts of the
 * job, so an equal step of another life has other bytes. A rank begins a step when no other rank is
 * slower, and when its copy of the last one is done or given up.
 */
#include "tests/explore/explore.h"

#include "base/limits.h"
#include "snapshot/manifest.h"

#include <string.h>

uint64_t
truth_word(uint32_t life, uint32_t agent, uint64_t step, uint64_t block)
{
    return hash_mix(hash_mix(hash_mix(life + 77, agent + 1), step), block) | 1;
}

bool
trainer_manifest(uint32_t agent, struct cairn_generation_id generation, const uint64_t *crcs,
                 uint64_t blocks, uint8_t **bytes, size_t *len)
{
    uint64_t copy[SHARD_BLOCKS] = {0};
    uint32_t rank = (uint32_t)__builtin_popcount(world->ranks & ((1u << agent) - 1));
    uint32_t count = (uint32_t)__builtin_popcount(world->ranks);
    struct cairn_manifest_rank place = {
        .rank = rank, .world = count, .region_bytes = blocks * CAIRN_BLOCK_BYTES};
    struct cairn_manifest_entry entry = {
        .slice = {.name = "w",
                  .dtype = CAIRN_U8,
                  .kind = CAIRN_PARAM,
                  .dims = 1,
                  .shape = {count},
                  .offset = {world->setup.untiled && rank == 1 ? 0 : rank},
                  .extent = {1},
                  .device = -1,
                  .replica_count = 1},
        .rank = rank};
    struct cairn_manifest manifest = {.job_id = 1,
                                      .generation = generation,
                                      .container = rank,
                                      .container_count = count,
                                      .container_bytes = blocks * CAIRN_BLOCK_BYTES,
                                      .ranks = &place,
                                      .rank_count = 1,
                                      .entries = &entry,
                                      .entry_count = 1,
                                      .block_crcs = copy,
                                      .block_count = blocks};

    if (blocks > SHARD_BLOCKS)
        return false;
    if (crcs)
        memcpy(copy, crcs, blocks * sizeof *crcs);
    return cairn_manifest_pack(&manifest, bytes, len) == CAIRN_OK;
}

/* ---- one rank ---- */

bool
trainer_may_register(uint32_t a)
{
    const struct trainer *trainer = &world->trainers[a];
    struct cairn_core_view view;

    if (!world->launched || !trainer->alive || trainer->registered || !agents[a]->core)
        return false;
    agent_view(agents[a], &view);
    return view.active != 0 && view.active >= world->gang_epoch;
}

void
trainer_register(uint32_t a)
{
    struct cairn_event event = {.type = CAIRN_EVENT_RANKS};
    uint8_t *bytes = NULL;
    size_t len = 0;
    struct cairn_core_view view;

    agent_view(agents[a], &view);
    if (view.restart_epoch > world->gang_epoch) { /* of an older epoch: refused */
        world->trainers[a].alive = false;
        return;
    }
    world->trainers[a].registered = true;
    world->trainers[a].phase = PHASE_IDLE;
    if (!trainer_manifest(a, (struct cairn_generation_id){.epoch = 1, .run = 1, .step = 1}, NULL,
                          SHARD_BLOCKS, &bytes, &len))
        fail("a manifest cannot be packed");
    event.as.ranks = (struct cairn_event_ranks){.ranks = 1,
                                                .world = (uint32_t)__builtin_popcount(world->ranks),
                                                .blocks = SHARD_BLOCKS,
                                                .launch = world->life,
                                                .manifest = bytes,
                                                .manifest_len = len};
    agent_event(agents[a], &event, NULL);
    free(bytes);
}

bool
trainer_may_begin(uint32_t a)
{
    const struct trainer *trainer = &world->trainers[a];

    if (!world->launched || !trainer->alive || trainer->phase != PHASE_IDLE)
        return false;
    for (uint32_t b = 0; b < world->setup.agents; b++)
        if (has_rank(b) && (!world->trainers[b].alive || world->trainers[b].step < trainer->step))
            return false;
    return true;
}

void
trainer_begin(uint32_t a)
{
    struct trainer *trainer = &world->trainers[a];
    struct cairn_event event = {.type = CAIRN_EVENT_BEGIN};

    trainer->step++;
    if (!trainer->registered || !agents[a]->core)
        return;
    trainer->phase = PHASE_ASKED;
    event.as.step.step = trainer->step;
    agent_event(agents[a], &event, NULL);
}

void
trainer_copy(uint32_t a)
{
    struct trainer *trainer = &world->trainers[a];
    struct cairn_event event = {.type = CAIRN_EVENT_BLOCKS};
    uint64_t crcs[SHARD_BLOCKS];

    for (uint64_t i = 0; i < SHARD_BLOCKS; i++) {
        uint64_t word = truth_word(world->life, a, trainer->step, i);
        uint8_t *block = agent_block(agents[a], trainer->part, CAIRN_AREA_DATA, 0, 0, i);

        if (!block) {
            fail("the trainer of agent %u writes outside of its slot", a);
            return;
        }
        memcpy(block, &word, BLOCK_BYTES);
        crcs[i] = block_crc(block);
    }
    dirty |= 1u << a;
    judge_written(agents[a], trainer->part);
    trainer->phase = PHASE_COPIED;
    event.as.blocks = (struct cairn_event_blocks){
        .generation = trainer->generation, .count = SHARD_BLOCKS, .crcs = crcs};
    agent_event(agents[a], &event, NULL);
}

void
trainer_captured(uint32_t a)
{
    struct cairn_event event = {.type = CAIRN_EVENT_CAPTURED};

    world->trainers[a].phase = PHASE_IDLE;
    event.as.captured = (struct cairn_event_captured){.generation = world->trainers[a].generation};
    agent_event(agents[a], &event, NULL);
}

void
trainer_cancel(uint32_t a)
{
    struct cairn_event event = {.type = CAIRN_EVENT_CANCEL};

    world->trainers[a].phase = PHASE_IDLE;
    event.as.step.step = world->trainers[a].step;
    agent_event(agents[a], &event, NULL);
}

void
trainer_action(struct agent *agent, const struct cairn_action *action)
{
    struct trainer *trainer = &world->trainers[agent->number];
    const struct cairn_action_trainer *told = &action->as.trainer;

    switch (action->type) {
    case CAIRN_ACTION_GRANT:
        if (trainer->phase != PHASE_ASKED || told->step != trainer->step) {
            say("agent %u grants step %llu to a trainer that does not wait for it", agent->number,
                (unsigned long long)told->step);
            return;
        }
        trainer->phase = PHASE_GRANTED;
        trainer->part = told->part;
        trainer->generation = told->generation;
        break;
    case CAIRN_ACTION_SKIP:
        if (trainer->phase == PHASE_ASKED && told->step == trainer->step)
            trainer->phase = PHASE_IDLE;
        break;
    case CAIRN_ACTION_DROP:
        if (trainer->phase >= PHASE_GRANTED &&
            cairn_generation_id_compare(trainer->generation, told->generation) == 0)
            trainer->phase = PHASE_IDLE;
        break;
    default: /* ACTIVATED */
        if (!action->as.activated.restart)
            break;
        if (trainer->registered)
            trainer->alive = false;
        trainer->registered = false;
        trainer->phase = PHASE_IDLE;
        break;
    }
}

void
trainer_agent_died(uint32_t a)
{
    world->trainers[a].registered = false;
    world->trainers[a].phase = PHASE_IDLE;
    world->op_pending[a] = 0;
}

/* ---- all of them ---- */

bool
has_rank(uint32_t a)
{
    return world->ranks >> a & 1;
}

bool
gang_is_broken(void)
{
    for (uint32_t a = 0; world->launched && a < world->setup.agents; a++)
        if (has_rank(a) && !world->trainers[a].alive)
            return true;
    return false;
}

void
gang_kill(void)
{
    world->launched = false;
    for (uint32_t a = 0; a < world->setup.agents; a++) {
        struct cairn_event event = {.type = CAIRN_EVENT_RANKS};
        bool registered = world->trainers[a].registered;

        world->trainers[a] = (struct trainer){0};
        if (registered && agents[a]->core)
            agent_event(agents[a], &event, NULL);
    }
}

/* Agents that get trainers in an epoch: all, or where there are spares its members. */
static uint32_t
ranks_of(const struct cairn_core_view *epoch)
{
    uint32_t set = 0;

    for (uint32_t a = 0; a < world->setup.agents; a++)
        if (world->setup.spares == 0 || cairn_roster_member_of(epoch->roster, a) != UINT32_MAX)
            set |= 1u << a;
    return set;
}

/* The newest epoch that an agent is in; all agents that run and get trainers must be in it. */
static bool
find_epoch(struct cairn_core_view *out)
{
    struct cairn_core_view view;
    bool all = true;

    out->active = 0;
    for (uint32_t a = 0; a < world->setup.agents; a++) {
        if (!agents[a]->core)
            continue;
        agent_view(agents[a], &view);
        if (view.active > out->active)
            *out = view;
    }
    for (uint32_t a = 0; a < world->setup.agents && out->active != 0; a++) {
        if (!agents[a]->core || !(ranks_of(out) >> a & 1))
            continue;
        agent_view(agents[a], &view);
        all &= !view.fenced && !view.busy && view.active == out->active;
    }
    return all && out->active != 0;
}

bool
gang_may_launch(void)
{
    struct cairn_core_view view;

    return !world->launched && !operator_waits() && find_epoch(&view);
}

void
gang_launch(void)
{
    struct cairn_core_view view;
    uint64_t step;

    if (!find_epoch(&view))
        return;
    step = world->from_zero ? 0 : view.ready.step;
    world->from_zero = false;
    world->life++;
    world->launched = true;
    world->gang_epoch = view.active;
    world->ranks = ranks_of(&view);
    for (uint32_t a = 0; a < world->setup.agents; a++)
        world->trainers[a] = (struct trainer){.alive = has_rank(a), .step = step};
}
