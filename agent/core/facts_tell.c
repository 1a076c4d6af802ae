/*
 * agent/core/facts_tell.c - who tells whom of the votes (facts.c), when.
 *
 * Spreading is the dissemination barrier: members stand in a ring, finger j of member i is member
 * i + 2^j; a member tells finger j once it knows that the 2^j members up to itself all said yes. So
 * after ceil(log2 n) messages sent by each member everyone knows, without a relay whose death would
 * matter (Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988). A no goes
 * to all fingers at once. What is not settled is told again after a while, and heartbeats carry the
 * newest committed generation.
 */
#include "agent/core/core_state.h"

static uint32_t
member_count(const struct cairn_core *core)
{
    return core->table->member_count;
}

static void
send_sets(struct cairn_core *core, struct cairn_generation generation, const uint64_t *yes,
          const uint64_t *no, const struct facts *facts, uint32_t to_agent)
{
    uint32_t words = (uint32_t)cairn_bitset_words(member_count(core));
    struct cairn_message message = message_new(core, CAIRN_MSG_FACTS, core->active);
    uint8_t bytes[2 * 8 * (CAIRN_NODES_MAX / 64) + FACTS_VOTE_BYTES * CAIRN_NODES_MAX];
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    for (uint32_t w = 0; w < words; w++)
        cairn_write_u64(&writer, yes[w]);
    for (uint32_t w = 0; w < words; w++)
        cairn_write_u64(&writer, no[w]);
    for (uint32_t m = 0; facts && m < member_count(core); m++)
        if (cairn_bitset_has(yes, m)) {
            cairn_write_u16(&writer, facts->ranks[m]);
            cairn_write_u32(&writer, facts->layouts[m]);
        }
    message.generation = generation;
    message.total = facts ? facts->world : 0;
    message.member = member_count(core);
    message.bytes = bytes;
    message.bytes_len = (uint32_t)writer.used_bytes;
    send_message(core, to_agent, &message);
}

void
facts_send(struct cairn_core *core, struct facts *facts, uint32_t to_agent)
{
    send_sets(core, facts->generation, facts->yes, facts->no, facts, to_agent);
    facts->sent_ns = core->now_ns;
}

static void
send_veto(struct cairn_core *core, const struct veto *veto, uint32_t to_agent)
{
    uint64_t nobody[CAIRN_NODES_MAX / 64] = {0}, one[CAIRN_NODES_MAX / 64] = {0};

    cairn_bitset_add(one, veto->member);
    send_sets(core, veto->generation, nobody, one, NULL, to_agent);
}

/* Finger j of this member: the first member from self + 2^j on whose agent is not known dead. */
static uint32_t
finger_agent(const struct cairn_core *core, uint32_t j)
{
    uint32_t n = member_count(core);

    for (uint32_t step = 0; step < n; step++) {
        uint32_t member = (core->self_member + (UINT32_C(1) << j) + step) % n;
        uint32_t agent = core->table->members[member].agent;

        if (member == core->self_member)
            continue;
        if (agent_maybe_alive(core, agent))
            return agent;
    }
    return UINT32_MAX;
}

void
facts_tell_fingers(struct cairn_core *core, struct facts *facts)
{
    for (uint32_t j = 0; (UINT32_C(1) << j) < member_count(core); j++) {
        uint32_t agent = finger_agent(core, j);

        if (agent != UINT32_MAX)
            facts_send(core, facts, agent);
    }
}

void
facts_pump_rounds(struct cairn_core *core, struct facts *facts)
{
    uint32_t n = member_count(core);

    if (core->self_member == UINT32_MAX)
        return;
    while ((UINT32_C(1) << facts->rounds) < n) {
        for (uint32_t back = 0; back < (UINT32_C(1) << facts->rounds) && back < n; back++)
            if (!cairn_bitset_has(facts->yes, (core->self_member + n - back) % n))
                return;
        uint32_t agent = finger_agent(core, facts->rounds);
        if (agent != UINT32_MAX)
            facts_send(core, facts, agent);
        facts->rounds++;
    }
}

