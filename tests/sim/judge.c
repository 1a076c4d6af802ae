/*
 * tests/sim/judge.c - ground truth, and what must hold after every event.
 *
 *   LOST    A generation is committed from the instant at which every member has stored its record
 *           and none has voted no. From then until a later one is committed (or restored), the
 *           agent that should hold a member's part may lose it only by a fault, and a restore may
 *           never end with less.
 *   TORN    What a record or an activation describes equals, byte for byte, what the trainers had
 *           at exactly that step. Parity is computed again from that truth and compared too. A step
 *           at which the ranks' tensors do not fit together is never committed.
 *   OTHER   Votes are given once. Promises and epochs only grow. One epoch has one table and one
 *           success. Nothing is granted or voted while a newer epoch is promised. The job goes on
 *           when the faults end.
 *
 * Injected damage is known here and excused; nothing else is.
 */
#include "tests/sim/sim.h"

#include "base/wire.h"
#include "erasure/stripe.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an agent holds, for a replayed schedule's last lines. */
static void
say_node(struct world *world, const struct node *node)
{
    struct cairn_core_view view;
    struct cairn_holding_view holding;

    if (!node->running) {
        world_say(world, "agent %u: not running, node %s", node->number, node->up ? "up" : "down");
        return;
    }
    cairn_core_look(node->core, &view);
    world_say(world,
              "agent %u: member %d active %llx promised %llx ready %llx.%llu committed %llu step "
              "%llu%s%s",
              node->number, (int)view.self_member, (unsigned long long)view.active,
              (unsigned long long)view.promised, (unsigned long long)view.ready.epoch,
              (unsigned long long)view.ready.step, (unsigned long long)view.committed.step,
              (unsigned long long)view.last_step, view.settled ? "" : " unsettled",
              view.busy ? " busy" : "");
    for (uint32_t h = 0; h < CAIRN_HOLDINGS_MAX; h++)
        if (cairn_core_look_holding(node->core, h, &holding))
            world_say(world, "    holding %u: state %d generation %llx.%llu member %u bad %llu", h,
                      (int)holding.state, (unsigned long long)holding.generation.epoch,
                      (unsigned long long)holding.generation.step, holding.member,
                      (unsigned long long)holding.bad_blocks);
}

void
judge_fail(struct world *world, enum verdict verdict, const char *format, ...)
{
    va_list arguments;
    size_t used;

    if (world->over)
        return;
    world->over = true;
    world->verdict = verdict;
    used = (size_t)snprintf(world->why, sizeof world->why, "%.3f s: ", (double)world->now_ns / 1e9);
    va_start(arguments, format);
    vsnprintf(world->why + used, sizeof world->why - used, format, arguments);
    va_end(arguments);
    world_say(world, "VERDICT %d: %s", (int)verdict, world->why);
    for (uint32_t i = 0; world->verbose && i < world->setup.agent_count; i++)
        say_node(world, &world->nodes[i]);
}

/* ---- what agents do ---- */

void
judge_grant(struct world *world, struct node *node, const struct cairn_action *action)
{
    struct truth *truth = judge_truth(world, action->generation);
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    if (view.frozen || action->generation.epoch != view.active)
        judge_fail(world, VERDICT_OTHER, "agent %u grants under an epoch it has promised away",
                   node->number);
    if (!node->registered)
        return; /* nobody hears it */
    if (!truth && cairn_generation_compare(action->generation, world->forgotten) <= 0)
        return; /* granted long after all others gave it up */
    if (!truth)
        truth = truth_new(world, action->generation, node->life, view.table);
    /* there it is looked at when it is stored */
    if (truth->life != node->life && !world->setup.careless)
        judge_fail(world, VERDICT_TORN, "generation %llx.%llu is captured in two lives of the job",
                   (unsigned long long)action->generation.epoch,
                   (unsigned long long)action->generation.step);
}

