/*
 * tests/explore/judge.c - what must hold after every event, seen from outside: from what agents
 * store, send and tell their trainers.
 *
 *   R1  what an agent promised or is in only grows, and is stored before it is sent
 *   R2  DONE is sent only for a part whose record is stored, of a generation that the decision
 *       known there has not aborted; a generation is committed only after every member has stored
 *       its own part
 *   R3, R6  from its commit on until a later generation is committed, every part of the newest
 *       generation is stored somewhere, or a fault has taken it
 *   R4  nothing of an older epoch is sent or granted after a promise
 *   R5  a run belongs to one start of the trainers, and a commit goes forward in steps
 *   R9  a restore never goes back behind a commit, and nothing is committed behind a restore; of
 *       the epochs of one round at most one begins
 *   R10 who lost its promises knows them again when an epoch begins that enough others, who know
 *       theirs, have promised with it
 *   and every stored record's bytes are those of one life and step, data and parity.
 */
#include "tests/explore/explore.h"

#include "agent/core/epoch/record.h"
#include "base/wire.h"

#include <string.h>

static bool
same(struct cairn_generation_id a, struct cairn_generation_id b)
{
    return cairn_generation_id_compare(a, b) == 0;
}

static uint32_t
life_of(uint64_t run)
{
    for (uint32_t i = 0; i < world->run_count; i++)
        if (world->runs[i] == run)
            return world->run_lives[i];
    return 0;
}

static struct truth *
truth_of(struct cairn_generation_id generation, const struct cairn_roster *roster)
{
    uint32_t i = 0;

    while (i < TRUTHS_MAX && world->truths[i].generation.step != 0)
        if (same(world->truths[i++].generation, generation))
            return &world->truths[i - 1];
    if (i == TRUTHS_MAX || !roster) {
        fail("generation %llx.%llx.%llu is unknown", (unsigned long long)generation.epoch,
             (unsigned long long)generation.run, (unsigned long long)generation.step);
        return NULL;
    }
    world->truths[i].generation = generation;
    world->truths[i].life = life_of(generation.run);
    world->truths[i].n = roster->member_count;
    world->truths[i].m = roster->groups[0].parity;
    for (uint32_t m = 0; m < roster->member_count; m++)
        world->truths[i].agents[m] = (uint8_t)roster->members[m].agent;
    return &world->truths[i];
}

/* ---- bytes ---- */

static void
fail_torn(const struct agent *agent, const struct stored *stored, const char *what)
{
    fail("torn: agent %u keeps a record of step %llu of member %u, and its %s is not that", //
         agent->number, (unsigned long long)stored->generation.step, stored->member, what);
}

/* Compares the memory behind a stored record with what the trainers had. */
static void
check_bytes(struct agent *agent, uint32_t part)
{
    const struct stored *stored = &agent->stored[part];
    uint32_t life = life_of(stored->generation.run);
    struct cairn_geometry geometry;
    struct cairn_stripes stripes;
    uint64_t lengths[AGENTS_MAX];

    for (uint32_t p = 0; p < stored->n; p++)
        lengths[p] = SHARD_BLOCKS;
    if (cairn_geometry_init(stored->n - stored->m, stored->m, 1, &geometry) != CAIRN_OK ||
        cairn_stripes_init(&geometry, lengths, &stripes) != CAIRN_OK) {
        fail("a record has an impossible group");
        return;
    }
    for (uint64_t i = 0; i < SHARD_BLOCKS; i++) {
        uint64_t word =
            truth_word(life, stored->agents[stored->position], stored->generation.step, i);
        const uint8_t *block = agent_block(agent, part, CAIRN_AREA_DATA, 0, 0, i);

        if (!block || memcmp(block, &word, BLOCK_BYTES) != 0)
            fail_torn(agent, stored, "data");
    }
    for (uint32_t slot = 0; slot < stored->m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&geometry, stored->position, slot);
        uint32_t row = cairn_stripe_parity_row(&geometry, stripe, stored->position);

        for (uint64_t line = 0; line < stripes.parity_blocks[stripe]; line++) {
            const uint8_t *block =
                agent_block(agent, part, CAIRN_AREA_PARITY, stored->m, slot, line);
            uint8_t wanted[BLOCK_BYTES] = {0};

            for (uint32_t p = 0; p < stored->n; p++) {
                uint32_t source = cairn_stripe_data_index(&geometry, stripe, p);
                uint64_t at, word;

                if (source == CAIRN_STRIPE_NONE)
                    continue;
                at = cairn_stripe_chunk(&geometry, stripe, p) * stripes.chunk_blocks[p] + line;
                if (line >= stripes.chunk_blocks[p] || at >= SHARD_BLOCKS)
                    continue;
                word = truth_word(life, stored->agents[p], stored->generation.step, at);
                code_fold(stored->n, stored->m, row, source, (const uint8_t *)&word, wanted, false);
            }
            if (!block || memcmp(block, wanted, BLOCK_BYTES) != 0)
                fail_torn(agent, stored, "parity");
        }
    }
}

