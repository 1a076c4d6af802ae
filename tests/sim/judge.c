/*
 * tests/sim/judge.c - ground truth, and what must hold after every event.
 *
 *   LOST    A generation is committed from the instant at which an agent tells anyone. Then
 *           every member must have stored its record, and have kept it since, unless a
 *           repair gave it back. From there until a later one is committed (or restored), complete
 *           copies may go only by a fault, and a restore may never end with less while no group
 *           misses more than its parity. All complete copies count: those of the owners, and those
 *           hosted for them.
 *   TORN    What a record or an activation describes equals, byte for byte, what the trainers had
 *           at exactly that step, all of one life. Parity is computed again from that truth and
 *           compared too. Nothing is captured of a life whose tensors do not fit together.
 *   OTHER   docs/PROTOCOL.md, R1 to R9, as far as one can see them from outside (judge_said.c,
 *           judge_view.c, judge_plan.c). One epoch has one roster and one success. The job goes on
 *           when the faults end.
 *
 * Injected damage is known here and excused; nothing else is.
 */
#include "tests/sim/sim.h"

#include "agent/core/epoch/record.h"
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
    struct cairn_part_view part;

    if (!node->running) {
        world_say(world, "agent %u: not running, node %s", node->number, node->up ? "up" : "down");
        return;
    }
    cairn_core_look(node->core, &view);
    world_say(world,
              "agent %u: member %d active %llx promised %llx ready " GENERATION
              " committed " GENERATION " run %llx next %llu last step %llu%s%s%s%s",
              node->number, (int)view.self_member, (unsigned long long)view.active,
              (unsigned long long)view.promised, GENERATION_OF(view.ready),
              GENERATION_OF(view.committed), (unsigned long long)view.run,
              (unsigned long long)view.next_step, (unsigned long long)view.last_step,
              view.blank ? " blank" : "", view.fenced ? " fenced" : "", view.busy ? " busy" : "",
              view.met ? "" : " has met nobody");
    if (view.refusal && view.refusal[0])
        world_say(world, "    refusal: %s", view.refusal);
    if (view.blocker.generation.step)
        world_say(world, "    blocker: " GENERATION " agent %u cause %d for %d since %llu ms",
                  GENERATION_OF(view.blocker.generation), view.blocker.agent,
                  (int)view.blocker.cause, (int)view.blocker.for_agent,
                  (unsigned long long)view.blocker.for_ms);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (cairn_core_look_part(node->core, i, &part))
            world_say(world, "    part %u: state %d generation " GENERATION " member %u bad %llu",
                      i, (int)part.state, GENERATION_OF(part.generation), part.member,
                      (unsigned long long)part.bad_blocks);
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

/* ---- parts ---- */

static void
remember_record(const struct world *world, struct node *node, uint32_t part,
                const struct cairn_part_view *view)
{
    struct stored *stored = &node->stored[part], old = *stored;
    const struct cairn_roster_group *group = cairn_roster_group_of(view->roster, view->member);
    bool again = same(old.generation, view->generation) && old.member == view->member;

    *stored = (struct stored){.generation = view->generation,
                              .member = view->member,
                              .position = view->position,
                              .parity_slots = group->parity,
                              .data_blocks = view->data_blocks,
                              .since_ns = again ? old.since_ns : world->now_ns,
                              .rebuilt = again ? old.rebuilt : !node->captured[part],
                              .geometry = view->stripes->geometry};
    memcpy(stored->group, group->members, sizeof stored->group);
    for (uint32_t slot = 0; slot < group->parity; slot++) {
        stored->slot_stripe[slot] = cairn_slot_stripe(&stored->geometry, view->position, slot);
        stored->slot_blocks[slot] = view->stripes->parity_blocks[stored->slot_stripe[slot]];
    }
}

/* An agent that was left behind by the newest epoch, which counts another copy, hears late that its
 * own epoch had aborted the generation. */
