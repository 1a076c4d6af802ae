/* agent/core/restore/restore.c - the rounds of a restore; see restore.h. */
#include "agent/core/restore/restore.h"

#include "agent/core/restore/claim.h"
#include "agent/core/restore/judge.h"
#include "agent/core/restore/members.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SILENCE_FACTOR = 3, /* of dead_after: a busy host may delay an agent so long; what it holds is
                         * not rebuilt before */
    DAMAGED_MAX = 2,    /* failures from damaged bytes; more are damage that no checksum shows */
    SILENT_NAMED_MAX = 64
};

static void begin_listing(struct env *env, struct restore *restore);

/* ---- the end ---- */

static void
say(struct restore *restore, const char *text)
{
    text_add(restore->outcome.text, sizeof restore->outcome.text, "%s\n", text);
}

static void
say_silent(struct restore *restore)
{
    uint32_t named = 0;

    for (uint32_t a = 0; a < restore->agent_count && named < SILENT_NAMED_MAX; a++)
        if (!restore->inventories[a].known)
            text_add(restore->outcome.text, sizeof restore->outcome.text, "%s%u",
                     named++ ? ", " : "no answer from agents ", a);
    if (named)
        say(restore, "");
}

static void
clear_plan(struct restore *restore)
{
    plan_fini(&restore->plan);
    free(restore->bytes);
    restore->bytes = NULL;
    restore->len = 0;
}

static void
clear(struct restore *restore)
{
    struct cairn_outcome outcome = restore->outcome;
    uint64_t ended = restore->ended;

    for (uint32_t a = 0; restore->inventories && a < restore->agent_count; a++)
        inventory_fini(&restore->inventories[a]);
    clear_plan(restore);
    choice_clear(&restore->choice);
    cairn_roster_drop(restore->common);
    free(restore->parties);
    free(restore->inventories);
    free(restore->no_room);
    free(restore->fleet);
    memset(restore, 0, sizeof *restore);
    restore->outcome = outcome;
    restore->ended = ended;
}

void
restore_fini(struct restore *restore)
{
    clear(restore);
}

static void
log_repair(const struct cairn_outcome *outcome)
{
    char line[sizeof outcome->text];

    memcpy(line, outcome->text, sizeof line);
    for (char *at = strchr(line, '\n'); at; at = strchr(at, '\n'))
        *at = at[1] ? ';' : '\0';
    CAIRN_LOG_AT(INFO,
                 "repair: ended result=\"%s\" epoch=%" PRIu64 " step=%" PRIu64
                 " rebuilt_blocks=%" PRIu64 " %s",
                 cairn_err_text(outcome->err), outcome->epoch >> EPOCH_CLAIMANT_BITS,
                 outcome->generation.step, outcome->rebuilt_blocks, line);
}

static void
release_pins(struct env *env, struct restore *restore)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_ASK, restore->epoch);

    message.as.ask.mode = CAIRN_ASK_RELEASE;
    for (uint32_t a = 0; a < restore->agent_count; a++)
        env_send(env, a, &message);
}

static void
finish(struct env *env, struct restore *restore, cairn_err err)
{
    struct cairn_outcome *outcome = &restore->outcome;
    bool claimed = !err && restore->state == RESTORE_CLAIMING;

    outcome->err = err;
    outcome->epoch = claimed ? restore->claimed : env->membership->record.epoch;
    if (err || outcome->lost_members > 0)
        say_silent(restore);
    restore->ended++;
    release_pins(env, restore);
    if (restore->request.by_itself)
        log_repair(outcome);
    else
        env_reply(env, outcome->request, err, outcome->generation, outcome->text);
    clear(restore);
}

static void
finish_with(struct env *env, struct restore *restore, cairn_err err, const char *text)
{
    say(restore, text);
    finish(env, restore, err);
}

/* The attempt has failed for a reason that may be gone. */
static void
try_again(struct env *env, struct restore *restore, cairn_err err, const char *text)
{
    if (restore->attempts >= RESTORE_ATTEMPTS_MAX) {
        finish_with(env, restore, err, text);
        return;
    }
    CAIRN_LOG_AT(WARN, "restore: %s; try again", text);
    restore->compares_all = !CAIRN_PLANTED(env, BUG_UNSEEN_AGAIN);
    begin_listing(env, restore);
}

