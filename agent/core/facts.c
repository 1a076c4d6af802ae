/*
 * agent/core/facts.c - votes: "member i has protected its part of g", and "member i never will".
 *
 * Both are said once and never taken back, so the sets of them only grow and merging is a bitwise
 * or: a message may be lost, repeated or late. g is committed when every member said yes, and given
 * up when any said no; as no member says both, it cannot be both. How votes spread: facts_tell.c.
 *
 * A yes also says how many ranks it stands for. When all are in and the sum is not the job's world
 * (a rank trains on a node that is no member), the generation would miss a part of the job: it is
 * given up by everyone alike instead of committed. And it says the digest of its part's layout:
 * those whose parts do not hold every tensor exactly once are given up too (tiling.c).
 *
 * Retention: a complete holding is dropped only when a later generation is known committed or it
 * was given up.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint32_t
member_count(const struct cairn_core *core)
{
    return core->table->member_count;
}

struct facts *
facts_find(struct cairn_core *core, struct cairn_generation generation)
{
    for (uint32_t i = 0; i < FACTS_MAX; i++)
        if (core->facts[i].generation.step != 0 &&
            generation_is(core->facts[i].generation, generation))
            return &core->facts[i];
    return NULL;
}

const struct veto *
facts_find_veto(const struct cairn_core *core, struct cairn_generation generation)
{
    for (uint32_t i = 0; i < VETOES_MAX; i++)
        if (core->vetoes[i].generation.step != 0 &&
            generation_is(core->vetoes[i].generation, generation))
            return &core->vetoes[i];
    return NULL;
}

bool
facts_vetoed(const struct cairn_core *core, struct cairn_generation generation)
{
    for (uint32_t i = 0; i < FACTS_MAX; i++)
        if (core->facts[i].generation.step != 0 &&
            generation_is(core->facts[i].generation, generation))
            return core->facts[i].vetoed;
    return facts_find_veto(core, generation) != NULL;
}

static void
facts_free(struct facts *facts)
{
    free(facts->yes);
    free(facts->no);
    free(facts->ranks);
    free(facts->layouts);
    memset(facts, 0, sizeof *facts);
}

void
facts_clear(struct cairn_core *core)
{
    for (uint32_t i = 0; i < FACTS_MAX; i++)
        facts_free(&core->facts[i]);
    memset(core->vetoes, 0, sizeof core->vetoes);
}

/* Of an entry that makes room, what is still asked about by those who have not heard: that it was
 * given up. */
static void
remember_veto(struct cairn_core *core, const struct facts *facts)
{
    uint32_t m = 0;

    if (!facts->vetoed)
        return;
    while (m < member_count(core) && !cairn_bitset_has(facts->no, m))
        m++; /* none: what does not fit together is refused by everyone, though nobody said no */
    core->vetoes[core->veto_next++ % VETOES_MAX] = (struct veto){facts->generation, m};
}

/*
 * An entry for a generation of the active epoch; makes room by forgetting the oldest that is
 * settled, but for an older one only when it is for an own vote or an own part: what was forgotten
 * would be learnt, told and forgotten again for ever.
 */
static struct facts *
facts_open(struct cairn_core *core, struct cairn_generation generation, bool own)
{
    struct facts *facts = facts_find(core, generation);
    struct facts *victim = NULL;

    if (facts)
        return facts;
    if (generation.step == 0 || generation.epoch != core->active || !core->table ||
        facts_find_veto(core, generation))
        return NULL;
    for (uint32_t i = 0; i < FACTS_MAX; i++) {
        struct facts *entry = &core->facts[i];

        if (entry->generation.step == 0) {
            victim = entry;
            break;
        }
        if ((entry->vetoed || entry->committed ||
             cairn_generation_compare(entry->generation, core->committed) < 0) &&
            (own || cairn_generation_compare(entry->generation, generation) < 0) &&
            (!victim || cairn_generation_compare(entry->generation, victim->generation) < 0))
            victim = entry;
    }
    if (!victim)
        return NULL;
    remember_veto(core, victim);
    facts_free(victim);
    victim->yes = calloc(cairn_bitset_words(member_count(core)), sizeof(uint64_t));
    victim->no = calloc(cairn_bitset_words(member_count(core)), sizeof(uint64_t));
    victim->ranks = calloc(member_count(core), sizeof(uint16_t));
    victim->layouts = calloc(member_count(core), sizeof(uint32_t));
    if (!victim->yes || !victim->no || !victim->ranks || !victim->layouts) {
        core->actions->failed |= own; /* a vote that is lost would leave its generation open for
                                       * ever */
        facts_free(victim);
        return NULL;
    }
    victim->generation = generation;
    victim->opened_ns = core->now_ns;
    return victim;
}