static bool
may_abort(const struct world *world, const struct node *node, const struct truth *truth,
          uint32_t member)
{
    bool copy = false;

    for (uint32_t a = 0; node->active < world->newest_epoch && a < world->setup.agent_count; a++)
        copy |= truth_copy_at(world, &world->nodes[a], truth, member);
    return copy;
}

/* An agent lets go of a complete part: R3. */
static void
erased(struct world *world, struct node *node, uint32_t part, const struct stored *old)
{
    struct truth *truth = judge_truth(world, old->generation);

    if (old->generation.step == 0 || !truth || old->member >= truth->member_count)
        return;
    truth->dropped = true;
    if (truth->agents[old->member] == node->number)
        truth->fates[old->member] = FATE_DROPPED;
    if (truth == world->kept && !may_abort(world, node, truth, old->member))
        judge_fail(world, VERDICT_LOST,
                   "agent %u lets go of member %u of generation " GENERATION
                   ", which nothing has replaced",
                   node->number, old->member, GENERATION_OF(old->generation));
    if (same(old->generation, node->pinned) && (node->pinned_parts >> part & 1))
        judge_fail(world, VERDICT_OTHER,
                   "agent %u lets go of member %u of generation " GENERATION
                   ", which a spill reads",
                   node->number, old->member, GENERATION_OF(old->generation));
}

void
judge_forgot(struct world *world, struct node *node, uint32_t part)
{
    struct stored old = node->stored[part];

    node->stored[part] = (struct stored){0};
    erased(world, node, part, &old);
}

/* A record was stored, or erased. */
void
judge_record(struct world *world, struct node *node, const struct cairn_action_store *store)
{
    struct stored old = node->stored[store->part];
    struct cairn_part_view view;
    struct truth *truth;

    if (store->bytes_len == 0) {
        node->stored[store->part] = (struct stored){0};
        erased(world, node, store->part, &old);
        return;
    }
    if (!cairn_core_look_part(node->core, store->part, &view) || !view.stripes)
        return; /* dropped again in the same step; the erasure follows */
    remember_record(world, node, store->part, &view);
    truth = judge_truth(world, view.generation);
    if (!truth || view.member >= truth->member_count || truth->agents[view.member] != node->number)
        return;
    truth->stored_count += truth->fates[view.member] == FATE_NONE;
    truth->fates[view.member] = FATE_STORED; /* perhaps again: a repair gave it back */
}

/* ---- commits ---- */

static void
truth_commits(struct world *world, struct truth *truth)
{
    truth->committed = true;
    world->counters.commits++;
    world->progress_ns = world->last_commit_ns = world->now_ns;
    world->committed_after_heal += world->healed;
    world_say(world, "generation " GENERATION " is committed", GENERATION_OF(truth->generation));
    if (!world->kept || cairn_generation_id_compare(truth->generation, world->kept->generation) > 0)
        kept_set(world, truth);
    if (world->setup.agent_count <= 64)
        judge_deep(world, "at its commit");
}

/* A leader that was left behind commits what its epoch was left with: the next one began with that,
 * or with something newer. */
static void
told_late(struct world *world, struct truth *truth)
{
    truth->committed = true;
    if (truth->generation.epoch > world->fresh_epoch && !truth->passed_over &&
        cairn_generation_id_compare(world->newest_ready, truth->generation) < 0)
        judge_fail(world, VERDICT_LOST,
                   "generation " GENERATION " is committed after epoch %llx began with " GENERATION,
                   GENERATION_OF(truth->generation), (unsigned long long)world->newest_epoch,
                   GENERATION_OF(world->newest_ready));
}

void
judge_told(struct world *world, const struct node *node, struct cairn_generation_id generation)
{
    struct truth *truth = generation.step ? judge_truth(world, generation) : NULL;

    if (!truth || truth->committed || generation.run == 0)
        return;
    if (generation.epoch < world->newest_epoch) {
        told_late(world, truth);
        return;
    }
    if (!truth->whole)
        judge_fail(world, VERDICT_TORN,
                   "agent %u takes " GENERATION " for committed, which is not the whole job",
                   node->number, GENERATION_OF(generation));
    for (uint32_t m = 0; m < truth->member_count; m++)
        if (truth->fates[m] != FATE_STORED)
            judge_fail(world, VERDICT_LOST,
                       "agent %u takes " GENERATION
                       " for committed, although member %u %s a complete part",
                       node->number, GENERATION_OF(generation), m,
                       truth->fates[m] == FATE_NONE ? "never had" : "has dropped");
    if (!world->over)
        truth_commits(world, truth);
}

