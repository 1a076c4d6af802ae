/*
 * tests/sim/judge_said.c - what agents tell each other and the trainers, against the rules of
 * docs/PROTOCOL.md.
 *
 *   R1  an epoch is promised and activated only when it is stored; a run's number stands for one
 *       registration of every agent's trainers
 *   R2  only parts whose records are stored are reported as complete
 *   R4  nothing is sent under an epoch older than the promise
 *   R9  no promise for another start of the agent
 *   and: a decision is one value per serial number; an epoch is activated with the promises of a
 *   majority; a generation is of one life, and beyond what the job holds.
 */
#include "tests/sim/sim.h"

#include "agent/core/epoch/record.h"
#include "agent/core/epoch/tree.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- decisions ---- */

static uint64_t
hash_decision(const struct cairn_decision *decision)
{
    uint64_t hash = mix64(decision->run) ^ decision->next;

    hash = mix64(hash ^ decision->committed.epoch);
    hash = mix64(hash ^ decision->committed.run);
    return mix64(hash ^ decision->committed.step);
}

static void
said_decision(struct world *world, struct node *node, uint64_t epoch,
              const struct cairn_decision *decision)
{
    struct decision_seen *seen =
        &world->decisions[mix64(epoch ^ (decision->serial << 8)) % DECISIONS_MAX];
    uint64_t hash = hash_decision(decision);

    if (decision->serial == 0)
        return;
    if (seen->epoch == epoch && seen->serial == decision->serial && seen->hash != hash)
        judge_fail(world, VERDICT_OTHER,
                   "agent %u says another decision %llx of epoch %llx than was sent before",
                   node->number, (unsigned long long)decision->serial, (unsigned long long)epoch);
    *seen = (struct decision_seen){epoch, decision->serial, hash};
    judge_told(world, node, decision->committed);
}

/* ---- R2 ---- */

static void
said_complete(struct world *world, struct node *node, struct cairn_generation_id generation)
{
    const struct truth *truth = judge_truth(world, generation);
    uint32_t self = UINT32_MAX;

    for (uint32_t m = 0; truth && m < truth->member_count; m++)
        if (truth->agents[m] == node->number)
            self = m;
    if (self == UINT32_MAX)
        return;
    if (truth->fates[self] == FATE_DROPPED)
        judge_fail(world, VERDICT_OTHER,
                   "agent %u reports " GENERATION " complete, after dropping its part",
                   node->number, GENERATION_OF(generation));
    for (uint32_t m = self; m < truth->member_count; m++)
        if (truth->fates[m] == FATE_NONE && tree_is_above(self, truth->member_count, m))
            judge_fail(world, VERDICT_OTHER,
                       "agent %u reports " GENERATION " complete, which member %u has not stored",
                       node->number, GENERATION_OF(generation), m);
}

static void
said_report(struct world *world, struct node *node, const struct cairn_message_report *report)
{
    const struct cairn_generation_id complete[] = {report->complete0, report->complete1,
                                                   report->complete2, report->complete3};

    for (uint32_t i = 0; report->agent == node->number && i < CAIRN_OWN_SLOTS_MAX; i++)
        if (complete[i].step != 0)
            said_complete(world, node, complete[i]);
}

/* ---- R1, R9 ---- */

static void
said_promise(struct world *world, struct node *node, const struct cairn_message *message)
{
    struct epoch_seen *seen;

    if (message->as.promise.err != CAIRN_OK)
        return;
    if (node->promised < message->epoch)
        judge_fail(world, VERDICT_OTHER, "agent %u promises epoch %llx, which it has not stored",
                   node->number, (unsigned long long)message->epoch);
    if (node->claim_epoch == message->epoch && node->claim_incarnation != node->incarnation)
        judge_fail(world, VERDICT_OTHER,
                   "agent %u promises epoch %llx, whose coordinator knows another of its starts",
                   node->number, (unsigned long long)message->epoch);
    seen = judge_epoch_seen(world, message->epoch);
    if (seen)
        seen->promises++;
}

static void
said_activate(struct world *world, struct node *node, uint64_t epoch)
{
    const struct epoch_seen *seen = judge_epoch_seen(world, epoch);

    if (seen && 2 * seen->promises <= world->setup.agent_count)
        judge_fail(world, VERDICT_OTHER, "agent %u activates epoch %llx, which only %u promised",
                   node->number, (unsigned long long)epoch, seen->promises);
}

/* R4: messages that only members say. */
static bool
is_of_epoch(const struct cairn_message *message)
{
    switch (message->kind) {
    case CAIRN_MSG_REPORT:
    case CAIRN_MSG_AUDIT:
    case CAIRN_MSG_DECISION:
    case CAIRN_MSG_DATA:
        return true;
    case CAIRN_MSG_SEAL:
        return message->as.seal.attempt == 0;
    default:
        return false;
    }
}

