/*
 * replan/profile/fit.h - a profile's coefficients from what was measured: times of stages, of
 * transfers, and memory held.
 *
 * Least squares of the formulas of docs/PLANNER.md, every sample weighed by its size, so that what
 * is made small is the relative error. Samples that are far off all the others (a pause, a
 * checkpoint) are left out once. Pure.
 */
#ifndef CAIRN_REPLAN_PROFILE_FIT_H
#define CAIRN_REPLAN_PROFILE_FIT_H

#include "replan/fleet/problem.h"

/* How well coefficients say what was measured. */
struct cairn_fit {
    double error_rms; /* relative */
    uint32_t used;    /* samples; the others were far off */
};

/* A stage's median time for one micro-batch, forward and backward, on healthy devices. */
struct cairn_stage_sample {
    uint32_t layers;
    bool first; /* it has the embedding */
    bool last;  /* it has the head */
    double ms;
};

/*
 * Sets layer_ms, embed_layers and head_layers; the latter two stay as they are where no sample has
 * such a stage. CAIRN_INVAL with *fault: too few samples, or alike samples, which leave a
 * coefficient open; what to measure. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_fit_stages(const struct cairn_stage_sample *samples,
                                            uint32_t count, struct cairn_problem *problem,
                                            struct cairn_fit *fit, struct cairn_fault *fault);

/* A transfer into one device. */
struct cairn_link_sample {
    uint64_t bytes;
    double ms;
};

/* The bandwidth, and what each transfer takes besides. Errors as above. */
CAIRN_MUST_CHECK cairn_err cairn_fit_link(const struct cairn_link_sample *samples, uint32_t count,
                                          double *gbps, double *latency_ms, struct cairn_fit *fit,
                                          struct cairn_fault *fault);

/* The most that a device of a stage held. */
struct cairn_memory_sample {
    uint32_t layers;
    uint32_t in_flight; /* micro-batches whose activations were held at once */
    uint32_t group_size;
    uint64_t device_bytes;
};

/* Which sizes the samples tell. */
struct cairn_memory_told {
    bool layer, activation, reserved;
};

/*
 * Sets those of layer_bytes, activation_bytes and reserved_bytes that the samples tell apart from
 * the others, none below nothing: stages with as many layers per device each, say, tell activations
 * alone, and what layers and the reserve come to together. The others stay as they are. There is no
 * fit if nothing is known. CAIRN_INVAL with *fault: no samples, or a sample that cannot be.
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_fit_memory(const struct cairn_memory_sample *samples,
                                            uint32_t count, struct cairn_problem *problem,
                                            struct cairn_memory_told *told, struct cairn_fit *fit,
                                            struct cairn_fault *fault);

#endif