/* ---- epochs ---- */

static uint64_t
roster_hash(const struct cairn_roster *roster)
{
    uint64_t hash = roster->member_count * 31 + roster->group_count;

    for (uint32_t m = 0; m < roster->member_count; m++)
        hash = mix64(hash ^ roster->members[m].agent ^ ((uint64_t)roster->members[m].group << 20) ^
                     ((uint64_t)roster->members[m].position << 44));
    return hash;
}

struct epoch_seen *
judge_epoch_seen(struct world *world, uint64_t epoch)
{
    for (uint32_t i = world->epoch_count; i-- > 0;)
        if (world->epochs[i].epoch == epoch)
            return &world->epochs[i];
    if (world->epoch_count == EPOCHS_MAX)
        return NULL;
    world->epochs[world->epoch_count] = (struct epoch_seen){.epoch = epoch};
    return &world->epochs[world->epoch_count++];
}

/* A fault has taken memory while a restore may have been under way. */
static bool
lost_lately(const struct world *world, const struct node *node)
{
    return node->lost_ns != 0 && world->now_ns - node->lost_ns < 300 * SECOND_NS;
}

void
judge_asked(const struct world *world, struct node *node, enum cairn_operation operation,
            uint64_t request)
{
    if (operation != CAIRN_OP_RESTORE && operation != CAIRN_OP_FRESH)
        return;
    node->restore_asked_ns = world->now_ns;
    if (operation == CAIRN_OP_FRESH)
        node->fresh_asked_ns = world->now_ns;
    if (node->open_request != 0)
        return; /* the agent is busy with it */
    node->open_request = request;
    node->open_since_ns = world->now_ns;
}

/* Asked at that time, and lately; or the agent, which may have stood still, has not answered. */
static bool
is_asked(const struct world *world, const struct node *node, uint64_t at_ns)
{
    return at_ns != 0 && (world->now_ns - at_ns < 600 * SECOND_NS ||
                          (node->open_request != 0 && at_ns >= node->open_since_ns));
}

/* R6, as far as it is certain: a newer generation whose parts agents hold that could answer. */
static void
check_newest(struct world *world, const struct node *coordinator,
             const struct cairn_core_view *view)
{
    uint64_t before_ns = world->now_ns - 60 * SECOND_NS, lately_ns = 180 * SECOND_NS;

    if (!judge_is_calm(world) || view->ready_from_files ||
        /* whom it asked before has missed its time, and is not asked again */
        world->now_ns < coordinator->wedged_until_ns + lately_ns ||
        world->now_ns < coordinator->paused_until_ns + lately_ns)
        return;
    for (uint32_t i = 0; i < TRUTHS_MAX; i++) {
        const struct truth *truth = &world->truths[i];
        uint8_t *present;

        if (truth->generation.step == 0 || truth->stored_count == 0 ||
            truth->generation.epoch <= world->fresh_epoch || /* an operator has given it up */
            cairn_generation_id_compare(truth->generation, view->ready) <= 0)
            continue;
        present = some_zeros(truth->member_count, 1);
        for (uint32_t m = 0; m < truth->member_count; m++)
            for (uint32_t a = 0; a < world->setup.agent_count && !present[m]; a++) {
                const struct node *node = &world->nodes[a];
                int part = stored_at(node, truth->generation, m);

                present[m] = part >= 0 && node->stored[part].since_ns < before_ns &&
                             node_answers(world, node) && !judge_was_silent(world, node) &&
                             truth_copy_at(world, node, truth, m);
            }
        if (truth_is_restorable(truth, present))
            judge_fail(world, VERDICT_OTHER,
                       "epoch %llx begins with " GENERATION ", though " GENERATION
                       " can be restored",
                       (unsigned long long)view->active, GENERATION_OF(view->ready),
                       GENERATION_OF(truth->generation));
        free(present);
    }
}