static void
remember_record(struct node *node, uint32_t holding, const struct cairn_holding_view *view,
                bool rebuilt)
{
    struct stored *stored = &node->stored[holding];
    const struct cairn_roster_group *group = cairn_roster_group_of(view->table, view->member);

    *stored = (struct stored){.generation = view->generation,
                              .member = view->member,
                              .position = view->position,
                              .parity_slots = group->parity,
                              .data_blocks = view->data_blocks,
                              .rebuilt = rebuilt,
                              .geometry = view->stripes->geometry};
    memcpy(stored->group, group->members, sizeof stored->group);
    for (uint32_t slot = 0; slot < group->parity; slot++) {
        stored->slot_stripe[slot] = cairn_slot_stripe(&stored->geometry, view->position, slot);
        stored->slot_blocks[slot] = view->stripes->parity_blocks[stored->slot_stripe[slot]];
    }
}

static void
truth_commits(struct world *world, struct truth *truth, const struct cairn_roster *table)
{
    truth->committed = true;
    world->counters.commits++;
    world->progress_ns = world->now_ns;
    world->committed_after_heal += world->healed;
    world_say(world, "generation %llx.%llu is committed",
              (unsigned long long)truth->generation.epoch,
              (unsigned long long)truth->generation.step);
    if (cairn_generation_compare(truth->generation, world->kept.generation) > 0)
        kept_set(world, truth->generation, truth->life, table, truth->agents);
    if (world->setup.agent_count <= 64)
        judge_deep(world, "at its commit");
}

static void
erased(struct world *world, struct node *node, const struct stored *old)
{
    const struct protected *kept = &world->kept;

    if (old->generation.step == 0 || kept->generation.step == 0 ||
        !same(old->generation, kept->generation) || old->member >= kept->member_count ||
        kept->holders[old->member] != node->number || kept->lost[old->member])
        return;
    judge_fail(world, VERDICT_LOST,
               "agent %u lets go of member %u of generation %llx.%llu, which nothing has replaced",
               node->number, old->member, (unsigned long long)old->generation.epoch,
               (unsigned long long)old->generation.step);
}

/* A record was stored, or erased. */
void
judge_record(struct world *world, struct node *node, uint32_t holding,
             const struct cairn_action *action)
{
    struct stored old = node->stored[holding];
    struct cairn_holding_view view;
    struct cairn_core_view core;
    struct truth *truth;

    if (action->bytes_len == 0) {
        node->stored[holding] = (struct stored){0};
        erased(world, node, &old);
        return;
    }
    cairn_core_look(node->core, &core);
    if (!cairn_core_look_holding(node->core, holding, &view) || !view.stripes)
        return; /* dropped again in the same step; the erasure follows */
    remember_record(node, holding, &view, core.frozen);
    truth = judge_truth(world, view.generation);
    if (!truth || view.generation.epoch != core.active || view.member != core.self_member ||
        truth->stored[view.member] || core.frozen)
        return; /* a repair's, or known */
    if (truth->said_no[view.member])
        judge_fail(world, VERDICT_OTHER, "member %u said no to step %llu and now yes", view.member,
                   (unsigned long long)view.generation.step);
    truth->stored[view.member] = 1;
    if (++truth->stored_count == truth->member_count && truth->whole)
        truth_commits(world, truth, core.table);
}

/* Another member has given the generation up already, so what was dropped for it may be denied
 * after a restart. */
static bool
said_no_before(const struct truth *truth, uint32_t member)
{
    if (truth->given_up)
        return true;
    for (uint32_t m = 0; m < truth->member_count; m++)
        if (m != member && truth->said_no[m])
            return true;
    return false;
}