void
judge_written(struct agent *agent, uint32_t part)
{
    if (agent->stored[part].generation.step != 0)
        check_bytes(agent, part);
}

/* ---- parts ---- */

/* The members of a generation whose part is stored by some agent, as a set. */
static uint32_t
members_stored(const struct truth *truth)
{
    uint32_t set = 0;

    for (uint32_t a = 0; a < world->setup.agents; a++)
        for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
            if (same(agents[a]->stored[i].generation, truth->generation))
                set |= 1u << agents[a]->stored[i].member;
    return set;
}

/* True if a fault has taken every missing part of a generation. */
static bool
is_whole(struct truth *truth, uint32_t *missing)
{
    *missing = ((1u << truth->n) - 1) & ~members_stored(truth);
    truth->lost &= *missing;
    return (*missing & ~truth->lost) == 0;
}

/* The newest committed generation, or a later one that all members have stored, is there. */
void
judge_kept(void)
{
    struct truth *kept = world->kept.step ? truth_of(world->kept, NULL) : NULL;
    uint32_t missing, later;

    for (uint32_t i = 0; i < world->erased_count; i++)
        if (kept && same(world->erased[i], kept->generation))
            fail("R3: a record of step %llu is erased, and nothing later is committed",
                 (unsigned long long)kept->generation.step);
    world->erased_count = 0;
    if (!kept || is_whole(kept, &missing))
        return;
    for (uint32_t i = 0; i < TRUTHS_MAX && world->truths[i].generation.step != 0; i++) {
        struct truth *truth = &world->truths[i];

        if (truth->done == (1u << truth->n) - 1 && is_whole(truth, &later) &&
            cairn_generation_id_compare(truth->generation, world->kept) > 0)
            return;
    }
    fail("R6: generation %llx.%llx.%llu must be restorable; the parts of members %x are gone, "
         "and faults have taken only %x",
         (unsigned long long)kept->generation.epoch, (unsigned long long)kept->generation.run,
         (unsigned long long)kept->generation.step, missing, kept->lost);
}

bool
judge_is_protected(void)
{
    const struct truth *truth = world->kept.step ? truth_of(world->kept, NULL) : NULL;

    return truth && members_stored(truth) == (1u << truth->n) - 1;
}

/* What an agent still holds is not rebuilt elsewhere before it has been silent for some time. */
static void
check_patience(const struct agent *owner, const struct stored *stored)
{
    bool holds = false;

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        holds |= same(owner->stored[i].generation, stored->generation) &&
                 owner->stored[i].member == stored->member;
    if (holds && !world->was_cut_off &&
        (owner->gone_ns == 0 ||
         (!owner->core && world->now_ns - owner->gone_ns < TICKS_PATIENT * INTERVAL_NS)))
        fail("agent %u holds member %u's part of step %llu, was hardly away, and it is rebuilt "
             "elsewhere",
             owner->number, stored->member, (unsigned long long)stored->generation.step);
}

