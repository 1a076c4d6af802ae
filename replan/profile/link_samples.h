/*
 * replan/profile/link_samples.h - transfers as samples per channel and size, of kinds that are
 * comparable, and the bandwidth of each kind.
 */
#ifndef CAIRN_REPLAN_PROFILE_LINK_SAMPLES_H
#define CAIRN_REPLAN_PROFILE_LINK_SAMPLES_H

#include "replan/profile/fit.h"
#include "replan/profile/transfers.h"

#define CAIRN_LINK_NODE_NONE UINT32_MAX
#define CAIRN_LINK_GBPS_OF 8e-6 /* of bytes per millisecond */

/* The transfers of one size on a channel. */
struct cairn_link_group {
    uint32_t kind;
    uint32_t nodes[2]; /* ascending; CAIRN_LINK_NODE_NONE where it does not tell of one pair of
                        * nodes */
    uint32_t count;
    double bytes; /* into one device */
    double ms;    /* their median */
    double error; /* the standard error of its logarithm */
    bool slow;
};

/* Operations that are comparable. */
struct cairn_link_kind {
    struct cairn_transfer_channel of; /* any of its channels */
    uint32_t comm_kind;
    bool crosses;
    double bytes_max;
    uint32_t transfers;
    double gbps, latency_ms; /* 0: not fitted */
};

/* Zeroed is empty. Ended by cairn_link_samples_fini. */
struct cairn_link_samples {
    const struct cairn_problem *problem;
    const struct cairn_topology *topology;
    uint64_t *node_ids; /* [node_count] ascending: what nodes are indices of */
    uint32_t node_count;
    struct cairn_link_group *samples;
    uint32_t sample_count;
    struct cairn_link_kind *kinds;
    uint32_t kind_count;
    /* between calls of its own alone */
    uint32_t *node_of;                /* [world]; CAIRN_LINK_NODE_NONE */
    uint32_t *ranks_on;               /* [node_count], all 0 */
    double *values;                   /* [sample_count + 1] */
    struct cairn_link_sample *fitted; /* [sample_count + 1] */
};

/* Fills an empty one; both are borrowed until the fini. CAIRN_NOMEM: it must be ended all the
 * same. */
CAIRN_MUST_CHECK cairn_err cairn_link_samples_make(struct cairn_link_samples *samples,
                                                   const struct cairn_problem *problem,
                                                   const struct cairn_topology *topology,
                                                   const struct cairn_transfers *transfers);
void cairn_link_samples_fini(struct cairn_link_samples *samples);

/* Latency and bandwidth of each kind, by its samples that are not slow. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_link_samples_fit(struct cairn_link_samples *samples);

/* The middle of values[count], which are sorted here; the mean of the middle two. */
double cairn_link_median(double *values, uint32_t count);

#endif
