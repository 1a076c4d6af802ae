/*
 * tests/unit/agent/core/restore/coordinating.h - a coordinator among agents that answer with the
 * product's code (answer.c, membership.c), while repairs are played: a target has its part as soon
 * as it is told to. Agents die, fall silent, come back, forget and refuse. Tests check which record
 * all activate, what the operator reads, and that every restore ends in time.
 *
 * Five agents in groups of five with m = 2, agent 4 a spare by default. Time goes
 * in steps of 100 ms.
 */
#ifndef COORDINATING_H
#define COORDINATING_H

#include "agent/core/restore/answer.h"
#include "agent/core/restore/restore.h"
#include "base/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/quiet_log.h"

#include <stdlib.h>
#include <string.h>

enum { AGENTS = 5, LETTERS_MAX = 4096 };

static const uint64_t ms = 1000000;

struct agent {
    struct cairn_core_options options;
    struct peers peers;
    struct membership membership;
    struct parts parts;
    struct answering answering;
    struct restore restore;
    struct cairn_actions actions;
    uint64_t requests;
    bool dead;
    bool wedged;    /* beats, and answers nothing */
    bool breaks;    /* its rebuilds fail: it proves damage */
    bool no_memory; /* it cannot take parts */
    bool stuck;     /* its rebuilds make no progress */
};

struct letter {
    struct cairn_message message;
    uint8_t *bytes;
};

static struct agent agents[AGENTS];
static struct letter letters[LETTERS_MAX];
static size_t letter_head, letter_tail;
static uint64_t now_ns;
static bool replied;
static uint32_t claims_sent, rebuilds_sent;
static uint64_t left_out[8]; /* what ASK(VERIFY) to agent 0 calls lost, ask by ask */
static uint32_t compared;
static bool spares[AGENTS];
/* Called when a message of this kind is about to be delivered. */
static enum cairn_message_kind hook_kind;
static void (*hook)(void);

static const struct cairn_generation_id g1 = {.epoch = 0x10000, .run = 3, .step = 10};
static const struct cairn_generation_id g2 = {.epoch = 0x10000, .run = 3, .step = 20};

static const struct cairn_decision no_decision;

static inline struct env
env_of(uint32_t a)
{
    return (struct env){.options = &agents[a].options,
                        .membership = &agents[a].membership,
                        .peers = &agents[a].peers,
                        .decision = &no_decision,
                        .parts = &agents[a].parts,
                        .now_ns = now_ns,
                        .actions = &agents[a].actions,
                        .next_request = agents[a].requests};
}

static inline struct part *
hold(uint32_t a, struct cairn_generation_id generation, uint32_t member)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct part *part = &agents[a].parts.list[i];

        if (part->state != CAIRN_PART_FREE)
            continue;
        memset(part, 0, sizeof *part);
        part->state = CAIRN_PART_COMPLETE;
        part->generation = generation;
        part->member = member;
        part->roster = cairn_roster_hold(agents[a].membership.record.roster);
        agents[a].parts.version++;
        return part;
    }
    fail();
    return NULL;
}

static inline void
forget_parts(uint32_t a)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        cairn_roster_drop(agents[a].parts.list[i].roster);
    memset(&agents[a].parts, 0, sizeof agents[a].parts);
}