/* Another coordinator or a commit was faster. An operator's restore tries again; one that nobody
 * asked for ends, and the watch finds out if it is still needed. */
static void
overtaken(struct env *env, struct restore *restore, const char *text)
{
    if (restore->request.by_itself)
        finish_with(env, restore, CAIRN_AGAIN, text);
    else
        try_again(env, restore, CAIRN_AGAIN, text);
}

/* ---- rounds ---- */

uint32_t
restore_known(const struct restore *restore)
{
    uint32_t count = 0;

    for (uint32_t a = 0; a < restore->agent_count; a++)
        count += restore->inventories[a].known;
    return count;
}

bool
restore_knows_all(const struct restore *restore)
{
    return restore_known(restore) == restore->agent_count;
}

static bool
verifies(const struct restore *restore)
{
    return restore->request.op.operation == CAIRN_OP_VERIFY;
}

/* True if the answer of an agent is missing. */
static bool
waits_for(const struct restore *restore, uint32_t agent)
{
    return restore->parties[agent].asked && !restore->parties[agent].answered;
}

/* True if an agent may be asked now: this one stores its promise before others hear of the claim
 * (R1). */
static bool
is_its_turn(const struct env *env, const struct restore *restore, uint32_t agent)
{
    return waits_for(restore, agent) &&
           (restore->state != RESTORE_CLAIMING || agent == env->options->self ||
            !waits_for(restore, env->options->self));
}

static void
send(struct env *env, struct restore *restore, uint32_t agent)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_ASK, restore->epoch);

    if (restore->state == RESTORE_CLAIMING) {
        message = env_message(env, CAIRN_MSG_CLAIM, restore->claimed);
        message.as.claim.attempt = restore->number;
    } else if (restore->state == RESTORE_REBUILDING) {
        message.kind = CAIRN_MSG_REBUILD;
        message.as.rebuild =
            (struct cairn_message_rebuild){restore->number, restore->choice.generation};
    } else if (restore->state == RESTORE_PREPARING) {
        message.as.ask =
            (struct cairn_message_ask){restore->number, CAIRN_ASK_VERIFY,
                                       restore->choice.generation, restore->parties[agent].lost};
    } else {
        message.as.ask.attempt = restore->number;
        message.as.ask.mode = verifies(restore) ? CAIRN_ASK_VERIFY_ALL : CAIRN_ASK_LIST;
    }
    message.bytes = restore->bytes;
    message.bytes_len = (uint32_t)restore->len;
    env_connect(env, agent);
    env_send(env, agent, &message);
}

/* Sends to those whose turn it is. */
static void
send_all(struct env *env, struct restore *restore)
{
    for (uint32_t a = 0; a < restore->agent_count; a++)
        if (is_its_turn(env, restore, a))
            send(env, restore, a);
}

/* Begins a round; the caller says who is asked, and sends. */
static void
begin(struct env *env, struct restore *restore, enum restore_state state, uint64_t timeout_ns)
{
    restore->state = state;
    if (state == RESTORE_LISTING || state == RESTORE_PREPARING)
        restore->number = env_request(env);
    restore->deadline_ns = env->now_ns + timeout_ns;
    for (uint32_t a = 0; a < restore->agent_count; a++)
        restore->parties[a].asked = restore->parties[a].answered = false;
}

static bool
waits(const struct restore *restore)
{
    for (uint32_t a = 0; a < restore->agent_count; a++)
        if (waits_for(restore, a))
            return true;
    return false;
}

/* ---- claiming ---- */

static bool
has_majority(struct env *env, struct restore *restore, uint32_t count, const char *what)
{
    uint32_t n = restore->agent_count;
    char text[200];

    if (count > n / 2)
        return true;
    snprintf(text, sizeof text,
             "only %u of the job's %u agents %s, and more than half must; start the missing "
             "agents, or new ones in their place, and try again",
             count, n, what);
    finish_with(env, restore, CAIRN_AGAIN, text);
    return false;
}

static void
begin_claim(struct env *env, struct restore *restore)
{
    char text[256] = "";
    cairn_err err;

    begin(env, restore, RESTORE_CLAIMING, env->options->claim_timeout_ns);
    if (!has_majority(env, restore, claim_ask(env, restore), "can promise a new epoch"))
        return;
    free(restore->bytes);
    restore->bytes = NULL;
    err = claim_pack(env, restore, text, sizeof text);
    if (err) {
        finish_with(env, restore, err, "the members of the new epoch cannot be laid out");
        return;
    }
    if (text[0] != '\0')
        say(restore, text);
    send_all(env, restore);
}