void
judge_store_part(struct agent *agent, uint32_t part)
{
    const struct cairn_roster_group *group;
    struct stored *stored = &agent->stored[part];
    struct cairn_part_view view;
    struct truth *truth;

    if (agent->records[part].len == 0) {
        if (stored->generation.step != 0 && world->erased_count < CAIRN_PARTS_MAX)
            world->erased[world->erased_count++] = stored->generation;
        *stored = (struct stored){0};
        return;
    }
    if (!cairn_core_look_part(agent->core, part, &view)) {
        fail("agent %u stores the record of a free part", agent->number);
        return;
    }
    group = cairn_roster_group_of(view.roster, view.member);
    *stored = (struct stored){.generation = view.generation,
                              .member = view.member,
                              .position = view.position,
                              .n = group->count,
                              .m = group->parity};
    for (uint32_t p = 0; p < group->count; p++)
        stored->agents[p] = (uint8_t)view.roster->members[group->members[p]].agent;
    truth = truth_of(view.generation, view.roster);
    if (!truth)
        return;
    if (truth->agents[view.member] == agent->number)
        truth->done |= 1u << view.member;
    else
        check_patience(agents[truth->agents[view.member]], stored);
    check_bytes(agent, part);
}

/* More parts are lost together than the job survives: with a node that held two of them, say. */
static bool
kept_is_lost(void)
{
    const struct truth *kept = world->kept.step ? truth_of(world->kept, NULL) : NULL;

    return kept && (uint32_t)__builtin_popcount(kept->lost & ~members_stored(kept)) > kept->m;
}

void
judge_lost(struct agent *agent)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct stored stored = agent->stored[i];
        struct truth *truth;

        if (stored.generation.step == 0)
            continue;
        agent->stored[i] = (struct stored){0};
        truth = truth_of(stored.generation, NULL);
        if (truth && !(members_stored(truth) & 1u << stored.member))
            truth->lost |= 1u << stored.member;
    }
    if (kept_is_lost())
        world->kept = (struct cairn_generation_id){0};
}

/* ---- runs and commits ---- */

void
judge_grant(struct agent *agent, const struct cairn_action_trainer *grant)
{
    uint64_t run = grant->generation.run;
    struct cairn_core_view view;

    agent_view(agent, &view);
    if (life_of(run) == 0 && world->run_count < TRUTHS_MAX) {
        world->runs[world->run_count] = run;
        world->run_lives[world->run_count++] = world->life;
    }
    if (life_of(run) != world->life)
        fail("R5: agent %u captures step %llu of life %u in a run of life %u", agent->number,
             (unsigned long long)grant->step, world->life, life_of(run));
    if (grant->generation.epoch < agent->stored_promised)
        fail("R4: agent %u grants under epoch %llx, and has promised %llx", agent->number,
             (unsigned long long)grant->generation.epoch,
             (unsigned long long)agent->stored_promised);
    (void)truth_of(grant->generation, view.roster);
}

