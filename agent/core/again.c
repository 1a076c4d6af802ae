/*
 * agent/core/again.c - what is sent again at once, because it is known to be lost.
 *
 * A flow notices by silence that its blocks were lost, and waits resend_after for that. Two losses
 * are known sooner, and at a snapshot every step they are the rule: a generation's first blocks
 * reach a member that has no slot free yet, since it has not heard that the one before is
 * committed; and what was sent to an agent while there was no connection to it. In the first case
 * the member tells its group once it has opened its part (OPENED), in the second
 * the transport reports the new connection (CAIRN_EVENT_CONNECTED).
 */
#include "agent/core/core_state.h"

/*
 * One per slot is enough: a member of the group has no more parts under way than slots, and begins
 * no newer one before an older one of them is settled. More than these have come only where some
 * are settled, which are the oldest.
 */
void
again_turned_away(struct cairn_core *core, struct cairn_generation generation)
{
    struct cairn_generation *oldest = &core->turned_away[0];

    if (!save_may_vote(core, generation))
        return;
    for (uint32_t i = 0; i < CAIRN_OWN_SLOTS_MAX; i++) {
        if (generation_is(core->turned_away[i], generation))
            return;
        /* an unused one is older than any */
        if (cairn_generation_compare(core->turned_away[i], *oldest) < 0)
            oldest = &core->turned_away[i];
    }
    if (cairn_generation_compare(generation, *oldest) > 0)
        *oldest = generation;
}

/* The oldest that was turned away and is newer than `after`; NULL: none. */
static struct cairn_generation *
next_turned_away(struct cairn_core *core, struct cairn_generation after)
{
    struct cairn_generation *next = NULL;

    for (uint32_t i = 0; i < CAIRN_OWN_SLOTS_MAX; i++) {
        struct cairn_generation *entry = &core->turned_away[i];

        if (entry->step != 0 && cairn_generation_compare(*entry, after) > 0 &&
            (!next || cairn_generation_compare(*entry, *next) < 0))
            next = entry;
    }
    return next;
}

/* The oldest first: to a part of a newer step the older ones are passed, and are given up. */
void
again_open(struct cairn_core *core)
{
    struct cairn_generation generation = {0, 0}, *entry;

    while ((entry = next_turned_away(core, generation)) != NULL) {
        generation = *entry;
        if (!save_may_vote(core, generation) || save_passed(core, generation))
            *entry = (struct cairn_generation){0, 0};
        else if (!holding_find(core, generation, core->self_member) && !save_open(core, generation))
            return; /* no slot yet: at the next that is free */
    }
}

void
again_opened(struct cairn_core *core, const struct holding *holding)
{
    const struct cairn_roster_group *group;
    bool was_turned_away = false;

    for (uint32_t i = 0; i < CAIRN_OWN_SLOTS_MAX; i++)
        if (generation_is(core->turned_away[i], holding->generation)) {
            core->turned_away[i] = (struct cairn_generation){0, 0};
            was_turned_away = true;
        }
    if (!was_turned_away)
        return;
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
        holding->table->members[message->member].group !=
            holding->table->members[holding->member].group)
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