static void
activate(struct env *env, struct restore *restore)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_ACTIVATE, restore->claimed);

    message.as.activate.promised = restore->claimed;
    message.bytes = restore->bytes;
    message.bytes_len = (uint32_t)restore->len;
    for (uint32_t a = 0; a < restore->agent_count; a++)
        env_send(env, a, &message);
}

static void
take_promise(struct env *env, struct restore *restore, const struct cairn_message *message)
{
    const struct cairn_message_promise *promise = &message->as.promise;
    char text[160];

    if (restore->state != RESTORE_CLAIMING || message->epoch != restore->claimed ||
        promise->attempt != restore->number || !waits_for(restore, message->from))
        return;
    if (promise->err && promise->promised != restore->claimed) {
        snprintf(text, sizeof text, "agent %u refused the new epoch: %s", message->from,
                 promise->err == CAIRN_STALE ? "another restore is under way"
                                             : "something changed since it was asked");
        overtaken(env, restore, text);
        return;
    }
    restore->parties[message->from].answered = true;
    if (message->from == env->options->self)
        send_all(env, restore);
    if (!waits(restore))
        activate(env, restore); /* who misses it gets the record from any POSITION */
}

/* ---- rebuilding ---- */

static void
rebuilt(struct env *env, struct restore *restore)
{
    if (verifies(restore))
        finish(env, restore, CAIRN_OK);
    else
        begin_claim(env, restore);
}

/* All that take part in a group with work. */
static void
ask_plan(struct restore *restore)
{
    const struct plan *plan = &restore->plan;

    for (uint32_t m = 0; m < plan->roster->member_count; m++) {
        if (!plan_has_work(plan, m))
            continue;
        if (plan->holders[m] != UINT32_MAX)
            restore->parties[plan->holders[m]].asked = true;
        if (plan->targets[m] != UINT32_MAX)
            restore->parties[plan->targets[m]].asked = true;
    }
}

static void
begin_rebuild(struct env *env, struct restore *restore)
{
    cairn_err err;

    clear_plan(restore);
    err = members_plan(env->options, restore->inventories, &restore->choice, restore->no_room,
                       verifies(restore), &restore->plan);
    if (err) {
        finish_with(env, restore, err, "no agent can take the lost parts");
        return;
    }
    restore->outcome.bad_blocks = max_u64(restore->outcome.bad_blocks, restore->plan.bad_count);
    if (!members_plan_has_work(&restore->plan) || CAIRN_PLANTED(env, BUG_CLAIM_EARLY)) {
        for (uint32_t m = 0; m < restore->plan.roster->member_count; m++)
            if (restore->plan.targets[m] != UINT32_MAX)
                restore->plan.holders[m] = restore->plan.targets[m];
        rebuilt(env, restore);
        return;
    }
    if (plan_pack(&restore->plan, &restore->bytes, &restore->len) != CAIRN_OK) {
        env->actions->failed = true;
        return;
    }
    begin(env, restore, RESTORE_REBUILDING, env->options->rebuild_timeout_ns);
    ask_plan(restore);
    send_all(env, restore);
}

static void
take_progress(struct env *env, struct restore *restore, uint32_t from,
              const struct cairn_message_rebuilt *report)
{
    struct plan *plan = &restore->plan;
    uint32_t member = report->member;

    if (member >= plan->roster->member_count || plan->targets[member] != from)
        return;
    restore->deadline_ns = env->now_ns + env->options->rebuild_timeout_ns;
    if (!report->finished)
        return;
    if (plan->holders[member] == UINT32_MAX) {
        restore->outcome.rebuilt_blocks += report->blocks;
        restore->inventories[from].version++; /* its part is complete now */
    } else {
        restore->outcome.repaired_blocks += report->blocks;
    }
    plan->holders[member] = from;
    plan->targets[member] = UINT32_MAX;
    if (!members_plan_has_work(plan))
        rebuilt(env, restore);
}

/*
 * What is proved to be damaged beyond repair is left out of the choice, and so are bytes that
 * arrive damaged again and again. An agent without memory for a part is left out of the targets.
 * All other reasons may pass.
 */
