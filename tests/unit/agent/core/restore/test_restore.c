/*
 * tests/unit/agent/core/restore/test_restore.c - a coordinator among agents that answer with the
 * product's code (answer.c, membership.c), while repairs are played: a target has its part as soon
 * as it is told to. Agents die, stop answering, come back, forget, refuse; the checks are the
 * record that all activate, what the operator reads, and that every restore ends in time.
 *
 * Five agents in groups of five with m = 2, agent 4 a spare by default. Time goes
 * in steps of 100 ms.
 */
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

static struct env
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

static struct part *
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

static void
forget_parts(uint32_t a)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        cairn_roster_drop(agents[a].parts.list[i].roster);
    memset(&agents[a].parts, 0, sizeof agents[a].parts);
}

/* Puts what an agent does into the mail. */
static void
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

static struct inventory_self
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
static void
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

static void
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

static void
deliver_all(void)
{
    while (letter_head < letter_tail) {
        struct letter letter = letters[letter_head++ % LETTERS_MAX];

        deliver(&letter.message);
        free(letter.bytes);
    }
}

static void
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

static void
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
static uint64_t
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

static void
begin_request(uint32_t a, const struct restore_request *request)
{
    struct env env = env_of(a);

    replied = false;
    claims_sent = rebuilds_sent = compared = 0;
    assert_int_equal(restore_start(&env, &agents[a].restore, request), CAIRN_OK);
    collect(a, &env);
}

static void
begin(uint32_t a, enum cairn_operation operation, bool by_itself)
{
    const struct restore_request request = {.op = {.operation = operation, .request = 77},
                                            .by_itself = by_itself};

    begin_request(a, &request);
}

static const struct cairn_outcome *
outcome_of(uint32_t a)
{
    return &agents[a].restore.outcome;
}

static void
copy_record(const struct record *record, struct record *out)
{
    uint8_t *bytes = NULL;
    size_t len = 0;

    assert_int_equal(record_pack(record, &bytes, &len), CAIRN_OK);
    assert_int_equal(record_read(bytes, len, out), CAIRN_OK);
    free(bytes);
}

static void
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
static void
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
static void
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

static int
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
static void
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

static void
an_operator_restores(void **unused)
{
    start(true);
    begin(1, CAIRN_OP_RESTORE, false);
    assert_int_equal(run(1), 0); /* nothing is waited for */
    assert_true(replied);
    assert_int_equal(outcome_of(1)->err, CAIRN_OK);
    assert_int_equal(outcome_of(1)->request, 77);
    assert_int_equal(outcome_of(1)->epoch, 0x20001);
    assert_int_equal(outcome_of(1)->lost_members, 0);
    assert_int_equal(rebuilds_sent, 0);
    assert_string_equal(outcome_of(1)->text, "epoch 1 step 10: chosen as the newest; all 4 "
                                             "members' parts are in memory\n");
    assert_epoch(0x20001, g1, true);
    for (uint32_t m = 0; m < 4; m++)
        assert_int_equal(agents[0].membership.record.holders[m], m);
}

/* The newest is in memory. Its files are older than the epoch, and so are those of later
 * generations. */
static void
an_operator_goes_back_to_files(void **unused)
{
    const struct cairn_generation_id files = {.epoch = 0x10000, .step = 4};
    struct restore_request request = {.op = {.operation = CAIRN_OP_RESTORE,
                                             .request = 77,
                                             .wanted = {.epoch = 1, .step = 4},
                                             .wanted_spilled = files}};

    start(true);
    begin_request(1, &request);
    (void)run(1);
    assert_true(replied);
    assert_int_equal(outcome_of(1)->err, CAIRN_OK);
    assert_int_equal(rebuilds_sent, 0);
    assert_epoch(0x20001, files, true);
    for (uint32_t a = 0; a < AGENTS; a++)
        assert_true(agents[a].membership.record.ready_from_files);
    request.op.wanted = (struct cairn_generation_id){.epoch = 1, .step = 5};
    request.op.wanted_spilled = (struct cairn_generation_id){0};
    begin_request(2, &request); /* nobody has that: nothing changes */
    (void)run(2);
    assert_int_equal(outcome_of(2)->err, CAIRN_LOST);
    assert_epoch(0x20001, files, true);
}