void
facts_retain(struct cairn_core *core)
{
    /* A repair of what was replaced or given up is of no use any more, and must not keep its
     * slot. */
    if (core->repair.active &&
        (cairn_generation_compare(core->repair.generation, core->committed) < 0 ||
         facts_vetoed(core, core->repair.generation)))
        rebuild_stop(core);
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];
        struct facts *facts;

        if (holding->state == CAIRN_HOLDING_FREE || holding->pinned ||
            (core->repair.active && generation_is(core->repair.generation, holding->generation)))
            continue; /* a repair reads it, or writes it */
        facts = facts_find(core, holding->generation);
        if (cairn_generation_compare(holding->generation, core->committed) < 0 ||
            (facts && facts->vetoed && !facts->committed))
            holding_drop(core, holding, holding->state == CAIRN_HOLDING_OPEN);
    }
}

/* From now on a restore begins with this generation, which every member's own agent holds. */
static void
set_ready(struct cairn_core *core, struct cairn_generation generation)
{
    if (core->ready_table != core->table) {
        uint32_t *holders = calloc(member_count(core), sizeof *holders);

        if (!holders) {
            core->actions->failed = true;
            return;
        }
        for (uint32_t i = 0; i < member_count(core); i++)
            holders[i] = core->table->members[i].agent;
        free(core->holders);
        cairn_roster_drop(core->ready_table);
        core->holders = holders;
        core->ready_table = cairn_roster_hold(core->table);
    }
    core->ready = generation;
    core->ready_from_files = false;
}

void
facts_learn_committed(struct cairn_core *core, struct cairn_generation generation)
{
    struct facts *facts = facts_find(core, generation);
    struct holding *holding;
    struct cairn_action *action;

    if (facts)
        facts->committed = true;
    if (generation.epoch != core->active ||
        cairn_generation_compare(generation, core->committed) <= 0)
        return;
    core->committed = generation;
    core->tiling.refusal[0] = '\0';
    core->tiling.refused = (struct cairn_generation){0, 0};
    due_committed(core, generation);
    set_ready(core, generation);
    holding =
        core->self_member == UINT32_MAX ? NULL : holding_find(core, generation, core->self_member);
    action = action_add(core, CAIRN_ACTION_COMMITTED);
    if (action) {
        action->generation = generation;
        action->holding = holding ? holding_index(core, holding) : UINT32_MAX;
    }
    facts_retain(core);
    save_grant_pending(core);
}

/* True when every rank of the job is in it, as far as the trainers said how many there are. */
static bool
covers_world(const struct cairn_core *core, const struct facts *facts)
{
    uint64_t ranks = 0;

    for (uint32_t m = 0; m < member_count(core); m++)
        ranks += facts->ranks[m];
    if (facts->world == 0 || ranks == facts->world)
        return true;
    CAIRN_LOG_AT(WARN,
                 "save: step=%" PRIu64 " is given up: the members of this epoch captured %" PRIu64
                 " of the job's %u ranks; the others "
                 "train on nodes that are no members, which are taken in once all agents are up "
                 "and all ranks attached",
                 facts->generation.step, ranks, facts->world);
    return false;
}