static void
take_failure(struct env *env, struct restore *restore, uint32_t from,
             const struct cairn_message_rebuilt *report)
{
    struct choice *choice = &restore->choice;
    cairn_err err = (cairn_err)report->err;
    char text[160];

    snprintf(text, sizeof text, "agent %u cannot take its part in the repair: %s", from,
             cairn_err_text(err));
    restore->damaged += err == CAIRN_CORRUPT;
    if (err == CAIRN_NOMEM && !cairn_bitset_has(restore->no_room, from)) {
        cairn_bitset_add(restore->no_room, from);
        restore->attempts--; /* there are not more of them than agents */
    }
    if ((err == CAIRN_LOST && report->proved) || restore->damaged > DAMAGED_MAX) {
        if (choice->excluded_count == EXCLUDED_MAX || verifies(restore)) {
            finish_with(env, restore, CAIRN_LOST, text);
            return;
        }
        restore->damaged = 0;
        choice->excluded[choice->excluded_count++] = (struct excluded){
            choice->generation,
            choose_intact(restore->inventories, restore->agent_count, choice->generation)};
        err = CAIRN_LOST;
    }
    try_again(env, restore, err, text);
}

static void
take_rebuilt(struct env *env, struct restore *restore, const struct cairn_message *message)
{
    const struct cairn_message_rebuilt *report = &message->as.rebuilt;

    if (restore->state != RESTORE_REBUILDING || report->attempt != restore->number)
        return; /* of an earlier plan */
    if (report->err)
        take_failure(env, restore, message->from, report);
    else
        take_progress(env, restore, message->from, report);
}

/* ---- preparing ---- */

/* A part of the choice has damaged blocks that the last comparison found. */
static bool
has_bad_blocks(const struct restore *restore)
{
    for (uint32_t a = 0; a < restore->agent_count; a++)
        for (uint32_t i = 0; i < restore->inventories[a].part_count; i++) {
            const struct inventory_part *part = &restore->inventories[a].parts[i];

            if (cairn_generation_is(part->generation, restore->choice.generation) &&
                part->bad_count > 0)
                return true;
        }
    return false;
}

/* Positions of an agent's group whose parts are lost, as a set: rebuilding them compares what it
 * reads. 0 where other blocks may be read than the agent expects: it compares all. */
static uint64_t
lost_beside(const struct restore *restore, uint32_t agent)
{
    const struct inventory *inventory = &restore->inventories[agent];
    const struct cairn_roster_group *group;
    uint32_t member = UINT32_MAX;
    uint64_t lost = 0;

    if (restore->compares_all || restore->choice.lost_members == 0)
        return 0;
    for (uint32_t i = 0; i < inventory->part_count; i++)
        if (cairn_generation_is(inventory->parts[i].generation, restore->choice.generation)) {
            if (member != UINT32_MAX)
                return 0;
            member = inventory->parts[i].member;
        }
    if (member == UINT32_MAX || choose_holder(restore->inventories, restore->agent_count,
                                              restore->choice.generation, member) != agent)
        return 0;
    group = cairn_roster_group_of(restore->choice.roster, member);
    for (uint32_t p = 0; p < group->count; p++)
        if (choose_holder(restore->inventories, restore->agent_count, restore->choice.generation,
                          group->members[p]) == UINT32_MAX)
            lost |= UINT64_C(1) << p;
    return lost;
}

/* True if all that was not compared will be read by the plan that comes. */
static bool
is_compared(const struct restore *restore)
{
    bool bad = has_bad_blocks(restore);

    for (uint32_t a = 0; a < restore->agent_count; a++)
        if (restore->parties[a].lost != 0 &&
            (bad || lost_beside(restore, a) != restore->parties[a].lost))
            return false;
    return true;
}

static void
begin_preparing(struct env *env, struct restore *restore)
{
    const struct cairn_core_options *options = env->options;

    clear_plan(restore);
    begin(env, restore, RESTORE_PREPARING,
          restore->choice.roster ? options->rebuild_timeout_ns : options->claim_timeout_ns);
    restore->compares_all |= has_bad_blocks(restore);
    for (uint32_t a = 0; a < restore->agent_count; a++) {
        restore->parties[a].asked = restore->inventories[a].known;
        restore->parties[a].lost = lost_beside(restore, a);
    }
    send_all(env, restore);
}