static void
a_dead_member_is_replaced(void **unused)
{
    start(true);
    kill_agent(2);
    begin(0, CAIRN_OP_RESTORE, false);
    assert_true(run(0) <= 10000); /* it may be alive for three times dead_after */
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(outcome_of(0)->lost_members, 1);
    assert_int_equal(outcome_of(0)->rebuilt_blocks, 7);
    assert_non_null(strstr(outcome_of(0)->text, "no answer from agents 2\n"));
    assert_epoch(0x20000, g1, true);
    assert_int_equal(agents[0].membership.record.holders[2], 4); /* the spare */
    assert_int_equal(agents[0].membership.record.roster->members[2].agent, 4);
    assert_int_equal(agents[0].membership.record.seen[2].incarnation, 0);
}

/* By itself: the same members, the dead one too, and trainers go on. */
static void
a_repair_keeps_everything(void **unused)
{
    start(true);
    kill_agent(2);
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_false(replied);
    assert_epoch(0x20000, g1, false);
    assert_int_equal(agents[0].membership.record.holders[2], 4);
    assert_int_equal(agents[0].membership.record.roster->members[2].agent, 2);
    revive(2); /* it still has its part and learns the epoch */
    deliver_all();
    assert_epoch(0x20000, g1, false);
    begin(2, CAIRN_OP_RESTORE, true);
    assert_int_equal(run(2), 0);
    assert_int_equal(outcome_of(2)->lost_members, 0);
    assert_int_equal(agents[0].membership.record.holders[2], 2); /* its own agent again */
}

/* A blank agent repairs itself: the part comes back to it. */
static void
a_blank_agent_comes_back(void **unused)
{
    start(false);
    forget_parts(3);
    agents[3].membership.blank = true;
    agents[3].membership.self_member = UINT32_MAX;
    begin(3, CAIRN_OP_RESTORE, true);
    assert_int_equal(run(3), 0); /* everyone answers */
    assert_epoch(0x20003, g1, false);
    assert_int_equal(agents[3].membership.self_member, 3);
    assert_int_equal(agents[0].membership.record.holders[3], 3);
}

static void
the_first_epoch(void **unused)
{
    start_new();
    begin(0, CAIRN_OP_RESTORE, true);
    assert_int_equal(run(0), 0);
    assert_epoch(0x10000, (struct cairn_generation_id){0}, false);
    assert_int_equal(agents[0].membership.record.roster->member_count, 4);
    done(NULL);
    start_new(); /* two have not started: they may hold what the others have forgotten */
    kill_agent(2);
    kill_agent(4);
    begin(0, CAIRN_OP_RESTORE, true);
    assert_in_range(run(0), 2900, 10000);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(agents[0].membership.promised, 0);
    begin(0, CAIRN_OP_FRESH, false); /* an operator gives that up */
    assert_in_range(run(0), 2900, 20000);
    assert_epoch(0x10000, (struct cairn_generation_id){0}, true);
    assert_int_equal(agents[0].membership.record.roster->member_count, 3);
    done(NULL);
    start_new(); /* again, but silent agents may be in an epoch that the others forgot */
    kill_agent(2);
    kill_agent(4);
    agents[0].options.incarnation = 7 * (uint64_t)CAIRN_INCARNATION_STEP;
    begin(0, CAIRN_OP_FRESH, false);
    (void)run(0);
    assert_epoch(0x70000, (struct cairn_generation_id){0}, true);
    done(NULL);
    start_new(); /* no majority */
    kill_agent(2);
    kill_agent(3);
    kill_agent(4);
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
}

