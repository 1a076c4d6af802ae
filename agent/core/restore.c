/*
 * agent/core/restore.c - the coordinator of a restore, a dry run, a verify, or a repair that nobody
 * asked for.
 *
 *   QUERYING    ask every agent what it holds, without a claim; nothing restorable ends here
 *   CLAIMING    a new epoch, promised durably by a majority of the job's agents
 *   GATHERING   what they hold now that they are frozen, compared with its checksums
 *   REBUILDING  lost parts are decoded onto their old agents, onto spares, or hosted by survivors
 *   ACTIVATING  everyone stores the epoch, its members, and who holds which part of the generation
 *
 * Any agent can coordinate; one that dies leaves agents frozen at worst, and one of those then
 * starts again (the lowest live one first). Every request is repeated until it is answered or its
 * deadline passes.
 *
 * A rebuild that fails on the way (a holder has restarted, bytes arrive wrong) gathers the
 * inventories again. Only what is proved to be beyond repair is left out of the choice: everything
 * else ends in an error, and the fence is lifted by an activation that changes and drops nothing
 * (not settled), so that a later try finds all that is there now.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
restore_say(struct cairn_core *core, const char *text)
{
    size_t used = strlen(core->outcome.text);

    snprintf(core->outcome.text + used, sizeof core->outcome.text - used, "%s\n", text);
}

void
restore_fini(struct restore *restore)
{
    if (restore->inventories)
        free(restore->inventories);
    free(restore->promised);
    free(restore->done);
    free(restore->holders);
    free(restore->targets);
    free(restore->no_room);
    free(restore->answered);
    free(restore->written);
    free(restore->plan);
    free(restore->record);
    cairn_roster_drop(restore->table);
    memset(restore, 0, sizeof *restore);
}

void
restore_forget(struct cairn_core *core)
{
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        inventory_fini(&core->restore.inventories[a]);
}

void
restore_finish(struct cairn_core *core, cairn_err err)
{
    struct restore *restore = &core->restore;
    struct cairn_action *action;

    core->outcome.operation = restore->operation;
    core->outcome.request = restore->request;
    core->outcome.err = err;
    core->outcome.epoch = restore->state == RESTORE_ACTIVATING ? restore->epoch : core->active;
    if (!restore->by_itself) {
        action = action_add(core, CAIRN_ACTION_REPLY);
        if (action) {
            action->request = restore->request;
            action->err = err;
            action->generation = core->outcome.generation;
            action_bytes(core, action, core->outcome.text, strlen(core->outcome.text) + 1);
        }
    } else {
        for (char *at = strchr(core->outcome.text, '\n'); at; at = strchr(at, '\n'))
            *at = at[1] ? ';' : '\0';
        CAIRN_LOG_AT(INFO, "repair: ended result=\"%s\" %s", cairn_err_text(err),
                     core->outcome.text);
    }
    restore_forget(core);
    restore_fini(restore);
    core->repair_wait_ns = 0;
}

/* ---- activating ---- */

static void
send_activate(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    struct cairn_message message = message_new(core, CAIRN_MSG_ACTIVATE, restore->epoch);

    message.bytes = restore->record;
    message.bytes_len = (uint32_t)restore->record_len;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (cairn_bitset_has(restore->promised, a) && !cairn_bitset_has(restore->done, a))
            send_message(core, a, &message);
    restore->sent_ns = core->now_ns;
}

static void
begin_activate(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    cairn_err err = restore->choice.err ? restore_pack_unsettled(core) : restore_pack_settled(core);

    if (err) {
        restore_say(core, "the new epoch's members cannot be laid out");
        restore_finish(core, err);
        return;
    }
    restore->state = RESTORE_ACTIVATING;
    restore->deadline_ns = core->now_ns + core->options.claim_timeout_ns;
    memset(restore->done, 0, cairn_bitset_words(CAIRN_NODES_MAX) * sizeof(uint64_t));
    send_activate(core);
}

static void
activate_progress(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    bool all = true;

    for (uint32_t a = 0; a < core->options.agent_count; a++)
        all &= !cairn_bitset_has(restore->promised, a) || cairn_bitset_has(restore->done, a);
    if (!all && core->now_ns < restore->deadline_ns)
        return;
    if (!all && !restore_majority(core, restore->done)) {
        restore_say(core, "the agents that promised do not answer any more");
        restore_finish(core, CAIRN_PEER);
        return;
    }
    restore_finish(core, restore->choice.err);
}

/* ---- the way through ---- */

/* What was claimed must be activated even so, with everything left as it was, or every agent would
 * stay frozen. */