void
judge_committed(const struct agent *agent, struct cairn_generation_id generation,
                const struct cairn_roster *roster)
{
    struct truth *truth = truth_of(generation, roster);

    if (!truth || truth->committed)
        return;
    truth->committed = true;
    say("step %llu is committed", (unsigned long long)generation.step);
    if (truth->done != (1u << truth->n) - 1)
        fail("R2: step %llu is committed, and only members %x have stored their parts",
             (unsigned long long)generation.step, truth->done);
    if (world->setup.untiled)
        fail("step %llu is committed, and no rank holds a part of a tensor",
             (unsigned long long)generation.step);
    if (generation.epoch < agent->stored_promised)
        fail("R4: agent %u commits under epoch %llx, and has promised %llx", agent->number,
             (unsigned long long)generation.epoch, (unsigned long long)agent->stored_promised);
    if (generation.epoch < world->kept_epoch &&
        cairn_generation_id_compare(world->epoch_ready, generation) < 0)
        fail("R9: step %llu is committed in epoch %llx, and epoch %llx has begun without it",
             (unsigned long long)generation.step, (unsigned long long)generation.epoch,
             (unsigned long long)world->kept_epoch);
    if (generation.step <= world->kept.step && !same(generation, world->kept))
        fail("R5: step %llu is committed over step %llu", (unsigned long long)generation.step,
             (unsigned long long)world->kept.step);
    world->kept = generation;
    world->commits++;
    world->commits_since_fault++;
}

void
judge_activated(struct agent *agent, const struct cairn_action_activated *activated)
{
    struct cairn_generation_id ready = activated->ready;
    struct cairn_core_view view;

    agent_view(agent, &view);
    if (activated->restart && world->launched && !world->op_asked)
        fail("epoch %llx restarts the trainers, and nobody has asked for that",
             (unsigned long long)view.active);
    if (view.active != world->kept_epoch &&
        view.active >> EPOCH_CLAIMANT_BITS == world->kept_epoch >> EPOCH_CLAIMANT_BITS)
        fail("R9: epochs %llx and %llx of one round begin", (unsigned long long)view.active,
             (unsigned long long)world->kept_epoch);
    if (view.active < world->kept_epoch)
        return;
    if (view.active == world->kept_epoch) {
        if (!same(world->epoch_ready, ready))
            fail("epoch %llx begins with two generations", (unsigned long long)view.active);
        return;
    }
    say("epoch %llx begins with step %llu", (unsigned long long)view.active,
        (unsigned long long)ready.step);
    world->kept_epoch = view.active;
    world->epoch_ready = ready;
    if (world->op_fresh && ready.step == 0 && epoch_claimant(view.active) == world->fresh_agent)
        world->kept = ready;
    if (cairn_generation_id_compare(ready, world->kept) < 0)
        fail("R9: epoch %llx begins with step %llu, and step %llu is committed",
             (unsigned long long)view.active, (unsigned long long)ready.step,
             (unsigned long long)world->kept.step);
    if (ready.step != 0)
        world->kept = ready;
}

/* ---- what an agent says and stores ---- */

static struct promises *
promises_of(uint64_t epoch)
{
    struct promises *promises;

    for (uint32_t i = 0; i < EPOCHS_MAX; i++)
        if (world->promises[i].epoch == epoch)
            return &world->promises[i];
    promises = &world->promises[world->promises_next++ % EPOCHS_MAX];
    *promises = (struct promises){.epoch = epoch};
    return promises;
}

/* An agent that lost its promises takes itself for one that knows them all. */
static void
check_vouched(const struct agent *agent)
{
    const struct promises *promises = promises_of(agent->stored_promised);
    uint32_t n = world->setup.agents;
    uint32_t knew = (uint32_t)__builtin_popcount(promises->knew);
    uint32_t forgot = (uint32_t)__builtin_popcount(promises->forgot);

    if (forgot <= n / 2 && knew < (n + 1) / 2)
        fail("R10: agent %u has lost its promises and counts on epoch %llx, which only %u others "
             "have promised that know theirs",
             agent->number, (unsigned long long)agent->stored_promised, knew);
}

void
judge_store_epoch(struct agent *agent, const uint8_t *bytes, size_t len)
{
    struct cairn_reader reader;
    uint64_t promised;
    bool knows;

    cairn_reader_init(&reader, bytes, len);
    (void)cairn_read_u32(&reader); /* version */
    promised = cairn_read_u64(&reader);
    (void)cairn_read_u8(&reader); /* blank */
    knows = cairn_read_u8(&reader) != 0;
    if (promised < agent->stored_promised)
        fail("R1: agent %u stores the promise %llx over %llx", agent->number,
             (unsigned long long)promised, (unsigned long long)agent->stored_promised);
    agent->stored_promised = promised;
    if (knows && !agent->knows)
        check_vouched(agent);
    agent->knows = knows;
}