/* An agent that forgot its promises may promise only if enough others remember and have met it. */
static void
forgotten_promises(void **unused)
{
    start(false);
    for (uint32_t a = 3; a < AGENTS; a++)
        agents[a].membership.knows = false;
    agents[4].options.incarnation = 9; /* unknown to all others */
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_epoch(0x20000, g1, false);
    for (uint32_t a = 0; a < 4; a++)
        assert_true(agents[a].peers.list[4].incarnation == 9);
    for (uint32_t a = 0; a < AGENTS; a++)
        assert_true(agents[a].membership.knows);
    done(NULL);
    start(false); /* two remember, two forgot, one is silent: nobody can tell */
    for (uint32_t a = 3; a < AGENTS; a++)
        agents[a].membership.knows = false;
    kill_agent(2);
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
    assert_non_null(strstr(outcome_of(0)->text, "only 2 of the job's 5 agents can promise"));
}

static void
promise_elsewhere_1(void)
{
    agents[1].membership.promised = 0x90003;
}

/* An agent that forgot its promises coordinates its own repair, and one of those that remember
 * refuses: it may have promised, with what the coordinator forgot, another epoch. So the
 * coordinator's own promise proves nothing, and it is missing from the next majority. */
static void
a_promise_alone_proves_nothing(void **unused)
{
    start(false);
    agents[4].membership.knows = false;
    hook_kind = CAIRN_MSG_CLAIM;
    hook = promise_elsewhere_1;
    begin(4, CAIRN_OP_RESTORE, true);
    (void)run(4);
    assert_int_equal(outcome_of(4)->err, CAIRN_AGAIN);
    assert_int_equal(agents[4].membership.promised, 0x20004);
    assert_false(agents[4].membership.knows);
    kill_agent(1);
    kill_agent(2);
    claims_sent = 0;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
    assert_non_null(strstr(outcome_of(0)->text, "only 2 of the job's 5 agents can promise"));
}

/* A wedged agent delays a restore by one deadline, and is named. */
static void
wedged(void **unused)
{
    start(true);
    agents[3].wedged = true;
    begin(0, CAIRN_OP_RESTORE, false);
    assert_true(run(0) <= 10000);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_non_null(strstr(outcome_of(0)->text, "no answer from agents 3\n"));
    assert_epoch(0x20000, g1, true);
    assert_int_equal(agents[0].membership.record.holders[3], 4);
}

static void
wedge_3(void)
{
    agents[3].wedged = true;
}

/* The same in the middle: at the claim, and at the comparison. */
static void
wedged_later(void **unused)
{
    static const enum cairn_message_kind kinds[3] = {CAIRN_MSG_CLAIM, CAIRN_MSG_REBUILT,
                                                     CAIRN_MSG_INVENTORY};

    for (uint32_t i = 0; i < 3; i++) {
        start(true);
        if (i == 1)
            forget_parts(2);
        hook_kind = kinds[i];
        hook = wedge_3;
        begin(0, CAIRN_OP_RESTORE, false);
        assert_true(run(0) <= 35000);
        assert_int_equal(outcome_of(0)->err, CAIRN_OK);
        assert_int_equal(agents[0].membership.record.holders[3], 4);
        assert_int_equal(agents[0].membership.record.seen[3].incarnation, 0);
        if (i < 2)
            done(NULL);
    }
}

static void
kill_3(void)
{
    kill_agent(3);
}