/* Puts what an agent does into the mail. */
static inline void
collect(uint32_t a, struct env *env)
{
    struct cairn_actions *actions = &agents[a].actions;

    agents[a].requests = env->next_request;
    assert_false(actions->failed);
    for (size_t i = 0; i < actions->count; i++) {
        const struct cairn_action *action = &actions->list[i];
        struct letter *letter = &letters[letter_tail % LETTERS_MAX];

        replied |= action->type == CAIRN_ACTION_REPLY;
        if (action->type != CAIRN_ACTION_SEND)
            continue;
        claims_sent += action->as.send.message.kind == CAIRN_MSG_CLAIM;
        rebuilds_sent += action->as.send.message.kind == CAIRN_MSG_REBUILD;
        if (action->as.send.message.kind == CAIRN_MSG_ASK && action->as.send.message.to == 0 &&
            action->as.send.message.as.ask.mode == CAIRN_ASK_VERIFY)
            left_out[compared++ % 8] = action->as.send.message.as.ask.lost;
        letter->message = action->as.send.message;
        letter->bytes = malloc(letter->message.bytes_len + 1);
        assert_non_null(letter->bytes);
        if (letter->message.bytes_len)
            memcpy(letter->bytes, letter->message.bytes, letter->message.bytes_len);
        letter->message.bytes = letter->bytes;
        letter_tail++;
        assert_true(letter_tail - letter_head < LETTERS_MAX);
    }
    cairn_actions_clear(actions);
}

static inline struct inventory_self
self_of(uint32_t a)
{
    const struct membership *membership = &agents[a].membership;

    return (struct inventory_self){.incarnation = agents[a].options.incarnation,
                                   .promised = membership->promised,
                                   .active = membership->record.epoch,
                                   .blank = membership->blank,
                                   .knows = membership->knows,
                                   .ready = membership_ready(membership),
                                   .ranks = 1,
                                   .promised_roster = membership->promised_roster};
}

/* Plays the repair: a target has the part at once. */
static inline void
rebuild(uint32_t a, const struct cairn_message *message)
{
    struct env env = env_of(a);
    struct cairn_message answer = env_message(&env, CAIRN_MSG_REBUILT, message->epoch);
    struct plan plan = {0};

    assert_int_equal(plan_read(message->bytes, message->bytes_len, AGENTS, &plan), CAIRN_OK);
    answer.as.rebuilt.attempt = message->as.rebuild.attempt;
    for (uint32_t m = 0; m < plan.roster->member_count && !agents[a].stuck; m++) {
        if (plan.targets[m] != a)
            continue;
        answer.as.rebuilt.member = m;
        answer.as.rebuilt.finished = 1;
        answer.as.rebuilt.blocks = 7;
        if (agents[a].no_memory || agents[a].breaks) {
            answer.as.rebuilt.finished = 0;
            answer.as.rebuilt.proved = agents[a].breaks;
            answer.as.rebuilt.err = agents[a].breaks ? CAIRN_LOST : CAIRN_NOMEM;
        } else if (plan.holders[m] != a) {
            hold(a, message->as.rebuild.generation, m);
        }
        env_send(&env, message->from, &answer);
    }
    plan_fini(&plan);
    collect(a, &env);
}

static inline void
deliver(const struct cairn_message *message)
{
    uint32_t a = message->to;
    struct agent *agent = &agents[a];
    struct env env = env_of(a);
    struct inventory_self self = self_of(a);
    bool knew;

    if (hook && message->kind == hook_kind) {
        void (*now)(void) = hook;

        hook = NULL;
        now();
    }
    if (agent->dead || agent->wedged || agents[message->from].dead)
        return;
    switch (message->kind) {
    case CAIRN_MSG_ASK:
        assert_int_equal(message->bytes_len, 0); /* a long one might be overtaken by RELEASE */
        answer_ask(&env, &agent->answering, &self, message);
        for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
            agent->parts.list[i].checked.request = 0; /* compared at once */
        answer_progress(&env, &agent->answering, &self);
        break;
    case CAIRN_MSG_CLAIM: /* R1: the claimant itself has stored the number */
        assert_true(message->from == a ||
                    agents[message->from].membership.promised == message->epoch);
        knew = agent->membership.knows;
        (void)membership_claim(&env, &agent->membership, &agent->peers, agent->parts.version,
                               message);
        assert_int_equal(agent->membership.knows, knew); /* R10: not before the epoch begins */
        break;
    case CAIRN_MSG_ACTIVATE:
        if (membership_activate(&env, &agent->membership, message) == ACTIVATION_NONE)
            break;
        answer_unpin(&env, &agent->answering);
        restore_activated(&env, &agent->restore);
        break;
    case CAIRN_MSG_REBUILD:
        rebuild(a, message);
        return;
    default:
        restore_message(&env, &agent->restore, message);
        break;
    }
    collect(a, &env);
}