void
judge_sent(struct world *world, struct node *node, const struct cairn_message *message)
{
    if (world->verbose && message->kind != CAIRN_MSG_HEARTBEAT)
        world_say(world, "  %u says %s to %u, epoch %llx, %u bytes", node->number,
                  cairn_message_name(message->kind), message->to,
                  (unsigned long long)message->epoch, message->bytes_len);
    if (is_of_epoch(message) && message->epoch < node->promised)
        judge_fail(world, VERDICT_OTHER, "agent %u says %s under epoch %llx, but promised %llx",
                   node->number, cairn_message_name(message->kind),
                   (unsigned long long)message->epoch, (unsigned long long)node->promised);
    switch (message->kind) {
    case CAIRN_MSG_DECISION:
        said_decision(world, node, message->epoch, &message->as.decision.decision);
        break;
    case CAIRN_MSG_DATA:
        said_decision(world, node, message->epoch, &message->as.data.decision);
        break;
    case CAIRN_MSG_SEAL:
        if (message->as.seal.attempt == 0)
            said_decision(world, node, message->epoch, &message->as.seal.decision);
        break;
    case CAIRN_MSG_REPORT:
        said_report(world, node, &message->as.report);
        break;
    case CAIRN_MSG_PROMISE:
        said_promise(world, node, message);
        break;
    case CAIRN_MSG_ACTIVATE:
        said_activate(world, node, message->epoch);
        break;
    case CAIRN_MSG_REBUILD:
        judge_plan(world, node, message);
        break;
    case CAIRN_MSG_INVENTORY:
        judge_answered(world, node, message->to);
        break;
    default:
        break;
    }
}

/* ---- what an agent hears ---- */

static void
say_got(struct world *world, const struct cairn_message *message)
{
    struct cairn_generation_id generation = {0};
    char text[256] = "";

    if (!world->verbose || message->kind == CAIRN_MSG_HEARTBEAT)
        return;
    switch (message->kind) {
    case CAIRN_MSG_POSITION:
        snprintf(text, sizeof text, "promised %llx",
                 (unsigned long long)message->as.position.promised);
        break;
    case CAIRN_MSG_REPORT:
        generation = message->as.report.aborted;
        snprintf(text, sizeof text,
                 "agent %u ranks %u world %u launch %llx begun %llu asked %llu cause %u for %d "
                 "complete %llu reason %u aborted:",
                 message->as.report.agent, message->as.report.ranks, message->as.report.world,
                 (unsigned long long)message->as.report.launch,
                 (unsigned long long)message->as.report.begun,
                 (unsigned long long)message->as.report.asked, message->as.report.cause,
                 (int)message->as.report.for_agent,
                 (unsigned long long)message->as.report.complete0.step, message->as.report.reason);
        break;
    case CAIRN_MSG_DECISION:
        generation = message->as.decision.decision.committed;
        snprintf(text, sizeof text, "serial %llx run %llx next %llu committed:",
                 (unsigned long long)message->as.decision.decision.serial,
                 (unsigned long long)message->as.decision.decision.run,
                 (unsigned long long)message->as.decision.decision.next);
        break;
    case CAIRN_MSG_DATA:
        generation = message->as.data.generation;
        snprintf(text, sizeof text, "member %u stripe %u row %u line %llu count %u",
                 message->as.data.member, message->as.data.stripe, message->as.data.row,
                 (unsigned long long)message->as.data.line, message->as.data.count);
        break;
    case CAIRN_MSG_SEAL:
        generation = message->as.seal.generation;
        snprintf(text, sizeof text, "member %u for %u offset %llu attempt %llx",
                 message->as.seal.member, message->as.seal.for_member,
                 (unsigned long long)message->as.seal.offset,
                 (unsigned long long)message->as.seal.attempt);
        break;
    case CAIRN_MSG_RECEIVED:
        generation = message->as.received.generation;
        snprintf(text, sizeof text, "member %u for %u stripe %u row %d count %llu again %u",
                 message->as.received.member, message->as.received.for_member,
                 message->as.received.stripe, (int)message->as.received.row,
                 (unsigned long long)message->as.received.count, message->as.received.again);
        break;
    case CAIRN_MSG_ASK:
        generation = message->as.ask.generation;
        snprintf(text, sizeof text, "attempt %llx mode %u",
                 (unsigned long long)message->as.ask.attempt, message->as.ask.mode);
        break;
    case CAIRN_MSG_INVENTORY:
        snprintf(text, sizeof text, "attempt %llx",
                 (unsigned long long)message->as.inventory.attempt);
        break;
    case CAIRN_MSG_REBUILT:
        snprintf(text, sizeof text, "attempt %llx member %u finished %u err %u",
                 (unsigned long long)message->as.rebuilt.attempt, message->as.rebuilt.member,
                 message->as.rebuilt.finished, message->as.rebuilt.err);
        break;
    case CAIRN_MSG_PROMISE:
        snprintf(text, sizeof text, "err %u promised %llx", message->as.promise.err,
                 (unsigned long long)message->as.promise.promised);
        break;
    default:
        break;
    }
    world_say(world, "%u → %u %s e=%llx g=" GENERATION " %s", message->from, message->to,
              cairn_message_name(message->kind), (unsigned long long)message->epoch,
              GENERATION_OF(generation), text);
}

