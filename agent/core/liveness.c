/*
 * agent/core/liveness.c - who is alive, by gossiped heartbeat counters.
 *
 * Every agent counts up once per interval and tells its fingers (agents self + 2^j) the whole table
 * of (incarnation, counter, newest complete generation) that it knows. A table is merged by taking
 * the greater counter, so news travels in at most log2(n) intervals over any connected path, each
 * agent sends log2(n) messages per interval, and no agent is special (van Renesse, Minsky and
 * Hayden, A gossip-style failure detection service, 1998). Whose counter has not grown here for
 * dead_after is taken for dead, until it grows again. A wrong suspicion costs time, never data.
 * Time in which this agent itself stood still does not count.
 */
#include "agent/core/core_state.h"

#include <stdlib.h>

enum { ENTRY_BYTES = 32 };

bool
agent_alive(const struct cairn_core *core, uint32_t agent)
{
    const struct peer *peer;

    if (agent >= core->options.agent_count)
        return false;
    if (agent == core->options.self)
        return true;
    peer = &core->peers[agent];
    return peer->advanced_ns != 0 && core->now_ns - peer->advanced_ns < core->options.dead_after_ns;
}

bool
agent_maybe_alive(const struct cairn_core *core, uint32_t agent)
{
    if (agent >= core->options.agent_count)
        return false;
    return agent_alive(core, agent) ||
           (core->peers[agent].advanced_ns == 0 &&
            core->now_ns - core->started_ns < 2 * core->options.dead_after_ns);
}

bool
agent_given_up(const struct cairn_core *core, uint32_t agent)
{
    const struct peer *peer;
    uint64_t heard_ns;

    if (agent_maybe_alive(core, agent))
        return false;
    if (agent >= core->options.agent_count)
        return true;
    peer = &core->peers[agent];
    heard_ns = peer->advanced_ns > peer->spoke_ns ? peer->advanced_ns : peer->spoke_ns;
    if (heard_ns == 0)
        heard_ns = core->started_ns;
    return core->now_ns - heard_ns >= SILENCE_FACTOR * core->options.dead_after_ns;
}

void
liveness_spoke(struct cairn_core *core, uint32_t agent)
{
    core->peers[agent].spoke_ns = core->now_ns;
}

/* The newest complete holding of this agent, for the heartbeat. */
static struct cairn_generation
newest_held(const struct cairn_core *core)
{
    struct cairn_generation newest = {0};

    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (core->holdings[i].state == CAIRN_HOLDING_COMPLETE &&
            cairn_generation_compare(core->holdings[i].generation, newest) > 0)
            newest = core->holdings[i].generation;
    return newest;
}

static void
beat(struct cairn_core *core)
{
    struct peer *self = &core->peers[core->options.self];
    struct cairn_generation held = newest_held(core);
    struct cairn_message message = message_new(core, CAIRN_MSG_HEARTBEAT, core->active);
    uint32_t n = core->options.agent_count;
    size_t len = (size_t)n * ENTRY_BYTES;
    struct cairn_writer writer;
    uint8_t *bytes = malloc(len);

    if (!bytes)
        return; /* one beat less */
    self->incarnation = core->options.incarnation;
    self->counter++;
    self->holds = held.step;
    self->holds_epoch = held.epoch;
    self->advanced_ns = core->now_ns;
    cairn_writer_init(&writer, bytes, len);
    for (uint32_t i = 0; i < n; i++) {
        cairn_write_u64(&writer, core->peers[i].incarnation);
        cairn_write_u64(&writer, core->peers[i].counter);
        cairn_write_u64(&writer, core->peers[i].holds_epoch);
        cairn_write_u64(&writer, core->peers[i].holds);
    }
    message.generation = core->committed;
    message.offset = core->passed_step;
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    for (uint32_t j = 0; (UINT32_C(1) << j) < n; j++) {
        uint32_t to = (core->options.self + (UINT32_C(1) << j)) % n;
        uint32_t next = to;

        if (to != core->options.self)
            send_message(core, to, &message);
        /* A dead finger is still told, for it may come back; the next live one takes its place. */
        while (!agent_maybe_alive(core, next) && next != core->options.self)
            next = (next + 1) % n;
        if (next != to && next != core->options.self)
            send_message(core, next, &message);
    }
    free(bytes);
}

