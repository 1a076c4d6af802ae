/*
 * erasure/roster.c - see roster.h.
 *
 * Packed (little-endian): u32 members, u32 groups, u32 agent of each member, and per group u32
 * members, u32 parity, u32 members by position.
 */
#include "erasure/roster.h"

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

/* `placed`: members of the groups before it. */
static void
code_group(struct cairn_codec *codec, struct cairn_roster *roster, uint32_t g, uint32_t placed)
{
    struct cairn_roster_group *group = &roster->groups[g];

    cairn_codec_u32(codec, &group->count);
    cairn_codec_u32(codec, &group->parity);
    cairn_codec_check(codec, group->count > 0 && group->count <= CAIRN_SHARDS_MAX &&
                                 group->count <= roster->member_count - placed &&
                                 group->parity < group->count);
    if (codec->reads)
        group->members = &roster->places[placed];
    for (uint32_t p = 0; !codec->err && p < group->count; p++) {
        uint32_t *member = &group->members[p];

        cairn_codec_u32(codec, member);
        cairn_codec_check(codec, *member < roster->member_count &&
                                     roster->members[*member].group == UINT32_MAX);
        if (codec->reads && !codec->err) {
            roster->members[*member].group = g;
            roster->members[*member].position = p;
        }
    }
}

void
cairn_roster_code(struct cairn_codec *codec, struct cairn_roster **roster)
{
    uint32_t member_count = codec->reads ? 0 : (*roster)->member_count;
    uint32_t group_count = codec->reads ? 0 : (*roster)->group_count, placed = 0;

    cairn_codec_u32(codec, &member_count);
    cairn_codec_u32(codec, &group_count);
    cairn_codec_check(codec, member_count > 0 && member_count <= CAIRN_NODES_MAX &&
                                 group_count > 0 && group_count <= member_count &&
                                 cairn_reader_left(&codec->reader) / 8 >= member_count);
    if (codec->reads && !codec->err)
        codec->err = roster_create(member_count, group_count, roster);
    if (codec->err)
        return;
    for (uint32_t m = 0; m < member_count; m++) {
        cairn_codec_u32(codec, &(*roster)->members[m].agent);
        cairn_codec_check(codec, (*roster)->members[m].agent < CAIRN_NODES_MAX);
        if (codec->reads)
            (*roster)->members[m].group = UINT32_MAX;
    }
    for (uint32_t g = 0; !codec->err && g < group_count; g++) {
        code_group(codec, *roster, g, placed);
        placed += (*roster)->groups[g].count;
    }
    cairn_codec_check(codec, placed == member_count);
    if (codec->err) {
        cairn_roster_drop(*roster);
        *roster = NULL;
    }
}

void
cairn_roster_code_optional(struct cairn_codec *codec, struct cairn_roster **roster)
{
    bool has = *roster != NULL;

    cairn_codec_bool(codec, &has);
    if (has)
        cairn_roster_code(codec, roster);
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
