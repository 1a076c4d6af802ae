/*
 * agent/core/restore_plan.c - who gets a lost part, the body of REBUILD, and the record of the
 * epoch that a restore ends in.
 */
#include "agent/core/core_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t
hosted_by(const struct restore *restore, uint32_t member_count, uint32_t agent)
{
    uint32_t count = 0;

    for (uint32_t m = 0; m < member_count; m++)
        count += restore->holders[m] == agent || restore->targets[m] == agent;
    return count;
}

/* How many parts of a member's group an agent has or is to get: they would be lost together. */
static uint32_t
same_group_at(const struct restore *restore, const struct cairn_roster *table, uint32_t member,
              uint32_t agent)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(table, member);
    uint32_t count = 0;

    for (uint32_t p = 0; p < group->count; p++)
        count += restore->holders[group->members[p]] == agent ||
                 restore->targets[group->members[p]] == agent;
    return count;
}

/*
 * Who gets a lost member's part: its own agent if that is back, else a spare, else whoever has
 * least of its group, and then least of all.
 */
static uint32_t
pick_target(const struct cairn_core *core, const struct cairn_roster *table, uint32_t member)
{
    const struct restore *restore = &core->restore;
    uint32_t own = table->members[member].agent, best = UINT32_MAX, best_load = UINT32_MAX;

    if (own < core->options.agent_count && cairn_bitset_has(restore->promised, own) &&
        !cairn_bitset_has(restore->no_room, own))
        return own;
    for (uint32_t pass = 0; pass < 2 && best == UINT32_MAX; pass++)
        for (uint32_t a = 0; a < core->options.agent_count; a++) {
            uint32_t load = hosted_by(restore, table->member_count, a);

            if (!cairn_bitset_has(restore->promised, a) || cairn_bitset_has(restore->no_room, a) ||
                load >= CAIRN_HOLDINGS_MAX - core->options.slots ||
                (pass == 0 && (!core->spares[a] || load > 0)))
                continue;
            load += CAIRN_HOLDINGS_MAX * same_group_at(restore, table, member, a);
            if (load < best_load) {
                best = a;
                best_load = load;
            }
        }
    return best;
}

static cairn_err
collect_bad(struct cairn_core *core, const struct cairn_roster *table, struct cairn_writer *writer,
            uint32_t *count)
{
    struct restore *restore = &core->restore;

    *count = 0;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        for (uint32_t h = 0; h < restore->inventories[a].holding_count; h++) {
            const struct inventory_holding *holding = &restore->inventories[a].holdings[h];

            if (!generation_is(holding->generation, restore->choice.generation) ||
                holding->member >= table->member_count || holding->bad_listed == 0 ||
                restore->holders[holding->member] != a)
                continue;
            restore->targets[holding->member] = a;
            core->outcome.bad_blocks += holding->bad_count;
            for (uint32_t i = 0; i < holding->bad_listed; i++) {
                cairn_write_u32(writer, holding->member);
                cairn_write_u8(writer, (uint8_t)holding->bad[i].area);
                cairn_write_u64(writer, holding->bad[i].block);
            }
            *count += holding->bad_listed;
        }
    return cairn_writer_done(writer);
}

/* Body of REBUILD: the generation's table, per member holder and target, then the bad blocks. */
static cairn_err
pack_plan(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    struct cairn_roster *table = restore->table;
    size_t bad_room = 0;
    struct cairn_writer bad, writer;
    uint8_t *bad_bytes;
    uint32_t bad_count;
    cairn_err err;

    for (uint32_t a = 0; a < core->options.agent_count; a++)
        for (uint32_t h = 0; h < restore->inventories[a].holding_count; h++)
            bad_room += 13u * restore->inventories[a].holdings[h].bad_listed;
    bad_bytes = malloc(bad_room + 1);
    if (!bad_bytes)
        return CAIRN_NOMEM;
    cairn_writer_init(&bad, bad_bytes, bad_room + 1);
    err = collect_bad(core, table, &bad, &bad_count);
    if (err)
        goto done;
    err = CAIRN_NOMEM;
    cairn_writer_init(&writer, NULL, SIZE_MAX);
    cairn_roster_write(table, &writer);
    restore->plan_len = writer.used_bytes + 8u * table->member_count + 4 + bad.used_bytes;
    restore->plan = malloc(restore->plan_len);
    if (!restore->plan)
        goto done;
    cairn_writer_init(&writer, restore->plan, restore->plan_len);
    cairn_roster_write(table, &writer);
    for (uint32_t m = 0; m < table->member_count; m++) {
        cairn_write_u32(&writer, restore->holders[m]);
        cairn_write_u32(&writer, restore->targets[m]);
    }
    cairn_write_u32(&writer, bad_count);
    cairn_write_bytes(&writer, bad_bytes, bad.used_bytes);
    err = cairn_writer_done(&writer);
done:
    free(bad_bytes);
    return err;
}

