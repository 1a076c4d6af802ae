/*
 * agent/core/restore_ask.c - the first half of a restore: who holds what, has everyone been heard,
 * and what is chosen from it.
 *
 * Good news is acted on as soon as everyone who seems alive has answered. Bad news (something is
 * lost, or must come from files) is believed only when all have answered, or claim_timeout has
 * passed.
 */
#include "agent/core/core_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
send_to_all(struct cairn_core *core, const struct cairn_message *message)
{
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        send_message(core, a, message);
}

cairn_err
restore_start(struct cairn_core *core, enum cairn_operation operation, bool by_itself,
              uint64_t request)
{
    struct restore *restore = &core->restore;
    struct cairn_message query;
    uint32_t n = core->options.agent_count;

    memset(restore, 0, sizeof *restore);
    restore->plan_number =
        core->now_ns; /* a verify keeps the epoch, so numbers must differ between restores too */
    restore->inventories = calloc(n, sizeof *restore->inventories);
    restore->promised = calloc(cairn_bitset_words(n), sizeof(uint64_t));
    restore->done = calloc(cairn_bitset_words(CAIRN_NODES_MAX), sizeof(uint64_t));
    restore->no_room = calloc(cairn_bitset_words(n), sizeof(uint64_t));
    restore->answered = calloc(cairn_bitset_words(n), sizeof(uint64_t));
    if (!restore->inventories || !restore->promised || !restore->done || !restore->no_room ||
        !restore->answered) {
        restore_fini(restore);
        return CAIRN_NOMEM;
    }
    memset(&core->outcome, 0, sizeof core->outcome);
    restore->state = RESTORE_QUERYING;
    restore->operation = operation;
    restore->by_itself = by_itself;
    restore->request = request;
    restore->started_ns = core->now_ns;
    restore->sent_ns = core->now_ns;
    restore->epoch = core->now_ns; /* only names the query until a claim replaces it */
    restore->patient_until_ns = core->now_ns + core->options.claim_timeout_ns;
    restore->silence_until_ns = core->now_ns + SILENCE_FACTOR * core->options.dead_after_ns;
    restore->deadline_ns =
        core->now_ns + (operation == CAIRN_OP_VERIFY ? core->options.rebuild_timeout_ns
                                                     : core->options.claim_timeout_ns);
    query = message_new(core, CAIRN_MSG_QUERY, core->active);
    query.row = operation == CAIRN_OP_VERIFY;
    query.request = restore->epoch;
    send_to_all(core, &query);
    return CAIRN_OK;
}

void
restore_operator(struct cairn_core *core, const struct cairn_event *event)
{
    struct cairn_action *action;
    char text[128] = "";
    cairn_err err = CAIRN_OK;

    if (event->operation == CAIRN_OP_SNAPSHOT) {
        if (core->frozen || core->self_member == UINT32_MAX || core->own_ranks == 0)
            err = CAIRN_NOT_FOUND; /* nobody trains here */
        else if (core->last_step == 0)
            err = CAIRN_AGAIN; /* an agent that has just started does not know where the job is */
        else
            snprintf(text, sizeof text, "%" PRIu64, due_ask(core));
    } else if (core->restore.state != RESTORE_IDLE) {
        err = CAIRN_AGAIN;
        snprintf(text, sizeof text, "this agent is busy with another restore or repair");
    } else {
        err = restore_start(core, event->operation, false, event->request);
        if (!err)
            return;
    }
    action = action_add(core, CAIRN_ACTION_REPLY);
    if (!action)
        return;
    action->request = event->request;
    action->err = err;
    action_bytes(core, action, text, strlen(text) + 1);
}

/*
 * An operator starts the agents of new machines and restores at once: whoever is configured gets
 * until the deadline to answer, though the others still take it for dead. Who misses it is no
 * member of the new epoch, and what trains on it not protected.
 */
static bool
may_be_new(const struct cairn_core *core, uint32_t agent)
{
    const struct restore *restore = &core->restore;

    return !restore->by_itself && !core->spares[agent] &&
           (restore->operation == CAIRN_OP_RESTORE || restore->operation == CAIRN_OP_FRESH);
}

/* True when everyone who may be alive has been heard, or the time is over. */
bool
restore_heard_all(const struct cairn_core *core)
{
    const struct restore *restore = &core->restore;

    if (core->now_ns >= restore->deadline_ns)
        return true;
    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        if (restore->inventories[a].known)
            continue;
        if (restore->state == RESTORE_GATHERING
                ? cairn_bitset_has(restore->promised, a) && !agent_given_up(core, a)
                : agent_maybe_alive(core, a) || may_be_new(core, a))
            return false; /* who promised compares its memory, for as long as that takes */
    }
    return true;
}

/*
 * True while somebody knows of a newer epoch than this agent: its members are those of that epoch,
 * so its record is asked for before anything is decided.
 */
