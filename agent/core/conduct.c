/* agent/core/conduct.c - see conduct.h. */
#include "agent/core/conduct.h"

#include "agent/core/epoch/tree.h"
#include "base/log.h"

#include <inttypes.h>
#include <string.h>

struct inventory_self
conduct_inventory(const struct cairn_core *core)
{
    const struct membership *membership = &core->membership;

    return (struct inventory_self){.incarnation = core->options.incarnation,
                                   .promised = membership->promised,
                                   .promised_roster = membership->promised_roster,
                                   .active = membership->record.epoch,
                                   .blank = membership->blank,
                                   .knows = membership->knows,
                                   .ready = membership_ready(membership),
                                   .spilled = core->spilled,
                                   .ranks = core->run.trainers.ranks,
                                   .world = core->run.trainers.world,
                                   .blocks = core->run.trainers.blocks};
}

static uint32_t
agent_of(const struct cairn_core *core, uint32_t member)
{
    return core->membership.record.roster->members[member].agent;
}

static uint32_t
member_count(const struct cairn_core *core)
{
    return core->membership.record.roster->member_count;
}

bool
conduct_acts(const struct cairn_core *core)
{
    return membership_acts(&core->membership) || (core->membership.self_member != UINT32_MAX &&
                                                  CAIRN_PLANTED(&core->env, BUG_ACCEPT_OLD_EPOCH));
}

bool
conduct_leads(const struct cairn_core *core)
{
    return core->membership.self_member == 0 && conduct_acts(core);
}

uint32_t
conduct_above(const struct cairn_core *core)
{
    uint32_t self = core->membership.self_member;

    return agent_of(core,
                    self == UINT32_MAX || self == 0 ? 0 : tree_parent(self, member_count(core)));
}

static void
drop_unfinished(struct cairn_core *core, struct cairn_generation_id generation)
{
    struct part *part = parts_find(&core->parts, generation, core->membership.self_member);

    if (part && (part->state == CAIRN_PART_OPEN || part->state == CAIRN_PART_FINISHING))
        part_drop(&core->env, part, true);
}

/* ---- to the leader ---- */

bool
conduct_pass_down(struct cairn_core *core, const struct cairn_message *message, uint32_t agent)
{
    uint32_t self = core->membership.self_member, n = member_count(core);
    uint32_t member = cairn_roster_member_of(core->membership.record.roster, agent);
    struct cairn_message on = *message;

    if (member == self)
        return false;
    on.from = core->options.self;
    if (member != UINT32_MAX && tree_is_above(self, n, member))
        env_send(&core->env, agent_of(core, tree_towards(self, n, member)), &on);
    return true;
}

void
conduct_to_leader(struct cairn_core *core, const struct cairn_message *message)
{
    struct env *env = &core->env;
    struct cairn_message on = *message;

    if (core->membership.record.epoch == 0 ||
        core->membership.promised != core->membership.record.epoch)
        return; /* R4 */
    on.from = core->options.self;
    if (!conduct_leads(core))
        env_send(env, conduct_above(core), &on);
    else if (message->kind == CAIRN_MSG_REPORT)
        leader_report(env, &core->leader, &message->as.report);
    else
        leader_audited(env, &core->leader, message);
}

void
conduct_report(struct cairn_core *core)
{
    struct cairn_message message = epoch_message(&core->env, CAIRN_MSG_REPORT);

    message.as.report = run_report(&core->env, &core->run);
    message.as.report.committed = core->membership.committed;
    conduct_to_leader(core, &message);
}

static void
send_done(struct cairn_core *core)
{
    struct cairn_message done =
        env_message(&core->env, CAIRN_MSG_DONE, core->gather.generation.epoch);

    done.as.done.generation = core->gather.generation;
    done.as.done.begun = core->gather.begun;
    env_send(&core->env, conduct_above(core), &done);
}