static bool
has_stored(const struct agent *agent, struct cairn_generation_id generation)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (same(agent->stored[i].generation, generation))
            return true;
    return false;
}

static void
check_done(const struct agent *agent, struct cairn_generation_id generation)
{
    struct cairn_core_view view;

    agent_view(agent, &view);
    if (!has_stored(agent, generation))
        fail("R2: agent %u is done with step %llu, and has not stored its record", agent->number,
             (unsigned long long)generation.step);
    if (!same(generation, view.committed) &&
        (generation.run < view.run ||
         (generation.run == view.run && generation.step < view.next_step)))
        fail("R2: agent %u is done with step %llu, which its decision aborts", agent->number,
             (unsigned long long)generation.step);
}

static void
check_report(const struct agent *agent, const struct cairn_message_report *report)
{
    const struct cairn_generation_id complete[] = {report->complete0, report->complete1,
                                                   report->complete2, report->complete3};

    for (uint32_t i = 0; i < CAIRN_OWN_SLOTS_MAX; i++)
        if (complete[i].step != 0)
            check_done(agent, complete[i]);
    if (report->reason == CAIRN_ABORT_DAMAGED && !world->was_damaged)
        fail("agent %u aborts step %llu as damaged, and nothing was", agent->number,
             (unsigned long long)report->aborted.step);
}

void
judge_send(struct agent *agent, const struct cairn_message *message)
{
    unsigned long long epoch = message->epoch, stored = agent->stored_promised;

    if (cairn_message_is_of_epoch(message) && epoch < stored)
        fail("R4: agent %u sends %s of epoch %llx, and has promised %llx", agent->number,
             cairn_message_name(message->kind), epoch, stored);
    switch (message->kind) {
    case CAIRN_MSG_POSITION:
        if (message->as.position.promised > stored || epoch > stored)
            fail("R1: agent %u says that it promised %llx and is in %llx, and has stored %llx",
                 agent->number, (unsigned long long)message->as.position.promised, epoch, stored);
        if (message->as.position.promised > agent->said_promised)
            agent->said_promised = message->as.position.promised;
        if (epoch > agent->said_active)
            agent->said_active = epoch;
        break;
    case CAIRN_MSG_PROMISE:
        if (message->as.promise.err != CAIRN_OK)
            break;
        if (epoch > stored)
            fail("R1: agent %u promises %llx, and has stored %llx", agent->number, epoch, stored);
        if (epoch < agent->said_promised)
            fail("R1: agent %u promises %llx after %llx", agent->number, epoch,
                 (unsigned long long)agent->said_promised);
        agent->said_promised = epoch;
        *(agent->knows ? &promises_of(epoch)->knew : &promises_of(epoch)->forgot) |=
            1u << agent->number;
        break;
    case CAIRN_MSG_REPORT:
        check_report(agent, &message->as.report);
        break;
    default:
        break;
    }
}

void
judge_after(struct agent *agent)
{
    struct cairn_core_view view;

    agent_view(agent, &view);
    if (view.promised < agent->seen_promised || view.active < agent->seen_active ||
        view.active > view.promised)
        fail("R1: agent %u promised %llx and was in %llx, and now %llx and %llx", agent->number,
             (unsigned long long)agent->seen_promised, (unsigned long long)agent->seen_active,
             (unsigned long long)view.promised, (unsigned long long)view.active);
    agent->seen_promised = view.promised;
    agent->seen_active = view.active;
    if (view.committed.step != 0 && !same(view.committed, agent->seen_committed)) {
        agent->seen_committed = view.committed;
        judge_committed(agent, view.committed, view.roster);
    }
}