static inline void
deliver_all(void)
{
    while (letter_head < letter_tail) {
        struct letter letter = letters[letter_head++ % LETTERS_MAX];

        deliver(&letter.message);
        free(letter.bytes);
    }
}

static inline void
kill_agent(uint32_t a)
{
    agents[a].dead = true;
    for (uint32_t b = 0; b < AGENTS; b++) {
        struct env env = env_of(b);

        if (b == a)
            continue;
        peers_down(&agents[b].peers, a);
        answer_end(&env, &agents[b].answering, a);
        restore_peer_down(&env, &agents[b].restore, a);
        collect(b, &env);
    }
}

static inline void
revive(uint32_t a)
{
    agents[a].dead = false;
    agents[a].options.incarnation++;
    for (uint32_t b = 0; b < AGENTS; b++) {
        struct env env = env_of(b);

        if (b == a || agents[b].dead)
            continue;
        peers_up(&env, &agents[b].peers, a, agents[a].options.incarnation);
        if (agents[b].membership.record.epoch > agents[a].membership.record.epoch)
            membership_send_activate(&env, a);
        restore_peer_up(&env, &agents[b].restore, a);
        collect(b, &env);
    }
}

/* Lets time pass until the restore of an agent has ended; returns the milliseconds. */
static inline uint64_t
run(uint32_t a)
{
    uint64_t start_ns = now_ns;

    deliver_all();
    while (!restore_is_idle(&agents[a].restore)) {
        struct env env;

        now_ns += 100 * ms;
        assert_true(now_ns - start_ns < 200000 * ms);
        for (uint32_t b = 0; b < AGENTS; b++) /* who lives beats */
            for (uint32_t c = 0; c < AGENTS; c++) {
                struct peer *peer = &agents[b].peers.list[c];

                if (!agents[c].dead)
                    *peer = (struct peer){.incarnation = agents[c].options.incarnation,
                                          .heard_ns = now_ns};
                else if (now_ns - peer->heard_ns > 3000 * ms && peer->dead_ns == 0)
                    peer->dead_ns = now_ns;
            }
        env = env_of(a);
        restore_tick(&env, &agents[a].restore);
        collect(a, &env);
        deliver_all();
    }
    deliver_all();
    return (now_ns - start_ns) / ms;
}

static inline void
begin_request(uint32_t a, const struct restore_request *request)
{
    struct env env = env_of(a);

    replied = false;
    claims_sent = rebuilds_sent = compared = 0;
    assert_int_equal(restore_start(&env, &agents[a].restore, request), CAIRN_OK);
    collect(a, &env);
}

static inline void
begin(uint32_t a, enum cairn_operation operation, bool by_itself)
{
    const struct restore_request request = {.op = {.operation = operation, .request = 77},
                                            .by_itself = by_itself};

    begin_request(a, &request);
}

static inline const struct cairn_outcome *
outcome_of(uint32_t a)
{
    return &agents[a].restore.outcome;
}

static inline void
copy_record(const struct record *record, struct record *out)
{
    uint8_t *bytes = NULL;
    size_t len = 0;

    assert_int_equal(record_pack(record, &bytes, &len), CAIRN_OK);
    assert_int_equal(record_read(bytes, len, out), CAIRN_OK);
    free(bytes);
}