/* Chooses again. False: the answers lead to another choice now. */
static bool
choice_stands(struct env *env, struct restore *restore)
{
    const struct cairn_generation_id before = restore->choice.generation;
    const bool from_files = restore->choice.from_files;
    char unused[64]; /* the outcome keeps the text of the first choice */

    if (restore->request.op.operation == CAIRN_OP_FRESH)
        return true;
    judge_choose(env, restore, unused, sizeof unused);
    return !restore->choice.err && cairn_generation_is(restore->choice.generation, before) &&
           restore->choice.from_files == from_files;
}

static bool
can_join(struct env *env, struct restore *restore)
{
    const struct record *record = &env->membership->record;

    return !restore->request.joining ||
           (record->epoch != 0 &&
            members_may_change(env->options, restore->inventories, record->roster, record->epoch));
}

static void
prepared(struct env *env, struct restore *restore)
{
    if (!can_join(env, restore))
        finish_with(env, restore, CAIRN_AGAIN, "not all ranks of the job are attached any more");
    else if (!choice_stands(env, restore))
        try_again(env, restore, CAIRN_AGAIN, "what the agents hold changed meanwhile");
    else if (!is_compared(restore)) {
        restore->compares_all = true;
        begin_preparing(env, restore);
    } else if (restore->choice.roster)
        begin_rebuild(env, restore);
    else
        begin_claim(env, restore);
}

/* ---- listing ---- */

static void
begin_listing(struct env *env, struct restore *restore)
{
    const struct cairn_core_options *options = env->options;
    bool same_epoch = restore->epoch == env->membership->record.epoch;

    clear_plan(restore);
    restore->attempts++;
    restore->epoch = env->membership->record.epoch;
    begin(env, restore, RESTORE_LISTING,
          verifies(restore) ? options->rebuild_timeout_ns : options->claim_timeout_ns);
    for (uint32_t a = 0; a < restore->agent_count; a++) {
        inventory_fini(&restore->inventories[a]);
        restore->parties[a].slow &= same_epoch; /* else it may be a member of the new one */
        restore->parties[a].asked = true;
    }
    send_all(env, restore);
}

/*
 * True if an agent has not answered that may still do so. An operator starts the agents of new
 * machines and restores at once, and the first epoch is formed while agents start: then all that
 * are configured get until the deadline, even if others take them for dead. patient: so do all that
 * were alive a short time ago.
 */
static bool
expects_answers(struct env *env, struct restore *restore, bool patient)
{
    bool newcomers = env->membership->record.epoch == 0 || restore_restarts(restore);

    for (uint32_t a = 0; a < restore->agent_count; a++)
        if (!restore->inventories[a].known && !restore->parties[a].slow &&
            (patient ? !peers_given_up(env, a)
                     : peers_maybe_alive(env, a) || (newcomers && !env->options->spares[a])))
            return true;
    return false;
}

/* It is too early to believe bad news, or to rebuild what a silent agent may still hold. */
static bool
must_wait(struct env *env, struct restore *restore)
{
    bool bad = judge_is_bad(env, &restore->choice);

    if (verifies(restore) || (!bad && restore->choice.lost_members == 0) ||
        restore_knows_all(restore))
        return false;
    return (bad && env->now_ns < restore->deadline_ns) ||
           (env->now_ns < restore->silence_until_ns && !CAIRN_PLANTED(env, BUG_HASTY_REBUILD) &&
            expects_answers(env, restore, true));
}

/* Ends a restore that cannot go on with its choice. True: it can. */
static bool
accepts_choice(struct env *env, struct restore *restore)
{
    uint32_t known = restore_known(restore);

    if (restore_keeps(restore) && restore->choice.goes_back && !restore_knows_all(restore)) {
        finish_with(env, restore, CAIRN_AGAIN,
                    "a newer generation may be with agents that are silent; only an operator's "
                    "restore goes back to an older one, or with --fresh to nothing");
        return false;
    }
    if (!restore->choice.err)
        return true;
    if (has_majority(env, restore, known, "answered"))
        finish_with(env, restore, restore->choice.err,
                    "nothing was changed: all parts stay where they are");
    return false;
}

/* Goes on with an accepted choice. An agent that has a session and has not answered is slow:
 * later attempts ask it, and do not wait for its answer. */
