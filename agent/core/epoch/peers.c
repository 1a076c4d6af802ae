/*
 * agent/core/epoch/peers.c - who is alive; peers.h has the idea.
 *
 * Agent a beats to a + 2^j for every j, and to the next live agent behind a dead one, so a beat
 * arrives although agents are dead. Each target watches a. Every agent computes these
 * targets from its own list of dead agents. While two lists differ, an agent may be reported dead
 * by mistake; the report ends when that agent's counter grows.
 *
 * A beat has room for RUMORS_PER_BEAT rumors: news first, each told about 3 log2(n) times, which
 * reaches everyone with high probability. What room is left repeats the table in turn. So lost news
 * still arrives, and in a small job every beat has the whole table.
 *
 *   rumor   u32 agent (UINT32_MAX: none), u64 incarnation, u64 counter, u8 dead
 *
 * (incarnation, counter) orders news about one agent; at equal counters the rumor of its death
 * wins, because its watcher has waited for the next.
 */
#include "agent/core/epoch/peers.h"

#include "agent/core/epoch/send.h"

#include <stdlib.h>
#include <string.h>

enum {
    RUMOR_BYTES = 4 + 8 + 8 + 1,
    QUIET_FACTOR = 3,    /* of dead_after: an agent without bad news by then is alive */
    GIVEN_UP_FACTOR = 2, /* of dead_after: so long dead, and nobody waits for it */
    UNHEARD_FACTOR = 2   /* of dead_after: so long a watched agent may take to be heard first */
};

cairn_err
peers_init(struct peers *peers, const struct cairn_core_options *options, uint64_t now_ns)
{
    size_t words = cairn_bitset_words(options->agent_count);

    memset(peers, 0, sizeof *peers);
    peers->up = calloc(words, sizeof *peers->up);
    peers->watched = calloc(words, sizeof *peers->watched);
    peers->list = calloc(options->agent_count, sizeof *peers->list);
    peers->epochs = calloc(options->agent_count, sizeof *peers->epochs);
    if (!peers->up || !peers->watched || !peers->list || !peers->epochs) {
        peers_fini(peers);
        return CAIRN_NOMEM;
    }
    peers->started_ns = now_ns;
    peers->event_ns = now_ns;
    return CAIRN_OK;
}

void
peers_fini(struct peers *peers)
{
    free(peers->up);
    free(peers->watched);
    free(peers->list);
    free(peers->epochs);
    memset(peers, 0, sizeof *peers);
}

/* ---- what is known ---- */

uint64_t
peers_met(const struct env *env, uint32_t agent)
{
    if (agent == env->options->self)
        return env->options->incarnation;
    return agent < env->options->agent_count ? env->peers->list[agent].incarnation : 0;
}

bool
peers_alive(const struct env *env, uint32_t agent)
{
    if (agent == env->options->self)
        return true;
    if (agent >= env->options->agent_count || env->peers->list[agent].dead_ns != 0)
        return false;
    return env->peers->list[agent].incarnation != 0 ||
           env->now_ns - env->peers->started_ns >= QUIET_FACTOR * env->options->dead_after_ns;
}

bool
peers_maybe_alive(const struct env *env, uint32_t agent)
{
    return agent == env->options->self ||
           (agent < env->options->agent_count && env->peers->list[agent].dead_ns == 0);
}

bool
peers_given_up(const struct env *env, uint32_t agent)
{
    if (peers_maybe_alive(env, agent))
        return false;
    return agent >= env->options->agent_count || env->now_ns - env->peers->list[agent].dead_ns >=
                                                     GIVEN_UP_FACTOR * env->options->dead_after_ns;
}

/* ---- news ---- */

