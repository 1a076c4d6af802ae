/*
 * replan/fleet/problem.h - what a plan is made for: the model's costs, the devices that are left,
 * the links between them, and what runs now.
 *
 * Plain values in the units of the problem file (docs/PLANNER.md): milliseconds, layers, bytes.
 * Everything here is pure: no clock, no I/O.
 */
#ifndef CAIRN_REPLAN_FLEET_PROBLEM_H
#define CAIRN_REPLAN_FLEET_PROBLEM_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_PROBLEM_LAYERS_MAX = 10000,
    CAIRN_PROBLEM_MICROBATCHES_MAX = 1000000,
    CAIRN_PROBLEM_DEVICES_MAX = 65536,
    CAIRN_PROBLEM_GROUP_MAX = 1024, /* devices in one group */
    CAIRN_PROBLEM_SIZES_MAX = 16,   /* sizes of groups, the keys of tp_cost */
    CAIRN_PROBLEM_SLOW_LINKS_MAX = 256,
    CAIRN_FAULT_BYTES = 256
};
#define CAIRN_PROBLEM_BYTES_MAX (UINT64_C(1) << 50) /* of a layer, an activation, a device */

/* What is wrong with an input: where, what, and what was expected. */
struct cairn_fault {
    char text[CAIRN_FAULT_BYTES];
};

/* A device of a node. Rate 1 is healthy, 2 takes twice as long; 0 is dead. */
struct cairn_device {
    uint64_t id;
    uint64_t node;
    double rate;
    uint64_t memory_bytes;
};

/* A group of `size` devices takes `cost` times layer_ms for a layer. */
struct cairn_group_size {
    uint32_t size;
    double cost;
};

/* Two nodes whose link is slower than others. */
struct cairn_slow_link {
    uint64_t nodes[2];
    double gbps;
};

struct cairn_plan;

struct cairn_problem {
    uint32_t layers;
    double layer_ms;     /* one layer forward and backward, one micro-batch, one healthy group */
    double embed_layers; /* the vocabulary's weight on a pipeline's first stage */
    double head_layers;  /* and on its last */
    uint32_t microbatches;
    /* the size layer_ms was measured with */
    uint32_t tp;
    struct cairn_group_size sizes[CAIRN_PROBLEM_SIZES_MAX]; /* ascending by size */
    uint32_t size_count;
    uint64_t layer_bytes;         /* all its state, over the whole group */
    uint64_t activation_bytes;    /* of one layer and one micro-batch in flight, over the whole
                                * group */
    uint64_t reserved_bytes;      /* of every device */
    struct cairn_device *devices; /* owned; ascending by id */
    uint32_t device_count;
    double intra_gbps; /* 10^9 bits per second into one device, from its own node */
    double inter_gbps; /* and from another one */
    struct cairn_slow_link *slow_links; /* owned */
    uint32_t slow_link_count;
    struct cairn_plan *current; /* owned; NULL: nothing runs now */
};

/* Frees what the problem owns and empties it; an empty one is allowed. */
void cairn_problem_fini(struct cairn_problem *problem);

/* The work of one micro-batch in a whole pipeline, vocabulary included, in layers. */
double cairn_problem_work_layers(const struct cairn_problem *problem);

/* The index of a device by its id, device_count where there is none. */
uint32_t cairn_problem_device_find(const struct cairn_problem *problem, uint64_t id);

/*
 * Reads a problem file. On success the caller owns *out (cairn_problem_fini). CAIRN_CORRUPT with
 * *fault filled: not JSON, a field unknown, twice, missing, out of range, or contradicting another.
 * CAIRN_NOMEM. *out is untouched on failure. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_problem_read(const void *text, size_t text_bytes,
                                              struct cairn_problem *out, struct cairn_fault *fault);

struct cairn_json_writer;

/* Writes a problem as a file that says all itself: cairn_problem_read gives the same again.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_problem_write(const struct cairn_problem *problem,
                                               struct cairn_json_writer *writer);

#endif