static void
proceed(struct env *env, struct restore *restore)
{
    uint32_t known = restore_known(restore);

    for (uint32_t a = 0; a < restore->agent_count; a++)
        restore->parties[a].slow |= !restore->inventories[a].known && env_reaches(env, a);
    /* A later attempt finds what an earlier one has rebuilt. */
    if (verifies(restore) || restore->choice.lost_members > restore->outcome.lost_members)
        restore->outcome.lost_members = restore->choice.lost_members;
    if (verifies(restore) && !restore->choice.roster)
        finish_with(env, restore, CAIRN_NOT_FOUND, "no generation is in memory");
    else if (restore->request.op.operation == CAIRN_OP_DRY_RUN ||
             (verifies(restore) && !has_bad_blocks(restore)))
        finish(env, restore, CAIRN_OK);
    else if (verifies(restore) || has_majority(env, restore, known, "answered"))
        begin_preparing(env, restore);
}

static void
choose(struct env *env, struct restore *restore)
{
    struct cairn_outcome *outcome = &restore->outcome;

    if (restore->request.op.operation == CAIRN_OP_FRESH) {
        choice_clear(&restore->choice);
        restore->choice.err = CAIRN_OK;
        outcome->text[0] = '\0';
        say(restore, "a fresh epoch: nothing is restored; what is held now is dropped after the "
                     "first commit");
        return;
    }
    judge_choose(env, restore, outcome->text, sizeof outcome->text);
    outcome->generation = restore->choice.generation;
}

static void
listed(struct env *env, struct restore *restore)
{

    if (judge_is_behind(env, restore)) {
        if (env->now_ns >= restore->deadline_ns)
            finish_with(env, restore, CAIRN_AGAIN, "the record of a newer epoch does not arrive");
        return; /* the activation begins the next attempt */
    }
    if (!can_join(env, restore)) {
        finish_with(env, restore, CAIRN_AGAIN,
                    "not all ranks of the job are attached to agents that answer");
        return;
    }
    choose(env, restore);
    if (must_wait(env, restore))
        return; /* looked at again with every answer and tick */
    if (verifies(restore) && (restore->choice.err || restore->choice.lost_members > 0) &&
        restore->attempts < RESTORE_ATTEMPTS_MAX)
        try_again(env, restore, CAIRN_AGAIN,
                  "a generation was committed while parts were compared");
    else if (accepts_choice(env, restore))
        proceed(env, restore);
}

/* ---- what happens ---- */

/* Keeps one copy of a roster that most agents send. */
static void
share_rosters(struct restore *restore, struct inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->part_count; i++) {
        struct cairn_roster **roster = &inventory->parts[i].roster;

        if (restore->common && cairn_roster_same(restore->common, *roster)) {
            cairn_roster_drop(*roster);
            *roster = cairn_roster_hold(restore->common);
        } else {
            cairn_roster_drop(restore->common);
            restore->common = cairn_roster_hold(*roster);
        }
    }
}

/* All that are waited for have answered. */
static void
answered(struct env *env, struct restore *restore)
{
    if (restore->state == RESTORE_LISTING && !expects_answers(env, restore, false))
        listed(env, restore);
    else if (restore->state == RESTORE_PREPARING && !waits(restore))
        prepared(env, restore);
}

static void
take_inventory(struct env *env, struct restore *restore, const struct cairn_message *message)
{
    struct inventory inventory = {0};

    restore->parties[message->from].slow = false; /* it answers, if only an older round */
    if ((restore->state != RESTORE_LISTING && restore->state != RESTORE_PREPARING) ||
        message->as.inventory.attempt != restore->number || !restore->parties[message->from].asked)
        return;
    if (inventory_read(message->bytes, message->bytes_len, &inventory) != CAIRN_OK)
        return;
    if (!membership_believes(env->membership, inventory.self.promised)) {
        inventory_fini(&inventory);
        return;
    }
    share_rosters(restore, &inventory);
    inventory_fini(&restore->inventories[message->from]);
    restore->inventories[message->from] = inventory;
    restore->parties[message->from].answered = true;
    answered(env, restore);
}