/* Tells of an agent in the beats that follow. */
static void
spread(struct peers *peers, uint32_t agent)
{
    uint32_t most_told = 0;

    for (uint32_t i = 0; i < peers->rumor_count; i++) {
        if (peers->rumors[i].agent == agent) {
            peers->rumors[i].told = 0;
            return;
        }
        if (peers->rumors[i].told > peers->rumors[most_told].told)
            most_told = i;
    }
    if (peers->rumor_count < RUMORS_MAX)
        most_told = peers->rumor_count++;
    peers->rumors[most_told] = (struct rumor){agent, 0};
}

static void
take_for_dead(const struct env *env, struct peers *peers, uint32_t agent)
{
    peers->list[agent].dead_ns = max_u64(env->now_ns, 1);
    spread(peers, agent);
}

/* Notes an incarnation of an agent. */
static void
take_for_alive(struct peers *peers, uint32_t agent, uint64_t incarnation, uint64_t counter,
               uint64_t now_ns)
{
    struct peer *peer = &peers->list[agent];

    if (peer->dead_ns != 0 || incarnation != peer->incarnation)
        spread(peers, agent);
    peer->incarnation = incarnation;
    peer->counter = counter;
    peer->heard_ns = max_u64(now_ns, 1);
    peer->dead_ns = 0;
}

/* Another agent reports this one dead; a higher counter refutes that. */
static void
deny(const struct env *env, struct peers *peers, uint64_t incarnation, uint64_t counter)
{
    if (incarnation != env->options->incarnation)
        return;
    if (counter >= peers->counter)
        peers->counter = counter + 1;
    spread(peers, env->options->self);
}

static void
take_news(const struct env *env, struct peers *peers, uint32_t agent, uint64_t incarnation,
          uint64_t counter, bool dead)
{
    struct peer *peer = &peers->list[agent];
    bool same = incarnation == peer->incarnation && counter == peer->counter;
    bool older = incarnation < peer->incarnation ||
                 (incarnation == peer->incarnation && counter < peer->counter);

    if (!dead && !older && !same) {
        take_for_alive(peers, agent, incarnation, counter, env->now_ns);
    } else if (dead && peer->dead_ns == 0 && older) {
        spread(peers, agent); /* the sender knows less */
    } else if (dead && !older) {
        peer->incarnation = incarnation;
        peer->counter = counter;
        if (peer->dead_ns == 0)
            take_for_dead(env, peers, agent);
    }
}

void
peers_heartbeat(struct env *env, struct peers *peers, const struct cairn_message *message)
{
    const struct cairn_message_heartbeat *beat = &message->as.heartbeat;
    struct cairn_reader reader;

    if (message->bytes_len != RUMORS_PER_BEAT * RUMOR_BYTES ||
        message->from >= env->options->agent_count || message->from == env->options->self)
        return;
    take_news(env, peers, message->from, beat->incarnation, beat->counter, false);
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < RUMORS_PER_BEAT; i++) {
        uint32_t agent = cairn_read_u32(&reader);
        uint64_t incarnation = cairn_read_u64(&reader);
        uint64_t counter = cairn_read_u64(&reader);
        bool dead = cairn_read_u8(&reader) != 0;

        if (agent == env->options->self && dead)
            deny(env, peers, incarnation, counter);
        else if (agent != env->options->self && agent < env->options->agent_count)
            take_news(env, peers, agent, incarnation, counter, dead);
    }
}

void
peers_meet(struct peers *peers, uint32_t agent, uint64_t incarnation)
{
    if (incarnation > peers->list[agent].incarnation)
        take_for_alive(peers, agent, incarnation, 0, peers->event_ns);
}

void
peers_up(struct env *env, struct peers *peers, uint32_t agent, uint64_t incarnation)
{
    struct peer *peer = &peers->list[agent];

    cairn_bitset_add(peers->up, agent);
    if (incarnation >= peer->incarnation) /* else of a session that has ended already */
        take_for_alive(peers, agent, incarnation,
                       incarnation == peer->incarnation ? peer->counter : 0, env->now_ns);
}

