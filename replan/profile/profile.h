/*
 * replan/profile/profile.h - a problem's times and rates from how long the ranks of a running plan
 * were seen to compute.
 */
#ifndef CAIRN_REPLAN_PROFILE_PROFILE_H
#define CAIRN_REPLAN_PROFILE_PROFILE_H

#include "replan/profile/fit.h"
#include "replan/trace/load.h"

struct cairn_profiled {
    struct cairn_fit fit;  /* of the stages */
    bool vocabulary_kept;  /* the stages do not tell it apart from layers: it is as the problem
                            * said */
    uint32_t stages;       /* that were measured */
    uint32_t slow_devices; /* whose rate is not 1 now */
    uint32_t kept_devices; /* alive, but not measured: their rate is as the problem said */
    bool first_open;       /* one device alone has first stages: if it is slow, embed_layers is too
                            * large and its rate 1 all the same */
    bool last_open;        /* so for last stages and head_layers */
    uint32_t near_stages;  /* whose time is less than 10 % off the fit */
};

/*
 * Sets layer_ms, embed_layers and head_layers, and the rates of the devices of problem->current,
 * which is the plan that ran: loads[rank_count] are of its steps, and a device's id is its rank. A
 * stage's time is the lower median of its ranks', so that one slow device is its own rate and not
 * the layers'; a device has rate 1 where it is less than 5 %, or three standard errors, off its
 * stage's time; one that the problem says is dead stays so. Where the stages are too much alike, or
 * too few, to tell the vocabulary apart from layers, embed_layers and head_layers stay as they are.
 * What a rank computes beside its micro-batches (its optimizer's step) counts as theirs.
 * CAIRN_INVAL with *fault where there is no such plan, too little was measured, or most stages'
 * times are far off any fit: what to do; the problem may be changed. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_profile_take(struct cairn_problem *problem,
                                              const struct cairn_load *loads, uint32_t rank_count,
                                              struct cairn_profiled *out,
                                              struct cairn_fault *fault);

#endif