static void
deaths_on_the_way(void **unused)
{
    static const enum cairn_message_kind kinds[] = {CAIRN_MSG_ASK,     CAIRN_MSG_INVENTORY,
                                                    CAIRN_MSG_REBUILD, CAIRN_MSG_REBUILT,
                                                    CAIRN_MSG_CLAIM,   CAIRN_MSG_PROMISE};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        start(false);
        forget_parts(4);
        hook_kind = kinds[i];
        hook = kill_3;
        begin(0, CAIRN_OP_RESTORE, false);
        assert_true(run(0) <= 30000);
        assert_null(hook);
        assert_int_equal(outcome_of(0)->err, CAIRN_OK);
        assert_true(cairn_generation_is(agents[0].membership.record.ready, g1));
        assert_int_equal(agents[0].membership.record.seen[3].incarnation, 0);
        done(NULL);
    }
    start(true);
}

static void
commit_g2(void)
{
    for (uint32_t a = 0; a < 4; a++) {
        hold(a, g2, a);
        agents[a].membership.committed = g2;
    }
}

/* R9: what was completed after the last inventories makes the agents refuse; an operator's restore
 * tries again and finds it, one by itself ends. */
static void
a_commit_overtakes(void **unused)
{
    start(true);
    hook_kind = CAIRN_MSG_CLAIM;
    hook = commit_g2;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_true(cairn_generation_is(agents[0].membership.record.ready, g2));
    done(NULL);
    start(true);
    hook_kind = CAIRN_MSG_CLAIM;
    hook = commit_g2;
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(agents[0].membership.record.epoch, 0x10000);
}

/* Two coordinators: both end, and all agents are in one epoch. */
static void
two_coordinators(void **unused)
{
    start(true);
    begin(0, CAIRN_OP_RESTORE, false);
    begin(1, CAIRN_OP_RESTORE, false);
    (void)run(0);
    (void)run(1);
    assert_true(outcome_of(0)->err == CAIRN_OK || outcome_of(1)->err == CAIRN_OK);
    assert_epoch(agents[2].membership.record.epoch, g1, true);
}

/* Agent 4 is asked for a restore, stands still while agent 0 forms an epoch, and goes on. */
static void
restore_late(bool by_itself)
{
    struct env env;

    start(true);
    begin(4, CAIRN_OP_RESTORE, false);
    agents[4].wedged = true;
    begin(0, CAIRN_OP_RESTORE, by_itself);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_epoch(0x20000, g1, !by_itself);
    agents[4].wedged = false;
    env = env_of(0);
    membership_send_activate(&env, 4);
    collect(0, &env);
    (void)run(4);
    assert_true(replied);
}

/* The request is older than trainers that began with another restore: it ends, and they go on. A
 * repair has started none: the restore tries again. */
static void
an_old_request(void **unused)
{
    restore_late(false);
    assert_int_equal(outcome_of(4)->err, CAIRN_AGAIN);
    assert_int_equal(outcome_of(4)->request, 77);
    assert_epoch(0x20000, g1, true);
    done(unused);
    restore_late(true);
    assert_int_equal(outcome_of(4)->err, CAIRN_OK);
    assert_epoch(0x30004, g1, true);
}

