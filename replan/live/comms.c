/* replan/live/comms.c - the communicators of a running job, as they become known; see
 * state.h. */
#include "replan/live/state.h"
#include "base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM_FIRST = 32, COMMS_PER_RANK_MAX = 8 };

static uint32_t
slot_of(uint64_t hash, uint32_t room)
{
    return (uint32_t)((hash * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (room - 1);
}

void
live_comms_fini(struct live_comms *comms)
{
    for (uint32_t i = 0; i < comms->count; i++)
        free(comms->items[i].members);
    free(comms->items);
    free(comms->names);
    *comms = (struct live_comms){0};
}

struct live_comm *
live_comms_find(const struct live_comms *comms, uint64_t hash)
{
    if (comms->count == 0)
        return NULL;
    for (uint32_t at = slot_of(hash, comms->name_room); comms->names[at];
         at = (at + 1) & (comms->name_room - 1))
        if (comms->items[comms->names[at] - 1].hash == hash)
            return &comms->items[comms->names[at] - 1];
    return NULL;
}

static void
name_insert(struct live_comms *comms, uint32_t index)
{
    uint32_t at = slot_of(comms->items[index].hash, comms->name_room);

    while (comms->names[at])
        at = (at + 1) & (comms->name_room - 1);
    comms->names[at] = index + 1;
}

static cairn_err
grow(struct live_comms *comms)
{
    uint32_t room = comms->room ? 2 * comms->room : ROOM_FIRST;
    struct live_comm *items;
    uint32_t *names;

    if (comms->count < comms->room)
        return CAIRN_OK;
    items = realloc(comms->items, room * sizeof *items);
    if (!items)
        return CAIRN_NOMEM;
    comms->items = items;
    names = calloc((size_t)room * 4, sizeof *names);
    if (!names)
        return CAIRN_NOMEM;
    free(comms->names);
    comms->names = names;
    comms->name_room = room * 4;
    comms->room = room;
    for (uint32_t i = 0; i < comms->count; i++)
        name_insert(comms, i);
    return CAIRN_OK;
}

/* Where a rank is, or would be. */
static uint32_t
position_of(const struct live_comm *comm, uint32_t rank)
{
    uint32_t first = 0, last = comm->member_count;

    CAIRN_BISECT(first, last, middle, comm->members[middle].rank < rank);
    return first;
}

static cairn_err
add_member(struct live_comm *comm, uint32_t rank, uint32_t place)
{
    uint32_t at = position_of(comm, rank);

    if (at < comm->member_count && comm->members[at].rank == rank) {
        comm->members[at].place = place;
        return CAIRN_OK;
    }
    if (comm->member_count == comm->ranks)
        return CAIRN_FULL;
    if (!cairn_array_grow(&comm->members, comm->member_count, sizeof *comm->members))
        return CAIRN_NOMEM;
    memmove(&comm->members[at + 1], &comm->members[at],
            (comm->member_count - at) * sizeof *comm->members);
    comm->members[at] = (struct live_member){rank, place};
    comm->member_count++;
    return CAIRN_OK;
}

cairn_err
live_comms_join(struct live_comms *comms, uint32_t world, const struct cairn_report *report)
{
    struct live_comm *comm = live_comms_find(comms, report->comm);
    cairn_err err;

    if (!comm) {
        if (comms->count >= COMMS_PER_RANK_MAX * (uint64_t)world)
            return CAIRN_FULL;
        err = grow(comms);
        if (err)
            return err;
        comm = &comms->items[comms->count];
        *comm = (struct live_comm){
            .hash = report->comm, .ranks = report->comm_ranks, .index = CAIRN_COMM_NONE};
        name_insert(comms, comms->count++);
    }
    if (comm->member_count == 0)
        comm->ranks = report->comm_ranks;
    if (comm->ranks != report->comm_ranks)
        return CAIRN_FULL;
    return add_member(comm, report->rank, report->place);
}

/* Lets go of those that nobody is in any more: each start of a job may bring names of its own. */
static void
forget_empty(struct live_comms *comms)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < comms->count; i++)
        if (comms->items[i].member_count > 0)
            comms->items[kept++] = comms->items[i];
        else
            free(comms->items[i].members);
    if (kept == comms->count)
        return;
    comms->count = kept;
    memset(comms->names, 0, comms->name_room * sizeof *comms->names);
    for (uint32_t i = 0; i < kept; i++)
        name_insert(comms, i);
}

