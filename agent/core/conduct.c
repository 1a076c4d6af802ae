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
    bool is_report = message->kind == CAIRN_MSG_REPORT;
    struct env *env = &core->env;
    struct cairn_message on = *message;

    if (core->membership.record.epoch == 0 ||
        (membership_fenced(&core->membership) && !CAIRN_PLANTED(env, BUG_ACCEPT_OLD_EPOCH)))
        return; /* R4 */
    on.from = core->options.self;
    if (conduct_leads(core) && is_report)
        leader_report(env, &core->leader, &message->as.report);
    else if (conduct_leads(core))
        leader_audited(env, &core->leader, message);
    else if (!is_report || message->from == core->options.self ||
             reports_pass(env, &core->reports, &message->as.report))
        env_send(env, conduct_above(core), &on);
}

/* Tells the leader how this agent is, if that has changed, or again. Agents without trainers that
 * are not members have nothing to tell. */
static void
report(struct cairn_core *core, bool again)
{
    struct cairn_message message = epoch_message(&core->env, CAIRN_MSG_REPORT);
    struct cairn_message_report *now = &message.as.report, before = core->run.reported;

    if (core->membership.record.epoch == 0 ||
        (core->membership.self_member == UINT32_MAX && core->run.trainers.registration == 0))
        return;
    *now = core->run.reported = run_report(&core->env, &core->run, &core->reports);
    if (again || reports_differ(now, &before) ||
        !cairn_generation_is(now->complete0, before.complete0))
        conduct_to_leader(core, &message);
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
    for (uint32_t child = tree_next_child(self, n, UINT32_MAX); child != UINT32_MAX;
         child = tree_next_child(self, n, child))
        send_decision(core, agent_of(core, child));
    if (conduct_leads(core))
        tell_others(core);
}

void
conduct_settle(struct cairn_core *core)
{
    if (CAIRN_PLANTED(&core->env, BUG_STORE_LATE))
        report(core, false); /* parts_retain stores */
    do {
        if (conduct_leads(core))
            conduct_decision(core, &core->leader.decision, core->leader.refusal);
        parts_retain(&core->env);
        run_grant(&core->env, &core->run);
        report(core, false);
    } while (conduct_leads(core) && core->leader.decision.serial > core->run.decision.serial);
}

/* ---- epochs and sessions ---- */

/* The own report, and what a head has passed on. */
static void
say_again_above(struct cairn_core *core)
{
    struct cairn_message message = epoch_message(&core->env, CAIRN_MSG_REPORT);
    uint32_t self = core->membership.self_member, n = member_count(core);

    report(core, true);
    for (uint32_t child = tree_next_child(self, n, UINT32_MAX); child != UINT32_MAX;
         child = tree_next_child(self, n, child)) {
        message.as.report = core->reports.list[agent_of(core, child)];
        if (core->reports.heard_ns[agent_of(core, child)] != 0)
            env_send(&core->env, conduct_above(core), &message);
    }
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
        if (member == 0)
            report(core, true);
        return;
    }
    if (self != 0 && tree_parent(self, n) == member)
        say_again_above(core);
    if ((member == UINT32_MAX ? self == 0 : tree_parent(member, n) == self) &&
        core->run.decision.serial != 0)
        send_decision(core, agent);
    if (part && member != UINT32_MAX)
        save_peer_up(&core->env, part, agent);
}

bool
conduct_is_neighbour(const struct cairn_core *core, uint32_t member)
{
    const struct cairn_roster *roster = core->membership.record.roster;
    uint32_t self = core->membership.self_member, n = roster->member_count;

    if (self == UINT32_MAX || member == UINT32_MAX)
        return self == 0 || member == 0;
    return roster->members[self].group == roster->members[member].group ||
           tree_parent(self, n) == member || tree_parent(member, n) == self;
}

void
conduct_enter(struct cairn_core *core, bool restart)
{
    uint32_t self = core->membership.self_member;
    cairn_err err = CAIRN_OK;

    run_enter(&core->run, restart);
    reports_fini(&core->reports);
    leader_end(&core->leader);
    if (core->membership.record.epoch == 0)
        return;
    if (self == 0 || tree_next_child(self, member_count(core), UINT32_MAX) != UINT32_MAX)
        err = reports_init(&core->reports, (uint32_t)max_u64(core->options.agent_count,
                                                             core->membership.record.agent_count));
    core->env.actions->failed |= err != CAIRN_OK;
    if (err)
        return;
    for (uint32_t m = 0; m < member_count(core); m++)
        if (conduct_is_neighbour(core, m))
            env_connect(&core->env, agent_of(core, m));
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