static void
fail(struct cairn_core *core, cairn_err err, const char *text)
{
    restore_say(core, text);
    core->restore.choice.err = err;
    if (core->restore.operation == CAIRN_OP_VERIFY)
        restore_finish(core, err);
    else
        begin_activate(core);
}

static void
begin_rebuild(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    cairn_err err = restore_plan(core);

    if (err) {
        fail(core, err, "no agent can take the lost parts");
        return;
    }
    restore->plan_number++;
    restore->state = RESTORE_REBUILDING;
    restore->deadline_ns = core->now_ns + core->options.rebuild_timeout_ns;
    if (!restore_rebuilt(restore) && !CAIRN_PLANTED(core, BUG_ACTIVATE_EARLY)) {
        restore_send_plan(core);
        return;
    }
    if (restore->operation == CAIRN_OP_VERIFY)
        restore_finish(core, CAIRN_OK);
    else
        begin_activate(core);
}

/* All inventories that will come are here, and everyone that sent one is frozen. */
void
restore_gathered(struct cairn_core *core)
{
    struct restore *restore = &core->restore;

    if (restore_behind(core)) {
        if (core->now_ns < restore->deadline_ns)
            return;
        restore_say(core, "the record of a newer epoch does not arrive");
        restore_finish(core, CAIRN_AGAIN);
        return;
    }
    if (restore->joining && !join_possible(core)) {
        if (!restore_may_be_answered(core))
            fail(core, CAIRN_AGAIN, "a member does not answer any more: nothing was changed");
        return;
    }
    if (restore->operation == CAIRN_OP_FRESH) {
        restore_say(core, "a fresh epoch: nothing is restored; what was held until now is given up "
                          "with the first "
                          "generation that is committed");
        begin_activate(core);
        return;
    }
    restore_choose(core);
    if (restore->joining && join_from_nothing(core)) {
        restore->operation = CAIRN_OP_FRESH;
        restore->choice.err = CAIRN_OK;
        begin_activate(core);
        return;
    }
    if (restore_must_wait(core))
        return; /* looked at again with every tick */
    if (restore->choice.err && restore->may_begin_anew && restore_heard_everyone(core)) {
        restore_say(core,
                    "all agents answered and nothing can be restored; what runs is protected anew");
        restore->operation = CAIRN_OP_FRESH;
        restore->choice.err = CAIRN_OK;
        begin_activate(core);
        return;
    }
    if (restore->choice.err)
        fail(core, restore->choice.err, "nothing was changed: all that is held stays held");
    else if (restore->choice.from_files)
        begin_activate(core);
    else
        begin_rebuild(core);
}

/* The rebuild failed for a reason that may be gone: everything is asked for, and compared, again.
 */
static void
gather_again(struct cairn_core *core, cairn_err err, const char *text)
{
    struct restore *restore = &core->restore;

    if (restore->attempt >= GATHER_ATTEMPTS_MAX) {
        fail(core, err, text);
        return;
    }
    CAIRN_LOG_AT(WARN, "restore: %s; once more", text);
    restore->attempt++;
    restore_begin_gathering(core);
    restore_forget(core);
    restore_send_claim(core);
}

/*
 * Whoever promises is frozen until an epoch is active, and no epoch is without a majority. So a
 * restore that nobody asked for claims nothing where too few have answered: what they protect among
 * themselves would stop until others come back.
 */
static void
claim(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    uint32_t known = 0;

    for (uint32_t a = 0; a < core->options.agent_count; a++)
        known += restore->inventories[a].known;
    if (restore->by_itself && !core->frozen && known <= core->options.agent_count / 2) {
        restore_say(core, "not more than half of the job's agents answered: nothing is claimed");
        restore_finish(core, CAIRN_AGAIN);
        return;
    }
    restore_begin_claim(core);
}

static void
queried(struct cairn_core *core)
{
    struct restore *restore = &core->restore;

    if (restore_behind(core) &&
        core->now_ns < restore->deadline_ns + core->options.claim_timeout_ns)
        return; /* asked again with every tick */
    if (restore->joining && !join_possible(core)) {
        restore_say(core, "not all ranks of the job are attached to agents that answer");
        restore_finish(core, CAIRN_AGAIN);
        return;
    }
    if (restore->operation == CAIRN_OP_FRESH) {
        claim(core);
        return;
    }
    restore_choose(core);
    if (restore->joining && join_from_nothing(core)) {
        claim(core);
        return;
    }
    if (restore_must_wait(core))
        return;
    if (restore->choice.err && restore->may_begin_anew && restore_heard_everyone(core)) {
        claim(core);
        return;
    }
    if (restore->choice.err && restore->unfreeze && core->frozen) {
        claim(core); /* nothing can be restored now, but nobody may stay frozen */
        return;
    }
    if (restore->operation == CAIRN_OP_DRY_RUN || restore->choice.err) {
        restore_finish(core, restore->choice.err);
        return;
    }
    if (restore->operation == CAIRN_OP_RESTORE) {
        claim(core);
        return;
    }
    if (restore->choice.from_files) {
        restore_finish(core, CAIRN_NOT_FOUND);
        return;
    }
    restore->epoch = core->active;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (restore->inventories[a].known)
            cairn_bitset_add(restore->promised, a);
    begin_rebuild(core);
}

