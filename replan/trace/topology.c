/* replan/trace/topology.c - ranks, nodes and communicators of a job, and the roles that follow from
 * them. */
#include "replan/trace/topology.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_ROOM_FIRST = 64, COMM_ROOM_FIRST = 16 };

cairn_err
cairn_topology_create(uint32_t world, struct cairn_topology **out)
{
    struct cairn_topology *topology;

    if (world == 0 || world > CAIRN_TOPOLOGY_WORLD_MAX)
        return CAIRN_INVAL;
    topology = calloc(1, sizeof *topology);
    if (!topology)
        return CAIRN_NOMEM;
    topology->world = world;
    topology->node = calloc(world, sizeof *topology->node);
    topology->stage = calloc(world, sizeof *topology->stage);
    topology->pipeline = calloc(world, sizeof *topology->pipeline);
    topology->comms_begin = calloc((size_t)world + 1, sizeof *topology->comms_begin);
    topology->names = calloc(NAME_ROOM_FIRST, sizeof *topology->names);
    topology->name_room = NAME_ROOM_FIRST;
    if (!topology->node || !topology->stage || !topology->pipeline || !topology->comms_begin ||
        !topology->names) {
        cairn_topology_destroy(topology);
        return CAIRN_NOMEM;
    }
    for (uint32_t rank = 0; rank < world; rank++)
        topology->node[rank] = CAIRN_NODE_UNKNOWN;
    *out = topology;
    return CAIRN_OK;
}

void
cairn_topology_destroy(struct cairn_topology *topology)
{
    if (!topology)
        return;
    for (uint32_t i = 0; i < topology->comm_count; i++)
        free(topology->comms[i].ranks);
    free(topology->comms);
    free(topology->node);
    free(topology->stage);
    free(topology->pipeline);
    free(topology->pipeline_begin);
    free(topology->ranks_of_pipeline);
    free(topology->comms_begin);
    free(topology->comms_of_rank);
    free(topology->names);
    free(topology);
}

static uint32_t
name_hash(const char *name, size_t name_bytes)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (size_t i = 0; i < name_bytes; i++)
        hash = (hash ^ (uint8_t)name[i]) * 16777619u;
    return hash;
}

uint32_t
cairn_topology_find(const struct cairn_topology *topology, const char *name, size_t name_bytes)
{
    uint32_t mask = topology->name_room - 1;

    for (uint32_t at = name_hash(name, name_bytes) & mask; topology->names[at];
         at = (at + 1) & mask) {
        const struct cairn_comm *comm = &topology->comms[topology->names[at] - 1];

        if (memcmp(comm->name, name, name_bytes) == 0 && comm->name[name_bytes] == '\0')
            return topology->names[at] - 1;
    }
    return CAIRN_COMM_NONE;
}

static void
name_insert(struct cairn_topology *topology, uint32_t comm)
{
    const char *name = topology->comms[comm].name;
    uint32_t mask = topology->name_room - 1, at = name_hash(name, strlen(name)) & mask;

    while (topology->names[at])
        at = (at + 1) & mask;
    topology->names[at] = comm + 1;
}

/* Doubles what is full. */
static cairn_err
grow(struct cairn_topology *topology)
{
    uint32_t room = topology->comm_room ? 2 * topology->comm_room : COMM_ROOM_FIRST;
    struct cairn_comm *comms;
    uint32_t *names;

    if (topology->comm_count < topology->comm_room)
        return CAIRN_OK;
    if (topology->comm_count >= CAIRN_TOPOLOGY_COMMS_MAX)
        return CAIRN_FULL;
    comms = realloc(topology->comms, room * sizeof *comms);
    if (!comms)
        return CAIRN_NOMEM;
    topology->comms = comms;
    names = calloc((size_t)room * 4, sizeof *names);
    if (!names)
        return CAIRN_NOMEM;
    free(topology->names);
    topology->names = names;
    topology->name_room = room * 4;
    topology->comm_room = room;
    for (uint32_t i = 0; i < topology->comm_count; i++)
        name_insert(topology, i);
    return CAIRN_OK;
}

