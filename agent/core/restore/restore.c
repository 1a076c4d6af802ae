/* agent/core/restore/restore.c - the steps of a restore; see restore.h. */
#include "agent/core/restore/restore.h"

#include "agent/core/restore/members.h"
#include "agent/core/restore/judge.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SILENCE_FACTOR = 3, /* of dead_after: a busy host may delay an agent so long; what it holds is
                         * not rebuilt before */
    DAMAGED_MAX = 2     /* failures from damaged bytes; more are damage that no checksum shows */
};

/* What every step needs. */
struct scene {
    struct env *env;
    struct restore *restore;
    const struct membership *membership;
    const struct peers *peers;
};

static void begin_listing(const struct scene *scene);

static void
say(struct restore *restore, const char *text)
{
    size_t used = strlen(restore->outcome.text);

    snprintf(restore->outcome.text + used, sizeof restore->outcome.text - used, "%s\n", text);
}

/* ---- the end ---- */

static void
clear(struct restore *restore)
{
    struct cairn_outcome outcome = restore->outcome;

    ask_fini(&restore->ask);
    choice_clear(&restore->choice);
    plan_fini(&restore->rebuild.plan);
    free(restore->rebuild.done);
    free(restore->rebuild.written);
    claim_fini(&restore->claim);
    free(restore->no_room);
    free(restore->fleet);
    memset(restore, 0, sizeof *restore);
    restore->outcome = outcome;
}

void
restore_init(struct restore *restore)
{
    memset(restore, 0, sizeof *restore);
}

void
restore_fini(struct restore *restore)
{
    clear(restore);
}