static inline void
make(uint32_t a, const struct record *record)
{
    struct agent *agent = &agents[a];

    agent->options = (struct cairn_core_options){.self = a,
                                                 .agent_count = AGENTS,
                                                 .spares = spares,
                                                 .parity = 2,
                                                 .group_size = 5,
                                                 .slots = 2,
                                                 .slot_blocks = 64,
                                                 .parity_blocks = 64,
                                                 .incarnation = 1,
                                                 .heartbeat_interval_ns = 500 * ms,
                                                 .dead_after_ns = 3000 * ms,
                                                 .claim_timeout_ns = 3000 * ms,
                                                 .rebuild_timeout_ns = 20000 * ms};
    assert_int_equal(peers_init(&agent->peers, &agent->options, now_ns), CAIRN_OK);
    assert_int_equal(answer_init(&agent->answering, agent->options.agent_count), CAIRN_OK);
    agent->membership.blank = record == NULL;
    agent->membership.knows = record != NULL;
    agent->membership.self_member = UINT32_MAX;
    if (record) {
        copy_record(record, &agent->membership.record);
        agent->membership.promised = record->epoch;
        agent->membership.self_member = cairn_roster_member_of(record->roster, a);
    }
    agent->requests = 1000 * (a + 1);
}

/* Members 0 to 3 (and 4, unless it is a spare) hold their parts of g1, which is committed. */
static inline void
start(bool with_spare)
{
    static const uint32_t all[AGENTS] = {0, 1, 2, 3, 4};
    struct record_seen seen[AGENTS] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}};
    struct record record = {.epoch = 0x10000, .agent_count = AGENTS, .seen = seen};
    uint32_t members = with_spare ? AGENTS - 1 : AGENTS;

    memset(agents, 0, sizeof agents);
    memset(spares, 0, sizeof spares);
    spares[AGENTS - 1] = with_spare;
    letter_head = letter_tail = 0;
    hook = NULL;
    now_ns = 1000000 * ms;
    assert_int_equal(cairn_roster_build(all, NULL, members, 2, 5, &record.roster), CAIRN_OK);
    for (uint32_t a = 0; a < AGENTS; a++) {
        make(a, &record);
        if (a < members) {
            hold(a, g1, a);
            agents[a].membership.committed = g1;
        }
    }
    cairn_roster_drop(record.roster);
    for (uint32_t a = 0; a < AGENTS; a++)
        for (uint32_t b = 0; b < AGENTS; b++) {
            struct env env = env_of(a);

            if (a != b)
                peers_up(&env, &agents[a].peers, b, 1);
            collect(a, &env);
        }
    letter_head = letter_tail = 0;
}

/* Nobody has an epoch, and nobody knows what it promised. */
static inline void
start_new(void)
{
    start(true);
    for (uint32_t a = 0; a < AGENTS; a++) {
        struct agent *agent = &agents[a];

        forget_parts(a);
        membership_fini(&agent->membership);
        agent->membership.blank = true;
        agent->membership.self_member = UINT32_MAX;
    }
}

static inline int
done(void **unused)
{
    while (letter_head < letter_tail)
        free(letters[letter_head++ % LETTERS_MAX].bytes);
    for (uint32_t a = 0; a < AGENTS; a++) {
        restore_fini(&agents[a].restore);
        forget_parts(a);
        membership_fini(&agents[a].membership);
        answer_fini(&agents[a].answering);
        peers_fini(&agents[a].peers);
        cairn_actions_fini(&agents[a].actions);
    }
    return 0;
}

/* All that live are in the epoch, and no pin is left. */
static inline void
assert_epoch(uint64_t epoch, struct cairn_generation_id ready, bool restarts)
{
    for (uint32_t a = 0; a < AGENTS; a++) {
        const struct record *record = &agents[a].membership.record;

        if (agents[a].dead || agents[a].wedged)
            continue;
        assert_int_equal(record->epoch, epoch);
        assert_int_equal(agents[a].membership.promised, epoch);
        assert_true(cairn_generation_is(record->ready, ready));
        assert_int_equal(record->restart_epoch == epoch, restarts);
        assert_false(agents[a].membership.blank);
        assert_false(agents[a].parts.pinned);
    }
}

/* A newer generation is committed. */
static inline void
commit_g2(void)
{
    for (uint32_t a = 0; a < 4; a++) {
        hold(a, g2, a);
        agents[a].membership.committed = g2;
    }
}

#endif