static void
take_inventory(struct cairn_core *core, const struct cairn_message *message)
{
    struct restore *restore = &core->restore;
    struct inventory inventory = {0};
    struct cairn_reader reader;
    bool claimed = restore->state == RESTORE_CLAIMING || restore->state == RESTORE_GATHERING;
    bool wanted =
        (restore->state == RESTORE_QUERYING && message->request == restore->epoch) ||
        (claimed && message->epoch == restore->epoch && message->request == restore->attempt);

    if (!wanted || message->from >= core->options.agent_count)
        return;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    if (inventory_read(&reader, &inventory) != CAIRN_OK)
        return;
    inventory_fini(&restore->inventories[message->from]);
    restore->inventories[message->from] = inventory;
    restore->choice.excluded_count =
        0; /* what was beyond repair without this one may not be with it */
    if (!claimed)
        cairn_bitset_add(restore->answered, message->from);
    if (claimed)
        cairn_bitset_add(restore->promised,
                         message->from); /* the promise itself may have been lost */
    if (restore->state == RESTORE_GATHERING && restore_heard_all(core))
        restore_gathered(core);
    else if (restore->state == RESTORE_QUERYING && restore_heard_all(core))
        queried(core);
}

static void
take_rebuilt(struct cairn_core *core, const struct cairn_message *message)
{
    struct restore *restore = &core->restore;

    if (restore->state != RESTORE_REBUILDING || message->epoch != restore->epoch ||
        message->request != restore->plan_number ||
        !generation_is(message->generation, restore->choice.generation) ||
        message->member >= restore->table->member_count ||
        restore->targets[message->member] != message->from)
        return; /* of an earlier plan, which may have had another target */
    if (message->offset > restore->written[message->member] ||
        (message->row == 0 && !cairn_bitset_has(restore->done, message->member)))
        restore->deadline_ns = core->now_ns + core->options.rebuild_timeout_ns;
    restore->written[message->member] = message->offset;
    if (message->row == 1)
        return; /* on its way */
    if (!cairn_bitset_has(restore->done, message->member)) {
        cairn_bitset_add(restore->done, message->member);
        if (restore->holders[message->member] == UINT32_MAX)
            core->outcome.rebuilt_blocks += message->offset;
        else
            core->outcome.repaired_blocks += message->offset;
    }
    if (!restore_rebuilt(restore))
        return;
    if (restore->operation == CAIRN_OP_VERIFY)
        restore_finish(core, CAIRN_OK);
    else
        begin_activate(core);
}

/*
 * What a worker proved to be damaged beyond repair is left out of the choice; who has no room for a
 * part is left out of the targets; the same wrong bytes again and again are damage that no checksum
 * shows. All else may pass.
 */
static void
take_failure(struct cairn_core *core, const struct cairn_message *message)
{
    struct restore *restore = &core->restore;
    cairn_err err = (cairn_err)message->err;
    char text[200];

    if (restore->state != RESTORE_REBUILDING || message->epoch != restore->epoch ||
        message->request != restore->plan_number || message->from >= core->options.agent_count ||
        !generation_is(message->generation, restore->choice.generation))
        return;
    snprintf(text, sizeof text, "agent %u cannot take its part in the rebuild: %s", message->from,
             cairn_err_text(err));
    restore->corrupt_count += err == CAIRN_CORRUPT;
    if (restore->operation == CAIRN_OP_VERIFY) {
        fail(core, err, text);
    } else if (err == CAIRN_NOMEM && !cairn_bitset_has(restore->no_room, message->from)) {
        CAIRN_LOG_AT(WARN, "restore: %s", text);
        cairn_bitset_add(restore->no_room, message->from);
        begin_rebuild(core);
    } else if ((err == CAIRN_LOST && message->row == 1) || restore->corrupt_count > 2) {
        if (!restore_heard_everyone(core) && !restore->want_all) {
            restore->want_all = true; /* whoever has not answered may hold what is missing */
            gather_again(core, CAIRN_LOST, text);
            return;
        }
        if (restore->choice.excluded_count == 4) {
            fail(core, CAIRN_LOST, text);
            return;
        }
        CAIRN_LOG_AT(WARN, "restore: %s", text);
        restore->corrupt_count = 0;
        restore->choice.excluded[restore->choice.excluded_count++] = restore->choice.generation;
        restore_begin_gathering(core);
        restore_gathered(core);
    } else {
        gather_again(core, err == CAIRN_LOST ? CAIRN_AGAIN : err, text);
    }
}

