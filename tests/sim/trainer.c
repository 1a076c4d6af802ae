/*
 * tests/sim/trainer.c - the training job: ranks that step in lockstep and let themselves be
 * captured.
 *
 * The state of rank r at step s is a pure function of (seed, life, step, member, block): `life`
 * counts the starts of the job, so that even an equal step of another life has other bytes (and an
 * intruder's life has one more bit, see intruder.c). A rank says BEGIN after its update, copies
 * while the next step is computed, and may not update before its copy is done or given up. When one
 * rank is dead the others wait.
 */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

enum trainer_event { TRAINER_COMPUTED = 0, TRAINER_COPY = 1, TRAINER_TIRED = 2 };

void
truth_block(const struct world *world, uint64_t life, uint64_t step, uint32_t member,
            uint64_t block, uint8_t *out)
{
    uint64_t base = mix64(world->setup.seed ^ mix64(life * 31 + 7) ^
                          mix64(step * 0x10001 + member * 0x1000003ull) ^ mix64(block + 99));

    for (uint32_t i = 0; i < BLOCK_BYTES / 8; i++) {
        uint64_t word = mix64(base + i);

        memcpy(out + 8 * i, &word, 8);
    }
}

uint64_t
gang_rank_blocks(const struct world *world, uint64_t life, uint32_t member, uint32_t rank)
{
    uint64_t value = mix64(world->setup.seed ^ mix64((uint32_t)life) ^ (member * 131u + rank + 1));

    if (rank >= world->setup.ranks || value % 23 == 0)
        return 0;
    return (value >> 8) % (world->setup.rank_blocks_max + 1);
}

uint64_t
gang_blocks(const struct world *world, uint64_t life, uint32_t member)
{
    uint64_t blocks = 0;

    for (uint32_t r = 0; member != UINT32_MAX && r < world->setup.ranks; r++)
        blocks += gang_rank_blocks(world, life, member, r);
    return blocks;
}

static void
wake(struct world *world, const struct node *node, uint32_t rank, enum trainer_event what,
     uint64_t after_ns)
{
    struct sim_event event = sim_event_new(world, EVENT_TRAINER, node->number, after_ns);

    event.value = rank | ((uint64_t)what << 8) | (world->gang.step << 16);
    event.incarnation = node->life;
    queue_push(&world->queue, &event);
}

void
trainer_local_later(struct world *world, struct node *node, const struct cairn_event *event,
                    uint64_t after_ns)
{
    struct sim_event sim_event = sim_event_new(world, EVENT_LOCAL, node->number, after_ns);

    if (sim_event.at_ns < node->local_ns)
        sim_event.at_ns = node->local_ns;
    sim_event.incarnation = node->incarnation;
    sim_event.as.local = some_zeros(1, sizeof *sim_event.as.local);
    sim_event.as.local->event = *event;
    queue_push(&world->queue, &sim_event);
}

struct local *
trainer_local(struct world *world, struct node *node, const struct cairn_event *event,
              const uint64_t *crcs)
{
    struct sim_event sim_event = sim_event_new(world, EVENT_LOCAL, node->number,
                                               random_between(&world->random, 10000, 3 * MS_NS));
    struct local *local = some_zeros(1, sizeof *local);

    if (sim_event.at_ns < node->local_ns)
        sim_event.at_ns = node->local_ns;
    node->local_ns = sim_event.at_ns;
    sim_event.incarnation = node->incarnation;
    sim_event.as.local = local;
    local->event = *event;
    if (crcs) {
        memcpy(local->crcs, crcs, event->as.blocks.count * sizeof *crcs);
        local->event.as.blocks.crcs = local->crcs;
    }
    queue_push(&world->queue, &sim_event);
    return local;
}

void
trainer_tell_ranks(struct world *world, struct node *node, uint64_t life)
{
    struct cairn_event event = {.type = CAIRN_EVENT_RANKS};
    struct layout_of of = {.life = life,
                           .gang_member = node->member,
                           .gang_members = world->gang.member_count,
                           .kind = world->gang.layout,
                           .container = node->member,
                           .container_count = world->gang.member_count};
    struct local *local;
    size_t len = 0;
    uint8_t *manifest = NULL;

    if (life && !layout_manifest(world, &of, &manifest, &len)) {
        judge_fail(world, VERDICT_OTHER, "the layout of node %u cannot be packed", node->number);
        return;
    }
    if (life)
        event.as.ranks =
            (struct cairn_event_ranks){.ranks = world->setup.ranks,
                                       .world = world->gang.rank_count,
                                       .blocks = gang_blocks(world, life, node->member),
                                       .launch = world->setup.launches ? life : 0};
    local = trainer_local(world, node, &event, NULL);
    local->life = life;
    local->manifest = manifest;
    local->event.as.ranks.manifest = manifest;
    local->event.as.ranks.manifest_len = len;
}