void
conduct_done(struct cairn_core *core, uint32_t child, struct cairn_generation_id generation,
             uint64_t begun)
{
    if (!conduct_acts(core) || /* R4 */
        parts_abort(&core->env, generation) ||
        !gather_add(&core->env, &core->gather, core->membership.self_member, child, generation,
                    begun))
        return;
    if (conduct_leads(core))
        leader_done(&core->env, &core->leader, generation, core->gather.begun);
    else
        send_done(core);
}

void
conduct_outcome(struct cairn_core *core, struct outcome outcome)
{
    if (outcome.complete)
        conduct_done(core, core->membership.self_member, outcome.generation, core->run.begun);
    if (!outcome.abort)
        return;
    drop_unfinished(core, outcome.generation);
    run_abort(&core->run, outcome.generation, outcome.abort);
    conduct_report(core);
}

/* ---- from the leader ---- */

static void
send_decision(struct cairn_core *core, uint32_t to)
{
    struct cairn_message message = epoch_message(&core->env, CAIRN_MSG_DECISION);

    message.as.decision.decision = core->run.decision;
    message.bytes = (const uint8_t *)core->run.refusal;
    message.bytes_len = (uint32_t)strlen(core->run.refusal);
    env_send(&core->env, to, &message);
}

/* Agents that are not members learn what is committed. */
static void
tell_others(struct cairn_core *core)
{
    uint64_t members[CAIRN_NODES_MAX / 64] = {0};

    for (uint32_t m = 0; m < member_count(core); m++)
        if (agent_of(core, m) < core->options.agent_count)
            cairn_bitset_add(members, agent_of(core, m));
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (!cairn_bitset_has(members, a))
            send_decision(core, a);
}

static void
commit(struct cairn_core *core, struct cairn_generation_id generation)
{
    struct part *part = parts_find(&core->parts, generation, core->membership.self_member);

    core->membership.committed = generation;
    env_act(&core->env, CAIRN_ACTION_COMMITTED)->as.committed = (struct cairn_action_committed){
        .generation = generation, .part = part ? part_index(&core->env, part) : UINT32_MAX};
}

void
conduct_decision(struct cairn_core *core, const struct cairn_decision *decision,
                 const char *refusal)
{
    struct cairn_generation_id committed = core->run.decision.committed;
    uint32_t self = core->membership.self_member, n = member_count(core);

    if (self == UINT32_MAX) {
        if (cairn_generation_later(decision->committed, core->membership.committed))
            core->membership.committed = decision->committed;
        return;
    }
    if (!run_decide(&core->run, decision, refusal))
        return;
    if (cairn_generation_later(decision->committed, committed))
        commit(core, decision->committed);
    parts_retain(&core->env);
    if (parts_abort(&core->env, core->gather.generation))
        gather_clear(&core->gather);
    for (uint32_t child = tree_next_child(self, n, UINT32_MAX); child != UINT32_MAX;
         child = tree_next_child(self, n, child))
        send_decision(core, agent_of(core, child));
    if (conduct_leads(core))
        tell_others(core);
}

void
conduct_settle(struct cairn_core *core)
{
    do {
        if (conduct_leads(core))
            conduct_decision(core, &core->leader.decision, core->leader.refusal);
        parts_retain(&core->env);
        conduct_outcome(core, run_grant(&core->env, &core->run));
    } while (conduct_leads(core) && core->leader.decision.serial > core->run.decision.serial);
}

/* ---- epochs and sessions ---- */

/* DONE goes before REPORT: the leader assembles a run only when it knows what is complete
 * everywhere. A head does not keep its block's reports, so it asks for them again: members answer
 * POSITION as at the start of a session. */
static void
say_again_above(struct cairn_core *core)
{
    uint32_t self = core->membership.self_member, n = member_count(core);

    if (gather_is_full(&core->env, &core->gather, self))
        send_done(core);
    conduct_report(core);
    for (uint32_t child = tree_next_child(self, n, UINT32_MAX); child != UINT32_MAX;
         child = tree_next_child(self, n, child))
        membership_send_position(&core->env, agent_of(core, child));
}

