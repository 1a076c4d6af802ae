/* agent/core/restore/claim.c - see claim.h. */
#include "agent/core/restore/claim.h"

#include "agent/core/restore/members.h"

#include <stdlib.h>
#include <string.h>

static bool
may_vote(const struct env *env, const struct ask *ask, uint32_t agent)
{
    uint32_t forgotten = ask_forgotten(ask), remember = ask_count(ask) - forgotten;

    return ask->inventories[agent].known &&
           (ask->inventories[agent].self.knows || CAIRN_PLANTED(env, BUG_FORGET_PROMISE) ||
            forgotten > ask->agent_count / 2 || remember >= (ask->agent_count + 1) / 2);
}

uint32_t
claim_voters(const struct env *env, const struct ask *ask)
{
    uint32_t count = 0;

    for (uint32_t a = 0; a < ask->agent_count; a++)
        count += may_vote(env, ask, a);
    return count;
}

/* The round after the newest that anyone promised, or that is spilled: what is restored from files
 * must be older than the epoch that begins with it. */
static uint64_t
next_epoch(const struct env *env, const struct membership *membership, const struct ask *ask)
{
    uint64_t highest = membership->promised;

    for (uint32_t a = 0; a < ask->agent_count; a++)
        highest = max_u64(highest, max_u64(ask->inventories[a].self.promised,
                                           ask->inventories[a].self.spilled.epoch));
    return (((highest >> EPOCH_CLAIMANT_BITS) + 1) << EPOCH_CLAIMANT_BITS) | env->options->self;
}

static cairn_err
next_roster(const struct env *env, const struct claim_basis *basis, struct cairn_roster **out,
            char *text, size_t text_bytes)
{
    const struct record *record = &basis->membership->record;
    const struct members_basis members = {.inventories = basis->ask->inventories,
                                          .old = record->epoch ? record->roster : NULL,
                                          .epoch = record->epoch,
                                          .plan = basis->plan,
                                          .generation = basis->choice->generation};

    return basis->keeps && members.old
               ? members_same(env->options, &members, out, text, text_bytes)
               : members_answering(env->options, &members, out, text, text_bytes);
}

static cairn_err
fill_record(const struct env *env, const struct claim_basis *basis, struct record *out)
{
    const struct record *old = &basis->membership->record;
    const uint8_t *fleet = basis->fleet ? basis->fleet : old->fleet;
    const struct plan *plan = basis->plan;
    uint32_t n = env->options->agent_count;

    out->epoch = next_epoch(env, basis->membership, basis->ask);
    out->restart_epoch = basis->restarts ? out->epoch : old->restart_epoch;
    out->ready = basis->choice->generation;
    out->ready_from_files = basis->choice->from_files;
    out->agent_count = n;
    out->seen = calloc(n, sizeof *out->seen);
    out->fleet_len = basis->fleet ? (uint32_t)basis->fleet_len : old->fleet_len;
    if (out->fleet_len > 0)
        out->fleet = malloc(out->fleet_len);
    if (plan) {
        out->ready_roster = cairn_roster_hold(plan->roster);
        out->holders = calloc(plan->roster->member_count, sizeof *out->holders);
    }
    if (!out->seen || (out->fleet_len > 0 && !out->fleet) || (plan && !out->holders))
        return CAIRN_NOMEM;
    if (out->fleet_len > 0)
        memcpy(out->fleet, fleet, out->fleet_len);
    for (uint32_t m = 0; plan && m < plan->roster->member_count; m++)
        out->holders[m] = plan->targets[m] != UINT32_MAX ? plan->targets[m] : plan->holders[m];
    for (uint32_t a = 0; a < n; a++)
        out->seen[a] = (struct record_seen){basis->ask->inventories[a].self.incarnation,
                                            basis->ask->inventories[a].version};
    return CAIRN_OK;
}

void
claim_fini(struct claim *claim)
{
    free(claim->bytes);
    free(claim->asked);
    free(claim->promised);
    memset(claim, 0, sizeof *claim);
}

static void
send_record(struct env *env, const struct claim *claim, enum cairn_message_kind kind, uint32_t to)
{
    struct cairn_message message = env_message(env, kind, claim->epoch);

    if (kind == CAIRN_MSG_CLAIM)
        message.as.claim.attempt = claim->number;
    else
        message.as.activate.promised = claim->epoch;
    message.bytes = claim->bytes;
    message.bytes_len = (uint32_t)claim->len;
    env_send(env, to, &message);
}

cairn_err
claim_begin(struct env *env, struct claim *claim, const struct claim_basis *basis, char *text,
            size_t text_bytes)
{
    uint32_t n = env->options->agent_count;
    struct record record = {0};
    cairn_err err;

    claim_fini(claim);
    claim->asked = calloc(cairn_bitset_words(n), sizeof *claim->asked);
    claim->promised = calloc(cairn_bitset_words(n), sizeof *claim->promised);
    err = claim->asked && claim->promised ? fill_record(env, basis, &record) : CAIRN_NOMEM;
    if (!err)
        err = next_roster(env, basis, &record.roster, text, text_bytes);
    if (!err)
        err = record_pack(&record, &claim->bytes, &claim->len);
    claim->epoch = record.epoch;
    claim->number = basis->ask->number;
    record_fini(&record);
    if (err) {
        claim_fini(claim);
        return err;
    }
    for (uint32_t a = 0; a < n; a++)
        if (may_vote(env, basis->ask, a))
            cairn_bitset_add(claim->asked, a);
    send_record(env, claim, CAIRN_MSG_CLAIM, env->options->self);
    return CAIRN_OK;
}

bool
claim_waits_for(const struct claim *claim, uint32_t agent)
{
    return cairn_bitset_has(claim->asked, agent) && !cairn_bitset_has(claim->promised, agent);
}

void
claim_peer_up(struct env *env, const struct claim *claim, uint32_t agent)
{
    if (cairn_bitset_has(claim->promised, env->options->self) && claim_waits_for(claim, agent))
        send_record(env, claim, CAIRN_MSG_CLAIM, agent);
}

void
claim_promised(struct env *env, struct claim *claim, uint32_t agent)
{
    if (!claim_waits_for(claim, agent))
        return;
    cairn_bitset_add(claim->promised, agent);
    for (uint32_t a = 0; agent == env->options->self && a < env->options->agent_count; a++)
        claim_peer_up(env, claim, a);
}

bool
claim_is_promised(const struct env *env, const struct claim *claim)
{
    uint32_t n = env->options->agent_count;

    for (uint32_t a = 0; a < n; a++)
        if (claim_waits_for(claim, a))
            return false;
    return cairn_bitset_count(claim->promised, n) > n / 2;
}

void
claim_activate(struct env *env, const struct claim *claim)
{
    for (uint32_t a = 0; a < env->options->agent_count; a++)
        send_record(env, claim, CAIRN_MSG_ACTIVATE, a);
}