void
peers_down(struct peers *peers, uint32_t agent)
{
    cairn_bitset_remove(peers->up, agent);
}

/* ---- time ---- */

/*
 * After a pause of this agent (SIGSTOP, a stalled machine) the others were not silent: it was deaf.
 * The gap does not count, or it would take all for dead. Ticks come every interval, so two
 * intervals without an event mean that it stood still. The first event after that may be a message,
 * and must not find deadlines passed. Half an interval of each gap still counts; otherwise an agent
 * whose every turn is late would take nobody for dead, and wait for ever.
 */
uint64_t
peers_awake(struct env *env, struct peers *peers)
{
    uint64_t gap_ns = env->now_ns - peers->event_ns;

    peers->event_ns = env->now_ns;
    if (gap_ns <= 2 * env->options->heartbeat_interval_ns)
        return 0;
    gap_ns -= env->options->heartbeat_interval_ns / 2;
    peers->started_ns = min_u64(peers->started_ns + gap_ns, env->now_ns);
    for (uint32_t i = 0; i < env->options->agent_count; i++) {
        struct peer *peer = &peers->list[i];

        if (peer->heard_ns != 0)
            peer->heard_ns = min_u64(peer->heard_ns + gap_ns, env->now_ns);
        if (peer->dead_ns != 0)
            peer->dead_ns = min_u64(peer->dead_ns + gap_ns, env->now_ns);
    }
    return gap_ns;
}

/* The first of the agents from `place` on that is not taken for dead, or `end`. */
static uint32_t
first_live(const struct env *env, uint32_t place, uint32_t end)
{
    while (place != end && !peers_maybe_alive(env, place))
        place = (place + 1) % env->options->agent_count;
    return place;
}

static bool
beats_here(const struct env *env, uint32_t agent)
{
    uint32_t n = env->options->agent_count, self = env->options->self;

    for (uint32_t distance = 1; distance < n; distance *= 2)
        if (first_live(env, (agent + distance) % n, agent) == self)
            return true;
    return false;
}

bool
peers_beat_between(const struct env *env, uint32_t agent)
{
    uint32_t n = env->options->agent_count, self = env->options->self;

    if (beats_here(env, agent))
        return true;
    for (uint32_t distance = 1; distance < n; distance *= 2) {
        uint32_t target = (self + distance) % n;

        if (target == agent || (agent + distance) % n == self ||
            first_live(env, target, self) == agent)
            return true;
    }
    return false;
}

/*
 * Computes whose heartbeats come here: those of the agents at each distance 2^j before this one.
 * This agent also stands in for the dead agents directly before it, so the agents at those
 * distances before them beat to it too. A newly watched agent gets time to be heard.
 */
static void
watch(const struct env *env, struct peers *peers)
{
    uint32_t n = env->options->agent_count, self = env->options->self;

    for (uint32_t agent = 0; agent < n; agent++)
        if (cairn_bitset_has(peers->watched, agent) && !beats_here(env, agent))
            cairn_bitset_remove(peers->watched, agent);
    for (uint32_t distance = 1; distance < n; distance *= 2) {
        uint32_t place = self;

        do {
            uint32_t agent = (place + n - distance) % n;

            if (agent != self && !cairn_bitset_has(peers->watched, agent)) {
                cairn_bitset_add(peers->watched, agent);
                if (peers->list[agent].heard_ns != 0)
                    peers->list[agent].heard_ns = env->now_ns;
            }
            place = (place + n - 1) % n;
        } while (place != self && peers->list[place].dead_ns != 0);
    }
}

static bool
is_silent(const struct env *env, uint32_t agent)
{
    uint64_t heard_ns = env->peers->list[agent].heard_ns;

    if (heard_ns == 0)
        return env->now_ns - env->peers->started_ns >= UNHEARD_FACTOR * env->options->dead_after_ns;
    return env->now_ns - heard_ns >= env->options->dead_after_ns;
}