void
live_comms_leave(struct live_comms *comms, uint32_t rank)
{
    for (uint32_t i = 0; i < comms->count; i++) {
        struct live_comm *comm = &comms->items[i];
        uint32_t at = position_of(comm, rank);

        if (at == comm->member_count || comm->members[at].rank != rank)
            continue;
        comm->member_count--;
        memmove(&comm->members[at], &comm->members[at + 1],
                (comm->member_count - at) * sizeof *comm->members);
        comm->steps = comm->last_step = 0;
    }
    forget_empty(comms);
}

bool
live_comm_is_complete(const struct live_comm *comm)
{
    return comm->member_count == comm->ranks;
}

uint32_t
live_comm_rank_at(const struct live_comm *comm, uint32_t place)
{
    /* mostly places follow the ranks */
    if (place < comm->member_count && comm->members[place].place == place)
        return comm->members[place].rank;
    for (uint32_t i = 0; i < comm->member_count; i++)
        if (comm->members[i].place == place)
            return comm->members[i].rank;
    return UINT32_MAX;
}

/* ---- the job's shape ---- */

static bool
is_within_node(const struct live_shape *shape, const struct live_comm *comm)
{
    for (uint32_t i = 1; i < comm->member_count; i++)
        if (shape->node[comm->members[i].rank] != shape->node[comm->members[0].rank])
            return false;
    return true;
}

/* Names as replan/trace/topology.h reads them: the first two letters are the role, and a number at
 * the end distinguishes communicators of one role. */
static void
name_comm(const struct live_shape *shape, const struct live_comm *comm, uint32_t number, char *out,
          size_t out_bytes)
{
    const uint32_t transfers = 1u << CAIRN_SEND | 1u << CAIRN_RECV;
    uint32_t stride = comm->member_count > 1 ? comm->members[1].rank - comm->members[0].rank : 0;

    if ((comm->ops & ~transfers) == 0 && comm->ops != 0)
        snprintf(out, out_bytes, "pp%u", number);
    else if (comm->ranks == shape->world)
        snprintf(out, out_bytes, "all%u", number);
    else
        snprintf(out, out_bytes, "%s-%u-every-%u-n%u", is_within_node(shape, comm) ? "tp" : "dp",
                 comm->ranks, stride, number);
}

/* Fills ranks in the order of places where those are known, else of ranks. Of one that is the whole
 * job all are known. Returns how many there are. */
static uint32_t
order_ranks(const struct live_shape *shape, const struct live_comm *comm, uint32_t *ranks)
{
    bool by_place = live_comm_is_complete(comm);

    if (!by_place && comm->ranks == shape->world) {
        for (uint32_t i = 0; i < comm->ranks; i++)
            ranks[i] = i;
        return comm->ranks;
    }
    for (uint32_t i = 0; i < comm->member_count; i++)
        ranks[i] = UINT32_MAX;
    for (uint32_t i = 0; i < comm->member_count && by_place; i++) {
        uint32_t place = comm->members[i].place;

        by_place = place < comm->member_count && ranks[place] == UINT32_MAX;
        if (by_place)
            ranks[place] = comm->members[i].rank;
    }
    for (uint32_t i = 0; i < comm->member_count && !by_place; i++)
        ranks[i] = comm->members[i].rank;
    return comm->member_count;
}

cairn_err
live_topology(struct live_comms *comms, const struct live_shape *shape, struct cairn_topology **out)
{
    struct cairn_topology *topology = NULL;
    uint32_t *ranks = malloc(shape->world * sizeof *ranks);
    cairn_err err = ranks ? cairn_topology_create(shape->world, &topology) : CAIRN_NOMEM;

    if (!err)
        memcpy(topology->node, shape->node, shape->world * sizeof *shape->node);
    for (uint32_t i = 0; !err && i < comms->count; i++) {
        struct live_comm *comm = &comms->items[i];
        char name[CAIRN_TOPOLOGY_NAME_BYTES];
        uint32_t count;

        comm->index = CAIRN_COMM_NONE;
        if (comm->steps == 0 ||
            (!shape->takes_parts && !live_comm_is_complete(comm) && comm->ranks != shape->world))
            continue; /* who else is in it is not known */
        name_comm(shape, comm, i, name, sizeof name);
        count = order_ranks(shape, comm, ranks);
        comm->index = topology->comm_count;
        err = cairn_topology_add(topology, name, ranks, count);
    }
    if (!err)
        err = cairn_topology_finish(topology);
    free(ranks);
    if (err) {
        cairn_topology_destroy(topology);
        return err;
    }
    *out = topology;
    return CAIRN_OK;
}