/* After any growth of the sets. */
static void
settle(struct cairn_core *core, struct facts *facts)
{
    uint32_t n = member_count(core);
    uint32_t yes = cairn_bitset_count(facts->yes, n);
    bool any_no = cairn_bitset_count(facts->no, n) > 0;

    if (facts->committed)
        return;
    if (any_no && !facts->vetoed) {
        facts->vetoed = true;
        due_given_up(core, facts->generation);
        if (core->self_member != UINT32_MAX)
            facts_tell_fingers(core, facts);
        facts_retain(core);
        save_grant_pending(core);
        return;
    }
    if (any_no)
        return;
    facts_pump_rounds(core, facts);
    if (yes == n && !facts->vetoed && !covers_world(core, facts)) {
        facts->vetoed = true;
        facts_retain(core);
        save_grant_pending(core);
        return;
    }
    if (yes == n && !facts->vetoed) {
        switch (tiling_look(core, facts)) {
        case TILING_UNKNOWN:
            return;
        case TILING_BAD:
            facts->vetoed = true;
            tiling_refused(core, facts);
            due_refused(core, facts->generation);
            facts_retain(core);
            save_grant_pending(core);
            return;
        case TILING_GOOD:
            break;
        }
    }
    if (!facts->committed && !facts->vetoed &&
        (yes == n || (CAIRN_PLANTED(core, BUG_COUNT_ONE_LESS) && yes + 1 == n)))
        facts_learn_committed(core, facts->generation);
}

void
facts_settle_full(struct cairn_core *core)
{
    for (uint32_t i = 0; i < FACTS_MAX; i++)
        if (core->facts[i].generation.step != 0 && !core->facts[i].vetoed &&
            !core->facts[i].committed &&
            cairn_generation_compare(core->facts[i].generation, core->committed) > 0 &&
            cairn_bitset_full(core->facts[i].yes, member_count(core)))
            settle(core, &core->facts[i]);
}

bool
facts_holds_later(const struct cairn_core *core, struct cairn_generation generation)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (core->holdings[i].state == CAIRN_HOLDING_COMPLETE &&
            core->holdings[i].member == core->self_member &&
            core->holdings[i].generation.epoch == generation.epoch &&
            core->holdings[i].generation.step > generation.step)
            return true;
    return false;
}

void
facts_vote(struct cairn_core *core, struct cairn_generation generation, bool yes)
{
    struct facts *facts;

    if ((core->frozen && !CAIRN_PLANTED(core, BUG_ACCEPT_OLD_EPOCH)) ||
        core->self_member == UINT32_MAX || generation.epoch != core->active ||
        cairn_generation_compare(generation, core->committed) <= 0)
        return; /* what is settled needs no vote, and its entry may have forgotten ours */
    if (!yes && (generation.step < core->forgotten_before ||
                 ((core->first_step == 0 || generation.step < core->first_step) &&
                  facts_holds_later(core, generation))))
        return; /* an earlier start may have said yes to it */
    facts = facts_open(core, generation, true);
    if (!facts || cairn_bitset_has(facts->yes, core->self_member) ||
        cairn_bitset_has(facts->no, core->self_member))
        return;
    cairn_bitset_add(yes ? facts->yes : facts->no, core->self_member);
    if (yes) {
        const struct holding *holding = holding_find(core, generation, core->self_member);
        const struct seal *seal = holding ? &holding->seals[holding->position] : NULL;

        facts->ranks[core->self_member] = seal ? (uint16_t)seal->ranks : 0;
        facts->layouts[core->self_member] =
            seal ? cairn_tiling_digest(seal->manifest, seal->manifest_len) : 0;
        if (seal && seal->world > facts->world)
            facts->world = seal->world;
    }
    settle(core, facts);
}

static void
take_given_up(struct cairn_core *core, struct cairn_generation generation)
{
    struct holding *holding = holding_find(core, generation, core->self_member);
    struct facts *facts;

    if (!holding || cairn_generation_compare(generation, core->committed) <= 0)
        return; /* nothing here waits for it */
    facts = facts_open(core, generation, true);
    if (facts && facts->committed)
        return;
    due_given_up(core, generation);
    if (facts)
        facts->vetoed = true;
    else if (!holding->pinned)
        holding_drop(core, holding, holding->state == CAIRN_HOLDING_OPEN);
    facts_retain(core);
    save_grant_pending(core);
}

static bool
says_no(const struct cairn_message *message, uint32_t words)
{
    for (uint32_t i = 8 * words; i < 16 * words; i++)
        if (message->bytes[i] != 0)
            return true;
    return false;
}