/* Takes silent agents for dead. A dead agent that stays silent loses its session. */
static void
judge(struct env *env, struct peers *peers)
{
    for (uint32_t agent = 0; agent < env->options->agent_count; agent++) {
        if (peers->list[agent].dead_ns == 0 && cairn_bitset_has(peers->watched, agent) &&
            is_silent(env, agent))
            take_for_dead(env, peers, agent);
        if (peers->list[agent].dead_ns != 0 && cairn_bitset_has(peers->up, agent) &&
            is_silent(env, agent))
            env_act(env, CAIRN_ACTION_DISCONNECT)->as.peer.agent = agent;
    }
}

static void
write_rumor(const struct env *env, uint32_t agent, struct cairn_writer *writer)
{
    bool self = agent == env->options->self;

    cairn_write_u32(writer, agent);
    cairn_write_u64(writer, peers_met(env, agent));
    cairn_write_u64(writer, self ? env->peers->counter : env->peers->list[agent].counter);
    cairn_write_u8(writer, !self && env->peers->list[agent].dead_ns != 0);
}

/* Fills one beat: news, then the table from `table_next` on. */
static void
write_rumors(const struct env *env, struct peers *peers, struct cairn_writer *writer)
{
    uint32_t n = env->options->agent_count, room = RUMORS_PER_BEAT, enough = 3;

    while ((UINT32_C(1) << (enough / 3)) < n)
        enough += 3;
    for (uint32_t left = peers->rumor_count; left > 0 && room > 0; left--) {
        struct rumor *rumor = &peers->rumors[peers->rumor_next % peers->rumor_count];

        write_rumor(env, rumor->agent, writer);
        room--;
        if (++rumor->told >= enough)
            *rumor = peers->rumors[--peers->rumor_count];
        else
            peers->rumor_next++;
    }
    for (uint32_t left = n; left > 0 && room > 0; left--) {
        uint32_t agent = peers->table_next++ % n;

        if (agent == env->options->self ||
            (peers->list[agent].incarnation == 0 && peers->list[agent].dead_ns == 0))
            continue;
        write_rumor(env, agent, writer);
        room--;
    }
    for (; room > 0; room--) {
        static const uint8_t none[RUMOR_BYTES] = {0xff, 0xff, 0xff, 0xff};

        cairn_write_bytes(writer, none, sizeof none);
    }
}

static void
beat_to(struct env *env, struct peers *peers, uint32_t to)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_HEARTBEAT, 0);
    uint8_t bytes[RUMORS_PER_BEAT * RUMOR_BYTES];
    struct cairn_writer writer;

    if (to == env->options->self || !env_reaches(env, to))
        return;
    cairn_writer_init(&writer, bytes, sizeof bytes);
    write_rumors(env, peers, &writer);
    message.as.heartbeat = (struct cairn_message_heartbeat){
        .incarnation = env->options->incarnation,
        .counter = peers->counter,
    };
    message.bytes = bytes;
    message.bytes_len = (uint32_t)writer.used_bytes;
    env_send(env, to, &message);
}

void
peers_tick(struct env *env, struct peers *peers)
{
    uint32_t n = env->options->agent_count, self = env->options->self;
    bool first = peers->beat_ns == 0;

    if (!first && env->now_ns - peers->beat_ns < env->options->heartbeat_interval_ns)
        return;
    peers->beat_ns = max_u64(env->now_ns, 1);
    peers->counter++;
    watch(env, peers);
    judge(env, peers);
    for (uint32_t distance = 1; distance < n; distance *= 2) {
        uint32_t finger = (self + distance) % n;
        uint32_t next = first_live(env, finger, self);

        if (first)
            env_connect(env, finger);
        beat_to(env, peers, finger); /* if dead, it may come back */
        if (next == finger)
            continue;
        if (next != self && !env_reaches(env, next))
            env_connect(env, next);
        beat_to(env, peers, next);
    }
}
