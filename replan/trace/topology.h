/*
 * replan/trace/topology.h - who takes part in a job: ranks, the nodes they run on, the
 * communicators they share, and the role of each rank (its pipeline stage, and which pipeline it
 * belongs to).
 *
 * A plain description, made once from a trace's header and never changed. Roles are derived from
 * the communicators: a stage is a place in the chain of a communicator whose name begins with "pp";
 * a pipeline is what remains connected when the communicators that begin with "dp" and those of the
 * whole job are taken away. Without such names there is one stage, and each rank is its own
 * pipeline.
 */
#ifndef CAIRN_REPLAN_TRACE_TOPOLOGY_H
#define CAIRN_REPLAN_TRACE_TOPOLOGY_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_TOPOLOGY_WORLD_MAX = 1 << 20,
    CAIRN_TOPOLOGY_COMMS_MAX = 1 << 20,
    CAIRN_TOPOLOGY_NAME_BYTES = 64
};
#define CAIRN_NODE_UNKNOWN UINT32_MAX
#define CAIRN_COMM_NONE UINT32_MAX

struct cairn_comm {
    char name[CAIRN_TOPOLOGY_NAME_BYTES];
    uint32_t *ranks; /* in the order of the ring */
    uint32_t count;
    uint32_t kind; /* equal for names that differ in their number alone: "tp0" and "tp1" */
    bool crosses;  /* its ranks are on more than one node */
};

struct cairn_topology {
    uint32_t world;
    uint32_t *node; /* of each rank; CAIRN_NODE_UNKNOWN */
    uint32_t node_count;
    struct cairn_comm *comms;
    uint32_t comm_count, comm_room;
    uint32_t kind_count;
    uint32_t *stage;    /* of each rank */
    uint32_t *pipeline; /* of each rank */
    uint32_t stage_count, pipeline_count;
    uint32_t *pipeline_begin;    /* [pipeline_count + 1]: where a pipeline's ranks begin in … */
    uint32_t *ranks_of_pipeline; /* [world], each pipeline's in ascending order */
    uint32_t *comms_begin;   /* [world + 1]: where a rank's communicators begin in comms_of_rank */
    uint32_t *comms_of_rank; /* indices of communicators */
    uint32_t *names;         /* open hash of names: index of a communicator plus 1, 0 for none */
    uint32_t name_room;
};

/* Makes an empty description of world ranks (1 … CAIRN_TOPOLOGY_WORLD_MAX), all on unknown nodes.
 * CAIRN_INVAL, CAIRN_NOMEM. The caller ends it with cairn_topology_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_topology_create(uint32_t world, struct cairn_topology **out);
void cairn_topology_destroy(struct cairn_topology *topology); /* NULL is allowed */

/* Adds a communicator; ranks[count] are copied. CAIRN_INVAL: the name is taken or too long, count
 * is 0, or a rank is out of range or named twice. CAIRN_FULL beyond CAIRN_TOPOLOGY_COMMS_MAX. */
CAIRN_MUST_CHECK cairn_err cairn_topology_add(struct cairn_topology *topology, const char *name,
                                              const uint32_t *ranks, uint32_t count);

/* Derives roles and tables; once, after the last communicator. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_topology_finish(struct cairn_topology *topology);

/* The index of a communicator by name[name_bytes], CAIRN_COMM_NONE where there is none. */
uint32_t cairn_topology_find(const struct cairn_topology *topology, const char *name,
                             size_t name_bytes);

/* True where a rank takes part in a communicator. After finish. */
bool cairn_topology_member(const struct cairn_topology *topology, uint32_t rank, uint32_t comm);

/* True where two ranks are known to be on different nodes. */
bool cairn_topology_apart(const struct cairn_topology *topology, uint32_t left, uint32_t right);

#endif