/* Of a message with whole sets. */
static bool
says_yes(const struct cairn_message *message, uint32_t member)
{
    return message->bytes[member / 8] >> (member % 8) & 1;
}

/* Two sets of members, without any that there is not, and the numbers of those that say yes. */
static bool
is_well_formed(const struct cairn_message *message, uint32_t n)
{
    uint32_t words = (uint32_t)cairn_bitset_words(n), yes = 0;

    if (message->bytes_len < 16 * words)
        return false;
    for (uint32_t m = 0; m < 64 * words; m++) {
        bool no = message->bytes[8 * words + m / 8] >> (m % 8) & 1;

        if (m >= n && (no || says_yes(message, m)))
            return false;
        yes += says_yes(message, m);
    }
    return message->bytes_len == 16 * words + FACTS_VOTE_BYTES * yes;
}

void
facts_message(struct cairn_core *core, const struct cairn_message *message)
{
    uint32_t n = member_count(core);
    uint32_t words = (uint32_t)cairn_bitset_words(n);
    struct cairn_reader reader;
    struct facts *facts;
    bool grown = false, theirs_lacks = false;

    if (message->epoch != core->active ||
        (core->frozen && !CAIRN_PLANTED(core, BUG_ACCEPT_OLD_EPOCH)) || message->member != n ||
        (message->offset != FACTS_GIVEN_UP && !is_well_formed(message, n)) ||
        message->generation.epoch != message->epoch)
        return;
    if (message->offset == FACTS_GIVEN_UP) {
        take_given_up(core, message->generation);
        return;
    }
    if (cairn_generation_compare(message->generation, core->committed) < 0) {
        facts_answer_committed(core, message->from);
        return;
    }
    /* News of what is held here always has room: its slot waits for it. */
    facts = facts_open(core, message->generation,
                       core->self_member != UINT32_MAX &&
                           holding_find(core, message->generation, core->self_member));
    if (!facts) {
        if (!says_no(message, words)) /* or two that both know would tell each other for ever */
            facts_answer(core, message->generation, message->from);
        return;
    }
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t w = 0; w < 2 * words; w++) {
        uint64_t *mine = w < words ? &facts->yes[w] : &facts->no[w - words];
        uint64_t theirs = cairn_read_u64(&reader);

        grown |= (theirs & ~*mine) != 0;
        theirs_lacks |= (*mine & ~theirs) != 0;
        *mine |= theirs;
    }
    for (uint32_t m = 0; m < n; m++) {
        uint16_t ranks;
        uint32_t layout;

        if (!says_yes(message, m))
            continue;
        ranks = cairn_read_u16(&reader);
        layout = cairn_read_u32(&reader);
        if (ranks > facts->ranks[m])
            facts->ranks[m] = ranks;
        if (facts->layouts[m] == 0)
            facts->layouts[m] = layout;
    }
    if (message->total <= UINT32_MAX && message->total > facts->world)
        facts->world = (uint32_t)message->total;
    /* Whoever tells of a generation late is told what is known, once: that is how a lost message is
     * made up for. */
    if (theirs_lacks && message->request == 0 && (facts->vetoed || facts->committed))
        facts_send(core, facts, message->from);
    if (grown)
        settle(core, facts);
    facts = facts_find(core, message->generation);
    if (facts && !facts->vetoed && !facts->committed && core->self_member != UINT32_MAX &&
        !holding_find(core, message->generation, core->self_member) &&
        save_passed(core, message->generation))
        save_give_up(core, message->generation, "the trainers are past it");
}

/* Everyone is alive and can be heard, and yet a generation is neither committed nor given up. */
bool
facts_stuck(const struct cairn_core *core)
{
    for (uint32_t m = 0; m < member_count(core); m++)
        if (!agent_alive(core, core->table->members[m].agent))
            return false;
    for (uint32_t i = 0; i < FACTS_MAX; i++) {
        const struct facts *facts = &core->facts[i];

        if (facts->generation.step != 0 && !facts->committed && !facts->vetoed &&
            cairn_generation_compare(facts->generation, core->committed) > 0 &&
            core->now_ns - facts->opened_ns > 2 * core->options.rebuild_timeout_ns)
            return true;
    }
    return false;
}