static void
check_holders(struct world *world, const struct node *node, const struct cairn_core_view *view)
{
    uint32_t members = view->ready_roster ? view->ready_roster->member_count : 0;

    for (uint32_t m = 0; m < members; m++) {
        uint32_t holder = cairn_core_holder(node->core, view->ready, m);

        if (holder >= world->setup.agent_count)
            judge_fail(world, VERDICT_LOST, "epoch %llx begins without a holder of member %u",
                       (unsigned long long)view->active, m);
        else if (stored_at(&world->nodes[holder], view->ready, m) < 0 &&
                 !lost_lately(world, &world->nodes[holder]))
            judge_fail(world, VERDICT_LOST,
                       "epoch %llx begins, but agent %u does not hold member %u of " GENERATION,
                       (unsigned long long)view->active, holder, m, GENERATION_OF(view->ready));
    }
}

/* Whether a generation lacks too many parts when those of agents that stand still count as lost:
 * all such agents, or only those that are silent for as long as an operator's restore waits. */
static bool
is_beyond_reach(struct world *world, const struct truth *truth, bool only_long_silent)
{
    uint8_t *present = some_zeros(truth->member_count, 1);
    bool beyond;

    for (uint32_t m = 0; m < truth->member_count; m++)
        for (uint32_t a = 0; a < world->setup.agent_count && !present[m]; a++) {
            struct node *node = &world->nodes[a];

            present[m] = (node_answers(world, node) ||
                          (only_long_silent && !judge_was_silent(world, node))) &&
                         truth_copy_at(world, node, truth, m);
        }
    beyond = !truth_is_restorable(truth, present);
    free(present);
    return beyond;
}

/* An operator's restore does not wait for ever for agents that stand still. Where they and damage
 * take more than m parts of a group, it goes back past a generation that all members may have
 * completed; a leader among those agents can still count their DONE, which were sent before. A
 * repair never does so. */
static void
note_passed_over(struct world *world, const struct cairn_core_view *view)
{
    for (uint32_t i = 0; view->restart_epoch == view->active && i < TRUTHS_MAX; i++) {
        struct truth *truth = &world->truths[i];

        if (truth->generation.step != 0 && !truth->committed &&
            cairn_generation_id_compare(truth->generation, view->ready) > 0)
            truth->passed_over |= is_beyond_reach(world, truth, false);
    }
}

/* Damage that was there when a restore compared what it takes is mended when its epoch begins. */
static void
check_mended(struct world *world, const struct node *node, const struct cairn_core_view *view,
             uint32_t claimant)
{
    for (uint32_t i = 0; i < FLIPS_MAX; i++) {
        const struct flip *flip = &world->flips[i];

        if (flip->compared && flip->due_to == claimant && flip_active(world, flip) &&
            cairn_generation_is(flip->generation, view->ready) &&
            cairn_core_holder(node->core, view->ready, flip->member) == flip->node)
            judge_fail(world, VERDICT_OTHER,
                       "epoch %llx begins, and damage at agent %u was not looked for",
                       (unsigned long long)view->active, flip->node);
    }
}