static void
begin_step(struct world *world, struct node *node, uint32_t r)
{
    struct rank *rank = &node->ranks[r];
    struct cairn_event begin = {.type = CAIRN_EVENT_BEGIN,
                                .as.step = {.rank = r, .step = world->gang.step}};

    rank->phase = RANK_COMPUTING;
    rank->asked = false;
    if (node->registered && world->gang.step > 0) {
        rank->asked = true;
        trainer_local(world, node, &begin, NULL);
    }
    wake(world, node, r, TRAINER_COMPUTED,
         world->setup.step_ns / 2 + random_below(&world->random, world->setup.step_ns));
}

/* The trainers of a whole group die as a step is over: the others begin the next one, which they
 * never see. */
static void
die_between_steps(struct world *world)
{
    uint32_t n = world->setup.agent_count, first = (uint32_t)random_below(&world->random, n);
    struct cairn_core_view view;
    uint32_t member;

    if (!world->nodes[first].running)
        return;
    cairn_core_look(world->nodes[first].core, &view);
    member = view.self_member;
    for (uint32_t m = 0; member != UINT32_MAX && m < view.roster->member_count; m++)
        if (view.roster->members[m].group == view.roster->members[member].group)
            trainer_kill(world, &world->nodes[view.roster->members[m].agent]);
}

static void
arrive(struct world *world, struct rank *rank)
{
    struct gang *gang = &world->gang;

    rank->phase = RANK_ARRIVED;
    if (++gang->arrived < gang->rank_count)
        return;
    gang->step++;
    gang->arrived = 0;
    if (world->setup.own_checkpoints && !world->healed && random_chance(&world->random, 15))
        die_between_steps(world);
    for (uint32_t i = 0; i < world->setup.agent_count; i++)
        for (uint32_t r = 0; r < world->setup.ranks; r++)
            if (world->nodes[i].ranks[r].phase == RANK_ARRIVED)
                begin_step(world, &world->nodes[i], r);
}

/* At the fence: waits for the copy, or for an answer, or goes on. */
static void
fence(struct world *world, struct node *node, uint32_t r)
{
    struct rank *rank = &node->ranks[r];
    struct cairn_event cancel = {.type = CAIRN_EVENT_CANCEL,
                                 .as.step = {.rank = r, .step = world->gang.step}};

    rank->phase = RANK_FENCED;
    if (rank->capturing)
        return;
    if (rank->asked && rank->fence_until_ns == 0 && random_chance(&world->random, 500)) {
        rank->fence_until_ns = world->now_ns + random_below(&world->random, 2 * SECOND_NS) + 1;
        wake(world, node, r, TRAINER_TIRED, rank->fence_until_ns - world->now_ns);
        return;
    }
    if (rank->asked) {
        rank->asked = false;
        if (node->registered)
            trainer_local(world, node, &cancel, NULL);
    }
    rank->fence_until_ns = 0;
    arrive(world, rank);
}

/* Copies a few blocks into the agent's memory, and reports them. */
static void
copy_some(struct world *world, struct node *node, uint32_t r)
{
    struct rank *rank = &node->ranks[r];
    uint64_t crcs[16];
    uint64_t count = random_between(&world->random, 1, 16), left;
    struct cairn_event event = {.type = CAIRN_EVENT_BLOCKS,
                                .as.blocks = {.generation = rank->generation,
                                              .first_block = rank->first_block + rank->captured}};

    if (!rank->capturing)
        return;
    left = rank->block_count - rank->captured;
    if (left == 0) {
        struct cairn_event done = {.type = CAIRN_EVENT_CAPTURED,
                                   .as.captured = {.generation = rank->generation, .rank = r}};

        rank->capturing = false;
        trainer_local(world, node, &done, NULL);
        if (rank->phase == RANK_FENCED)
            arrive(world, rank);
        return;
    }
    if (count > left)
        count = left;
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *block =
            memory_block(node, rank->part, CAIRN_AREA_DATA, 0, event.as.blocks.first_block + i);

        if (!block) {
            judge_fail(world, VERDICT_OTHER, "a trainer of node %u writes outside of its slot",
                       node->number);
            return;
        }
        truth_block(world, node->life, world->gang.step, node->member,
                    event.as.blocks.first_block + i, block);
        crcs[i] = block_crc(block);
    }
    rank->captured += count;
    event.as.blocks.count = count;
    trainer_local(world, node, &event, crcs);
    wake(world, node, r, TRAINER_COPY,
         random_between(&world->random, MS_NS, 1 + world->setup.step_ns / 8));
}