void
judge_got(struct world *world, struct node *node, const struct cairn_message *message)
{
    struct record record = {0};

    say_got(world, message);
    if (message->kind != CAIRN_MSG_CLAIM || world->setup.agent_count > 64)
        return;
    if (record_read(message->bytes, message->bytes_len, &record) != CAIRN_OK) {
        judge_fail(world, VERDICT_OTHER, "the claim of agent %u does not parse", message->from);
        return;
    }
    node->claim_epoch = message->epoch;
    node->claim_incarnation = record.seen[node->number].incarnation;
    record_fini(&record);
}

/* ---- what trainers hear ---- */

/* R1: while a run goes on, no agent's trainers register again. */
static void
check_run(struct world *world, struct node *node, struct cairn_generation_id generation)
{
    struct run_seen *seen = NULL;
    uint32_t *registered;

    for (uint32_t i = 0; i < TRUTHS_MAX; i++)
        if (world->runs[i].run == generation.run && world->runs[i].epoch == generation.epoch)
            seen = &world->runs[i];
    if (!seen) {
        seen = &world->runs[world->run_next++ % TRUTHS_MAX];
        free(seen->registrations);
        *seen = (struct run_seen){.epoch = generation.epoch,
                                  .run = generation.run,
                                  .life = node->core_life,
                                  .registrations =
                                      some_zeros(world->setup.agent_count, sizeof(uint32_t))};
        world->counters.runs++;
    }
    registered = &seen->registrations[node->number];
    if (seen->life != node->core_life && node->core_life)
        judge_fail(world, VERDICT_TORN, "run %llx captures two lives of the job",
                   (unsigned long long)generation.run);
    if (*registered && *registered != node->registrations)
        judge_fail(world, VERDICT_OTHER, "run %llx goes on after agent %u's trainers came again",
                   (unsigned long long)generation.run, node->number);
    *registered = node->registrations;
}

void
judge_grant(struct world *world, struct node *node, const struct cairn_action_trainer *grant)
{
    struct truth *truth = judge_truth(world, grant->generation);
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    if (view.fenced || grant->generation.epoch != view.active)
        judge_fail(world, VERDICT_OTHER, "agent %u grants under an epoch it has promised away",
                   node->number);
    if (view.ready.step && grant->step <= view.ready.step)
        judge_fail(world, VERDICT_OTHER, "agent %u captures step %llu, but " GENERATION " is ready",
                   node->number, (unsigned long long)grant->step, GENERATION_OF(view.ready));
    if (grant->step != grant->generation.step)
        judge_fail(world, VERDICT_OTHER, "agent %u grants step %llu as " GENERATION, node->number,
                   (unsigned long long)grant->step, GENERATION_OF(grant->generation));
    if (!node->core_life || (uint32_t)node->core_life != world->gang.life)
        return; /* nobody hears it */
    check_run(world, node, grant->generation);
    if (world->gang.layout != LAYOUT_GOOD)
        judge_fail(world, VERDICT_TORN, "agent %u captures tensors that do not fit together",
                   node->number);
    if (!truth && cairn_generation_id_compare(grant->generation, world->forgotten) <= 0)
        return; /* granted long after all others gave it up */
    if (!truth)
        truth = truth_new(world, grant->generation, node->core_life, view.roster);
    if (truth->life != node->core_life)
        judge_fail(world, VERDICT_TORN, "generation " GENERATION " is captured in two lives",
                   GENERATION_OF(grant->generation));
}

static void
spill(struct world *world, struct node *node, struct cairn_generation_id generation)
{
    struct cairn_event event = {.type = CAIRN_EVENT_SPILLED, .as.pin = {generation, true}};

    if (node->hung.step || node->pinned.step)
        return;
    if (random_chance(&world->random, 500)) {
        trainer_local(world, node, &event, NULL);
        return;
    }
    event.type = CAIRN_EVENT_PIN;
    trainer_local(world, node, &event, NULL);
    event.as.pin.keep = false;
    trainer_local_later(world, node, &event, random_below(&world->random, 10 * SECOND_NS));
    event.type = CAIRN_EVENT_SPILLED;
    trainer_local_later(world, node, &event, 10 * SECOND_NS);
}

void
judge_committed(struct world *world, struct node *node,
                const struct cairn_action_committed *committed)
{
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    if (view.fenced || committed->generation.epoch != view.active)
        judge_fail(world, VERDICT_OTHER, "agent %u learns a commit of an epoch it promised away",
                   node->number);
    judge_told(world, node, committed->generation);
    if (world->setup.spills && random_chance(&world->random, 100))
        spill(world, node, committed->generation);
}