cairn_err
restore_plan(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    uint32_t members = restore->choice.table->member_count;

    cairn_roster_drop(restore->table);
    free(restore->holders);
    free(restore->targets);
    free(restore->written);
    free(restore->plan);
    restore->plan = NULL;
    restore->table = cairn_roster_hold(restore->choice.table);
    restore->holders = calloc(members, sizeof(uint32_t));
    restore->targets = calloc(members, sizeof(uint32_t));
    restore->written = calloc(members, sizeof(uint64_t));
    memset(restore->done, 0, cairn_bitset_words(CAIRN_NODES_MAX) * sizeof(uint64_t));
    if (!restore->holders || !restore->targets || !restore->written)
        return CAIRN_NOMEM;
    for (uint32_t m = 0; m < members; m++) {
        restore->holders[m] = choose_holder(restore->inventories, core->options.agent_count,
                                            restore->choice.generation, m);
        restore->targets[m] = UINT32_MAX;
    }
    for (uint32_t m = 0; m < members; m++) {
        if (restore->holders[m] != UINT32_MAX || restore->operation == CAIRN_OP_VERIFY)
            continue; /* a verify mends what is damaged; where lost parts go is for a restore to
                         decide */
        restore->targets[m] = pick_target(core, restore->table, m);
        if (restore->targets[m] == UINT32_MAX)
            return CAIRN_LOST;
    }
    return pack_plan(core);
}

void
restore_send_plan(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    struct cairn_message message = message_new(core, CAIRN_MSG_REBUILD, restore->epoch);

    message.generation = restore->choice.generation;
    message.request = restore->plan_number;
    message.bytes = restore->plan;
    message.bytes_len = (uint32_t)restore->plan_len;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (cairn_bitset_has(restore->promised, a))
            send_message(core, a, &message);
    restore->sent_ns = core->now_ns;
}

bool
restore_rebuilt(const struct restore *restore)
{
    for (uint32_t m = 0; m < restore->table->member_count; m++)
        if (restore->targets[m] != UINT32_MAX && !cairn_bitset_has(restore->done, m))
            return false;
    return true;
}

/*
 * Blocks of a member's part when `count` members share the job's state: as many as in the
 * generation that is restored, the largest part taken for the average. What is not known here is
 * taken to fill its slot.
 */
static uint64_t
expected_part_blocks(const struct cairn_core *core, uint32_t count)
{
    const struct choice *choice = &core->restore.choice;
    uint64_t largest = 0, expected;

    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        const struct holding *holding = &core->holdings[i];

        if (holding->state != CAIRN_HOLDING_COMPLETE ||
            !generation_is(holding->generation, choice->generation))
            continue;
        for (uint32_t p = 0; p < holding->geometry.n; p++)
            if (holding->seals[p].whole && holding->seals[p].shard_blocks > largest)
                largest = holding->seals[p].shard_blocks;
    }
    if (largest == 0 || !core->restore.table)
        return core->options.slot_blocks;
    expected = (largest * core->restore.table->member_count + count - 1) / count;
    return min_u64(expected, core->options.slot_blocks);
}

/* Whether the parity of such parts fits the memory that every agent reserved for it at its
 * start. */
static bool
parity_fits(const struct cairn_core *core, const struct cairn_roster *table, uint64_t part_blocks)
{
    for (uint32_t g = 0; g < table->group_count; g++)
        if (!save_parity_fits(core, &table->groups[g], part_blocks))
            return false;
    return true;
}

/*
 * Lays the members out in groups. Fewer nodes make smaller groups, which need more memory per
 * parity row than was reserved: then there is less parity, since a job that survives one loss is
 * better off than one whose generations never fit.
 */
static cairn_err
lay_out(struct cairn_core *core, const uint32_t *agents, const char *const *domains, uint32_t count,
        uint64_t part_blocks, struct cairn_roster **out)
{
    uint32_t wanted = core->options.parity < count ? core->options.parity : count - 1;
    uint32_t parity = wanted;
    char text[200];

    for (;;) {
        cairn_err err =
            cairn_roster_build(agents, domains, count, parity, core->options.group_size, out);

        if (err)
            return err;
        if (parity == 0 || parity_fits(core, *out, part_blocks))
            break;
        cairn_roster_drop(*out);
        parity--;
    }
    if (parity < core->options.parity) {
        snprintf(text, sizeof text,
                 "with %u nodes only %u loss%s of a group can be survived, not %u: %s", count,
                 parity, parity == 1 ? "" : "es", core->options.parity,
                 parity < wanted
                     ? "the memory reserved for parity holds no more until nodes are back"
                     : "there must be more nodes than losses");
        restore_say(core, text);
    }
    return CAIRN_OK;
}