void
judge_sent(struct world *world, struct node *node, const struct cairn_message *message)
{
    struct cairn_reader reader;
    struct truth *truth;
    uint32_t words = (message->member + 63) / 64;

    if (message->type == CAIRN_MSG_REBUILD && message->to == node->number)
        judge_plan(world, node, message);
    if (message->type != CAIRN_MSG_FACTS)
        return;
    truth = judge_truth(world, message->generation);
    if (!truth || !truth->whole || truth->member_count != message->member)
        return; /* one that is not whole is given up by everyone as the last part is stored */
    if (message->offset == 1) { /* given up, without sets */
        truth->given_up = true;
        if (truth->committed)
            judge_fail(world, VERDICT_LOST,
                       "agent %u takes step %llu for given up, which is committed", node->number,
                       (unsigned long long)message->generation.step);
        return;
    }
    if (message->bytes_len < 16 * words) {
        judge_fail(world, VERDICT_OTHER, "votes of agent %u are too short", node->number);
        return;
    }
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t w = 0; w < 2 * words; w++) {
        uint64_t bits = cairn_read_u64(&reader);

        for (; bits != 0; bits &= bits - 1) {
            uint32_t m = w % words * 64 + (uint32_t)__builtin_ctzll(bits);

            if (m >= truth->member_count)
                continue;
            if (w < words && !truth->stored[m])
                judge_fail(world, VERDICT_OTHER,
                           "agent %u says that member %u protected step %llu, which it has not",
                           node->number, m, (unsigned long long)message->generation.step);
            if (w >= words && truth->stored[m] && !said_no_before(truth, m))
                judge_fail(world, VERDICT_OTHER,
                           "the yes of member %u to step %llu is taken back by agent %u", m,
                           (unsigned long long)message->generation.step, node->number);
            if (w >= words)
                truth->said_no[m] = 1;
        }
    }
}

void
judge_committed(struct world *world, struct node *node, const struct cairn_action *action)
{
    struct truth *truth = judge_truth(world, action->generation);
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    if (view.frozen || action->generation.epoch != view.active)
        judge_fail(world, VERDICT_OTHER, "agent %u learns a commit of an epoch it promised away",
                   node->number);
    if (truth && !truth->committed)
        judge_fail(world, VERDICT_LOST, "agent %u takes step %llu for committed, which it is not",
                   node->number, (unsigned long long)action->generation.step);
    if (world->setup.spills && random_chance(&world->random, 100)) {
        struct cairn_event spilled = {.type = CAIRN_EVENT_SPILLED,
                                      .generation = action->generation};

        trainer_local(world, node, &spilled, NULL);
    }
}

/* ---- epochs ---- */

static uint64_t
table_hash(const struct cairn_roster *table)
{
    uint64_t hash = table->member_count * 31 + table->group_count;

    for (uint32_t m = 0; m < table->member_count; m++)
        hash = mix64(hash ^ table->members[m].agent ^ ((uint64_t)table->members[m].group << 20) ^
                     ((uint64_t)table->members[m].position << 44));
    return hash;
}

static struct epoch_seen *
epoch_of(struct world *world, uint64_t epoch)
{
    for (uint32_t i = 0; i < world->epoch_count; i++)
        if (world->epochs[i].epoch == epoch)
            return &world->epochs[i];
    return NULL;
}

/* A fault has taken memory while a restore may have been under way. */
static bool
lost_lately(const struct world *world, const struct node *node)
{
    return node->lost_ns != 0 && world->now_ns - node->lost_ns < 300 * SECOND_NS;
}

static bool
asked_lately(const struct world *world, uint32_t agent)
{
    uint64_t asked_ns = agent < world->setup.agent_count ? world->nodes[agent].restore_asked_ns : 0;

    return asked_ns != 0 && world->now_ns - asked_ns < 600 * SECOND_NS;
}

