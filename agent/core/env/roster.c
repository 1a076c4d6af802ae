/* agent/core/env/roster.c - see roster.h. */
#include "agent/core/env/roster.h"

#include "erasure/group.h"

#include <stdlib.h>
#include <string.h>

static cairn_err
roster_create(uint32_t member_count, uint32_t group_count, struct cairn_roster **out)
{
    struct cairn_roster *roster = calloc(1, sizeof *roster);

    if (!roster)
        return CAIRN_NOMEM;
    roster->references = 1;
    roster->member_count = member_count;
    roster->group_count = group_count;
    roster->members = calloc(member_count, sizeof *roster->members);
    roster->groups = calloc(group_count, sizeof *roster->groups);
    roster->places = calloc(member_count, sizeof *roster->places);
    if (!roster->members || !roster->groups || !roster->places) {
        cairn_roster_drop(roster);
        return CAIRN_NOMEM;
    }
    *out = roster;
    return CAIRN_OK;
}

cairn_err
cairn_roster_build(const uint32_t *agents, const char *const *domains, uint32_t member_count,
                   uint32_t parity, uint32_t group_size, struct cairn_roster **out)
{
    struct cairn_group_node *nodes = NULL;
    struct cairn_groups groups = {0};
    struct cairn_roster *roster = NULL;
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
    err = roster_create(member_count, groups.group_count, &roster);
    if (err)
        goto done;
    for (uint32_t g = 0; g < groups.group_count; g++) {
        roster->groups[g].count = groups.groups[g].n;
        roster->groups[g].parity = groups.groups[g].m;
        roster->groups[g].members = &roster->places[placed];
        placed += groups.groups[g].n;
        for (uint32_t p = 0; p < groups.groups[g].n; p++) {
            uint32_t member = groups.members[groups.groups[g].member_first + p];

            roster->groups[g].members[p] = member;
            roster->members[member] = (struct cairn_roster_member){agents[member], g, p};
        }
    }
    *out = roster;
    roster = NULL;
done:
    cairn_roster_drop(roster);
    cairn_groups_fini(&groups);
    free(nodes);
    return err;
}

struct cairn_roster *
cairn_roster_hold(struct cairn_roster *roster)
{
    roster->references++;
    return roster;
}

void
cairn_roster_drop(struct cairn_roster *roster)
{
    if (!roster || --roster->references > 0)
        return;
    free(roster->members);
    free(roster->groups);
    free(roster->places);
    free(roster);
}

void
cairn_roster_write(const struct cairn_roster *roster, struct cairn_writer *writer)
{
    cairn_write_u32(writer, roster->member_count);
    cairn_write_u32(writer, roster->group_count);
    for (uint32_t i = 0; i < roster->member_count; i++)
        cairn_write_u32(writer, roster->members[i].agent);
    for (uint32_t g = 0; g < roster->group_count; g++) {
        cairn_write_u32(writer, roster->groups[g].count);
        cairn_write_u32(writer, roster->groups[g].parity);
        for (uint32_t p = 0; p < roster->groups[g].count; p++)
            cairn_write_u32(writer, roster->groups[g].members[p]);
    }
}

static cairn_err
read_groups(struct cairn_reader *reader, struct cairn_roster *roster)
{
    uint32_t placed = 0;

    for (uint32_t g = 0; g < roster->group_count; g++) {
        struct cairn_roster_group *group = &roster->groups[g];

        group->count = cairn_read_u32(reader);
        group->parity = cairn_read_u32(reader);
        if (group->count == 0 || group->count > CAIRN_SHARDS_MAX ||
            group->count > roster->member_count - placed || group->parity >= group->count)
            return CAIRN_CORRUPT;
        group->members = &roster->places[placed];
        for (uint32_t p = 0; p < group->count; p++) {
            uint32_t member = cairn_read_u32(reader);

            if (member >= roster->member_count || roster->members[member].group != UINT32_MAX)
                return CAIRN_CORRUPT;
            group->members[p] = member;
            roster->members[member].group = g;
            roster->members[member].position = p;
            placed++;
        }
    }
    return placed == roster->member_count ? CAIRN_OK : CAIRN_CORRUPT;
}

cairn_err
cairn_roster_read(struct cairn_reader *reader, struct cairn_roster **out)
{
    uint32_t member_count = cairn_read_u32(reader);
    uint32_t group_count = cairn_read_u32(reader);
    struct cairn_roster *roster = NULL;
    cairn_err err;

    if (member_count == 0 || member_count > CAIRN_NODES_MAX || group_count == 0 ||
        group_count > member_count || cairn_reader_left(reader) / 8 < member_count)
        return CAIRN_CORRUPT;
    err = roster_create(member_count, group_count, &roster);
    if (err)
        return err;
    for (uint32_t i = 0; i < member_count; i++) {
        roster->members[i].agent = cairn_read_u32(reader);
        roster->members[i].group = UINT32_MAX;
        if (roster->members[i].agent >= CAIRN_NODES_MAX) {
            cairn_roster_drop(roster);
            return CAIRN_CORRUPT;
        }
    }
    err = read_groups(reader, roster);
    if (err) {
        cairn_roster_drop(roster);
        return err;
    }
    *out = roster;
    return CAIRN_OK;
}

uint32_t
cairn_roster_member_of(const struct cairn_roster *roster, uint32_t agent)
{
    for (uint32_t i = 0; i < roster->member_count; i++)
        if (roster->members[i].agent == agent)
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