void
facts_answer_committed(struct cairn_core *core, uint32_t to_agent)
{
    struct facts *facts = facts_find(core, core->committed);

    if (facts && cairn_bitset_full(facts->yes, member_count(core)))
        facts_send(core, facts, to_agent);
}

/*
 * Tells that a generation is given up without naming who said no: a veto that is forgotten here.
 * That it was one is certain: it is not committed, the trainers here are past it, and had this
 * member said yes, it would still hold its part.
 */
static bool
is_gone(struct cairn_core *core, struct cairn_generation generation)
{
    return core->self_member != UINT32_MAX && save_passed(core, generation) &&
           !holding_find(core, generation, core->self_member) &&
           generation.step >= core->forgotten_before &&
           !((core->first_step == 0 || generation.step < core->first_step) &&
             facts_holds_later(core, generation));
}

static void
send_given_up(struct cairn_core *core, struct cairn_generation generation, uint32_t to_agent)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_FACTS, core->active);

    message.generation = generation;
    message.member = member_count(core);
    message.offset = FACTS_GIVEN_UP;
    send_message(core, to_agent, &message);
}

void
facts_answer(struct cairn_core *core, struct cairn_generation generation, uint32_t to_agent)
{
    struct facts *facts = facts_find(core, generation);
    const struct veto *veto = facts_find_veto(core, generation);

    if (core->frozen || generation.epoch != core->active)
        return;
    if (cairn_generation_compare(generation, core->committed) <= 0)
        facts_answer_committed(core, to_agent);
    else if (facts && facts->vetoed)
        facts_send(core, facts, to_agent);
    else if (veto && veto->member < member_count(core))
        send_veto(core, veto, to_agent);
    else if (veto)
        send_given_up(core, generation, to_agent);
    else if (!facts && is_gone(core, generation))
        send_given_up(core, generation, to_agent);
}

/* A part that is captured and waits in vain for the others' asks whether they have given it up:
 * their word may have been lost. */
static void
ask_about_open(struct cairn_core *core, uint64_t patience_ns)
{
    uint64_t nobody[CAIRN_NODES_MAX / 64] = {0};

    for (uint32_t i = 0; i < core->options.slots; i++) {
        struct holding *holding = &core->holdings[i];

        if (holding->state != CAIRN_HOLDING_OPEN || !holding->seal_asked ||
            holding->member != core->self_member || holding->generation.epoch != core->active ||
            core->now_ns - holding->progress_ns < patience_ns ||
            core->now_ns - holding->questioned_ns < patience_ns)
            continue;
        holding->questioned_ns = core->now_ns;
        for (uint32_t j = 0; (UINT32_C(1) << j) < member_count(core); j++) {
            uint32_t agent = finger_agent(core, j);

            if (agent != UINT32_MAX)
                send_sets(core, holding->generation, nobody, nobody, NULL, agent);
        }
    }
}

void
facts_tick(struct cairn_core *core)
{
    uint64_t patience_ns = 2 * core->options.resend_after_ns;

    if (core->self_member == UINT32_MAX || core->frozen)
        return;
    ask_about_open(core, patience_ns);
    for (uint32_t i = 0; i < FACTS_MAX; i++) {
        struct facts *facts = &core->facts[i];

        if (facts->generation.step == 0 || facts->committed ||
            core->now_ns - facts->sent_ns < patience_ns ||
            cairn_generation_compare(facts->generation, core->committed) < 0)
            continue;
        if (facts->vetoed && facts->told_no)
            continue; /* told again once; others ask while they wait */
        if (facts->vetoed)
            facts->told_no = true;
        if (facts->sent_ns == 0 && !facts->vetoed &&
            !cairn_bitset_has(facts->yes, core->self_member))
            continue; /* nothing of our own to add yet */
        facts_tell_fingers(core, facts);
        facts->sent_ns = core->now_ns;
    }
}
