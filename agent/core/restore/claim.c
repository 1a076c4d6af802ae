/* agent/core/restore/claim.c - see claim.h. */
#include "agent/core/restore/claim.h"

#include "agent/core/restore/members.h"

#include <stdlib.h>
#include <string.h>

uint32_t
claim_ask(const struct env *env, struct restore *restore)
{
    const struct inventory *inventories = restore->inventories;
    uint32_t n = env->options->agent_count, forgotten = 0, remember = 0, count = 0;
    bool begins;

    for (uint32_t a = 0; a < n; a++) {
        forgotten += inventories[a].known && !inventories[a].self.knows;
        remember += inventories[a].known && inventories[a].self.knows;
    }
    begins = forgotten > n / 2 && (restore_knows_all(restore) || !restore->request.by_itself);
    for (uint32_t a = 0; a < n; a++) {
        restore->parties[a].asked =
            inventories[a].known &&
            (inventories[a].self.knows || CAIRN_PLANTED(env, BUG_FORGET_PROMISE) || begins ||
             remember >= (n + 1) / 2);
        count += restore->parties[a].asked;
    }
    return count;
}

/* The round after the newest that anyone promised, or that is spilled: what is restored from files
 * must be older than the epoch that begins with it. Where too few remember to tell which rounds
 * there were, and a silent agent may be in one, the round is taken from this start's incarnation,
 * which is never used twice either (R1). */
static uint64_t
next_epoch(const struct env *env, const struct restore *restore)
{
    const struct inventory *inventories = restore->inventories;
    uint32_t n = env->options->agent_count, remember = 0;
    uint64_t highest = max_u64(env->membership->promised, restore->choice.generation.epoch), round;

    for (uint32_t a = 0; a < n; a++) {
        remember += inventories[a].known && inventories[a].self.knows;
        highest = max_u64(highest,
                          max_u64(inventories[a].self.promised, inventories[a].self.spilled.epoch));
    }
    round = (highest >> EPOCH_CLAIMANT_BITS) + 1;
    if (remember <= n / 2 && !restore_knows_all(restore))
        round = max_u64(round, env->options->incarnation / CAIRN_INCARNATION_STEP);
    return round << EPOCH_CLAIMANT_BITS | env->options->self;
}

static cairn_err
next_roster(const struct env *env, const struct record *old, const struct restore *restore,
            struct cairn_roster **out, char *text, size_t text_bytes)
{
    const struct members_basis basis = {.inventories = restore->inventories,
                                        .old = old->epoch ? old->roster : NULL,
                                        .epoch = old->epoch,
                                        .joining = restore->request.joining,
                                        .plan = restore->plan.roster ? &restore->plan : NULL,
                                        .generation = restore->choice.generation};

    if (!restore_keeps(restore) || !basis.old || basis.joining)
        return members_next(env->options, &basis, out, text, text_bytes);
    *out = cairn_roster_hold(old->roster);
    return CAIRN_OK;
}

cairn_err
claim_pack(const struct env *env, struct restore *restore, char *text, size_t text_bytes)
{
    const struct restore_request *request = &restore->request;
    const struct record *old = &env->membership->record;
    uint32_t n = env->options->agent_count;
    bool has_fleet = request->op.operation == CAIRN_OP_FLEET;
    /* Pointers are borrowed, but for the roster and `seen`. */
    struct record record = {.epoch = next_epoch(env, restore),
                            .restart_epoch = old->restart_epoch,
                            .ready = restore->choice.generation,
                            .ready_from_files = restore->choice.from_files,
                            .ready_roster = restore->plan.roster,
                            .holders = restore->plan.holders,
                            .agent_count = n,
                            .seen = calloc(n, sizeof *record.seen),
                            .fleet = has_fleet ? restore->fleet : old->fleet,
                            .fleet_len =
                                has_fleet ? (uint32_t)request->op.fleet_len : old->fleet_len};
    cairn_err err = CAIRN_NOMEM;

    if (!record.seen)
        goto done;
    if (restore_restarts(restore) || (request->joining && CAIRN_PLANTED(env, BUG_JOIN_RESTARTS)))
        record.restart_epoch = record.epoch;
    for (uint32_t a = 0; a < n; a++)
        record.seen[a] = (struct record_seen){restore->inventories[a].self.incarnation,
                                              restore->inventories[a].version};
    err = next_roster(env, old, restore, &record.roster, text, text_bytes);
    if (!err)
        err = record_pack(&record, &restore->bytes, &restore->len);
    if (!err)
        restore->claimed = record.epoch;
done:
    cairn_roster_drop(record.roster);
    free(record.seen);
    return err;
}
