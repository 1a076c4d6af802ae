/* agent/core/look.c - what the process, the services and tests may read; see core.h. */
#include "agent/core/conduct.h"

void
cairn_core_look(const struct cairn_core *core, struct cairn_core_view *out)
{
    const struct membership *membership = &core->membership;

    *out = (struct cairn_core_view){
        .promised = membership->promised,
        .active = membership->record.epoch,
        .ready = membership_ready(membership),
        .ready_from_files = membership_ready_from_files(membership),
        .committed = core->run.decision.committed,
        .roster = membership->record.roster,
        .ready_roster = membership_ready_roster(membership),
        .restart_epoch = membership->record.restart_epoch,
        .self_member = membership->self_member,
        .run = core->run.decision.run,
        .next_step = core->run.decision.next,
        .last_step = core->run.begun,
        .met = core->options.agent_count == 1 || core->peers.positions > 0 ||
               core->env.now_ns - core->peers.started_ns > 2 * core->options.dead_after_ns,
        .blank = membership->blank,
        .fenced = membership->promised > membership->record.epoch,
        .busy = !restore_is_idle(&core->restore),
        .refusal = core->run.refusal,
        .blocker = {.agent = UINT32_MAX, .for_agent = UINT32_MAX},
        .dropped_messages = core->dropped_messages,
        .fleet = membership->record.fleet,
        .fleet_len = membership->record.fleet_len};
    if (conduct_leads(core))
        leader_blocker(&core->env, &core->leader, &out->blocker);
}

bool
cairn_core_look_part(const struct cairn_core *core, uint32_t index, struct cairn_part_view *out)
{
    const struct part *part;
    const struct cairn_shard_seal *seal;

    if (index >= CAIRN_PARTS_MAX || core->parts.list[index].state == CAIRN_PART_FREE)
        return false;
    part = &core->parts.list[index];
    seal = &part->seals[part->position];
    *out = (struct cairn_part_view){
        .state = part->state,
        .generation = part->generation,
        .member = part->member,
        .position = part->position,
        .committed = part->state == CAIRN_PART_COMPLETE &&
                     (cairn_generation_is(part->generation, core->run.decision.committed) ||
                      cairn_generation_is(part->generation, membership_ready(&core->membership))),
        .record_mended = part->checked.record_mended,
        .data_blocks = seal->whole ? seal->shard_blocks : part->capture.blocks,
        .bad_blocks = part->checked.bad_count,
        .roster = part->roster,
        .manifest = seal->whole ? seal->manifest : NULL,
        .manifest_len = seal->whole ? seal->manifest_len : 0,
        .block_crcs = seal->whole ? seal->crcs : NULL,
        .stripes = part->lengths_known ? &part->stripes : NULL,
        .parity_crcs = (const uint64_t *const *)part->parity_crcs};
    return true;
}

bool
cairn_core_needs_session(const struct cairn_core *core, uint32_t agent)
{
    const struct record *record = &core->membership.record;

    return !restore_is_idle(&core->restore) || core->repair.active || core->parts.pinned ||
           peers_beat_between(&core->env, agent) ||
           (record->epoch != 0 && !CAIRN_PLANTED(&core->env, BUG_LEADER_LEFT) &&
            conduct_is_neighbour(core, cairn_roster_member_of(record->roster, agent)));
}

bool
cairn_core_record_is_foreign(struct cairn_bytes record)
{
    return part_record_is_foreign(record);
}

bool
cairn_core_alive(const struct cairn_core *core, uint32_t agent)
{
    return peers_alive(&core->env, agent);
}

uint64_t
cairn_core_incarnation(const struct cairn_core *core, uint32_t agent)
{
    return peers_met(&core->env, agent);
}

struct cairn_core_tally
cairn_core_tally(const struct cairn_core *core)
{
    return (struct cairn_core_tally){.operations_ended = core->restore.ended,
                                     .given_up = core->leader.given_up};
}

uint32_t
cairn_core_holder(const struct cairn_core *core, struct cairn_generation_id generation,
                  uint32_t member)
{
    return cairn_generation_is(generation, membership_ready(&core->membership))
               ? membership_holder(&core->membership, member)
               : UINT32_MAX;
}

const uint8_t *
cairn_core_peer_manifest(const struct cairn_core *core, uint32_t index, uint32_t member,
                         size_t *len)
{
    const struct part *part;
    const struct cairn_shard_seal *seal;

    if (index >= CAIRN_PARTS_MAX)
        return NULL;
    part = &core->parts.list[index];
    if (part->state != CAIRN_PART_COMPLETE || member >= part->roster->member_count ||
        part->roster->members[member].group != part->roster->members[part->member].group)
        return NULL;
    seal = &part->seals[part->roster->members[member].position];
    *len = seal->manifest_len;
    return seal->whole ? seal->manifest : NULL;
}

const struct cairn_outcome *
cairn_core_outcome(const struct cairn_core *core)
{
    return &core->restore.outcome;
}

bool
cairn_core_place(const struct cairn_core *core, uint32_t from, uint64_t place, uint32_t count,
                 struct cairn_action_place *out)
{
    return target_place(&core->env, &core->repair, from, place, count, out);
}

uint64_t
cairn_core_deadline(const struct cairn_core *core)
{
    return core->env.now_ns + core->options.heartbeat_interval_ns;
}
