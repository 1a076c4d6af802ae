/*
 * agent/core/restore_watch.c - why an agent starts a restore that nobody asked for: a part is
 * missing, a restore was left unfinished or failed, a vote does not come, or a restore did not hear
 * this agent.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <inttypes.h>

/* Why this agent should start a restore by itself; NULL: it should not. */
struct restore_call {
    const char *reason;
    uint64_t patience_ns; /* how long the reason must have lasted */
    bool joining;
};

/* Some member's part of the ready generation is with nobody who is alive. */
static bool
part_is_missing(const struct cairn_core *core)
{
    if (core->ready.step == 0 || core->ready_from_files || !core->ready_table)
        return false;
    for (uint32_t m = 0; m < core->ready_table->member_count; m++) {
        uint32_t holder = core->holders[m];
        struct cairn_generation held;

        if (!agent_maybe_alive(core, holder))
            return true;
        if (holder == core->options.self || !agent_alive(core, holder))
            continue;
        held.epoch = core->peers[holder].holds_epoch;
        held.step = core->peers[holder].holds;
        /* Behind by a heartbeat is no loss: it must have stood still behind for as long as a dead
         * agent is waited for. */
        if (cairn_generation_compare(held, core->ready) < 0 &&
            core->now_ns - core->peers[holder].holds_ns >= core->options.repair_after_ns)
            return true;
    }
    return false;
}

/* A claimant that died, or took far too long, has left this agent frozen. */
static bool
left_frozen(const struct cairn_core *core)
{
    uint64_t frozen_for_ns = core->now_ns - core->frozen_ns;

    if (!core->frozen)
        return false;
    return frozen_for_ns > 2 * core->options.rebuild_timeout_ns ||
           (!agent_maybe_alive(core, epoch_claimant(core->promised)) &&
            frozen_for_ns > core->options.claim_timeout_ns) ||
           (epoch_claimant(core->promised) == core->options.self &&
            frozen_for_ns > core->options.claim_timeout_ns);
}

/* The lowest live agent goes first, the others later, in case it cannot. */
static struct restore_call
restore_called_for(const struct cairn_core *core)
{
    struct restore_call call = {.patience_ns = core->options.claim_timeout_ns};
    uint64_t before = 0;

    if (left_frozen(core)) {
        call.reason = "an unfinished restore";
    } else if (core->frozen) {
        return call;
    } else if (!core->settled && core->committed.step == 0 && !join_called_for(core)) {
        /* A late agent decides the same by joining, and leaves the rest to the members, who are
         * alive. */
        call.reason = "a restore that failed";
        call.patience_ns *= 2;
    } else if (facts_stuck(core)) {
        call.reason = "a vote that does not come";
    } else if (core->options.repair_after_ns != 0 && part_is_missing(core)) {
        call.reason = "a part is missing";
        call.patience_ns = core->options.repair_after_ns;
    } else if (join_called_for(core)) {
        return (struct restore_call){"trainers here, and no member", join_patience_ns(core), true};
    }
    if (epoch_claimant(core->promised) == core->options.self && core->frozen)
        return call;
    for (uint32_t a = 0; a < core->options.self && before < 6; a++)
        before += agent_alive(core, a);
    call.patience_ns += before * core->options.claim_timeout_ns;
    return call;
}

void
restore_watch(struct cairn_core *core)
{
    struct restore_call call = restore_called_for(core);

    if (!call.reason) {
        core->repair_wait_ns = 0;
        return;
    }
    if (core->repair_wait_ns == 0)
        core->repair_wait_ns = core->now_ns;
    if (core->now_ns - core->repair_wait_ns < call.patience_ns)
        return;
    CAIRN_LOG_AT(INFO, "repair: start reason=\"%s\" epoch=%" PRIu64 " step=%" PRIu64, call.reason,
                 core->ready.epoch >> EPOCH_CLAIMANT_BITS, core->ready.step);
    if (restore_start(core, CAIRN_OP_RESTORE, true, 0) == CAIRN_OK) {
        core->restore.unfreeze = core->frozen;
        /* A late agent leaves that to the members, where these repair by themselves. */
        core->restore.may_begin_anew = !core->frozen && core->own_ranks > 0 &&
                                       !(call.joining && core->options.repair_after_ns != 0);
        core->restore.joining = call.joining;
        core->joins_tried += call.joining;
        core->repair_wait_ns = core->now_ns;
    }
}