/* By itself nothing goes back while somebody is silent who may know more. */
static void
no_way_back(void **unused)
{
    start(true); /* g2 is committed; 0 has lost it, 1 and 2 are silent */
    commit_g2();
    forget_parts(0);
    hold(0, g1, 0);
    hold(4, g1, 1);
    agents[0].membership.blank = true;
    kill_agent(1);
    kill_agent(2);
    begin(3, CAIRN_OP_RESTORE, true);
    (void)run(3);
    assert_int_equal(outcome_of(3)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
    begin(3, CAIRN_OP_RESTORE, false); /* an operator may */
    (void)run(3);
    assert_int_equal(outcome_of(3)->err, CAIRN_OK);
    assert_epoch(0x20003, g1, true);
}

/* Members that forgot everything prove nothing: the silent members may know of a commit. */
static void
no_witness(void **unused)
{
    start(true);
    for (uint32_t a = 0; a < 2; a++) {
        forget_parts(a);
        hold(4, g1, a); /* k parts on a spare, from before the commit of g2 */
        agents[a].membership.blank = true;
        agents[a].membership.committed = (struct cairn_generation_id){0};
    }
    kill_agent(2);
    kill_agent(3);
    agents[4].membership.committed = (struct cairn_generation_id){0};
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
}

/* An operator began with nothing: no repair brings back what older epochs held. */
static void
what_was_given_up_stays_so(void **unused)
{
    static const struct cairn_generation_id old = {.epoch = 0xffff, .run = 1, .step = 90};

    start(true);
    for (uint32_t a = 0; a < 4; a++) {
        forget_parts(a);
        hold(a, old, a);
        agents[a].membership.committed = (struct cairn_generation_id){0};
    }
    begin(1, CAIRN_OP_RESTORE, true);
    (void)run(1);
    assert_epoch(0x20001, (struct cairn_generation_id){0}, false);
    begin(1, CAIRN_OP_RESTORE, false); /* an operator can, for as long as it is held */
    (void)run(1);
    assert_epoch(0x30001, old, true);
}

static void
lose_memory_of_4(void)
{
    forget_parts(4);
    agents[4].parts.version = 50;
}

/* A target forgets its part before the claim: the record never names it. */
static void
the_target_fails(void **unused)
{
    start(true);
    kill_agent(2);
    hook_kind = CAIRN_MSG_REBUILT;
    hook = lose_memory_of_4;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(agents[0].membership.record.holders[2], 4);
    assert_non_null(parts_find(&agents[4].parts, g1, 2));
}

/* An operator starts an agent that is taken for dead, and restores at once. */
static void
a_newcomer(void **unused)
{
    start(true);
    kill_agent(3);
    for (uint32_t a = 0; a < 3; a++)
        agents[a].peers.list[3].dead_ns = 1;
    begin(0, CAIRN_OP_RESTORE, false);
    deliver_all();
    assert_false(restore_is_idle(&agents[0].restore));
    revive(3);
    assert_int_equal(run(0), 0);
    assert_int_equal(outcome_of(0)->lost_members, 0);
    assert_epoch(0x20000, g1, true);
}

/* A generation that was in flight when a member died does not delay. */
static void
in_flight(void **unused)
{
    start(true);
    hold(0, g2, 0);
    kill_agent(3);
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_epoch(0x20000, g1, false);
}

static void
damaged_beyond_repair(void **unused)
{
    start(true);
    for (uint32_t a = 0; a < 3; a++)
        hold(a, g2, a);
    agents[3].breaks = true;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_non_null(strstr(outcome_of(0)->text, "step 20: not restorable: damaged beyond repair"));
    assert_epoch(0x20000, g1, true);
}

static void
complete_late(void)
{
    agents[3].breaks = false;
    hold(3, g2, 3);
}

static void
complete_after_the_next_list(void)
{
    hook_kind = CAIRN_MSG_INVENTORY;
    hook = complete_late;
}

/* A generation that was damaged beyond repair is not, once another part of it is complete: one that
 * an earlier plan has rebuilt may end late, and then the generation may be committed. */
static void
a_part_that_is_completed_late_counts(void **unused)
{
    start(true);
    for (uint32_t a = 0; a < 3; a++)
        hold(a, g2, a);
    agents[3].breaks = true;
    hook_kind = CAIRN_MSG_REBUILD;
    hook = complete_after_the_next_list;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_epoch(0x20000, g2, true);
}

static void
no_memory_at_the_target(void **unused)
{
    start(true);
    forget_parts(2);
    agents[2].no_memory = true;
    begin(0, CAIRN_OP_RESTORE, false);
    assert_int_equal(run(0), 0);
    assert_int_equal(agents[0].membership.record.holders[2], 4);
    done(NULL);
    start(true);
    forget_parts(2);
    agents[2].stuck = true;
    begin(0, CAIRN_OP_RESTORE, false);
    assert_in_range(run(0), 19000, 21000); /* one deadline */
    assert_int_equal(agents[0].membership.record.holders[2], 4);
}

static void
damage_part_0(void)
{
    static const struct cairn_bad_block bad = {.area = CAIRN_AREA_DATA, .block = 3};
    struct part *part = &agents[0].parts.list[0];

    part->checked.bad = malloc(sizeof bad);
    assert_non_null(part->checked.bad);
    *part->checked.bad = bad;
    part->checked.bad_count = 1;
}

static void
find_part_2(void)
{
    hold(2, g1, 2);
}

/* Part 2 is lost, and something happens when the first message of a kind arrives. */
static void
restore_part_2(enum cairn_message_kind kind, void (*before)(void))
{
    start(true);
    forget_parts(2);
    hook_kind = kind;
    hook = before;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_epoch(0x20000, g1, true);
}

static void
fail_at_2(void)
{
    agents[2].no_memory = true;
}

/* The repair compares what it reads, so holders need not. After a failure, or if it turns out that
 * other parts are lost or damaged, they compare all. */
static void
what_a_repair_reads_is_left_out(void **unused)
{
    static const struct {
        enum cairn_message_kind kind;
        void (*before)(void);
    } cases[] = {{CAIRN_MSG_REBUILD, fail_at_2},
                 {CAIRN_MSG_INVENTORY, find_part_2},
                 {CAIRN_MSG_INVENTORY, damage_part_0}};

    restore_part_2(CAIRN_MSG_ASK, NULL);
    assert_int_equal(compared, 1);
    assert_int_equal(left_out[0], 1u << 2);
    done(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        restore_part_2(cases[i].kind, cases[i].before);
        assert_int_equal(compared, 2);
        assert_int_equal(left_out[0], 1u << 2);
        assert_int_equal(left_out[1], 0);
        free(agents[0].parts.list[0].checked.bad);
        done(NULL);
    }
    restore_part_2(CAIRN_MSG_ASK, damage_part_0); /* known before anything is compared */
    assert_int_equal(compared, 1);
    assert_int_equal(left_out[0], 0);
    free(agents[0].parts.list[0].checked.bad);
}

static void
too_much_is_lost(void **unused)
{
    start(true);
    for (uint32_t a = 0; a < 3; a++)
        forget_parts(a);
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_LOST);
    assert_non_null(strstr(outcome_of(0)->text, "group 0 has lost 3 of its 4 nodes (0, 1, 2)"));
    assert_int_equal(claims_sent, 0);
    kill_agent(1);
    kill_agent(2);
    kill_agent(4);
    begin(0, CAIRN_OP_RESTORE, false); /* from a few agents nobody can tell */
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_non_null(strstr(outcome_of(0)->text, "only 2 of the job's 5 agents answered"));
    assert_non_null(strstr(outcome_of(0)->text, "no answer from agents 1, 2, 4\n"));
}