/* The first agent stores a new epoch: what its coordinator says must be so. */
static void
epoch_begins(struct world *world, const struct node *node, const struct cairn_core_view *view)
{
    uint32_t claimant = (uint32_t)(view->active & 0xffff);
    const struct node *coordinator =
        &world->nodes[claimant < world->setup.agent_count ? claimant : node->number];
    bool fresh = view->ready.step == 0 && is_asked(world, coordinator, coordinator->fresh_asked_ns);
    struct truth *truth = judge_truth(world, view->ready);

    world_say(world, "epoch %llx begins at agent %u: ready " GENERATION "%s, %u members",
              (unsigned long long)view->active, node->number, GENERATION_OF(view->ready),
              view->ready_from_files ? " from files" : "", view->roster->member_count);
    world->counters.repairs += view->restart_epoch != view->active;
    if (view->restart_epoch == view->active && world->newest_epoch != 0 &&
        !is_asked(world, coordinator, coordinator->restore_asked_ns))
        judge_fail(world, VERDICT_OTHER,
                   "epoch %llx stops the trainers, though nobody asked for a restore",
                   (unsigned long long)view->active);
    if (view->restart_epoch == view->active) {
        if (world->restarted_ns > coordinator->restore_asked_ns &&
            world->now_ns > world->restarted_ns + 60 * SECOND_NS)
            judge_fail(world, VERDICT_OTHER,
                       "epoch %llx stops trainers that started after it was asked for",
                       (unsigned long long)view->active);
        world->restarted_ns = world->now_ns;
    }
    world->newest_epoch = view->active;
    world->newest_ready = view->ready;
    if (fresh) { /* R3: what is held may go, to make room for the first commit */
        world->kept = NULL;
        world->fresh_epoch = view->active;
        return;
    }
    if (world->kept && cairn_generation_id_compare(view->ready, world->kept->generation) < 0) {
        if (world->now_ns > world->setup.faults_end_ns + 60 * SECOND_NS ||
            view->restart_epoch != view->active ||
            (!view->ready_from_files && !is_beyond_reach(world, world->kept, true)))
            judge_fail(world, VERDICT_LOST,
                       "epoch %llx begins with generation " GENERATION ", though " GENERATION
                       " was committed",
                       (unsigned long long)view->active, GENERATION_OF(view->ready),
                       GENERATION_OF(world->kept->generation));
        world->kept = NULL; /* what cannot be reached is given up for what can */
    }
    check_newest(world, coordinator, view);
    note_passed_over(world, view);
    if (view->ready_from_files) {
        world->kept = NULL; /* the files have it */
        world->fresh_epoch = view->active;
    }
    if (!truth)
        return;
    if (truth->layout != LAYOUT_GOOD)
        judge_fail(world, VERDICT_TORN,
                   "epoch %llx begins with " GENERATION ", whose tensors do not fit together",
                   (unsigned long long)view->active, GENERATION_OF(view->ready));
    check_holders(world, node, view);
    check_mended(world, node, view, claimant);
    if (!world->over && !view->ready_from_files) {
        kept_set(world, truth);
        judge_deep(world, "at an activation");
    }
}

/* R9: of two claims of one round, the later one was made without knowing of the earlier. */
static void
check_round(struct world *world, uint64_t epoch)
{
    for (uint32_t i = 0; i < world->epoch_count; i++) {
        const struct epoch_seen *other = &world->epochs[i];

        if (other->roster_hash && other->epoch != epoch &&
            other->epoch >> EPOCH_CLAIMANT_BITS == epoch >> EPOCH_CLAIMANT_BITS)
            judge_fail(world, VERDICT_OTHER, "epochs %llx and %llx of one round begin",
                       (unsigned long long)other->epoch, (unsigned long long)epoch);
    }
}

void
judge_epoch(struct world *world, struct node *node, const struct shared *before,
            const struct cairn_action_store *store)
{
    struct cairn_core_view view;
    struct epoch_seen *seen;
    struct cairn_reader reader;
    uint64_t promised;

    cairn_reader_init(&reader, store->bytes, store->bytes_len);
    cairn_read_u32(&reader);
    promised = cairn_read_u64(&reader);
    if (before && promised < node->promised)
        judge_fail(world, VERDICT_OTHER, "agent %u goes back: promised %llx → %llx", node->number,
                   (unsigned long long)node->promised, (unsigned long long)promised);
    node->promised = promised;
    cairn_core_look(node->core, &view);
    if (view.active < node->active)
        judge_fail(world, VERDICT_OTHER, "agent %u goes back: active %llx → %llx", node->number,
                   (unsigned long long)node->active, (unsigned long long)view.active);
    if (view.active == node->active)
        return;
    node->active = view.active;
    if (view.active > world->newest_epoch)
        epoch_begins(world, node, &view);
    seen = judge_epoch_seen(world, view.active);
    if (seen && !seen->roster_hash)
        check_round(world, view.active);
    else if (seen && seen->roster_hash != roster_hash(view.roster))
        judge_fail(world, VERDICT_OTHER, "epoch %llx has two rosters",
                   (unsigned long long)view.active);
    if (seen)
        seen->roster_hash = roster_hash(view.roster);
}