void
conduct_greet(struct cairn_core *core, uint32_t agent)
{
    uint32_t self = core->membership.self_member, n, member;
    struct part *part = parts_in_flight(&core->env);

    if (core->membership.record.epoch == 0)
        return;
    n = member_count(core);
    member = cairn_roster_member_of(core->membership.record.roster, agent);
    if (self == UINT32_MAX) {
        if (member == 0 && core->run.trainers.registration != 0)
            conduct_report(core);
        return;
    }
    if (self != 0 && tree_parent(self, n) == member)
        say_again_above(core);
    if ((member == UINT32_MAX ? self == 0 : member != 0 && tree_parent(member, n) == self) &&
        core->run.decision.serial != 0)
        send_decision(core, agent);
    if (part && member != UINT32_MAX)
        save_peer_up(&core->env, part, agent);
}

static void
connect_epoch(struct cairn_core *core)
{
    const struct cairn_roster *roster = core->membership.record.roster;
    uint32_t self = core->membership.self_member, n = roster->member_count;
    const struct cairn_roster_group *group;

    if (self == UINT32_MAX) {
        env_connect(&core->env, agent_of(core, 0));
        return;
    }
    group = cairn_roster_group_of(roster, self);
    for (uint32_t p = 0; p < group->count; p++)
        env_connect(&core->env, agent_of(core, group->members[p]));
    if (self != 0)
        env_connect(&core->env, conduct_above(core));
    for (uint32_t child = tree_next_child(self, n, UINT32_MAX); child != UINT32_MAX;
         child = tree_next_child(self, n, child))
        env_connect(&core->env, agent_of(core, child));
}

/* The newest complete own part of the epoch counts as done, so a restarted member is still done. */
static void
gather_own(struct cairn_core *core)
{
    struct cairn_generation_id newest = {0};

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        const struct part *part = &core->parts.list[i];

        if (part->state == CAIRN_PART_COMPLETE && part->member == core->membership.self_member &&
            part->generation.epoch == core->membership.record.epoch &&
            cairn_generation_later(part->generation, newest))
            newest = part->generation;
    }
    if (newest.step != 0)
        conduct_done(core, core->membership.self_member, newest, 0);
}

void
conduct_enter(struct cairn_core *core, bool restart)
{
    cairn_err err = CAIRN_OK;

    run_enter(&core->run, restart);
    gather_fini(&core->gather);
    leader_end(&core->leader);
    if (core->membership.record.epoch == 0)
        return;
    if (core->membership.self_member != UINT32_MAX)
        err = gather_init(&core->gather, member_count(core));
    if (!err && core->membership.self_member == 0)
        err = leader_init(&core->leader, (uint32_t)max_u64(core->options.agent_count,
                                                           core->membership.record.agent_count));
    core->env.actions->failed |= err != CAIRN_OK;
    if (err)
        return;
    gather_own(core);
    connect_epoch(core);
    if (conduct_leads(core))
        conduct_report(core);
    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        if (!cairn_bitset_has(core->peers.up, a))
            continue;
        membership_send_position(&core->env, a);
        if (env_is_level(&core->env, a))
            conduct_greet(core, a);
    }
}

void
conduct_watch(struct cairn_core *core)
{
    bool wants_join = conduct_leads(core) && core->leader.wants_join;
    struct restore_request request = {0};
    const char *reason = NULL;

    if (!restore_is_idle(&core->restore) ||
        !watch_due(&core->env, &core->watch, core->run.trainers.ranks > 0, wants_join, &request,
                   &reason))
        return;
    CAIRN_LOG_AT(INFO, "repair: start reason=\"%s\" epoch=%" PRIu64 " step=%" PRIu64, reason,
                 core->membership.record.epoch >> EPOCH_CLAIMANT_BITS,
                 membership_ready(&core->membership).step);
    if (restore_start(&core->env, &core->restore, &request) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "repair: not started: out of memory");
}