static void
dry_run_and_fresh(void **unused)
{
    start(true);
    begin(0, CAIRN_OP_DRY_RUN, false);
    assert_int_equal(run(0), 0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(outcome_of(0)->generation.step, 10);
    assert_int_equal(claims_sent, 0);
    begin(0, CAIRN_OP_FRESH, false);
    assert_int_equal(run(0), 0);
    assert_epoch(0x20000, (struct cairn_generation_id){0}, true);
    assert_null(agents[0].membership.record.ready_roster);
}

static void
verify(void **unused)
{
    static struct cairn_bad_block bad = {.area = CAIRN_AREA_DATA, .block = 3};
    struct part *part;

    start(true);
    hold(0, g2, 0); /* in flight: not looked at */
    begin(1, CAIRN_OP_VERIFY, false);
    assert_int_equal(run(1), 0);
    assert_int_equal(outcome_of(1)->err, CAIRN_OK);
    assert_int_equal(outcome_of(1)->generation.step, 10);
    assert_int_equal(outcome_of(1)->lost_members, 0);
    assert_int_equal(outcome_of(1)->bad_blocks, 0);
    part = parts_find(&agents[2].parts, g1, 2);
    part->checked.bad = &bad;
    part->checked.bad_count = 1;
    begin(1, CAIRN_OP_VERIFY, false);
    assert_int_equal(run(1), 0);
    assert_int_equal(outcome_of(1)->err, CAIRN_OK);
    assert_int_equal(outcome_of(1)->bad_blocks, 1);
    assert_int_equal(outcome_of(1)->repaired_blocks, 7);
    assert_int_equal(claims_sent, 0);
    assert_epoch(0x10000, (struct cairn_generation_id){0}, false); /* the record is as it was */
}

static void
fleet(void **unused)
{
    static const uint8_t text[] = "nodes: 5";
    const struct restore_request request = {
        .op = {
            .operation = CAIRN_OP_FLEET, .request = 77, .fleet = text, .fleet_len = sizeof text}};

    start(true);
    begin_request(2, &request);
    (void)run(2);
    assert_true(replied);
    assert_epoch(0x20002, g1, false);
    for (uint32_t a = 0; a < AGENTS; a++)
        assert_string_equal((const char *)agents[a].membership.record.fleet, "nodes: 5");
    begin(0, CAIRN_OP_RESTORE, false); /* it stays */
    (void)run(0);
    assert_string_equal((const char *)agents[1].membership.record.fleet, "nodes: 5");
}

static void
join(void **unused)
{
    const struct restore_request request = {
        .op = {.operation = CAIRN_OP_RESTORE}, .by_itself = true, .joining = true};

    start(true); /* the spare has trainers */
    begin_request(0, &request);
    assert_int_equal(run(0), 0);
    assert_epoch(0x20000, g1, false);
    assert_int_equal(agents[0].membership.record.roster->member_count, 5);
    assert_int_equal(agents[4].membership.self_member, 4);
    begin_request(0, &request); /* nobody is late any more */
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(agents[0].membership.record.epoch, 0x20000);
}

/* An inventory that names an absurd epoch is not believed. */
static void
absurd(void **unused)
{
    start(true);
    agents[3].membership.promised = UINT64_MAX;
    begin(0, CAIRN_OP_RESTORE, false);
    assert_true(run(0) <= 10000);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(agents[0].membership.record.epoch, 0x20000);
}

/* This agent stands still for a minute: no agent is given up for that. */
static void
stands_still(void **unused)
{
    start(true);
    begin(0, CAIRN_OP_RESTORE, false);
    now_ns += 60000 * ms;
    restore_stood_still(&agents[0].restore, 60000 * ms);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(outcome_of(0)->lost_members, 0);
}

#define CASE(name) cmocka_unit_test_teardown(name, done)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(an_operator_restores),
        CASE(an_operator_goes_back_to_files),
        CASE(a_dead_member_is_replaced),
        CASE(a_repair_keeps_everything),
        CASE(a_blank_agent_comes_back),
        CASE(the_first_epoch),
        CASE(forgotten_promises),
        CASE(a_promise_alone_proves_nothing),
        CASE(wedged),
        CASE(wedged_later),
        CASE(deaths_on_the_way),
        CASE(a_commit_overtakes),
        CASE(two_coordinators),
        CASE(an_old_request),
        CASE(no_way_back),
        CASE(no_witness),
        CASE(what_was_given_up_stays_so),
        CASE(the_target_fails),
        CASE(a_newcomer),
        CASE(in_flight),
        CASE(damaged_beyond_repair),
        CASE(a_part_that_is_completed_late_counts),
        CASE(no_memory_at_the_target),
        CASE(what_a_repair_reads_is_left_out),
        CASE(too_much_is_lost),
        CASE(dry_run_and_fresh),
        CASE(verify),
        CASE(fleet),
        CASE(join),
        CASE(absurd),
        CASE(stands_still),
    };

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