void
trainer_go(struct world *world, struct node *node, uint32_t value)
{
    uint32_t r = value & 0xff;
    struct rank *rank = &node->ranks[r];

    switch ((enum trainer_event)(value >> 8 & 0xff)) {
    case TRAINER_COMPUTED:
        if (rank->phase == RANK_COMPUTING) {
            rank->fence_until_ns = 0;
            fence(world, node, r);
        }
        break;
    case TRAINER_TIRED:
        if (rank->phase == RANK_FENCED && rank->asked)
            fence(world, node, r);
        break;
    case TRAINER_COPY:
        copy_some(world, node, r);
        break;
    }
}

void
trainer_kill(struct world *world, struct node *node)
{
    if (node->member == UINT32_MAX || !node->up)
        return;
    world_say(world, "trainers of node %u die", node->number);
    for (uint32_t r = 0; r < world->setup.ranks; r++)
        node->ranks[r].phase = RANK_DEAD;
    if (node->registered)
        trainer_tell_ranks(world, node, 0);
    node->registered = false;
}

/* ---- what the agent says ---- */

static void
activated(struct world *world, struct node *node, const struct cairn_action_activated *activated)
{
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    if (activated->restart) {
        node->core_life = 0;
        if (node->intruded)
            node->intruded = false;
        else
            trainer_agent_died(world, node);
        if (view.restart_epoch > world->gang.epoch) /* trainers of older epochs are refused */
            for (uint32_t r = 0; r < world->setup.ranks; r++)
                node->ranks[r].phase = RANK_DEAD;
    }
    trainer_register(world, node);
}

void
trainer_tell(struct world *world, struct node *node, const struct cairn_action *action)
{
    struct sim_event event = sim_event_new(world, EVENT_TOLD, node->number,
                                           random_between(&world->random, 10000, 3 * MS_NS));
    const struct cairn_action_trainer *trainer = &action->as.trainer;

    if (action->type == CAIRN_ACTION_ACTIVATED) {
        activated(world, node, &action->as.activated);
        return;
    }
    if (event.at_ns < node->told_ns)
        event.at_ns = node->told_ns;
    node->told_ns = event.at_ns;
    event.incarnation = node->incarnation;
    event.as.told = some_zeros(1, sizeof *event.as.told);
    *event.as.told = (struct told){.rank = trainer->rank,
                                   .type = action->type,
                                   .step = trainer->step,
                                   .generation = trainer->generation,
                                   .part = trainer->part,
                                   .life = node->core_life};
    queue_push(&world->queue, &event);
}

static void
stop_capture(struct world *world, struct rank *rank)
{
    rank->capturing = false;
    if (rank->phase == RANK_FENCED)
        arrive(world, rank);
}

void
trainer_told(struct world *world, struct node *node, const struct told *told)
{
    struct rank *rank = &node->ranks[told->rank];

    if (node->intruded) {
        intruder_told(world, node, told);
        return;
    }
    if (told->life != node->life || !node->registered)
        return;
    if (told->type == CAIRN_ACTION_DROP) {
        for (uint32_t r = 0; r < world->setup.ranks; r++)
            if (node->ranks[r].capturing &&
                cairn_generation_id_compare(node->ranks[r].generation, told->generation) == 0)
                stop_capture(world, &node->ranks[r]);
        return;
    }
    if (rank->phase == RANK_DEAD || !rank->asked || told->step != world->gang.step ||
        rank->phase == RANK_ARRIVED)
        return; /* given up, or of a step that is over */
    rank->asked = false;
    if (told->type == CAIRN_ACTION_SKIP) {
        if (rank->phase == RANK_FENCED)
            arrive(world, rank);
        return;
    }
    rank->capturing = true;
    rank->generation = told->generation;
    rank->part = told->part;
    rank->captured = 0;
    wake(world, node, told->rank, TRAINER_COPY, random_between(&world->random, 1, MS_NS));
}