/* The first agent stores a new epoch: what its coordinator says must be so. */
static void
epoch_begins(struct world *world, const struct node *node, const struct cairn_core_view *view)
{
    struct protected *kept = &world->kept;
    uint32_t members = cairn_core_ready_members(node->core);
    struct truth *truth;
    uint32_t *holders;

    world_say(world, "epoch %llx begins at agent %u: ready %llx.%llu%s%s",
              (unsigned long long)view->active, node->number, (unsigned long long)view->ready.epoch,
              (unsigned long long)view->ready.step, view->ready_from_files ? " from files" : "",
              view->settled ? "" : " (given up)");
    world->newest_epoch = view->active;
    world->counters.repairs += view->restart_epoch != view->active;
    if (view->restart_epoch == view->active &&
        !asked_lately(world, (uint32_t)(view->active & 0xffff)))
        judge_fail(world, VERDICT_OTHER,
                   "epoch %llx stops the trainers, though nobody asked for a restore",
                   (unsigned long long)view->active);
    if (!view->settled)
        return; /* nothing was decided, so nothing may go */
    if (cairn_generation_compare(view->ready, kept->generation) < 0) {
        if (world->now_ns > world->setup.faults_end_ns + 60 * SECOND_NS ||
            !view->ready_from_files || view->restart_epoch != view->active)
            judge_fail(
                world, VERDICT_LOST,
                "epoch %llx begins with generation %llx.%llu, though %llx.%llu was committed",
                (unsigned long long)view->active, (unsigned long long)view->ready.epoch,
                (unsigned long long)view->ready.step, (unsigned long long)kept->generation.epoch,
                (unsigned long long)kept->generation.step);
        kept_fini(kept); /* what cannot be reached is given up for a spilled one */
    }
    if (view->ready_from_files)
        kept_fini(kept); /* the files have it */
    truth = judge_truth(world, view->ready);
    if (members == 0 || !truth)
        return;
    if (truth->layout == LAYOUT_UNEVEN || truth->layout == LAYOUT_UNNUMBERED)
        judge_fail(world, VERDICT_TORN,
                   "epoch %llx begins with step %llu, of which nobody holds some elements",
                   (unsigned long long)view->active, (unsigned long long)view->ready.step);
    holders = some_zeros(members, sizeof *holders);
    for (uint32_t m = 0; m < members; m++) {
        holders[m] = cairn_core_holder(node->core, view->ready, m);
        if (holders[m] >= world->setup.agent_count)
            judge_fail(world, VERDICT_LOST, "epoch %llx begins without a holder of member %u",
                       (unsigned long long)view->active, m);
        else if (stored_at(&world->nodes[holders[m]], view->ready, m) < 0 &&
                 !lost_lately(world, &world->nodes[holders[m]]))
            judge_fail(world, VERDICT_LOST,
                       "epoch %llx begins, but agent %u does not hold member %u of %llx.%llu",
                       (unsigned long long)view->active, holders[m], m,
                       (unsigned long long)view->ready.epoch, (unsigned long long)view->ready.step);
    }
    if (!world->over) {
        kept_set(world, view->ready, truth->life, view->ready_table, holders);
        judge_deep(world, "at an activation");
    }
    free(holders);
}

void
judge_epoch(struct world *world, struct node *node, const struct blob *before,
            const struct cairn_action *action)
{
    struct cairn_core_view view;
    struct epoch_seen *seen;
    uint64_t promised[2] = {0}, active[2] = {0};

    for (uint32_t i = 0; i < 2; i++) {
        const uint8_t *bytes = i ? action->bytes : before->bytes;
        struct cairn_reader reader;

        cairn_reader_init(&reader, bytes, i ? action->bytes_len : before->len);
        cairn_read_u32(&reader);
        promised[i] = cairn_read_u64(&reader);
        active[i] = cairn_read_u64(&reader);
    }
    if (promised[1] < promised[0] || active[1] < active[0] || active[1] > promised[1])
        judge_fail(world, VERDICT_OTHER,
                   "agent %u goes back: promised %llx → %llx, active %llx → %llx", node->number,
                   (unsigned long long)promised[0], (unsigned long long)promised[1],
                   (unsigned long long)active[0], (unsigned long long)active[1]);
    if (active[1] == active[0])
        return;
    cairn_core_look(node->core, &view);
    if (view.active != active[1])
        return; /* the core has stored two epochs in one step */
    if (active[1] > world->newest_epoch)
        epoch_begins(world, node, &view);
    seen = epoch_of(world, active[1]);
    if (!seen && world->epoch_count < EPOCHS_MAX) {
        seen = &world->epochs[world->epoch_count++];
        *seen = (struct epoch_seen){.epoch = active[1], .table_hash = table_hash(view.table)};
    }
    if (seen && seen->table_hash != table_hash(view.table))
        judge_fail(world, VERDICT_OTHER, "epoch %llx has two tables",
                   (unsigned long long)active[1]);
}