static int
compare_u32(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

static bool
ranks_valid(const struct cairn_topology *topology, const uint32_t *ranks, uint32_t count,
            uint32_t *sorted)
{
    memcpy(sorted, ranks, count * sizeof *ranks);
    qsort(sorted, count, sizeof *sorted, compare_u32);
    for (uint32_t i = 0; i < count; i++)
        if (sorted[i] >= topology->world || (i > 0 && sorted[i] == sorted[i - 1]))
            return false;
    return true;
}

cairn_err
cairn_topology_add(struct cairn_topology *topology, const char *name, const uint32_t *ranks,
                   uint32_t count)
{
    struct cairn_comm *comm;
    uint32_t *copy;
    cairn_err err;

    if (count == 0 || count > topology->world || strlen(name) >= CAIRN_TOPOLOGY_NAME_BYTES ||
        cairn_topology_find(topology, name, strlen(name)) != CAIRN_COMM_NONE)
        return CAIRN_INVAL;
    err = grow(topology);
    if (err)
        return err;
    copy = malloc(count * sizeof *copy);
    if (!copy)
        return CAIRN_NOMEM;
    if (!ranks_valid(topology, ranks, count, copy)) {
        free(copy);
        return CAIRN_INVAL;
    }
    memcpy(copy, ranks, count * sizeof *copy);
    comm = &topology->comms[topology->comm_count];
    *comm = (struct cairn_comm){.ranks = copy, .count = count};
    memcpy(comm->name, name, strlen(name) + 1);
    name_insert(topology, topology->comm_count++);
    return CAIRN_OK;
}

bool
cairn_topology_apart(const struct cairn_topology *topology, uint32_t left, uint32_t right)
{
    return topology->node[left] != CAIRN_NODE_UNKNOWN &&
           topology->node[right] != CAIRN_NODE_UNKNOWN &&
           topology->node[left] != topology->node[right];
}

bool
cairn_topology_member(const struct cairn_topology *topology, uint32_t rank, uint32_t comm)
{
    for (uint32_t i = topology->comms_begin[rank]; i < topology->comms_begin[rank + 1]; i++)
        if (topology->comms_of_rank[i] == comm)
            return true;
    return false;
}

static size_t
kind_bytes(const char *name)
{
    size_t bytes = strlen(name);

    while (bytes > 0 && isdigit((unsigned char)name[bytes - 1]))
        bytes--;
    return bytes;
}

/* Names that differ in the number at their end alone are one kind. There are few kinds. */
static void
find_kinds(struct cairn_topology *topology, uint32_t *first_of_kind)
{
    for (uint32_t i = 0; i < topology->comm_count; i++) {
        struct cairn_comm *comm = &topology->comms[i];
        size_t bytes = kind_bytes(comm->name);
        uint32_t kind = 0;

        while (kind < topology->kind_count) {
            const char *other = topology->comms[first_of_kind[kind]].name;

            if (kind_bytes(other) == bytes && memcmp(other, comm->name, bytes) == 0)
                break;
            kind++;
        }
        if (kind == topology->kind_count && kind < 64)
            first_of_kind[topology->kind_count++] = i;
        comm->kind = kind < 64 ? kind : 63;
        for (uint32_t k = 1; k < comm->count; k++)
            comm->crosses |= cairn_topology_apart(topology, comm->ranks[0], comm->ranks[k]);
    }
}

static cairn_err
list_comms(struct cairn_topology *topology)
{
    uint32_t *begin = topology->comms_begin, total = 0;

    for (uint32_t i = 0; i < topology->comm_count; i++)
        for (uint32_t k = 0; k < topology->comms[i].count; k++)
            begin[topology->comms[i].ranks[k] + 1]++;
    for (uint32_t rank = 0; rank < topology->world; rank++)
        begin[rank + 1] += begin[rank];
    total = begin[topology->world];
    topology->comms_of_rank = malloc((total + 1) * sizeof *topology->comms_of_rank);
    if (!topology->comms_of_rank)
        return CAIRN_NOMEM;
    for (uint32_t i = topology->comm_count; i-- > 0;) /* backwards: begin[] ends where it began */
        for (uint32_t k = 0; k < topology->comms[i].count; k++)
            topology->comms_of_rank[--begin[topology->comms[i].ranks[k] + 1]] = i;
    for (uint32_t rank = 0; rank < topology->world; rank++)
        begin[rank] = begin[rank + 1];
    begin[topology->world] = total;
    return CAIRN_OK;
}

static bool
begins(const struct cairn_comm *comm, const char *prefix)
{
    return strncmp(comm->name, prefix, 2) == 0 && !isalpha((unsigned char)comm->name[2]);
}

static uint32_t
root_of(uint32_t *parent, uint32_t rank)
{
    while (parent[rank] != rank) {
        parent[rank] = parent[parent[rank]];
        rank = parent[rank];
    }
    return rank;
}

static void
find_roles(struct cairn_topology *topology)
{
    uint32_t *parent = topology->pipeline;

    topology->stage_count = 1;
    for (uint32_t rank = 0; rank < topology->world; rank++)
        parent[rank] = rank;
    for (uint32_t i = 0; i < topology->comm_count; i++) {
        const struct cairn_comm *comm = &topology->comms[i];

        if (begins(comm, "pp"))
            for (uint32_t k = 0; k < comm->count; k++) {
                topology->stage[comm->ranks[k]] = k;
                if (k + 1 > topology->stage_count)
                    topology->stage_count = k + 1;
            }
        if (!begins(comm, "dp") && !begins(comm, "ep") &&
            (comm->count < topology->world || begins(comm, "tp") || begins(comm, "pp")))
            for (uint32_t k = 1; k < comm->count; k++)
                parent[root_of(parent, comm->ranks[k])] = root_of(parent, comm->ranks[0]);
    }
    for (uint32_t rank = 0; rank < topology->world; rank++) /* each one's root, then its number */
        parent[rank] = root_of(parent, rank);
}

/* The pipelines get the numbers 0 … in the order of their first rank. */
static void
number_pipelines(struct cairn_topology *topology, uint32_t *number)
{
    for (uint32_t rank = 0; rank < topology->world; rank++)
        number[rank] = UINT32_MAX;
    for (uint32_t rank = 0; rank < topology->world; rank++) {
        uint32_t root = topology->pipeline[rank];

        if (number[root] == UINT32_MAX)
            number[root] = topology->pipeline_count++;
        topology->pipeline[rank] = number[root];
    }
}

static cairn_err
list_pipelines(struct cairn_topology *topology)
{
    uint32_t *begin = calloc((size_t)topology->pipeline_count + 1, sizeof *begin);

    topology->pipeline_begin = begin;
    topology->ranks_of_pipeline = malloc(topology->world * sizeof *topology->ranks_of_pipeline);
    if (!begin || !topology->ranks_of_pipeline)
        return CAIRN_NOMEM;
    for (uint32_t rank = 0; rank < topology->world; rank++)
        begin[topology->pipeline[rank] + 1]++;
    for (uint32_t i = 0; i < topology->pipeline_count; i++)
        begin[i + 1] += begin[i];
    for (uint32_t rank = 0; rank < topology->world; rank++) /* begin[] goes one place further … */
        topology->ranks_of_pipeline[begin[topology->pipeline[rank]]++] = rank;
    for (uint32_t i = topology->pipeline_count; i > 0; i--) /* … and back */
        begin[i] = begin[i - 1];
    begin[0] = 0;
    return CAIRN_OK;
}

cairn_err
cairn_topology_finish(struct cairn_topology *topology)
{
    uint32_t first_of_kind[64];
    uint32_t *number = malloc(topology->world * sizeof *number);
    cairn_err err = CAIRN_NOMEM;

    if (!number)
        goto done;
    err = list_comms(topology);
    if (err)
        goto done;
    for (uint32_t rank = 0; rank < topology->world; rank++)
        if (topology->node[rank] != CAIRN_NODE_UNKNOWN &&
            topology->node[rank] >= topology->node_count)
            topology->node_count = topology->node[rank] + 1;
    find_kinds(topology, first_of_kind);
    find_roles(topology);
    number_pipelines(topology, number);
    err = list_pipelines(topology);
done:
    free(number);
    return err;
}
