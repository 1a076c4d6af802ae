/*
 * agent/again.c - what is sent again at once, because it is known to be lost.
 *
 * A flow notices by silence that its blocks were lost, and waits resend_after for that. Two losses are known sooner, and at a
 * snapshot every step they are the rule: a generation's first blocks reach a member that has no slot free yet, since it has not
 * heard that the one before is committed; and what was sent to an agent while there was no connection to it. In the first case
 * the member tells its group once it has opened its part (OPENED), in the second the driver tells when the connection is there.
 */
#include "agent/core_state.h"

void
again_turned_away(struct cairn_core *core, struct cairn_generation generation)
{
    if (save_may_vote(core, generation) && cairn_generation_compare(generation, core->turned_away) > 0)
        core->turned_away = generation;
}

void
again_open(struct cairn_core *core)
{
    if (core->turned_away.step == 0)
        return;
    if (!save_may_vote(core, core->turned_away) || save_passed(core, core->turned_away)) {
        core->turned_away = (struct cairn_generation){0, 0};
        return;
    }
    if (!holding_find(core, core->turned_away, core->self_member))
        (void)save_open(core, core->turned_away); /* no slot yet: at the next that is free */
}

void
again_opened(struct cairn_core *core, const struct holding *holding)
{
    const struct cairn_roster_group *group;

    if (!generation_is(core->turned_away, holding->generation))
        return;
    core->turned_away = (struct cairn_generation){0, 0};
    group = cairn_roster_group_of(holding->table, holding->member);
    for (uint32_t p = 0; p < group->count; p++) {
        struct cairn_message message = message_new(core, CAIRN_MSG_OPENED, core->active);

        if (p == holding->position)
            continue;
        message.generation = holding->generation;
        message.member = holding->member;
        send_message(core, holding->table->members[group->members[p]].agent, &message);
    }
}

/* All that this part has sent to one member of its group and that was not acknowledged. */
static void
send_again(struct cairn_core *core, struct holding *holding, uint32_t position)
{
    const struct cairn_geometry *geometry = &holding->geometry;
    struct flow *seal = &holding->seal_flows[position];

    for (uint32_t chunk = 0; chunk < geometry->k; chunk++)
        for (uint32_t row = 0; row < geometry->m; row++) {
            struct flow *flow = &holding->data_flows[chunk * geometry->m + row];
            uint32_t stripe = cairn_chunk_stripe(geometry, holding->position, chunk);

            if (cairn_stripe_parity_position(geometry, stripe, row) == position)
                flow->next = flow->acked;
        }
    seal->next = seal->acked;
    save_pump(core, holding);
}

void
again_message(struct cairn_core *core, const struct cairn_message *message)
{
    struct holding *holding = holding_find(core, message->generation, core->self_member);

    if (message->epoch != core->active || !holding || !save_sends(core, holding) ||
        message->member >= holding->table->member_count || message->member == holding->member ||
        holding->table->members[message->member].agent != message->from ||
        holding->table->members[message->member].group != holding->table->members[holding->member].group)
        return;
    send_again(core, holding, holding->table->members[message->member].position);
}

void
again_connected(struct cairn_core *core, uint32_t agent)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];
        const struct cairn_roster_group *group;

        if (!save_sends(core, holding))
            continue;
        group = cairn_roster_group_of(holding->table, holding->member);
        for (uint32_t p = 0; p < group->count; p++)
            if (p != holding->position && holding->table->members[group->members[p]].agent == agent)
                send_again(core, holding, p);
    }
}
