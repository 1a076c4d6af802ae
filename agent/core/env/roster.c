/* agent/core/env/roster.c - see roster.h. */
#include "agent/core/env/roster.h"

#include "erasure/group.h"

#include <stdlib.h>
#include <string.h>

static cairn_err
roster_create(uint32_t member_count, uint32_t group_count, struct cairn_roster **out)
{
    struct cairn_roster *table = calloc(1, sizeof *table);

    if (!table)
        return CAIRN_NOMEM;
    table->references = 1;
    table->member_count = member_count;
    table->group_count = group_count;
    table->members = calloc(member_count, sizeof *table->members);
    table->groups = calloc(group_count, sizeof *table->groups);
    table->places = calloc(member_count, sizeof *table->places);
    if (!table->members || !table->groups || !table->places) {
        cairn_roster_drop(table);
        return CAIRN_NOMEM;
    }
    *out = table;
    return CAIRN_OK;
}

cairn_err
cairn_roster_build(const uint32_t *agents, const char *const *domains, uint32_t member_count,
                   uint32_t parity, uint32_t group_size, struct cairn_roster **out)
{
    struct cairn_group_node *nodes = NULL;
    struct cairn_groups groups = {0};
    struct cairn_roster *table = NULL;
    uint32_t placed = 0;
    cairn_err err;

    if (member_count == 0 || member_count > CAIRN_NODES_MAX)
        return CAIRN_INVAL;
    nodes = calloc(member_count, sizeof *nodes);
    if (!nodes)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < member_count; i++) {
        nodes[i].node = i;
        nodes[i].domain = domains ? domains[i] : NULL;
    }
    err = cairn_groups_init(nodes, member_count, group_size, parity, &groups);
    if (err)
        goto done;
    err = roster_create(member_count, groups.group_count, &table);
    if (err)
        goto done;
    for (uint32_t g = 0; g < groups.group_count; g++) {
        table->groups[g].count = groups.groups[g].n;
        table->groups[g].parity = groups.groups[g].m;
        table->groups[g].members = &table->places[placed];
        placed += groups.groups[g].n;
        for (uint32_t p = 0; p < groups.groups[g].n; p++) {
            uint32_t member = groups.members[groups.groups[g].member_first + p];

            table->groups[g].members[p] = member;
            table->members[member] = (struct cairn_roster_member){agents[member], g, p};
        }
    }
    *out = table;
    table = NULL;
done:
    cairn_roster_drop(table);
    cairn_groups_fini(&groups);
    free(nodes);
    return err;
}

struct cairn_roster *
cairn_roster_hold(struct cairn_roster *table)
{
    table->references++;
    return table;
}

void
cairn_roster_drop(struct cairn_roster *table)
{
    if (!table || --table->references > 0)
        return;
    free(table->members);
    free(table->groups);
    free(table->places);
    free(table);
}

void
cairn_roster_write(const struct cairn_roster *table, struct cairn_writer *writer)
{
    cairn_write_u32(writer, table->member_count);
    cairn_write_u32(writer, table->group_count);
    for (uint32_t i = 0; i < table->member_count; i++)
        cairn_write_u32(writer, table->members[i].agent);
    for (uint32_t g = 0; g < table->group_count; g++) {
        cairn_write_u32(writer, table->groups[g].count);
        cairn_write_u32(writer, table->groups[g].parity);
        for (uint32_t p = 0; p < table->groups[g].count; p++)
            cairn_write_u32(writer, table->groups[g].members[p]);
    }
}

static cairn_err
read_groups(struct cairn_reader *reader, struct cairn_roster *table)
{
    uint32_t placed = 0;

    for (uint32_t g = 0; g < table->group_count; g++) {
        struct cairn_roster_group *group = &table->groups[g];

        group->count = cairn_read_u32(reader);
        group->parity = cairn_read_u32(reader);
        if (group->count == 0 || group->count > CAIRN_SHARDS_MAX ||
            group->count > table->member_count - placed || group->parity >= group->count)
            return CAIRN_CORRUPT;
        group->members = &table->places[placed];
        for (uint32_t p = 0; p < group->count; p++) {
            uint32_t member = cairn_read_u32(reader);

            if (member >= table->member_count || table->members[member].group != UINT32_MAX)
                return CAIRN_CORRUPT;
            group->members[p] = member;
            table->members[member].group = g;
            table->members[member].position = p;
            placed++;
        }
    }
    return placed == table->member_count ? CAIRN_OK : CAIRN_CORRUPT;
}

cairn_err
cairn_roster_read(struct cairn_reader *reader, struct cairn_roster **out)
{
    uint32_t member_count = cairn_read_u32(reader);
    uint32_t group_count = cairn_read_u32(reader);
    struct cairn_roster *table = NULL;
    cairn_err err;

    if (member_count == 0 || member_count > CAIRN_NODES_MAX || group_count == 0 ||
        group_count > member_count || cairn_reader_left(reader) / 8 < member_count)
        return CAIRN_CORRUPT;
    err = roster_create(member_count, group_count, &table);
    if (err)
        return err;
    for (uint32_t i = 0; i < member_count; i++) {
        table->members[i].agent = cairn_read_u32(reader);
        table->members[i].group = UINT32_MAX;
        if (table->members[i].agent >= CAIRN_NODES_MAX) {
            cairn_roster_drop(table);
            return CAIRN_CORRUPT;
        }
    }
    err = read_groups(reader, table);
    if (err) {
        cairn_roster_drop(table);
        return err;
    }
    *out = table;
    return CAIRN_OK;
}

uint32_t
cairn_roster_member_of(const struct cairn_roster *table, uint32_t agent)
{
    for (uint32_t i = 0; i < table->member_count; i++)
        if (table->members[i].agent == agent)
            return i;
    return UINT32_MAX;
}

bool
cairn_roster_same(const struct cairn_roster *a, const struct cairn_roster *b)
{
    if (a->member_count != b->member_count || a->group_count != b->group_count ||
        memcmp(a->members, b->members, a->member_count * sizeof *a->members) != 0)
        return false;
    for (uint32_t g = 0; g < a->group_count; g++)
        if (a->groups[g].parity != b->groups[g].parity)
            return false;
    return true;
}