void
restore_message(struct cairn_core *core, const struct cairn_message *message)
{
    switch (message->type) {
    case CAIRN_MSG_PROMISE:
        restore_promise(core, message);
        break;
    case CAIRN_MSG_REFUSE:
        restore_refusal(core, message);
        break;
    case CAIRN_MSG_INVENTORY:
        take_inventory(core, message);
        break;
    case CAIRN_MSG_REBUILT:
        take_rebuilt(core, message);
        break;
    case CAIRN_MSG_REBUILD_FAILED:
        take_failure(core, message);
        break;
    case CAIRN_MSG_ACTIVATE_ACK:
        if (core->restore.state == RESTORE_ACTIVATING && message->epoch == core->restore.epoch &&
            message->from < core->options.agent_count) {
            cairn_bitset_add(core->restore.done, message->from);
            activate_progress(core);
        }
        break;
    case CAIRN_MSG_SNAPSHOT_AT:
        due_message(core, message);
        break;
    default:
        break;
    }
}

/* ---- in time ---- */

static void
resend(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    struct cairn_message query;

    if (core->now_ns - restore->sent_ns < core->options.resend_after_ns)
        return;
    switch (restore->state) {
    case RESTORE_QUERYING:
        query = message_new(core, CAIRN_MSG_QUERY, core->active);
        query.row = restore->operation == CAIRN_OP_VERIFY;
        query.request = restore->epoch;
        for (uint32_t a = 0; a < core->options.agent_count; a++)
            if (!restore->inventories[a].known)
                send_message(core, a, &query);
        restore->sent_ns = core->now_ns;
        break;
    case RESTORE_CLAIMING:
    case RESTORE_GATHERING:
        restore_send_claim(core); /* to all whose promise or inventory is missing */
        break;
    case RESTORE_REBUILDING:
        restore_send_plan(core);
        break;
    case RESTORE_ACTIVATING:
        send_activate(core);
        break;
    case RESTORE_IDLE:
        break;
    }
}

/* An agent that dies in the middle of a rebuild is left out, and the rest is planned again. */
static void
watch_rebuild(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    bool changed = false;

    if (core->now_ns >= restore->deadline_ns) {
        fail(core, CAIRN_TIMEOUT, "the rebuild made no end in time");
        return;
    }
    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        if (!cairn_bitset_has(restore->promised, a) || !agent_given_up(core, a))
            continue;
        restore->promised[a / 64] &= ~(UINT64_C(1) << (a % 64));
        inventory_fini(&restore->inventories[a]);
        changed = true;
    }
    if (!changed)
        return;
    if (restore->operation == CAIRN_OP_VERIFY) {
        fail(core, CAIRN_PEER, "an agent died while damaged blocks were repaired");
        return;
    }
    if (!restore_majority(core, restore->promised)) {
        restore_say(core, "too many agents died during the restore");
        restore_finish(core, CAIRN_AGAIN);
        return;
    }
    restore_begin_gathering(core);
    restore_gathered(core);
}

void
restore_tick(struct cairn_core *core)
{
    struct restore *restore = &core->restore;

    if (restore->state == RESTORE_IDLE) {
        restore_watch(core);
        return;
    }
    if (restore->state > RESTORE_QUERYING && core->promised > restore->epoch) {
        restore_say(core, "a later restore has taken over");
        restore_finish(core, CAIRN_STALE);
        return;
    }
    if (restore->state == RESTORE_REBUILDING && restore->operation == CAIRN_OP_VERIFY &&
        cairn_generation_compare(core->committed, restore->choice.generation) > 0) {
        restore_say(core, "a newer generation was committed meanwhile");
        restore_finish(core, CAIRN_AGAIN);
        return;
    }
    resend(core);
    if (restore->state == RESTORE_QUERYING && restore_heard_all(core))
        queried(core);
    else if (restore->state == RESTORE_CLAIMING)
        restore_claim_progress(core);
    else if (restore->state == RESTORE_GATHERING && restore_heard_all(core))
        restore_gathered(core);
    else if (restore->state == RESTORE_ACTIVATING)
        activate_progress(core);
    else if (restore->state == RESTORE_REBUILDING)
        watch_rebuild(core);
}