/* The members of the epoch that an operator asked for: those that can train now. */
static cairn_err
next_table(struct cairn_core *core, struct cairn_roster **out)
{
    struct restore *restore = &core->restore;
    const struct cairn_roster *old = restore->table ? restore->table : core->table;
    uint32_t *agents = calloc(core->options.agent_count + 1, sizeof *agents);
    const char **domains = calloc(core->options.agent_count + 1, sizeof *domains);
    uint64_t taken[CAIRN_NODES_MAX / 64] = {0};
    uint32_t count = 0;
    cairn_err err = agents && domains ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t pass = 0; !err && pass < 2; pass++)
        for (uint32_t i = 0; i < (pass ? core->options.agent_count : old->member_count); i++) {
            uint32_t agent = pass ? i : old->members[i].agent;

            if (!pass &&
                (agent >= core->options.agent_count || !cairn_bitset_has(restore->promised, agent)))
                agent = restore->targets ? restore->targets[i] : UINT32_MAX;
            if (agent >= core->options.agent_count || !cairn_bitset_has(restore->promised, agent) ||
                cairn_bitset_has(taken, agent) || (pass && core->spares[agent]))
                continue;
            cairn_bitset_add(taken, agent);
            agents[count] = agent;
            domains[count++] = core->domains[agent];
        }
    if (!err && count == 0)
        err = CAIRN_LOST;
    if (!err)
        err = lay_out(core, agents, domains, count, expected_part_blocks(core, count), out);
    free(agents);
    free(domains);
    return err;
}

/* The members of an epoch that nobody asked for: those that there are, in their order, and behind
 * them who was late. */
static cairn_err
same_table(struct cairn_core *core, struct cairn_roster **out)
{
    uint32_t late[CAIRN_NODES_MAX];
    uint32_t late_count = join_late_agents(core, late), count = core->table->member_count;
    uint32_t *agents;
    const char **domains;
    cairn_err err;

    if (late_count == 0) {
        *out = cairn_roster_hold(core->table);
        return CAIRN_OK;
    }
    agents = calloc(count + late_count, sizeof *agents);
    domains = calloc(count + late_count, sizeof *domains);
    err = agents && domains ? CAIRN_OK : CAIRN_NOMEM;
    for (uint32_t m = 0; !err && m < count + late_count; m++) {
        agents[m] = m < count ? core->table->members[m].agent : late[m - count];
        domains[m] = core->domains[agents[m]];
    }
    if (!err)
        err = lay_out(core, agents, domains, count + late_count, join_largest_part(core), out);
    free(agents);
    free(domains);
    return err;
}

/* What a restore that failed leaves as it was: the newest ready generation that anyone of this
 * epoch knows. */
cairn_err
restore_pack_unsettled(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    struct cairn_generation ready = core->ready;
    const struct cairn_roster *table = core->ready_table;
    bool from_files = core->ready_from_files;
    uint32_t *agents = calloc(core->table->member_count, sizeof *agents);
    const uint32_t *holders = core->holders;
    cairn_err err;

    if (!agents)
        return CAIRN_NOMEM;
    for (uint32_t m = 0; m < core->table->member_count; m++)
        agents[m] = core->table->members[m].agent;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (restore->inventories[a].known && restore->inventories[a].ready.epoch == core->active &&
            cairn_generation_compare(restore->inventories[a].ready, ready) > 0) {
            ready = restore->inventories[a]
                        .ready; /* committed in this epoch: every member's own agent has it */
            table = core->table;
            holders = agents;
            from_files = false;
        }
    err = epoch_pack(restore->epoch, ready, from_files, false, core->restart_epoch, table, holders,
                     core->table, &restore->record, &restore->record_len);
    free(agents);
    return err;
}

cairn_err
restore_pack_settled(struct cairn_core *core)
{
    struct restore *restore = &core->restore;
    bool in_memory = !restore->choice.from_files && restore->operation != CAIRN_OP_FRESH;
    struct cairn_roster *table = NULL;
    cairn_err err;

    for (uint32_t m = 0; in_memory && m < restore->table->member_count; m++)
        if (restore->targets[m] != UINT32_MAX)
            restore->holders[m] = restore->targets[m];
    err = restore->by_itself ? same_table(core, &table) : next_table(core, &table);
    if (!err)
        err = epoch_pack(
            restore->epoch, restore->choice.generation, restore->choice.from_files, true,
            restore->by_itself && !(restore->joining && CAIRN_PLANTED(core, BUG_JOIN_RESTARTS))
                ? core->restart_epoch
                : restore->epoch,
            in_memory ? restore->table : NULL, restore->holders, table, &restore->record,
            &restore->record_len);
    cairn_roster_drop(table);
    return err;
}
