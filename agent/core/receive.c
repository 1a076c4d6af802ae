/*
 * agent/core/receive.c - see receive.h.
 *
 * The door: a message is taken only in a session that is up. A message of an epoch is taken only in
 * that epoch, while no newer one is promised (R4), and only from agents that may send it: reports
 * from below, decisions from above, blocks and seals from the own group. The noun that
 * takes it compares its run.
 */
#include "agent/core/receive.h"

#include "agent/core/conduct.h"
#include "agent/core/epoch/tree.h"

#include <string.h>

/* ---- the door ---- */

/* True of this agent's own messages, too: the leader answers itself. agent: the agent that the
 * message speaks for; UINT32_MAX: the sender's subtree. */
static bool
is_from_below(const struct cairn_core *core, const struct cairn_message *message, uint32_t agent)
{
    const struct cairn_roster *roster = core->membership.record.roster;
    uint32_t self = core->membership.self_member, n = roster->member_count;
    uint32_t sender = cairn_roster_member_of(roster, message->from);
    uint32_t member = agent == UINT32_MAX ? sender : cairn_roster_member_of(roster, agent);

    if (sender == UINT32_MAX) /* a late agent reports to the leader itself */
        return self == 0 && message->kind == CAIRN_MSG_REPORT && agent == message->from;
    return (sender == self || (sender != 0 && tree_parent(sender, n) == self)) &&
           member != UINT32_MAX && tree_is_above(sender, n, member);
}

/* The leader questions itself, too. */
static bool
is_from_above(const struct cairn_core *core, const struct cairn_message *message)
{
    return conduct_above(core) == message->from;
}

static bool
is_from_group(const struct cairn_core *core, const struct cairn_message *message, uint32_t member)
{
    const struct cairn_roster *roster = core->membership.record.roster;

    return member < roster->member_count && roster->members[member].agent == message->from &&
           roster->members[member].group == roster->members[core->membership.self_member].group;
}

static bool
is_from_whom_it_may(const struct cairn_core *core, const struct cairn_message *message)
{
    switch (message->kind) {
    case CAIRN_MSG_DECISION:
        return is_from_above(core, message);
    case CAIRN_MSG_AUDIT:
        return message->as.audit.answer ? is_from_below(core, message, message->as.audit.agent)
                                        : is_from_above(core, message);
    case CAIRN_MSG_REPORT:
        return is_from_below(core, message, message->as.report.agent);
    case CAIRN_MSG_DATA:
        return is_from_group(core, message, message->as.data.member);
    case CAIRN_MSG_SEAL:
        return is_from_group(core, message, message->as.seal.member);
    case CAIRN_MSG_RECEIVED:
        return is_from_group(core, message, message->as.received.for_member);
    default:
        return is_from_below(core, message, UINT32_MAX);
    }
}

/* An agent that is not a member listens to the leader's decisions. */
static bool
listens(const struct cairn_core *core, const struct cairn_message *message)
{
    return message->kind == CAIRN_MSG_DECISION && core->membership.self_member == UINT32_MAX &&
           core->membership.record.epoch != 0 && !membership_fenced(&core->membership);
}

static bool
may_enter(const struct cairn_core *core, const struct cairn_message *message)
{
    if (message->to != core->options.self || !env_reaches(&core->env, message->from))
        return false;
    if (!cairn_message_is_of_epoch(message))
        return true;
    return message->epoch == core->membership.record.epoch &&
           (conduct_acts(core) || listens(core, message)) && is_from_whom_it_may(core, message);
}

/* ---- messages of the epoch ---- */

/* DATA or SEAL of a member of the group: opens the own part of its generation if need be. */
static void
take_blocks(struct cairn_core *core, const struct cairn_event_message *event)
{
    const struct cairn_message *message = event->message;
    bool seal = message->kind == CAIRN_MSG_SEAL;
    enum cairn_abort reason;
    struct part *part;

    if (!conduct_leads(core)) /* it may have restarted since the sender heard this decision */
        conduct_decision(core, seal ? &message->as.seal.decision : &message->as.data.decision, "");
    part = run_part_for(&core->env, &core->run,
                        seal ? message->as.seal.generation : message->as.data.generation);
    if (!part)
        return;
    reason = seal ? save_seal(&core->env, part, message)
                  : save_data(&core->env, part, message, event->payload_ok);
    run_abort(&core->env, &core->run, part->generation, reason);
}