void
trainer_agent_died(struct world *world, struct node *node)
{
    node->registered = false;
    for (uint32_t r = 0; r < world->setup.ranks; r++) {
        struct rank *rank = &node->ranks[r];

        rank->asked = false;
        rank->capturing = false;
        if (rank->phase == RANK_FENCED)
            arrive(world, rank);
    }
}

/* Opens the sessions of a node's trainers, once its agent has met others and is of the epoch that
 * they were restored in. */
void
trainer_register(struct world *world, struct node *node)
{
    struct cairn_core_view view;

    if (!node->running || node->registered || node->member == UINT32_MAX || node->intruded ||
        node->life != world->gang.life || world->gang.state != GANG_RUNNING)
        return;
    for (uint32_t r = 0; r < world->setup.ranks; r++)
        if (node->ranks[r].phase == RANK_DEAD)
            return;
    cairn_core_look(node->core, &view);
    if (!view.met || view.active < world->gang.epoch || view.restart_epoch > world->gang.epoch)
        return;
    node->registered = true;
    trainer_tell_ranks(world, node, node->life);
}

/* ---- the whole job ---- */

void
gang_kill(struct world *world)
{
    world->gang.state = GANG_DEAD;
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        struct node *node = &world->nodes[i];

        for (uint32_t r = 0; r < world->setup.ranks; r++) {
            node->ranks[r] = (struct rank){.phase = RANK_DEAD};
        }
        if (node->registered && node->running)
            trainer_tell_ranks(world, node, 0);
        node->registered = false;
        if (!node->intruded)
            node->member = UINT32_MAX;
    }
}

/* True for a node that the job does without. */
static bool
left_out(struct world *world)
{
    return world->setup.partly && world->gang.member_count > 0 &&
           random_chance(&world->random, 300);
}

static void
place(struct world *world, const struct cairn_roster *roster)
{
    struct gang *gang = &world->gang;

    gang->member_count = 0;
    for (uint32_t i = 0; i < world->setup.agent_count; i++)
        world->nodes[i].member = UINT32_MAX;
    for (uint32_t m = 0; roster && m < roster->member_count; m++)
        if (!left_out(world))
            world->nodes[roster->members[m].agent].member = gang->member_count++;
    gang->roster_count = gang->member_count;
    for (uint32_t i = 0; (!roster || world->setup.everywhere) && i < world->setup.agent_count; i++)
        if (world->nodes[i].up && !world->spares[i] && world->nodes[i].member == UINT32_MAX &&
            !left_out(world))
            world->nodes[i].member = gang->member_count++;
}

void
gang_start(struct world *world, const struct cairn_roster *roster, uint64_t step, uint64_t epoch)
{
    struct gang *gang = &world->gang;

    gang_kill(world);
    for (uint32_t i = 0; i < world->setup.agent_count; i++)
        if (world->nodes[i].intruded)
            intruder_leave(world, &world->nodes[i]);
    gang->state = GANG_RUNNING;
    gang->life++;
    gang->step = step;
    gang->epoch = epoch;
    gang->arrived = 0;
    gang->refused_ns = 0;
    place(world, roster);
    gang->layout = layout_choose(world, gang->life, gang->member_count);
    gang->rank_count = gang->member_count * world->setup.ranks;
    gang->started_ns = world->now_ns;
    world_say(world,
              "the trainers start: life %llu, %u members and %u nodes more, from step %llu, layout "
              "%d",
              (unsigned long long)gang->life, gang->roster_count,
              gang->member_count - gang->roster_count, (unsigned long long)step, (int)gang->layout);
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        struct node *node = &world->nodes[i];
        uint32_t m = node->member;
        uint64_t first = 0;

        if (m == UINT32_MAX)
            continue;
        node->life = gang->life;
        for (uint32_t r = 0; r < world->setup.ranks; r++) {
            uint64_t blocks = gang_rank_blocks(world, gang->life, m, r);

            node->ranks[r] = (struct rank){.phase = node->up ? RANK_COMPUTING : RANK_DEAD,
                                           .first_block = first,
                                           .block_count = blocks};
            first += blocks;
        }
    }
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        struct node *node = &world->nodes[i];

        if (node->member == UINT32_MAX)
            continue;
        trainer_register(world, node);
        for (uint32_t r = 0; r < world->setup.ranks && node->up; r++)
            wake(world, node, r, TRAINER_COMPUTED,
                 world->setup.step_ns / 2 + random_below(&world->random, world->setup.step_ns));
    }
}