void
judge_reply(struct world *world, struct node *node, const struct cairn_action *action)
{
    const struct cairn_outcome *outcome = cairn_core_outcome(node->core);
    struct epoch_seen *seen = epoch_of(world, outcome->epoch);

    if (outcome->operation != CAIRN_OP_RESTORE || action->request != outcome->request)
        return;
    if (action->err == CAIRN_LOST)
        world->counters.restores_lost++;
    if (action->err != CAIRN_OK)
        return;
    world->counters.restores++;
    world->counters.rebuilt += outcome->rebuilt_blocks > 0;
    world->progress_ns = world->now_ns;
    if (!seen || seen->succeeded)
        judge_fail(world, VERDICT_OTHER, "two restores succeed with epoch %llx",
                   (unsigned long long)outcome->epoch);
    else
        seen->succeeded = true;
}

/* ---- faults that take memory ---- */

void
judge_lost_memory(struct world *world, struct node *node)
{
    struct protected *kept = &world->kept;

    node->lost_ns = world->now_ns;
    for (uint32_t m = 0; m < kept->member_count; m++)
        if (kept->holders[m] == node->number)
            kept->lost[m] = 1;
    kept_check_beyond(world);
}

void
judge_lost_record(struct world *world, struct node *node, uint32_t holding)
{
    struct protected *kept = &world->kept;
    const struct stored *stored = &node->stored[holding];

    node->lost_ns = world->now_ns;
    if (kept->generation.step != 0 && same(stored->generation, kept->generation) &&
        stored->member < kept->member_count && kept->holders[stored->member] == node->number)
        kept->lost[stored->member] = 1;
    kept_check_beyond(world);
}

/* Flips a bit in a stored part of the node, where that is still within what is survived. */
bool
judge_flip(struct world *world, struct node *node)
{
    uint32_t h = (uint32_t)random_below(&world->random, CAIRN_HOLDINGS_MAX);
    struct flip *flip = NULL;
    const struct stored *stored = &node->stored[h];
    bool parity = random_chance(&world->random, 500);
    uint64_t blocks, at;
    uint32_t slot = 0;
    uint8_t *area;

    if (stored->generation.step == 0 || !fault_may_lose(world, node->number))
        return false;
    for (uint32_t i = 0; i < FLIPS_MAX; i++)
        if (!flip_active(world, &world->flips[i]))
            flip = &world->flips[i];
    if (parity && stored->parity_slots)
        slot = (uint32_t)random_below(&world->random, stored->parity_slots);
    blocks = parity ? (stored->parity_slots ? stored->slot_blocks[slot] : 0) : stored->data_blocks;
    if (!flip || blocks == 0)
        return false;
    at = random_below(&world->random, blocks);
    area = parity ? node->memory[h].parity : node->memory[h].data;
    if (parity)
        at += slot * (node->memory[h].parity_blocks / stored->parity_slots);
    at = at * BLOCK_BYTES + random_below(&world->random, BLOCK_BYTES);
    *flip = (struct flip){true,          node->number, h, parity, at, area[at], stored->generation,
                          stored->member};
    area[at] ^= (uint8_t)(1u << random_below(&world->random, 8));
    world_say(world, "a bit flips at agent %u, holding %u, %s byte %llu", node->number, h,
              parity ? "parity" : "data", (unsigned long long)at);
    kept_check_beyond(world);
    return true;
}

/* After every event: what one look can show. */
void
judge_after(struct world *world, struct node *node)
{
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    if (view.promised < view.active || view.frozen != (view.promised > view.active))
        judge_fail(world, VERDICT_OTHER, "agent %u: promised %llx, active %llx, frozen %d",
                   node->number, (unsigned long long)view.promised, (unsigned long long)view.active,
                   (int)view.frozen);
}

void
judge_fini(struct world *world)
{
    for (uint32_t i = 0; i < TRUTHS_MAX; i++)
        truth_fini(&world->truths[i]);
    kept_fini(&world->kept);
    free(world->epochs);
}