static void
take_received(struct cairn_core *core, const struct cairn_message *message)
{
    struct part *part =
        parts_find(&core->parts, message->as.received.generation, core->membership.self_member);

    if (part && message->as.received.member == core->membership.self_member)
        run_abort(&core->env, &core->run, part->generation,
                  save_received(&core->env, part, message));
}

static void
take_decision(struct cairn_core *core, const struct cairn_message *message)
{
    char refusal[CAIRN_REFUSAL_BYTES] = "";
    size_t len = min_u64(message->bytes_len, sizeof refusal - 1);

    if (len > 0)
        memcpy(refusal, message->bytes, len);
    conduct_decision(core, &message->as.decision.decision, refusal);
}

/* A question goes down to its agent, an answer up to the leader. */
static void
take_audit(struct cairn_core *core, const struct cairn_message *message)
{
    if (message->as.audit.answer)
        conduct_to_leader(core, message);
    else if (!conduct_pass_down(core, message, message->as.audit.agent) &&
             run_audited(&core->env, &core->run, &message->as.audit))
        audit_reply(&core->env, message->from, message, core->run.trainers.tiling);
}

/* ---- messages between epochs ---- */

static void
take_position(struct cairn_core *core, const struct cairn_message *message)
{
    uint64_t active = core->membership.record.epoch;
    uint32_t from = message->from;

    core->peers.epochs[from] = message->epoch;
    core->peers.positions++;
    if (message->epoch < active)
        membership_send_activate(&core->env, from);
    if (message->epoch > active)
        membership_send_position(&core->env, from); /* to be sent its record */
    if (env_is_level(&core->env, from))
        conduct_greet(core, from);
}

static void
take_activate(struct cairn_core *core, const struct cairn_message *message)
{
    enum activation activation = membership_activate(&core->env, &core->membership, message);

    if (activation == ACTIVATION_NONE)
        return;
    core->parts
        .version++; /* R9: claims from before this epoch are void, though no part has changed */
    answer_unpin(&core->env, &core->answering);
    repair_stop(&core->env, &core->repair);
    conduct_enter(core, activation == ACTIVATION_RESTART);
    env_act(&core->env, CAIRN_ACTION_ACTIVATED)->as.activated = (struct cairn_action_activated){
        .ready = membership_ready(&core->membership), .restart = activation == ACTIVATION_RESTART};
    restore_activated(&core->env, &core->restore);
}

static void
take_claim(struct cairn_core *core, const struct cairn_message *message)
{
    if (!membership_claim(&core->env, &core->membership, &core->peers, core->parts.version,
                          message))
        return;
    if (!CAIRN_PLANTED(&core->env, BUG_PROMISE_TWICE) &&
        !CAIRN_PLANTED(&core->env, BUG_CLAIM_OUTLIVES))
        core->parts.version++; /* R9: who has asked before does not know of this epoch */
    repair_stop(&core->env, &core->repair); /* what is open in the old epoch ends */
}

static void
take_ask(struct cairn_core *core, const struct cairn_message *message)
{
    struct inventory_self self = conduct_inventory(core);

    if (message->from != core->options.self)
        watch_asked(&core->watch);
    if (message->as.ask.mode == CAIRN_ASK_RELEASE)
        repair_end(&core->env, &core->repair, message->from);
    answer_ask(&core->env, &core->answering, &self, message);
}