bool
restore_behind(struct cairn_core *core)
{
    struct restore *restore = &core->restore;

    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        if (!restore->inventories[a].known || restore->inventories[a].active <= core->active)
            continue;
        if (core->now_ns - restore->sync_ns >= core->options.resend_after_ns) {
            restore->sync_ns = core->now_ns;
            epoch_sync(core, a);
        }
        return true;
    }
    return false;
}

/* Whoever reads that too much is lost must know who was not asked. */
static void
say_unheard(struct cairn_core *core)
{
    char text[160] = "";
    size_t used = 0;

    for (uint32_t a = 0; a < core->options.agent_count && used < sizeof text - 24; a++)
        if (!core->restore.inventories[a].known)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%u",
                                     used ? ", " : "no answer from agents ", a);
    if (used)
        restore_say(core, text);
}

/* From a few agents nobody can tell what the others hold: with no majority of answers nothing is
 * called lost. */
static void
call_lost_or_unknown(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    uint32_t known = 0;
    char text[200];

    for (uint32_t a = 0; a < core->options.agent_count; a++)
        known += restore->inventories[a].known;
    if (restore->choice.err != CAIRN_LOST || known > core->options.agent_count / 2)
        return;
    restore->choice.err = CAIRN_AGAIN;
    snprintf(text, sizeof text,
             "only %u of the job's %u agents answered: start the others, or new ones in their "
             "place, and try again; "
             "whether anything is lost can be told when more than half answer",
             known, core->options.agent_count);
    restore_say(core, text);
}

bool
restore_heard_everyone(const struct cairn_core *core)
{
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (!core->restore.inventories[a].known)
            return false;
    return true;
}

bool
restore_may_be_answered(const struct cairn_core *core)
{
    if (core->now_ns >= core->restore.silence_until_ns || CAIRN_PLANTED(core, BUG_HASTY_REBUILD))
        return false;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (!core->restore.inventories[a].known && !agent_given_up(core, a))
            return true;
    return false;
}

/*
 * That something is lost, or must come from files, is said for good only when all have answered or
 * have had time to: an agent that has just started is taken for dead by those that have not heard
 * its first beats. Nor is anything rebuilt while an agent that is silent may still have it: a host
 * that holds it up for some seconds would cost the network what a dead node costs.
 */
bool
restore_must_wait(const struct cairn_core *core)
{
    const struct restore *restore = &core->restore;
    const struct choice *choice = &restore->choice;
    bool bad = choice->err || choice->from_files || choice->passed_committed || restore->want_all;

    if (bad && core->now_ns < restore->patient_until_ns && !restore_heard_everyone(core))
        return true;
    return (bad || choice->lost_members > 0) && restore->operation != CAIRN_OP_VERIFY &&
           restore_may_be_answered(core);
}

/*
 * What an operator has decided stays so: a restore that nobody asked for looks at what the trainers
 * began with, and at what was made since. The rest is there for the next operator only.
 */
static void
forget_superseded(struct cairn_core *core)
{
    bool in_memory = !core->ready_from_files;

    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        struct inventory *inventory = &core->restore.inventories[a];
        uint32_t kept = 0;

        for (uint32_t h = 0; h < inventory->holding_count; h++) {
            struct inventory_holding *holding = &inventory->holdings[h];

            if (holding->generation.epoch >= core->restart_epoch ||
                (in_memory && generation_is(holding->generation, core->ready))) {
                inventory->holdings[kept++] = *holding;
                continue;
            }
            free(holding->bad);
            cairn_roster_drop(holding->table);
        }
        inventory->holding_count = kept;
        if (inventory->spilled.epoch < core->restart_epoch &&
            (in_memory || !generation_is(inventory->spilled, core->ready)))
            inventory->spilled = (struct cairn_generation){0, 0};
    }
}

void
restore_choose(struct cairn_core *core)
{
    struct restore *restore = &core->restore;

    if (restore->by_itself)
        forget_superseded(core);
    choose_generation(restore->inventories, core->options.agent_count, &restore->choice,
                      core->outcome.text, sizeof core->outcome.text);
    if (restore->joining && join_keeps_files(core)) {
        restore->choice.err = CAIRN_OK;
        restore->choice.from_files = true;
        restore->choice.generation = core->ready;
        restore_say(core, "what the trainers began with stays the spilled checkpoint that it was");
    }
    core->outcome.generation = restore->choice.generation;
    core->outcome.lost_members = restore->choice.lost_members;
    /* Only an operator goes back to less than what is committed; whoever is down for a while comes
     * back with it. */
    if (restore->by_itself && !restore->choice.err && !restore_heard_everyone(core) &&
        ((restore->choice.from_files && !restore->joining) || restore->choice.passed_committed)) {
        restore->choice.err = CAIRN_LOST;
        restore_say(
            core, "a repair that nobody asked for does not go back to it while agents are silent");
    }
    if (restore->choice.err)
        say_unheard(core);
    call_lost_or_unknown(core);
}