/* The round's deadline has passed. */
static void
time_out(struct env *env, struct restore *restore)
{
    const struct plan *plan = &restore->plan;

    if (restore->state == RESTORE_LISTING) {
        listed(env, restore);
        return;
    }
    if (restore->state == RESTORE_REBUILDING) {
        for (uint32_t m = 0; m < plan->roster->member_count; m++)
            if (plan->targets[m] != UINT32_MAX)
                cairn_bitset_add(restore->no_room, plan->targets[m]);
        try_again(env, restore, CAIRN_TIMEOUT, "the repair made no progress");
    } else if (waits(restore)) {
        for (uint32_t a = 0; a < restore->agent_count; a++)
            restore->parties[a].slow |= waits_for(restore, a);
        try_again(env, restore, CAIRN_TIMEOUT, "an agent stopped answering");
    }
}

/* Another epoch began: the answers are out of date. If trainers began with it, they may run well,
 * and the operator's request may be older than they are: it must not stop them. */
static bool
is_outdated(struct env *env, struct restore *restore)
{
    const struct record *record = &env->membership->record;

    if (restore->epoch == record->epoch)
        return false;
    if (restore_restarts(restore) && record->restart_epoch > restore->epoch)
        finish_with(env, restore, CAIRN_AGAIN,
                    "another restore has ended meanwhile; if its trainers do not run, try again");
    else
        overtaken(env, restore, "another epoch began meanwhile");
    return true;
}

cairn_err
restore_start(struct env *env, struct restore *restore, const struct restore_request *request)
{
    uint32_t n = env->options->agent_count;

    CAIRN_ASSERT(restore_is_idle(restore));
    memset(&restore->outcome, 0, sizeof restore->outcome);
    restore->agent_count = n;
    restore->parties = calloc(n, sizeof *restore->parties);
    restore->inventories = calloc(n, sizeof *restore->inventories);
    restore->no_room = calloc(cairn_bitset_words(n), sizeof *restore->no_room);
    restore->fleet = malloc(request->op.fleet_len + 1);
    if (!restore->parties || !restore->inventories || !restore->no_room || !restore->fleet) {
        clear(restore);
        return CAIRN_NOMEM;
    }
    if (request->op.fleet_len > 0)
        memcpy(restore->fleet, request->op.fleet, request->op.fleet_len);
    restore->request = *request;
    restore->request.op.fleet = NULL;
    restore->compares_all = verifies(restore);
    restore->outcome.operation = request->op.operation;
    restore->outcome.request = request->op.request;
    restore->silence_until_ns = env->now_ns + SILENCE_FACTOR * env->options->dead_after_ns;
    begin_listing(env, restore);
    return CAIRN_OK;
}

void
restore_message(struct env *env, struct restore *restore, const struct cairn_message *message)
{

    if (restore_is_idle(restore) || message->from >= restore->agent_count ||
        is_outdated(env, restore))
        return;
    if (message->kind == CAIRN_MSG_INVENTORY)
        take_inventory(env, restore, message);
    else if (message->kind == CAIRN_MSG_REBUILT)
        take_rebuilt(env, restore, message);
    else if (message->kind == CAIRN_MSG_PROMISE)
        take_promise(env, restore, message);
}

void
restore_peer_up(struct env *env, struct restore *restore, uint32_t agent)
{

    if (!restore_is_idle(restore) && restore->state != RESTORE_REBUILDING &&
        is_its_turn(env, restore, agent))
        send(env, restore, agent);
}

void
restore_peer_down(struct env *env, struct restore *restore, uint32_t agent)
{
    char text[80];

    if (restore_is_idle(restore) || !restore->parties[agent].asked)
        return;
    if (restore->state == RESTORE_LISTING) {
        inventory_fini(&restore->inventories[agent]);
        restore->parties[agent].answered = false;
    } else if (restore->state != RESTORE_CLAIMING || waits_for(restore, agent)) {
        snprintf(text, sizeof text, "the session with agent %u ended", agent);
        try_again(env, restore, CAIRN_PEER, text);
    }
}

void
restore_tick(struct env *env, struct restore *restore)
{

    if (restore_is_idle(restore) || is_outdated(env, restore))
        return;
    if (env->now_ns < restore->deadline_ns)
        answered(env, restore);
    else
        time_out(env, restore);
}

void
restore_activated(struct env *env, struct restore *restore)
{

    if (restore->state == RESTORE_CLAIMING && restore->claimed == env->membership->record.epoch)
        finish(env, restore, CAIRN_OK);
}

void
restore_stood_still(struct restore *restore, uint64_t gap_ns)
{
    restore->deadline_ns += gap_ns;
    restore->silence_until_ns += gap_ns;
}