static void
take_rebuild(struct cairn_core *core, const struct cairn_message *message)
{
    const struct cairn_message_rebuild *rebuild = &message->as.rebuild;
    struct cairn_message answer = env_message(&core->env, CAIRN_MSG_REBUILT, message->epoch);

    if (answer_pins_for(&core->answering, message->from, rebuild->attempt)) {
        repair_begin(&core->env, &core->repair, message);
        return;
    }
    answer.as.rebuilt = (struct cairn_message_rebuilt){
        .attempt = rebuild->attempt, .member = UINT32_MAX, .err = CAIRN_AGAIN};
    env_send(&core->env, message->from, &answer);
}

void
receive(struct cairn_core *core, const struct cairn_event_message *event)
{
    const struct cairn_message *message = event->message;

    if (!may_enter(core, message)) {
        core->dropped_messages++;
        return;
    }
    switch (message->kind) {
    case CAIRN_MSG_POSITION:
        take_position(core, message);
        break;
    case CAIRN_MSG_HEARTBEAT:
        peers_heartbeat(&core->env, &core->peers, message);
        break;
    case CAIRN_MSG_AUDIT:
        take_audit(core, message);
        break;
    case CAIRN_MSG_DECISION:
        take_decision(core, message);
        break;
    case CAIRN_MSG_REPORT:
        conduct_to_leader(core, message);
        break;
    case CAIRN_MSG_DATA:
        take_blocks(core, event);
        break;
    case CAIRN_MSG_SEAL:
        if (message->as.seal.attempt == 0)
            take_blocks(core, event);
        else
            repair_message(&core->env, &core->repair, message, false);
        break;
    case CAIRN_MSG_RECEIVED:
        if (message->as.received.attempt == 0)
            take_received(core, message);
        else
            repair_message(&core->env, &core->repair, message, false);
        break;
    case CAIRN_MSG_READ:
    case CAIRN_MSG_BLOCKS:
    case CAIRN_MSG_WRITE:
    case CAIRN_MSG_WRITTEN:
        repair_message(&core->env, &core->repair, message, event->payload_ok);
        break;
    case CAIRN_MSG_REBUILD:
        take_rebuild(core, message);
        break;
    case CAIRN_MSG_ASK:
        take_ask(core, message);
        break;
    case CAIRN_MSG_INVENTORY:
    case CAIRN_MSG_REBUILT:
    case CAIRN_MSG_PROMISE:
        restore_message(&core->env, &core->restore, message);
        break;
    case CAIRN_MSG_CLAIM:
        take_claim(core, message);
        break;
    case CAIRN_MSG_ACTIVATE:
        take_activate(core, message);
        break;
    }
}

/* ---- sessions ---- */

void
receive_peer_up(struct cairn_core *core, const struct cairn_event_peer *peer)
{
    if (peer->agent >= core->options.agent_count || peer->agent == core->options.self)
        return;
    peers_up(&core->env, &core->peers, peer->agent, peer->incarnation);
    core->peers.epochs[peer->agent] = UINT64_MAX;
    membership_send_position(&core->env, peer->agent);
    repair_peer_up(&core->env, &core->repair, peer->agent);
    restore_peer_up(&core->env, &core->restore, peer->agent);
}

/* A head tells the leader that it has no report of this member now. */
static void
forget_report(struct cairn_core *core, uint32_t agent)
{
    struct cairn_message message = epoch_message(&core->env, CAIRN_MSG_REPORT);

    message.as.report.agent = agent;
    message.from = agent;
    message.to = core->options.self;
    if (core->membership.self_member != UINT32_MAX && is_from_below(core, &message, agent))
        conduct_to_leader(core, &message);
}

void
receive_peer_down(struct cairn_core *core, const struct cairn_event_peer *peer)
{
    if (peer->agent >= core->options.agent_count || !cairn_bitset_has(core->peers.up, peer->agent))
        return;
    peers_down(&core->peers, peer->agent);
    if (core->membership.record.epoch != 0)
        forget_report(core, peer->agent);
    repair_end(&core->env, &core->repair, peer->agent);
    answer_end(&core->env, &core->answering, peer->agent);
    restore_peer_down(&core->env, &core->restore, peer->agent);
}