void
judge_reply(struct world *world, struct node *node, const struct cairn_action_reply *reply)
{
    const struct cairn_outcome *outcome = cairn_core_outcome(node->core);
    struct epoch_seen *seen;

    if (reply->request == node->open_request)
        node->open_request = 0;
    if ((outcome->operation != CAIRN_OP_RESTORE && outcome->operation != CAIRN_OP_FRESH) ||
        reply->request != outcome->request)
        return;
    if (reply->err == CAIRN_LOST)
        world->counters.restores_lost++;
    if (reply->err != CAIRN_OK)
        return;
    seen = judge_epoch_seen(world, outcome->epoch);
    world->counters.restores++;
    world->counters.rebuilt += outcome->rebuilt_blocks > 0;
    world->progress_ns = world->now_ns;
    if (!seen || seen->succeeded || !seen->roster_hash)
        judge_fail(world, VERDICT_OTHER, "two restores succeed with epoch %llx, or nobody has it",
                   (unsigned long long)outcome->epoch);
    else
        seen->succeeded = true;
}

/* ---- faults that take memory ---- */

void
judge_lost_memory(struct world *world, struct node *node)
{
    node->lost_ns = world->now_ns;
    if (node->disk_lost)
        node->active = 0;
    kept_check_beyond(world);
}

void
judge_lost_record(struct world *world, struct node *node, uint32_t part)
{
    node->lost_ns = world->now_ns;
    node->stored[part] = (struct stored){0};
    kept_check_beyond(world);
}

/* Flips a bit in a stored part of the node, where that is still within what is survived. */
bool
judge_flip(struct world *world, struct node *node)
{
    uint32_t h = (uint32_t)random_below(&world->random, CAIRN_PARTS_MAX);
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
    *flip = (struct flip){.used = true,
                          .node = node->number,
                          .part = h,
                          .parity = parity,
                          .byte = at,
                          .good = area[at],
                          .generation = stored->generation,
                          .member = stored->member,
                          .due_to = UINT32_MAX};
    area[at] ^= (uint8_t)(1u << random_below(&world->random, 8));
    world_say(world, "a bit flips at agent %u, part %u, %s byte %llu", node->number, h,
              parity ? "parity" : "data", (unsigned long long)at);
    kept_check_beyond(world);
    return true;
}

/* A part is compared. */
void
judge_compared(struct world *world, const struct node *node, uint32_t part)
{
    for (uint32_t i = 0; i < FLIPS_MAX; i++)
        if (world->flips[i].node == node->number && world->flips[i].part == part)
            world->flips[i].compared |= flip_active(world, &world->flips[i]);
}

/* The agent tells a coordinator what it holds. */
void
judge_answered(struct world *world, const struct node *node, uint32_t coordinator)
{
    for (uint32_t i = 0; i < FLIPS_MAX; i++)
        if (world->flips[i].node == node->number && world->flips[i].compared)
            world->flips[i].due_to = coordinator;
}

/* After every event: what one look can show. */
void
judge_after(struct world *world, struct node *node)
{
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    if (view.promised < view.active || view.fenced != (view.promised > view.active))
        judge_fail(world, VERDICT_OTHER, "agent %u: promised %llx, active %llx, fenced %d",
                   node->number, (unsigned long long)view.promised, (unsigned long long)view.active,
                   (int)view.fenced);
    if (world->setup.agent_count <= 64 && random_chance(&world->random, 5))
        judge_protection(world, node);
}

void
judge_fini(struct world *world)
{
    for (uint32_t i = 0; i < TRUTHS_MAX; i++) {
        truth_fini(&world->truths[i]);
        free(world->runs[i].registrations);
    }
    free(world->epochs);
}
