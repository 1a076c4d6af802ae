/*
 * agent/core/restore_claim.c - claiming a new epoch: promised by a majority, and by everyone else
 * who seems alive in time.
 */
#include "agent/core/core_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void
restore_send_claim(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    struct cairn_message claim = message_new(core, CAIRN_MSG_CLAIM, restore->epoch);

    claim.request = restore->attempt;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (!cairn_bitset_has(restore->promised, a) || !restore->inventories[a].known)
            send_message(core, a, &claim);
    restore->sent_ns = core->now_ns;
}

void
restore_begin_claim(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    uint64_t highest = core->promised;

    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (restore->inventories[a].known && restore->inventories[a].promised > highest)
            highest = restore->inventories[a].promised;
    restore->state = RESTORE_CLAIMING;
    restore->attempt = 1;
    restore->epoch =
        (((highest >> EPOCH_CLAIMANT_BITS) + 1) << EPOCH_CLAIMANT_BITS) | core->options.self;
    restore->deadline_ns = core->now_ns + core->options.claim_timeout_ns;
    restore_forget(core);
    restore_send_claim(core);
}

void
restore_begin_gathering(struct cairn_core *core)
{
    struct restore *restore = &core->restore;

    restore->state = RESTORE_GATHERING;
    restore->deadline_ns = core->now_ns + core->options.rebuild_timeout_ns;
    restore->patient_until_ns = core->now_ns + core->options.claim_timeout_ns;
    restore->silence_until_ns = core->now_ns + SILENCE_FACTOR * core->options.dead_after_ns;
}

bool
restore_majority(const struct cairn_core *core, const uint64_t *set)
{
    return cairn_bitset_count(set, core->options.agent_count) > core->options.agent_count / 2;
}

/* Goes on once everyone alive has promised, or with a majority when the time is over. */
void
restore_claim_progress(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    char text[200];

    if (core->now_ns < restore->deadline_ns) {
        for (uint32_t a = 0; a < core->options.agent_count; a++)
            if (!cairn_bitset_has(restore->promised, a) &&
                (agent_maybe_alive(core, a) || cairn_bitset_has(restore->answered, a)))
                return;
    }
    if (!restore_majority(core, restore->promised)) {
        if (core->now_ns < restore->deadline_ns)
            return;
        snprintf(text, sizeof text,
                 "only %u of the job's %u agents promised the new epoch; more than half must: "
                 "start the missing agents "
                 "and try again",
                 cairn_bitset_count(restore->promised, core->options.agent_count),
                 core->options.agent_count);
        core->outcome.text[0] = '\0';
        restore_say(core, text);
        restore_finish(core, CAIRN_AGAIN);
        return;
    }
    restore_begin_gathering(core);
    if (restore_heard_all(core))
        restore_gathered(core);
}

void
restore_promise(struct cairn_core *core, const struct cairn_message *message)
{
    struct restore *restore = &core->restore;

    if ((restore->state != RESTORE_CLAIMING && restore->state != RESTORE_GATHERING) ||
        message->epoch != restore->epoch || message->from >= core->options.agent_count)
        return;
    cairn_bitset_add(restore->promised, message->from);
    if (restore->state == RESTORE_CLAIMING)
        restore_claim_progress(core);
}

void
restore_refusal(struct cairn_core *core, const struct cairn_message *message)
{
    struct restore *restore = &core->restore;
    char text[160];

    if (restore->state < RESTORE_CLAIMING || message->epoch != restore->epoch)
        return;
    snprintf(text, sizeof text,
             "agent %u has promised epoch %" PRIu64 " to agent %u: another restore is under way",
             message->from, message->offset >> EPOCH_CLAIMANT_BITS,
             epoch_claimant(message->offset));
    core->outcome.text[0] = '\0';
    restore_say(core, text);
    restore_finish(core, CAIRN_STALE);
}