/*
 * After a pause of this agent (SIGSTOP, a stalled machine) everyone else's silence is its own: the
 * gap does not count, or it would take all for dead and judge a restore by the few that it has
 * heard already. Ticks come every interval, so without any event for two of them it stood still;
 * the first event after that may be a message, and must not find deadlines passed. Half an interval
 * of each gap counts all the same, or an agent whose every turn is late would take nobody for dead,
 * and wait for ever.
 */
void
liveness_awake(struct cairn_core *core)
{
    uint64_t gap_ns = core->event_ns ? core->now_ns - core->event_ns : 0;

    core->event_ns = core->now_ns;
    if (gap_ns <= 2 * core->options.heartbeat_interval_ns)
        return;
    if (gap_ns >= core->options.dead_after_ns)
        core->repair_wait_ns = 0; /* what calls for a repair must have lasted while it looked */
    gap_ns -= core->options.heartbeat_interval_ns / 2;
    for (uint32_t i = 0; i < core->options.agent_count; i++) {
        struct peer *peer = &core->peers[i];

        if (peer->advanced_ns != 0)
            peer->advanced_ns = min_u64(peer->advanced_ns + gap_ns, core->now_ns);
        if (peer->spoke_ns != 0)
            peer->spoke_ns = min_u64(peer->spoke_ns + gap_ns, core->now_ns);
    }
    core->restore.deadline_ns += gap_ns;
    core->restore.patient_until_ns += gap_ns;
    core->restore.silence_until_ns += gap_ns;
}

void
liveness_tick(struct cairn_core *core)
{
    if (core->beat_ns != 0 && core->now_ns - core->beat_ns < core->options.heartbeat_interval_ns)
        return;
    core->beat_ns = core->now_ns;
    beat(core);
}

/*
 * An agent that restarts has lost what was open in it, and a fresh one may not say no to what an
 * earlier start may have said yes to: so those that have not said yes themselves give it up, or
 * their slots would wait for it until the timeout.
 */
static void
give_up_open(struct cairn_core *core)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        const struct holding *holding = &core->holdings[i];

        if ((holding->state == CAIRN_HOLDING_OPEN || holding->state == CAIRN_HOLDING_FINISHING) &&
            holding->member == core->self_member && holding->generation.epoch == core->active)
            save_give_up(core, holding->generation, "a member's agent has restarted");
    }
}

void
liveness_message(struct cairn_core *core, const struct cairn_message *message)
{
    bool restarted = false;
    struct cairn_reader reader;

    if (message->bytes_len != core->options.agent_count * ENTRY_BYTES)
        return;
    core->heard = true;
    if (message->epoch > core->epoch_heard)
        core->epoch_heard = message->epoch;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < core->options.agent_count; i++) {
        struct peer *peer = &core->peers[i];
        uint64_t incarnation = cairn_read_u64(&reader);
        uint64_t counter = cairn_read_u64(&reader);
        uint64_t holds_epoch = cairn_read_u64(&reader);
        uint64_t holds = cairn_read_u64(&reader);

        if (i == core->options.self || incarnation < peer->incarnation ||
            (incarnation == peer->incarnation && counter <= peer->counter))
            continue;
        if (incarnation != peer->incarnation || holds != peer->holds ||
            holds_epoch != peer->holds_epoch)
            peer->holds_ns = core->now_ns;
        restarted |= peer->incarnation != 0 && peer->incarnation != incarnation;
        peer->incarnation = incarnation;
        peer->counter = counter;
        peer->holds = holds;
        peer->holds_epoch = holds_epoch;
        peer->advanced_ns = core->now_ns;
    }
    if (restarted && !core->frozen)
        give_up_open(core);
    if (message->epoch <
        core->active) { /* it has missed an activation; a backlog of its beats asks but once */
        struct peer *peer = &core->peers[message->from];

        if (peer->told_ns == 0 || core->now_ns - peer->told_ns >= core->options.resend_after_ns) {
            peer->told_ns = core->now_ns;
            epoch_send_record(core, message->from);
        }
    } else if (message->epoch == core->active &&
               (!core->frozen || CAIRN_PLANTED(core, BUG_ACCEPT_OLD_EPOCH))) {
        facts_learn_committed(core, message->generation);
        if (!CAIRN_PLANTED(core, BUG_BEGIN_REMEMBERS))
            core->passed_step = max_u64(core->passed_step, message->offset);
    }
}