static void
reply(struct env *env, const struct cairn_outcome *outcome)
{
    struct cairn_action *action = env_act(env, CAIRN_ACTION_REPLY);

    if (!action)
        return;
    action->as.reply.request = outcome->request;
    action->as.reply.err = outcome->err;
    action->as.reply.generation = outcome->generation;
    action->as.reply.text = env_keep(env, action, outcome->text, strlen(outcome->text) + 1);
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
finish(const struct scene *scene, cairn_err err)
{
    struct restore *restore = scene->restore;
    struct cairn_outcome *outcome = &restore->outcome;
    bool claimed = !err && restore->state == RESTORE_ACTIVATING;

    outcome->err = err;
    outcome->epoch = claimed ? restore->claim.epoch : scene->membership->record.epoch;
    if (err || outcome->lost_members > 0)
        ask_name_silent(&restore->ask, outcome->text, sizeof outcome->text);
    ask_release(scene->env, &restore->ask);
    if (restore->request.by_itself)
        log_repair(outcome);
    else
        reply(scene->env, outcome);
    clear(restore);
}

static void
finish_with(const struct scene *scene, cairn_err err, const char *text)
{
    say(scene->restore, text);
    finish(scene, err);
}

/* The attempt has failed for a reason that may be gone. */
static void
try_again(const struct scene *scene, cairn_err err, const char *text)
{
    struct restore *restore = scene->restore;

    if (restore->attempts >= RESTORE_ATTEMPTS_MAX) {
        finish_with(scene, err, text);
        return;
    }
    CAIRN_LOG_AT(WARN, "restore: %s; try again", text);
    begin_listing(scene);
}

/* Another coordinator or a commit was faster. An operator's restore tries again; one that nobody
 * asked for ends, and the watch finds out if it is still needed. */
static void
overtaken(const struct scene *scene, cairn_err err, const char *text)
{
    if (scene->restore->request.by_itself)
        finish_with(scene, err, text);
    else
        try_again(scene, err, text);
}

/* ---- claiming ---- */

/* An operator wants the trainers to start again. */
static bool
restarts_trainers(const struct restore_request *request)
{
    return !request->by_itself &&
           (request->operation == CAIRN_OP_RESTORE || request->operation == CAIRN_OP_FRESH);
}

/* Nothing is given up, and trainers go on. */
static bool
keeps(const struct restore *restore)
{
    return restore->request.by_itself || restore->request.operation == CAIRN_OP_FLEET;
}

static bool
has_majority(const struct scene *scene, uint32_t count, const char *what)
{
    uint32_t n = scene->env->options->agent_count;
    char text[200];

    if (count > n / 2)
        return true;
    snprintf(text, sizeof text,
             "only %u of the job's %u agents %s, and more than half must; start the missing "
             "agents, or new ones in their place, and try again",
             count, n, what);
    finish_with(scene, CAIRN_AGAIN, text);
    return false;
}

static void
begin_claim(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    const struct restore_request *request = &restore->request;
    const struct claim_basis basis = {
        .membership = scene->membership,
        .ask = &restore->ask,
        .choice = &restore->choice,
        .plan = restore->rebuild.plan.roster ? &restore->rebuild.plan : NULL,
        .keeps = keeps(restore),
        .restarts = restarts_trainers(request) ||
                    (request->joining && CAIRN_PLANTED(scene->env, BUG_JOIN_RESTARTS)),
        .fleet = request->operation == CAIRN_OP_FLEET ? restore->fleet : NULL,
        .fleet_len = request->fleet_len};
    char text[256] = "";
    cairn_err err;

    if (!has_majority(scene, claim_voters(scene->env, &restore->ask), "can promise a new epoch"))
        return;
    err = claim_begin(scene->env, &restore->claim, &basis, text, sizeof text);
    if (err) {
        finish_with(scene, err, "the members of the new epoch cannot be laid out");
        return;
    }
    if (text[0] != '\0')
        say(restore, text);
    restore->state = RESTORE_CLAIMING;
    restore->deadline_ns = scene->env->now_ns + scene->env->options->claim_timeout_ns;
}

static void
take_promise(const struct scene *scene, const struct cairn_message *message)
{
    struct restore *restore = scene->restore;
    const struct cairn_message_promise *promise = &message->as.promise;
    char text[160];

    if (restore->state != RESTORE_CLAIMING || message->epoch != restore->claim.epoch ||
        promise->attempt != restore->claim.number ||
        message->from >= scene->env->options->agent_count)
        return;
    if (promise->err && promise->promised != restore->claim.epoch) {
        snprintf(text, sizeof text, "agent %u refused the new epoch: %s", message->from,
                 promise->err == CAIRN_STALE ? "another restore is under way"
                                             : "something changed since it was asked");
        overtaken(scene, CAIRN_AGAIN, text);
        return;
    }
    claim_promised(scene->env, &restore->claim, message->from);
    if (!claim_is_promised(scene->env, &restore->claim))
        return;
    claim_activate(scene->env, &restore->claim);
    restore->state = RESTORE_ACTIVATING;
}

/* ---- confirming ---- */

/* Asks all for what they hold now: a claim must name the agents as they are. */
static void
begin_confirming(const struct scene *scene)
{
    struct restore *restore = scene->restore;

    if (restore->request.operation == CAIRN_OP_VERIFY) {
        finish(scene, CAIRN_OK);
        return;
    }
    restore->state = RESTORE_CONFIRMING;
    restore->deadline_ns = scene->env->now_ns + scene->env->options->claim_timeout_ns;
    ask_known(scene->env, &restore->ask, CAIRN_ASK_LIST, (struct cairn_generation_id){0});
}

/* Chooses again. False: the answers lead to another choice now. */
static bool
choice_stands(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    const struct cairn_generation_id before = restore->choice.generation;
    const bool from_files = restore->choice.from_files;
    char unused[64]; /* the outcome keeps the text of the first choice */

    if (restore->request.operation == CAIRN_OP_FRESH)
        return true;
    judge_choose(scene->env, scene->membership, &restore->ask, keeps(restore), &restore->choice,
                 unused, sizeof unused);
    return !restore->choice.err && generation_is(restore->choice.generation, before) &&
           restore->choice.from_files == from_files;
}

static bool
holders_stand(const struct restore *restore)
{
    const struct plan *plan = &restore->rebuild.plan;

    for (uint32_t m = 0; plan->roster && m < plan->roster->member_count; m++) {
        uint32_t holder = plan->targets[m] != UINT32_MAX ? plan->targets[m] : plan->holders[m];

        if (!inventory_find(&restore->ask.inventories[holder], restore->choice.generation, m))
            return false;
    }
    return true;
}

static bool
can_join(const struct scene *scene)
{
    const struct record *record = &scene->membership->record;
    uint32_t late[CAIRN_NODES_MAX];

    return !scene->restore->request.joining ||
           (record->epoch != 0 && members_late(scene->env->options, scene->restore->ask.inventories,
                                               record->roster, record->epoch, late) > 0);
}

static void
confirmed(const struct scene *scene)
{
    if (!can_join(scene))
        finish_with(scene, CAIRN_AGAIN, "not all ranks of the job are attached any more");
    else if (!choice_stands(scene) ||
             (!holders_stand(scene->restore) && !CAIRN_PLANTED(scene->env, BUG_CLAIM_EARLY)))
        try_again(scene, CAIRN_AGAIN, "what the agents hold changed meanwhile");
    else
        begin_claim(scene);
}

/* ---- rebuilding ---- */

static bool
takes_part(const struct plan *plan, uint32_t agent)
{
    for (uint32_t m = 0; m < plan->roster->member_count; m++)
        if (plan->holders[m] == agent || plan->targets[m] == agent)
            return true;
    return false;
}

static bool
is_rebuilt(const struct rebuild *rebuild)
{
    for (uint32_t m = 0; m < rebuild->plan.roster->member_count; m++)
        if (rebuild->plan.targets[m] != UINT32_MAX && !cairn_bitset_has(rebuild->done, m))
            return false;
    return true;
}

static void
send_plan(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    struct cairn_message message =
        env_message(scene->env, CAIRN_MSG_REBUILD, scene->membership->record.epoch);
    struct cairn_writer writer;
    uint8_t *bytes;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    plan_write(&restore->rebuild.plan, &writer);
    bytes = malloc(writer.used_bytes);
    if (!bytes) {
        scene->env->actions->failed = true;
        return;
    }
    cairn_writer_init(&writer, bytes, writer.used_bytes);
    plan_write(&restore->rebuild.plan, &writer);
    message.as.rebuild.attempt = restore->ask.number;
    message.as.rebuild.plan = restore->rebuild.number;
    message.as.rebuild.generation = restore->choice.generation;
    message.bytes = bytes;
    message.bytes_len = (uint32_t)writer.used_bytes;
    for (uint32_t a = 0; a < scene->env->options->agent_count; a++)
        if (takes_part(&restore->rebuild.plan, a))
            env_send(scene->env, a, &message);
    free(bytes);
}

static void
drop_plan(struct rebuild *rebuild)
{
    uint32_t damaged = rebuild->damaged;

    plan_fini(&rebuild->plan);
    free(rebuild->done);
    free(rebuild->written);
    memset(rebuild, 0, sizeof *rebuild);
    rebuild->damaged = damaged;
}

static cairn_err
make_plan(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    struct rebuild *rebuild = &restore->rebuild;
    uint32_t members = restore->choice.roster->member_count;
    cairn_err err;

    drop_plan(rebuild);
    rebuild->done = calloc(cairn_bitset_words(members), sizeof *rebuild->done);
    rebuild->written = calloc(members, sizeof *rebuild->written);
    err = rebuild->done && rebuild->written
              ? members_plan(scene->env->options, restore->ask.inventories, &restore->choice,
                             restore->no_room, restore->request.operation == CAIRN_OP_VERIFY,
                             &rebuild->plan)
              : CAIRN_NOMEM;
    if (err)
        drop_plan(rebuild);
    return err;
}

static void
begin_rebuild(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    cairn_err err = make_plan(scene);

    if (err) {
        finish_with(scene, err, "no agent can take the lost parts");
        return;
    }
    restore->outcome.bad_blocks =
        max_u64(restore->outcome.bad_blocks, restore->rebuild.plan.bad_count);
    if (!members_plan_has_work(&restore->rebuild.plan) ||
        CAIRN_PLANTED(scene->env, BUG_CLAIM_EARLY)) {
        begin_confirming(scene);
        return;
    }
    restore->rebuild.number = env_request(scene->env);
    restore->state = RESTORE_REBUILDING;
    restore->deadline_ns = scene->env->now_ns + scene->env->options->rebuild_timeout_ns;
    send_plan(scene);
}

static void
take_progress(const struct scene *scene, uint32_t from, const struct cairn_message_rebuilt *rebuilt)
{
    struct restore *restore = scene->restore;
    struct rebuild *rebuild = &restore->rebuild;
    uint32_t member = rebuilt->member;

    if (member >= rebuild->plan.roster->member_count || rebuild->plan.targets[member] != from ||
        cairn_bitset_has(rebuild->done, member))
        return;
    if (rebuilt->blocks > rebuild->written[member] || rebuilt->finished)
        restore->deadline_ns = scene->env->now_ns + scene->env->options->rebuild_timeout_ns;
    rebuild->written[member] = max_u64(rebuild->written[member], rebuilt->blocks);
    if (!rebuilt->finished)
        return;
    cairn_bitset_add(rebuild->done, member);
    if (rebuild->plan.holders[member] == UINT32_MAX)
        restore->outcome.rebuilt_blocks += rebuilt->blocks;
    else
        restore->outcome.repaired_blocks += rebuilt->blocks;
    if (is_rebuilt(rebuild))
        begin_confirming(scene);
}

/*
 * What is proved to be damaged beyond repair is left out of the choice, and so are bytes that
 * arrive damaged again and again. An agent without memory for a part is left out of the targets.
 * All other reasons may pass.
 */
static void
take_failure(const struct scene *scene, uint32_t from, const struct cairn_message_rebuilt *rebuilt)
{
    struct restore *restore = scene->restore;
    struct choice *choice = &restore->choice;
    cairn_err err = rebuilt->err <= CAIRN_INTERNAL ? (cairn_err)rebuilt->err : CAIRN_INTERNAL;
    char text[160];

    snprintf(text, sizeof text, "agent %u cannot take its part in the repair: %s", from,
             cairn_err_text(err));
    restore->rebuild.damaged += err == CAIRN_CORRUPT;
    if (err == CAIRN_NOMEM && !cairn_bitset_has(restore->no_room, from)) {
        CAIRN_LOG_AT(WARN, "restore: %s", text);
        cairn_bitset_add(restore->no_room, from);
        begin_rebuild(scene);
        return;
    }
    if ((err == CAIRN_LOST && rebuilt->proved) || restore->rebuild.damaged > DAMAGED_MAX) {
        if (choice->excluded_count == EXCLUDED_MAX ||
            restore->request.operation == CAIRN_OP_VERIFY) {
            finish_with(scene, CAIRN_LOST, text);
            return;
        }
        restore->rebuild.damaged = 0;
        choice->excluded[choice->excluded_count++] = choice->generation;
        restore->excluded_from = ask_count(&restore->ask);
        err = CAIRN_LOST;
    }
    try_again(scene, err, text);
}

static void
take_rebuilt(const struct scene *scene, const struct cairn_message *message)
{
    const struct cairn_message_rebuilt *rebuilt = &message->as.rebuilt;
    const struct restore *restore = scene->restore;

    if (restore->state != RESTORE_REBUILDING || rebuilt->attempt != restore->ask.number ||
        rebuilt->plan != restore->rebuild.number ||
        message->from >= scene->env->options->agent_count)
        return; /* of an earlier plan */
    if (rebuilt->err)
        take_failure(scene, message->from, rebuilt);
    else
        take_progress(scene, message->from, rebuilt);
}

/* ---- verifying ---- */

static void
begin_verifying(const struct scene *scene)
{
    struct restore *restore = scene->restore;

    restore->state = RESTORE_VERIFYING;
    restore->deadline_ns = scene->env->now_ns + scene->env->options->rebuild_timeout_ns;
    ask_known(scene->env, &restore->ask, CAIRN_ASK_VERIFY, restore->choice.generation);
}

static void
verified(const struct scene *scene)
{
    if (scene->restore->request.operation == CAIRN_OP_VERIFY)
        judge_forget_uncommitted(&scene->restore->ask);
    if (!choice_stands(scene))
        try_again(scene, CAIRN_AGAIN, "what the agents hold changed meanwhile");
    else
        begin_rebuild(scene);
}

/* ---- listing ---- */

static void
begin_listing(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    bool verifies = restore->request.operation == CAIRN_OP_VERIFY;

    drop_plan(&restore->rebuild);
    claim_fini(&restore->claim);
    restore->attempts++;
    restore->state = RESTORE_LISTING;
    restore->deadline_ns = scene->env->now_ns + (verifies ? scene->env->options->rebuild_timeout_ns
                                                          : scene->env->options->claim_timeout_ns);
    ask_everyone(scene->env, &restore->ask, scene->membership->record.epoch,
                 verifies ? CAIRN_ASK_VERIFY_ALL : CAIRN_ASK_LIST);
}

/*
 * An operator starts the agents of new machines and restores at once, and the first epoch is formed
 * while agents start: all that are configured get until the deadline, even if others take them for
 * dead.
 */
static bool
expects_newcomers(const struct scene *scene)
{
    const struct restore_request *request = &scene->restore->request;

    return scene->membership->record.epoch == 0 || restarts_trainers(request);
}

/* It is too early to believe bad news, or to rebuild what a silent agent may still hold. */
static bool
must_wait(const struct scene *scene)
{
    const struct restore *restore = scene->restore;
    bool bad = judge_is_bad(scene->membership, &restore->choice);

    if (restore->request.operation == CAIRN_OP_VERIFY ||
        (!bad && restore->choice.lost_members == 0) ||
        ask_knows_all(scene->env, &restore->ask, true))
        return false;
    return (bad && scene->env->now_ns < restore->deadline_ns) ||
           (scene->env->now_ns < restore->silence_until_ns &&
            !CAIRN_PLANTED(scene->env, BUG_HASTY_REBUILD) &&
            judge_expects_answers(scene->env, &restore->ask, scene->peers));
}

/* Ends a restore that cannot go on with its choice. True: it can. */
static bool
accepts_choice(const struct scene *scene)
{
    struct restore *restore = scene->restore;

    if (keeps(restore) && restore->choice.goes_back &&
        !ask_knows_all(scene->env, &restore->ask, true)) {
        finish_with(scene, CAIRN_AGAIN,
                    "a newer generation may be with agents that are silent; only an operator's "
                    "restore goes back to an older one");
        return false;
    }
    if (!restore->choice.err)
        return true;
    if (has_majority(scene, ask_count(&restore->ask), "answered"))
        finish_with(scene, restore->choice.err,
                    "nothing was changed: all parts stay where they are");
    return false;
}

/* A part of the choice has damaged blocks that the last comparison found. */
static bool
has_bad_blocks(const struct restore *restore)
{
    for (uint32_t a = 0; a < restore->ask.agent_count; a++)
        for (uint32_t i = 0; i < restore->ask.inventories[a].part_count; i++) {
            const struct inventory_part *part = &restore->ask.inventories[a].parts[i];

            if (generation_is(part->generation, restore->choice.generation) && part->bad_count > 0)
                return true;
        }
    return false;
}

/* Goes on with an accepted choice. An agent that has a session and did not answer is wedged: later
 * attempts do not wait for it. */
static void
proceed(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    bool in_memory = restore->choice.roster != NULL;

    for (uint32_t a = 0; a < restore->ask.agent_count; a++)
        if (!restore->ask.inventories[a].known && env_reaches(scene->env, a))
            cairn_bitset_add(restore->ask.ignored, a);
    /* A later attempt finds what an earlier one has rebuilt. */
    if (restore->request.operation == CAIRN_OP_VERIFY ||
        restore->choice.lost_members > restore->outcome.lost_members)
        restore->outcome.lost_members = restore->choice.lost_members;

    switch (restore->request.operation) {
    case CAIRN_OP_DRY_RUN:
        finish(scene, CAIRN_OK);
        return;
    case CAIRN_OP_VERIFY:
        if (!in_memory)
            finish_with(scene, CAIRN_NOT_FOUND, "no generation is in memory");
        else if (has_bad_blocks(restore))
            begin_verifying(scene);
        else
            finish(scene, CAIRN_OK);
        return;
    default:
        break;
    }
    if (!has_majority(scene, ask_count(&restore->ask), "answered"))
        return;
    if (in_memory)
        begin_verifying(scene);
    else
        begin_confirming(scene);
}

static void
choose(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    struct cairn_outcome *outcome = &restore->outcome;

    if (restore->request.operation == CAIRN_OP_FRESH) {
        choice_clear(&restore->choice);
        restore->choice.err = CAIRN_OK;
        outcome->text[0] = '\0';
        say(restore, "a fresh epoch: nothing is restored; what is held now is dropped after the "
                     "first commit");
        return;
    }
    if (restore->request.operation == CAIRN_OP_VERIFY)
        judge_forget_uncommitted(&restore->ask);
    if (ask_count(&restore->ask) > restore->excluded_from)
        restore->choice.excluded_count = 0; /* another agent may hold what was missing */
    judge_choose(scene->env, scene->membership, &restore->ask, keeps(restore), &restore->choice,
                 outcome->text, sizeof outcome->text);
    outcome->generation = restore->choice.generation;
}

static void
listed(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    bool verifies = restore->request.operation == CAIRN_OP_VERIFY;

    if (judge_is_behind(scene->membership, &restore->ask)) {
        if (scene->env->now_ns >= restore->deadline_ns)
            finish_with(scene, CAIRN_AGAIN, "the record of a newer epoch does not arrive");
        return; /* the activation begins the next attempt */
    }
    if (!can_join(scene)) {
        finish_with(scene, CAIRN_AGAIN,
                    "not all ranks of the job are attached to agents that answer");
        return;
    }
    choose(scene);
    if (must_wait(scene))
        return; /* looked at again with every answer and tick */
    if (verifies && (restore->choice.err || restore->choice.lost_members > 0) &&
        restore->attempts < RESTORE_ATTEMPTS_MAX)
        try_again(scene, CAIRN_AGAIN, "a generation was committed while parts were compared");
    else if (accepts_choice(scene))
        proceed(scene);
}

/* ---- what happens ---- */

/* The round of questions is over: all that are waited for answered, or in time. */
static void
asked(const struct scene *scene)
{
    struct restore *restore = scene->restore;
    bool late = scene->env->now_ns >= restore->deadline_ns;

    if (restore->state != RESTORE_LISTING && restore->state != RESTORE_VERIFYING &&
        restore->state != RESTORE_CONFIRMING)
        return;
    if (!late &&
        !ask_is_answered(scene->env, &restore->ask, scene->peers, expects_newcomers(scene)))
        return;
    if (restore->state == RESTORE_LISTING) {
        listed(scene);
    } else if (!ask_is_answered(scene->env, &restore->ask, scene->peers, false)) {
        ask_ignore_silent(&restore->ask);
        try_again(scene, CAIRN_TIMEOUT, "an agent stopped answering");
    } else if (restore->state == RESTORE_VERIFYING) {
        verified(scene);
    } else {
        confirmed(scene);
    }
}

/* Another epoch began: what was asked is out of date. If trainers began with it, they may run well,
 * and the operator's request may be older than they are: it must not stop them. */
static bool
is_outdated(const struct scene *scene)
{
    const struct record *record = &scene->membership->record;

    if (scene->restore->ask.epoch == record->epoch)
        return false;
    if (restarts_trainers(&scene->restore->request) &&
        record->restart_epoch > scene->restore->ask.epoch)
        finish_with(scene, CAIRN_AGAIN,
                    "another restore has ended meanwhile; if its trainers do not run, try again");
    else
        overtaken(scene, CAIRN_AGAIN, "another epoch began meanwhile");
    return true;
}

cairn_err
restore_start(struct env *env, struct restore *restore, const struct membership *membership,
              const struct peers *peers, const struct restore_request *request)
{
    const struct scene scene = {env, restore, membership, peers};
    uint32_t n = env->options->agent_count;
    cairn_err err;

    CAIRN_ASSERT(restore_is_idle(restore));
    memset(&restore->outcome, 0, sizeof restore->outcome);
    err = ask_init(&restore->ask, n);
    if (err)
        return err;
    restore->no_room = calloc(cairn_bitset_words(n), sizeof *restore->no_room);
    restore->fleet = malloc(request->fleet_len + 1);
    if (!restore->no_room || !restore->fleet) {
        clear(restore);
        return CAIRN_NOMEM;
    }
    if (request->fleet_len > 0)
        memcpy(restore->fleet, request->fleet, request->fleet_len);
    restore->request = *request;
    restore->request.fleet = NULL;
    restore->outcome.operation = request->operation;
    restore->outcome.request = request->request;
    restore->silence_until_ns = env->now_ns + SILENCE_FACTOR * env->options->dead_after_ns;
    begin_listing(&scene);
    return CAIRN_OK;
}

void
restore_message(struct env *env, struct restore *restore, const struct membership *membership,
                const struct peers *peers, const struct cairn_message *message)
{
    const struct scene scene = {env, restore, membership, peers};

    if (restore_is_idle(restore) || is_outdated(&scene))
        return;
    switch (message->kind) {
    case CAIRN_MSG_INVENTORY:
        if (ask_take(&restore->ask, membership->promised, message))
            asked(&scene);
        break;
    case CAIRN_MSG_REBUILT:
        take_rebuilt(&scene, message);
        break;
    case CAIRN_MSG_PROMISE:
        take_promise(&scene, message);
        break;
    default:
        break;
    }
}

void
restore_peer_up(struct env *env, struct restore *restore, const struct membership *membership,
                const struct peers *peers, uint32_t agent)
{
    (void)membership;
    (void)peers;
    switch (restore->state) {
    case RESTORE_LISTING:
    case RESTORE_VERIFYING:
    case RESTORE_CONFIRMING:
        ask_peer_up(env, &restore->ask, agent);
        break;
    case RESTORE_CLAIMING:
        claim_peer_up(env, &restore->claim, agent);
        break;
    case RESTORE_IDLE:
    case RESTORE_REBUILDING:
    case RESTORE_ACTIVATING:
        break;
    }
}

void
restore_peer_down(struct env *env, struct restore *restore, const struct membership *membership,
                  const struct peers *peers, uint32_t agent)
{
    const struct scene scene = {env, restore, membership, peers};
    char text[80];
    bool needed = false;

    switch (restore->state) {
    case RESTORE_LISTING:
        ask_forget(&restore->ask, agent);
        break;
    case RESTORE_VERIFYING:
    case RESTORE_CONFIRMING:
        needed = restore->ask.inventories[agent].known;
        break;
    case RESTORE_REBUILDING:
        needed = takes_part(&restore->rebuild.plan, agent);
        break;
    case RESTORE_CLAIMING:
        needed = claim_waits_for(&restore->claim, agent);
        break;
    case RESTORE_ACTIVATING:
    case RESTORE_IDLE:
        break;
    }
    if (!needed)
        return;
    snprintf(text, sizeof text, "the session with agent %u ended", agent);
    try_again(&scene, CAIRN_PEER, text);
}

void
restore_tick(struct env *env, struct restore *restore, const struct membership *membership,
             const struct peers *peers)
{
    const struct scene scene = {env, restore, membership, peers};

    if (restore_is_idle(restore) || is_outdated(&scene))
        return;
    asked(&scene);
    if (env->now_ns < restore->deadline_ns)
        return;
    if (restore->state == RESTORE_REBUILDING) {
        for (uint32_t m = 0; m < restore->rebuild.plan.roster->member_count; m++)
            if (restore->rebuild.plan.targets[m] != UINT32_MAX &&
                !cairn_bitset_has(restore->rebuild.done, m))
                cairn_bitset_add(restore->no_room, restore->rebuild.plan.targets[m]);
        try_again(&scene, CAIRN_TIMEOUT, "the repair made no progress");
    } else if (restore->state == RESTORE_CLAIMING) {
        for (uint32_t a = 0; a < env->options->agent_count; a++)
            if (claim_waits_for(&restore->claim, a))
                cairn_bitset_add(restore->ask.ignored, a);
        try_again(&scene, CAIRN_TIMEOUT, "an agent did not answer the claim");
    }
}

void
restore_activated(struct env *env, struct restore *restore, const struct membership *membership,
                  const struct peers *peers)
{
    const struct scene scene = {env, restore, membership, peers};

    if (restore->state == RESTORE_ACTIVATING && restore->claim.epoch == membership->record.epoch)
        finish(&scene, CAIRN_OK);
}

void
restore_stood_still(struct restore *restore, uint64_t gap_ns)
{
    restore->deadline_ns += gap_ns;
    restore->silence_until_ns += gap_ns;
}

const struct cairn_outcome *
restore_outcome(const struct restore *restore)
{
    return &restore->outcome;
}
