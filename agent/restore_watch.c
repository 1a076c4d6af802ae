/*
 * agent/restore_watch.c - why an agent starts a restore that nobody asked for: a part is missing, a
 * restore was left unfinished or failed, or a vote does not come.
 */
#include "agent/core_state.h"

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

/*
 * Why this agent should start a restore by itself, NULL for no reason; and how long the reason must
 * have lasted. The lowest live agent goes first, the others later, in case it cannot.
 */
const char *
restore_reason(const struct cairn_core *core, uint64_t *patience_ns)
{
    const char *reason = NULL;
    uint64_t before = 0;

    *patience_ns = core->options.claim_timeout_ns;
    if (left_frozen(core)) {
        reason = "an unfinished restore";
    } else if (core->frozen) {
        return NULL;
    } else if (!core->settled && core->committed.step == 0) {
        reason = "a restore that failed";
        *patience_ns *= 2;
    } else if (facts_stuck(core)) {
        reason = "a vote that does not come";
    } else if (core->options.repair_after_ns != 0 && part_is_missing(core)) {
        reason = "a part is missing";
        *patience_ns = core->options.repair_after_ns;
    }
    if (epoch_claimant(core->promised) == core->options.self && core->frozen)
        return reason;
    for (uint32_t a = 0; a < core->options.self && before < 6; a++)
        before += agent_alive(core, a);
    *patience_ns += before * core->options.claim_timeout_ns;
    return reason;
}
